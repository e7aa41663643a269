//! Successes that are missing.

use std::time::Duration;

use crate::job::CLOCK_BACK_MAX;

/// Intervals for which a success may be missing: one run was missed or has failed, and so have its retries.
const INTERVALS_MAX: u32 = 2;

/// A job, of which records exist since `since`, lacks a success. Times are seconds since 1970. A success in the future
/// says nothing: it was recorded by a clock that was ahead, and how old it is is not known.
pub fn is_overdue(last_success: Option<i64>, since: i64, interval: Duration, now: i64) -> bool {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let age = now.saturating_sub(last_success.unwrap_or(since));
    let is_of_the_future = last_success.is_some() && age.saturating_neg() > seconds(CLOCK_BACK_MAX);
    is_of_the_future || age > seconds(interval.saturating_mul(INTERVALS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_is_missing_after_two_intervals_or_if_it_is_of_the_future() {
        let (day, now) = (Duration::from_secs(86_400), 1_800_000_000);
        let judged = |last_success: Option<i64>, since: i64| is_overdue(last_success, since, day, now);
        for (age, expected) in [(0, false), (2 * 86_400, false), (2 * 86_400 + 1, true)] {
            assert_eq!((judged(Some(now - age), 0), judged(None, now - age)), (expected, expected), "{age}");
        }
        for (ahead, expected) in [(3600, false), (3601, true), (315_360_000, true)] {
            assert_eq!(judged(Some(now + ahead), now), expected, "{ahead}");
        }
        assert!(!judged(None, now + 86_400), "it has not been due yet");
        assert!(!is_overdue(Some(0), 0, Duration::MAX, i64::MAX));
    }
}
