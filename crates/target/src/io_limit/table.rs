//! The limiters of all logical units and initiators.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::limiter::{Limiter, Waits};
use crate::config::{IoLimit, TargetConfig};
use crate::metrics::{InitiatorLimitReading, LimitReading, LunLimitReading};

/// Limiters of the logical units of a target that have a limit, in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct LunLimiters(Vec<(u16, Arc<Limiter>)>);

impl LunLimiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&self, lun: u16) -> Option<&Arc<Limiter>> {
        let at = self.0.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
        Some(&self.0[at].1)
    }
}

/// An initiator, as limits tell it apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InitiatorKey {
    /// Its name in its normal form.
    pub(crate) initiator: String,
    /// The user that it has proven to be by CHAP: a name alone is only a claim, and others must not use up its limit.
    pub(crate) user: Option<String>,
}

/// All limiters. Locked when sessions come and when the configuration changes, never for I/O.
#[derive(Debug, Default)]
pub(crate) struct IoLimits(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By target.
    luns: BTreeMap<String, Arc<LunLimiters>>,
    /// Kept until they are paid, also without a session: a new login is no new burst. One initiator has one for each
    /// limit that rules set for it.
    initiators: HashMap<(InitiatorKey, IoLimit), Arc<Limiter>>,
    /// Size of `initiators` from which on those are looked for that have no session and are paid.
    crowded: usize,
}

impl IoLimits {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics between changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another configuration is served. A limit that is as it was goes on where it stands.
    pub(crate) fn configure<'c>(&self, targets: impl Iterator<Item = &'c TargetConfig>) {
        let mut inner = self.lock();
        let mut luns = BTreeMap::new();
        for target in targets {
            let old = inner.luns.get(target.name.as_str());
            let limiter = |(lun, limit): (u16, IoLimit)| {
                let limiter = match old.and_then(|old| old.of(lun)) {
                    Some(same) if same.limit() == limit => Arc::clone(same),
                    Some(other) => Arc::new(Limiter::new(limit, Arc::clone(other.waits()))),
                    None => Arc::new(Limiter::new(limit, Arc::<Waits>::default())),
                };
                (lun, limiter)
            };
            let limited = target.luns.iter().filter_map(|lun| Some((lun.id, lun.io_limit()?)));
            let mut limiters: Vec<_> = limited.map(limiter).collect();
            if !limiters.is_empty() {
                limiters.sort_unstable_by_key(|(lun, _)| *lun);
                luns.insert(target.name.to_string(), Arc::new(LunLimiters(limiters)));
            }
        }
        inner.luns = luns;
    }

    /// Limiters of the logical units of a target.
    pub(crate) fn of_luns(&self, target: &str) -> Arc<LunLimiters> {
        self.lock().luns.get(target).cloned().unwrap_or_default()
    }

    /// The limiter of an initiator under this limit: the same for all its sessions, with whatever target.
    pub(crate) fn of_initiator(&self, initiator: InitiatorKey, limit: IoLimit) -> Arc<Limiter> {
        let mut inner = self.lock();
        if inner.initiators.len() > inner.crowded {
            inner.initiators.retain(|_, limiter| has_session(limiter) || !limiter.is_paid());
            inner.crowded = 2 * inner.initiators.len();
        }
        let new = || Arc::new(Limiter::new(limit, Arc::default()));
        Arc::clone(inner.initiators.entry((initiator, limit)).or_insert_with(new))
    }

    /// What has waited, by logical unit.
    pub(crate) fn luns(&self) -> Vec<LunLimitReading> {
        let inner = self.lock();
        let readings = inner.luns.iter().flat_map(|(target, limiters)| {
            let reading = |(lun, limiter): &(u16, Arc<Limiter>)| LunLimitReading {
                target: target.clone(),
                lun: *lun,
                limit: limiter.reading(),
            };
            limiters.0.iter().map(reading)
        });
        readings.collect()
    }

    /// What has waited, by initiator with a session. Of several limits the lowest is named, and what waited for all of
    /// them is added up.
    pub(crate) fn initiators(&self) -> Vec<InitiatorLimitReading> {
        let mut by_name = BTreeMap::<String, LimitReading>::new();
        for ((key, _), limiter) in &self.lock().initiators {
            if !has_session(limiter) {
                continue;
            }
            let reading = limiter.reading();
            by_name
                .entry(key.initiator.clone())
                .and_modify(|sum| {
                    let lowest = |one: Option<u64>, other| one.into_iter().chain(other).min();
                    sum.iops = lowest(sum.iops, reading.iops);
                    sum.bytes_per_second = lowest(sum.bytes_per_second, reading.bytes_per_second);
                    sum.throttled += reading.throttled;
                    sum.throttled_us_total += reading.throttled_us_total;
                })
                .or_insert(reading);
        }
        let readings = by_name.into_iter();
        readings.map(|(initiator, limit)| InitiatorLimitReading { initiator, limit }).collect()
    }
}

/// A session has a limiter beside the table.
fn has_session(limiter: &Arc<Limiter>) -> bool {
    Arc::strong_count(limiter) > 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    fn configured(limits: &IoLimits, lun: &str) {
        let text = format!(
            "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n[[target.lun]]\nid = 3\ndevice = \"ram:1M\"\n{lun}"
        );
        let config = Config::from_toml(&text, "test.toml").unwrap();
        limits.configure(config.targets.iter());
    }

    const TARGET: &str = "iqn.2026-11.com.example:a";

    #[test]
    fn a_limit_that_changes_keeps_its_counters_and_one_that_does_not_its_account() {
        let limits = IoLimits::default();
        configured(&limits, "iops_limit = 100\n");
        let first = limits.of_luns(TARGET).of(3).cloned().unwrap();
        first.waited(Duration::from_millis(5));
        configured(&limits, "iops_limit = 100\nread_only = true\n");
        assert!(Arc::ptr_eq(&first, limits.of_luns(TARGET).of(3).unwrap()));
        configured(&limits, "iops_limit = 200\n");
        let second = limits.of_luns(TARGET).of(3).cloned().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        let reading = &limits.luns()[0];
        assert_eq!((reading.lun, reading.limit.iops, reading.limit.throttled), (3, Some(200), 1));
        assert_eq!(reading.limit.throttled_us_total, 5000);
        configured(&limits, "");
        assert!(limits.of_luns(TARGET).is_empty() && limits.luns().is_empty());
    }

    #[test]
    fn an_initiator_has_one_account_for_all_sessions_and_another_user_has_its_own() {
        let limits = IoLimits::default();
        let key = |user: Option<&str>| InitiatorKey {
            initiator: "iqn.2026-11.com.example:host".to_owned(),
            user: user.map(str::to_owned),
        };
        let limit = IoLimit { iops: 9.try_into().ok(), bytes: None, burst: IoLimit::BURST };
        let one = limits.of_initiator(key(None), limit);
        assert!(Arc::ptr_eq(&one, &limits.of_initiator(key(None), limit)));
        assert!(!Arc::ptr_eq(&one, &limits.of_initiator(key(Some("u")), limit)));
        let other = IoLimit { iops: 10.try_into().ok(), ..limit };
        assert!(!Arc::ptr_eq(&one, &limits.of_initiator(key(None), other)));
        assert_eq!(limits.initiators().len(), 1);
        // A new login is no new burst.
        while one.try_pass(0) {}
        drop(one);
        assert!(limits.initiators().is_empty());
        assert!(!limits.of_initiator(key(None), limit).try_pass(0));
        // What is left of initiators that are gone is bounded.
        for number in 0..1000 {
            limits.of_initiator(InitiatorKey { initiator: number.to_string(), user: None }, limit);
        }
        assert!(limits.lock().initiators.len() < 5, "{}", limits.lock().initiators.len());
    }
}
