//! Log entries (2.3.1).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Guid;

/// Header of a log entry.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogEntryHeader {
    /// "loge".
    pub signature: [u8; 4],
    /// CRC-32C of the whole entry.
    pub checksum: U32,
    /// Bytes of the entry: a multiple of 4 KiB.
    pub entry_length: U32,
    /// Offset in the log at which the sequence begins that ends with this entry.
    pub tail: U32,
    /// Sequence number: one more than that of the entry before; not 0.
    pub sequence: U64,
    /// Number of descriptors that follow; may be 0.
    pub descriptor_count: U32,
    /// 0.
    pub reserved: U32,
    /// The header's LogGuid when the entry was written.
    pub log: Guid,
    /// A size of the file that was stable before the entry was written: a smaller file is truncated.
    pub flushed_file_offset: U64,
    /// A size of the file that holds all structures.
    pub last_file_offset: U64,
}

impl LogEntryHeader {
    /// "loge".
    pub const SIGNATURE: [u8; 4] = *b"loge";
    /// Descriptors beside the header in the first 4 KiB; 128 in each further one.
    pub const DESCRIPTORS_FIRST: usize = 126;

    /// Returns the number of 4 KiB sectors that hold the header and `descriptors` descriptors.
    pub fn descriptor_sectors(descriptors: usize) -> usize {
        (size_of::<Self>() + descriptors * size_of::<DataDescriptor>()).div_ceil(super::PAGE)
    }
}

/// A 4 KiB sector to write; its bytes 8–4091 follow in a data sector.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataDescriptor {
    /// "desc".
    pub signature: [u8; 4],
    /// Bytes 4092–4095 of the sector.
    pub trailing: [u8; 4],
    /// Bytes 0–7 of the sector.
    pub leading: [u8; 8],
    /// File offset of the sector.
    pub file_offset: U64,
    /// The entry's.
    pub sequence: U64,
}

impl DataDescriptor {
    /// "desc".
    pub const SIGNATURE: [u8; 4] = *b"desc";
    /// "data": what a data sector begins with; the high half of the sequence number follows, the low half ends it.
    pub const SECTOR_SIGNATURE: [u8; 4] = *b"data";
}

/// A range to fill with zeroes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZeroDescriptor {
    /// "zero".
    pub signature: [u8; 4],
    /// 0.
    pub reserved: U32,
    /// A multiple of 4 KiB.
    pub length: U64,
    /// A multiple of 4 KiB.
    pub file_offset: U64,
    /// The entry's.
    pub sequence: U64,
}

impl ZeroDescriptor {
    /// "zero".
    pub const SIGNATURE: [u8; 4] = *b"zero";
}

const _: () = assert!(size_of::<LogEntryHeader>() == 64);
const _: () = assert!(size_of::<DataDescriptor>() == 32 && size_of::<ZeroDescriptor>() == 32);
