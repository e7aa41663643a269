//! A limit on the bytes that are sent each second.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes each second, over all threads that send.
#[derive(Default)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    turns: Mutex<Turns>,
    ended: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Earliest time for the next byte.
    next: Option<Instant>,
    is_ended: bool,
}

impl Pace {
    /// A limit; `None`: none.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second: bytes_per_second.filter(|rate| *rate > 0), ..Self::default() }
    }

    /// Returns `true` if there is a limit.
    pub fn is_limited(&self) -> bool {
        self.bytes_per_second.is_some()
    }

    /// Waits until so many bytes may be sent. Blocks. Returns `false` if they are not to be sent any more.
    pub fn wait(&self, bytes: u64) -> bool {
        let mut turns = self.turns();
        let Some(rate) = self.bytes_per_second else { return !turns.is_ended };
        let begin = turns.next.unwrap_or_else(Instant::now).max(Instant::now());
        turns.next = Some(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
        while !turns.is_ended {
            let left = begin.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            turns = self.ended.wait_timeout(turns, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Nothing more is to be sent: what waits does so no longer.
    pub fn end(&self) {
        self.turns().is_ended = true;
        self.ended.notify_all();
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_share_one_rate() {
        let pace = Pace::new(Some(1_000_000));
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| pace.wait(100_000));
            }
        });
        // The first one goes at once, the last one waits for three.
        assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    }

    #[test]
    fn an_end_ends_every_wait_and_nothing_is_sent_after_it() {
        let pace = Pace::new(Some(1));
        assert!(pace.wait(1_000_000), "the first one goes at once");
        let begun = Instant::now();
        thread::scope(|scope| {
            let waits = [scope.spawn(|| pace.wait(1)), scope.spawn(|| pace.wait(1))];
            pace.end();
            assert!(waits.into_iter().all(|wait| !wait.join().unwrap_or(true)));
        });
        assert!(begun.elapsed() < Duration::from_secs(10_000), "for 11 days");
        assert!(!pace.wait(1));
        let unlimited = Pace::new(None);
        assert!(unlimited.wait(u64::MAX));
        unlimited.end();
        assert!(!unlimited.wait(1));
    }
}
