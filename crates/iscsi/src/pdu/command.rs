//! SCSI Command and SCSI Response.

use super::{FINAL, Opcode, OpcodeByte, U24};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Task attribute: the order of a task among others (RFC 7143 §11.3.1; SAM-5 task attributes).
    pub struct TaskAttribute {
        /// No attribute given; treated as simple.
        UNTAGGED = 0, "untagged";
        /// In any order.
        SIMPLE = 1, "simple";
        /// After all older, before all younger tasks.
        ORDERED = 2, "ordered";
        /// Before all tasks that have not started.
        HEAD_OF_QUEUE = 3, "head of queue";
        /// Auto contingent allegiance.
        ACA = 4, "ACA";
    }
}

codes! {
    /// Service response: whether the target could execute the command at all (RFC 7143 §11.4.3).
    pub struct ServiceResponse {
        /// The command was executed; the SCSI status tells how it went.
        COMPLETED = 0x00, "command completed at target";
        /// The target failed; the SCSI status says nothing.
        TARGET_FAILURE = 0x01, "target failure";
    }
}

/// A SCSI command (RFC 7143 §11.3), with or without immediate data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiCommand {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// [`FINAL`], [`Self::READ`], [`Self::WRITE`] and the task attribute.
    pub flags: u8,
    /// Task priority in the low four bits (RFC 7144).
    pub priority: u8,
    /// Reserved.
    pub reserved: [u8; 1],
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// The logical unit.
    pub lun: U64,
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// Number of bytes that the initiator expects to move (§11.3.4).
    pub expected_data_transfer_length: U32,
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// The CDB, or its first 16 bytes.
    pub cdb: [u8; 16],
}

pdu!(ScsiCommand, Opcode::SCSI_COMMAND);

impl ScsiCommand {
    /// The command reads.
    pub const READ: u8 = 0x40;

    /// The command writes.
    pub const WRITE: u8 = 0x20;

    /// No unsolicited Data-Out PDUs follow.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Returns `true` if data is expected to come.
    pub const fn is_read(&self) -> bool {
        self.flags & Self::READ != 0
    }

    /// Returns `true` if data is to be sent.
    pub const fn is_write(&self) -> bool {
        self.flags & Self::WRITE != 0
    }

    /// The task attribute.
    pub const fn attribute(&self) -> TaskAttribute {
        TaskAttribute(self.flags & 0x07)
    }
}

/// The end of a command (RFC 7143 §11.4). Its data segment is a two-byte length and that much sense data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiResponse {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// [`FINAL`] and the residual flags.
    pub flags: u8,
    /// Service response: whether the target could execute the command.
    pub response: ServiceResponse,
    /// The SCSI status, meaningful if the response is [`ServiceResponse::COMPLETED`].
    pub status: u8,
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// Reserved.
    pub reserved: [u8; 8],
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// Copy of the tag of the last R-Data SNACK for the command (§11.4.4), or 0.
    pub snack_tag: U32,
    /// Number of this status on this connection (§4.2.2.2).
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Number of Data-In PDUs the target sent for the command (§11.4.8).
    pub exp_data_sn: U32,
    /// Residual of the read half of a bidirectional command.
    pub bidirectional_read_residual_count: U32,
    /// Residual (§11.4.5.1).
    pub residual_count: U32,
}

pdu!(ScsiResponse, Opcode::SCSI_RESPONSE, flags = FINAL);

impl ScsiResponse {
    /// The read half of a bidirectional command had more data than expected.
    pub const BIDIRECTIONAL_READ_OVERFLOW: u8 = 0x10;

    /// The read half of a bidirectional command had less data than expected.
    pub const BIDIRECTIONAL_READ_UNDERFLOW: u8 = 0x08;

    /// The command had more data than expected.
    pub const OVERFLOW: u8 = 0x04;

    /// The command had less data than expected.
    pub const UNDERFLOW: u8 = 0x02;

    /// Returns `true` if `residual_count` counts bytes that were not moved because too few were expected.
    pub const fn is_overflow(&self) -> bool {
        self.flags & Self::OVERFLOW != 0
    }

    /// Returns `true` if `residual_count` counts bytes that were expected and not moved.
    pub const fn is_underflow(&self) -> bool {
        self.flags & Self::UNDERFLOW != 0
    }
}
