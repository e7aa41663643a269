//! NOP-Out and NOP-In.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A ping from the initiator, or its answer to one (RFC 7143 §11.18).
///
/// A ping has a valid initiator task tag and [`RESERVED_TAG`] as target transfer tag; an answer has the tag of the
/// NOP-In it answers; with both tags reserved it only carries `exp_stat_sn`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NopOut {
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
    /// The target's name for the transfer or the exchange.
    pub target_transfer_tag: U32,
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 16],
}

pdu!(
    NopOut,
    Opcode::NOP_OUT,
    flags = FINAL,
    initiator_task_tag = RESERVED_TAG,
    target_transfer_tag = RESERVED_TAG
);

/// A ping from the target, or its answer to one (RFC 7143 §11.19).
///
/// With `initiator_task_tag` reserved it answers nothing, and is a ping if `target_transfer_tag` is not reserved.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NopIn {
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
    /// The target's name for the transfer or the exchange.
    pub target_transfer_tag: U32,
    /// Number of this status on this connection (§4.2.2.2).
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 12],
}

pdu!(
    NopIn,
    Opcode::NOP_IN,
    flags = FINAL,
    initiator_task_tag = RESERVED_TAG,
    target_transfer_tag = RESERVED_TAG
);
