//! Running the steps of a profile, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Geometry};

use crate::BenchError;
use crate::load::job::Job;
use crate::measure::outcome::{End, Outcome};
use crate::run::cancel::Cancel;
use crate::run::cost::{ASSUMED_RATE, Cost, total};
use crate::run::progress::{Step, Tick};
use crate::run::run;

/// Interval between progress reports.
const TICK: Duration = Duration::from_millis(250);

/// Runs steps that were [planned](Self::plan) before, tells how far it is, and knows whether it was asked to end.
pub(super) struct Runner<'a> {
    pub(super) device: &'a Arc<dyn BlockDevice>,
    progress: &'a mut dyn FnMut(Step<'_>, &Tick),
    pub(super) cancel: &'a Cancel,
    /// Outcomes worth keeping.
    pub(super) outcomes: Vec<Outcome>,
    /// Expected cost of each step.
    planned: Vec<Cost>,
    /// Last observed throughput of the device in a job that ended by bytes, bytes per second.
    rate: f64,
    /// Steps begun.
    begun: usize,
    /// A step ended before its limit.
    broken: bool,
}

/// Progress of a step that is not a job.
pub(super) struct Meter {
    name: &'static str,
    index: usize,
    count: usize,
    then: Duration,
    started: Instant,
    told: Instant,
    /// Counts since the last progress report.
    tick: Tick,
}

/// An I/O of a step that is no job.
pub(super) enum Done {
    /// So many bytes were read in that time.
    Read(u64, Duration),
    /// Or written.
    Write(u64, Duration),
    /// Failed, or moved nothing.
    Failed,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        device: &'a Arc<dyn BlockDevice>,
        progress: &'a mut dyn FnMut(Step<'_>, &Tick),
        cancel: &'a Cancel,
    ) -> Self {
        Self {
            device,
            progress,
            cancel,
            outcomes: Vec::new(),
            planned: Vec::new(),
            rate: ASSUMED_RATE,
            begun: 0,
            broken: false,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    /// Steps to come, in order.
    pub(super) fn plan(&mut self, costs: impl IntoIterator<Item = Cost>) {
        self.planned.extend(costs);
    }

    /// Adds the steps of jobs to those to come.
    pub(super) fn plan_jobs<'j>(&mut self, jobs: impl IntoIterator<Item = &'j Job>) {
        self.plan(jobs.into_iter().map(Cost::of));
    }

    /// Runs one job as one step.
    pub(super) async fn job(&mut self, job: &Job) -> Result<Outcome, BenchError> {
        let (index, count, then) = self.begin();
        let step = Step { name: &job.name, index, count, then };
        let progress = &mut *self.progress;
        let outcome =
            run(Arc::clone(self.device), job, &mut |tick| progress(step, tick), self.cancel).await?;
        self.broken |= outcome.end != End::Limit;
        let rate = outcome.read.bytes_per_second() + outcome.write.bytes_per_second();
        if job.limit.bytes().is_some() && rate > 0.0 {
            self.rate = rate;
        }
        Ok(outcome)
    }

    /// Begins a step that is no job.
    pub(super) fn meter(&mut self, name: &'static str) -> Meter {
        let (index, count, then) = self.begin();
        let now = Instant::now();
        Meter { name, index, count, then, started: now, told: now, tick: Tick::default() }
    }

    /// An I/O of that step is done, and that part of the step with it.
    pub(super) fn count(&mut self, meter: &mut Meter, done: Done, fraction: impl FnOnce() -> f64) {
        let (interval, bytes, took) = match done {
            Done::Read(bytes, took) => (&mut meter.tick.read, bytes, took),
            Done::Write(bytes, took) => (&mut meter.tick.write, bytes, took),
            Done::Failed => return,
        };
        interval.ios += 1;
        interval.bytes += bytes;
        interval.response.record(took.as_nanos() as u64);
        meter.tick.interval = meter.told.elapsed();
        if meter.tick.interval < TICK {
            return;
        }
        let Meter { name, index, count, then, tick, .. } = meter;
        tick.fraction = fraction().clamp(0.0, 1.0);
        tick.elapsed = meter.started.elapsed();
        tick.total = Duration::try_from_secs_f64(tick.elapsed.as_secs_f64() / tick.fraction).ok();
        (self.progress)(Step { name, index: *index, count: *count, then: *then }, tick);
        tick.read.clear();
        tick.write.clear();
        meter.told = Instant::now();
    }

    /// A step did not come to its end.
    pub(super) fn broke(&mut self) {
        self.broken = true;
    }

    /// Writes the region, where that is allowed. Whether it makes sense to go on: what could not be written would be
    /// read. An outcome with errors is kept: it is news.
    pub(super) async fn prepare(&mut self, preparation: Option<&Job>) -> Result<bool, BenchError> {
        let Some(preparation) = preparation else { return Ok(true) };
        let outcome = self.job(preparation).await?;
        let good = outcome.errors() == 0;
        let ended = outcome.end == End::Limit;
        if !good {
            self.broken = true;
            self.outcomes.push(outcome);
        }
        Ok(good && ended)
    }

    /// Tells whether the run was asked to end.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Returns `true` if every step that began was completed.
    pub(super) fn is_complete(&self) -> bool {
        !self.broken
    }

    fn begin(&mut self) -> (usize, usize, Duration) {
        let index = self.begun;
        self.begun += 1;
        let then = total(self.planned.iter().skip(self.begun).copied(), self.rate);
        (index, self.planned.len().max(self.begun), then)
    }
}
