//! A limit on the bytes that are sent each second.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest sleep, so that an end is noticed.
const NAP: Duration = Duration::from_millis(200);

/// Bytes each second, over all threads that send.
#[derive(Default)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    /// Earliest time for the next byte.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// A limit; `None`: none.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, next: Mutex::default() }
    }

    /// Waits until so many bytes may be sent. Blocks.
    pub fn wait(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_second.filter(|rate| *rate > 0) else { return };
        let begin = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = next.unwrap_or_else(Instant::now).max(Instant::now());
            *next = Some(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
            begin
        };
        while let Some(left) = begin.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::sleep(left.min(NAP));
        }
    }
}

#[cfg(test)]
mod tests {
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
}
