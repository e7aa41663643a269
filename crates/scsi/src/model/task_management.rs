//! Task management functions and what they come to (SAM-5 §7).

use std::fmt;
use std::sync::Arc;

use lunway_block::Io;

use crate::model::authority::Authority;
use crate::model::logical_unit::LogicalUnit;

/// A task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskManagementFunction {
    /// Abort one command of this nexus.
    AbortTask,
    /// Abort all commands of this nexus on a logical unit.
    AbortTaskSet,
    /// Clear an auto contingent allegiance; there never is one.
    ClearAca,
    /// Abort all commands of every nexus on a logical unit.
    ClearTaskSet,
    /// Reset a logical unit.
    LogicalUnitReset,
    /// Reset all logical units of the target.
    TargetWarmReset,
    /// The same, and the transport then ends every session (RFC 7143 §11.5.1).
    TargetColdReset,
}

/// One supported task management function.
#[derive(Clone, Copy, Debug)]
pub struct ManagementFunction {
    /// The function.
    pub function: TaskManagementFunction,
    /// The standard's name.
    pub name: &'static str,
    /// Section of the standard that defines it.
    pub section: &'static str,
    /// Authority that the nexus needs.
    pub authority: Authority,
}

const fn row(
    function: TaskManagementFunction,
    name: &'static str,
    section: &'static str,
    authority: Authority,
) -> ManagementFunction {
    ManagementFunction { function, name, section, authority }
}

use Authority::{Change, ChangeAll, Observe};
use TaskManagementFunction as Function;

/// All supported task management functions. What aborts commands of the requesting nexus alone is everybody's; the
/// others take away commands and state of other nexuses.
#[rustfmt::skip]
pub static FUNCTIONS: &[ManagementFunction] = &[
    row(Function::AbortTask, "ABORT TASK", "SAM-5 §7.2", Observe),
    row(Function::AbortTaskSet, "ABORT TASK SET", "SAM-5 §7.3", Observe),
    row(Function::ClearTaskSet, "CLEAR TASK SET", "SAM-5 §7.5", Change),
    row(Function::LogicalUnitReset, "LOGICAL UNIT RESET", "SAM-5 §7.7", Change),
    row(Function::TargetWarmReset, "TARGET WARM RESET", "RFC 7143 11.5.1", ChangeAll),
    row(Function::TargetColdReset, "TARGET COLD RESET", "RFC 7143 11.5.1", ChangeAll),
];

/// The row of a function; `None`: it is not supported.
pub(crate) fn find(function: TaskManagementFunction) -> Option<&'static ManagementFunction> {
    FUNCTIONS.iter().find(|row| row.function == function)
}

/// The service response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskManagementServiceResponse {
    /// Done, once the commands that the outcome names are dropped.
    FunctionComplete,
    /// The logical unit does not exist.
    IncorrectLun,
    /// Not a function of this target.
    NotSupported,
    /// The nexus may not do that.
    NotAuthorized,
}

/// The commands of a nexus, which its transport keeps: what the device server asks of it when another nexus preempts
/// this one and aborts (SPC-4 §5.13.11.2.6).
pub trait NexusTasks: fmt::Debug + Send + Sync {
    /// Drops every command of the nexus on a logical unit without a response, like CLEAR TASK SET of another nexus, and
    /// tells the nexus by [`Nexus::commands_cleared`](crate::Nexus::commands_cleared) if there were any. Answers when
    /// none of them can have an effect any longer, also where the nexus ends meanwhile.
    fn abort(&self, lun: u16) -> Io<()>;
}

/// Commands that the transport has to drop without a response.
#[derive(Clone, Debug)]
pub enum Scope {
    /// None.
    Nothing,
    /// The one command that the request refers to.
    Task,
    /// Every command of the requesting nexus on the logical unit.
    NexusUnit {
        /// Its number.
        lun: u16,
    },
    /// Every command of every nexus on the logical unit. After CLEAR TASK SET, each *other* nexus that lost one is told
    /// by [`Nexus::commands_cleared`](crate::Nexus::commands_cleared).
    Unit {
        /// Its number at the requesting nexus's target.
        lun: u16,
        /// The unit itself, which other targets may offer under other numbers.
        unit: Arc<LogicalUnit>,
    },
    /// Every command of every nexus of the target.
    Target,
}

/// Outcome of a task management function.
#[derive(Clone, Debug)]
pub struct TaskManagementOutcome {
    /// Response to send.
    pub response: TaskManagementServiceResponse,
    /// Commands to drop before the response.
    pub abort: Scope,
}

impl TaskManagementOutcome {
    pub(crate) const NOT_SUPPORTED: Self =
        Self { response: TaskManagementServiceResponse::NotSupported, abort: Scope::Nothing };
    pub(crate) const NOT_AUTHORIZED: Self =
        Self { response: TaskManagementServiceResponse::NotAuthorized, abort: Scope::Nothing };
    pub(crate) const INCORRECT_LUN: Self =
        Self { response: TaskManagementServiceResponse::IncorrectLun, abort: Scope::Nothing };

    pub(crate) fn complete(abort: Scope) -> Self {
        Self { response: TaskManagementServiceResponse::FunctionComplete, abort }
    }
}
