//! Checkpoint interval: how often a run makes durable what it has sent, and records it.
//!
//! A kill costs what was sent since the last checkpoint, and beside one that is being made at most as much again. A
//! checkpoint costs three flushes of the share, during one of which nothing is sent. So one is due after as many bytes
//! as the share makes durable in an interval, which its own last checkpoint tells: a page cache takes bytes faster than
//! the share does, and only a flush waits for that. The interval is [`INTERVAL`], and up to [`INTERVAL_MAX`] where a
//! checkpoint takes more than a part of it: over a long link a flush is two round trips. Where bytes come slowly, since
//! few leaves differ or a limit holds them back, one is due after that time.

use std::time::{Duration, Instant};

/// Time whose sending a kill may cost. At 51 MB/s and more [`BYTES_MAX`] come first, so that three flushes in 5 s are
/// no more than fast shares have always had.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same where checkpoints take long: what is sent again after a kill is less than what waiting for them would cost.
const INTERVAL_MAX: Duration = Duration::from_secs(15);
/// The first one: a run that is killed soon has recorded something.
const INTERVAL_FIRST: Duration = Duration::from_secs(1);
/// Time between two checkpoints for each that the last one took: they take less than a twentieth of a run's time.
const TIMES_TAKEN: u32 = 20;
/// Bytes between two checkpoints, at most, for an interval of [`INTERVAL`].
const BYTES_MAX: u64 = 256 << 20;
/// Bytes of the first one, which measures the share: 3 s at 5 MB/s.
const BYTES_FIRST: u64 = 16 << 20;
/// Bytes of the second one, at least, where the first one was due by time. Then time bounds it: what was not taken in a
/// second is not taken in less than four.
const BYTES_SECOND: u64 = 64 << 20;
/// Bytes that are sent beside the first one, at most: what 10 Gbit/s takes in a tenth of a second.
const BESIDE_FIRST: u64 = 128 << 20;
/// Bytes between two checkpoints, at least: one unit, as less would be no progress.
const BYTES_MIN: u64 = 1 << 20;

/// Schedule of a run's checkpoints. All counts are bytes that the run has sent.
#[derive(Debug)]
pub(crate) struct Rhythm {
    last: Instant,
    sent: u64,
    bytes: u64,
    interval: Duration,
    /// None was made that holds anything.
    is_first: bool,
}

impl Rhythm {
    /// A run that has sent so much before, all of it recorded.
    pub(crate) fn new(sent: u64, now: Instant) -> Self {
        Self { last: now, sent, bytes: BYTES_FIRST, interval: INTERVAL_FIRST, is_first: true }
    }

    /// Tells whether a checkpoint is due. Nothing that was sent, nothing to lose.
    pub(crate) fn is_due(&self, sent: u64, now: Instant) -> bool {
        let since = sent - self.sent;
        self.is_enough(since) || since > 0 && now - self.last >= self.interval
    }

    fn is_enough(&self, bytes: u64) -> bool {
        bytes >= self.bytes
    }

    /// Tells whether no more than so many bytes should be sent beside a checkpoint: as many as it holds. The first one
    /// is smaller than what a fast share takes meanwhile.
    pub(crate) fn is_enough_beside(&self, bytes: u64) -> bool {
        bytes >= if self.is_first { BESIDE_FIRST } else { self.bytes }
    }

    /// A checkpoint was made, which ended now and holds what had been sent when it began.
    pub(crate) fn made(&mut self, sent: u64, began: Instant, now: Instant) {
        let (since, took) = (sent - self.sent, (now - self.last).as_secs_f64());
        if since > 0 {
            self.interval = ((now - began) * TIMES_TAKEN).clamp(INTERVAL, INTERVAL_MAX);
            // A cast saturates, for a checkpoint that took no time as well.
            let in_interval = (since as f64 / took * self.interval.as_secs_f64()) as u64;
            // The first one tells little of the share where it was due by time: it may hold one unit.
            let is_telling = !self.is_first || since >= BYTES_FIRST;
            let least = if is_telling { BYTES_MIN } else { BYTES_SECOND };
            // A share whose checkpoints take long is no faster for more of them.
            let most = BYTES_MAX.saturating_mul(self.interval.as_secs()) / INTERVAL.as_secs();
            self.bytes = in_interval.clamp(least, most);
            self.is_first = false;
        }
        (self.last, self.sent) = (now, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_slow_share_is_flushed_as_often_as_it_sends_for_five_seconds_or_fifteen() {
        // A checkpoint of a fifth of a second, and one of four seconds.
        for (took_ms, seconds) in [(200, 5), (4000, 15)] {
            let begun = Instant::now();
            let mut rhythm = Rhythm::new(0, begun);
            assert!(!rhythm.is_due(BYTES_FIRST - 1, begun), "the page cache took it at once");
            assert!(rhythm.is_due(BYTES_FIRST, begun));
            // At 4 MiB/s.
            let flushed = begun + 4 * SECOND;
            rhythm.made(16 << 20, flushed - Duration::from_millis(took_ms), flushed);
            let due = (16 + 4 * seconds) << 20;
            assert!(!rhythm.is_due(due - (1 << 20), flushed));
            assert!(rhythm.is_due(due, flushed));
        }
    }

    #[test]
    fn a_fast_share_is_flushed_each_256_mib_and_one_of_slow_flushes_each_768() {
        let begun = Instant::now();
        for (took_ms, most) in [(0, BYTES_MAX), (750, 3 * BYTES_MAX)] {
            let mut rhythm = Rhythm::new(7, begun);
            let ended = begun + Duration::from_millis(took_ms);
            rhythm.made(7 + 16 * BYTES_FIRST, begun, ended);
            assert!(!rhythm.is_due(6 + 16 * BYTES_FIRST + most, ended));
            assert!(rhythm.is_due(7 + 16 * BYTES_FIRST + most, ended));
        }
    }

    #[test]
    fn what_comes_slowly_is_recorded_after_a_second_then_after_the_interval_and_nothing_never() {
        let begun = Instant::now();
        let mut rhythm = Rhythm::new(0, begun);
        assert!(!rhythm.is_due(0, begun + 60 * SECOND));
        rhythm.made(0, begun + 50 * SECOND, begun + 60 * SECOND);
        assert!(!rhythm.is_due(1, begun + 60 * SECOND));
        assert!(rhythm.is_due(1, begun + 61 * SECOND));
        let ended = begun + 65 * SECOND;
        rhythm.made(1, ended - SECOND / 2, ended);
        assert!(!rhythm.is_due(BYTES_SECOND, ended), "the first one tells little");
        assert!(rhythm.is_due(1 + BYTES_SECOND, ended));
        assert!(!rhythm.is_due(2, ended + 9 * SECOND));
        assert!(rhythm.is_due(2, ended + 10 * SECOND));
        rhythm.made(2, ended + 10 * SECOND, ended + 10 * SECOND);
        assert!(rhythm.is_due(2 + BYTES_MIN, ended + 10 * SECOND), "not less than a unit");
    }
}
