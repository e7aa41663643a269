//! Ranges of a source that are not copied, because they are not needed.

use std::ops::Range;

use lunway_block::{Extent, ExtentKind};

/// Ranges are remembered in units of this, bytes: as [`zeroes`](crate::zeroes) looks for them, and 2 MiB of memory for
/// a disk of 1 TiB, however many ranges there are.
const UNIT: u64 = 64 << 10;

/// Parts of a source that are not read and count as zeroes: free space of its file systems. Whole units of 64 KiB, so
/// that what is shorter is copied.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    /// A bit for each unit.
    words: Vec<u64>,
}

impl Skipped {
    /// Adds the whole units in a range of bytes. Ranges that touch must have been joined.
    pub fn insert(&mut self, range: Range<u64>) {
        for unit in range.start.div_ceil(UNIT)..range.end / UNIT {
            let word = (unit / 64) as usize;
            if word >= self.words.len() {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= 1 << (unit % 64);
        }
    }

    /// Returns `true` if the 64 KiB at `offset`, a multiple of that, are left out.
    pub fn covers(&self, offset: u64) -> bool {
        self.has(offset / UNIT)
    }

    fn has(&self, unit: u64) -> bool {
        self.words.get((unit / 64) as usize).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    /// Cuts an extent into parts that take turns in being skipped. Only data is.
    pub(crate) fn parts(&self, extent: &Extent) -> Vec<(Extent, bool)> {
        if self.words.is_empty() || extent.kind != ExtentKind::Data {
            return vec![(*extent, false)];
        }
        let mut parts: Vec<(Extent, bool)> = Vec::new();
        let mut at = extent.offset;
        while at < extent.end() {
            let unit = at / UNIT;
            let end = ((unit + 1) * UNIT).min(extent.end());
            let skipped = self.has(unit);
            match parts.last_mut() {
                Some((last, was)) if *was == skipped => last.len += end - at,
                _ => parts.push((Extent { offset: at, len: end - at, kind: extent.kind }, skipped)),
            }
            at = end;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_units_of_data_are_skipped_and_nothing_else() {
        let mut skipped = Skipped::default();
        skipped.insert(UNIT - 1..3 * UNIT + 1);
        skipped.insert(100 * UNIT..100 * UNIT + 7);
        let data = |offset: u64, len: u64| Extent { offset, len, kind: ExtentKind::Data };
        let expected = [
            (data(512, UNIT - 512), false),
            (data(UNIT, 2 * UNIT), true),
            (data(3 * UNIT, 200 * UNIT), false),
        ];
        assert_eq!(skipped.parts(&data(512, 203 * UNIT - 512)), expected);
        let zero = Extent { kind: ExtentKind::Zero, ..data(0, 4 * UNIT) };
        assert_eq!(skipped.parts(&zero), [(zero, false)]);
    }
}
