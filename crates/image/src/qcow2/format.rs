//! On-disk types of the specification, big-endian, with the constants that it fixes.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `magic`.
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// `cluster_bits`: 512 bytes at least; 2 MiB is the most that QEMU opens.
pub(super) const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// The least `cluster_bits` with extended L2 entries.
pub(super) const CLUSTER_BITS_EXTENDED: u32 = 14;
/// Bytes of an L1 table at most: QEMU's limit (`QCOW_MAX_L1_SIZE`).
pub(super) const L1_LEN_MAX: u64 = 32 << 20;
/// Bytes of a backing file's name at most.
pub(super) const BACKING_NAME_MAX: u32 = 1023;

/// Incompatible features.
pub(super) mod incompatible {
    /// Refcounts may be wrong.
    pub(crate) const DIRTY: u64 = 1 << 0;
    /// Any structure may be wrong.
    pub(crate) const CORRUPT: u64 = 1 << 1;
    /// The data are in another file.
    pub(crate) const EXTERNAL_DATA: u64 = 1 << 2;
    /// `compression_type` is not zlib.
    pub(crate) const COMPRESSION: u64 = 1 << 3;
    /// L2 entries have 16 bytes, and clusters 32 subclusters.
    pub(crate) const EXTENDED_L2: u64 = 1 << 4;
}

/// Header extensions.
pub(super) mod extension {
    /// The last one.
    pub(crate) const END: u32 = 0;
    /// The name of the backing file's format.
    pub(crate) const BACKING_FORMAT: u32 = 0xE279_2ACA;
}

/// The header of both versions.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: [u8; 4],
    pub(super) version: U32,
    pub(super) backing_file_offset: U64,
    pub(super) backing_file_size: U32,
    pub(super) cluster_bits: U32,
    pub(super) size: U64,
    pub(super) crypt_method: U32,
    pub(super) l1_size: U32,
    pub(super) l1_table_offset: U64,
    pub(super) refcount_table_offset: U64,
    pub(super) refcount_table_clusters: U32,
    pub(super) nb_snapshots: U32,
    pub(super) snapshots_offset: U64,
}

/// Fields that version 3 adds behind it.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HeaderV3 {
    pub(super) incompatible_features: U64,
    pub(super) compatible_features: U64,
    pub(super) autoclear_features: U64,
    pub(super) refcount_order: U32,
    pub(super) header_length: U32,
}

/// Bits 9 to 55 of L1 entries and of L2 entries without compression: an offset in the file.
pub(super) const OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;
/// Bit 62 of an L2 entry: a compressed cluster.
pub(super) const COMPRESSED: u64 = 1 << 62;
/// Bit 0 of an L2 entry: reads as zeroes. Of version 3, without extended entries.
pub(super) const ZERO: u64 = 1;
/// Subclusters of a cluster with extended L2 entries.
pub(super) const SUBCLUSTERS: u64 = 32;
/// Compressed clusters are counted in units of this many bytes.
pub(super) const COMPRESSED_SECTOR: u64 = 512;
