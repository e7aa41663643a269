//! The parents of a chain that have anything at a place of the disk, so that a read in a chain of 64 files asks those
//! alone.
//!
//! Parents are open for reading only, so what is known of them stays true. It is learnt by the first read of a cell.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Bytes of the disk of which one fact is kept: the smallest block (MS-VHDX 2.6.2.1).
pub(crate) const CELL: u64 = 1 << 20;
/// Cells that are remembered, in groups of as many as a word has bits: 24 bytes and less for a chain of 64, 6 MiB.
const REMEMBERED: usize = 1 << 18;
/// Disks of which one word knows.
const WORD: usize = u64::BITS as usize;

/// Facts of the cells that were read.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Words of a fact: a bit for each disk of the chain.
    words: usize,
    facts: RwLock<HashMap<u64, Box<[u64]>>>,
}

impl Cells {
    /// Nothing is known yet of a chain of so many disks.
    pub(crate) fn new(disks: usize) -> Self {
        Self { words: disks.div_ceil(WORD), facts: RwLock::default() }
    }

    /// The first disk below `level` that has anything in a cell, or `Some(None)` if none has; `None`: not known.
    pub(crate) fn next(&self, cell: u64, level: usize) -> Option<Option<usize>> {
        let facts = self.facts.read().unwrap_or_else(PoisonError::into_inner);
        let words = facts.get(&cell)?;
        let from = level + 1;
        let mut word = from / WORD;
        let mut bits = words.get(word).map_or(0, |bits| bits & (u64::MAX << (from % WORD)));
        while bits == 0 {
            word += 1;
            match words.get(word) {
                Some(next) => bits = *next,
                None => return Some(None),
            }
        }
        Some(Some(word * WORD + bits.trailing_zeros() as usize))
    }

    /// Notes the disks that have anything in a cell.
    pub(crate) fn learn(&self, cell: u64, having: &[usize]) {
        let mut words = vec![0; self.words].into_boxed_slice();
        for disk in having {
            words[disk / WORD] |= 1 << (disk % WORD);
        }
        let mut facts = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        if facts.len() >= REMEMBERED / self.words.max(1) {
            // What is in use is learnt again soon.
            facts.clear();
        }
        facts.insert(cell, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_disk_that_has_something_is_found_in_every_word() {
        let cells = Cells::new(200);
        assert_eq!(cells.next(7, 0), None);
        cells.learn(7, &[3, 63, 64, 199]);
        for (level, next) in [(0, 3), (2, 3), (3, 63), (62, 63), (63, 64), (64, 199), (198, 199)] {
            assert_eq!(cells.next(7, level), Some(Some(next)), "{level}");
        }
        assert_eq!(cells.next(7, 199), Some(None));
        assert_eq!(cells.next(7, 255), Some(None));
        cells.learn(8, &[]);
        assert_eq!((cells.next(8, 0), cells.next(9, 0)), (Some(None), None));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let cells = Cells::new(64);
        (0..REMEMBERED as u64 + 5).for_each(|cell| cells.learn(cell, &[1]));
        assert!(cells.facts.read().unwrap().len() <= REMEMBERED);
        assert_eq!(cells.next(REMEMBERED as u64 + 4, 0), Some(Some(1)));
    }
}
