//! Several workers on one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Delayed, Memory};
use lunway_bench::{
    BenchError, BlockSizes, Cancel, Direction, End, FaultKind, Job, Limit, Mix, Outcome, Pattern, Rate,
    Region, Share, Tick, run,
};
use lunway_block::{BlockDevice, BlockError, Buf, Io};

fn job(change: impl FnOnce(&mut Job)) -> Job {
    let mut job = Job::new("test");
    job.seed = 1;
    job.jobs = 3;
    job.limit = Limit::Time(Duration::from_millis(300));
    change(&mut job);
    job
}

async fn quiet(device: &Arc<impl BlockDevice>, job: &Job) -> Result<Outcome, BenchError> {
    run(Arc::clone(device) as Arc<dyn BlockDevice>, job, &mut |_| (), &Cancel::new()).await
}

fn delayed(millis: u64) -> Arc<Delayed> {
    Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(millis)))
}

#[tokio::test]
async fn each_worker_has_the_whole_depth_and_limit() {
    let device = delayed(5);
    let deep = job(|job| {
        job.queue_depth = 4;
        job.limit = Limit::Bytes(50 * 4096);
    });
    let outcome = quiet(&device, &deep).await.unwrap();
    assert_eq!(device.most_in_flight.load(Ordering::SeqCst), 12);
    assert_eq!((outcome.read.ios, outcome.read.bytes), (150, 150 * 4096));
    assert_eq!(outcome.read.response.count(), 150);
    assert_eq!((outcome.depth_max, outcome.end), (12, End::Limit));
    assert!(outcome.depth_mean > 6.0 && outcome.depth_mean <= 12.0, "{}", outcome.depth_mean);
    assert_eq!(outcome.job, deep);
}

#[tokio::test]
async fn the_rate_is_that_of_each_worker() {
    let paced = job(|job| job.rate = Some(Rate::Iops(200)));
    // Three times 200. A machine whose time is taken makes some too late to count: then once more.
    let mut reached = Vec::new();
    while reached.last().is_none_or(|&iops| iops < 540.0) && reached.len() < 8 {
        let outcome = quiet(&delayed(1), &paced).await.unwrap();
        reached.push(outcome.read.iops());
        assert_eq!(outcome.read.service.count(), outcome.read.ios);
    }
    assert!(reached.last() >= Some(&540.0) && reached.iter().all(|&iops| iops <= 660.0), "{reached:?}");
}

#[tokio::test]
async fn workers_read_at_different_random_addresses_and_together_in_sequence() {
    let seen = |pattern| async move {
        let log = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut memory = Memory::new(4 << 20);
        let writes = Arc::clone(&log);
        memory.on_write = Box::new(move |offset, _, _| {
            writes.lock().unwrap().push(offset);
            true
        });
        let write = job(|job| {
            job.pattern = pattern;
            job.mix = Mix::WRITE;
            job.limit = Limit::Bytes(20 * 4096);
        });
        quiet(&Arc::new(memory), &write).await.unwrap();
        let mut offsets = log.lock().unwrap().clone();
        offsets.sort_unstable();
        offsets
    };
    let sequence = seen(Pattern::Sequential).await;
    assert!(sequence.iter().copied().eq((0..60).map(|io| io / 3 * 4096)), "{sequence:?}");
    let mut random = seen(Pattern::RANDOM).await;
    assert_eq!(random.len(), 60);
    random.dedup();
    assert!(random.len() > 50, "of 1024 blocks few are hit twice: {}", random.len());
}

#[tokio::test]
async fn progress_and_series_are_those_of_all_workers() {
    let (mut ios, mut ticks, mut fraction) = (0, 0, 0.0);
    let long = job(|job| job.limit = Limit::Time(Duration::from_millis(1100)));
    let mut progress = |tick: &Tick| {
        ios += tick.read.ios;
        ticks += 1;
        assert_eq!(tick.read.response.count(), tick.read.ios);
        assert!(tick.fraction > fraction);
        fraction = tick.fraction;
    };
    let outcome = run(delayed(2), &long, &mut progress, &Cancel::new()).await.unwrap();
    assert!((2..=4).contains(&ticks), "{ticks}");
    let share = ios as f64 / outcome.read.ios as f64;
    assert!((0.5..=1.0).contains(&share), "{share} of all was told as it went");
    let in_series: u64 = outcome.series.points().iter().map(|point| point.read_ios).sum();
    assert!(in_series * 10 > outcome.read.ios * 7, "{in_series} of {}", outcome.read.ios);
}

/// Random writes of mixed sizes by three workers, checked.
fn checked() -> Job {
    job(|job| {
        job.mix = Mix { read_percent: 30 };
        job.queue_depth = 8;
        job.verify = true;
        job.limit = Limit::Bytes(2 << 20);
        job.region = Some(Region { offset: 8192, len: 1 << 20 });
        let share = |block_size, percent| Share { block_size, percent };
        job.block_sizes = BlockSizes::Split {
            read: vec![share(4096, 100)],
            write: vec![share(4096, 50), share(12288, 30), share(1024, 20)],
        };
    })
}

#[tokio::test]
async fn workers_that_verify_own_their_blocks_and_find_no_fault_where_there_is_none() {
    let device = delayed(0);
    let outcome = quiet(&device, &checked()).await.unwrap();
    let found = outcome.verification.unwrap();
    assert_eq!((outcome.end, found.faulty), (End::Limit, 0), "{found:?}");
    assert!(found.checked > 100, "{}", found.checked);

    // Whoever comes later needs only the seed, whatever the number of workers was.
    let mut fill = checked();
    fill.destroy = true;
    fill.mix = Mix::WRITE;
    fill.block_sizes = 4096.into();
    fill.pattern = Pattern::Sequential;
    fill.limit = Limit::Bytes(1 << 20);
    quiet(&device, &fill).await.unwrap();
    let reader = Job { mix: Mix::READ, jobs: 1, ..fill };
    let found = quiet(&device, &reader).await.unwrap().verification.unwrap();
    assert_eq!((found.checked, found.faulty), (256, 0), "{found:?}");
}

#[tokio::test]
async fn a_write_that_was_lost_is_found_whichever_worker_made_it() {
    for lost in [8192, 8192 + (600 << 10)] {
        let mut memory = Memory::new(4 << 20);
        // The first write there gets through; all that come after it are lost.
        let count = AtomicU64::new(0);
        memory.on_write = Box::new(move |offset, data, _| {
            let hit = (offset..offset + data.len() as u64).contains(&lost);
            !(hit && count.fetch_add(1, Ordering::SeqCst) > 0)
        });
        let outcome = quiet(&Arc::new(memory), &checked()).await.unwrap();
        let found = outcome.verification.unwrap();
        assert!(found.faulty > 0);
        assert!(found.faults.iter().all(|fault| fault.offset.abs_diff(lost) < 12288), "{found:?}");
        assert!(matches!(found.faults[0].kind, FaultKind::Stale { .. } | FaultKind::Zero), "{found:?}");
    }
}

async fn cancelled_after(millis: u64, job: &Job) -> Outcome {
    let cancel = Cancel::new();
    let canceller = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        canceller.cancel();
    });
    let outcome = run(delayed(2), job, &mut |_| (), &cancel).await.unwrap();
    let all = |figures: &Direction| {
        let counts = [figures.response.count(), figures.service.count(), figures.wait.count()];
        assert_eq!(counts, [figures.ios; 3]);
        assert_eq!(figures.errors, 0);
    };
    all(&outcome.read);
    all(&outcome.write);
    assert_eq!((outcome.end, outcome.abandoned), (End::Cancelled, 0));
    assert!(outcome.elapsed < Duration::from_secs(3), "{:?}", outcome.elapsed);
    outcome
}

#[tokio::test]
async fn a_cancel_leaves_a_valid_partial_outcome_of_all_workers() {
    let long = Limit::Time(Duration::from_secs(600));
    let closed = cancelled_after(150, &job(|job| job.limit = long)).await;
    assert!(closed.read.ios >= 60, "{}", closed.read.ios);
    let open = job(|job| {
        job.limit = long;
        job.rate = Some(Rate::Iops(100));
    });
    let open = cancelled_after(300, &open).await;
    assert!((60..=130).contains(&open.read.ios), "{}", open.read.ios);
}

#[tokio::test]
async fn a_cancel_while_reading_back_keeps_the_figures_and_what_was_found() {
    for jobs in [1, 2] {
        let verifying = job(|job| {
            job.jobs = jobs;
            job.mix = Mix::WRITE;
            job.pattern = Pattern::Sequential;
            job.verify = true;
            job.queue_depth = 64;
            job.limit = Limit::Bytes((4 << 20) / u64::from(jobs));
        });
        // 1024 writes at 64 in flight take some 35 ms; reading back is cancelled at its first sign.
        let cancel = Cancel::new();
        let device =
            Arc::new(CancelAtRead { inner: delayed(2), reads: AtomicU64::new(0), cancel: cancel.clone() });
        let outcome = run(device, &verifying, &mut |_| (), &cancel).await.unwrap();
        assert_eq!((outcome.end, outcome.write.ios), (End::Cancelled, 1024));
        let found = outcome.verification.unwrap();
        assert!(found.checked > 0 && found.checked < 1024 && found.faulty == 0, "{found:?}");
    }
}

/// Cancels the run when it starts reading.
struct CancelAtRead {
    inner: Arc<Delayed>,
    reads: AtomicU64,
    cancel: Cancel,
}

impl lunway_block::Layer for CancelAtRead {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if self.reads.fetch_add(1, Ordering::SeqCst) == 100 {
            self.cancel.cancel();
        }
        std::thread::sleep(Duration::from_micros(500));
        self.inner.read(offset, buf)
    }
}

#[tokio::test]
async fn reading_back_is_told_as_such_and_not_as_warming_up() {
    let verifying = job(|job| {
        job.mix = Mix::WRITE;
        job.pattern = Pattern::Sequential;
        job.verify = true;
        job.ramp = Duration::from_millis(400);
        job.limit = Limit::Bytes(200 * 4096);
    });
    let mut phases = Vec::new();
    let mut progress = |tick: &Tick| phases.push((tick.ramping, tick.reading_back));
    run(delayed(2), &verifying, &mut progress, &Cancel::new()).await.unwrap();
    phases.dedup();
    let ramp_then_work = [(true, false), (false, false), (false, true)];
    assert!(phases.starts_with(&ramp_then_work), "{phases:?}");
}

#[tokio::test]
#[should_panic(expected = "out of the blue")]
async fn a_device_that_panics_in_a_worker_is_heard() {
    let mut memory = Memory::new(4 << 20);
    memory.on_write = Box::new(|_, _, _| panic!("out of the blue"));
    let write = job(|job| job.mix = Mix::WRITE);
    let _ = quiet(&Arc::new(memory), &write).await;
}
