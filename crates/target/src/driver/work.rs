//! Work that a connection waits for.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lunway_iscsi::target::{LogoutId, TaskId, TaskManagementId};
use lunway_scsi::{GivenUp, Lun, LunAddress, MediumEffect, Response};

use super::task_management::Managed;
use crate::io_limit::Limiter;
use crate::metrics::Counted;

/// Something that a connection waits for, other than its socket.
pub(super) enum Work {
    /// A command whose device needs time.
    Command {
        task: TaskId,
        lun: [u8; 8],
        /// Bytes that it counts against the limit of executing bytes.
        bytes: usize,
        counted: Counted,
        effect: Effect,
        response: Pin<Box<dyn Future<Output = Response> + Send>>,
    },
    /// Something that other connections do.
    Elsewhere(Pin<Box<dyn Future<Output = Done> + Send>>),
}

/// Possible changes to a medium by a command.
pub(super) enum Effect {
    /// Nothing.
    None,
    /// This, and it will be answered when it has.
    Expected(MediumEffect),
    /// The command was given up: other commands on its blocks are answered BUSY as long as it is here.
    GivenUp(#[expect(dead_code, reason = "kept to be dropped")] GivenUp),
}

impl From<Option<MediumEffect>> for Effect {
    fn from(effect: Option<MediumEffect>) -> Self {
        effect.map_or(Self::None, Self::Expected)
    }
}

/// Event that a connection waited for.
pub(super) enum Done {
    Command {
        task: TaskId,
        bytes: usize,
        counted: Counted,
        response: Response,
    },
    /// Commands that a task management function aborts have ended.
    Managed(TaskManagementId, Managed),
    /// A task management function of another connection of the session, which aborted these commands, is complete, or
    /// rejected.
    SiblingManaged {
        tasks: Vec<TaskId>,
        complete: bool,
    },
    /// The connections whose place this one takes begin no command any more, and these are the logical units whose
    /// devices still have some; `None`: that has not come in time.
    Stopped(Option<BTreeSet<u16>>),
    /// The first command that waits for the limits of a logical unit and its initiator may pass: this wait is over, in
    /// which the command waited for this limit, if for any.
    Passes {
        lun: u16,
        wait: u64,
        waited_for: Option<Arc<Limiter>>,
    },
    /// The time has come to check a CHAP response.
    ProofDue,
    /// Another connection of the session, which the initiator logged out by this request, has ended, or has not in
    /// time.
    LoggedOut {
        request: LogoutId,
        in_time: bool,
    },
}

impl Work {
    /// The logical unit whose device has the command.
    pub(super) fn lun(&self) -> Option<u16> {
        match self {
            Self::Command { lun, .. } => unit_number(*lun),
            Self::Elsewhere(_) => None,
        }
    }
}

impl Work {
    /// The command's answer is no longer waited for. What it may change until the device has ended it is kept from
    /// other commands. To be called for every command that is given up: by an abort, by a reset, with its session.
    pub(super) fn give_up(&mut self) {
        if let Self::Command { effect, .. } = self {
            *effect = match std::mem::replace(effect, Effect::None) {
                Effect::Expected(expected) => Effect::GivenUp(expected.give_up()),
                other => other,
            };
        }
    }

    /// The command, if it is one.
    pub(super) fn task(&self) -> Option<TaskId> {
        match self {
            Self::Command { task, .. } => Some(*task),
            Self::Elsewhere(_) => None,
        }
    }
}

/// The number of a logical unit, by whichever of its addresses.
pub(super) fn unit_number(lun: [u8; 8]) -> Option<u16> {
    match Lun(lun).address() {
        LunAddress::Unit(number) => Some(number),
        _ => None,
    }
}

impl Future for Work {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        match self.get_mut() {
            Self::Command { task, bytes, counted, response, .. } => {
                let response = ready!(response.as_mut().poll(cx));
                Poll::Ready(Done::Command { task: *task, bytes: *bytes, counted: *counted, response })
            }
            Self::Elsewhere(future) => future.as_mut().poll(cx),
        }
    }
}
