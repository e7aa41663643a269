//! Running a job.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;

use crate::BenchError;
use crate::engine::Engine;
use crate::interval::Interval;
use crate::job::Job;
use crate::meter::Beat;
use crate::occupancy::holds_data;
use crate::outcome::{End, Outcome};
use crate::progress::Progress;
use crate::verify::Verifier;

/// Asks a run to end early, from anywhere. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// One that has not been used.
    pub fn new() -> Self {
        Self::default()
    }

    /// The run stops issuing within 50 ms, waits up to a second for what is in flight, and gives its partial outcome.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a run is doing, about four times a second.
#[derive(Clone, Debug, Default)]
pub struct Tick {
    /// Since the run started, ramp included.
    pub elapsed: Duration,
    /// How long it will take in all, as far as can be told.
    pub total: Option<Duration>,
    /// Since the last tick.
    pub interval: Duration,
    /// What was read in the interval.
    pub read: Interval,
    /// What was written in the interval.
    pub write: Interval,
    /// Part done, 0 to 1.
    pub fraction: f64,
    /// Warming up: nothing of it will be in the outcome.
    pub ramping: bool,
    /// Reading back what was written, for verification.
    pub reading_back: bool,
}

impl Tick {
    /// I/Os per second in the interval.
    pub fn iops(&self) -> f64 {
        (self.read.ios + self.write.ios) as f64 / self.interval.as_secs_f64()
    }

    /// Bytes per second in the interval.
    pub fn bytes_per_second(&self) -> f64 {
        (self.read.bytes + self.write.bytes) as f64 / self.interval.as_secs_f64()
    }
}

/// Runs `job` on `device` and says what came of it.
///
/// One worker, on the calling task: `job.queue_depth` I/Os in flight, each completion issues the next. Must be called inside
/// a tokio runtime with time enabled, best a `current_thread` one that nothing else competes for. `progress` is called
/// from the worker and should be quick.
///
/// A failed I/O is counted, not returned; a thousand in a row with no success end the run. A job that writes is refused with
/// [`BenchError::WouldDestroy`] if [`holds_data`] sees data in its region and [`Job::destroy`] is not set.
pub async fn run(
    device: Arc<dyn BlockDevice>,
    job: &Job,
    progress: &mut dyn FnMut(&Tick),
    cancel: &Cancel,
) -> Result<Outcome, BenchError> {
    let geometry = device.geometry();
    job.check(&geometry)?;
    let region = job.region_on(&geometry);
    if job.mix.writes() {
        if geometry.read_only {
            return Err(BenchError::ReadOnly);
        }
        if !job.destroy {
            let found = holds_data(&*device, region).await;
            let found = found.map_err(|source| BenchError::Device { doing: "looking for data", source })?;
            if let Some(offset) = found {
                return Err(BenchError::WouldDestroy { offset });
            }
        }
    }
    let verifier = job.verify.then(|| Verifier::new(job, region, geometry.logical_sector));
    let (mut outcome, verifier) =
        drive(&device, job, verifier, &mut Progress::of(job, progress), cancel).await;
    let Some(mut verifier) = verifier else { return Ok(outcome) };
    if job.mix.writes() && outcome.end == End::Limit {
        verifier.read_back();
        let mut progress = Progress::of_reading_back(verifier.written(), progress);
        let (pass, read) = drive(&device, job, Some(verifier), &mut progress, cancel).await;
        outcome.read.errors += pass.read.errors;
        outcome.read.first_error = outcome.read.first_error.or(pass.read.first_error);
        outcome.end = pass.end;
        outcome.verification = read.map(Verifier::into_found);
    } else {
        outcome.verification = Some(verifier.into_found());
    }
    Ok(outcome)
}

async fn drive(
    device: &Arc<dyn BlockDevice>,
    job: &Job,
    verifier: Option<Verifier>,
    progress: &mut Progress<'_>,
    cancel: &Cancel,
) -> (Outcome, Option<Verifier>) {
    let mut beat = |beat: &Beat<'_>| progress.beat(beat);
    let mut engine = Box::new(Engine::new(&**device, job, verifier, &mut beat, cancel));
    engine.start(Instant::now());
    // The engine yields by its own clock. The runtime's budget would make a batch of more than 128 completions wait
    // for another turn.
    tokio::task::unconstrained(poll_fn(|cx| engine.poll(cx))).await;
    engine.finish()
}
