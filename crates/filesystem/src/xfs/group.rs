//! An allocation group: its header of free space (AGF), its free list (AGFL), and what its trees have to say.

use std::ops::Range;

use super::REPAIR;
use super::superblock::{Superblock, checked_sector};
use super::tree::{Order, Root, walk};
use crate::fields::be32;
use crate::source::ByteSource;
use crate::volume::Doubt;

/// Offsets of fields in the AGF (struct xfs_agf).
mod field {
    pub(super) const SEQUENCE: usize = 8;
    pub(super) const LENGTH: usize = 12;
    pub(super) const ROOT_BY_START: usize = 16;
    pub(super) const ROOT_BY_COUNT: usize = 20;
    pub(super) const LEVELS_BY_START: usize = 28;
    pub(super) const LEVELS_BY_COUNT: usize = 32;
    pub(super) const LIST_FIRST: usize = 40;
    pub(super) const LIST_LAST: usize = 44;
    pub(super) const LIST_COUNT: usize = 48;
    pub(super) const FREE: usize = 52;
    pub(super) const LONGEST: usize = 56;
    pub(super) const TREE_BLOCKS: usize = 60;
    pub(super) const UUID: usize = 64;
    pub(super) const CRC: usize = 216;
}

/// The free list of version 5 has a header, with a checksum in it.
const LIST_HEADER: usize = 36;
const LIST_CRC: usize = 32;
/// Sectors that each group begins with: superblock, AGF, AGI, AGFL.
const HEADERS: u64 = 4;

/// The header of free space.
pub(super) struct Group {
    number: u32,
    by_start: Root,
    by_count: Root,
    list_first: u32,
    list_last: u32,
    list_count: u32,
    /// Free blocks in extents.
    pub(super) free: u32,
    longest: u32,
    tree_blocks: u32,
}

impl Group {
    pub(super) fn read(source: &dyn ByteSource, superblock: &Superblock, number: u32) -> Result<Self, Doubt> {
        let at = superblock.start_of(number) + superblock.sector;
        let bytes = if superblock.checked {
            checked_sector(source, at, superblock.sector, field::CRC)?
        } else {
            source.bytes(at, superblock.sector as usize)?
        };
        let field = |at| be32(&bytes, at);
        let own = !superblock.checked || superblock.is_own(&bytes[field::UUID..field::UUID + 16]);
        if !bytes.starts_with(b"XAGF")
            || !own
            || field(field::SEQUENCE) != number
            || u64::from(field(field::LENGTH)) != superblock.blocks_of(number)
        {
            return Err(wrong(number, "its header of free space is not its own"));
        }
        Ok(Self {
            number,
            by_start: Root { block: field(field::ROOT_BY_START), levels: field(field::LEVELS_BY_START) },
            by_count: Root { block: field(field::ROOT_BY_COUNT), levels: field(field::LEVELS_BY_COUNT) },
            list_first: field(field::LIST_FIRST),
            list_last: field(field::LIST_LAST),
            list_count: field(field::LIST_COUNT),
            free: field(field::FREE),
            longest: field(field::LONGEST),
            tree_blocks: field(field::TREE_BLOCKS),
        })
    }

    /// Number of blocks that the group adds to the superblock's count.
    pub(super) fn available(&self) -> u64 {
        u64::from(self.free) + u64::from(self.list_count) + u64::from(self.tree_blocks)
    }

    /// Checks that both trees say what the header says.
    pub(super) fn prove(&self, source: &dyn ByteSource, superblock: &Superblock) -> Result<(), Doubt> {
        let all = 0..u64::MAX;
        let group = self.number;
        let by_start =
            walk(source, superblock, group, Order::Start, &self.by_start, all.clone(), &mut |_| ())?;
        let by_count = walk(source, superblock, group, Order::Count, &self.by_count, all, &mut |_| ())?;
        for (what, found, expected) in [
            ("sum of free extents", by_start.blocks, self.free.into()),
            ("longest free extent", by_start.longest, self.longest.into()),
            ("sum by length", by_count.blocks, by_start.blocks),
            ("number by length", by_count.extents, by_start.extents),
        ] {
            if found != expected {
                return Err(wrong(group, &format!("the {what} is {found}, {expected} was said")));
            }
        }
        Ok(())
    }

    /// The free extents in `window`, blocks of the group.
    pub(super) fn free_in(
        &self,
        source: &dyn ByteSource,
        superblock: &Superblock,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        walk(source, superblock, self.number, Order::Start, &self.by_start, window, sink).map(drop)
    }

    /// Adds the bytes of the group's own structures.
    pub(super) fn metadata(
        &self,
        source: &dyn ByteSource,
        superblock: &Superblock,
        into: &mut Vec<Range<u64>>,
    ) -> Result<(), Doubt> {
        let start = superblock.start_of(self.number);
        let (block, sector) = (superblock.block, superblock.sector);
        let first = into.len();
        into.push(start..start + (HEADERS * sector).next_multiple_of(block));
        let mut add = |number: u32| {
            if u64::from(number) >= superblock.blocks_of(self.number) {
                return Err(wrong(self.number, "a block of its own lies outside"));
            }
            let at = start + u64::from(number) * block;
            into.push(at..at + block);
            Ok(())
        };
        add(self.by_start.block)?;
        add(self.by_count.block)?;
        let at = start + 3 * sector;
        let list = if superblock.checked {
            let bytes = checked_sector(source, at, sector, LIST_CRC)?;
            if !bytes.starts_with(b"XAFL") || be32(&bytes, 4) != self.number {
                return Err(wrong(self.number, "its free list is not its own"));
            }
            bytes[LIST_HEADER..].to_vec()
        } else {
            source.bytes(at, sector as usize)?
        };
        let places = (list.len() / 4) as u32;
        // Circular: from first to last. Older kernels disagree by one on how many places version 5 has.
        let live = if self.list_count == 0 {
            0
        } else if self.list_first <= self.list_last {
            self.list_last - self.list_first + 1
        } else {
            places.saturating_sub(self.list_first).saturating_add(self.list_last).saturating_add(1)
        };
        if live != self.list_count || self.list_first >= places || self.list_last >= places {
            return Err(wrong(self.number, "its free list is not as long as it says"));
        }
        for number in 0..live {
            let place = (self.list_first + number) % places;
            add(be32(&list, place as usize * 4))?;
        }
        // Most of them lie side by side.
        let joined = crate::map::Ranges::union(into.drain(first..));
        into.extend_from_slice(joined.as_slice());
        Ok(())
    }
}

pub(super) fn wrong(group: u32, what: &str) -> Doubt {
    Doubt::new(format!("allocation group {group}: {what}")).helped_by(REPAIR)
}
