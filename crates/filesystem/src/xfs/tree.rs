//! The B+trees of free extents: by block number, and by length.

use std::ops::Range;

use super::group::wrong;
use super::superblock::{Superblock, checked_sector};
use crate::fields::{be16, be32, be64};
use crate::source::ByteSource;
use crate::volume::Doubt;

/// Order of a tree: by start or by count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Start,
    Count,
}

/// Root of a tree.
pub(super) struct Root {
    pub(super) block: u32,
    pub(super) levels: u32,
}

/// Sums over the extents that a walk has met.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) extents: u64,
    pub(super) blocks: u64,
    pub(super) longest: u64,
}

/// Offsets in a block (struct xfs_btree_block, short form): the header of version 4 ends behind the siblings.
mod field {
    pub(super) const LEVEL: usize = 4;
    pub(super) const RECORDS: usize = 6;
    pub(super) const END_V4: usize = 16;
    pub(super) const PLACE: usize = 16;
    pub(super) const UUID: usize = 32;
    pub(super) const OWNER: usize = 48;
    pub(super) const CRC: usize = 52;
    pub(super) const END_V5: usize = 56;
}

/// The deepest tree that a kernel accepts (XFS_BTREE_MAXLEVELS).
const DEEPEST: u32 = 9;
/// Bytes of a record or key (start, count), and of a pointer.
const RECORD: usize = 8;
const POINTER: usize = 4;
/// The unit of places on the disk.
const BASIC_BLOCK: u64 = 512;

struct Walk<'a, 'b> {
    source: &'a dyn ByteSource,
    superblock: &'a Superblock,
    group: u32,
    order: Order,
    window: Range<u64>,
    /// The last record: by block number (its end, 0), by length (length, start).
    last: (u64, u64),
    sums: Sums,
    sink: &'b mut dyn FnMut(Range<u64>),
}

/// Walks a tree, of which by block number only what can lie in `window` (blocks of the group), and gives the extents.
/// Records have to ascend over all blocks, so that no block can be visited twice, and a loop ends at once.
pub(super) fn walk(
    source: &dyn ByteSource,
    superblock: &Superblock,
    group: u32,
    order: Order,
    root: &Root,
    window: Range<u64>,
    sink: &mut dyn FnMut(Range<u64>),
) -> Result<Sums, Doubt> {
    let mut walk =
        Walk { source, superblock, group, order, window, last: (0, 0), sums: Sums::default(), sink };
    match root.levels {
        1..=DEEPEST => walk.block(root.block, root.levels - 1, None)?,
        _ => return Err(walk.wrong("a tree of free extents has no possible depth")),
    }
    Ok(walk.sums)
}

impl Walk<'_, '_> {
    fn wrong(&self, what: &str) -> Doubt {
        wrong(self.group, what)
    }

    fn read(&self, number: u32, level: u32) -> Result<Vec<u8>, Doubt> {
        if u64::from(number) >= self.superblock.blocks_of(self.group) {
            return Err(self.wrong("a tree of free extents leads outside"));
        }
        let at = self.superblock.start_of(self.group) + u64::from(number) * self.superblock.block;
        let magic: &[u8] = match (self.superblock.checked, self.order) {
            (true, Order::Start) => b"AB3B",
            (true, Order::Count) => b"AB3C",
            (false, Order::Start) => b"ABTB",
            (false, Order::Count) => b"ABTC",
        };
        let bytes = if self.superblock.checked {
            let bytes = checked_sector(self.source, at, self.superblock.block, field::CRC)?;
            let own = be64(&bytes, field::PLACE) == at / BASIC_BLOCK
                && be32(&bytes, field::OWNER) == self.group
                && self.superblock.is_own(&bytes[field::UUID..field::UUID + 16]);
            if !own {
                return Err(self.wrong("a block of a tree of free extents is not its own"));
            }
            bytes
        } else {
            self.source.bytes(at, self.superblock.block as usize)?
        };
        if !bytes.starts_with(magic) || u32::from(be16(&bytes, field::LEVEL)) != level {
            return Err(self.wrong("a tree of free extents leads to something else"));
        }
        Ok(bytes)
    }

    /// Visits a block, whose first record or key is `first` by the node above it.
    fn block(&mut self, number: u32, level: u32, first: Option<(u32, u32)>) -> Result<(), Doubt> {
        let bytes = self.read(number, level)?;
        let records = usize::from(be16(&bytes, field::RECORDS));
        let body = &bytes[if self.superblock.checked { field::END_V5 } else { field::END_V4 }..];
        let most = body.len() / if level == 0 { RECORD } else { RECORD + POINTER };
        // Only a root that is a leaf may be empty.
        if records > most || records == 0 && (level > 0 || first.is_some()) {
            return Err(self.wrong("a block of a tree of free extents has no possible number of records"));
        }
        let record = |at: usize| (be32(body, at * RECORD), be32(body, at * RECORD + 4));
        if first.is_some_and(|first| first != record(0)) {
            return Err(self.wrong("a tree of free extents has a wrong key"));
        }
        for at in 0..records {
            if level == 0 {
                let (start, count) = record(at);
                self.extent(start.into(), count.into())?;
                continue;
            }
            if self.order == Order::Start {
                if u64::from(record(at).0) >= self.window.end {
                    break;
                }
                if at + 1 < records && u64::from(record(at + 1).0) <= self.window.start {
                    continue;
                }
            }
            self.block(be32(body, most * RECORD + at * POINTER), level - 1, Some(record(at)))?;
        }
        Ok(())
    }

    fn extent(&mut self, start: u64, count: u64) -> Result<(), Doubt> {
        let (ascends, last) = match self.order {
            Order::Start => (start >= self.last.0, (start + count, 0)),
            Order::Count => ((count, start) > self.last, (count, start)),
        };
        if !ascends || count == 0 || start + count > self.superblock.blocks_of(self.group) {
            return Err(self.wrong("the free extents overlap, or lie outside"));
        }
        self.last = last;
        self.sums.extents += 1;
        self.sums.blocks += count;
        self.sums.longest = self.sums.longest.max(count);
        if start < self.window.end && start + count > self.window.start {
            (self.sink)(start..start + count);
        }
        Ok(())
    }
}
