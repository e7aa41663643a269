//! Asynchronous Message.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Event that the target reports unasked (RFC 7143 §11.9.1).
    pub struct AsyncEvent {
        /// A SCSI event; the data segment holds sense data.
        SCSI = 0, "SCSI asynchronous event";
        /// The initiator is to log out within `parameter3` seconds.
        LOGOUT_REQUEST = 1, "target requests logout";
        /// The connection named by `parameter1` will be dropped.
        CONNECTION_DROP = 2, "target will drop the connection";
        /// All connections of the session will be dropped.
        SESSION_DROP = 3, "target will drop all connections of the session";
        /// The initiator is to start a negotiation within `parameter3` seconds.
        NEGOTIATION_REQUEST = 4, "target requests parameter negotiation";
        /// The tasks of the logical unit are being ended.
        TASKS_TERMINATED = 5, "tasks of the logical unit are being terminated";
        /// Vendor-specific event.
        VENDOR = 255, "vendor specific";
    }
}

/// A message from the target that answers nothing (RFC 7143 §11.9).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AsyncMessage {
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
    /// Event reported.
    pub event: AsyncEvent,
    /// The vendor's code for a vendor event.
    pub vendor_code: u8,
    /// The connection (CID) in events 1 and 2.
    pub parameter1: U16,
    /// Time2Wait in events 2 and 3, seconds.
    pub parameter2: U16,
    /// Time2Retain in events 2 and 3, deadline in 1 and 4, seconds.
    pub parameter3: U16,
    /// Reserved.
    pub reserved_tail: [u8; 4],
}

pdu!(AsyncMessage, Opcode::ASYNC_MESSAGE, flags = FINAL, initiator_task_tag = RESERVED_TAG);
