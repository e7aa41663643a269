//! Clock of the data path: cheap, and at most some microseconds behind.

use std::time::Duration;

use tokio::time::Instant;

/// Below this many operations under way, each one is measured.
const DEEP: u32 = 4;

/// Operations of this length are measured each: they are few, and they teach rates.
const LONG: u64 = 64 << 10;

/// Average interval between calls below which several of them share a reading of the clock.
const FAST: Duration = Duration::from_micros(4);

/// Number of calls that then share a reading.
const CALLS_PER_READING: u32 = 8;

/// Clock of the data path: cheap, and at most some microseconds behind.
///
/// Reading a clock takes 25 to 100 ns, twice for each operation: with hundreds of thousands of them a second that is
/// the largest part of what this layer costs. So where the queue is deep and calls come faster than every 4 µs, eight
/// calls share a reading, and times are wrong by some 30 µs at most, in a queue of a hundred and more. It does not go
/// back, which a scheduler relies on.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
    last: Duration,
    calls: u32,
    fast: bool,
}

impl Clock {
    pub(super) fn new(started: Instant) -> Self {
        Self { started, last: Duration::ZERO, calls: 0, fast: false }
    }

    /// The time since the start, exactly.
    pub(super) fn now(&mut self) -> Duration {
        let now = self.started.elapsed().max(self.last);
        self.calls += 1;
        self.fast = now - self.last < FAST * self.calls;
        (self.last, self.calls) = (now, 0);
        now
    }

    /// The time for an operation of that length, with so many under way.
    pub(super) fn read(&mut self, in_flight: u32, len: u64) -> Duration {
        if self.fast && in_flight >= DEEP && len < LONG && self.calls + 1 < CALLS_PER_READING {
            self.calls += 1;
            return self.last;
        }
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn only_many_short_and_fast_operations_share_a_reading() {
        let mut clock = Clock::new(Instant::now());
        let mut readings = async |in_flight, len, pause| {
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..64 {
                advance(pause).await;
                seen.insert(clock.read(in_flight, len));
            }
            seen.len()
        };
        let micros = Duration::from_micros;
        assert_eq!(readings(3, 4096, micros(1)).await, 64, "a shallow queue");
        assert_eq!(readings(32, LONG, micros(1)).await, 64, "long operations");
        let slow = readings(32, 4096, micros(50)).await;
        assert!(
            slow > 64 - CALLS_PER_READING as usize,
            "it takes one reading to see that they are slow: {slow}"
        );
        let shared = readings(32, 4096, micros(1)).await;
        assert!((8..12).contains(&shared), "{shared}");
    }
}
