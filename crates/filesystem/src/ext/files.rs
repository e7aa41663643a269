//! Proof that no file has blocks that are free, for volumes whose bitmaps have no checksums: all inodes are read.

use std::ops::Range;

use super::FSCK;
use super::groups::{Bitmap, Groups};
use super::inode::{self, Inode};
use super::superblock::Superblock;
use crate::map::{Ranges, zero_bits};
use crate::source::{ByteSource, LARGEST};
use crate::volume::Doubt;

/// The most inodes that are read: 1 GiB of tables, as many as mke2fs makes for 64 GiB.
const INODES_MAX: u64 = 1 << 22;

/// Number of groups whose bitmaps are kept, 4 KiB each: files lie in few groups.
const BITMAPS: usize = 64;

/// Looks at the blocks of all files. `metadata` is what is used whatever the bitmaps say. `false`: there are too many
/// inodes, and nothing was looked at.
pub(super) fn check(
    source: &dyn ByteSource,
    superblock: &Superblock,
    groups: &Groups,
    metadata: &Ranges,
) -> Result<bool, Doubt> {
    let mut inodes = 0;
    for group in 0..groups.count() {
        inodes += groups.inodes(source, group)?.1;
    }
    if inodes > INODES_MAX {
        return Ok(false);
    }
    // Blocks may be shared (deduplicated images), and a map may go in circles.
    let mut looked =
        Looked { groups, metadata, bitmaps: Vec::new(), left: superblock.blocks.saturating_mul(4) };
    let len = superblock.inode_size();
    let piece = LARGEST as u64 / len;
    for group in 0..groups.count() {
        let (table, count) = groups.inodes(source, group)?;
        for first in (0..count).step_by(piece as usize) {
            let bytes = source.bytes(table + first * len, (piece.min(count - first) * len) as usize)?;
            for (at, bytes) in (first..).zip(bytes.chunks_exact(len as usize)) {
                let inode = Inode(&bytes[..inode::LEN]);
                if !inode.is_used() {
                    continue;
                }
                let number = group * superblock.inodes_per_group() + at + 1;
                let broken = |what: &str| Doubt::new(format!("inode {number} {what}")).helped_by(FSCK);
                if let Some(block) = inode.attributes(superblock) {
                    let end = block.checked_add(1).filter(|end| *end <= superblock.blocks);
                    let end = end.ok_or_else(|| broken("has attributes that lie nowhere"))?;
                    looked.at(source, block..end, number)?;
                }
                if inode.has_blocks() {
                    inode.for_each(source, superblock, &broken, &mut |found| {
                        looked.at(source, found.blocks, number)
                    })?;
                }
            }
        }
    }
    Ok(true)
}

struct Looked<'a> {
    groups: &'a Groups,
    metadata: &'a Ranges,
    /// The bitmaps that were read last, by group.
    bitmaps: Vec<(u64, Bitmap)>,
    /// Blocks that files may still have.
    left: u64,
}

impl Looked<'_> {
    /// Checks that blocks are in use.
    fn at(&mut self, source: &dyn ByteSource, blocks: Range<u64>, inode: u64) -> Result<(), Doubt> {
        self.left = self.left.checked_sub(blocks.end - blocks.start).ok_or_else(|| {
            Doubt::new("its files have more blocks than there are: maps go in circles").helped_by(FSCK)
        })?;
        let mut at = blocks.start;
        while at < blocks.end {
            let group = self.groups.group_of(at);
            let extent = self.groups.extent(group);
            let end = extent.end.min(blocks.end);
            if at < extent.start || end <= at {
                return Ok(());
            }
            let found = match self.bitmaps.iter().position(|(known, _)| *known == group) {
                Some(found) => found,
                None => {
                    if self.bitmaps.len() == BITMAPS {
                        self.bitmaps.remove(0);
                    }
                    self.bitmaps.push((group, self.groups.bitmap(source, group)?));
                    self.bitmaps.len() - 1
                }
            };
            let bitmap = &self.bitmaps[found].1;
            let mut free = Vec::new();
            let (first, last) = (self.groups.cluster_in(at), self.groups.cluster_in(end - 1));
            match bitmap {
                Bitmap::AllFree => free.push(at..end),
                Bitmap::Bits(bits) => {
                    let bytes = &bits[(first / 8) as usize..=(last / 8) as usize];
                    zero_bits(bytes, bytes.len() as u64 * 8, |zeros| {
                        let zeros = zeros.start + first / 8 * 8..zeros.end + first / 8 * 8;
                        let clusters = zeros.start.max(first)..zeros.end.min(last + 1);
                        if clusters.start < clusters.end {
                            free.push(self.groups.blocks_of(group, clusters));
                        }
                    });
                }
            }
            for range in free {
                let mut lost = None;
                let (start, stop) = (self.groups.byte(range.start), self.groups.byte(range.end));
                self.metadata
                    .missing_from(start..stop, &mut |range| lost = lost.take().or(Some(range.start)));
                if let Some(lost) = lost {
                    return Err(Doubt::new(format!(
                        "the bitmap of group {group} has a block of inode {inode} as free, at byte {lost}"
                    ))
                    .helped_by(FSCK));
                }
            }
            at = end;
        }
        Ok(())
    }
}
