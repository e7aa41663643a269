//! Comparisons of real devices, in this process: few runs here, as many as `LUNWAY_REPEATS` says where the machine is
//! quiet.

use std::sync::Arc;
use std::time::Duration;

use lunway_bench::compare::{Comparison, Devices, Figure, Plan, Verdict};
use lunway_bench::{Cancel, Job, Limit};
use lunway_block::BlockDevice;
use lunway_block::decorate::Delay;
use lunway_memory::RamDisk;

const SIZE: u64 = 16 << 20;

fn ram() -> Arc<dyn BlockDevice> {
    Arc::new(RamDisk::new(SIZE, 512).unwrap())
}

/// RAM that takes some microseconds longer.
fn delayed(micros: u64) -> Arc<dyn BlockDevice> {
    Arc::new(Delay::new(ram(), Duration::from_micros(micros)))
}

/// How often; a plain test run is one repeat.
fn repeats() -> u64 {
    std::env::var("LUNWAY_REPEATS").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

async fn compare(devices: &Devices, plan: &Plan) -> Comparison {
    devices.check().unwrap();
    let cancel = Cancel::new();
    plan.run(&mut async |run| devices.measure(run, &mut |_| {}, &cancel).await, &mut |_| {}, &cancel)
        .await
        .unwrap()
}

fn plan(devices: &Devices, seed: u64) -> Plan {
    Plan::new(devices.rows(), vec!["A".into(), "B".into()], seed)
}

/// Each I/O of the one takes 2 ms, of the other 3 % longer: sleep, which a busy machine lengthens for both alike.
#[tokio::test]
async fn a_delay_of_three_per_cent_is_slower_and_the_interval_is_around_it() {
    let job = Job { limit: Limit::Bytes(50 * 4096), ..Job::new("read 4K") };
    let (mut slower, mut around, repeats) = (0, 0, repeats());
    for repeat in 0..repeats {
        let devices = Devices {
            candidates: vec![delayed(2000), delayed(2060)],
            control_again: delayed(2000),
            jobs: vec![job.clone()],
            figure: Figure::Iops,
        };
        let comparison = compare(&devices, &plan(&devices, repeat)).await;
        println!("{comparison}");
        let contrast = &comparison.contrasts[0];
        slower += u64::from(contrast.verdict == Verdict::Slower);
        // What the machine adds to both makes 60 µs less than 3 % of the whole.
        let truth = -100.0 * 60e-6 * contrast.b;
        around += u64::from(contrast.interval_pct.is_some_and(|(low, high)| low <= truth && truth <= high));
        assert_ne!(contrast.verdict, Verdict::Faster);
        assert!(contrast.interval_pct.is_some_and(|(low, _)| low < 0.0), "{comparison}");
    }
    if repeats >= 20 {
        assert!(
            slower >= repeats * 19 / 20 && around >= repeats * 19 / 20,
            "{slower} and {around} of {repeats}"
        );
    }
}

#[tokio::test]
async fn ram_is_not_called_faster_or_slower_than_ram() {
    let runs = if repeats() > 1 { Duration::from_millis(300) } else { Duration::from_millis(30) };
    let job = Job { limit: Limit::Time(runs), ramp: runs / 10, ..Job::new("read 4K") };
    let (mut even, repeats) = (0, repeats());
    for repeat in 0..repeats {
        let devices = Devices {
            candidates: vec![ram(), ram()],
            control_again: ram(),
            jobs: vec![job.clone()],
            figure: Figure::Iops,
        };
        let comparison = compare(&devices, &plan(&devices, repeat)).await;
        println!("{comparison}");
        even += comparison.count(Verdict::NoMeaningfulDifference) as u64;
    }
    if repeats >= 20 {
        assert!(even >= repeats * 19 / 20, "{even} of {repeats}");
    }
}
