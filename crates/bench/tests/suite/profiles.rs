//! The `anvil` profile from a device to a page.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Memory;
use lunway_bench::profile::{self, Details, Kind, Options, ProfileResult, Step, anvil};
use lunway_bench::report::document;
use lunway_bench::score::Score;
use lunway_bench::{Cancel, Table, Tick};
use lunway_block::BlockDevice;

fn options(destroy: bool) -> Options {
    Options {
        duration: Duration::from_millis(60),
        ramp: Duration::from_millis(10),
        region: 8 << 20,
        destroy,
        seed: 1,
        ..Options::default()
    }
}

#[tokio::test]
async fn a_run_that_may_write_fills_the_region_and_gives_ten_scored_rows() {
    let memory = Arc::new(Memory::new(16 << 20));
    let device: Arc<dyn BlockDevice> = Arc::clone(&memory) as _;
    let profile = anvil(&device.geometry(), &options(true));
    let mut steps = Vec::new();
    let mut progress = |step: lunway_bench::profile::Step<'_>, _: &_| steps.push((step.index, step.count));
    let outcomes = profile.run(&device, &mut progress, &Cancel::new()).await.unwrap();
    assert!(steps.iter().all(|&(index, count)| index < count && count == 11));
    let table = Table::of(&outcomes);
    assert_eq!(table.rows.len(), 10);
    assert!(table.rows.iter().all(|row| row.iops > 0.0 && row.response_ms > 0.0 && row.errors == 0));
    assert!(Score::of(&outcomes).total().unwrap() > 0.0);
    assert!(memory.peek(0, 8 << 20).chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)));
    assert!(memory.peek(8 << 20, 8 << 20).iter().all(|&byte| byte == 0), "nothing beyond the region");

    let page = lunway_report::html(&document("anvil", "memory", &outcomes));
    assert!(page.matches("<svg").count() >= 4);
}

#[tokio::test]
async fn a_run_that_may_not_write_leaves_the_device_as_it_was() {
    let memory = Arc::new(Memory::new(16 << 20));
    memory.poke(12345, b"precious");
    let before = memory.peek(0, 16 << 20);
    let device: Arc<dyn BlockDevice> = Arc::clone(&memory) as _;
    let profile = anvil(&device.geometry(), &options(false));
    let outcomes = profile.run(&device, &mut |_, _| (), &Cancel::new()).await.unwrap();
    assert_eq!(outcomes.len(), 6);
    assert_eq!(memory.peek(0, 16 << 20), before);
    assert!(Score::of(&outcomes).total().is_none());
}

#[tokio::test]
async fn a_cancelled_profile_keeps_what_was_done() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(16 << 20));
    let long = Options { duration: Duration::from_secs(60), ..options(false) };
    let cancel = Cancel::new();
    let from_progress = cancel.clone();
    let profile = anvil(&device.geometry(), &long);
    // On a busy machine a tick may come before the first I/O does.
    let mut progress = |_: Step<'_>, tick: &Tick| {
        if !tick.ramping && tick.read.ios > 0 {
            from_progress.cancel();
        }
    };
    let outcomes = profile.run(&device, &mut progress, &cancel).await.unwrap();
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].read.ios > 0);
}

#[tokio::test]
async fn a_preparation_that_fails_is_reported_and_nothing_is_read_after_it() {
    let mut memory = Memory::new(16 << 20);
    memory.fail_writes = true;
    let device: Arc<dyn BlockDevice> = Arc::new(memory);
    let profile = anvil(&device.geometry(), &options(true));
    let outcomes = profile.run(&device, &mut |_, _| (), &Cancel::new()).await.unwrap();
    assert_eq!(outcomes.len(), 1);
    assert_eq!((outcomes[0].job.name.as_str(), outcomes[0].errors()), ("preparation", 8));
}

async fn measure(kind: Kind, device: &Arc<dyn BlockDevice>, options: &Options) -> ProfileResult {
    profile::run(kind, device, options, &mut |_, _| (), &Cancel::new()).await.unwrap()
}

#[tokio::test]
async fn crystal_measures_each_row_several_times_and_keeps_the_run_in_the_middle() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(16 << 20));
    let short = Options { duration: Duration::from_millis(20), runs: 3, ..options(true) };
    let result = measure(Kind::Crystal, &device, &short).await;
    let Details::Crystal(crystal) = &result.details else { panic!("{result:?}") };
    assert!(result.complete);
    assert_eq!((crystal.rows.len(), result.outcomes.len()), (12, 12));
    for (row, outcome) in crystal.rows.iter().zip(&result.outcomes) {
        assert_eq!((row.runs.len(), &row.name), (3, &outcome.job.name));
        let iops = outcome.read.iops() + outcome.write.iops();
        assert_eq!(iops, row.median().iops, "{}", row.name);
    }
    assert_eq!(result.to_json()["crystal"]["rows"][11]["runs"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn crystal_cut_in_a_run_keeps_the_whole_runs_before_it() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(16 << 20));
    let short = Options { duration: Duration::from_millis(400), runs: 5, ..options(false) };
    let cancel = Cancel::new();
    let from_progress = cancel.clone();
    // Step 0 is thrown away, 1 and 2 are whole, 3 is cut.
    let mut progress = |step: profile::Step<'_>, _: &_| {
        if step.index == 3 {
            from_progress.cancel();
        }
    };
    let result = profile::run(Kind::Crystal, &device, &short, &mut progress, &cancel).await.unwrap();
    let Details::Crystal(crystal) = &result.details else { panic!("{result:?}") };
    assert!(!result.complete);
    assert_eq!((crystal.rows.len(), crystal.rows[0].runs.len(), result.outcomes.len()), (1, 2, 1));
}

#[tokio::test]
async fn atto_moves_the_region_once_in_every_size_that_fits() {
    let device: Arc<dyn BlockDevice> = Arc::new(Memory::new(1 << 20));
    let result = measure(Kind::Atto, &device, &Options { ramp: Duration::ZERO, ..options(true) }).await;
    let Details::Atto(atto) = &result.details else { panic!("{result:?}") };
    let sizes: Vec<u32> = atto.sweep.iter().map(|point| point.block_size).collect();
    assert_eq!(sizes, (9..=20).map(|power| 1 << power).collect::<Vec<u32>>());
    assert!(atto.sweep.iter().all(|point| point.read.is_some() && point.write.is_some()));
    assert!(result.outcomes[23].read.bytes == 1 << 20, "the last row, 1 MiB reads, took one I/O");
    assert!(result.to_string().contains("512K"));
}

#[tokio::test]
async fn a_profile_whose_preparation_fails_is_not_complete_and_shows_the_errors() {
    for kind in Kind::ALL {
        let device: Arc<dyn BlockDevice> = Arc::new(Memory { fail_writes: true, ..Memory::new(16 << 20) });
        let result = measure(kind, &device, &options(true)).await;
        assert!(!result.complete && result.outcomes[0].errors() > 0, "{}", kind.name());
        assert_eq!(result.outcomes.len(), 1, "{}", kind.name());
    }
}

#[test]
fn how_long_a_profile_takes_is_known_before_it_starts() {
    let geometry = lunway_block::Geometry::plain(1 << 40);
    let crystal = profile::estimate(Kind::Crystal, &geometry, &Options::of(Kind::Crystal));
    assert_eq!(crystal, Duration::from_secs(4 * 6 * 5));
    for kind in Kind::ALL {
        let beyond = lunway_block::Geometry::plain(u64::MAX);
        let endless = Options { region: u64::MAX, destroy: true, ..Options::of(kind) };
        assert!(profile::estimate(kind, &beyond, &endless) > Duration::ZERO, "no overflow");
        let all = profile::estimate(kind, &geometry, &Options { destroy: true, ..Options::of(kind) });
        assert!((20..24 * 3600).contains(&all.as_secs()), "{}: {all:?}", kind.name());
    }
}

#[tokio::test]
async fn every_profile_makes_a_page_with_its_charts_and_comparable_figures() {
    let expected = [
        (Kind::Anvil, "Results", "read 4K QD16"),
        (Kind::H2bench, "Zones", "zones, write"),
        (Kind::Crystal, "Median of the runs", "RND4K Q32T1 read"),
        (Kind::Atto, "By transfer size", "write 64K"),
        (Kind::Steady, "Steady state", "steady"),
    ];
    for (kind, heading, measure_name) in expected {
        // A device so slow that its rounds are alike on a busy machine, too.
        let memory = Arc::new(lunway_memory::RamDisk::new(2 << 20, 512).unwrap());
        let device: Arc<dyn BlockDevice> = match kind {
            Kind::Steady => {
                Arc::new(lunway_block::decorate::Rate::new(memory, (8 << 20).try_into().unwrap()))
            }
            _ => memory,
        };
        let duration = Duration::from_millis(if kind == Kind::Steady { 120 } else { 20 });
        let ramp = Duration::ZERO;
        let short = Options { duration, ramp, destroy: true, seed: 3, runs: 3, ..Options::of(kind) };
        let result = measure(kind, &device, &short).await;
        assert!(result.complete, "{result}");
        let document = result.document(kind.name(), "memory");
        assert!(document.sections.iter().any(|section| section.heading == heading), "{}", kind.name());
        let names: Vec<&str> = document.measures.iter().map(|measure| measure.name.as_str()).collect();
        assert!(names.contains(&measure_name), "{}: {names:?}", kind.name());
        assert!(document.results["profile"]["complete"].as_bool().unwrap());
        let page = lunway_report::html(&document);
        assert!(page.contains("<svg") && page.contains(heading), "{}", kind.name());
        assert!(page.contains("this host"), "what was cached where is on the page of {}", kind.name());
    }
}
