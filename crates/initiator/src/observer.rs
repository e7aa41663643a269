//! Observer of a device: the events of its sessions.

use std::fmt;
use std::sync::Arc;

use lunway_scsi::AccessState;

use crate::IscsiUrl;

/// Hears what happens to the sessions of a device.
///
/// # Order
///
/// Sessions of a device come one after the other and are numbered from 1. Of each, `Up` is told first, then
/// `Lost`, then `Settled`, and only then `Up` of the next. `Lost` is told before an operation under way fails for it;
/// the size of the disk, `PowerOn` and `Access` as they are found in a new session are told before its `Up`. After
/// `Closed` nothing is told.
pub trait Observer: Send + Sync {
    /// Called by the device's driver, on the thread of its runtime, with no lock held: it may use any device. It must
    /// not block, as no byte moves meanwhile.
    fn happened(&self, event: SessionEvent);
}

impl<F: Fn(SessionEvent) + Send + Sync> Observer for F {
    fn happened(&self, event: SessionEvent) {
        self(event);
    }
}

/// Event in the sessions of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// There is a session: operations are sent.
    Up {
        /// Epoch of the session.
        epoch: u64,
    },
    /// The session is lost: nothing more comes from it, and nothing more is sent in it, not even again: its connection
    /// was reset with all that waited in it.
    Lost {
        /// Epoch of the session.
        epoch: u64,
        /// Cause, for people.
        why: String,
    },
    /// Nothing that was sent in this session, or in one before it, can reach the disk any more: it was logged out, or
    /// another has taken its place (RFC 7143 §6.3.5).
    Settled {
        /// Up to which one.
        epoch: u64,
    },
    /// Answers are due and no sign of life has come for [`Silence::ask_after`](crate::Silence::ask_after).
    Silent,
    /// A sign of life has come again.
    Heard,
    /// The unit reports that its power was off: what it acknowledged and did not flush may be lost.
    PowerOn,
    /// A write that was acknowledged earlier has failed behind the cache (a deferred error, SPC-4 §4.5.7). Told where
    /// nothing waits for a lost connection; elsewhere the next flush fails.
    Spoiled {
        /// Message from the unit.
        why: String,
    },
    /// The unit reports that reservations or registrations were preempted (2A/03, 2A/05): another node may have fenced
    /// this node. Told where nothing waits for a lost connection; a change that the report came instead of fails with
    /// [`Gone`](lunway_block::BlockError::Gone) after that.
    Preempted,
    /// The asymmetric access state of the port that the session reaches the unit through (SPC-4 §5.16).
    Access(AccessState),
    /// There will be no further session: the device was closed, or another disk answers at its address.
    Closed {
        /// Cause, for people.
        why: String,
    },
}

/// An [`Observer`] that several own. Two are equal if they are the same one.
#[derive(Clone)]
pub struct SharedObserver(Arc<dyn Observer>);

impl SharedObserver {
    /// Shares `observer`.
    pub fn new(observer: impl Observer + 'static) -> Self {
        Self(Arc::new(observer))
    }

    pub(crate) fn happened(&self, event: SessionEvent) {
        self.0.happened(event);
    }
}

impl From<Arc<dyn Observer>> for SharedObserver {
    fn from(observer: Arc<dyn Observer>) -> Self {
        Self(observer)
    }
}

impl fmt::Debug for SharedObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedObserver")
    }
}

impl PartialEq for SharedObserver {
    fn eq(&self, other: &Self) -> bool {
        Arc::as_ptr(&self.0).addr() == Arc::as_ptr(&other.0).addr()
    }
}

impl Eq for SharedObserver {}

/// Detours: other paths to the target port of a device, asked for at each loss of a session. Two are equal if they are
/// the same one.
///
/// Of an address, host, port and `from` count; names and secrets are the device's own. A detour is good for nothing but
/// proving that a lost session has ended, and only where it leads to the same portal group.
#[derive(Clone)]
pub struct Detours(Arc<dyn Fn() -> Vec<IscsiUrl> + Send + Sync>);

impl Detours {
    /// Makes detours of the addresses that `find` names, the most hopeful first.
    pub fn new(find: impl Fn() -> Vec<IscsiUrl> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    pub(crate) fn find(&self) -> Vec<IscsiUrl> {
        (self.0)()
    }
}

impl fmt::Debug for Detours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Detours")
    }
}

impl PartialEq for Detours {
    fn eq(&self, other: &Self) -> bool {
        Arc::as_ptr(&self.0).addr() == Arc::as_ptr(&other.0).addr()
    }
}

impl Eq for Detours {}
