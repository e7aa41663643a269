//! Account of what a limit lets pass, with time as an argument.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::config::IoLimit;

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;
/// One command delays others by no more than its longest transfer does (`LogicalUnitOptions::MAX_TRANSFER`), or by this
/// time if that is longer: a VERIFY may read a whole disk, and an EXTENDED COPY gigabytes.
const TRANSFER_MAX: u64 = 8 << 20;
const COMMAND_MAX: Duration = Duration::from_secs(10);

/// Token bucket, kept for I/Os and for bytes as one number each: the time at which all that has passed is paid.
///
/// A command may pass when the account is not overdrawn, and overdraws it by what it costs. So none is too long to
/// pass, and what passes in a time T is at most the limit times T, the burst, and one command. Times are nanoseconds
/// since any moment, such that the first is not less than [`IoLimit::burst`].
#[derive(Debug)]
pub(super) struct Account {
    limit: IoLimit,
    ios: u64,
    bytes: u64,
}

impl Account {
    /// An account with the whole burst in it.
    pub(super) fn new(limit: IoLimit) -> Self {
        Self { limit, ios: 0, bytes: 0 }
    }

    /// Lets a command pass that reads or writes so many bytes. An error: the time to wait for, and nothing has passed.
    pub(super) fn pass(&mut self, now: u64, bytes: u64) -> Result<(), Duration> {
        let due = self.ios.max(self.bytes);
        if due > now {
            return Err(Duration::from_nanos(due - now));
        }
        let earliest = now.saturating_sub(nanos(self.limit.burst));
        if let Some(iops) = self.limit.iops {
            self.ios = self.ios.max(earliest).saturating_add(time_of(1, iops));
        }
        if let Some(rate) = self.limit.bytes {
            let most = time_of(TRANSFER_MAX, rate).max(nanos(COMMAND_MAX));
            self.bytes = self.bytes.max(earliest).saturating_add(time_of(bytes, rate).min(most));
        }
        Ok(())
    }

    /// Returns `true` if the whole burst is in it.
    pub(super) fn is_paid(&self, now: u64) -> bool {
        self.ios.max(self.bytes) <= now.saturating_sub(nanos(self.limit.burst))
    }
}

/// Time that `amount` takes at a rate, rounded up, so that a rate is never exceeded by rounding.
fn time_of(amount: u64, per_second: NonZeroU64) -> u64 {
    let time = (u128::from(amount) * SECOND).div_ceil(u128::from(per_second.get()));
    u64::try_from(time).unwrap_or(u64::MAX)
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// Long after the beginning.
    const START: u64 = 3600 * 1000 * MS;

    fn account(iops: u64, bytes: u64, burst_ms: u64) -> Account {
        let [iops, bytes] = [iops, bytes].map(NonZeroU64::new);
        Account::new(IoLimit { iops, bytes, burst: Duration::from_millis(burst_ms) })
    }

    /// Commands of so many bytes that pass from one moment to another, the next as soon as it may.
    fn passed(account: &mut Account, from: u64, to: u64, bytes: u64) -> u64 {
        let (mut now, mut count) = (from, 0);
        while now < to {
            match account.pass(now, bytes) {
                Ok(()) => count += 1,
                Err(wait) => now += nanos(wait),
            }
        }
        count
    }

    #[test]
    fn a_second_of_a_limit_is_what_it_says_after_the_burst() {
        let mut account = account(1000, 0, 100);
        assert_eq!(passed(&mut account, START, START + 1, 4096), 101, "the burst, and one that overdraws it");
        assert_eq!(passed(&mut account, START + 1, START + 1000 * MS, 4096), 999);
        assert_eq!(passed(&mut account, START + 1000 * MS, START + 2000 * MS, 4096), 1000);
    }

    #[test]
    fn bytes_and_ios_are_limited_each_by_itself() {
        let mut large = account(1000, 1 << 20, 100);
        passed(&mut large, START, START + 1, 65536);
        assert_eq!(passed(&mut large, START + 1, START + 1000 * MS + 1, 65536), 16, "of bytes");
        let mut small = account(1000, 1 << 20, 100);
        passed(&mut small, START, START + 1, 512);
        assert_eq!(passed(&mut small, START + 1, START + 1000 * MS + 1, 512), 1000, "of I/Os");
    }

    #[test]
    fn a_pause_saves_the_burst_and_no_more() {
        let mut account = account(100, 0, 500);
        passed(&mut account, START, START + 1, 0);
        let hour_later = 2 * START;
        assert_eq!(passed(&mut account, hour_later, hour_later + 1, 0), 51);
        let soon = hour_later + 100 * MS;
        assert_eq!(passed(&mut account, soon, soon + 1, 0), 10);
    }

    #[test]
    fn what_is_longer_than_a_burst_passes_and_is_paid_afterwards() {
        let mut account = account(0, 1 << 20, 10);
        assert_eq!(account.pass(START, 8 << 20), Ok(()));
        let wait = account.pass(START, 1).unwrap_err();
        assert!((Duration::from_millis(7990)..=Duration::from_secs(8)).contains(&wait), "{wait:?}");
        assert_eq!(account.pass(START + nanos(wait), 1), Ok(()));
    }

    #[test]
    fn one_command_delays_others_by_a_transfer_or_ten_seconds() {
        for (rate, most_ms) in [(1 << 30, 10_000), (65536, 128_000)] {
            let mut account = account(0, rate, 10);
            assert_eq!(account.pass(START, u64::MAX), Ok(()));
            let wait = account.pass(START, 1).unwrap_err();
            assert_eq!(wait, Duration::from_millis(most_ms - 10));
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut slow = account(1, 1, 10);
        assert_eq!(slow.pass(u64::MAX - 1, u64::MAX), Ok(()));
        assert!(slow.pass(u64::MAX - 1, 0).is_err());
        let mut fast = account(u64::MAX, u64::MAX, 10);
        assert!((0..1000).all(|_| fast.pass(START, 512).is_ok()));
    }
}
