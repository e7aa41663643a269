//! Decision between polling and sleeping.

use std::time::Duration;

/// Maximum wake-up latency of a sleeping core: 20–40 µs were measured on idle virtual cores.
const WAKE_UP: Duration = Duration::from_micros(40);

/// Decides, from how long the last waits of a connection were, whether to poll before the next one.
///
/// At depth 1 the initiator's next command comes some 20 µs after an answer. Sleeping in between costs a wake-up, which
/// takes longer than everything else in the round trip; polling costs the core's time. So: poll while recent waits were
/// so short that polling would have caught most of them, and give up after the first one that was much longer. A
/// connection that is idle, or whose commands come rarely, never polls.
#[derive(Debug)]
pub(crate) struct Polling {
    longest: Duration,
    /// Moving average of the last waits, each counted as at most [`Self::ceiling`].
    average: Duration,
}

impl Polling {
    /// `longest`: the longest time to poll for; zero: never.
    pub(crate) fn new(longest: Duration) -> Self {
        let mut polling = Self { longest, average: Duration::ZERO };
        polling.average = polling.ceiling();
        polling
    }

    fn ceiling(&self) -> Duration {
        (self.longest + WAKE_UP) * 4
    }

    /// Returns the time to poll before sleeping, now.
    pub(crate) fn budget(&self) -> Option<Duration> {
        (!self.longest.is_zero() && self.average < self.longest + WAKE_UP).then_some(self.longest)
    }

    /// Returns `true` if waits need to be measured at all.
    pub(crate) fn is_on(&self) -> bool {
        !self.longest.is_zero()
    }

    /// Tells how long a wait was.
    pub(crate) fn waited(&mut self, wait: Duration) {
        self.average = (self.average * 3 + wait.min(self.ceiling())) / 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(30);

    #[test]
    fn a_new_connection_does_not_poll_and_a_busy_one_soon_does() {
        let mut polling = Polling::new(LONGEST);
        assert_eq!(polling.budget(), None);
        (0..10).for_each(|_| polling.waited(SHORT));
        assert_eq!(polling.budget(), Some(LONGEST));
    }

    #[test]
    fn one_long_wait_ends_polling_and_a_few_short_ones_bring_it_back() {
        let mut polling = Polling::new(LONGEST);
        (0..100).for_each(|_| polling.waited(SHORT));
        polling.waited(Duration::from_secs(3600));
        assert_eq!(polling.budget(), None);
        (0..4).for_each(|_| polling.waited(SHORT));
        assert_eq!(polling.budget(), Some(LONGEST));
    }

    #[test]
    fn commands_that_come_more_rarely_than_polling_lasts_are_not_polled_for() {
        let mut polling = Polling::new(LONGEST);
        (0..100).for_each(|_| polling.waited(Duration::from_micros(120)));
        assert_eq!(polling.budget(), None);
    }

    #[test]
    fn zero_means_never() {
        let mut polling = Polling::new(Duration::ZERO);
        (0..100).for_each(|_| polling.waited(Duration::ZERO));
        assert_eq!(polling.budget(), None);
    }
}
