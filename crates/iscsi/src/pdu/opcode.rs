//! Opcode of a PDU: the kind of PDU that a header begins.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// The six-bit opcode of a PDU (RFC 7143 §11.2.1.2). Initiators send 0x00–0x1f, targets 0x20–0x3f.
    pub struct Opcode {
        /// NOP-Out, §11.18.
        NOP_OUT = 0x00, "NOP-Out";
        /// SCSI Command, §11.3.
        SCSI_COMMAND = 0x01, "SCSI Command";
        /// Task Management Function Request, §11.5.
        TASK_MANAGEMENT_REQUEST = 0x02, "Task Management Function Request";
        /// Login Request, §11.12.
        LOGIN_REQUEST = 0x03, "Login Request";
        /// Text Request, §11.10.
        TEXT_REQUEST = 0x04, "Text Request";
        /// SCSI Data-Out, §11.7.
        DATA_OUT = 0x05, "SCSI Data-Out";
        /// Logout Request, §11.14.
        LOGOUT_REQUEST = 0x06, "Logout Request";
        /// SNACK Request, §11.16.
        SNACK = 0x10, "SNACK Request";
        /// NOP-In, §11.19.
        NOP_IN = 0x20, "NOP-In";
        /// SCSI Response, §11.4.
        SCSI_RESPONSE = 0x21, "SCSI Response";
        /// Task Management Function Response, §11.6.
        TASK_MANAGEMENT_RESPONSE = 0x22, "Task Management Function Response";
        /// Login Response, §11.13.
        LOGIN_RESPONSE = 0x23, "Login Response";
        /// Text Response, §11.11.
        TEXT_RESPONSE = 0x24, "Text Response";
        /// SCSI Data-In, §11.7.
        DATA_IN = 0x25, "SCSI Data-In";
        /// Logout Response, §11.15.
        LOGOUT_RESPONSE = 0x26, "Logout Response";
        /// Ready To Transfer, §11.8.
        R2T = 0x31, "Ready To Transfer";
        /// Asynchronous Message, §11.9.
        ASYNC_MESSAGE = 0x32, "Asynchronous Message";
        /// Reject, §11.17.
        REJECT = 0x3f, "Reject";
    }
}

impl Opcode {
    /// Returns `true` if initiators send this opcode, known or not.
    // RFC 7143 [11.2.1.2-1]
    pub const fn is_from_initiator(self) -> bool {
        self.0 & 0x20 == 0
    }
}

/// Byte 0 of a header: the opcode, and the bit that asks for immediate delivery (RFC 7143 §11.2.1.1).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct OpcodeByte(pub u8);

impl OpcodeByte {
    /// The immediate bit: the request is delivered at once and takes no place in the command order (§4.2.2.1).
    pub const IMMEDIATE: u8 = 0x40;

    /// The byte for an opcode; a Login Request is always immediate (§11.12).
    pub const fn new(opcode: Opcode) -> Self {
        if opcode.0 == Opcode::LOGIN_REQUEST.0 { Self(opcode.0 | Self::IMMEDIATE) } else { Self(opcode.0) }
    }

    /// The opcode.
    pub const fn opcode(self) -> Opcode {
        Opcode(self.0 & 0x3f)
    }

    /// Returns `true` if the request asks for immediate delivery.
    pub const fn is_immediate(self) -> bool {
        self.0 & Self::IMMEDIATE != 0
    }

    /// Asks for immediate delivery, or not.
    pub const fn set_immediate(&mut self, immediate: bool) {
        if immediate {
            self.0 |= Self::IMMEDIATE;
        } else {
            self.0 &= !Self::IMMEDIATE;
        }
    }
}
