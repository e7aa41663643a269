//! Fields that every header has in common.

use super::{FINAL, Header, OpcodeByte, padding};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A big-endian 24-bit number: the DataSegmentLength field.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct U24([u8; 3]);

impl U24 {
    /// The field for `value`, whose bits above 24 are lost: callers stay below [`super::MAX_DATA_SEGMENT_LEN`].
    pub const fn new(value: u32) -> Self {
        debug_assert!(value <= super::MAX_DATA_SEGMENT_LEN);
        let [_, a, b, c] = value.to_be_bytes();
        Self([a, b, c])
    }

    /// The value.
    pub const fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }

    /// Replaces the value.
    pub const fn set(&mut self, value: u32) {
        *self = Self::new(value);
    }
}

impl std::fmt::Debug for U24 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// The fields that stand at the same place in every PDU (RFC 7143 §11.2.1): enough to find where the PDU ends.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
// RFC 7143 [11-2]
pub struct BasicHeader {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// The final bit and seven bits that belong to the opcode.
    pub flags: u8,
    /// Two bytes that belong to the opcode.
    pub specific: [u8; 2],
    /// Length of all additional header segments in four-byte words, padding included.
    pub total_ahs_length: u8,
    /// Length of the data segment in bytes, padding excluded.
    pub data_segment_length: U24,
    /// The logical unit number, in the PDUs that have one.
    pub lun: U64,
    /// The initiator's name for the task; reserved in some target PDUs.
    pub initiator_task_tag: U32,
    /// The rest, which belongs to the opcode.
    pub rest: [u8; 28],
}

/// The fields that stand at the same place in every PDU of an initiator's (RFC 7143 §11.2.1, §4.2.2.1): how it is
/// numbered.
///
/// In PDUs without a CmdSN, such as Data-Out, `cmd_sn` is reserved.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// The final bit and seven bits that belong to the opcode.
    pub flags: u8,
    /// Bytes that belong to the opcode, and the lengths of the segments.
    pub specific: [u8; 6],
    /// The logical unit number, in the PDUs that have one.
    pub lun: U64,
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// Four bytes that belong to the opcode.
    pub transfer: [u8; 4],
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection (§4.2.2.2).
    pub exp_stat_sn: U32,
    /// The rest, which belongs to the opcode.
    pub rest: [u8; 16],
}

impl RequestHeader {
    /// Looks at a header that an initiator sent.
    pub fn of(header: &Header) -> &Self {
        zerocopy::transmute_ref!(header)
    }
}

impl BasicHeader {
    /// Looks at a header.
    pub fn of(header: &Header) -> &Self {
        zerocopy::transmute_ref!(header)
    }

    /// Returns `true` if the final bit is set.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Bytes of additional header segments: at most 1020.
    pub const fn ahs_len(&self) -> usize {
        self.total_ahs_length as usize * 4
    }

    /// Bytes of the data segment, padding excluded.
    pub const fn data_len(&self) -> usize {
        self.data_segment_length.get() as usize
    }

    /// Bytes of padding after the data segment.
    pub const fn data_padding(&self) -> usize {
        padding(self.data_len())
    }
}
