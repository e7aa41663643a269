//! Sector bitmaps: one bit for each sector, least significant first; 1: the sector is in this file.

use std::ops::Range;

use crate::format::{PAGE, PAGE_U64};

/// Bits of one page.
pub(crate) const PAGE_BITS: u64 = PAGE_U64 * 8;

/// The pages of a bitmap block at `block` that hold `bits`, each with the bits of it that are meant.
pub(crate) fn pages(block: u64, bits: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    (bits.start / PAGE_BITS..bits.end.div_ceil(PAGE_BITS)).map(move |page| {
        let base = page * PAGE_BITS;
        (block + page * PAGE_U64, bits.start.max(base) - base..bits.end.min(base + PAGE_BITS) - base)
    })
}

/// Returns the value of the first of `bits`, and the length of the run of equal bits that begins there.
pub(crate) fn run(page: &[u8; PAGE], bits: Range<u64>) -> (bool, u64) {
    let get = |bit: u64| page[(bit / 8) as usize] >> (bit % 8) & 1 != 0;
    let value = get(bits.start);
    let whole = if value { 0xFF } else { 0 };
    let mut bit = bits.start + 1;
    while bit < bits.end {
        if bit.is_multiple_of(8) && bit + 8 <= bits.end && page[(bit / 8) as usize] == whole {
            bit += 8;
        } else if get(bit) == value {
            bit += 1;
        } else {
            break;
        }
    }
    (value, bit - bits.start)
}

/// Sets or clears bits.
pub(crate) fn fill(page: &mut [u8; PAGE], bits: Range<u64>, value: bool) {
    let mut bit = bits.start;
    while bit < bits.end {
        let byte = (bit / 8) as usize;
        if bit.is_multiple_of(8) && bit + 8 <= bits.end {
            page[byte] = if value { 0xFF } else { 0 };
            bit += 8;
            continue;
        }
        match value {
            true => page[byte] |= 1 << (bit % 8),
            false => page[byte] &= !(1 << (bit % 8)),
        }
        bit += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_filled_and_found_in_runs_wherever_they_begin() {
        for (start, end) in [(0, 1), (3, 5), (0, 8), (5, 29), (8, 24), (7, PAGE_BITS), (0, PAGE_BITS)] {
            let mut page = [0; PAGE];
            fill(&mut page, start..end, true);
            assert_eq!(page.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>(), end - start);
            if start > 0 {
                assert_eq!(run(&page, 0..PAGE_BITS), (false, start));
            }
            assert_eq!(run(&page, start..PAGE_BITS), (true, end - start));
            fill(&mut page, start..end, false);
            assert_eq!(run(&page, 0..PAGE_BITS), (false, PAGE_BITS));
        }
    }

    #[test]
    fn a_range_of_bits_is_cut_at_pages() {
        let pieces: Vec<_> = pages(1 << 20, PAGE_BITS - 2..2 * PAGE_BITS + 1).collect();
        let base = 1 << 20;
        assert_eq!(
            pieces,
            [(base, PAGE_BITS - 2..PAGE_BITS), (base + PAGE_U64, 0..PAGE_BITS), (base + 2 * PAGE_U64, 0..1)]
        );
    }
}
