//! Bytes to be read: of a disk, of a part of it, through a cache, within a budget.

use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Something whose bytes can be read: a disk, or a [`View`] of a part of one.
///
/// Synchronous and without a runtime: who has another kind of device waits inside of `read`. The bytes have to hold
/// still from the examination to the last range that is asked for.
pub trait ByteSource {
    /// Length, bytes.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset`. A range that does not lie inside is an error, not a panic.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable>;

    /// Returns `true` if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> dyn ByteSource + 'a {
    /// `N` bytes at `offset`.
    pub fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N], Unreadable> {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// `len` bytes at `offset`; at most [`LARGEST`] of them, because `len` may be the disk's word.
    pub fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>, Unreadable> {
        if len > LARGEST || !self.has(offset, len as u64) {
            return Err(Unreadable::outside(offset, len as u64, self.len()));
        }
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns `true` if `len` bytes at `offset` lie inside.
    pub fn has(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }
}

/// The most that [`bytes`](trait.ByteSource.html#method.bytes) reads at once: a run of bitmaps, a table of entries.
pub const LARGEST: usize = 1 << 20;

/// Reason why bytes could not be read, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Unreadable {
    /// The sentence, without a full stop.
    pub what: String,
}

impl Unreadable {
    /// A range that is not inside of its source.
    pub fn outside(offset: u64, len: u64, size: u64) -> Self {
        Self { what: format!("{len} bytes at {offset} are not inside of the {size} that there are") }
    }
}

impl ByteSource for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        let outside = || Unreadable::outside(offset, buf.len() as u64, <[u8]>::len(self) as u64);
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let end = start.checked_add(buf.len()).ok_or_else(outside)?;
        let bytes = self.get(start..end).ok_or_else(outside)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl<S: ByteSource + ?Sized> ByteSource for &S {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        (**self).read(offset, buf)
    }
}

impl ByteSource for Vec<u8> {
    fn len(&self) -> u64 {
        ByteSource::len(self.as_slice())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        ByteSource::read(self.as_slice(), offset, buf)
    }
}

/// A run of a [`View`]: `len` bytes that lie at `at` in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the container.
    pub at: u64,
    /// Length, bytes.
    pub len: u64,
}

/// A volume inside of its container: a partition is one segment, a logical volume one or several, in the order of the
/// volume's own addresses.
pub struct View<'a> {
    container: &'a dyn ByteSource,
    /// The volume's address at which each segment begins, and the segment.
    segments: Vec<(u64, Segment)>,
    len: u64,
}

impl<'a> View<'a> {
    /// The volume of these segments. One that is not inside of the container is an error.
    pub fn new(
        container: &'a dyn ByteSource,
        segments: impl IntoIterator<Item = Segment>,
    ) -> Result<Self, Unreadable> {
        let (mut mapped, mut len) = (Vec::new(), 0u64);
        for segment in segments {
            if !container.has(segment.at, segment.len) {
                return Err(Unreadable::outside(segment.at, segment.len, container.len()));
            }
            mapped.push((len, segment));
            len = len
                .checked_add(segment.len)
                .ok_or_else(|| Unreadable::outside(segment.at, segment.len, container.len()))?;
        }
        Ok(Self { container, segments: mapped, len })
    }

    /// View of a single range of the container.
    pub fn part(container: &'a dyn ByteSource, range: Range<u64>) -> Result<Self, Unreadable> {
        Self::new(container, [Segment { at: range.start, len: range.end.saturating_sub(range.start) }])
    }
}

impl ByteSource for View<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Unreadable> {
        if !(self as &dyn ByteSource).has(offset, buf.len() as u64) {
            return Err(Unreadable::outside(offset, buf.len() as u64, self.len));
        }
        let mut at = self.segments.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        while !buf.is_empty() {
            let Some((start, segment)) = self.segments.get(at) else {
                return Err(Unreadable::outside(offset, buf.len() as u64, self.len));
            };
            let inside = offset - start;
            let len =
                usize::try_from(segment.len.saturating_sub(inside)).unwrap_or(usize::MAX).min(buf.len());
            let (now, later) = buf.split_at_mut(len);
            if !now.is_empty() {
                self.container.read(segment.at + inside, now)?;
            }
            (buf, offset, at) = (later, offset + len as u64, at + 1);
        }
        Ok(())
    }
}

/// A source behind a small cache that may be read so much and no more: what bounds the time that a hostile disk costs.
/// A reader that goes in circles, or through a tree without end, meets an error that reads like any other.
///
/// The cache is part of it because only behind one can be told what a read costs: the readers ask for a field at a
/// time, and those of fragmented volumes for hundreds of thousands of them.
pub struct Budget<'a> {
    cached: Cached<'a>,
    left: Cell<u64>,
}

/// Least cost of a read of the source itself: one I/O is never cheaper.
const LEAST: u64 = 4096;
/// Least cost of a read that the cache answers. Four million of them, the smallest budget, take a second.
const LEAST_CACHED: u64 = 256;
/// Bytes that are copied from the cache count for so much less: memory is so many times as fast as a disk.
const CACHED_FACTOR: u64 = 16;

impl<'a> Budget<'a> {
    /// Enough to examine a volume as large as `source` in any format that is read here, and so large that no sound
    /// volume meets it: the densest map is that of FAT32 with clusters of 512 bytes, whose two tables are 1/64 of the
    /// volume, and are read twice.
    pub fn for_examination(source: &'a dyn ByteSource) -> Self {
        Self::new(source, (1u64 << 30).saturating_add(source.len() / 32).min(64 << 30))
    }

    /// `bytes` may be read of `source`.
    pub fn new(source: &'a dyn ByteSource, bytes: u64) -> Self {
        Self { cached: Cached::new(source), left: Cell::new(bytes) }
    }
}

impl ByteSource for Budget<'_> {
    fn len(&self) -> u64 {
        self.cached.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        if self.left.get() == 0 {
            return Err(Unreadable {
                what: "more would have to be read than a sound volume of this size needs".into(),
            });
        }
        let before = self.cached.fetches.get();
        let read = self.cached.read(offset, buf);
        let (len, fetches) = (buf.len() as u64, self.cached.fetches.get() - before);
        let cost =
            if fetches == 0 { (len / CACHED_FACTOR).max(LEAST_CACHED) } else { len.max(fetches * LEAST) };
        // The last read may cost more than is left: 1 MiB at most.
        self.left.set(self.left.get().saturating_sub(cost));
        read
    }
}

/// A source behind a small cache, so that readers may ask for a field at a time.
pub struct Cached<'a> {
    source: &'a dyn ByteSource,
    runs: RefCell<Vec<Run>>,
    clock: Cell<u64>,
    /// Number of reads of the source.
    fetches: Cell<u64>,
}

struct Run {
    offset: u64,
    bytes: Vec<u8>,
    used: u64,
}

/// Length of a read: the bitmaps of a flexible group of ext4 (16 of 4 KiB) lie side by side.
const RUN: u64 = 64 << 10;
/// Number of runs kept: 4 MiB, of which a walk of a tree needs one for each level, and one for each bitmap.
const RUNS: usize = 64;

impl<'a> Cached<'a> {
    /// `source` behind an empty cache.
    pub fn new(source: &'a dyn ByteSource) -> Self {
        Self { source, runs: RefCell::new(Vec::new()), clock: Cell::new(0), fetches: Cell::new(0) }
    }

    /// Reads the source.
    fn fetch(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.fetches.set(self.fetches.get() + 1);
        self.source.read(offset, buf)
    }
}

impl ByteSource for Cached<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Unreadable> {
        if buf.len() as u64 >= RUN || !(self as &dyn ByteSource).has(offset, buf.len() as u64) {
            return self.fetch(offset, buf);
        }
        let mut runs = self.runs.borrow_mut();
        while !buf.is_empty() {
            let start = offset - offset % RUN;
            let found = match runs.iter().position(|run| run.offset == start) {
                Some(found) => found,
                None => {
                    let len = RUN.min(self.source.len() - start) as usize;
                    let mut run = if runs.len() < RUNS {
                        Run { offset: start, bytes: Vec::new(), used: 0 }
                    } else {
                        let oldest = (0..runs.len()).min_by_key(|at| runs[*at].used).unwrap_or(0);
                        runs.swap_remove(oldest)
                    };
                    run.bytes.resize(len, 0);
                    if self.fetch(start, &mut run.bytes).is_err() {
                        // One sector of the run may be bad, and not the one that is wanted.
                        return self.fetch(offset, buf);
                    }
                    run.offset = start;
                    runs.push(run);
                    runs.len() - 1
                }
            };
            let run = &mut runs[found];
            self.clock.set(self.clock.get() + 1);
            run.used = self.clock.get();
            let from = (offset - start) as usize;
            let len = buf.len().min(run.bytes.len() - from);
            let (now, later) = buf.split_at_mut(len);
            now.copy_from_slice(&run.bytes[from..from + len]);
            (buf, offset) = (later, offset + len as u64);
        }
        Ok(())
    }
}
