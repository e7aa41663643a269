//! Progress of a run.

use std::time::Duration;

use crate::job::Job;
use crate::meter::{Beat, nanos};
use crate::run::Tick;

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
