//! Outcome of a job.

use std::time::Duration;

use crate::load::job::Job;
use crate::measure::cpu::CpuTime;
use crate::measure::latency::Latency;
use crate::measure::series::Series;
use crate::verify::Verification;

/// Outcome of one job: valid and complete for the part that ran, even if it was cancelled.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The job that was requested.
    pub job: Job,
    /// Results of the reads.
    pub read: Direction,
    /// Results of the writes.
    pub write: Direction,
    /// From the end of the ramp to the last completion, or to the limit of time if that is later.
    pub elapsed: Duration,
    /// Throughput over time.
    pub series: Series,
    /// CPU time of this process meanwhile, all its threads.
    pub cpu: CpuTime,
    /// Mean number of I/Os in flight. Less than asked means that the device, or a rate, kept it from filling up; a
    /// device that answers inline is never given a second one.
    pub depth_mean: f64,
    /// Most I/Os in flight at once; of several workers the sum of what each had at most.
    pub depth_max: u32,
    /// Reason why it ended.
    pub end: End,
    /// I/Os given up on without an answer, after a cancel.
    pub abandoned: u32,
    /// I/Os that a rate had made due and that had not been submitted when the limit was reached: the device had held up
    /// all that may be in flight. They are in no other figure; each had waited already.
    pub overdue: u64,
    /// Result of verification; `None` where it was not requested.
    pub verification: Option<Verification>,
}

/// Reason why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its limit was reached.
    Limit,
    /// Cancelled.
    Cancelled,
    /// Nothing but errors came any more.
    Failing,
}

/// Results of one direction of an [`Outcome`].
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// I/Os completed without error.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Duration of the measurement; that of the whole job.
    pub elapsed: Duration,
    /// Response times: from when each was *intended* to start until it was completed. Without a rate that is when it
    /// was submitted. With one it is when it was due, so that a stall of the device counts for every I/O that it held
    /// up, and not only for those that it happened to hold.
    pub response: Latency,
    /// From when each was submitted to the device until it was completed: what the device itself took.
    pub service: Latency,
    /// From when each was intended to start until it was submitted: what stood in the queue before the device.
    pub wait: Latency,
    /// I/Os that failed.
    pub errors: u64,
    /// Error of the first of them.
    pub first_error: Option<String>,
}

impl Direction {
    /// I/Os per second.
    pub fn iops(&self) -> f64 {
        self.per_second(self.ios)
    }

    /// Bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.per_second(self.bytes)
    }

    fn join(mut self, other: Self) -> Self {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.response.merge(&other.response);
        self.service.merge(&other.service);
        self.wait.merge(&other.wait);
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self
    }

    fn per_second(&self, count: u64) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { count as f64 / self.elapsed.as_secs_f64() }
    }
}

impl Outcome {
    /// With that of a worker that ran side by side with this one's, on the same clock. Verification is not part of it.
    pub(crate) fn join(mut self, other: Self) -> Self {
        let elapsed = self.elapsed.max(other.elapsed);
        let depth = |one: &Self| one.depth_mean * one.elapsed.as_secs_f64();
        self.depth_mean = (depth(&self) + depth(&other)) / elapsed.as_secs_f64().max(1e-9);
        self.elapsed = elapsed;
        self.read = self.read.join(other.read);
        self.write = self.write.join(other.write);
        self.read.elapsed = elapsed;
        self.write.elapsed = elapsed;
        self.series.join(other.series);
        self.cpu = self.cpu.max(other.cpu);
        self.depth_max += other.depth_max;
        self.end = match (self.end, other.end) {
            (End::Cancelled, _) | (_, End::Cancelled) => End::Cancelled,
            (End::Failing, _) | (_, End::Failing) => End::Failing,
            (End::Limit, End::Limit) => End::Limit,
        };
        self.abandoned += other.abandoned;
        self.overdue += other.overdue;
        self
    }

    /// I/Os that failed, in both directions.
    pub fn errors(&self) -> u64 {
        self.read.errors + self.write.errors
    }

    /// The directions that the job has, with their names.
    pub fn directions(&self) -> impl Iterator<Item = (&'static str, &Direction)> {
        let read = self.job.mix.reads().then_some(("read", &self.read));
        let write = self.job.mix.writes().then_some(("write", &self.write));
        read.into_iter().chain(write)
    }

    /// Returns `true` if a rate was set (for each worker) and less than 99 % of it was reached: latency is then that of
    /// an overload.
    pub fn rate_missed(&self) -> bool {
        use crate::load::job::Rate;
        let reached = match self.job.rate {
            None => return false,
            Some(Rate::Iops(rate)) => (self.read.iops() + self.write.iops()) / rate as f64,
            Some(Rate::BytesPerSecond(rate)) => {
                (self.read.bytes_per_second() + self.write.bytes_per_second()) / rate as f64
            }
        };
        reached < 0.99 * f64::from(self.job.jobs)
    }
}
