//! Logout Request and Logout Response.

use super::{FINAL, Opcode, OpcodeByte, U24};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Reason of a logout: what is to be closed (RFC 7143 §11.14.1).
    pub struct LogoutReason {
        /// The session with all its connections.
        CLOSE_SESSION = 0, "close the session";
        /// One connection.
        CLOSE_CONNECTION = 1, "close the connection";
        /// One connection whose tasks are to be recovered on another.
        RECOVERY = 2, "remove the connection for recovery";
    }
}

codes! {
    /// Result of a logout (RFC 7143 §11.15.1).
    pub struct LogoutResult {
        /// Closed.
        CLOSED = 0, "closed successfully";
        /// No such connection.
        CID_NOT_FOUND = 1, "CID not found";
        /// No recovery of connections here.
        RECOVERY_NOT_SUPPORTED = 2, "connection recovery is not supported";
        /// Closing failed.
        CLEANUP_FAILED = 3, "cleanup failed";
    }
}

/// Asks to close a session or a connection (RFC 7143 §11.14).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogoutRequest {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`], and the reason in the low seven bits.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// Reserved.
    pub reserved_lun: [u8; 8],
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// The connection that is meant, if the reason names one.
    pub cid: U16,
    /// Reserved.
    pub reserved_cid: [u8; 2],
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 16],
}

pdu!(LogoutRequest, Opcode::LOGOUT_REQUEST, flags = FINAL);

impl LogoutRequest {
    /// Reason of the logout: what is to be closed.
    pub const fn reason(&self) -> LogoutReason {
        LogoutReason(self.flags & 0x7f)
    }

    /// Says what is to be closed.
    pub const fn set_reason(&mut self, reason: LogoutReason) {
        self.flags = FINAL | reason.0 & 0x7f;
    }
}

/// The answer to a logout (RFC 7143 §11.15).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogoutResponse {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`].
    pub flags: u8,
    /// Result of the logout.
    pub response: LogoutResult,
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
    pub reserved_data_sn: [u8; 4],
    /// Seconds to wait before reconnecting.
    pub time2wait: U16,
    /// Seconds after that in which tasks are kept.
    pub time2retain: U16,
    /// Reserved.
    pub reserved_tail: [u8; 4],
}

pdu!(LogoutResponse, Opcode::LOGOUT_RESPONSE, flags = FINAL);
