//! Task Management Function Request and Response.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Task management function that the initiator requests (RFC 7143 §11.5.1; RFC 7144 for 9 to 12).
    pub struct TaskManagementCode {
        /// Aborts one task.
        ABORT_TASK = 1, "ABORT TASK";
        /// Aborts all this session's tasks on a logical unit.
        ABORT_TASK_SET = 2, "ABORT TASK SET";
        /// Clears the auto contingent allegiance.
        CLEAR_ACA = 3, "CLEAR ACA";
        /// Aborts all tasks of the task set.
        CLEAR_TASK_SET = 4, "CLEAR TASK SET";
        /// Resets a logical unit.
        LOGICAL_UNIT_RESET = 5, "LOGICAL UNIT RESET";
        /// Resets all logical units.
        TARGET_WARM_RESET = 6, "TARGET WARM RESET";
        /// Resets all logical units and drops all connections.
        TARGET_COLD_RESET = 7, "TARGET COLD RESET";
        /// Moves a task to this connection.
        TASK_REASSIGN = 8, "TASK REASSIGN";
        /// Asks whether a task is there.
        QUERY_TASK = 9, "QUERY TASK";
        /// Asks whether any task of this session is there.
        QUERY_TASK_SET = 10, "QUERY TASK SET";
        /// Ends the nexus' state on all logical units.
        I_T_NEXUS_RESET = 11, "I_T NEXUS RESET";
        /// Asks whether a unit attention is pending.
        QUERY_ASYNCHRONOUS_EVENT = 12, "QUERY ASYNCHRONOUS EVENT";
    }
}

codes! {
    /// Result of a task management request (RFC 7143 §11.6.1).
    pub struct TaskManagementResult {
        /// Done.
        COMPLETE = 0, "function complete";
        /// The referenced task is not there.
        TASK_DOES_NOT_EXIST = 1, "task does not exist";
        /// The logical unit is not there.
        LUN_DOES_NOT_EXIST = 2, "LUN does not exist";
        /// The task's connection is still up.
        TASK_STILL_ALLEGIANT = 3, "task still allegiant";
        /// This target does not move tasks.
        REASSIGNMENT_NOT_SUPPORTED = 4, "task allegiance reassignment not supported";
        /// This target does not know the function.
        NOT_SUPPORTED = 5, "task management function not supported";
        /// The initiator may not do that.
        AUTHORIZATION_FAILED = 6, "function authorization failed";
        /// The answer to a query is yes (RFC 7144).
        SUCCEEDED = 7, "function succeeded";
        /// Refused.
        REJECTED = 255, "function rejected";
    }
}

/// Asks the task manager for something (RFC 7143 §11.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TaskManagementRequest {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`], and the function in the low seven bits.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// The logical unit.
    pub lun: U64,
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// The task that is meant, or [`RESERVED_TAG`].
    pub referenced_task_tag: U32,
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// CmdSN of the task that is meant.
    pub ref_cmd_sn: U32,
    /// Next data number expected, in a reassignment.
    pub exp_data_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 8],
}

pdu!(
    TaskManagementRequest,
    Opcode::TASK_MANAGEMENT_REQUEST,
    flags = FINAL,
    referenced_task_tag = RESERVED_TAG
);

impl TaskManagementRequest {
    /// The function asked for.
    pub const fn function(&self) -> TaskManagementCode {
        TaskManagementCode(self.flags & 0x7f)
    }

    /// Names the function.
    pub const fn set_function(&mut self, function: TaskManagementCode) {
        self.flags = FINAL | function.0 & 0x7f;
    }
}

/// The task manager's answer (RFC 7143 §11.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TaskManagementResponse {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`].
    pub flags: u8,
    /// Result of the request.
    pub response: TaskManagementResult,
    /// Reserved.
    pub reserved: [u8; 1],
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// Reserved.
    pub reserved_lun: [u8; 8],
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// Reserved.
    pub reserved_tag: [u8; 4],
    /// Number of this status on this connection (§4.2.2.2).
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 12],
}

pdu!(TaskManagementResponse, Opcode::TASK_MANAGEMENT_RESPONSE, flags = FINAL);
