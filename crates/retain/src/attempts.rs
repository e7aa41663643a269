//! Attempts at something that a lost cache undoes, with their bound.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of attempts at one operation: each is made for a session that was lost again, or a power-on that was
/// reported.
const ATTEMPTS_MAX: usize = 64;

/// Attempts that are made however long they take: on a slow path one may take minutes, and real power failures come one
/// or two at a time.
const ATTEMPTS_MIN: usize = 4;

/// Time after which no further attempt is made: as long as Linux gives a command of a disk (`SD_TIMEOUT`,
/// drivers/scsi/sd.h).
const TIME_MAX: Duration = Duration::from_secs(30);

/// Attempts at one operation that succeeds only if nothing comes into doubt meanwhile. A target that reports a power-on
/// with every second command would otherwise never let it end.
pub(crate) struct Attempts {
    begun: Instant,
    made: usize,
}

impl Attempts {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), made: 0 }
    }

    /// Counts one more attempt; `false`: it is not to be made.
    pub(crate) fn may_go_on(&mut self) -> bool {
        self.made += 1;
        self.made <= ATTEMPTS_MIN || self.made <= ATTEMPTS_MAX && self.begun.elapsed() < TIME_MAX
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_attempts_have_any_time_and_further_ones_half_a_minute() {
        let mut slow = Attempts::new();
        let mut made = 0;
        while slow.may_go_on() {
            made += 1;
            advance(Duration::from_secs(100)).await;
        }
        assert_eq!(made, 4);
        let mut fast = Attempts::new();
        assert_eq!((0..100).filter(|_| fast.may_go_on()).count(), 64);
    }
}
