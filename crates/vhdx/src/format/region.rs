//! The region table (2.2.3).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Guid;

/// Header of a region table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionTableHeader {
    /// "regi".
    pub signature: [u8; 4],
    /// CRC-32C of the 64 KiB.
    pub checksum: U32,
    /// At most [`Self::ENTRIES_MAX`].
    pub entry_count: U32,
    /// 0.
    pub reserved: U32,
}

impl RegionTableHeader {
    /// "regi".
    pub const SIGNATURE: [u8; 4] = *b"regi";
    /// 2.2.3.1.
    pub const ENTRIES_MAX: u32 = 2047;
}

/// One region.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionEntry {
    /// Identifier of the region: [`region_id`] has the known ones.
    pub guid: Guid,
    /// A multiple of 1 MiB, at least 1 MiB.
    pub offset: U64,
    /// A multiple of 1 MiB.
    pub length: U32,
    /// 1: who does not know the region must not open the file.
    pub required: U32,
}

/// GUIDs of the known regions.
pub mod region_id {
    use super::Guid;

    /// The block allocation table.
    pub const BAT: Guid = Guid::from_digits(0x2DC27766_F623_4200_9D64_115E9BFD4A08);
    /// The metadata region.
    pub const METADATA: Guid = Guid::from_digits(0x8B7CA206_4790_4B9A_B8FE_575F050F886E);
}

const _: () = assert!(size_of::<RegionTableHeader>() == 16 && size_of::<RegionEntry>() == 32);
