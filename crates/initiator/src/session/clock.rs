//! Detection of late commands: deadlines, counted in ticks.

use std::mem;
use std::time::{Duration, Instant};

use lunway_block::{BlockError, Fate};

use crate::SessionOptions;
use crate::session::slots::Effect;

/// Time in ticks, so that a command is stamped without asking the clock.
pub(crate) struct Clock {
    start: Instant,
    period: Duration,
    pub(crate) tick: u64,
    /// The tick at which commands were last looked at for being late.
    looked_at: u64,
    command_timeout: Duration,
    command_ticks: u64,
    pub(crate) abort_ticks: u64,
    pub(crate) lifetime_ticks: u64,
    replacement_timeout: Duration,
    pub(crate) replacement_ticks: u64,
}

impl Clock {
    pub(crate) fn new(options: &SessionOptions) -> Self {
        let shortest = options.command_timeout.min(options.abort_timeout);
        let period = (shortest / 8).clamp(Duration::from_millis(2), Duration::from_millis(500));
        let ticks = |time: Duration| (time.as_nanos() / period.as_nanos()) as u64 + 1;
        let lifetime = 2 * options.command_timeout + options.abort_timeout + options.replacement_timeout;
        Self {
            start: Instant::now(),
            period,
            tick: 0,
            looked_at: 0,
            command_timeout: options.command_timeout,
            command_ticks: ticks(options.command_timeout),
            abort_ticks: ticks(options.abort_timeout),
            lifetime_ticks: ticks(lifetime),
            replacement_timeout: options.replacement_timeout,
            replacement_ticks: ticks(options.replacement_timeout),
        }
    }

    pub(crate) fn set(&mut self, now: Instant) {
        let tick = (now.saturating_duration_since(self.start).as_nanos() / self.period.as_nanos()) as u64;
        self.tick = self.tick.max(tick);
    }

    /// Returns `true` once per tick at the most: if commands are to be looked at for being late.
    pub(crate) fn is_look_due(&mut self) -> bool {
        mem::replace(&mut self.looked_at, self.tick) != self.tick
    }

    pub(crate) fn next(&self) -> Instant {
        self.start + Duration::from_nanos((self.period.as_nanos() as u64).saturating_mul(self.tick + 1))
    }

    /// Duration of that many ticks.
    pub(crate) fn time(&self, ticks: u64) -> Duration {
        Duration::from_nanos((self.period.as_nanos() as u64).saturating_mul(ticks))
    }

    pub(crate) fn patience(&self, effect: Effect) -> u64 {
        self.command_ticks * (1 + u64::from(effect.is_slow()))
    }

    /// The error of a command that sessions have been lost over for `replacement_timeout`, once none of them is left.
    pub(crate) fn given_up(&self) -> BlockError {
        let millis = self.replacement_timeout.as_millis() as u64;
        BlockError::Timeout { millis, fate: Fate::Over }
    }

    /// The error of a command that had all its time.
    pub(crate) fn timeout(&self, effect: Effect, fate: Fate) -> BlockError {
        let time = self.command_timeout * (1 + u32::from(effect.is_slow()));
        BlockError::Timeout { millis: time.as_millis() as u64, fate }
    }
}
