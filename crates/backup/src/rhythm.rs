//! Checkpoint interval: how often a run makes durable what it has sent, and records it.
//!
//! A kill costs what was sent since the last checkpoint, and beside one that is being made at most as much again. A
//! checkpoint costs three flushes of the share. So one is due after as many bytes as the share makes durable in
//! [`INTERVAL`], which its own last checkpoint tells: a page cache takes bytes faster than the share does, and only a
//! flush waits for that. Where bytes come slowly, since few leaves differ or a limit holds them back, one is due after
//! that time.

use std::time::{Duration, Instant};

/// Time whose sending a kill may cost. At 51 MB/s and more [`BYTES_MAX`] come first, so that three flushes in 5 s are
/// no more than fast shares have always had.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes between two checkpoints, at most.
const BYTES_MAX: u64 = 256 << 20;
/// Bytes of the first one, which measures the share: 3 s at 5 MB/s.
const BYTES_FIRST: u64 = 16 << 20;
/// Bytes between two checkpoints, at least: one unit, as less would be no progress.
const BYTES_MIN: u64 = 1 << 20;

/// Schedule of a run's checkpoints. All counts are bytes that the run has sent.
#[derive(Debug)]
pub(crate) struct Rhythm {
    last: Instant,
    sent: u64,
    bytes: u64,
}

impl Rhythm {
    /// A run that has sent so much before, all of it recorded.
    pub(crate) fn new(sent: u64, now: Instant) -> Self {
        Self { last: now, sent, bytes: BYTES_FIRST }
    }

    /// Tells whether a checkpoint is due. Nothing that was sent, nothing to lose.
    pub(crate) fn is_due(&self, sent: u64, now: Instant) -> bool {
        let since = sent - self.sent;
        self.is_enough(since) || since > 0 && now - self.last >= INTERVAL
    }

    /// Tells whether so many bytes are as many as a checkpoint should hold.
    pub(crate) fn is_enough(&self, bytes: u64) -> bool {
        bytes >= self.bytes
    }

    /// A checkpoint was made, which ended now and holds what had been sent when it began.
    pub(crate) fn made(&mut self, sent: u64, now: Instant) {
        let (since, took) = (sent - self.sent, (now - self.last).as_secs_f64());
        if since > 0 {
            // A cast saturates, for a checkpoint that took no time as well.
            let in_interval = (since as f64 / took * INTERVAL.as_secs_f64()) as u64;
            self.bytes = in_interval.clamp(BYTES_MIN, BYTES_MAX);
        }
        (self.last, self.sent) = (now, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_slow_share_is_flushed_as_often_as_it_sends_for_five_seconds() {
        let begun = Instant::now();
        let mut rhythm = Rhythm::new(0, begun);
        assert!(!rhythm.is_due(BYTES_FIRST - 1, begun), "the page cache took it at once");
        assert!(rhythm.is_due(BYTES_FIRST, begun));
        // At 4 MiB/s.
        let flushed = begun + 4 * SECOND;
        rhythm.made(16 << 20, flushed);
        assert!(!rhythm.is_due(35 << 20, flushed));
        assert!(rhythm.is_due(36 << 20, flushed));
    }

    #[test]
    fn a_fast_share_is_flushed_each_256_mib() {
        let begun = Instant::now();
        let mut rhythm = Rhythm::new(7, begun);
        rhythm.made(7 + BYTES_FIRST, begun);
        assert!(!rhythm.is_due(6 + BYTES_FIRST + BYTES_MAX, begun));
        assert!(rhythm.is_due(7 + BYTES_FIRST + BYTES_MAX, begun));
    }

    #[test]
    fn what_comes_slowly_is_recorded_after_five_seconds_and_nothing_never() {
        let begun = Instant::now();
        let mut rhythm = Rhythm::new(0, begun);
        assert!(!rhythm.is_due(0, begun + 60 * SECOND));
        rhythm.made(0, begun + 60 * SECOND);
        assert!(!rhythm.is_due(1, begun + 64 * SECOND));
        assert!(rhythm.is_due(1, begun + 65 * SECOND));
        rhythm.made(1, begun + 65 * SECOND);
        assert!(rhythm.is_due(1 + BYTES_MIN, begun + 65 * SECOND), "not less than a unit");
    }
}
