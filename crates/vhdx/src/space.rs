//! The free-space manager: which mebibytes of the file are taken.

use crate::format::MIB;
use crate::region::Span;

/// A map of the file with two bits for each mebibyte: taken, and known to read as zeroes.
///
/// Holes are reused from the lowest on, so that the file's tail becomes free; the file grows only where no hole is long
/// enough. A freed range comes back through [`release`](Self::release) only when the change that freed it is durable
/// **and** no I/O that was resolved before can still reach it: that is the [`Disk`](crate::Disk)'s part. Until then it
/// stays taken here.
pub(crate) struct Space {
    taken: Bits,
    zero: Bits,
    /// Whole mebibytes of the file.
    len: u64,
    /// Mebibytes of a payload block.
    block: u64,
    /// No hole of a block's length begins below this.
    block_hint: u64,
    /// No hole begins below this.
    hint: u64,
    /// Behind the last one taken.
    high: u64,
}

impl Space {
    pub(crate) fn new(file_len: u64, block_size: u64) -> Self {
        let mut space = Self {
            taken: Bits::default(),
            zero: Bits::default(),
            len: file_len / MIB,
            block: block_size / MIB,
            block_hint: 0,
            hint: 0,
            high: 0,
        };
        // The header section.
        space.take(Span { offset: 0, len: MIB });
        space
    }

    /// Marks a range as taken; `false` if part of it was already.
    pub(crate) fn take(&mut self, span: Span) -> bool {
        let (first, end) = (span.offset / MIB, span.end().div_ceil(MIB));
        let free = self.taken.set(first, end);
        self.zero.clear(first, end);
        self.high = self.high.max(end);
        free
    }

    /// Returns `true` if nothing of a range is taken.
    pub(crate) fn is_free(&self, span: Span) -> bool {
        self.taken.are_clear(span.offset / MIB, span.end().div_ceil(MIB))
    }

    /// Gives a range back; `zero`: it reads as zeroes.
    pub(crate) fn release(&mut self, span: Span, zero: bool) {
        let (first, end) = (span.offset / MIB, span.end().div_ceil(MIB));
        for mib in first..end {
            self.taken.replace(mib, false);
            self.zero.replace(mib, zero);
        }
        self.hint = self.hint.min(first);
        self.block_hint = self.block_hint.min(first.saturating_sub(self.block - 1));
        if end >= self.high {
            self.high = self.taken.end_of_ones(first);
        }
    }

    /// Takes a hole for a payload block, and says whether it reads as zeroes.
    pub(crate) fn allocate_block(&mut self) -> Option<(Span, bool)> {
        let first = self.find(self.block_hint, self.block);
        self.block_hint = first.unwrap_or(self.len.saturating_sub(self.block - 1).max(self.block_hint));
        first.map(|first| self.taken_from(first, self.block))
    }

    /// Takes a hole of `len` bytes.
    pub(crate) fn allocate(&mut self, len: u64) -> Option<Span> {
        let count = len.div_ceil(MIB);
        self.find(self.hint, count).map(|first| self.taken_from(first, count).0)
    }

    /// Takes a hole for a sector bitmap block.
    pub(crate) fn allocate_bitmap(&mut self) -> Option<Span> {
        let first = self.find(self.hint, 1);
        self.hint = first.unwrap_or(self.len.max(self.hint));
        first.map(|first| self.taken_from(first, 1).0)
    }

    fn taken_from(&mut self, first: u64, count: u64) -> (Span, bool) {
        let zero = (first..first + count).all(|mib| self.zero.get(mib));
        let span = Span { offset: first * MIB, len: count * MIB };
        self.take(span);
        (span, zero)
    }

    fn find(&self, from: u64, count: u64) -> Option<u64> {
        let (mut at, mut run) = (from, 0);
        while at < self.len {
            if self.taken.get(at) {
                run = 0;
                at += self.taken.full_word_left(at);
                continue;
            }
            run += 1;
            if run == count {
                return Some(at + 1 - count);
            }
            at += 1;
        }
        None
    }

    /// The file has grown to `file_len`: what was added, from the next whole mebibyte on, reads as zeroes.
    pub(crate) fn grow(&mut self, old_len: u64, file_len: u64) {
        for mib in old_len.div_ceil(MIB)..file_len / MIB {
            if !self.taken.get(mib) {
                self.zero.replace(mib, true);
            }
        }
        self.len = self.len.max(file_len / MIB);
    }

    /// The file ends at `file_len`, behind all that is taken: nothing is allocated behind it any more.
    pub(crate) fn shrink(&mut self, file_len: u64) {
        let old = std::mem::replace(&mut self.len, file_len / MIB);
        self.zero.clear(self.len, old);
    }

    /// The file ends at `file_len` after all; what is behind the end that it was to have may be anything.
    pub(crate) fn lengthen(&mut self, file_len: u64) {
        self.len = self.len.max(file_len / MIB);
    }

    /// A size that holds everything that is taken, bytes.
    pub(crate) fn end(&self) -> u64 {
        self.high * MIB
    }

    /// Bytes that are taken: the length of the file if there were no holes.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() * MIB
    }

    /// Free mebibytes behind the last one that is taken.
    pub(crate) fn behind(&self) -> u64 {
        self.len.saturating_sub(self.high)
    }

    /// Free mebibytes within the file.
    pub(crate) fn free(&self) -> u64 {
        self.len.saturating_sub(self.taken() / MIB)
    }
}

/// Bits that are zero where nothing was set.
#[derive(Default)]
struct Bits {
    words: Vec<u64>,
}

impl Bits {
    fn get(&self, bit: u64) -> bool {
        self.words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    /// Sets a bit and says what it was.
    fn replace(&mut self, bit: u64, value: bool) -> bool {
        let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
        if word >= self.words.len() {
            if !value {
                return false;
            }
            self.words.resize(word + 1, 0);
        }
        let old = self.words[word] & mask != 0;
        match value {
            true => self.words[word] |= mask,
            false => self.words[word] &= !mask,
        }
        old
    }

    /// Sets the bits of a range, and says whether all of them were clear. A word at a time: a large table has millions
    /// of blocks, most of them one behind the other.
    fn set(&mut self, first: u64, end: u64) -> bool {
        let words = (end.div_ceil(64)) as usize;
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
        let mut clear = true;
        for (word, mask) in masks(first, end) {
            clear &= self.words[word] & mask == 0;
            self.words[word] |= mask;
        }
        clear
    }

    fn clear(&mut self, first: u64, end: u64) {
        let there = self.words.len() as u64 * 64;
        for (word, mask) in masks(first, end.min(there)) {
            self.words[word] &= !mask;
        }
    }

    fn are_clear(&self, first: u64, end: u64) -> bool {
        let there = self.words.len() as u64 * 64;
        masks(first, end.min(there)).all(|(word, mask)| self.words[word] & mask == 0)
    }

    /// Returns the step from a set bit: over the rest of its word if that is all ones.
    fn full_word_left(&self, bit: u64) -> u64 {
        match bit.is_multiple_of(64) && self.words.get((bit / 64) as usize) == Some(&u64::MAX) {
            true => 64,
            false => 1,
        }
    }

    /// Behind the last set bit below `below`.
    fn end_of_ones(&self, below: u64) -> u64 {
        let mut bit = below;
        while bit > 0 && !self.get(bit - 1) {
            let word = ((bit - 1) / 64) as usize;
            bit = if self.words.get(word).is_none_or(|word| *word == 0) { word as u64 * 64 } else { bit - 1 };
        }
        bit
    }
}

/// The words of a range of bits, and which of their bits belong to it.
fn masks(first: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
        (word as usize, (u64::MAX >> (64 - to)) & (u64::MAX << from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64, count: u64) -> Span {
        Span { offset: first * MIB, len: count * MIB }
    }

    #[test]
    fn holes_are_reused_from_the_lowest_on_before_the_file_grows() {
        let mut space = Space::new(20 * MIB, 4 * MIB);
        assert!(space.take(span(1, 3)));
        assert!(!space.take(span(3, 1)), "taken already");
        let first = space.allocate_block().expect("room");
        let second = space.allocate_block().expect("room");
        assert_eq!([first, second], [(span(4, 4), false), (span(8, 4), false)]);
        assert_eq!(space.allocate_bitmap(), Some(span(12, 1)));
        assert_eq!(space.allocate_block(), Some((span(13, 4), false)));
        assert_eq!(space.allocate_block(), None, "17–20 is no block");
        space.release(span(8, 4), true);
        assert_eq!(space.allocate_block(), Some((span(8, 4), true)));
        space.grow(20 * MIB, 24 * MIB);
        assert_eq!(space.allocate_block(), Some((span(17, 4), false)), "part of it is old space");
        assert_eq!(space.end(), 21 * MIB);
        space.release(span(17, 4), false);
        assert_eq!(space.end(), 17 * MIB);
        space.release(span(4, 4), false);
        assert_eq!((space.end(), space.free()), (17 * MIB, 11));
    }

    #[test]
    fn a_hole_that_joins_its_neighbour_is_found() {
        let mut space = Space::new(10 * MIB, 4 * MIB);
        assert_eq!(space.allocate_block(), Some((span(1, 4), false)));
        assert_eq!(space.allocate_bitmap(), Some(span(5, 1)));
        assert_eq!(space.allocate_block(), Some((span(6, 4), false)));
        space.release(span(6, 4), false);
        assert_eq!(space.allocate_bitmap(), Some(span(6, 1)));
        assert_eq!(space.allocate_block(), None);
        space.release(span(5, 2), false);
        assert_eq!(space.allocate_block(), Some((span(5, 4), false)));
    }

    #[test]
    fn ranges_of_bits_are_those_of_bits_one_by_one() {
        for (first, end) in [(0, 0), (0, 1), (3, 64), (63, 65), (64, 128), (70, 300), (191, 192), (130, 131)]
        {
            let (mut words, mut single) = (Bits::default(), Bits::default());
            single.replace(130, true);
            words.replace(130, true);
            assert_eq!(words.are_clear(first, end), !(first..end).contains(&130), "{first}–{end}");
            assert_eq!(words.set(first, end), !(first..end).contains(&130), "{first}–{end}");
            for bit in first..end {
                single.replace(bit, true);
            }
            assert!((0..400).all(|bit| words.get(bit) == single.get(bit)), "{first}–{end}");
            words.clear(first, end);
            assert!((0..400).all(|bit| words.get(bit) == (bit == 130 && !(first..end).contains(&bit))));
        }
    }
}
