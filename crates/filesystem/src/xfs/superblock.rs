//! The superblock: geometry, features.

use std::ops::Range;

use super::REPAIR;
use crate::fields::{be16, be32, be64, label, le32, uuid};
use crate::source::{ByteSource, Unreadable};
use crate::volume::Doubt;

/// Bytes of the superblock that are looked at; its sector is never shorter.
const LEN: usize = 512;
const MAGIC: &[u8] = b"XFSB";

/// Offsets of fields (struct xfs_dsb).
mod field {
    pub(super) const BLOCK_SIZE: usize = 4;
    pub(super) const BLOCKS: usize = 8;
    pub(super) const REALTIME_EXTENTS: usize = 24;
    pub(super) const UUID: usize = 32;
    pub(super) const LOG_START: usize = 48;
    pub(super) const GROUP_BLOCKS: usize = 84;
    pub(super) const GROUPS: usize = 88;
    pub(super) const LOG_BLOCKS: usize = 96;
    pub(super) const VERSION: usize = 100;
    pub(super) const SECTOR_SIZE: usize = 102;
    pub(super) const LABEL: usize = 108;
    pub(super) const BLOCK_LOG: usize = 120;
    pub(super) const SECTOR_LOG: usize = 121;
    pub(super) const GROUP_BLOCKS_LOG: usize = 124;
    pub(super) const IN_PROGRESS: usize = 126;
    pub(super) const FREE_BLOCKS: usize = 144;
    pub(super) const FEATURES2: usize = 200;
    pub(super) const RO_COMPAT: usize = 212;
    pub(super) const INCOMPAT: usize = 216;
    pub(super) const LOG_INCOMPAT: usize = 220;
    pub(super) const CRC: usize = 224;
    pub(super) const META_UUID: usize = 248;
}

/// `sb_features2` of version 4: LAZYSBCOUNT 2, ATTR2 8, PARENT 10, PROJID32 80, CRC 100, FTYPE 200.
const FEATURES2: u32 = 0x39A;
/// FINOBT 1, RMAPBT 2, REFLINK 4, INOBTCNT 8.
const RO_COMPAT: u32 = 0xF;
/// FTYPE 0, SPINODES 1, META_UUID 2, BIGTIME 3, NREXT64 5, EXCHRANGE 6, PARENT 7: they change files, not the map.
const INCOMPAT: u32 = 0xEF;
const META_UUID: u32 = 4;
const NEEDS_REPAIR: u32 = 0x10;

/// A superblock whose fields have possible values.
pub(super) struct Superblock {
    bytes: [u8; LEN],
    /// Bytes in a block.
    pub(super) block: u64,
    /// Bytes in a sector, as the file system counts them.
    pub(super) sector: u64,
    blocks: u64,
    /// Blocks in a group; the last may have fewer.
    pub(super) group_blocks: u64,
    /// Number of groups.
    pub(super) groups: u32,
    /// Version 5: everything has checksums.
    pub(super) checked: bool,
}

impl Superblock {
    pub(super) fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
        Ok(source.has(0, LEN as u64) && Self::parse(source.array(0)?).is_some())
    }

    pub(super) fn read(source: &dyn ByteSource) -> Result<Self, Doubt> {
        let found = Self::parse(source.array(0)?)
            .ok_or_else(|| Doubt::new("the superblock is not one of XFS").helped_by(REPAIR))?;
        if found.checked {
            checked_sector(source, 0, found.sector, field::CRC)
                .map_err(|doubt| Doubt { reason: format!("the superblock: {}", doubt.reason), ..doubt })?;
        }
        Ok(found)
    }

    fn parse(bytes: [u8; LEN]) -> Option<Self> {
        let version = be16(&bytes, field::VERSION) & 0xF;
        let (block, sector) = (be32(&bytes, field::BLOCK_SIZE), be16(&bytes, field::SECTOR_SIZE));
        let found = Self {
            bytes,
            block: block.into(),
            sector: sector.into(),
            blocks: be64(&bytes, field::BLOCKS),
            group_blocks: be32(&bytes, field::GROUP_BLOCKS).into(),
            groups: be32(&bytes, field::GROUPS),
            checked: version == 5,
        };
        let log2 =
            |value: u64, at: usize| value.is_power_of_two() && value.trailing_zeros() == bytes[at].into();
        let plausible = bytes.starts_with(MAGIC)
            && (4..=5).contains(&version)
            && (512..=65536).contains(&block)
            && (512..=32768).contains(&sector)
            && u32::from(sector) <= block
            && log2(found.block, field::BLOCK_LOG)
            && log2(found.sector, field::SECTOR_LOG)
            // A group has at least 16 MiB, or is the whole of a tiny volume.
            && found.group_blocks >= 64
            && bytes[field::GROUP_BLOCKS_LOG] < 32
            && found.group_blocks <= 1 << bytes[field::GROUP_BLOCKS_LOG]
            && found.blocks.div_ceil(found.group_blocks) == found.groups.into()
            && found.blocks.checked_mul(found.block).is_some_and(|size| size < 1 << 60);
        plausible.then_some(found)
    }

    pub(super) fn label(&self) -> Option<String> {
        label(&self.bytes[field::LABEL..field::LABEL + 12])
    }

    pub(super) fn uuid(&self) -> Option<String> {
        uuid(&self.bytes[field::UUID..])
    }

    pub(super) fn size(&self) -> u64 {
        self.blocks * self.block
    }

    /// Free blocks, with those of the free lists and of the trees of free extents.
    pub(super) fn free_blocks(&self) -> u64 {
        be64(&self.bytes, field::FREE_BLOCKS)
    }

    /// Number of blocks in a group.
    pub(super) fn blocks_of(&self, group: u32) -> u64 {
        let start = u64::from(group) * self.group_blocks;
        self.group_blocks.min(self.blocks.saturating_sub(start))
    }

    /// The byte at which a group begins.
    pub(super) fn start_of(&self, group: u32) -> u64 {
        u64::from(group) * self.group_blocks * self.block
    }

    /// The bytes of the log.
    pub(super) fn log(&self) -> Range<u64> {
        let start = be64(&self.bytes, field::LOG_START);
        let shift = self.bytes[field::GROUP_BLOCKS_LOG];
        let group = u32::try_from(start >> shift).unwrap_or(u32::MAX);
        let at = self.start_of(group).saturating_add((start & ((1 << shift) - 1)) * self.block);
        at..at.saturating_add(u64::from(be32(&self.bytes, field::LOG_BLOCKS)) * self.block)
    }

    /// The UUIDs that structures may bear: the one that was given at birth, and the one that the user has given since.
    pub(super) fn is_own(&self, uuid: &[u8]) -> bool {
        uuid == self.meta_uuid() || uuid == &self.bytes[field::UUID..field::UUID + 16]
    }

    fn meta_uuid(&self) -> &[u8] {
        let at = if self.incompat() & META_UUID != 0 { field::META_UUID } else { field::UUID };
        &self.bytes[at..at + 16]
    }

    fn incompat(&self) -> u32 {
        if self.checked { be32(&self.bytes, field::INCOMPAT) } else { 0 }
    }

    /// Checks that this module knows what may be in the volume.
    pub(super) fn known(&self) -> Result<(), Doubt> {
        let refused = |what: &str| Err(Doubt::new(what));
        if self.bytes[field::IN_PROGRESS] != 0 {
            return refused("it is being made");
        }
        if be64(&self.bytes, field::LOG_START) == 0 {
            return refused("its log is on another device");
        }
        if self.log().end > self.size() || self.log().is_empty() {
            return Err(Doubt::new("its log lies outside of it").helped_by(REPAIR));
        }
        if be64(&self.bytes, field::REALTIME_EXTENTS) != 0 {
            return refused("it has a realtime section on another device");
        }
        let unknown = if self.checked {
            if self.incompat() & NEEDS_REPAIR != 0 {
                return Err(Doubt::new("it says that it needs repair").helped_by(REPAIR));
            }
            self.incompat() & !INCOMPAT
                | be32(&self.bytes, field::RO_COMPAT) & !RO_COMPAT
                | be32(&self.bytes, field::LOG_INCOMPAT)
        } else {
            be32(&self.bytes, field::FEATURES2) & !FEATURES2
        };
        if unknown != 0 {
            return Err(Doubt::new(format!("it has features that are not known here ({unknown:#x})")));
        }
        Ok(())
    }
}

/// Reads `len` bytes at `at` whose CRC-32C lies, little-endian, at `crc` in them.
pub(super) fn checked_sector(
    source: &dyn ByteSource,
    at: u64,
    len: u64,
    crc: usize,
) -> Result<Vec<u8>, Doubt> {
    let bytes = source.bytes(at, len as usize)?;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..crc]), &[0; 4]);
    if crc32c::crc32c_append(sum, &bytes[crc + 4..]) != le32(&bytes, crc) {
        return Err(Doubt::new(format!("the checksum at byte {at} is wrong")).helped_by(REPAIR));
    }
    Ok(bytes)
}
