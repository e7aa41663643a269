//! Inodes: the blocks that one leads to, by an extent tree or by a block map.

use std::ops::Range;

use super::superblock::{Superblock, incompat};
use crate::fields::{le16, le32};
use crate::source::ByteSource;
use crate::volume::Doubt;

/// Offsets of fields in an inode (struct ext4_inode).
mod field {
    pub(super) const MODE: usize = 0x00;
    pub(super) const SIZE: usize = 0x04;
    pub(super) const LINKS: usize = 0x1A;
    pub(super) const FLAGS: usize = 0x20;
    pub(super) const BLOCK: usize = 0x28;
    pub(super) const ATTRIBUTES: usize = 0x68;
    pub(super) const ATTRIBUTES_HIGH: usize = 0x76;
}

/// Length read of an inode: the fields above.
pub(super) const LEN: usize = 0x80;

/// Bits of an inode's flags.
const EXTENTS: u32 = 0x8_0000;
const INLINE_DATA: u32 = 0x1000_0000;

/// Kinds of files by `i_mode`.
const KIND: u16 = 0xF000;
const DIRECTORY: u16 = 0x4000;
const REGULAR: u16 = 0x8000;
const LINK: u16 = 0xA000;

/// Bytes of the map in an inode. A link that is shorter lies there itself.
const MAP: usize = 60;

/// Blocks that an inode leads to.
pub(super) struct Blocks {
    /// The volume's.
    pub(super) blocks: Range<u64>,
    /// The first one's number in the file, and whether they are written; `None`: they are blocks of the map itself.
    pub(super) data: Option<(u64, bool)>,
}

/// The fixed part of an inode.
pub(super) struct Inode<'a>(pub(super) &'a [u8]);

impl<'a> Inode<'a> {
    /// Returns `true` if a file has this inode.
    pub(super) fn is_used(&self) -> bool {
        le16(self.0, field::LINKS) > 0
    }

    /// The map, 15 words.
    pub(super) fn map(&self) -> &'a [u8] {
        &self.0[field::BLOCK..field::BLOCK + MAP]
    }

    /// Returns `true` if its map leads to blocks, and is no link or device number.
    pub(super) fn has_blocks(&self) -> bool {
        let flags = le32(self.0, field::FLAGS);
        let is_inline = flags & INLINE_DATA != 0;
        match le16(self.0, field::MODE) & KIND {
            REGULAR | DIRECTORY => !is_inline,
            LINK => !is_inline && (flags & EXTENTS != 0 || le32(self.0, field::SIZE) as usize >= MAP),
            _ => false,
        }
    }

    /// The block of its attributes.
    pub(super) fn attributes(&self, superblock: &Superblock) -> Option<u64> {
        let wide = superblock.incompat(incompat::WITH_64BIT);
        let high = if wide { le16(self.0, field::ATTRIBUTES_HIGH) } else { 0 };
        let block = u64::from(high) << 32 | u64::from(le32(self.0, field::ATTRIBUTES));
        (block != 0).then_some(block)
    }

    /// Gives all blocks that the map leads to, in the order of the file. `broken` makes a doubt of what is wrong.
    pub(super) fn for_each(
        &self,
        source: &dyn ByteSource,
        superblock: &Superblock,
        broken: &dyn Fn(&str) -> Doubt,
        sink: &mut dyn FnMut(Blocks) -> Result<(), Doubt>,
    ) -> Result<(), Doubt> {
        let mut walk = Walk { source, superblock, broken, sink };
        if le32(self.0, field::FLAGS) & EXTENTS != 0 {
            return walk.extents(self.map(), None);
        }
        // 12 blocks, then blocks of blocks, of depth 1 to 3.
        let mut logical = 0;
        for (at, word) in self.map().chunks_exact(4).enumerate() {
            logical = walk.pointed(le32(word, 0), at.saturating_sub(11) as u32, logical)?;
        }
        Ok(())
    }
}

struct Walk<'a> {
    source: &'a dyn ByteSource,
    superblock: &'a Superblock,
    broken: &'a dyn Fn(&str) -> Doubt,
    sink: &'a mut dyn FnMut(Blocks) -> Result<(), Doubt>,
}

impl Walk<'_> {
    fn give(&mut self, physical: u64, len: u64, data: Option<(u64, bool)>) -> Result<(), Doubt> {
        let end = physical.checked_add(len).filter(|end| physical > 0 && *end <= self.superblock.blocks);
        let end = end.ok_or_else(|| (self.broken)("lies outside of the volume"))?;
        (self.sink)(Blocks { blocks: physical..end, data })
    }

    /// A block of the map.
    fn block(&mut self, number: u64) -> Result<Vec<u8>, Doubt> {
        self.give(number, 1, None)?;
        Ok(self.source.bytes(number * self.superblock.block, self.superblock.block as usize)?)
    }

    /// A node of an extent tree: `depth` is what the node above said, the root has its own.
    fn extents(&mut self, node: &[u8], depth: Option<u16>) -> Result<(), Doubt> {
        const MAGIC: u16 = 0xF30A;
        const DEEPEST: u16 = 5;
        /// Longer ones are not written, and have so much less.
        const LONGEST: u16 = 0x8000;
        let (entries, own) = (le16(node, 2), le16(node, 6));
        if le16(node, 0) != MAGIC || own > DEEPEST || depth.is_some_and(|depth| depth != own) {
            return Err((self.broken)("has a broken extent tree"));
        }
        for entry in node.get(12..).unwrap_or_default().chunks_exact(12).take(usize::from(entries)) {
            if own > 0 {
                let child = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
                let node = self.block(child)?;
                self.extents(&node, Some(own - 1))?;
                continue;
            }
            let (logical, len) = (le32(entry, 0), le16(entry, 4));
            let (len, written) = if len > LONGEST { (len - LONGEST, false) } else { (len, true) };
            let physical = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
            if len == 0 {
                return Err((self.broken)("has an empty extent"));
            }
            self.give(physical, len.into(), Some((logical.into(), written)))?;
        }
        Ok(())
    }

    /// Gives the blocks that a word of a block map leads to, from this block of the file on; returns the first block
    /// after them. Zero is a hole.
    fn pointed(&mut self, block: u32, depth: u32, mut logical: u64) -> Result<u64, Doubt> {
        let words = self.superblock.block / 4;
        match (block, depth) {
            (0, depth) => Ok(logical + words.pow(depth)),
            (block, 0) => self.give(block.into(), 1, Some((logical, true))).map(|()| logical + 1),
            (block, depth) => {
                for word in self.block(block.into())?.chunks_exact(4) {
                    logical = self.pointed(le32(word, 0), depth - 1, logical)?;
                }
                Ok(logical)
            }
        }
    }
}
