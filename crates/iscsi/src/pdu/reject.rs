//! Reject.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Reason why a PDU was rejected (RFC 7143 §11.17.1).
    pub struct RejectReason {
        /// The data digest was wrong; the initiator may send the data again.
        DATA_DIGEST_ERROR = 0x02, "data digest error";
        /// The PDUs that a SNACK asked for are not there.
        SNACK_REJECT = 0x03, "SNACK reject";
        /// The PDU breaks the protocol.
        PROTOCOL_ERROR = 0x04, "protocol error";
        /// This target does not know the opcode.
        COMMAND_NOT_SUPPORTED = 0x05, "command not supported";
        /// Too many immediate commands at once.
        IMMEDIATE_COMMAND_REJECT = 0x06, "too many immediate commands";
        /// A task with this tag is running.
        TASK_IN_PROGRESS = 0x07, "task in progress";
        /// The DataACK acknowledges nothing.
        INVALID_DATA_ACK = 0x08, "invalid data acknowledgement";
        /// A field has a value it must not have.
        INVALID_PDU_FIELD = 0x09, "invalid PDU field";
        /// No resources for an exchange of several PDUs.
        LONG_OPERATION_REJECT = 0x0a, "long operation reject";
        /// The negotiation starts over; obsolete.
        // RFC 7143 [11.17.1-1]
        NEGOTIATION_RESET = 0x0b, "negotiation reset";
        /// The connection waits for its logout.
        WAITING_FOR_LOGOUT = 0x0c, "waiting for logout";
    }
}

/// The target refuses a PDU (RFC 7143 §11.17). The data segment holds that PDU's header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reject {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`].
    pub flags: u8,
    /// Reason.
    pub reason: RejectReason,
    /// Reserved.
    pub reserved: [u8; 1],
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// Reserved.
    pub reserved_lun: [u8; 8],
    /// Constant [`RESERVED_TAG`].
    pub initiator_task_tag: U32,
    /// Reserved.
    pub reserved_tag: [u8; 4],
    /// Number of this status on this connection (§4.2.2.2).
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Next R2T or data number, when a Data/R2T SNACK is refused.
    pub data_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 8],
}

pdu!(Reject, Opcode::REJECT, flags = FINAL, initiator_task_tag = RESERVED_TAG);
