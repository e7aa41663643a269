//! I/Os that are due whatever the device does: the rate is kept, and a stall is hidden from nobody.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Delayed, Memory};
use lunway_bench::{Arrivals, BenchError, Cancel, Job, Latency, Limit, Outcome, Rate, run};
use lunway_block::{BlockDevice, BlockError, Buf, Io};

fn job(change: impl FnOnce(&mut Job)) -> Job {
    let mut job = Job::new("test");
    job.seed = 1;
    job.limit = Limit::Time(Duration::from_millis(500));
    change(&mut job);
    job
}

async fn quiet(device: &Arc<impl BlockDevice>, job: &Job) -> Result<Outcome, BenchError> {
    run(Arc::clone(device) as Arc<dyn BlockDevice>, job, &mut |_| (), &Cancel::new()).await
}

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(4 << 20))
}

/// How many were longer than `limit`.
fn longer(latency: &Latency, limit: Duration) -> u64 {
    latency.buckets().filter(|&(ns, _)| u128::from(ns) > limit.as_nanos()).map(|(_, count)| count).sum()
}

/// Answers at once, but for one stall: a read that comes in it is answered at its end.
struct Stalling {
    memory: Memory,
    first_read: Mutex<Option<Instant>>,
    after: Duration,
    stall: Duration,
}

impl lunway_block::Layer for Stalling {
    fn inner(&self) -> &dyn BlockDevice {
        &self.memory
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let first = *self.first_read.lock().unwrap().get_or_insert_with(Instant::now);
        let (from, to) = (first + self.after, first + self.after + self.stall);
        let io = self.memory.read(offset, buf);
        if Instant::now() < from || Instant::now() >= to {
            return io;
        }
        Io::pending(async move {
            tokio::time::sleep_until(to.into()).await;
            io.await
        })
    }
}

#[tokio::test]
async fn a_stall_counts_for_every_io_that_it_delayed_and_not_only_for_the_one_that_the_device_held() {
    let stalling = || {
        Arc::new(Stalling {
            memory: Memory::new(4 << 20),
            first_read: Mutex::default(),
            after: Duration::from_millis(150),
            stall: Duration::from_millis(250),
        })
    };
    let open = job(|job| {
        job.rate = Some(Rate::Iops(200));
        job.limit = Limit::Time(Duration::from_millis(600));
    });
    let outcome = quiet(&stalling(), &open).await.unwrap();
    let (read, long) = (&outcome.read, Duration::from_millis(60));
    // Due in the first 190 ms of the stall: 38 that waited longer than 60 ms.
    let delayed = longer(&read.response, long);
    assert!((34..=48).contains(&delayed), "{delayed} felt the stall");
    let held = longer(&read.service, long);
    assert!((1..=2).contains(&held), "{held} were with the device");
    assert_eq!(longer(&read.wait, long) + 1, delayed, "the others stood in the queue");
    assert_eq!([read.response.count(), read.service.count(), read.wait.count()], [read.ios; 3]);
    let parts = read.service.mean() + read.wait.mean();
    assert!((read.response.mean() / parts - 1.0).abs() < 1e-6, "response is wait and service");

    // The same stall in a closed loop: one slow I/O, and no trace of those that would have come.
    let outcome = quiet(&stalling(), &Job { rate: None, ..open }).await.unwrap();
    assert!(longer(&outcome.read.response, long) <= 2);
    assert_eq!(outcome.read.wait.max(), 0);
}

#[tokio::test]
async fn what_was_due_and_never_submitted_is_told() {
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(450)));
    let swamped = job(|job| {
        job.rate = Some(Rate::Iops(100));
        job.limit = Limit::Time(Duration::from_millis(300));
    });
    let outcome = quiet(&device, &swamped).await.unwrap();
    assert_eq!(outcome.read.ios, 1);
    assert!((28..=40).contains(&outcome.overdue), "{}", outcome.overdue);
    assert!(outcome.rate_missed());

    let bytes = Job { limit: Limit::Bytes(4096), ..swamped };
    assert_eq!(quiet(&device, &bytes).await.unwrap().overdue, 0, "nothing is due behind the last byte");
}

#[tokio::test]
async fn random_arrivals_keep_the_rate_and_come_in_bursts() {
    // Evenly spaced, an I/O of 2 ms every 4 ms never waits for another; at random many do.
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(2)));
    let job = job(|job| {
        job.rate = Some(Rate::Iops(250));
        job.arrivals = Arrivals::Poisson;
        job.limit = Limit::Time(Duration::from_secs(1));
    });
    let outcome = quiet(&device, &job).await.unwrap();
    assert!((190..=310).contains(&outcome.read.ios), "{}", outcome.read.ios);
    let waited = longer(&outcome.read.wait, Duration::from_millis(1));
    assert!(waited > outcome.read.ios / 5, "{waited} of {}", outcome.read.ios);
}

#[tokio::test]
async fn a_rate_is_kept_to_within_ten_per_cent() {
    for (rate, iops) in
        [(Rate::Iops(2000), 2000.0), (Rate::BytesPerSecond(4096 * 300), 300.0), (Rate::Iops(50), 50.0)]
    {
        let limited = job(|job| {
            job.rate = Some(rate);
            job.queue_depth = 4;
            job.limit = Limit::Time(Duration::from_millis(500));
        });
        let outcome = quiet(&memory(), &limited).await.unwrap();
        let reached = outcome.read.iops();
        assert!((reached / iops - 1.0).abs() < 0.1, "{rate:?}: {reached}");
    }
}

#[tokio::test]
async fn behind_a_rate_waiting_counts_as_response_time() {
    // One at a time at 5 ms each cannot keep up with one every 2 ms: the last ones wait for hundreds of milliseconds.
    let device = Arc::new(Delayed::new(Memory::new(4 << 20), Duration::from_millis(5)));
    let overload = job(|job| {
        job.rate = Some(Rate::Iops(500));
        job.limit = Limit::Time(Duration::from_millis(400));
    });
    let outcome = quiet(&device, &overload).await.unwrap();
    assert!(outcome.read.response.max() > 100_000_000, "{}", outcome.read.response.max());
    assert!(outcome.rate_missed());
}
