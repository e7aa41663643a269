//! Log lines that a peer can cause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of lines in one [`PERIOD`].
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Principals that are remembered at a time. There are as many as users and access rules; beyond this many, one of them
/// is forgotten, and may have its lines again.
const PRINCIPALS_MAX: usize = 1024;

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

    fn allow(&self, now: Instant) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allow(now)
    }
}

impl State {
    /// `Some` if a line may be written now; with it how many were not, since the last period that had any.
    fn allow(&mut self, now: Instant) -> Option<u64> {
        if !self.is_in_period(now) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    fn is_in_period(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) < PERIOD)
    }
}

/// The same for each principal on its own: the lines of one that logs in and out in a loop are not those of another
/// that are left out.
#[derive(Debug, Default)]
pub(crate) struct LogLimits(Mutex<BTreeMap<String, State>>);

impl LogLimits {
    /// Writes a line about a principal unless there were too many; `write` gets the number of those left out before it.
    pub(crate) fn info(&self, principal: &str, write: impl FnOnce(u64)) {
        if let Some(suppressed) = self.allow(principal, Instant::now()) {
            write(suppressed);
        }
    }

    fn allow(&self, principal: &str, now: Instant) -> Option<u64> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() >= PRINCIPALS_MAX && !states.contains_key(principal) {
            states.retain(|_, state| state.is_in_period(now));
            if states.len() >= PRINCIPALS_MAX {
                states.pop_first();
            }
        }
        states.entry(principal.to_owned()).or_default().allow(now)
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

    #[test]
    fn a_flood_of_one_principal_leaves_the_lines_of_another() {
        let (limits, start) = (LogLimits::default(), Instant::now());
        let allowed = (0..1000).filter(|_| limits.allow("user:loud", start).is_some()).count();
        assert_eq!(allowed, LINES as usize);
        assert_eq!(limits.allow("user:quiet", start), Some(0));
        assert_eq!(limits.allow("user:loud", start + PERIOD), Some(1000 - u64::from(LINES)));
    }

    #[test]
    fn no_more_principals_are_remembered_than_can_be_and_those_without_a_line_of_late_go_first() {
        let (limits, start) = (LogLimits::default(), Instant::now());
        let known = || limits.0.lock().unwrap().len();
        let is_allowed = |number: usize, now| limits.allow(&number.to_string(), now).is_some();
        assert!((0..2 * PRINCIPALS_MAX).all(|number| is_allowed(number, start)));
        assert_eq!(known(), PRINCIPALS_MAX);
        assert!(is_allowed(9_999_999, start + PERIOD));
        assert_eq!(known(), 1);
    }
}
