//! Sources of connections, and limits on each.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::log_limit::LogLimit;

/// Sources that are remembered at a time. Beyond them each new one takes the place of another.
const SOURCES_MAX: usize = 4096;
/// Interval between searches of a full table for entries that say nothing any more.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);
/// Burst of logins, as seconds' worth of the rate: a cluster that starts, a host with many targets.
const BURST_S: f64 = 4.0;
/// Time for which a denial is not logged again.
const DENIAL_PERIOD: Duration = Duration::from_secs(60);

/// Whom an address belongs to, as far as counting goes: with IPv6 one host has a whole /64 to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceHost(IpAddr);

impl From<IpAddr> for SourceHost {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => Self(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX)).into()),
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

impl fmt::Display for SourceHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(ip) => write!(f, "{ip}"),
            IpAddr::V6(ip) => write!(f, "{ip}/64"),
        }
    }
}

/// Something remembered for each source (or whatever `K` is), of bounded size.
#[derive(Debug)]
pub(crate) struct SourceTable<T, K = SourceHost> {
    known: HashMap<K, T>,
    swept: Option<Instant>,
}

impl<T, K> Default for SourceTable<T, K> {
    fn default() -> Self {
        Self { known: HashMap::new(), swept: None }
    }
}

impl<T, K: Copy + Eq + Hash> SourceTable<T, K> {
    /// Returns the entry of a source: `fresh` if there is none. Where there is no place, `stale` entries go, else any
    /// one: a table that somebody has filled must not make one source pay for another.
    pub(crate) fn of(
        &mut self,
        source: impl Into<K>,
        now: Instant,
        fresh: T,
        stale: impl Fn(&T) -> bool,
    ) -> &mut T {
        let source = source.into();
        let full = self.known.len() >= SOURCES_MAX && !self.known.contains_key(&source);
        if full && self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_PERIOD) {
            self.swept = Some(now);
            self.known.retain(|_, entry| !stale(entry));
        }
        if self.known.len() >= SOURCES_MAX
            && !self.known.contains_key(&source)
            && let Some(other) = self.known.keys().next().copied()
        {
            self.known.remove(&other);
        }
        self.known.entry(source).or_insert(fresh)
    }

    /// Returns `true` if there is an entry of a source.
    pub(crate) fn contains(&self, source: impl Into<K>) -> bool {
        self.known.contains_key(&source.into())
    }

    /// Forgets what is remembered of a source on its own.
    pub(crate) fn forget(&mut self, source: impl Into<K>) {
        self.known.remove(&source.into());
    }
}

/// Limits how many logins each source may begin: a secret that is tried out costs a hash and a table entry or two.
///
/// Each source has as many as fit into [`BURST_S`] seconds, and gets new ones at the rate that is allowed.
#[derive(Debug, Default)]
pub(crate) struct LoginThrottle {
    table: Mutex<SourceTable<Tokens>>,
    refused: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Tokens {
    left: f64,
    since: Instant,
}

impl LoginThrottle {
    /// Returns `true` if another login may begin; `per_second` 0 means always.
    pub(crate) fn allows(&self, ip: IpAddr, per_second: u32, now: Instant) -> bool {
        if per_second == 0 {
            return true;
        }
        let rate = f64::from(per_second);
        let full = rate * BURST_S;
        let refilled = |tokens: &Tokens| {
            (tokens.left + now.saturating_duration_since(tokens.since).as_secs_f64() * rate).min(full)
        };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Tokens { left: full, since: now };
        let tokens = table.of(ip, now, fresh, |tokens| refilled(tokens) >= full);
        *tokens = Tokens { left: refilled(tokens), since: now };
        let allowed = tokens.left >= 1.0;
        if allowed {
            tokens.left -= 1.0;
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    /// Logins refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Counts denials, and says for each source once a minute that there was one, a few in a second.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    table: Mutex<SourceTable<Denied>>,
    /// Over all sources.
    log: LogLimit,
    denied: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Denied {
    said: Option<Instant>,
    /// Since then, not said.
    more: u64,
}

impl Denials {
    /// Counts one; `say` gets the number of those that were not said since the last that was.
    pub(crate) fn note(&self, ip: IpAddr, now: Instant, say: impl FnOnce(u64)) {
        self.denied.fetch_add(1, Ordering::Relaxed);
        let fresh = |said: Option<Instant>| {
            said.is_some_and(|said| now.saturating_duration_since(said) < DENIAL_PERIOD)
        };
        let more = {
            let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            let denied = table.of(ip, now, Denied::default(), |denied| !fresh(denied.said));
            if fresh(denied.said) {
                denied.more += 1;
                return;
            }
            denied.said = Some(now);
            std::mem::take(&mut denied.more)
        };
        self.log.info(|suppressed| say(more + suppressed));
    }

    /// Denials so far.
    pub(crate) fn count(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_source_has_a_burst_of_logins_and_then_the_rate() {
        let (throttle, start) = (LoginThrottle::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let allowed = |now, tries: usize| (0..tries).filter(|_| throttle.allows(HERE, 50, now)).count();
        assert_eq!(allowed(start, 1000), 200);
        assert_eq!(allowed(at(1000), 1000), 50);
        assert_eq!(allowed(at(1010), 1000), 0);
        assert_eq!(allowed(at(60_000), 1000), 200);
        assert_eq!(throttle.refused(), 800 + 950 + 1000 + 800);
        assert!(throttle.allows("192.0.2.1".parse().unwrap(), 50, start));
        assert!((0..1000).all(|_| throttle.allows(HERE, 0, start)));
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_source() {
        let source = |text: &str| SourceHost::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("fd00::1:2:3:4"), source("fd00::9"));
        assert_ne!(source("fd00::1"), source("fd00:0:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }

    #[test]
    fn more_sources_than_can_be_remembered_do_not_pay_for_each_other() {
        let (throttle, start) = (LoginThrottle::default(), Instant::now());
        let source = |number: usize| IpAddr::from(Ipv4Addr::from(u32::try_from(number).unwrap()));
        for number in 0..SOURCES_MAX {
            assert!(throttle.allows(source(number), 1, start));
        }
        let strangers = SOURCES_MAX..SOURCES_MAX + 1000;
        assert!(strangers.clone().all(|number| throttle.allows(source(number), 1, start)));
        assert_eq!(throttle.table.lock().unwrap().known.len(), SOURCES_MAX);
        let later = start + Duration::from_secs(9);
        for number in strangers {
            assert!(throttle.allows(source(number), 1, later));
        }
        assert_eq!(throttle.table.lock().unwrap().known.len(), 1000);
    }

    #[test]
    fn a_denial_is_said_once_for_each_source_and_minute_and_all_are_counted() {
        let (denials, start) = (Denials::default(), Instant::now());
        let said = std::cell::RefCell::new(Vec::new());
        let note = |ip: &str, s: u64| {
            let now = start + Duration::from_secs(s);
            denials.note(ip.parse().unwrap(), now, |more| said.borrow_mut().push((ip.to_owned(), more)));
        };
        for second in [0, 1, 59] {
            note("192.0.2.1", second);
        }
        note("192.0.2.2", 2);
        note("192.0.2.1", 61);
        let lines = [("192.0.2.1", 0), ("192.0.2.2", 0), ("192.0.2.1", 2)];
        assert_eq!(*said.borrow(), lines.map(|(ip, more)| (ip.to_owned(), more)));
        assert_eq!(denials.count(), 5);
    }
}
