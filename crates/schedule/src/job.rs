//! One thing that recurs.

use std::time::Duration;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::when::When;

/// How far a clock may be put back so that due times it shows a second time are not due again: an hour, which is more
/// than time servers and people correct a clock by. A clock that goes back further has been wrong, and due times count
/// from what it shows now: else one that was ten years ahead for a moment would end all runs for ten years.
pub const CLOCK_BACK_MAX: Duration = Duration::from_secs(3600);

/// How often one due time is tried if the process ends before the run does: a run that takes the process with it must
/// not do so for ever.
pub const ATTEMPTS_MAX: u32 = 3;

/// A moment, as two clocks show it, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since 1970, by the clock on the wall, which jumps.
    pub wall_ms: i64,
    /// Since some moment before the process began, by a clock that only goes on, also while the machine is suspended.
    pub steady_ms: i64,
}

impl Moment {
    /// A time of the wall clock that was recorded is so far ahead of this that the clock has been wrong: by more than
    /// [`CLOCK_BACK_MAX`].
    pub fn is_long_before(self, wall_ms: i64) -> bool {
        wall_ms.saturating_sub(self.wall_ms) > millis(CLOCK_BACK_MAX)
    }
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// When it is due.
    pub when: When,
    /// How much later than that it begins, always: so that many machines with the same times do not begin at once.
    pub delay: Duration,
    /// Runs that were missed while the process did not run, or that ended with it, are made after its start: one for
    /// all.
    pub catch_up: bool,
    /// How often a run that failed is made again before the next is due.
    pub retries: u32,
    /// How long after its end that is.
    pub retry_after: Duration,
}

impl Plan {
    /// A delay of at most `jitter`: the same each time for the same seed, evenly distributed over seeds.
    pub fn delay_within(jitter: Duration, seed: &str) -> Duration {
        // FNV-1a with its published basis and prime, and the finalizer of MurmurHash3, which spreads its last byte.
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut hash = seed.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
        }
        hash ^= hash >> 33;
        let millis = (u128::from(hash) * jitter.as_millis()) >> 64;
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }
}

/// Reason for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// It was due.
    Due,
    /// It was due while the process did not run.
    Missed,
    /// The process ended before the run did.
    Interrupted,
    /// The one before it has failed.
    Failed,
    /// Somebody has asked for it.
    Asked,
}

impl Cause {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Missed => "missed",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Asked => "asked",
        }
    }
}

/// What of a job survives a restart. It is to be durable before a run begins, and again after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Each due time up to here has had its run, milliseconds since 1970.
    pub covered_ms: i64,
    /// When the last run began, by the same clock.
    pub begun_ms: Option<i64>,
    /// How often the run that has begun and not ended was begun; 0: it has ended.
    pub attempts: u32,
    /// How often the last run was made again because it had failed, with the one that waits or is under way.
    #[serde(default)]
    pub retried: u32,
}

impl Record {
    /// It tells of times that have not come: the clock was ahead.
    pub fn is_of_the_future(&self, now: Moment) -> bool {
        [Some(self.covered_ms), self.begun_ms].into_iter().flatten().any(|time| now.is_long_before(time))
    }

    /// What it says with times that have not come taken for now. When the last run was made is not known then: where
    /// runs that are missed are made, one is owed, and stays so until it begins.
    fn until(mut self, now: Moment, plan: &Plan) -> Self {
        if now.is_long_before(self.covered_ms) {
            // Two gaps have a due time, also where a change of summer time makes one longer.
            let gaps = millis(plan.when.longest_gap()).saturating_mul(2).saturating_add(millis(plan.delay));
            self.covered_ms = now.wall_ms.saturating_sub(if plan.catch_up { gaps } else { 0 });
        }
        if self.begun_ms.is_some_and(|begun| now.is_long_before(begun)) {
            let is_owed = plan.catch_up && self.attempts == 0;
            self.begun_ms = Some(now.wall_ms).filter(|_| !is_owed);
        }
        self
    }
}

/// One thing that recurs: it is due, begins, and ends.
///
/// Each due time is run exactly once, or one run is made for all that have passed while a run was under way, waited, or
/// could not be made. Times of day are counted by the wall clock, up to [`Record::covered_ms`]; intervals by the steady
/// clock, and only over a restart by the other.
#[derive(Clone, Debug)]
pub struct Job {
    plan: Plan,
    covered_ms: i64,
    /// When the last run began, by the steady clock and by the other.
    begun: Option<Moment>,
    waiting: Option<Waiting>,
    /// Reason for the run under way.
    running: Option<Cause>,
    attempts: u32,
    retried: u32,
}

/// A run that has not begun.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Not before this, by the steady clock.
    from_ms: i64,
    cause: Cause,
}

impl Waiting {
    fn after(time: Duration, now: Moment, cause: Cause) -> Self {
        Self { from_ms: now.steady_ms.saturating_add(millis(time)), cause }
    }
}

fn millis(time: Duration) -> i64 {
    // 292 million years.
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Job {
    /// A job with what is on record of it; without that it is new.
    pub fn new(plan: Plan, record: Option<&Record>, now: Moment, zone: &TimeZone) -> Self {
        let record = record.map(|record| record.until(now, &plan));
        let covered_ms = record.map_or(now.wall_ms, |record| record.covered_ms);
        let retried = record.map_or(0, |record| record.retried);
        let mut job =
            Self { plan, covered_ms, begun: None, waiting: None, running: None, attempts: 0, retried };
        let begun = record.and_then(|record| record.begun_ms);
        // A clock that has gone back meanwhile: how long it is ago is not known, and the whole interval begins again.
        job.begun = begun.map(|wall_ms| {
            let passed = now.wall_ms.saturating_sub(wall_ms).max(0);
            Moment { wall_ms, steady_ms: now.steady_ms.saturating_sub(passed) }
        });
        let cause = match record {
            None => None,
            Some(Record { attempts: 1.., .. }) if !job.plan.catch_up => None,
            Some(Record { attempts, .. }) if (1..ATTEMPTS_MAX).contains(&attempts) => {
                job.attempts = attempts;
                Some(Cause::Interrupted)
            }
            // With the due time the one that would be made again has passed, too.
            Some(_) if job.is_due(now, zone) => job.plan.catch_up.then_some(Cause::Missed),
            Some(Record { attempts: 0, retried: 1.., .. }) if retried <= job.plan.retries => {
                Some(Cause::Failed)
            }
            Some(_) => None,
        };
        match cause {
            Some(Cause::Missed) => job.retried = 0,
            Some(_) => {}
            None => {
                job.forget_missed(now);
                job.retried = 0;
            }
        }
        let first = record.is_none() && matches!(job.plan.when, When::Every(_));
        job.waiting = cause.or(first.then_some(Cause::Due)).map(|cause| {
            let after = if cause == Cause::Failed { job.plan.retry_after } else { job.plan.delay };
            Waiting::after(after, now, cause)
        });
        job
    }

    /// Due times that have passed are not made up for.
    fn forget_missed(&mut self, now: Moment) {
        self.covered_ms = self.covered_ms.max(now.wall_ms);
        if let (When::Every(interval), Some(begun)) = (&self.plan.when, &mut self.begun) {
            // The rhythm stays.
            let into = now.steady_ms.saturating_sub(begun.steady_ms) % millis(*interval).max(1);
            begun.steady_ms = now.steady_ms - into;
        }
    }

    /// Another plan for the same job. Due times that it would have had until now are not made up for.
    pub fn change(&mut self, plan: Plan, now: Moment) {
        if plan.when != self.plan.when || plan.delay != self.plan.delay {
            self.covered_ms = now.wall_ms;
        }
        self.plan = plan;
    }

    /// What is to be kept.
    pub fn record(&self) -> Record {
        Record {
            covered_ms: self.covered_ms,
            begun_ms: self.begun.map(|begun| begun.wall_ms),
            attempts: self.attempts,
            retried: self.retried,
        }
    }

    /// Which attempt at its due time the run under way is, from 1.
    pub fn attempt(&self) -> u32 {
        self.retried + 1
    }

    /// How often a run that fails is still made again: the one under way, or the last one if it has failed.
    pub fn retries_left(&self) -> u32 {
        match (self.running, self.waiting) {
            (Some(Cause::Asked), _) if self.retried == 0 => 0,
            (Some(_), _) => self.plan.retries.saturating_sub(self.retried),
            // The one that waits is counted already.
            (None, Some(Waiting { cause: Cause::Failed, .. })) => {
                (self.plan.retries + 1).saturating_sub(self.retried)
            }
            (None, _) => 0,
        }
    }

    /// Milliseconds until a run that has failed is made again; 0: it may begin. `None`: none is to be.
    pub fn retry_in(&self, now: Moment) -> Option<i64> {
        let retry = self.waiting.filter(|waiting| waiting.cause == Cause::Failed)?;
        Some(retry.from_ms.saturating_sub(now.steady_ms).max(0))
    }

    /// A run is under way.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Somebody wants a run now. Returns `false` if one is under way.
    pub fn ask(&mut self, now: Moment) -> bool {
        let is_idle = !self.is_running();
        if is_idle {
            self.waiting = Some(Waiting::after(Duration::ZERO, now, Cause::Asked));
        }
        is_idle
    }

    /// Takes note of the time. Returns a run that may begin, and since when by the steady clock it might.
    pub(crate) fn look(&mut self, now: Moment, zone: &TimeZone) -> Option<(i64, Cause)> {
        self.mind_clock(now);
        if self.is_running() {
            return None;
        }
        let retries = self.waiting.is_some_and(|waiting| waiting.cause == Cause::Failed);
        if self.waiting.is_none() || retries {
            if self.is_due(now, zone) {
                // The one that would be made again is this one.
                self.retried = 0;
                self.waiting = Some(Waiting::after(Duration::ZERO, now, Cause::Due));
            } else {
                self.covered_ms = self.covered_ms.max(now.wall_ms);
            }
        }
        let waiting = self.waiting.filter(|waiting| waiting.from_ms <= now.steady_ms)?;
        Some((waiting.from_ms, waiting.cause))
    }

    /// A clock that has gone back far has been wrong before: due times count from now. How long ago the last run began
    /// is known by the steady clock.
    pub(crate) fn mind_clock(&mut self, now: Moment) {
        if now.is_long_before(self.covered_ms) {
            self.covered_ms = now.wall_ms;
        }
        if let Some(begun) = self.begun.as_mut().filter(|begun| now.is_long_before(begun.wall_ms)) {
            let passed = now.steady_ms.saturating_sub(begun.steady_ms).max(0);
            begun.wall_ms = now.wall_ms.saturating_sub(passed);
        }
    }

    fn is_due(&self, now: Moment, zone: &TimeZone) -> bool {
        self.due_in(now, zone).is_some_and(|left| left <= 0)
    }

    /// Milliseconds until the first due time that has had no run; negative: it has passed.
    fn due_in(&self, now: Moment, zone: &TimeZone) -> Option<i64> {
        match (&self.plan.when, self.begun) {
            (When::At { .. }, _) => {
                let delay = millis(self.plan.delay);
                let due = self.plan.when.next_after(self.covered_ms.saturating_sub(delay), zone)?;
                Some(due.saturating_add(delay).saturating_sub(now.wall_ms))
            }
            (When::Every(interval), Some(begun)) => {
                Some(begun.steady_ms.saturating_add(millis(*interval)).saturating_sub(now.steady_ms))
            }
            (When::Every(_), None) => Some(0),
        }
    }

    /// Milliseconds until the next run may begin; 0: it waits already. `None`: none is foreseen.
    pub fn next_in(&self, now: Moment, zone: &TimeZone) -> Option<i64> {
        let waits = self.waiting.map(|waiting| waiting.from_ms.saturating_sub(now.steady_ms));
        let due = match self.waiting {
            None | Some(Waiting { cause: Cause::Failed, .. }) => self.due_in(now, zone),
            Some(_) => None,
        };
        waits.into_iter().chain(due).min().map(|left| left.max(0))
    }

    /// A run begins: all due times until now are its.
    pub fn begin(&mut self, now: Moment) {
        self.mind_clock(now);
        let cause = self.waiting.take().map_or(Cause::Due, |waiting| waiting.cause);
        self.attempts = if cause == Cause::Interrupted { self.attempts + 1 } else { 1 };
        self.covered_ms = self.covered_ms.max(now.wall_ms);
        self.begun = Some(now);
        self.running = Some(cause);
    }

    /// The run has ended. One that failed is made again, but for one that somebody asked for and sees fail.
    pub fn end(&mut self, has_failed: bool, now: Moment) {
        self.attempts = 0;
        let cause = self.running.take();
        let again = has_failed
            && self.retried < self.plan.retries
            && (cause != Some(Cause::Asked) || self.retried > 0);
        self.retried = if again { self.retried + 1 } else { 0 };
        if again {
            self.waiting = Some(Waiting::after(self.plan.retry_after, now, Cause::Failed));
        }
    }
}
