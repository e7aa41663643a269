//! Several workers on one device.
//!
//! ```text
//!   the caller's task ◀── ready, done ──┬── thread 0: runtime, Engine ──┐
//!        │   every quarter second       ├── thread 1: runtime, Engine ──┼──▶ device
//!        └──────── takes the counts of ─┴── …                           ┘
//! ```

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Geometry};
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::BenchError;
use crate::load::job::Job;
use crate::load::random::mix;
use crate::measure::interval::Interval;
use crate::measure::meter::{BEAT, Beat, nanos};
use crate::measure::outcome::Outcome;
use crate::run::cancel::Cancel;
use crate::run::engine::Engine;
use crate::run::progress::Progress;
use crate::verify::{Verification, Verifier};

/// The caller's task looks after a cancel this often.
const TURN: Duration = Duration::from_millis(20);
/// Workers beat together, at whole quarters of a second of the common clock; each by the first completion or idle turn
/// after that. So long the caller's task gives them before it takes what they counted.
const GRACE: u64 = 60_000_000;

/// The workers of a job between its runs: one to write, one to read back.
///
/// A single worker is the calling task, so that a device and its only user share a thread as they do in a daemon.
/// Several are a thread each, with a runtime of its own; they start their clocks together. What they share is the
/// device, the cancel, and four times a second an uncontended lock.
pub(crate) struct Workers {
    device: Arc<dyn BlockDevice>,
    workers: Vec<Worker>,
}

/// Worker: the job with a seed of its own and, if it verifies, a part of the region of its own.
struct Worker {
    job: Job,
    verifier: Option<Verifier>,
}

enum Message {
    Ready,
    Done(usize, Box<Outcome>, Option<Verifier>),
}

/// Completions of one worker since the caller last took them.
type Counts = Mutex<(Interval, Interval)>;

impl Workers {
    /// For a job that was checked against that device.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, job: &Job) -> Self {
        let geometry = device.geometry();
        let workers = (0..job.jobs).map(|index| Worker::new(job, index, &geometry)).collect();
        Self { device, workers }
    }

    /// From here on [`drive`](Self::drive) reads what was written; how many bytes that is.
    pub(crate) fn read_back(&mut self) -> u64 {
        let verifiers = self.workers.iter_mut().filter_map(|worker| worker.verifier.as_mut());
        verifiers.map(Verifier::read_back).sum()
    }

    /// Returns the result of verification so far; `None` where it was not requested.
    pub(crate) fn into_found(self) -> Option<Verification> {
        let found = self.workers.into_iter().filter_map(|worker| Some(worker.verifier?.into_found()));
        found.reduce(Verification::join)
    }

    /// Runs all of them until the last has ended.
    pub(crate) async fn drive(
        &mut self,
        progress: &mut Progress<'_>,
        cancel: &Cancel,
    ) -> Result<Outcome, BenchError> {
        match &mut self.workers[..] {
            [only] => {
                let mut beat = |beat: &Beat<'_>| progress.beat(beat);
                let verifier = only.verifier.take();
                let mut engine = Box::new(Engine::new(&*self.device, &only.job, verifier, &mut beat, cancel));
                engine.start(Instant::now());
                let (outcome, verifier) = complete(engine).await;
                only.verifier = verifier;
                Ok(outcome)
            }
            several => WorkerThreads::spawn(&self.device, several)?.work(several, progress, cancel).await,
        }
    }
}

impl Worker {
    fn new(job: &Job, index: u32, geometry: &Geometry) -> Self {
        let region = job.region_on(geometry);
        let part = if job.verify { job.part(region, index) } else { region };
        // Stamps carry the whole job's seed, so that a later job with any number of workers can check them.
        let verifier = job.verify.then(|| Verifier::new(job, part, geometry.logical_sector));
        let seed = if index == 0 { job.seed } else { mix(job.seed ^ mix(index.into())) };
        Self { job: Job { seed, region: Some(part), ..job.clone() }, verifier }
    }
}

async fn complete(mut engine: Box<Engine<'_>>) -> (Outcome, Option<Verifier>) {
    // The engine yields by its own clock. The runtime's budget would make a batch of more than 128 completions wait
    // for another turn.
    tokio::task::unconstrained(poll_fn(|cx| engine.poll(cx))).await;
    engine.finish()
}

/// The threads of one run. Dropped early, they are asked to end and not waited for.
struct WorkerThreads {
    threads: Vec<JoinHandle<()>>,
    messages: mpsc::UnboundedReceiver<Message>,
    start: Vec<std_mpsc::Sender<Instant>>,
    counts: Arc<[Counts]>,
    cancel: Cancel,
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl WorkerThreads {
    /// Starts a thread for each worker, and takes its verifier. They wait for the origin of the clock.
    fn spawn(device: &Arc<dyn BlockDevice>, workers: &mut [Worker]) -> Result<Self, BenchError> {
        let (report, messages) = mpsc::unbounded_channel();
        let counts = workers.iter().map(|_| Counts::default()).collect();
        let cancel = Cancel::new();
        let mut all = Self { threads: Vec::new(), messages, start: Vec::new(), counts, cancel };
        for (index, worker) in workers.iter_mut().enumerate() {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(BenchError::Thread)?;
            let (start, origin) = std_mpsc::channel();
            let worker_thread = WorkerThread {
                index,
                device: Arc::clone(device),
                job: worker.job.clone(),
                counts: Arc::clone(&all.counts),
                cancel: all.cancel.clone(),
                report: report.clone(),
                origin,
            };
            let verifier = worker.verifier.take();
            let thread = thread::Builder::new().name(format!("bench-{index}"));
            let thread =
                thread.spawn(move || worker_thread.work(&runtime, verifier)).map_err(BenchError::Thread)?;
            all.threads.push(thread);
            all.start.push(start);
        }
        Ok(all)
    }

    async fn work(
        mut self,
        workers: &mut [Worker],
        progress: &mut Progress<'_>,
        cancel: &Cancel,
    ) -> Result<Outcome, BenchError> {
        let mut outcomes: Vec<Option<Outcome>> = workers.iter().map(|_| None).collect();
        let (mut ready, mut origin, mut ticked) = (0, Instant::now(), 0);
        while outcomes.iter().any(Option::is_none) {
            match timeout(TURN, self.messages.recv()).await {
                Ok(Some(Message::Ready)) => {
                    ready += 1;
                    if ready == workers.len() {
                        origin = Instant::now();
                        for start in &self.start {
                            // One that is gone has panicked, which comes to light below.
                            let _ = start.send(origin);
                        }
                    }
                }
                Ok(Some(Message::Done(index, outcome, verifier))) => {
                    outcomes[index] = Some(*outcome);
                    workers[index].verifier = verifier;
                }
                // All threads are gone and not all are done: see below.
                Ok(None) => break,
                Err(_) => {}
            }
            if cancel.is_cancelled() {
                self.cancel.cancel();
            }
            let now = nanos(origin.elapsed());
            if ready == workers.len() && now >= ticked + BEAT + GRACE {
                let since = ticked;
                ticked = (now - GRACE) / BEAT * BEAT;
                self.tick(since, ticked, &workers[0].job, progress);
            }
        }
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        let outcomes = outcomes.into_iter().flatten();
        Ok(outcomes
            .reduce(Outcome::join)
            .expect("every worker that did not panic was done, and there are some"))
    }

    fn tick(&self, since: u64, now: u64, job: &Job, progress: &mut Progress<'_>) {
        let (mut read, mut write) = (Interval::default(), Interval::default());
        for counts in &*self.counts {
            let mut counts = lock(counts);
            read.merge(&counts.0);
            write.merge(&counts.1);
            counts.0.clear();
            counts.1.clear();
        }
        let ramping = !progress.is_reading_back() && now <= nanos(job.ramp);
        progress.beat(&Beat { now, since, read: &read, write: &write, ramping });
    }
}

/// Thread and its worker, before they start.
struct WorkerThread {
    index: usize,
    device: Arc<dyn BlockDevice>,
    job: Job,
    counts: Arc<[Counts]>,
    cancel: Cancel,
    report: mpsc::UnboundedSender<Message>,
    origin: std_mpsc::Receiver<Instant>,
}

impl WorkerThread {
    fn work(self, runtime: &Runtime, verifier: Option<Verifier>) {
        let counts = &self.counts[self.index];
        let mut beat = |beat: &Beat<'_>| {
            let mut counts = lock(counts);
            counts.0.merge(beat.read);
            counts.1.merge(beat.write);
        };
        let done = runtime.block_on(async {
            let mut engine =
                Box::new(Engine::new(&*self.device, &self.job, verifier, &mut beat, &self.cancel));
            // The receiver or the starter may have been dropped: then there is nothing to do.
            self.report.send(Message::Ready).ok()?;
            engine.start(self.origin.recv().ok()?);
            Some(complete(engine).await)
        });
        if let Some((outcome, verifier)) = done {
            // The same.
            let _ = self.report.send(Message::Done(self.index, Box::new(outcome), verifier));
        }
    }
}

fn lock(counts: &Counts) -> MutexGuard<'_, (Interval, Interval)> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
