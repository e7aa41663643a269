//! Chunk number → chunk, without a lock on the way.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::ShapeError;
use crate::chunk::{CHUNK, CHUNKS_PER_HUGE, SEGMENT};
use crate::reservation::{Chunk, Reservation, Segment};

const MIDDLE: usize = 512;
const ROOT: usize = 512;

/// The largest disk, bytes: 16 TiB, what the three levels hold.
pub const SIZE_MAX: u64 = (CHUNK * SEGMENT * MIDDLE * ROOT) as u64;

type Middle = Box<[OnceLock<Segment>]>;

/// A sparse array of chunks, each behind its own lock, in a tree of three levels that only grows.
///
/// A reader walks two initialised-once pointers, which cost a load each and are shared by all cores without
/// contention, and takes the lock of one chunk: threads meet only where their data does. Inner nodes are made
/// when first written below and stay until the disk goes: at most 0.02 % of the disk's size.
///
/// Addresses are reserved in one piece when the disk is made, and in one more piece, at least as large as all before,
/// each time that it outgrows them: a handful of mappings, however often it is resized.
pub(crate) struct Table {
    /// The first 32 GiB, which most disks have not more of.
    first: OnceLock<Middle>,
    /// What is beyond.
    others: OnceLock<Box<[OnceLock<Middle>]>>,
    /// In the order of the disk, without gaps; only added to.
    homes: RwLock<Vec<Home>>,
}

/// A piece of the disk with its addresses, in whole segments.
struct Home {
    segments: Range<usize>,
    reservation: Arc<Reservation>,
}

fn empty<T>(len: usize) -> Box<[OnceLock<T>]> {
    (0..len).map(|_| OnceLock::new()).collect()
}

impl Table {
    /// Addresses for a disk of `size` bytes.
    pub(crate) fn new(size: u64) -> Result<Self, ShapeError> {
        let table = Self { first: OnceLock::new(), others: OnceLock::new(), homes: RwLock::default() };
        table.reserve(size)?;
        Ok(table)
    }

    /// Has addresses for `size` bytes. Before the disk gets that size.
    pub(crate) fn reserve(&self, size: u64) -> Result<(), ShapeError> {
        let mut homes = self.homes.write().unwrap_or_else(PoisonError::into_inner);
        let needed = size.div_ceil((SEGMENT * CHUNK) as u64) as usize;
        let have = homes.last().map_or(0, |home| home.segments.end);
        if needed <= have {
            return Ok(());
        }
        // Twice as much each time, as far as a disk can grow at all.
        let end = needed.max(2 * have).min(MIDDLE * ROOT);
        let take = |end: usize| {
            let reservation = Reservation::new(end - have)?;
            Ok(Home { segments: have..end, reservation: Arc::new(reservation) })
        };
        let home = take(end).or_else(|_: std::io::Error| take(needed));
        homes.push(home.map_err(|_| ShapeError::Refused { size })?);
        Ok(())
    }

    fn segment(&self, chunk: usize) -> Option<&Segment> {
        let middle = match chunk / SEGMENT / MIDDLE {
            0 => self.first.get()?,
            number => self.others.get()?.get(number - 1)?.get()?,
        };
        middle.get(chunk / SEGMENT % MIDDLE)?.get()
    }

    /// A chunk, or `None` where nothing was ever written near it: a hole.
    pub(crate) fn get(&self, chunk: usize) -> Option<Chunk<'_>> {
        Some(self.segment(chunk)?.chunk(chunk % SEGMENT))
    }

    /// A chunk, its lock made if need be. Only for chunks that addresses are [reserved](Self::reserve) for, which the
    /// disk's size ensures.
    pub(crate) fn get_or_make(&self, chunk: usize) -> Chunk<'_> {
        let middle = match chunk / SEGMENT / MIDDLE {
            0 => &self.first,
            number => &self.others.get_or_init(|| empty(ROOT - 1))[number - 1],
        };
        let middle = middle.get_or_init(|| empty(MIDDLE));
        let segment = middle[chunk / SEGMENT % MIDDLE].get_or_init(|| self.make(chunk / SEGMENT));
        segment.chunk(chunk % SEGMENT)
    }

    fn make(&self, segment: usize) -> Segment {
        let homes = self.homes.read().unwrap_or_else(PoisonError::into_inner);
        let home = homes.iter().find(|home| home.segments.contains(&segment));
        let home = home.expect("addresses are reserved before the disk has the size");
        home.reservation.lend(segment - home.segments.start)
    }

    /// Counts a chunk that was a hole. The region that is full now.
    pub(crate) fn taken(&self, chunk: usize) -> Option<usize> {
        let count = self.held(chunk)?.fetch_add(1, Ordering::Relaxed) + 1;
        (usize::from(count) == CHUNKS_PER_HUGE).then_some(chunk / CHUNKS_PER_HUGE)
    }

    /// Counts a chunk that is a hole now.
    pub(crate) fn given_back(&self, chunk: usize) {
        if let Some(held) = self.held(chunk) {
            held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn held(&self, chunk: usize) -> Option<&AtomicU8> {
        Some(self.segment(chunk)?.held(chunk % SEGMENT))
    }

    /// Makes one huge page of a region, if it is full.
    pub(crate) fn collapse(&self, region: usize) -> std::io::Result<()> {
        let chunk = region * CHUNKS_PER_HUGE;
        let full = self.held(chunk).map(|held| usize::from(held.load(Ordering::Relaxed)));
        let homes = self.homes.read().unwrap_or_else(PoisonError::into_inner);
        let home = homes.iter().find(|home| home.segments.contains(&(chunk / SEGMENT)));
        match home {
            Some(home) if full == Some(CHUNKS_PER_HUGE) => {
                let reservation = Arc::clone(&home.reservation);
                let offset = (chunk - home.segments.start * SEGMENT) * CHUNK;
                // A growth need not wait for it.
                drop(homes);
                reservation.collapse(offset)
            }
            _ => Ok(()),
        }
    }

    /// The slots of a range of chunks, in order; whole missing segments come as one `None` with their length,
    /// so that a walk over an empty disk takes a step per 64 MiB.
    pub(crate) fn walk(
        &self,
        chunks: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Option<Chunk<'_>>)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_appears_when_made_and_stays_the_same() {
        let table = Table::new(SIZE_MAX).unwrap();
        let last = (SIZE_MAX / CHUNK as u64) as usize - 1;
        for chunk in [0, SEGMENT, SEGMENT * MIDDLE, last] {
            assert!(table.get(chunk).is_none(), "{chunk}");
            table.get_or_make(chunk).write().bytes().fill(chunk as u8 | 1);
            let again = table.get(chunk).unwrap().read();
            assert!(again.bytes().unwrap().iter().all(|&byte| byte == chunk as u8 | 1));
        }
        assert!(table.get(last + 1).is_none());
        let neighbour = table.get(1).unwrap();
        assert_eq!(neighbour.read().bytes(), None);
        assert!(neighbour.write().bytes().iter().all(|&byte| byte == 0), "a hole is zeroes");
    }

    #[test]
    fn growth_adds_few_pieces_and_leaves_what_is_there() {
        let table = Table::new(CHUNK as u64).unwrap();
        table.get_or_make(3).write().bytes().fill(9);
        for segments in 1..500_u64 {
            table.reserve(segments * (SEGMENT * CHUNK) as u64).unwrap();
            let last = segments as usize * SEGMENT - 1;
            table.get_or_make(last).write().bytes()[0] = segments as u8;
            assert_eq!(table.get(last).unwrap().read().bytes().unwrap()[0], segments as u8);
        }
        assert!(table.homes.read().unwrap().len() <= 10);
        assert!(table.get(3).unwrap().read().bytes().unwrap().iter().all(|&byte| byte == 9));
    }

    #[test]
    fn a_region_is_full_once_and_again_after_a_hole() {
        let table = Table::new(1 << 30).unwrap();
        let fill = |chunk: usize| {
            table.get_or_make(chunk).write().bytes().fill(1);
            table.taken(chunk)
        };
        let full: Vec<_> = (0..3 * CHUNKS_PER_HUGE).filter_map(fill).collect();
        assert_eq!(full, [0, 1, 2]);
        assert!(table.get(40).unwrap().write().clear());
        table.given_back(40);
        table.collapse(1).unwrap();
        assert_eq!(fill(40), Some(1));
        // Where the machine has huge pages the bytes move; they stay what they are.
        let _ = table.collapse(1);
        for chunk in 0..3 * CHUNKS_PER_HUGE {
            assert!(table.get(chunk).unwrap().read().bytes().unwrap().iter().all(|&byte| byte == 1));
        }
    }

    #[test]
    fn a_walk_covers_the_range_and_skips_what_is_missing() {
        let table = Table::new(1 << 30).unwrap();
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
