//! The header (2.2.2).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Guid, checksum};

/// One of the two headers, 4 KiB.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// "head".
    pub signature: [u8; 4],
    /// CRC-32C of the 4 KiB.
    pub checksum: U32,
    /// The valid header with the greater number is current.
    pub sequence: U64,
    /// Changed once in each writable open, before the first change of the file.
    pub file_write: Guid,
    /// Changed once in each writable open, before the first change that a read of the disk can see.
    pub data_write: Guid,
    /// Zero: the log is empty. Otherwise entries with this GUID count.
    pub log: Guid,
    /// 0.
    pub log_version: U16,
    /// 1.
    pub version: U16,
    /// A multiple of 1 MiB.
    pub log_length: U32,
    /// A multiple of 1 MiB.
    pub log_offset: U64,
    /// 0.
    pub reserved: [u8; 4016],
}

impl Header {
    /// "head".
    pub const SIGNATURE: [u8; 4] = *b"head";

    /// Returns `true` if signature and checksum are right.
    pub fn is_valid(&self) -> bool {
        self.signature == Self::SIGNATURE && self.checksum.get() == checksum(self.as_bytes(), 4)
    }

    /// Sets the checksum.
    pub fn seal(&mut self) {
        self.checksum = checksum(self.as_bytes(), 4).into();
    }
}

const _: () = assert!(size_of::<Header>() == super::PAGE);
