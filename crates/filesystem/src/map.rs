//! Ranges of bytes, and what they are used for.

use std::ops::Range;

/// Use of a range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// Its owner needs it.
    Used,
    /// Its owner does not need it, and that is proven.
    Free,
    /// Not known: kept like what is used.
    Unknown,
}

/// A set of bytes as sorted, disjoint ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The union of ranges in any order.
    pub fn union(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut all: Vec<_> = ranges.into_iter().filter(|range| range.start < range.end).collect();
        all.sort_unstable_by_key(|range| range.start);
        all.dedup_by(|next, last| {
            let joined = next.start <= last.end;
            if joined {
                last.end = last.end.max(next.end);
            }
            joined
        });
        Self(all)
    }

    /// The ranges, sorted.
    pub fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Number of bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns `true` if any byte of `range` is in the set.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|known| known.end <= range.start);
        self.0.get(first).is_some_and(|known| known.start < range.end)
    }

    /// Returns `true` if every byte of `range` is in the set.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|known| known.end <= range.start);
        range.is_empty()
            || self.0.get(first).is_some_and(|known| known.start <= range.start && range.end <= known.end)
    }

    /// Gives what of `range` is not in the set, in order.
    pub fn missing_from(&self, range: Range<u64>, sink: &mut dyn FnMut(Range<u64>)) {
        let mut start = range.start;
        let first = self.0.partition_point(|known| known.end <= range.start);
        for known in &self.0[first..] {
            if known.start >= range.end {
                break;
            }
            if start < known.start {
                sink(start..known.start);
            }
            start = known.end;
        }
        if start < range.end {
            sink(start..range.end);
        }
    }
}

/// The part of `range` that lies in `window`, if any.
pub fn clip(range: &Range<u64>, window: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (range.start.max(window.start), range.end.min(window.end));
    (start < end).then_some(start..end)
}

/// Joins ranges that touch before it gives them on, so that bits and extents may be given one by one. Ranges must come
/// in order: one that begins before the end of the last is a mistake of the caller, and is left out, which makes
/// it used.
pub struct Joiner<'a> {
    held: Range<u64>,
    sink: &'a mut dyn FnMut(Range<u64>),
}

impl<'a> Joiner<'a> {
    /// Gives to `sink`.
    pub fn new(sink: &'a mut dyn FnMut(Range<u64>)) -> Self {
        Self { held: 0..0, sink }
    }

    /// The next range.
    pub fn push(&mut self, range: Range<u64>) {
        if range.start >= range.end || range.start < self.held.end {
            debug_assert!(range.start >= range.end, "{range:?} does not come after {:?}", self.held);
            return;
        }
        if range.start == self.held.end && !self.held.is_empty() {
            self.held.end = range.end;
            return;
        }
        let held = std::mem::replace(&mut self.held, range);
        if !held.is_empty() {
            (self.sink)(held);
        }
    }

    /// The last range goes on.
    pub fn finish(self) {
        if !self.held.is_empty() {
            (self.sink)(self.held);
        }
    }
}

/// Runs of bits that are 0 among the first `bits` of a bitmap whose bit n is bit n % 8 of byte n / 8: what ext, NTFS
/// and exFAT share. A bitmap that is too short has ones behind its end.
pub fn zero_bits(bitmap: &[u8], bits: u64, mut sink: impl FnMut(Range<u64>)) {
    let bits = bits.min(bitmap.len() as u64 * 8);
    let mut start = None;
    let mut at = 0;
    while at < bits {
        let word = (at % 64 == 0 && at + 64 <= bits)
            .then(|| bitmap.get(at as usize / 8..).and_then(|rest| rest.first_chunk()))
            .flatten()
            .map(|bytes| u64::from_le_bytes(*bytes));
        match word {
            Some(u64::MAX) => {
                if let Some(start) = start.take() {
                    sink(start..at);
                }
                at += 64;
            }
            Some(0) => {
                start.get_or_insert(at);
                at += 64;
            }
            _ => {
                // A word of both, bit by bit.
                let end = if word.is_some() { at + 64 } else { (at + 1).min(bits) };
                for bit in at..end {
                    let set = bitmap[bit as usize / 8] >> (bit % 8) & 1 == 1;
                    if set {
                        if let Some(start) = start.take() {
                            sink(start..bit);
                        }
                    } else {
                        start.get_or_insert(bit);
                    }
                }
                at = end;
            }
        }
    }
    if let Some(start) = start {
        sink(start..bits);
    }
}
