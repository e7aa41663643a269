//! SCSI Data-Out, SCSI Data-In and Ready To Transfer.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Data to the target (RFC 7143 §11.7): unsolicited, or the answer to an R2T.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataOut {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// [`FINAL`] on the last PDU of a sequence.
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
    /// The R2T's tag, or [`RESERVED_TAG`] if unsolicited.
    pub target_transfer_tag: U32,
    /// Reserved.
    pub reserved_sn: [u8; 4],
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// Reserved.
    pub reserved_window: [u8; 4],
    /// Number within the sequence, from 0.
    pub data_sn: U32,
    /// Offset of the data in the transfer, bytes.
    pub buffer_offset: U32,
    /// Reserved.
    pub reserved_tail: [u8; 4],
}

pdu!(DataOut, Opcode::DATA_OUT, target_transfer_tag = RESERVED_TAG);

impl DataOut {
    /// Returns `true` if this ends the sequence.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }
}

/// Data to the initiator (RFC 7143 §11.7), with the command's status in the last PDU if it went well (phase collapse).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataIn {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// [`FINAL`], [`Self::ACKNOWLEDGE`], the residual flags and [`Self::STATUS`].
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 1],
    /// The SCSI status if [`Self::STATUS`] is set.
    pub status: u8,
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// The logical unit.
    pub lun: U64,
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// Tag for acknowledging this data, or [`RESERVED_TAG`].
    pub target_transfer_tag: U32,
    /// Number of the status, if there is one.
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Number among the command's Data-In and R2T PDUs, from 0.
    pub data_sn: U32,
    /// Offset of the data in the transfer, bytes.
    pub buffer_offset: U32,
    /// Residual, if a status and a residual flag are set.
    pub residual_count: U32,
}

pdu!(DataIn, Opcode::DATA_IN, target_transfer_tag = RESERVED_TAG);

impl DataIn {
    /// The target wants this data acknowledged (error recovery level 1 and up).
    pub const ACKNOWLEDGE: u8 = 0x40;

    /// The command had more data than expected.
    pub const OVERFLOW: u8 = 0x04;

    /// The command had less data than expected.
    pub const UNDERFLOW: u8 = 0x02;

    /// This PDU carries the status and ends the command.
    pub const STATUS: u8 = 0x01;

    /// Returns `true` if this ends the sequence.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Returns `true` if this carries the status and ends the command.
    pub const fn has_status(&self) -> bool {
        self.flags & Self::STATUS != 0
    }

    /// Returns `true` if `residual_count` counts bytes that were not moved because too few were expected.
    pub const fn is_overflow(&self) -> bool {
        self.flags & Self::OVERFLOW != 0
    }

    /// Returns `true` if `residual_count` counts bytes that were expected and not moved.
    pub const fn is_underflow(&self) -> bool {
        self.flags & Self::UNDERFLOW != 0
    }

    /// Returns `true` if the target wants the data acknowledged.
    pub const fn wants_acknowledgement(&self) -> bool {
        self.flags & Self::ACKNOWLEDGE != 0
    }
}

/// The target asks for a piece of a command's data (RFC 7143 §11.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct R2t {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`].
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
    /// The target's name for this transfer; every Data-Out of the answer carries it.
    pub target_transfer_tag: U32,
    /// The next status number; not advanced by an R2T.
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Number among the command's R2T and Data-In PDUs, from 0.
    pub r2t_sn: U32,
    /// Start of the wanted piece, bytes.
    pub buffer_offset: U32,
    /// Length of the wanted piece, bytes; never 0.
    pub desired_data_transfer_length: U32,
}

pdu!(R2t, Opcode::R2T, flags = FINAL);
