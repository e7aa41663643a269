//! Reading the source of a run: what is where, what changed, what is left out. The same for all kinds of destinations.

use std::ops::Range;

use lunway_block::{BlockError, Buf, Extent, ExtentKind};

use crate::changed::Changed;
use crate::error::{BackupError, Result};
use crate::leaf::{LEAF, LEAVES, UNIT, leaf_range, unit_range};
use crate::request::Request;

/// Information from the source and the caller about a unit; a bit for each leaf.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks {
    /// Index of the unit.
    pub unit: u32,
    /// May have changed.
    pub touched: u16,
    /// May hold data.
    pub data: u16,
    /// Need not be kept.
    pub skip: u16,
}

impl Masks {
    /// The bytes from the first to the last of some leaves, on a disk of `size` bytes; empty where there are none.
    pub fn range(&self, leaves: u16, size: u64) -> Range<u64> {
        match (leaves.trailing_zeros(), leaves.leading_zeros()) {
            (_, 16) => 0..0,
            (first, last) => {
                let first = leaf_range(self.unit, first as usize, size);
                first.start..leaf_range(self.unit, 15 - last as usize, size).end
            }
        }
    }
}

/// The bits of leaves that a range of bytes touches in a unit.
pub(crate) fn mask(unit: u32, range: Range<u64>) -> u16 {
    let start = u64::from(unit) * UNIT;
    let from = range.start.max(start) - start;
    let to = range.end.min(start + UNIT).saturating_sub(start);
    (from / LEAF..to.div_ceil(LEAF)).fold(0, |mask, leaf| mask | 1 << leaf)
}

impl Request<'_> {
    /// The first unit at or behind `at` that changed, or that one of the ranges `forced` touches.
    pub fn next_changed(&self, at: u32, forced: &[Range<u64>]) -> Option<u32> {
        let Changed::Known { ranges, .. } = &self.changed else { return Some(at) };
        let offset = u64::from(at) * UNIT;
        let unit = |offset: u64| (offset / UNIT) as u32;
        let changed = ranges.next(offset).map(|range| unit(range.offset));
        let behind =
            forced.iter().filter(|range| range.end > offset).map(|range| unit(range.start.max(offset)));
        behind.chain(changed).min()
    }

    /// The leaves of a unit that are left out.
    pub(crate) fn skipped_leaves(&self, unit: u32) -> u16 {
        let offset = u64::from(unit) * UNIT;
        let skips = |leaf: &usize| self.skipped.covers(offset + *leaf as u64 * LEAF);
        (0..LEAVES).filter(skips).fold(0, |bits, leaf| bits | 1 << leaf)
    }

    pub(crate) fn is_touched(&self, range: Range<u64>) -> bool {
        match &self.changed {
            Changed::Unknown { .. } => true,
            Changed::Known { ranges, .. } => {
                ranges.next(range.start).is_some_and(|changed| changed.offset < range.end)
            }
        }
    }

    /// Reads a range.
    ///
    /// # Errors
    ///
    /// The place at which it failed, and the device's error.
    pub async fn read(&self, range: Range<u64>) -> Result<Buf> {
        let buf = Buf::for_overwrite((range.end - range.start) as usize);
        match self.source.read(range.start, buf).await {
            Ok(data) => Ok(data),
            Err(error) => Err(self.failed_at(range, error).await),
        }
    }

    /// The place at which a read failed: the device's own word, or the first leaf that cannot be read. Over NBD an
    /// error has no place.
    async fn failed_at(&self, range: Range<u64>, error: BlockError) -> BackupError {
        match error.place() {
            Some(offset) if offset > range.start => return BackupError::Source { offset, error },
            None => return BackupError::Source { offset: range.start, error },
            Some(_) => {}
        }
        for leaf in range.clone().step_by(LEAF as usize) {
            let len = LEAF.min(range.end - leaf) as usize;
            if let Err(error) = self.source.read(leaf, Buf::for_overwrite(len)).await {
                return BackupError::Source { offset: error.place().unwrap_or(leaf), error };
            }
        }
        BackupError::Source { offset: range.start, error }
    }

    /// Returns what the source and the caller report about units.
    ///
    /// # Errors
    ///
    /// Where the source's map cannot be read.
    pub async fn masks(&self, window: Range<u32>, size: u64, forced: &[Range<u64>]) -> Result<Vec<Masks>> {
        let (start, end) = (unit_range(window.start, size).start, unit_range(window.end - 1, size).end);
        let mut masks: Vec<Masks> = window.clone().map(|unit| Masks { unit, ..Masks::default() }).collect();
        let mut mark = |range: Range<u64>, set: fn(&mut Masks, u16)| {
            let range = range.start.max(start)..range.end.min(end);
            if range.start < range.end {
                for unit in (range.start / UNIT) as u32..range.end.div_ceil(UNIT) as u32 {
                    set(&mut masks[(unit - window.start) as usize], mask(unit, range.clone()));
                }
            }
        };
        for extent in self.extents(start, end - start, usize::MAX).await? {
            if self.is_data(&extent) {
                mark(extent.offset..extent.end(), |masks, bits| masks.data |= bits);
            }
        }
        match &self.changed {
            Changed::Unknown { .. } => mark(start..end, |masks, bits| masks.touched |= bits),
            Changed::Known { ranges, .. } => {
                let mut at = start;
                while let Some(range) = ranges.next(at).filter(|range| range.offset < end) {
                    let to = range.offset.saturating_add(range.len).max(at + 1);
                    mark(range.offset..to, |masks, bits| masks.touched |= bits);
                    at = to;
                }
            }
        }
        for range in forced {
            mark(range.clone(), |masks, bits| masks.touched |= bits);
        }
        for masks in &mut masks {
            masks.skip = self.skipped_leaves(masks.unit);
        }
        Ok(masks)
    }

    /// The first of these units, which are some, of which the source may hold data.
    ///
    /// # Errors
    ///
    /// Where the source's map cannot be read.
    pub(crate) async fn next_data(&self, window: Range<u32>, size: u64) -> Result<Option<u32>> {
        let (mut at, end) = (unit_range(window.start, size).start, unit_range(window.end - 1, size).end);
        while at < end {
            // What follows a hole is data as a rule.
            let extents = self.extents(at, end - at, 2).await?;
            if let Some(data) = extents.iter().find(|extent| self.is_data(extent)) {
                return Ok(Some((data.offset / UNIT) as u32));
            }
            match extents.last() {
                Some(last) if last.end() > at => at = last.end(),
                _ => return Ok(Some((at / UNIT) as u32)),
            }
        }
        Ok(None)
    }

    /// Tells whether an extent of the source must be read to be known.
    fn is_data(&self, extent: &Extent) -> bool {
        match extent.kind {
            ExtentKind::Data => true,
            ExtentKind::Zero => false,
            ExtentKind::Unallocated => !self.source.geometry().unmap.zeroes(),
        }
    }

    async fn extents(&self, offset: u64, len: u64, count: usize) -> Result<Vec<Extent>> {
        match self.source.extents(offset, len, count).await {
            // A device that cannot say what is where is read.
            Err(BlockError::Unsupported) => Ok(vec![Extent { offset, len, kind: ExtentKind::Data }]),
            // Where the medium fails, the reads find out: the map of a whole unit may name only its own start.
            Err(BlockError::Medium { .. }) => Ok(vec![Extent { offset, len, kind: ExtentKind::Data }]),
            extents => extents.map_err(|error| BackupError::Source { offset, error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_every_leaf_that_a_range_touches() {
        assert_eq!(mask(0, 0..UNIT), u16::MAX);
        assert_eq!(mask(1, UNIT + LEAF - 1..UNIT + LEAF + 1), 0b11);
        assert_eq!(mask(1, 0..UNIT), 0);
        assert_eq!(mask(1, UNIT..UNIT), 0);
        assert_eq!(mask(0, UNIT - 1..5 * UNIT), 1 << 15);
    }

    #[test]
    fn leaves_are_read_from_the_first_to_the_last() {
        let masks = Masks { unit: 1, ..Masks::default() };
        assert_eq!(masks.range(0b1010, 2 * UNIT), UNIT + LEAF..UNIT + 4 * LEAF);
        assert_eq!(masks.range(1 << 15, 2 * UNIT - 512), 2 * UNIT - LEAF..2 * UNIT - 512);
        assert!(masks.range(0, 2 * UNIT).is_empty());
    }
}
