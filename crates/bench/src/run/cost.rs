//! Expected duration of jobs, before and while they run.

use std::time::Duration;

use crate::load::job::Job;

/// Throughput assumed of a device until it has shown its speed, bytes per second: twice that of a gigabit link.
pub(crate) const ASSUMED_RATE: f64 = 200e6;

/// Expected cost of a step: a number of bytes, limited by a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) most: Duration,
    pub(crate) ramp: Duration,
}

impl Cost {
    /// Of a job: as many bytes and as long as it may take.
    pub(crate) fn of(job: &Job) -> Self {
        let most = job.limit.time().unwrap_or(Duration::MAX);
        Self { bytes: job.limit.bytes().unwrap_or(u64::MAX), most, ramp: job.ramp }
    }

    /// Of a step that ends by time alone.
    pub(crate) fn time(most: Duration) -> Self {
        Self { bytes: u64::MAX, most, ramp: Duration::ZERO }
    }

    /// On a device that moves so many bytes in a second.
    pub(crate) fn at(self, rate: f64) -> Duration {
        let moving = Duration::try_from_secs_f64(self.bytes as f64 / rate).unwrap_or(Duration::MAX);
        self.ramp.saturating_add(moving.min(self.most))
    }
}

/// About how long a job takes on a device that nothing is known about.
pub(crate) fn cost(job: &Job) -> Duration {
    Cost::of(job).at(ASSUMED_RATE)
}

/// A sum that cannot overflow: writing exbibytes takes longer than can be said.
pub(crate) fn total(costs: impl IntoIterator<Item = Cost>, rate: f64) -> Duration {
    costs.into_iter().fold(Duration::ZERO, |sum, cost| sum.saturating_add(cost.at(rate)))
}
