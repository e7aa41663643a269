//! Slots: where ordinary commands say without a lock which blocks they touch.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::claim::Claim;

/// Commands that can be inside without a place in line: 4 KiB for each gate. More than four sessions of the default
/// command window (128) have in flight on one unit.
const SLOTS: usize = 512;
/// Slots that are tried before the command stands in line instead: eight cache lines.
const PROBES: usize = 64;
/// Slots between the first ones of two threads, so that each keeps to cache lines of its own.
const STRIDE: usize = 64;

/// A free slot.
const FREE: u64 = 0;
/// A command that touches no blocks.
const NOTHING: u64 = 1 << COUNT_BITS;
/// A word is the number of the first block (40 bits: 512 TiB of 512 bytes) and a count that is not 0 (24 bits).
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const FIRST_MAX: u64 = (1 << (u64::BITS - COUNT_BITS)) - 1;

/// The claim as a word; `None`: it does not fit into one.
fn pack(claim: &Claim) -> Option<u64> {
    match claim {
        Claim::Nothing => Some(NOTHING),
        Claim::One(range) => {
            let count = range.end - range.start;
            let fits = range.start <= FIRST_MAX && (1..=COUNT_MAX).contains(&count);
            fits.then_some(range.start << COUNT_BITS | count)
        }
        Claim::Many(_) => None,
    }
}

fn unpack(word: u64) -> Claim {
    Claim::blocks(word >> COUNT_BITS, word & COUNT_MAX)
}

/// The claims of commands that are inside.
pub(super) struct Slots([AtomicU64; SLOTS]);

impl Default for Slots {
    fn default() -> Self {
        Self([const { AtomicU64::new(FREE) }; SLOTS])
    }
}

/// The slot that this thread used last: of commands that end at once it is free again, and in the cache.
fn cursor() -> &'static std::thread::LocalKey<Cell<usize>> {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static CURSOR: Cell<usize> = Cell::new(THREADS.fetch_add(STRIDE, Ordering::Relaxed));
    }
    &CURSOR
}

impl Slots {
    /// Takes a slot; `None`: the claim does not fit into one, or none was found.
    pub(super) fn take(&self, claim: &Claim) -> Option<usize> {
        let word = pack(claim)?;
        cursor().with(|cursor| {
            let start = cursor.get();
            for probe in 0..PROBES {
                let index = (start + probe) % SLOTS;
                let slot = &self.0[index];
                if slot.load(Ordering::Relaxed) == FREE
                    && slot.compare_exchange(FREE, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
                {
                    cursor.set(index);
                    return Some(index);
                }
            }
            cursor.set(start + PROBES);
            None
        })
    }

    pub(super) fn free(&self, index: usize) {
        self.0[index].store(FREE, Ordering::SeqCst);
    }

    /// Some command is inside whose claim overlaps.
    pub(super) fn overlap(&self, claim: &Claim) -> bool {
        let words = self.0.iter().map(|slot| slot.load(Ordering::SeqCst));
        words.filter(|&word| word != FREE).any(|word| word != NOTHING && unpack(word).overlaps(claim))
    }

    /// No command is inside.
    pub(super) fn are_free(&self) -> bool {
        self.0.iter().all(|slot| slot.load(Ordering::SeqCst) == FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_into_a_word_comes_back_and_the_rest_is_left_to_the_line() {
        for (first, count) in [(0, 1), (7, 4096), (FIRST_MAX, COUNT_MAX)] {
            let claim = Claim::blocks(first, count);
            assert_eq!(pack(&claim).map(unpack), Some(claim));
        }
        assert_eq!(pack(&Claim::blocks(FIRST_MAX + 1, 1)), None);
        assert_eq!(pack(&Claim::blocks(0, COUNT_MAX + 1)), None);
        assert_eq!(pack(&Claim::ranges([0..1, 2..3].into_iter())), None);
        assert_ne!(pack(&Claim::Nothing), Some(FREE));
    }

    #[test]
    fn slots_are_found_until_there_are_none_and_a_flush_overlaps_nothing() {
        let slots = Slots::default();
        let taken: Vec<usize> =
            std::iter::repeat_with(|| slots.take(&Claim::Nothing)).take(2 * SLOTS).flatten().collect();
        assert_eq!(taken.len(), SLOTS);
        assert!(!slots.overlap(&Claim::blocks(0, 1 << 40)) && !slots.are_free());
        slots.free(taken[0]);
        let again = std::iter::repeat_with(|| slots.take(&Claim::blocks(8, 8))).take(SLOTS).flatten().next();
        assert_eq!(again, Some(taken[0]));
        assert!(slots.overlap(&Claim::blocks(15, 1)) && !slots.overlap(&Claim::blocks(16, 1)));
        taken.into_iter().for_each(|index| slots.free(index));
        assert!(slots.are_free());
    }
}
