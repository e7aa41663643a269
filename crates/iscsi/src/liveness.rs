//! Liveness of the other end.

use std::time::{Duration, Instant};

/// Result of a check: what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing.
    Fine,
    /// Silence: ping it.
    Ping,
    /// Did not answer.
    Gone,
}

/// Notices silence and unanswered pings (RFC 7143 §4.6.3.6, §7.14: NOP-In and NOP-Out as keep-alive), the same in both
/// roles.
///
/// Whatever arrives is a sign of life, so nothing is timed while data flows: one flag is set for each read, and looked
/// at once an interval. A peer that falls silent is pinged after one to two intervals, and given up `timeout` after
/// that.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// Zero: never ping.
    interval: Duration,
    timeout: Duration,
    next: Instant,
    heard: bool,
    pinged: bool,
}

impl Liveness {
    /// Not due before [`next_check`](Self::next_check) is asked: then at once, as only that tells the time from which
    /// silence counts.
    pub(crate) fn new(interval: Duration, timeout: Duration, now: Instant) -> Self {
        Self { interval, timeout, next: now, heard: true, pinged: false }
    }

    /// Something arrived.
    pub(crate) fn heard(&mut self) {
        self.heard = true;
    }

    /// Returns `true` if a ping is out and nothing has arrived since.
    pub(crate) fn awaits(&self) -> bool {
        self.pinged && !self.heard
    }

    /// Time at which to [`check`](Self::check).
    pub(crate) fn next_check(&self) -> Option<Instant> {
        (!self.interval.is_zero()).then_some(self.next)
    }

    /// Looks, and says when to look next.
    pub(crate) fn check(&mut self, now: Instant) -> Check {
        if self.interval.is_zero() || now < self.next {
            return Check::Fine;
        }
        if std::mem::take(&mut self.heard) {
            self.pinged = false;
            self.next = now + self.interval;
            return Check::Fine;
        }
        if self.pinged {
            return Check::Gone;
        }
        self.pinged = true;
        self.next = now + self.timeout;
        Check::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_is_pinged_and_silence_after_that_is_the_end() {
        let now = Instant::now();
        let mut liveness = Liveness::new(5 * SECOND, 3 * SECOND, now);
        assert_eq!(liveness.check(now), Check::Fine, "it was just heard");
        assert_eq!(liveness.next_check(), Some(now + 5 * SECOND));
        assert_eq!(liveness.check(now + 4 * SECOND), Check::Fine);
        assert_eq!(liveness.check(now + 5 * SECOND), Check::Ping);
        liveness.heard();
        assert_eq!(liveness.check(now + 8 * SECOND), Check::Fine, "it answered");
        assert_eq!(liveness.check(now + 13 * SECOND), Check::Ping);
        assert_eq!(liveness.check(now + 16 * SECOND), Check::Gone);
    }

    #[test]
    fn without_an_interval_nothing_is_ever_due() {
        let now = Instant::now();
        let mut liveness = Liveness::new(Duration::ZERO, SECOND, now);
        assert_eq!((liveness.next_check(), liveness.check(now + 99 * SECOND)), (None, Check::Fine));
    }
}
