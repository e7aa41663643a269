//! Limits of one command, as VPD page B0h tells them.

/// MAXIMUM UNMAP LBA COUNT: bounds the work of one command.
pub(crate) const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// MAXIMUM WRITE SAME LENGTH, blocks: what WRITE SAME (10) can say. Bounds what one command writes where the block is
/// not zero: 32 MiB, or 256 MiB on a disk of 4 KiB sectors.
pub(crate) const WRITE_SAME_BLOCKS_MAX: u64 = 65_535;
/// Most blocks of one COMPARE AND WRITE: what its one-byte field can say.
pub(crate) const COMPARE_AND_WRITE_MAX: u8 = 255;
