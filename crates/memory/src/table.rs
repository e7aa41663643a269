//! Chunk number → chunk, without a lock on the way.

use std::ops::Range;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lunway_block::BlockError;
use memmap2::MmapMut;

/// The unit of allocation, of locking and of unmapping, bytes.
///
/// Smaller chunks: less memory for scattered writes, finer unmap. Larger ones: fewer locks per transfer, a
/// smaller table. At 64 KiB a 1 MiB read takes 16 uncontended locks, some 0.3 µs beside 50 µs and more of
/// copying, and the table is 0.04 % of the data.
pub(crate) const CHUNK: usize = 64 << 10;

/// Chunks per segment: 64 MiB of disk behind 24 KiB of table.
const SEGMENT: usize = 1024;
const MIDDLE: usize = 512;
const ROOT: usize = 512;

/// The largest disk, bytes: 16 TiB, what the three levels hold.
pub const SIZE_MAX: u64 = (CHUNK * SEGMENT * MIDDLE * ROOT) as u64;

/// The bytes of one chunk; `None`: a hole.
///
/// A mapping of its own, so that an unmapped chunk goes back to the kernel at once: the allocator would keep it (of 2 GiB
/// unmapped glibc kept all). Neighbours share one kernel structure; where a pattern of holes makes more of them than the
/// kernel allows (`vm.max_map_count`, 65,530: 8 GiB in which every other chunk is a hole), writes to holes get
/// [`BlockError::NoSpace`].
pub(crate) type Chunk = Option<MmapMut>;

type Segment = Box<[RwLock<Chunk>]>;
type Middle = Box<[OnceLock<Segment>]>;
type Root = Box<[OnceLock<Middle>]>;

/// A sparse array of chunks, each behind its own lock, in a tree of three levels that only grows.
///
/// A reader walks two initialised-once pointers, which cost a load each and are shared by all cores without
/// contention, and takes the lock of one chunk: threads meet only where their data does. Inner nodes are made
/// when first written below and stay until the disk goes: at most 0.04 % of the disk's size.
pub(crate) struct Table {
    root: Root,
}

fn empty<T>(len: usize) -> Box<[OnceLock<T>]> {
    (0..len).map(|_| OnceLock::new()).collect()
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { root: empty(ROOT) }
    }

    /// The slot of a chunk, or `None` where nothing was ever written near it: a hole.
    pub(crate) fn get(&self, chunk: usize) -> Option<&RwLock<Chunk>> {
        let middle = self.root.get(chunk / SEGMENT / MIDDLE)?.get()?;
        let segment = middle.get(chunk / SEGMENT % MIDDLE)?.get()?;
        segment.get(chunk % SEGMENT)
    }

    /// The slot of a chunk, made if need be. Only for chunks below [`SIZE_MAX`], which the disk's size
    /// ensures.
    pub(crate) fn get_or_make(&self, chunk: usize) -> &RwLock<Chunk> {
        let middle = self.root[chunk / SEGMENT / MIDDLE].get_or_init(|| empty(MIDDLE));
        let segment = middle[chunk / SEGMENT % MIDDLE]
            .get_or_init(|| (0..SEGMENT).map(|_| RwLock::new(None)).collect::<Segment>());
        &segment[chunk % SEGMENT]
    }

    /// The slots of a range of chunks, in order; whole missing segments come as one `None` with their length,
    /// so that a walk over an empty disk takes a step per 64 MiB.
    pub(crate) fn walk(
        &self,
        chunks: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Option<&RwLock<Chunk>>)> {
        let mut next = chunks.start;
        std::iter::from_fn(move || {
            let first = next;
            if first >= chunks.end {
                return None;
            }
            let slot = self.get(first);
            next = match slot {
                Some(_) => first + 1,
                None => ((first / SEGMENT + 1) * SEGMENT).min(chunks.end),
            };
            Some((first..next, slot))
        })
    }
}

/// Memory for a chunk, all zeroes. A kernel that refuses is a full disk, not the end of the process.
pub(crate) fn allocate() -> Result<MmapMut, BlockError> {
    MmapMut::map_anon(CHUNK).map_err(|_| BlockError::NoSpace)
}

/// Locks a chunk to read. Nothing panics under these locks; bytes have no invariant that a panic could break.
pub(crate) fn read(slot: &RwLock<Chunk>) -> RwLockReadGuard<'_, Chunk> {
    slot.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a chunk to change it.
pub(crate) fn write(slot: &RwLock<Chunk>) -> RwLockWriteGuard<'_, Chunk> {
    slot.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_appears_when_made_and_stays_the_same() {
        let table = Table::new();
        let last = (SIZE_MAX / CHUNK as u64) as usize - 1;
        for chunk in [0, SEGMENT, SEGMENT * MIDDLE, last] {
            assert!(table.get(chunk).is_none(), "{chunk}");
            let slot = table.get_or_make(chunk);
            *write(slot) = Some(allocate().unwrap());
            assert!(std::ptr::eq(slot, table.get(chunk).unwrap()));
        }
        assert!(table.get(last + 1).is_none());
    }

    #[test]
    fn a_walk_covers_the_range_and_skips_what_is_missing() {
        let table = Table::new();
        table.get_or_make(SEGMENT + 5);
        let steps: Vec<_> = table.walk(3..3 * SEGMENT + 7).collect();
        let mut next = 3;
        for (range, slot) in &steps {
            assert_eq!(range.start, next);
            assert_eq!(slot.is_some(), range.start / SEGMENT == 1, "{range:?}");
            next = range.end;
        }
        assert_eq!(next, 3 * SEGMENT + 7);
        assert_eq!(steps.len(), 1 + SEGMENT + 2);
    }
}
