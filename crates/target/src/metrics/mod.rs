//! Metrics of the server: counted without locks by each session's core, added up on request.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Metrics`]: all sessions' counters, and those of sessions that are over |
//! | `backup.rs` | backup runs, as their commands report them |
//! | `counters.rs` | the counters of one session and logical unit |
//! | `failure.rs` | why a device failed a command |
//! | `outage.rs` | a device that carries out no commands, until it does again |
//! | `session.rs` | a session's counters, as its connection uses them |
//! | `prometheus.rs` | the text that Prometheus reads |
//! | `rates.rs` | what two snapshots say about the time between them |

mod backup;
mod counters;
mod failure;
mod outage;
mod prometheus;
mod rates;
mod session;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lunway_block::{MemoryUse, OwnerMemory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::summary::{PullReading, SessionSummary, SpaceReading};
use crate::warning::WarningKind;

use backup::Backups;
pub use backup::{BackupPoint, BackupReading, BackupReport};
use counters::Kind;
pub use counters::{FailureMetrics, LunMetrics, OperationMetrics};
use failure::Cause;
use outage::{Look, Outage};
pub use rates::Rates;
use session::PublishedCounters;
pub(crate) use session::{Addressed, Counted, SessionCounters};

/// Log interval: how long the failures of one cause of a logical unit are counted and not logged again. A disk that is
/// full must not fill another with lines, and a minute is what people look back on.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// Portals whose totals are kept after their last session: a bound, where addresses come and go for years.
const PORTALS_MAX: usize = 1024;

/// Everything that is counted.
///
/// A counter of a logical unit or a portal never goes down: what a session has counted is added to the totals when it
/// ends. Totals of logical units are forgotten when those are removed.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sessions: Vec<Weak<PublishedCounters>>,
    luns: BTreeMap<(String, u16), LunMetrics>,
    portals: BTreeMap<SocketAddr, LunMetrics>,
    logins: u64,
    logins_refused: u64,
    snapshots_broken: u64,
    backups: Backups,
    failure_log: BTreeMap<String, BTreeMap<(u16, Cause), FailureLog>>,
}

/// Log record of the failures of one logical unit's device for one cause.
#[derive(Debug, Default)]
struct FailureLog {
    logged: Option<Instant>,
    /// Commands since then.
    more: u64,
    /// Of a device that is gone or does not answer: until it carries out commands again.
    outage: Option<Outage>,
}

/// All counters at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MetricsSnapshot {
    /// By logical unit.
    pub luns: Vec<LunReading>,
    /// By session.
    pub sessions: Vec<SessionReading>,
    /// By portal.
    pub portals: Vec<PortalReading>,
    /// Logins that succeeded, discovery included.
    pub logins: u64,
    /// Logins that did not.
    pub logins_refused: u64,
    /// Wrong CHAP responses of initiators.
    pub chap_failures: u64,
    /// CHAP responses that were delayed or refused unchecked, because earlier ones were wrong.
    pub chap_delayed: u64,
    /// Snapshots that were lost: their area full, failed or too slow.
    pub snapshots_broken: u64,
    /// Backup runs of logical units, by destination.
    #[serde(default)]
    pub backups: Vec<BackupReading>,
    /// Memory for data in flight.
    #[serde(default)]
    pub memory: MemoryReading,
    /// By logical unit that has a limit of I/O.
    #[serde(default)]
    pub lun_limits: Vec<LunLimitReading>,
    /// By initiator that has a session under a limit of I/O.
    #[serde(default)]
    pub initiator_limits: Vec<InitiatorLimitReading>,
    /// By logical unit: its size, and the space in its backing store.
    pub devices: Vec<DeviceReading>,
    /// Number of warnings by kind.
    pub warnings: Vec<WarningCount>,
}

/// A logical unit's counters.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LunReading {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// Counters.
    #[serde(flatten)]
    pub metrics: LunMetrics,
}

/// Memory for data in flight, of `limits.memory_mib`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReading {
    /// The limit of all sessions together, bytes.
    pub limit: u64,
    /// The limit of one principal, bytes.
    pub principal_limit: u64,
    /// Bytes in use, beside the reserve of each connection.
    pub used: u64,
    /// Commands that waited for memory of their principal.
    pub waits: u64,
    /// Commands that were answered with BUSY or TASK SET FULL for lack of memory.
    pub refused: u64,
    /// By principal that has a session.
    pub principals: Vec<PrincipalMemoryReading>,
}

/// Memory for data in flight of one principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrincipalMemoryReading {
    /// The principal: `user:` and a CHAP user; without CHAP, access rule and source address.
    pub principal: String,
    /// Bytes in use.
    pub used: u64,
    /// Commands that waited for memory since the oldest of its sessions began.
    pub waits: u64,
    /// Commands that were refused for lack of memory since then.
    pub refused: u64,
}

impl From<MemoryUse> for MemoryReading {
    fn from(memory: MemoryUse) -> Self {
        let MemoryUse { limits, used, waits, refused, owners } = memory;
        let principal = |OwnerMemory { owner, used, waits, refused }| PrincipalMemoryReading {
            principal: owner,
            used: used as u64,
            waits,
            refused,
        };
        Self {
            limit: limits.whole as u64,
            principal_limit: limits.each as u64,
            used: used as u64,
            waits,
            refused,
            principals: owners.into_iter().map(principal).collect(),
        }
    }
}

/// A limit of I/O, and what has waited for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitReading {
    /// `iops_limit`; null: none.
    pub iops: Option<u64>,
    /// `rate_limit`, bytes per second; null: none.
    pub bytes_per_second: Option<u64>,
    /// Commands that have waited for it.
    pub throttled: u64,
    /// Sum of the microseconds that they waited.
    pub throttled_us_total: u64,
}

/// The limit of a logical unit. Its counters go on when the limit is changed, and end when it is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LunLimitReading {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// The limit.
    #[serde(flatten)]
    pub limit: LimitReading,
}

/// The limit of an initiator. Its counters end with the last session under the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitiatorLimitReading {
    /// The initiator's name.
    pub initiator: String,
    /// The limit.
    #[serde(flatten)]
    pub limit: LimitReading,
}

/// The size of a logical unit, and the space in its backing store.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceReading {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// Size that initiators see, bytes.
    pub size: u64,
    /// Its backing store, as it was at most 30 seconds ago; null: unknown.
    pub space: Option<SpaceReading>,
    /// What its disk still lacks, and takes from a point of a backup; null: nothing.
    pub pull: Option<PullReading>,
}

/// Number of warnings of one kind.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WarningCount {
    /// The kind.
    pub kind: WarningKind,
    /// Current number.
    pub count: usize,
}

/// A session's counters.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionReading {
    /// The session.
    #[serde(flatten)]
    pub session: SessionSummary,
    /// Counters.
    #[serde(flatten)]
    pub metrics: LunMetrics,
    /// Task management functions of its initiator.
    pub task_management: TaskManagementReading,
}

/// Task management functions that an initiator has asked for (RFC 7143 §11.5.1), as it does for commands that were
/// not answered in its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskManagementReading {
    /// ABORT TASK, ABORT TASK SET, CLEAR TASK SET.
    pub aborts: u64,
    /// LOGICAL UNIT RESET, TARGET WARM RESET, TARGET COLD RESET.
    pub resets: u64,
}

/// A portal's counters.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PortalReading {
    /// Its address.
    #[schemars(with = "String")]
    pub portal: SocketAddr,
    /// Current sessions through this portal.
    pub sessions: usize,
    /// Counters.
    #[serde(flatten)]
    pub metrics: LunMetrics,
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Sums that a panic left half done would be wrong by one session, not dangerous.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counters for a new session.
    pub(crate) fn open(self: &Arc<Self>, session: SessionSummary) -> SessionCounters {
        let published = Arc::new(PublishedCounters::new(session));
        let mut inner = self.lock();
        inner.sessions.push(Arc::downgrade(&published));
        SessionCounters::new(published, Arc::clone(self))
    }

    /// A session is over: what it counted is kept.
    fn close(&self, published: &Arc<PublishedCounters>) {
        let mut inner = self.lock();
        inner.sessions.retain(|other| {
            other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), &raw const **published)
        });
        for (lun, mut metrics) in published.read() {
            metrics.queue = 0;
            let key = (published.session.target.clone(), lun);
            inner.luns.entry(key).or_default().add(&metrics);
            let portal = published.session.portal;
            if inner.portals.len() < PORTALS_MAX || inner.portals.contains_key(&portal) {
                inner.portals.entry(portal).or_default().add(&metrics);
            }
        }
    }

    /// A login came to its end.
    pub(crate) fn login(&self, succeeded: bool) {
        let mut inner = self.lock();
        match succeeded {
            true => inner.logins += 1,
            false => inner.logins_refused += 1,
        }
    }

    /// A snapshot was lost.
    pub(crate) fn snapshot_broke(&self) {
        self.lock().snapshots_broken += 1;
    }

    /// A backup run of a logical unit has ended now, in seconds since 1970.
    pub(crate) fn backup_ended(
        &self,
        target: &str,
        lun: u16,
        report: BackupReport,
        now: u64,
    ) -> BackupReading {
        self.lock().backups.ended(target, lun, report, now)
    }

    /// Returns `Some` if the failure of `count` commands by the device of a logical unit is to be logged now, with the
    /// number of those not logged since the last that was.
    fn logs_failure(
        self: &Arc<Self>,
        target: &str,
        lun: u16,
        (cause, kind): (Cause, Kind),
        count: u64,
        now: Instant,
    ) -> Option<u64> {
        let mut inner = self.lock();
        if !inner.failure_log.contains_key(target) {
            inner.failure_log.insert(target.to_owned(), BTreeMap::new());
        }
        let log = inner.failure_log.get_mut(target)?.entry((lun, cause)).or_default();
        log.more += count;
        if log.outage.is_none() {
            log.outage = Outage::of(cause, now);
            if let (Some(_), Ok(runtime)) = (&log.outage, Handle::try_current()) {
                runtime.spawn(outage::look_after(Arc::downgrade(self), target.to_owned(), lun, cause));
            }
        }
        if let Some(outage) = &mut log.outage {
            outage.fails(kind, count, now);
        }
        if log.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_PERIOD) {
            return None;
        }
        log.logged = Some(now);
        // Without the one that is logged.
        Some(std::mem::take(&mut log.more).saturating_sub(1))
    }

    /// Looks at an outage, which is forgotten when it is over: the next failure is logged at once. `None`: it is
    /// forgotten already.
    fn looks_at_outage(&self, target: &str, lun: u16, cause: Cause) -> Option<Look> {
        let mut inner = self.lock();
        let mut counters = inner.luns.get(&(target.to_owned(), lun)).cloned().unwrap_or_default();
        let of_target = |published: &Arc<PublishedCounters>| published.session.target == target;
        let sessions = inner.sessions.iter().filter_map(Weak::upgrade).filter(of_target);
        sessions.filter_map(|published| published.read_lun(lun)).for_each(|more| counters.add(&more));
        let log = inner.failure_log.get_mut(target)?.get_mut(&(lun, cause))?;
        let look = log.outage.as_mut()?.look(&counters);
        if look != Look::Open {
            *log = FailureLog { more: log.more, ..FailureLog::default() };
        }
        Some(look)
    }

    /// Forgets logical units that are no longer served.
    pub(crate) fn forget(&self, gone: impl Fn(&str, u16) -> bool) {
        let mut inner = self.lock();
        inner.luns.retain(|(target, lun), _| !gone(target, *lun));
        inner.backups.forget(&gone);
        for (target, log) in &mut inner.failure_log {
            log.retain(|(lun, _), _| !gone(target, *lun));
        }
        inner.failure_log.retain(|_, log| !log.is_empty());
    }

    /// All counters; those of `served` logical units are there before their first command.
    pub(crate) fn snapshot(&self, served: impl Iterator<Item = (String, u16)>) -> MetricsSnapshot {
        let inner = self.lock();
        let (mut luns, mut portals) = (inner.luns.clone(), inner.portals.clone());
        let all_published: Vec<_> = inner.sessions.iter().filter_map(Weak::upgrade).collect();
        let (logins, logins_refused) = (inner.logins, inner.logins_refused);
        let (snapshots_broken, backups) = (inner.snapshots_broken, inner.backups.readings());
        drop(inner);
        for lun in served {
            luns.entry(lun).or_default();
        }
        let mut sessions = Vec::new();
        for published in &all_published {
            let mut sum = LunMetrics::default();
            for (lun, metrics) in published.read() {
                luns.entry((published.session.target.clone(), lun)).or_default().add(&metrics);
                sum.add(&metrics);
            }
            portals.entry(published.session.portal).or_default().add(&sum);
            let (session, task_management) = (published.session.clone(), published.task_management());
            sessions.push(SessionReading { session, metrics: sum, task_management });
        }
        let by = |portal: SocketAddr| {
            all_published.iter().filter(|published| published.session.portal == portal).count()
        };
        let luns = luns.into_iter();
        let portals = portals.into_iter();
        MetricsSnapshot {
            luns: luns.map(|((target, lun), metrics)| LunReading { target, lun, metrics }).collect(),
            sessions,
            portals: portals
                .map(|(portal, metrics)| PortalReading { portal, sessions: by(portal), metrics })
                .collect(),
            logins,
            logins_refused,
            chap_failures: 0,
            chap_delayed: 0,
            snapshots_broken,
            backups,
            memory: MemoryReading::default(),
            lun_limits: Vec::new(),
            initiator_limits: Vec::new(),
            devices: Vec::new(),
            warnings: Vec::new(),
        }
    }
}
