//! Log lines that a peer can cause.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many lines go through in one [`PERIOD`].
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// Lets a few lines per second through and counts the others, so that a peer that connects in a loop cannot fill a
/// disk.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    /// Writes a line unless there were too many; `write` gets the number of those left out before it.
    pub(crate) fn info(&self, write: impl FnOnce(u64)) {
        if let Some(suppressed) = self.allow(Instant::now()) {
            write(suppressed);
        }
    }

    /// `Some` if a line may be written now; with it how many were not, since the last period that had any.
    fn allow(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            state.since = Some(now);
            state.lines = 0;
        }
        if state.lines >= LINES {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_few_lines_and_a_count() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let allowed = (0..1000).filter(|_| limit.allow(start).is_some()).count();
        assert_eq!(allowed, LINES as usize);
        assert_eq!(limit.allow(start + PERIOD), Some(1000 - u64::from(LINES)));
        assert_eq!(limit.allow(start + PERIOD), Some(0));
    }
}
