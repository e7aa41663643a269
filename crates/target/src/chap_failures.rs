//! CHAP responses that were wrong, and how long the next one has to wait.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::source::{SourceHost, SourceTable};

/// Responses of one source for one account that may be wrong before the next waits: what people mistype.
const PAIR_FREE: u32 = 3;
/// The first wait of a source for one account; it doubles with each further failure.
const PAIR_FIRST: Duration = Duration::from_secs(1);
/// The longest: below the 15 s that a login may take by default (`login_timeout`).
const PAIR_LONGEST: Duration = Duration::from_secs(8);
/// Responses of one source, for whatever accounts, that may be wrong before its next ones wait.
const SOURCE_FREE: u32 = 12;
/// Interval at which its responses are checked then. A whole host with one stale secret in many sessions still gets on.
const SOURCE_PACE: Duration = Duration::from_millis(500);
/// Responses for one account, from wherever, that may be wrong before each waits.
const ACCOUNT_FREE: u32 = 24;
/// Wait of each response then. They do not wait one behind the other: others' attempts must not keep the account's user
/// out.
const ACCOUNT_WAIT: Duration = Duration::from_millis(500);
/// A response that would have to wait longer is not checked at all.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Failures are forgotten after this time without another.
const FORGET_TIME: Duration = Duration::from_secs(600);

/// Slows down guessing of secrets: of one source for one account most, of a source for all accounts less, for an
/// account from all sources least and never for long, so that no source can lock its user out from another address. A
/// source that an account's user has logged in from does not pay for the failures of other sources at all.
///
/// Tables that somebody has filled with made-up names and other sources forget some of them for new ones, so that no
/// user pays for it.
///
/// Ask [`wait`](Self::wait) before a response is checked, and tell what became of it.
#[derive(Debug, Default)]
pub(crate) struct ChapFailures {
    inner: Mutex<Inner>,
    /// Names of accounts are the peers' own: of each a hash is kept, with keys that no peer knows.
    hasher: RandomState,
    failed: AtomicU64,
    delayed: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    pairs: SourceTable<Failures, (SourceHost, u64)>,
    sources: SourceTable<Failures>,
    accounts: SourceTable<Failures, u64>,
    /// Sources that each account's user has logged in from, since the start. Only who knows a secret enters one.
    proven: SourceTable<(), (SourceHost, u64)>,
}

/// Failures of late.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// Time from which the next response may be checked.
    next: Instant,
}

impl Failures {
    const fn none(now: Instant) -> Self {
        Self { count: 0, last: now, next: now }
    }

    fn is_stale(&self, now: Instant) -> bool {
        self.count == 0 || now.saturating_duration_since(self.last) >= FORGET_TIME
    }

    /// Failures that are not forgotten.
    fn count(&mut self, now: Instant) -> u32 {
        if self.is_stale(now) {
            *self = Self::none(now);
        }
        self.count
    }

    fn add(&mut self, now: Instant) {
        self.count = self.count(now).saturating_add(1);
        self.last = now;
    }

    /// Returns the time until the next response may be checked: `pace` after the one before.
    fn due(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }
}

impl ChapFailures {
    /// Returns the time that a response for this account has to wait before it is checked; `None`: it is to be refused
    /// unchecked, for too many wait before it.
    pub(crate) fn wait(&self, ip: IpAddr, user: &str, now: Instant) -> Option<Duration> {
        let (source, account) = (SourceHost::from(ip), self.hasher.hash_one(user));
        let mut guard = self.lock();
        let Inner { pairs, sources, accounts, proven } = &mut *guard;
        let (fresh, stale) = (Failures::none(now), |of: &Failures| of.is_stale(now));
        let pair = pairs.of((source, account), now, fresh, stale);
        let pair_pace = match pair.count(now).checked_sub(PAIR_FREE) {
            None => Duration::ZERO,
            Some(over) => PAIR_FIRST.saturating_mul(1 << over.min(8)).min(PAIR_LONGEST),
        };
        let of_source = sources.of(source, now, fresh, stale);
        let source_pace = if of_source.count(now) < SOURCE_FREE { Duration::ZERO } else { SOURCE_PACE };
        let of_account = accounts.of(account, now, fresh, stale);
        let is_free = of_account.count(now) < ACCOUNT_FREE || proven.contains((source, account));
        let account_wait = if is_free { Duration::ZERO } else { ACCOUNT_WAIT };
        let due = |of: &Failures, pace: Duration| if pace.is_zero() { pace } else { of.due(now) };
        let wait = due(pair, pair_pace).max(due(of_source, source_pace)).max(account_wait);
        if !wait.is_zero() {
            self.delayed.fetch_add(1, Ordering::Relaxed);
        }
        if wait > WAIT_MAX {
            return None;
        }
        // Those that come meanwhile wait behind this one.
        let then = now + wait;
        pair.next = then + pair_pace;
        of_source.next = then + source_pace;
        Some(wait)
    }

    /// A response was wrong.
    pub(crate) fn failed(&self, ip: IpAddr, user: &str, now: Instant) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let (source, account) = (SourceHost::from(ip), self.hasher.hash_one(user));
        let mut guard = self.lock();
        let Inner { pairs, sources, accounts, .. } = &mut *guard;
        let (fresh, stale) = (Failures::none(now), |of: &Failures| of.is_stale(now));
        let pair = pairs.of((source, account), now, fresh, stale);
        pair.add(now);
        if let Some(over) = pair.count.checked_sub(PAIR_FREE) {
            let pace = PAIR_FIRST.saturating_mul(1 << over.min(8)).min(PAIR_LONGEST);
            pair.next = pair.next.max(now + pace);
        }
        let of_source = sources.of(source, now, fresh, stale);
        of_source.add(now);
        if of_source.count >= SOURCE_FREE {
            of_source.next = of_source.next.max(now + SOURCE_PACE);
        }
        accounts.of(account, now, fresh, stale).add(now);
    }

    /// A response was right.
    pub(crate) fn succeeded(&self, ip: IpAddr, user: &str, now: Instant) {
        let pair = (SourceHost::from(ip), self.hasher.hash_one(user));
        let mut guard = self.lock();
        guard.pairs.forget(pair);
        guard.proven.of(pair, now, (), |()| false);
    }

    /// Responses that were wrong so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Responses that had to wait, or were not even checked.
    pub(crate) fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Counts that a panic left half done would be wrong by one, not dangerous.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKER: &str = "192.0.2.66";
    const HOST: &str = "192.0.2.1";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Guesses as fast as it is allowed to for a time, and returns how many were checked.
    fn guess(failures: &ChapFailures, from: IpAddr, user: &str, start: Instant, time: Duration) -> u32 {
        let (mut now, mut checked) = (start, 0);
        while now < start + time {
            match failures.wait(from, user, now) {
                Some(wait) => {
                    now += wait;
                    failures.failed(from, user, now);
                    checked += 1;
                }
                None => now += Duration::from_millis(10),
            }
        }
        checked
    }

    #[test]
    fn a_source_that_guesses_for_one_account_gets_ever_slower() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        assert_eq!(guess(&failures, ip(ATTACKER), "alice", start, Duration::from_secs(1)), 4);
        let minute = Duration::from_secs(60);
        let checked = guess(&failures, ip(ATTACKER), "alice", start + minute, minute);
        assert!((7..=11).contains(&checked), "one in eight seconds: {checked}");
        assert_eq!(failures.failures(), u64::from(4 + checked));
    }

    #[test]
    fn a_crowd_of_guesses_at_once_is_checked_one_after_the_other_and_refused_beyond() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        for _ in 0..PAIR_FREE {
            failures.failed(ip(ATTACKER), "alice", start);
        }
        let waits: Vec<_> = (0..100)
            .filter_map(|_| failures.wait(ip(ATTACKER), "alice", start))
            .map(|wait| wait.as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(failures.delayed(), 100);
    }

    #[test]
    fn who_guesses_cannot_keep_the_user_out_from_another_address() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        let hour = Duration::from_secs(3600);
        for last in 0..100 {
            guess(&failures, ip(&format!("192.0.2.{}", 100 + last)), "alice", start, hour / 60);
        }
        let later = start + hour / 60;
        for _ in 0..50 {
            let wait = failures.wait(ip(HOST), "alice", later).expect("it is checked");
            assert!(wait <= ACCOUNT_WAIT, "{wait:?}");
        }
        assert_eq!(failures.wait(ip(HOST), "bob", later), Some(Duration::ZERO));
    }

    /// Each login of a user took 0.5 s for ten minutes after guesses from other sources, however often it was right.
    #[test]
    fn a_source_that_the_user_has_logged_in_from_does_not_pay_for_guesses_of_others() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        for last in 0..30 {
            failures.failed(ip(&format!("192.0.2.{}", 100 + last)), "alice", start);
        }
        assert_eq!(failures.wait(ip(HOST), "alice", start), Some(ACCOUNT_WAIT));
        failures.succeeded(ip(HOST), "alice", start);
        assert_eq!(failures.wait(ip(HOST), "alice", start), Some(Duration::ZERO));
        assert_eq!(
            failures.wait(ip("192.0.2.2"), "alice", start),
            Some(ACCOUNT_WAIT),
            "a source unknown yet"
        );
        // Its own failures still count, as those of others behind its address.
        for _ in 0..PAIR_FREE {
            failures.failed(ip(HOST), "alice", start);
        }
        assert_eq!(failures.wait(ip(HOST), "alice", start), Some(PAIR_FIRST));
    }

    #[test]
    fn a_flood_of_made_up_users_from_many_sources_delays_no_user_from_elsewhere() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        for number in 0..20_000u32 {
            let from = IpAddr::from(std::net::Ipv4Addr::from(0x0A00_0000 + number / 16));
            failures.failed(from, &format!("user-{number}"), start);
        }
        for user in ["alice", "bob"] {
            for _ in 0..100 {
                assert_eq!(failures.wait(ip(HOST), user, start), Some(Duration::ZERO));
            }
        }
    }

    #[test]
    fn a_source_that_tries_many_accounts_is_slowed_as_well() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        let (mut now, mut checked) = (start, 0);
        for user in 0..1000 {
            if let Some(wait) = failures.wait(ip(ATTACKER), &user.to_string(), now) {
                now += wait;
                failures.failed(ip(ATTACKER), &user.to_string(), now);
                checked += 1;
            }
            if now > start + Duration::from_secs(30) {
                break;
            }
        }
        assert!((60..=80).contains(&checked), "two a second: {checked}");
        assert_eq!(failures.wait(ip(HOST), "alice", now), Some(Duration::ZERO));
    }

    #[test]
    fn what_was_mistyped_is_forgotten_when_it_is_right_or_with_time() {
        let (failures, start) = (ChapFailures::default(), Instant::now());
        for _ in 0..PAIR_FREE {
            assert_eq!(failures.wait(ip(HOST), "alice", start), Some(Duration::ZERO));
            failures.failed(ip(HOST), "alice", start);
        }
        assert_eq!(failures.wait(ip(HOST), "alice", start), Some(PAIR_FIRST));
        failures.succeeded(ip(HOST), "alice", start);
        assert_eq!(failures.wait(ip(HOST), "alice", start), Some(Duration::ZERO));
        for _ in 0..9 {
            failures.failed(ip(HOST), "alice", start);
        }
        assert_eq!(failures.wait(ip(HOST), "alice", start + FORGET_TIME), Some(Duration::ZERO));
    }
}
