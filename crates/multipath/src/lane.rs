//! Lane: one of the paths that a disk is made of.

use std::fmt;
use std::sync::Arc;

use lunway_block::{BlockDevice, BlockError, Io};

/// One path to the disk, from one local port to one port of the storage.
///
/// The way in which it moves bytes is its own business. It differs from any other [`BlockDevice`] in that it does not
/// wait when its connection is lost: what is under way over it fails at once, and the error says what is known
/// ([`Fate`](lunway_block::Fate)).
///
/// # Sessions
///
/// A lane has one session at a time; `epoch` counts them from 1. After a loss it brings the next one by itself. The end
/// of a session is told twice: [`Lost`](LaneEvent::Lost) when nothing more comes from it and nothing more is sent in
/// it, not even again; [`Settled`](LaneEvent::Settled) once nothing that was sent over it can reach the disk any more.
/// Only after that may a write whose outcome is unknown be sent down another lane; or, where no proof comes, when time
/// and a [`barrier`](Self::barrier) over another lane have made it as good as certain ([`Unproven`](crate::Unproven)).
pub trait Lane: Send + Sync + 'static {
    /// Its operations.
    fn device(&self) -> &dyn BlockDevice;

    /// Sets the receiver of events; those of now (`Up` or `Lost`, the access state) are told at once. Called once,
    /// before any operation.
    fn listen(&self, listener: Arc<dyn LaneListener>);

    /// The session there is, or the last one there was.
    fn epoch(&self) -> u64;

    /// Answers when every command has ended that the disk had received before this one, over whichever lane. An error
    /// says that nothing is known.
    fn barrier(&self) -> Io<Result<(), BlockError>>;

    /// Ends the session at once because its port is known to be dead; the lane then tries again as after any loss.
    fn sever(&self, why: &str);

    /// Tries to connect now instead of later: something has changed that gives hope. A lane that is connected and not
    /// active looks whether it is now.
    fn hurry(&self);
}

/// Hears what happens to a lane.
pub trait LaneListener: Send + Sync {
    /// Called on any thread, holding no lock of the lane; must not block.
    ///
    /// `Lost` comes before the operations under way fail; `Settled` of a session before `Up` of the next.
    fn happened(&self, event: LaneEvent);
}

/// Event on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// There is a session: operations may start.
    Up {
        /// Number of the session.
        epoch: u64,
    },
    /// The session is lost, and its connection cut off: what was sent and has not arrived is not sent again. Operations
    /// that wait in it fail with [`Fate::Unknown`](lunway_block::Fate::Unknown) or
    /// [`Fate::NotDone`](lunway_block::Fate::NotDone) after this.
    Lost {
        /// Number of the session.
        epoch: u64,
        /// Reason, for people.
        why: String,
    },
    /// Nothing that was sent in this session or before it can reach the disk any more.
    Settled {
        /// Up to which one.
        epoch: u64,
    },
    /// Answers are due and nothing has come for a while: it may be dead.
    Silent,
    /// Something has come again.
    Heard,
    /// The unit reports that its power was off: what it acknowledged and did not flush may be lost.
    PowerOn,
    /// A write that was acknowledged failed afterwards, behind the cache (a deferred error): it is lost.
    Spoiled {
        /// Message of the unit, for people.
        why: String,
    },
    /// The state of access over this lane.
    Access(AluaState),
    /// Registrations or reservations were preempted, so this node may have been fenced: changes of the disk wait until
    /// it is known.
    Preempted,
    /// This node's key is registered: changes go on.
    Registered,
    /// This node's key was taken away: the disk refuses changes from now on.
    Fenced {
        /// Reason, for people.
        why: String,
    },
    /// Does not come back: it was closed, or another disk answers there.
    Closed {
        /// Reason, for people.
        why: String,
    },
}

/// Asymmetric logical unit access over a lane (SPC-4 §5.15.2.4, ALUA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AluaState {
    /// Active/optimized: the path to take.
    Optimized,
    /// Active/non-optimized: works, at a cost to the storage.
    NonOptimized,
    /// Standby: carries no I/O until it is made active.
    Standby,
    /// Unavailable, offline, or in transition.
    Unavailable,
}

impl AluaState {
    /// Returns `true` if reads and writes may go there.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Optimized | Self::NonOptimized)
    }
}

impl fmt::Display for AluaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Standby => "standby",
            Self::Unavailable => "unavailable",
        })
    }
}
