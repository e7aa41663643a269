//! On-disk types of MS-VHDX, little-endian and unaligned, with the constants that the standard fixes. No logic beyond
//! checksums.

mod bat;
mod guid;
mod header;
mod log;
mod metadata;
mod region;

pub use bat::{BatEntry, BlockState};
pub use guid::{Guid, GuidSource};
pub use header::Header;
pub use log::{DataDescriptor, LogEntryHeader, ZeroDescriptor};
pub use metadata::{FileParameters, LocatorEntry, LocatorHeader, MetadataEntry, MetadataTableHeader, item};
pub use region::{RegionEntry, RegionTableHeader, region_id};

/// One mebibyte: the alignment and unit of every structure in a file (2.1).
pub const MIB: u64 = 1 << 20;
/// The unit of the log and of every metadata update (2.3.1), bytes.
pub const PAGE: usize = 4096;
/// [`PAGE`] as an offset.
pub const PAGE_U64: u64 = PAGE as u64;

/// "vhdxfile" (2.2.1).
pub const FILE_SIGNATURE: [u8; 8] = *b"vhdxfile";
/// Offset and length of the UTF-16 creator string (2.2.1).
pub const CREATOR: std::ops::Range<usize> = 8..520;
/// The two headers (2.2).
pub const HEADER_OFFSETS: [u64; 2] = [64 << 10, 128 << 10];
/// The two copies of the region table (2.2.3).
pub const REGION_TABLE_OFFSETS: [u64; 2] = [192 << 10, 256 << 10];
/// Length of one region table and of the metadata table, bytes (2.2.3, 2.6.1).
pub const TABLE_LEN: usize = 64 << 10;
/// The header section: structures begin behind it (2.2).
pub const HEADER_SECTION: u64 = MIB;

/// The largest virtual disk (2.6.2.2), bytes.
pub const DISK_SIZE_MAX: u64 = 64 << 40;
/// The smallest and the largest payload block (2.6.2.1), bytes.
pub const BLOCK_SIZE_RANGE: std::ops::RangeInclusive<u32> = (1 << 20)..=(256 << 20);
/// Sectors that one sector bitmap block describes (2.4).
pub const CHUNK_SECTORS: u64 = 1 << 23;
/// The largest file that this code reads: twice the largest disk, which no honest writer exceeds. It bounds the
/// free-space map (two bits for each mebibyte: 32 MiB).
pub const FILE_SIZE_MAX: u64 = 2 * DISK_SIZE_MAX;

/// The CRC-32C of `bytes` with the four bytes at `field` taken as zero, as every checksum of the format is computed
/// (2).
pub fn checksum(bytes: &[u8], field: usize) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..field]), &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[field + 4..])
}
