//! SNACK Request.

use super::{FINAL, Opcode, OpcodeByte, RESERVED_TAG, U24};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Type of a SNACK: what is asked for again, or acknowledged (RFC 7143 §11.16.1).
    pub struct SnackType {
        /// Data-In or R2T PDUs.
        DATA_OR_R2T = 0, "Data/R2T SNACK";
        /// Responses.
        STATUS = 1, "Status SNACK";
        /// Data-In PDUs are acknowledged.
        DATA_ACK = 2, "DataACK";
        /// Data-In PDUs, which may be cut anew.
        R_DATA = 3, "R-Data SNACK";
    }
}

/// Asks for lost PDUs again (RFC 7143 §11.16); only from error recovery level 1 up.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Snack {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Constant [`FINAL`], and the type in the low four bits.
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
    /// Target transfer tag of a DataACK, SNACK tag of an R-Data SNACK.
    pub tag: U32,
    /// Reserved.
    pub reserved_sn: [u8; 4],
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// Reserved.
    pub reserved_window: [u8; 8],
    /// First number missing, or first not acknowledged.
    pub beg_run: U32,
    /// Number of missing ones; 0 means all that follow.
    pub run_length: U32,
}

pdu!(Snack, Opcode::SNACK, flags = FINAL, tag = RESERVED_TAG);

impl Snack {
    /// Type of the SNACK: what is asked for.
    pub const fn snack_type(&self) -> SnackType {
        SnackType(self.flags & 0x0f)
    }
}
