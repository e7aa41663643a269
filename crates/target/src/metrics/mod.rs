//! What the server has done: counted without locks by each session's core, added up for whoever asks.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Metrics`]: all sessions' counters, and those of sessions that are over |
//! | `counters.rs` | the counters of one session and logical unit |
//! | `session.rs` | a session's counters, as its connection uses them |
//! | `prometheus.rs` | the text that Prometheus reads |

mod counters;
mod prometheus;
mod session;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use schemars::JsonSchema;
use serde::Serialize;

use crate::server::SessionSummary;

pub use counters::{LunMetrics, OperationMetrics};
use session::Shelf;
pub(crate) use session::{Addressed, Counted, SessionCounters};

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
    sessions: Vec<Weak<Shelf>>,
    luns: BTreeMap<(String, u16), LunMetrics>,
    portals: BTreeMap<SocketAddr, LunMetrics>,
    logins: u64,
    logins_refused: u64,
}

/// All counters at one moment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
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
    /// CHAP responses of initiators that were wrong.
    pub chap_failures: u64,
    /// CHAP responses that had to wait before they were checked, or were refused unchecked, because others were wrong before.
    pub chap_delayed: u64,
}

/// A logical unit's counters.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LunReading {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// What was counted.
    #[serde(flatten)]
    pub metrics: LunMetrics,
}

/// A session's counters.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SessionReading {
    /// Who it is with.
    #[serde(flatten)]
    pub session: SessionSummary,
    /// What was counted.
    #[serde(flatten)]
    pub metrics: LunMetrics,
}

/// A portal's counters.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PortalReading {
    /// Its address.
    #[schemars(with = "String")]
    pub portal: SocketAddr,
    /// Sessions that came by it and are there.
    pub sessions: usize,
    /// What was counted.
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
        let shelf = Arc::new(Shelf::new(session));
        let mut inner = self.lock();
        inner.sessions.push(Arc::downgrade(&shelf));
        SessionCounters::new(shelf, Arc::clone(self))
    }

    /// A session is over: what it counted is kept.
    fn close(&self, shelf: &Arc<Shelf>) {
        let mut inner = self.lock();
        inner
            .sessions
            .retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), &raw const **shelf));
        for (lun, mut metrics) in shelf.read() {
            metrics.queue = 0;
            let key = (shelf.session.target.clone(), lun);
            inner.luns.entry(key).or_default().add(&metrics);
            let portal = shelf.session.portal;
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

    /// Forgets logical units that are no longer served.
    pub(crate) fn forget(&self, gone: impl Fn(&str, u16) -> bool) {
        self.lock().luns.retain(|(target, lun), _| !gone(target, *lun));
    }

    pub(crate) fn snapshot(&self) -> MetricsSnapshot {
        let inner = self.lock();
        let (mut luns, mut portals) = (inner.luns.clone(), inner.portals.clone());
        let shelves: Vec<_> = inner.sessions.iter().filter_map(Weak::upgrade).collect();
        let (logins, logins_refused) = (inner.logins, inner.logins_refused);
        drop(inner);
        let mut sessions = Vec::new();
        for shelf in &shelves {
            let mut sum = LunMetrics::default();
            for (lun, metrics) in shelf.read() {
                luns.entry((shelf.session.target.clone(), lun)).or_default().add(&metrics);
                sum.add(&metrics);
            }
            portals.entry(shelf.session.portal).or_default().add(&sum);
            sessions.push(SessionReading { session: shelf.session.clone(), metrics: sum });
        }
        let by = |portal: SocketAddr| shelves.iter().filter(|shelf| shelf.session.portal == portal).count();
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
        }
    }
}
