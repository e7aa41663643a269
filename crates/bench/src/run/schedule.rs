//! Jobs one after the other and side by side.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;
use tokio::sync::mpsc;

use crate::BenchError;
use crate::load::job::Job;
use crate::measure::outcome::Outcome;
use crate::occupancy::holds_data_anywhere;
use crate::run::cancel::Cancel;
use crate::run::cost::cost;
use crate::run::progress::{Step, Tick};
use crate::run::run;

/// Interval at which a job with a delayed start checks for cancellation.
const NAP: Duration = Duration::from_millis(20);

/// Jobs in stages: those of one stage run side by side, the next stage waits for all of them.
///
/// What a job file makes. Alone in its stage, a job runs on the calling task; several have a thread with a runtime
/// each, so that none waits for another's turn. Before the first I/O all jobs are checked, and all that may not
/// overwrite data are refused if there is some in their regions: later they would find each other's.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// In order.
    pub stages: Vec<Vec<ScheduledJob>>,
    /// Notes for a reader of the results.
    pub notes: Vec<String>,
}

/// A job and when it starts.
#[derive(Clone, Debug)]
pub struct ScheduledJob {
    /// The job.
    pub job: Job,
    /// After the start of its stage.
    pub delay: Duration,
}

/// Event in a running [`Schedule`].
#[derive(Debug)]
pub enum Event<'a> {
    /// Before the first job: data is looked for on a device that is to be written, and this fraction of it is done.
    Looking(f64),
    /// A job goes on.
    Tick(Step<'a>, &'a Tick),
    /// A job has ended.
    Done(Step<'a>, &'a Outcome),
}

/// Message from a job on a thread of its own.
enum Message {
    Tick(usize, Box<Tick>),
    Done(usize, Result<Box<Outcome>, BenchError>),
}

impl Schedule {
    /// All jobs, in the order of their outcomes.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.stages.iter().flatten().map(|entry| &entry.job)
    }

    /// About how long it takes; what ends after so many bytes is a guess, as the device's speed is not known yet.
    pub fn estimate(&self) -> Duration {
        self.stages.iter().map(|stage| Self::stage_cost(stage)).sum()
    }

    fn stage_cost(stage: &[ScheduledJob]) -> Duration {
        stage.iter().map(|entry| entry.delay + cost(&entry.job)).max().unwrap_or_default()
    }

    /// Runs all of it. A cancelled run gives the outcomes of what had begun.
    pub async fn run(
        &self,
        device: &Arc<dyn BlockDevice>,
        watch: &mut dyn FnMut(Event<'_>),
        cancel: &Cancel,
    ) -> Result<Vec<Outcome>, BenchError> {
        self.check(device, watch).await?;
        let count = self.jobs().count();
        let mut outcomes = Vec::new();
        for (index, stage) in self.stages.iter().enumerate() {
            if cancel.is_cancelled() {
                break;
            }
            let then = self.stages[index + 1..].iter().map(|stage| Self::stage_cost(stage)).sum();
            let first = outcomes.len();
            let step = |at: usize| Step { name: &stage[at].job.name, index: first + at, count, then };
            match &stage[..] {
                [entry] => {
                    let tick = &mut |tick: &Tick| watch(Event::Tick(step(0), tick));
                    if let Some(outcome) = entry.run(device, tick, cancel).await? {
                        watch(Event::Done(step(0), &outcome));
                        outcomes.push(outcome);
                    }
                }
                entries => outcomes.extend(side_by_side(entries, device, &step, watch, cancel).await?),
            }
        }
        Ok(outcomes)
    }

    async fn check(
        &self,
        device: &Arc<dyn BlockDevice>,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), BenchError> {
        let geometry = device.geometry();
        for job in self.jobs() {
            job.check(&geometry)?;
        }
        let mut writing = self.jobs().filter(|job| job.mix.writes()).peekable();
        if geometry.read_only && writing.peek().is_some() {
            return Err(BenchError::ReadOnly);
        }
        let regions: Vec<_> =
            writing.filter(|job| !job.destroy).map(|job| job.region_on(&geometry)).collect();
        if regions.is_empty() {
            return Ok(());
        }
        let looked = &mut |fraction| watch(Event::Looking(fraction));
        let found = holds_data_anywhere(&**device, &regions, looked).await;
        match found.map_err(|source| BenchError::Device { doing: "looking for data", source })? {
            Some(offset) => Err(BenchError::WouldDestroy { offset }),
            None => Ok(()),
        }
    }
}

impl ScheduledJob {
    /// `None`: cancelled before it began.
    async fn run(
        &self,
        device: &Arc<dyn BlockDevice>,
        progress: &mut dyn FnMut(&Tick),
        cancel: &Cancel,
    ) -> Result<Option<Outcome>, BenchError> {
        let start = Instant::now();
        while start.elapsed() < self.delay {
            if cancel.is_cancelled() {
                return Ok(None);
            }
            tokio::time::sleep(NAP.min(self.delay - start.elapsed().min(self.delay))).await;
        }
        // The whole schedule was checked before its first I/O.
        let job = Job { destroy: true, ..self.job.clone() };
        let mut outcome = run(device.clone(), &job, progress, cancel).await?;
        outcome.job.destroy = self.job.destroy;
        Ok(Some(outcome))
    }
}

async fn side_by_side<'a>(
    entries: &'a [ScheduledJob],
    device: &Arc<dyn BlockDevice>,
    step: &dyn Fn(usize) -> Step<'a>,
    watch: &mut dyn FnMut(Event<'_>),
    cancel: &Cancel,
) -> Result<Vec<Outcome>, BenchError> {
    let (sender, mut messages) = mpsc::unbounded_channel();
    for (index, entry) in entries.iter().enumerate() {
        let (entry, device, cancel, sender) = (entry.clone(), device.clone(), cancel.clone(), sender.clone());
        let started = thread::Builder::new().name(format!("job {index}")).spawn(move || {
            // The receiver goes only when the whole run is dropped.
            let tell = |message| drop(sender.send(message));
            let ended = alone(
                &entry,
                &device,
                &mut |tick| tell(Message::Tick(index, Box::new(tick.clone()))),
                &cancel,
            );
            if let Some(result) = ended.transpose() {
                tell(Message::Done(index, result.map(Box::new)));
            }
        });
        started.map_err(BenchError::Thread)?;
    }
    drop(sender);
    let mut outcomes: Vec<Option<Outcome>> = entries.iter().map(|_| None).collect();
    let mut failed = None;
    while let Some(message) = messages.recv().await {
        match message {
            Message::Tick(index, tick) => watch(Event::Tick(step(index), &tick)),
            Message::Done(index, Ok(outcome)) => {
                watch(Event::Done(step(index), &outcome));
                outcomes[index] = Some(*outcome);
            }
            Message::Done(_, Err(error)) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(outcomes.into_iter().flatten().collect()),
    }
}

/// Runs an entry to its end on this thread.
fn alone(
    entry: &ScheduledJob,
    device: &Arc<dyn BlockDevice>,
    progress: &mut dyn FnMut(&Tick),
    cancel: &Cancel,
) -> Result<Option<Outcome>, BenchError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Thread)?;
    runtime.block_on(entry.run(device, progress, cancel))
}
