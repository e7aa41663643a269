//! Changes that another program has noted, in bounded memory.

use std::ops::Range;

use crate::changed::{Change, ChangeMap, ChangedRange};
use crate::leaf::LEAF;

/// Most ranges that are kept: 32 MiB of memory. A terabyte of which every other leaf has changed has 8 Mi.
const RANGES_MAX: usize = 1 << 21;

/// Ranges in the order of the disk, rounded outwards to leaves. If there are too many, they are rounded to twice as
/// much, as often as it takes: a map may say more than what has changed, and never less.
#[derive(Debug)]
pub struct CoarseMap {
    ranges: Vec<Range<u64>>,
    grain: u64,
    ranges_max: usize,
}

impl Default for CoarseMap {
    fn default() -> Self {
        Self { ranges: Vec::new(), grain: LEAF, ranges_max: RANGES_MAX }
    }
}

impl CoarseMap {
    /// Adds a range, which begins where the last one began or behind it.
    pub fn add(&mut self, range: Range<u64>) {
        push(&mut self.ranges, range, self.grain);
        while self.ranges.len() > self.ranges_max {
            self.grain *= 2;
            let fine = std::mem::take(&mut self.ranges);
            fine.into_iter().for_each(|range| push(&mut self.ranges, range, self.grain));
        }
    }
}

fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>, grain: u64) {
    if range.is_empty() {
        return;
    }
    let range = range.start / grain * grain..range.end.next_multiple_of(grain);
    match ranges.last_mut() {
        Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

impl ChangeMap for CoarseMap {
    fn next(&self, offset: u64) -> Option<ChangedRange> {
        let at = self.ranges.partition_point(|range| range.end <= offset);
        self.ranges.get(at).map(|range| {
            let start = range.start.max(offset);
            ChangedRange { offset: start, len: range.end - start, change: Change::Written }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_whole_leaves_and_coarser_where_they_are_too_many() {
        let mut map = CoarseMap { ranges_max: 3, ..CoarseMap::default() };
        for (leaf, len) in [(0, 1), (2, 1), (2, LEAF), (5, 512), (7, 0)] {
            map.add(leaf * LEAF..leaf * LEAF + len);
        }
        assert_eq!(map.ranges, [0..LEAF, 2 * LEAF..3 * LEAF, 5 * LEAF..6 * LEAF]);
        let changed = |offset, len| Some(ChangedRange { offset, len, change: Change::Written });
        assert_eq!(map.next(LEAF), changed(2 * LEAF, LEAF));
        assert_eq!(map.next(2 * LEAF + 512), changed(2 * LEAF + 512, LEAF - 512));
        assert_eq!(map.next(6 * LEAF), None);
        for leaf in (9..200).step_by(2) {
            map.add(leaf * LEAF + 1..leaf * LEAF + 2);
        }
        assert!(map.ranges.len() <= 3 && map.grain > LEAF, "{map:?}");
        for leaf in [0, 2, 5, 9, 11, 101, 199] {
            assert!(map.next(leaf * LEAF + 1).is_some_and(|range| range.offset == leaf * LEAF + 1), "{leaf}");
        }
    }
}
