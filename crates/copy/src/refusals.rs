//! Pieces that a destination did not take out of the source's file.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most pieces that are passed over after a refusal: an attempt in vain takes about 50 µs, a piece of 1 MiB ten times
/// as long.
const PASSED_MAX: u32 = 64;

/// What refusals say of the next pieces: nothing where a piece has zeroes, everything where the file systems are not
/// fit for it. After each refusal in a row twice as many pieces are passed over, up to [`PASSED_MAX`].
#[derive(Default)]
pub(crate) struct Refusals {
    /// Pieces passed over after the last refusal.
    passed: AtomicU32,
    /// Of these, still to come.
    left: AtomicU32,
}

impl Refusals {
    /// Returns `true` if the next piece is not offered.
    pub(crate) fn passes_over(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// A piece was offered.
    pub(crate) fn note(&self, adopted: bool) {
        let passed = if adopted { 0 } else { (2 * self.passed.load(Relaxed)).clamp(1, PASSED_MAX) };
        self.passed.store(passed, Relaxed);
        self.left.store(passed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_passed_over_after_refusals_and_none_after_the_first_that_was_taken() {
        let refusals = Refusals::default();
        let offered = |pieces: u32, taken: bool| {
            let offers = (0..pieces).filter(|_| {
                let offered = !refusals.passes_over();
                if offered {
                    refusals.note(taken);
                }
                offered
            });
            offers.count()
        };
        assert_eq!(offered(15, false), 4, "1, 2, 4, 8 apart");
        assert!((100..105).contains(&offered(6500, false)), "65 apart in the end");
        assert!(offered(128, true) >= 64, "once more, and then each");
        assert_eq!(offered(10, true), 10);
    }
}
