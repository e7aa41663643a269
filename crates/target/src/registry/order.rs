//! Orders to connections from others, and their causes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lunway_iscsi::target::Before;
use tokio::sync::oneshot;

/// Order to a connection from others.
#[derive(Debug)]
pub(crate) enum Order {
    /// End at once; device I/O under way is awaited.
    Close(Cause),
    /// Ask the initiator to log out within this time (RFC 7143 §11.9.1, event 1).
    RequestLogout(Duration),
    /// See whether the session may still do what it could: the configuration of its target has changed.
    Reconsider,
    /// A connection of the same session has brought what requests that are held here waited for.
    Resume,
    /// Give up the task with this tag, which a connection of the same session was asked to abort.
    AbortTask {
        referenced_task_tag: u32,
        /// Set if it is here.
        found: Arc<AtomicBool>,
        function: SiblingFunction,
    },
    /// Give up the tasks sent before a function over another connection of the same session, to one logical unit or to
    /// all.
    AbortEarlier { lun: Option<u16>, before: Before, function: SiblingFunction },
    /// Give up tasks without an answer.
    AbortTasks {
        scope: AbortScope,
        /// Dropped when no aborted task runs any longer.
        done: oneshot::Sender<()>,
    },
}

/// Task management function of another connection of the session: what the two connections tell each other.
#[derive(Debug)]
pub(crate) struct SiblingFunction {
    /// Dropped when no task that it aborts here runs any longer.
    pub(crate) done: oneshot::Sender<()>,
    /// Its response: complete, or rejected. Dropped where there is none.
    pub(crate) complete: oneshot::Receiver<bool>,
}

/// Tasks of a connection that end when a connection of another session manages tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortScope {
    /// Tasks of a logical unit that was reset.
    Reset { lun: u16 },
    /// Tasks of a logical unit whose task set was cleared, which the initiator is told (SAM-5 §5.14).
    Cleared { lun: u16 },
    /// All.
    All,
}

impl AbortScope {
    /// The logical unit that it is about; `None`: all of them.
    pub(crate) fn lun(self) -> Option<u16> {
        match self {
            Self::Reset { lun } | Self::Cleared { lun } => Some(lun),
            Self::All => None,
        }
    }
}

/// Reason why a connection was told to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    /// RFC 7143 §6.3.5.
    #[error("the initiator logged in again")]
    Reinstated,
    /// Too many connections that have not logged in, or that discover.
    #[error("newer connections need its place")]
    Crowded,
    /// TARGET COLD RESET.
    #[error("the target was reset")]
    ColdReset,
    /// The configuration no longer has it.
    #[error("the target was removed or disabled")]
    Removed,
    /// The administrator.
    #[error("the administrator ended the session")]
    Dropped,
    /// The storage behind a logical unit has shut its client out while it had commands of the session.
    #[error("the storage has fenced the device of a logical unit: its commands are not answered")]
    Fenced,
    /// The daemon ends.
    #[error("the target shuts down")]
    Shutdown,
    /// RFC 7143 §7.1.4.4: without connection recovery a session ends with the first of its connections that breaks.
    #[error("another connection of the session broke")]
    SessionFailed,
    /// By a Logout Request for the session, over another of its connections.
    #[error("the session was logged out")]
    LoggedOut,
    /// By a Logout Request for this connection, over another of its session.
    #[error("the connection was logged out")]
    ConnectionLoggedOut,
    /// RFC 7143 §6.3.4: the initiator logged in again with this connection's number.
    #[error("the initiator replaced the connection")]
    ConnectionReinstated,
}

impl Cause {
    /// Returns `true` if the session goes on with its other connections.
    pub(crate) fn spares_session(self) -> bool {
        matches!(self, Self::ConnectionLoggedOut | Self::ConnectionReinstated)
    }

    /// Returns `true` if the initiator has to be notified, as nothing that it did tells it (RFC 7143 §11.9.1, event 3).
    pub(crate) fn is_news(self) -> bool {
        match self {
            Self::ColdReset
            | Self::Removed
            | Self::Dropped
            | Self::Fenced
            | Self::Shutdown
            | Self::SessionFailed => true,
            Self::Reinstated
            | Self::Crowded
            | Self::LoggedOut
            | Self::ConnectionLoggedOut
            | Self::ConnectionReinstated => false,
        }
    }
}
