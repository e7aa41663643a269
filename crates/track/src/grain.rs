//! Units of the map: grains, pages of grains, regions of grains.

/// The unit of the map, bytes: what a backup sends for a change of one byte. 64 KiB is the grain of QEMU's bitmaps, so
/// that maps go both ways without rounding, and the leaf of a backup's hash tree.
pub const GRAIN: u64 = 64 << 10;

/// Grains of a page: 1 GiB of the disk. A page takes 4 KiB, a page of memory.
pub(crate) const PAGE_GRAINS: u64 = 16384;

/// Two bits of state for each of 32 grains.
pub(crate) const WORD_GRAINS: u64 = 32;

/// Words of a page.
pub(crate) const PAGE_WORDS: usize = (PAGE_GRAINS / WORD_GRAINS) as usize;

/// The largest disk whose changes are tracked, bytes: 1 PiB, 2^20 pages. VHDX ends at 64 TiB; the table of pages has
/// two levels of 1024.
pub const DISK_MAX: u64 = 1 << 50;

/// The smallest region, grains: 4 MiB, two words.
pub(crate) const REGION_GRAINS_MIN: u64 = 64;

/// At most so many regions may have changes that the log does not have grain by grain: at 16 MiB a region 4 GiB, which
/// an array reads within seconds.
pub const HOT_MAX: usize = 256;

/// State of a grain: as it was when the epoch began.
pub(crate) const UNTOUCHED: u64 = 0;
/// State of a grain: it reads as zeroes.
pub(crate) const UNMAPPED: u64 = 1;
/// State of a grain: it may hold anything.
pub(crate) const WRITTEN: u64 = 2;
/// The same, in a map in memory alone, and the log says so: nothing needs to be logged for another write.
pub(crate) const SAVED: u64 = 3;

/// The lower bit of each grain of a word.
pub(crate) const LOW: u64 = 0x5555_5555_5555_5555;

/// A word whose grains all have this state.
pub(crate) fn all_of(state: u64) -> u64 {
    state * LOW
}

/// Both bits of the grains `first..end` of a word.
pub(crate) fn mask(first: u64, end: u64) -> u64 {
    let up_to = |grain: u64| if grain >= WORD_GRAINS { u64::MAX } else { (1 << (2 * grain)) - 1 };
    up_to(end) & !up_to(first)
}

/// Both bits of the grains that have this state.
pub(crate) fn having(word: u64, state: u64) -> u64 {
    let differs = word ^ all_of(state);
    let same = !(differs | (differs >> 1)) & LOW;
    same | (same << 1)
}

/// Grains of a region on a disk of `size` bytes: 4 MiB up to 1 TiB, 8 MiB up to 16 TiB, 16 MiB above, so that what is
/// in doubt after a crash is at most 1, 2 and 4 GiB, and a disk of few TiB has few regions more than it can keep hot.
pub(crate) fn region_grains(size: u64) -> u64 {
    const TIB: u64 = 1 << 40;
    match size {
        ..=TIB => REGION_GRAINS_MIN,
        size if size <= 16 * TIB => 2 * REGION_GRAINS_MIN,
        _ => 4 * REGION_GRAINS_MIN,
    }
}

/// The words that the grains `first..end` have a part of: number of the word, and both bits of each of those grains.
pub(crate) fn words(first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let last = if first < end { (end - 1) / WORD_GRAINS + 1 } else { first / WORD_GRAINS };
    (first / WORD_GRAINS..last).map(move |word| {
        let start = word * WORD_GRAINS;
        (word, mask(first.saturating_sub(start), (end - start).min(WORD_GRAINS)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_states_are_two_bits_for_each_grain() {
        assert_eq!((mask(0, 1), mask(1, 3), mask(0, 32), mask(5, 5)), (3, 0b11_1100, u64::MAX, 0));
        assert_eq!(having(0b11_10_01_00, WRITTEN), 0b11_00_00);
        assert_eq!(having(0, UNTOUCHED), u64::MAX);
        assert_eq!(words(31, 65).collect::<Vec<_>>(), [(0, 3 << 62), (1, u64::MAX), (2, 3)]);
        assert_eq!((words(7, 7).count(), words(64, 64).count()), (0, 0));
    }
}
