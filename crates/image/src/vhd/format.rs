//! On-disk types of the specification, big-endian, with the constants that it fixes.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The unit of addresses and sizes ("sector length is always 512 bytes").
pub const SECTOR: u64 = 512;
/// `Cookie` of the footer.
pub const FOOTER_COOKIE: [u8; 8] = *b"conectix";
/// `Cookie` of the dynamic disk header.
pub const HEADER_COOKIE: [u8; 8] = *b"cxsparse";
/// Version 1.0 of both.
pub const VERSION: u32 = 0x0001_0000;
/// `Features`: the bit that is always set.
pub const FEATURES: u32 = 2;
/// `Data Offset` where nothing follows.
pub const NOTHING: u64 = u64::MAX;
/// An entry of the block allocation table without a block.
pub const UNUSED: u32 = u32::MAX;
/// `Creator Application` of what is written here: Windows. The field decides for others where a disk ends: QEMU and Xen
/// take the size from the geometry, which cannot say most sizes, but for a list of programs that write the right one
/// ("win ", "qem2", "d2v ", "tap", "CTXS"). A name of our own would cut disks there.
pub const CREATOR: [u8; 4] = *b"win ";
/// `Creator Version`: Windows 10.0.
pub const CREATOR_VERSION: u32 = 0x000A_0000;
/// `Creator Host OS`: Windows.
pub const CREATOR_HOST: [u8; 4] = *b"Wi2k";
/// Block size where nothing is said (Dynamic Disk Header Format), bytes.
pub const BLOCK_SIZE: u32 = 2 << 20;
/// The largest disk: Windows makes and opens no larger one, dynamic or fixed (MSDN, `CreateVirtualDisk`), bytes.
pub const DISK_SIZE_MAX: u64 = 2040 << 30;
/// 2000-01-01 00:00 UTC, from which `Time Stamp` counts, in seconds since 1970.
pub const EPOCH: u64 = 946_684_800;
/// Platform codes of parent locators: a relative and an absolute Windows path, in UTF-16LE.
pub const PLATFORM_RELATIVE: [u8; 4] = *b"W2ru";
/// See [`PLATFORM_RELATIVE`].
pub const PLATFORM_ABSOLUTE: [u8; 4] = *b"W2ku";

/// `Disk Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct DiskType(pub U32);

impl DiskType {
    /// All blocks in order, then the footer.
    pub const FIXED: Self = Self(U32::from_bytes([0, 0, 0, 2]));
    /// Blocks through a table.
    pub const DYNAMIC: Self = Self(U32::from_bytes([0, 0, 0, 3]));
    /// The same on a parent.
    pub const DIFFERENCING: Self = Self(U32::from_bytes([0, 0, 0, 4]));
}

/// The footer: the last 512 bytes of a file, and the first of one that is not fixed (Hard Disk Footer Format).
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Footer {
    /// [`FOOTER_COOKIE`].
    pub cookie: [u8; 8],
    /// [`FEATURES`].
    pub features: U32,
    /// [`VERSION`].
    pub version: U32,
    /// Offset of the dynamic disk header; [`NOTHING`] for a fixed disk.
    pub data_offset: U64,
    /// Seconds since [`EPOCH`].
    pub time_stamp: U32,
    /// See [`CREATOR`].
    pub creator: [u8; 4],
    /// Its version.
    pub creator_version: U32,
    /// Host operating system of the creator.
    pub creator_host: [u8; 4],
    /// Bytes of the disk when it was made.
    pub original_size: U64,
    /// Bytes of the disk.
    pub current_size: U64,
    /// Cylinders, heads, sectors per track.
    pub geometry: Geometry,
    /// Type of the disk.
    pub disk_type: DiskType,
    /// See [`checksum`].
    pub checksum: U32,
    /// Identity of the disk, to which children refer.
    pub unique_id: [u8; 16],
    /// 1: of a machine that is suspended.
    pub saved_state: u8,
    /// Zeroes.
    pub reserved: [u8; 427],
}

/// Offset of [`Footer::checksum`].
pub const FOOTER_CHECKSUM: usize = 64;

/// `Disk Geometry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Geometry {
    /// Cylinders.
    pub cylinders: U16,
    /// Heads.
    pub heads: u8,
    /// Sectors per track.
    pub sectors: u8,
}

/// The header of a disk with a table (Dynamic Disk Header Format).
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`HEADER_COOKIE`].
    pub cookie: [u8; 8],
    /// [`NOTHING`].
    pub data_offset: U64,
    /// Offset of the block allocation table.
    pub table_offset: U64,
    /// [`VERSION`].
    pub version: U32,
    /// Entries of the table.
    pub max_table_entries: U32,
    /// Bytes of a block, without its bitmap.
    pub block_size: U32,
    /// See [`checksum`].
    pub checksum: U32,
    /// The parent's [`Footer::unique_id`].
    pub parent_id: [u8; 16],
    /// The parent's time of modification.
    pub parent_time_stamp: U32,
    /// Zeroes.
    pub reserved: U32,
    /// The parent's file name, in UTF-16BE.
    pub parent_name: [u8; 512],
    /// Possible locations of the parent.
    pub locators: [LocatorEntry; 8],
    /// Zeroes.
    pub reserved2: [u8; 256],
}

/// Offset of [`Header::checksum`].
pub const HEADER_CHECKSUM: usize = 36;

/// A parent locator.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LocatorEntry {
    /// Platform code of its path; zero: none.
    pub platform: [u8; 4],
    /// Space for it, sectors (of some writers: bytes). Not used.
    pub data_space: U32,
    /// Its length, bytes.
    pub data_length: U32,
    /// Zero.
    pub reserved: U32,
    /// Offset in the file.
    pub data_offset: U64,
}

/// The ones' complement of the sum of all bytes but those of the field at `field`.
pub fn checksum(bytes: &[u8], field: usize) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add((*byte).into()));
    !sum(&bytes[..field]).wrapping_add(sum(&bytes[field + 4..]))
}

/// Bytes of the bitmap before a block: a bit for each sector, in whole sectors (Block Allocation Table and Data
/// Blocks).
pub fn bitmap_len(block_size: u32) -> u64 {
    (u64::from(block_size) / SECTOR).div_ceil(8).next_multiple_of(SECTOR)
}

impl Geometry {
    /// The geometry of a disk of `size` bytes (Appendix: CHS Calculation).
    pub fn of(size: u64) -> Self {
        let total = (size / SECTOR).min(65_535 * 16 * 255);
        let (sectors, heads, cylinders_times_heads) = if total >= 65_535 * 16 * 63 {
            (255, 16, total / 255)
        } else {
            let tracks = total / 17;
            let heads = tracks.div_ceil(1024).max(4);
            if tracks < heads * 1024 && heads <= 16 {
                (17, heads, tracks)
            } else if total / 31 < 16 * 1024 {
                (31, 16, total / 31)
            } else {
                (63, 16, total / 63)
            }
        };
        // In range by the limits above.
        Self {
            cylinders: ((cylinders_times_heads / heads) as u16).into(),
            heads: heads as u8,
            sectors: sectors as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_of_the_specification() {
        assert_eq!((size_of::<Footer>(), size_of::<Header>(), size_of::<LocatorEntry>()), (512, 1024, 24));
        assert_eq!(std::mem::offset_of!(Footer, checksum), FOOTER_CHECKSUM);
        assert_eq!(std::mem::offset_of!(Header, checksum), HEADER_CHECKSUM);
        assert_eq!(std::mem::offset_of!(Header, locators), 576);
        assert_eq!((bitmap_len(2 << 20), bitmap_len(512 << 10), bitmap_len(256 << 20)), (512, 512, 64 << 10));
    }

    #[test]
    fn geometries_are_those_of_the_appendix() {
        let of = |size: u64| {
            let Geometry { cylinders, heads, sectors } = Geometry::of(size);
            (cylinders.get(), heads, sectors)
        };
        // Computed by hand from the appendix: 4 heads at least; 31 and 63 sectors above; all that the fields can say.
        assert_eq!(of(1 << 20), (30, 4, 17));
        assert_eq!(of(100 << 20), (1003, 12, 17));
        assert_eq!(of(200 << 20), (825, 16, 31));
        assert_eq!(of(1 << 30), (2080, 16, 63));
        assert_eq!(of(40 << 30), (20_560, 16, 255));
        assert_eq!(of(2040 << 30), (65_535, 16, 255));
    }
}
