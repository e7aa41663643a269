//! Block groups: where their metadata lies, and what their bitmaps say.

use std::ops::Range;

use super::FSCK;
use super::checksum::{crc16, crc32c};
use super::superblock::{Superblock, compat, incompat, ro_compat};
use crate::fields::{le16, le32};
use crate::map::{Ranges, zero_bits};
use crate::source::ByteSource;
use crate::volume::Doubt;

/// Offsets of fields in a descriptor (struct ext4_group_desc); what is 64 bits wide has its upper half 20h behind.
mod field {
    pub(super) const BLOCK_BITMAP: usize = 0x00;
    pub(super) const INODE_BITMAP: usize = 0x04;
    pub(super) const INODE_TABLE: usize = 0x08;
    pub(super) const FREE: usize = 0x0C;
    pub(super) const FLAGS: usize = 0x12;
    pub(super) const UNUSED_INODES: usize = 0x1C;
    pub(super) const BITMAP_CHECKSUM: usize = 0x18;
    pub(super) const CHECKSUM: usize = 0x1E;
    pub(super) const UPPER: usize = 0x20;
}

/// No inode of the group was ever used.
const INODE_UNINIT: u16 = 1;
/// The block bitmap was never written.
const BLOCK_UNINIT: u16 = 2;

/// The most groups: their metadata is kept as one range each at worst, 64 MiB. 512 TiB with blocks of 4 KiB.
const MOST_GROUPS: u64 = 1 << 22;

/// Checksum of the descriptors.
enum Checked {
    No,
    Crc16([u8; 16]),
    Crc32c(u32),
}

/// The geometry of all groups.
pub(super) struct Groups {
    block: u64,
    cluster: u64,
    blocks: u64,
    first_block: u64,
    clusters_per_group: u64,
    count: u64,
    table_blocks: u64,
    inodes_per_group: u64,
    descriptor: u64,
    /// Blocks of descriptors (and reserve) behind each copy of the superblock.
    behind_super: u64,
    /// The first block of descriptors that lies in its own meta group.
    first_meta: u64,
    copies: Copies,
    checked: Checked,
    mmp: Option<u64>,
}

/// Groups that have a copy of the superblock.
enum Copies {
    All,
    Sparse,
    Two([u64; 2]),
}

impl Copies {
    fn has(&self, group: u64) -> bool {
        let power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        match self {
            _ if group == 0 => true,
            Self::All => true,
            Self::Two(groups) => groups.contains(&group),
            Self::Sparse => group == 1 || [3, 5, 7].into_iter().any(power_of),
        }
    }
}

struct Descriptor {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    /// Clusters.
    free: u64,
    uninit: bool,
    /// Inodes that may be in use: all before the last one that was ever used.
    inodes: u64,
    bitmap_checksum: u32,
}

/// Content of a block bitmap.
pub(super) enum Bitmap {
    /// Never written: all of the group is free but for metadata.
    AllFree,
    /// A bit for each cluster, 1 where it is used.
    Bits(Vec<u8>),
}

impl Groups {
    /// The groups of a superblock whose features and fields are known.
    pub(super) fn new(superblock: &Superblock) -> Result<Self, Doubt> {
        let first_block = superblock.first_data_block();
        let count = (superblock.blocks - first_block).div_ceil(superblock.blocks_per_group());
        if count > MOST_GROUPS {
            return Err(Doubt::new(format!("it has {count} groups, more than lunway reads")));
        }
        let descriptor = superblock.descriptor_size();
        let per_block = superblock.block / descriptor;
        let descriptor_blocks = count.div_ceil(per_block);
        let meta = superblock.incompat(incompat::META_BG);
        let first_meta = if meta { superblock.first_meta_group() } else { u64::MAX };
        let behind_super = if meta {
            first_meta.min(descriptor_blocks)
        } else {
            descriptor_blocks + superblock.reserved_descriptor_blocks()
        };
        let copies = if superblock.compat(compat::SPARSE_SUPER2) {
            Copies::Two(superblock.backup_groups())
        } else if superblock.ro_compat(ro_compat::SPARSE_SUPER) {
            Copies::Sparse
        } else {
            Copies::All
        };
        let checked = match superblock.seed() {
            Some(seed) => Checked::Crc32c(seed),
            None if superblock.ro_compat(ro_compat::GDT_CSUM) => {
                Checked::Crc16(superblock.uuid_bytes().first_chunk().copied().unwrap_or_default())
            }
            None => Checked::No,
        };
        Ok(Self {
            block: superblock.block,
            cluster: superblock.cluster,
            blocks: superblock.blocks,
            first_block,
            clusters_per_group: superblock.clusters_per_group(),
            count,
            inodes_per_group: superblock.inodes_per_group(),
            table_blocks: (superblock.inodes_per_group() * superblock.inode_size())
                .div_ceil(superblock.block),
            descriptor,
            behind_super,
            first_meta,
            copies,
            checked,
            mmp: superblock.mmp_block(),
        })
    }

    pub(super) fn size(&self) -> u64 {
        self.blocks * self.block
    }

    fn blocks_per_group(&self) -> u64 {
        self.clusters_per_group * self.cluster
    }

    fn per_block(&self) -> u64 {
        self.block / self.descriptor
    }

    /// The blocks of a group.
    pub(super) fn extent(&self, group: u64) -> Range<u64> {
        let start = self.first_block + group * self.blocks_per_group();
        start..(start + self.blocks_per_group()).min(self.blocks)
    }

    /// The block of a group's copy of the superblock: its first, but for group 0 of a volume whose clusters leave no
    /// block in front of it.
    fn super_block(&self, group: u64) -> u64 {
        if group == 0 { 1024 / self.block } else { self.extent(group).start }
    }

    /// The block that has the descriptors of the meta group `number`, as block `number` of the table.
    fn descriptor_block(&self, number: u64) -> u64 {
        if number < self.first_meta {
            return self.super_block(0) + 1 + number;
        }
        self.own_descriptor_block(number * self.per_block())
    }

    /// Returns the block in which a group of a meta group has its descriptors: behind its superblock, if it has one.
    fn own_descriptor_block(&self, group: u64) -> u64 {
        if self.copies.has(group) { self.super_block(group) + 1 } else { self.extent(group).start }
    }

    fn descriptor(&self, source: &dyn ByteSource, group: u64) -> Result<Descriptor, Doubt> {
        let at = self.descriptor_block(group / self.per_block()) * self.block
            + group % self.per_block() * self.descriptor;
        let bytes = source.bytes(at, self.descriptor as usize)?;
        let stored = le16(&bytes, field::CHECKSUM);
        let number = (group as u32).to_le_bytes();
        let computed = match &self.checked {
            Checked::No => stored,
            Checked::Crc16(uuid) => {
                let crc = crc16(crc16(0xFFFF, uuid), &number);
                crc16(crc16(crc, &bytes[..field::CHECKSUM]), &bytes[field::UPPER..])
            }
            Checked::Crc32c(seed) => {
                let crc = crc32c(crc32c(*seed, &number), &bytes[..field::CHECKSUM]);
                crc32c(crc32c(crc, &[0; 2]), &bytes[field::UPPER..]) as u16
            }
        };
        if computed != stored {
            return Err(wrong(group, "descriptor's checksum is wrong"));
        }
        let wide = self.descriptor >= 64;
        let both32 = |at: usize| {
            let upper = if wide { le32(&bytes, at + field::UPPER) } else { 0 };
            u64::from(upper) << 32 | u64::from(le32(&bytes, at))
        };
        let both16 = |at: usize| {
            let upper = if wide { le16(&bytes, at + field::UPPER) } else { 0 };
            u32::from(upper) << 16 | u32::from(le16(&bytes, at))
        };
        // Without checksums the flags and what goes with them are not believed: nothing says who wrote them.
        let is_checked = !matches!(self.checked, Checked::No);
        let flags = if is_checked { le16(&bytes, field::FLAGS) } else { 0 };
        let unused = match flags & INODE_UNINIT {
            _ if !is_checked => 0,
            0 => u64::from(both16(field::UNUSED_INODES)),
            _ => self.inodes_per_group,
        };
        Ok(Descriptor {
            block_bitmap: both32(field::BLOCK_BITMAP),
            inode_bitmap: both32(field::INODE_BITMAP),
            inode_table: both32(field::INODE_TABLE),
            free: u64::from(both16(field::FREE)),
            uninit: flags & BLOCK_UNINIT != 0,
            inodes: self.inodes_per_group.saturating_sub(unused),
            bitmap_checksum: both16(field::BITMAP_CHECKSUM),
        })
    }

    /// Number of groups.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The group of a block.
    pub(super) fn group_of(&self, block: u64) -> u64 {
        block.saturating_sub(self.first_block) / self.blocks_per_group().max(1)
    }

    /// The number of a block's cluster in its group.
    pub(super) fn cluster_in(&self, block: u64) -> u64 {
        (block - self.extent(self.group_of(block)).start) / self.cluster
    }

    /// The blocks of clusters of a group.
    pub(super) fn blocks_of(&self, group: u64, clusters: Range<u64>) -> Range<u64> {
        let extent = self.extent(group);
        let at = |cluster: u64| extent.start + cluster * self.cluster;
        at(clusters.start)..at(clusters.end).min(extent.end)
    }

    /// Offset of a block, bytes.
    pub(super) fn byte(&self, block: u64) -> u64 {
        block * self.block
    }

    /// Returns the offset of a group's inode table, bytes, and the number of its inodes that may be in use.
    pub(super) fn inodes(&self, source: &dyn ByteSource, group: u64) -> Result<(u64, u64), Doubt> {
        let descriptor = self.descriptor(source, group)?;
        let table = descriptor.inode_table.checked_mul(self.block);
        let table = table.ok_or_else(|| wrong(group, "inode table lies nowhere"))?;
        Ok((table, descriptor.inodes))
    }

    /// The block at which the inode table of the first group begins.
    pub(super) fn first_inode_table(&self, source: &dyn ByteSource) -> Result<u64, Doubt> {
        Ok(self.descriptor(source, 0)?.inode_table)
    }

    /// Returns the metadata that follows from the geometry, and the free bytes that the descriptors count. `more` are
    /// ranges of blocks that are known otherwise.
    pub(super) fn metadata(
        &self,
        source: &dyn ByteSource,
        more: Vec<Range<u64>>,
    ) -> Result<(Ranges, u64), Doubt> {
        let mut blocks = more;
        blocks.push(0..self.first_block.max(self.super_block(0)));
        blocks.extend(self.mmp.map(|block| block..block.saturating_add(1)));
        let mut free = 0u64;
        for group in 0..self.count {
            let start = blocks.len();
            let has_super = self.copies.has(group);
            if has_super {
                let at = self.super_block(group);
                blocks.push(at..at + 1);
            }
            let meta = group / self.per_block();
            if meta < self.first_meta {
                if has_super {
                    let at = self.super_block(group) + 1;
                    blocks.push(at..at + self.behind_super);
                }
            } else if [0, 1, self.per_block() - 1].contains(&(group % self.per_block())) {
                let at = self.own_descriptor_block(group);
                blocks.push(at..at + 1);
            }
            let descriptor = self.descriptor(source, group)?;
            free = free.saturating_add(descriptor.free.saturating_mul(self.cluster * self.block));
            for (at, len) in [
                (descriptor.block_bitmap, 1),
                (descriptor.inode_bitmap, 1),
                (descriptor.inode_table, self.table_blocks),
            ] {
                if at <= self.first_block || at.checked_add(len).is_none_or(|end| end > self.blocks) {
                    return Err(wrong(group, "metadata lies outside of the volume"));
                }
                blocks.push(at..at + len);
            }
            // A flexible group's tables lie side by side: they are joined here, so that the list stays short.
            let joined = Ranges::union(blocks.drain(start.saturating_sub(4)..));
            blocks.extend_from_slice(joined.as_slice());
        }
        let clusters = blocks.into_iter().map(|range| {
            // A cluster with one block of metadata is used whole.
            let start = range.start.saturating_sub(self.first_block) / self.cluster * self.cluster;
            let end = range.end.saturating_sub(self.first_block).next_multiple_of(self.cluster);
            let start = if range.start < self.first_block { 0 } else { self.first_block + start };
            start * self.block..(self.first_block + end).min(self.blocks) * self.block
        });
        Ok((Ranges::union(clusters), free))
    }

    /// Gives the ranges in `window` (bytes) that the bitmaps mark as free.
    pub(super) fn claimed_free(
        &self,
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let first = self.group_of(window.start / self.block);
        let last = self.group_of((window.end.max(1) - 1) / self.block);
        for group in first..self.count.min(last.saturating_add(1)) {
            let mut give = |blocks: Range<u64>| sink(blocks.start * self.block..blocks.end * self.block);
            match self.bitmap(source, group)? {
                Bitmap::AllFree => give(self.extent(group)),
                Bitmap::Bits(bitmap) => {
                    zero_bits(&bitmap, self.clusters(group), |bits| give(self.blocks_of(group, bits)));
                }
            }
        }
        Ok(())
    }

    /// Clusters of a group.
    fn clusters(&self, group: u64) -> u64 {
        let extent = self.extent(group);
        (extent.end - extent.start).div_ceil(self.cluster)
    }

    /// Reads and checks the block bitmap of a group.
    pub(super) fn bitmap(&self, source: &dyn ByteSource, group: u64) -> Result<Bitmap, Doubt> {
        let descriptor = self.descriptor(source, group)?;
        if descriptor.uninit {
            return Ok(Bitmap::AllFree);
        }
        let at = descriptor.block_bitmap.checked_mul(self.block).filter(|at| source.has(*at, self.block));
        let Some(at) = at else { return Err(wrong(group, "bitmap lies outside of the volume")) };
        let bitmap = source.bytes(at, self.block as usize)?;
        self.check(group, &descriptor, &bitmap, self.clusters(group))?;
        Ok(Bitmap::Bits(bitmap))
    }

    /// Checks a bitmap that has bits for `clusters`.
    fn check(&self, group: u64, descriptor: &Descriptor, bitmap: &[u8], clusters: u64) -> Result<(), Doubt> {
        if let Checked::Crc32c(seed) = self.checked {
            let computed = crc32c(seed, &bitmap[..self.clusters_per_group as usize / 8]);
            let halves = if self.descriptor >= 64 { u32::MAX } else { 0xFFFF };
            if computed & halves != descriptor.bitmap_checksum {
                return Err(wrong(group, "bitmap's checksum is wrong"));
            }
        }
        let mut free = 0;
        zero_bits(bitmap, bitmap.len() as u64 * 8, |bits| free += bits.end - bits.start);
        let mut inside = 0;
        zero_bits(bitmap, clusters, |bits| inside += bits.end - bits.start);
        if free != inside {
            return Err(wrong(group, "bitmap has free clusters behind its end"));
        }
        if free != descriptor.free {
            let what = format!("bitmap has {free} free clusters, its descriptor says {}", descriptor.free);
            return Err(wrong(group, &what));
        }
        Ok(())
    }
}

fn wrong(group: u64, what: &str) -> Doubt {
    Doubt::new(format!("group {group}: the {what}")).helped_by(FSCK)
}
