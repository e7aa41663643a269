//! Progress of a run.

use std::time::Duration;

use crate::load::job::Job;
use crate::measure::interval::Interval;
use crate::measure::meter::{Beat, nanos};

/// Step of a running profile or schedule.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Name of the step: a row's name, "preparation" …
    pub name: &'a str,
    /// From 0, preparation included.
    pub index: usize,
    /// Number of steps, preparation included.
    pub count: usize,
    /// About how long the steps after this one will take.
    pub then: Duration,
}

/// Progress of a run, about four times a second.
#[derive(Clone, Debug, Default)]
pub struct Tick {
    /// Since the run started, ramp included.
    pub elapsed: Duration,
    /// Expected total duration, as far as can be told.
    pub total: Option<Duration>,
    /// Since the last tick.
    pub interval: Duration,
    /// Reads in the interval.
    pub read: Interval,
    /// Writes in the interval.
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

/// Makes ticks of beats: knows what there is to do in all.
pub(crate) struct Progress<'a> {
    tell: &'a mut dyn FnMut(&Tick),
    deadline: Option<u64>,
    bytes_total: Option<u64>,
    bytes_done: u64,
    tick: Tick,
}

impl<'a> Progress<'a> {
    /// Of a run of `job` with all its workers.
    pub(crate) fn of(job: &Job, tell: &'a mut dyn FnMut(&Tick)) -> Self {
        Self {
            tell,
            deadline: job.limit.time().map(|time| nanos(job.ramp.saturating_add(time))),
            bytes_total: job.limit.bytes().map(|bytes| bytes.saturating_mul(job.jobs.into())),
            bytes_done: 0,
            tick: Tick::default(),
        }
    }

    /// Of reading back `bytes`.
    pub(crate) fn of_reading_back(bytes: u64, tell: &'a mut dyn FnMut(&Tick)) -> Self {
        let tick = Tick { reading_back: true, ..Tick::default() };
        Self { tell, deadline: None, bytes_total: Some(bytes), bytes_done: 0, tick }
    }

    pub(crate) fn is_reading_back(&self) -> bool {
        self.tick.reading_back
    }

    pub(crate) fn beat(&mut self, beat: &Beat<'_>) {
        let Beat { now, since, read, write, ramping } = *beat;
        if !ramping {
            self.bytes_done += read.bytes + write.bytes;
        }
        let part = |done: u64, of: Option<u64>| of.map_or(0.0, |of| done as f64 / of.max(1) as f64);
        let fraction = part(now, self.deadline).max(part(self.bytes_done, self.bytes_total)).min(1.0);
        let elapsed = Duration::from_nanos(now);
        let tick = &mut self.tick;
        tick.elapsed = elapsed;
        tick.total = Duration::try_from_secs_f64(elapsed.as_secs_f64() / fraction).ok();
        tick.interval = Duration::from_nanos(now - since);
        tick.fraction = fraction;
        tick.ramping = ramping;
        for (tick, beat) in [(&mut tick.read, read), (&mut tick.write, write)] {
            tick.clear();
            tick.merge(beat);
        }
        (self.tell)(tick);
    }
}
