//! What a run promises: limits, rates, depth, cancelling, refusing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{Delayed, Memory};
use lunway_bench::{
    BenchError, Cancel, End, Job, Limit, Mix, Pattern, Rate, Region, Tick, holds_data, holds_data_anywhere,
    run,
};
use lunway_block::{BlockDevice, ExtentKind};

const MIB: u64 = 1 << 20;

fn job(change: impl FnOnce(&mut Job)) -> Job {
    let mut job = Job::new("test");
    job.seed = 1;
    job.limit = Limit::Time(Duration::from_millis(200));
    change(&mut job);
    job
}

async fn quiet(device: &Arc<impl BlockDevice>, job: &Job) -> Result<lunway_bench::Outcome, BenchError> {
    run(Arc::clone(device) as Arc<dyn BlockDevice>, job, &mut |_| (), &Cancel::new()).await
}

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(4 << 20))
}

#[tokio::test]
async fn a_limit_of_time_ends_in_time_and_counts_consistently() {
    let outcome = quiet(&memory(), &job(|_| ())).await.unwrap();
    assert_eq!(outcome.end, End::Limit);
    assert!(outcome.elapsed >= Duration::from_millis(200) && outcome.elapsed < Duration::from_secs(2));
    assert!(outcome.read.ios > 1000);
    assert_eq!(outcome.read.bytes, outcome.read.ios * 4096);
    assert_eq!(outcome.read.response.count(), outcome.read.ios);
    assert_eq!(outcome.write.ios, 0);
    assert!(outcome.depth_mean > 0.9 && outcome.depth_mean <= 1.0, "{}", outcome.depth_mean);
}

#[tokio::test]
async fn a_limit_of_bytes_moves_exactly_those() {
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(1)));
    let job = job(|job| {
        job.mix = Mix::WRITE;
        job.pattern = Pattern::Sequential;
        job.block_sizes = (64 << 10).into();
        job.queue_depth = 8;
        job.limit = Limit::Bytes(2 * MIB + 1);
    });
    let outcome = quiet(&device, &job).await.unwrap();
    assert_eq!(outcome.write.bytes, 2 * MIB, "whole blocks only");
    assert_eq!(outcome.end, End::Limit);
    assert!(device.inner.peek(0, 2 << 20).chunks(4096).all(|block| block.iter().any(|&byte| byte != 0)));
    assert!(device.inner.peek(2 << 20, 2 << 20).iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn of_two_limits_the_first_reached_counts() {
    let both =
        |millis, bytes| job(|job| job.limit = Limit::Either { time: Duration::from_millis(millis), bytes });
    let bytes = quiet(&memory(), &both(60_000, MIB)).await.unwrap();
    assert_eq!(bytes.read.bytes, MIB);
    let time = quiet(&memory(), &both(50, u64::MAX)).await.unwrap();
    assert!(time.elapsed < Duration::from_secs(1));
}

#[tokio::test]
async fn the_depth_asked_for_is_reached_and_not_exceeded() {
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(5)));
    let outcome = quiet(&device, &job(|job| job.queue_depth = 100)).await.unwrap();
    assert_eq!(device.most_in_flight.load(Ordering::SeqCst), 100);
    assert_eq!(outcome.depth_max, 100);
    assert!(outcome.depth_mean > 80.0 && outcome.depth_mean <= 100.0, "{}", outcome.depth_mean);
    assert!(outcome.read.response.min() >= 5_000_000);
}

#[tokio::test]
async fn what_the_ramp_did_is_not_counted() {
    let ramped = job(|job| {
        job.ramp = Duration::from_millis(150);
        job.limit = Limit::Time(Duration::from_millis(100));
        job.rate = Some(Rate::Iops(1000));
    });
    // A machine whose time is taken may be late by itself: once of several is enough.
    let mut seen = Vec::new();
    for _ in 0..8 {
        let started = Instant::now();
        let outcome = quiet(&memory(), &ramped).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(250));
        // A hundred, and not the 250 of both; those that were late at the end of the ramp count too.
        if (90..=170).contains(&outcome.read.ios) && outcome.elapsed < Duration::from_millis(240) {
            return;
        }
        seen.push((outcome.read.ios, outcome.elapsed));
    }
    panic!("{seen:?}");
}

#[tokio::test]
async fn a_cancel_leaves_a_valid_partial_outcome() {
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(2)));
    let long = job(|job| {
        job.limit = Limit::Time(Duration::from_secs(600));
        job.queue_depth = 4;
    });
    let cancel = Cancel::new();
    let canceller = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(150)).await;
        canceller.cancel();
    });
    let outcome = run(device as Arc<dyn BlockDevice>, &long, &mut |_| (), &cancel).await.unwrap();
    assert_eq!((outcome.end, outcome.abandoned), (End::Cancelled, 0));
    assert!(outcome.read.ios >= 40, "{}", outcome.read.ios);
    assert_eq!(outcome.read.response.count(), outcome.read.ios);
    assert!(outcome.elapsed < Duration::from_secs(2), "{:?}", outcome.elapsed);
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_a_device_that_never_answers() {
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_secs(3600)));
    let stuck = Cancel::new();
    let canceller = stuck.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        canceller.cancel();
    });
    let outcome =
        run(device as Arc<dyn BlockDevice>, &job(|job| job.queue_depth = 3), &mut |_| (), &stuck).await;
    let outcome = outcome.unwrap();
    assert_eq!(outcome.abandoned, 3);
    assert_eq!(outcome.read.ios, 0);
}

#[tokio::test]
async fn progress_comes_about_four_times_a_second_and_only_grows() {
    let mut ticks: Vec<Tick> = Vec::new();
    let long = job(|job| job.limit = Limit::Time(Duration::from_millis(1100)));
    run(memory() as Arc<dyn BlockDevice>, &long, &mut |tick| ticks.push(tick.clone()), &Cancel::new())
        .await
        .unwrap();
    assert!((3..=5).contains(&ticks.len()), "{}", ticks.len());
    assert!(ticks.windows(2).all(|pair| pair[0].fraction < pair[1].fraction));
    assert!(ticks.iter().all(|tick| tick.iops() > 0.0 && tick.fraction <= 1.0));
    let total = ticks[0].total.unwrap();
    assert!((1.0..1.2).contains(&total.as_secs_f64()), "{total:?}");
}

#[tokio::test]
async fn the_series_holds_every_whole_interval() {
    let outcome =
        quiet(&memory(), &job(|job| job.limit = Limit::Time(Duration::from_millis(450)))).await.unwrap();
    let points = outcome.series.points();
    assert!((4..=6).contains(&points.len()), "{}", points.len());
    let sum: u64 = points.iter().map(|point| point.read_ios).sum();
    assert!(sum <= outcome.read.ios && sum > outcome.read.ios / 2);
}

#[tokio::test]
async fn a_mix_reads_and_writes() {
    let mixed = job(|job| {
        job.mix = Mix { read_percent: 70 };
        job.destroy = true;
    });
    let outcome = quiet(&memory(), &mixed).await.unwrap();
    let share = outcome.read.ios as f64 / (outcome.read.ios + outcome.write.ios) as f64;
    assert!((0.65..0.75).contains(&share), "{share}");
}

#[tokio::test]
async fn failures_are_counted_and_end_a_run_that_has_nothing_else() {
    let device = Arc::new(Memory { fail_reads: true, ..Memory::new(4 << 20) });
    let outcome = quiet(&device, &job(|job| job.limit = Limit::Time(Duration::from_secs(60)))).await.unwrap();
    assert_eq!((outcome.end, outcome.errors(), outcome.read.ios), (End::Failing, 1000, 0));
    assert!(outcome.read.first_error.unwrap().starts_with("the medium failed"));
}

#[tokio::test]
async fn a_write_is_refused_where_data_is_and_allowed_where_it_is_not() {
    let device = memory();
    let write = |destroy| {
        job(|job| {
            job.mix = Mix::WRITE;
            job.destroy = destroy;
            job.region = Some(Region { offset: MIB, len: MIB });
            job.limit = Limit::Bytes(4096);
        })
    };
    quiet(&device, &write(false)).await.expect("the device is empty");
    device.poke(MIB as usize, &vec![0; MIB as usize]);
    device.poke(MIB as usize + 70_000, b"x");
    let before = device.peek(0, 4 << 20);
    let refused = quiet(&device, &write(false)).await.unwrap_err();
    assert!(matches!(refused, BenchError::WouldDestroy { offset } if offset == MIB + 70_000), "{refused}");
    assert_eq!(device.peek(0, 4 << 20), before, "nothing was written");
    quiet(&device, &write(true)).await.expect("allowed");
}

/// The zeroes of a disk with data elsewhere were overwritten.
#[tokio::test]
async fn a_write_to_an_empty_region_is_refused_where_data_is_beside_it() {
    let write = job(|job| {
        job.mix = Mix::WRITE;
        job.region = Some(Region { offset: MIB, len: MIB });
        job.limit = Limit::Bytes(4096);
    });
    for place in [512, MIB - 512, 2 * MIB, 4 * MIB - 512] {
        let device = memory();
        device.poke(place as usize, b"beside");
        let before = device.peek(0, 4 << 20);
        let refused = quiet(&device, &write).await.unwrap_err();
        assert!(matches!(refused, BenchError::WouldDestroy { offset } if offset == place), "{refused}");
        assert_eq!(device.peek(0, 4 << 20), before, "nothing was written");
    }
}

#[tokio::test]
async fn data_beside_regions_is_looked_for_once_within_bounds_and_sparse_extents_are_skipped() {
    let region = |offset, len| Region { offset: offset * MIB, len: len * MIB };
    let (device, mut told) = (Memory::new(80 << 20), Vec::new());
    let overlapping = [region(8, 8), region(12, 8), region(8, 8)];
    let found = holds_data_anywhere(&device, &overlapping, &mut |fraction| told.push(fraction)).await;
    assert_eq!(found, Ok(None));
    assert_eq!(told.last(), Some(&1.0));
    assert!(told.is_sorted(), "{told:?}");
    let read = device.bytes_read.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(read, 80 << 20, "each byte once");
    let empty = Memory { extent_kind: ExtentKind::Unallocated, ..Memory::new(80 << 20) };
    assert_eq!(holds_data_anywhere(&empty, &[region(0, 1)], &mut |_| ()).await, Ok(None));
    assert_eq!(empty.bytes_read.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_write_to_a_read_only_device_is_refused() {
    let device = Arc::new(Memory { read_only: true, ..Memory::new(4 << 20) });
    let refused = quiet(&device, &job(|job| job.mix = Mix::WRITE)).await.unwrap_err();
    assert!(matches!(refused, BenchError::ReadOnly));
}

#[tokio::test]
async fn extents_are_believed_and_large_devices_are_sampled() {
    let region = Region { offset: 0, len: 80 * MIB };
    let empty = Memory { extent_kind: ExtentKind::Unallocated, ..Memory::new(80 << 20) };
    empty.poke(0, b"not looked at");
    assert_eq!(holds_data(&empty, region).await, Ok(None));

    let large = Memory::new(80 << 20);
    assert_eq!(holds_data(&large, region).await, Ok(None));
    large.poke((80 << 20) - 512, b"a backup partition table");
    assert_eq!(holds_data(&large, region).await, Ok(Some(80 * MIB - 512)));
    large.poke(30 << 20, &[1; 1 << 20]);
    let found = holds_data(&large, Region { offset: 0, len: 79 * MIB }).await.unwrap().unwrap();
    assert!((30 * MIB..31 * MIB).contains(&found), "{found}");
}
