//! Text Request and Text Response.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Text in the full feature phase, such as SendTargets (RFC 7143 §11.10).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TextRequest {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// [`FINAL`] and [`Self::CONTINUE`].
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
    /// [`RESERVED_TAG`] to begin an exchange, else the target's tag of the last response.
    pub target_transfer_tag: U32,
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 16],
}

pdu!(TextRequest, Opcode::TEXT_REQUEST, target_transfer_tag = RESERVED_TAG);

impl TextRequest {
    /// The text goes on in the next PDU.
    pub const CONTINUE: u8 = 0x40;

    /// Returns `true` if the sender has no more to negotiate.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Returns `true` if the text continues in the next PDU.
    pub const fn continues(&self) -> bool {
        self.flags & Self::CONTINUE != 0
    }
}

/// The answer to a Text Request (RFC 7143 §11.11).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TextResponse {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// [`FINAL`] and [`Self::CONTINUE`].
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
    /// [`RESERVED_TAG`] to end the exchange, else the tag that goes on with it.
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

pdu!(TextResponse, Opcode::TEXT_RESPONSE, target_transfer_tag = RESERVED_TAG);

impl TextResponse {
    /// The text goes on in the next PDU.
    pub const CONTINUE: u8 = 0x40;

    /// Returns `true` if the sender has no more to negotiate.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Returns `true` if the text continues in the next PDU.
    pub const fn continues(&self) -> bool {
        self.flags & Self::CONTINUE != 0
    }
}
