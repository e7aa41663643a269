//! Free space of a disk at one moment that has not been written since.

use std::ops::Range;

use lunway_filesystem::Mounted;
use lunway_filesystem::tree::{self, Node};
use lunway_vhdx::{Chain, Storage};

use crate::{Bytes, Error};

/// The least unit, bytes: what is shorter is seldom worth a hole of the host.
const UNIT_MIN: u64 = 64 << 10;
/// Units of a map, at most: 16 MiB of memory.
const UNITS_MAX: u64 = 1 << 27;

/// A bit for each unit of the disk: all of it was free when the map was made, and nothing of it was written since.
///
/// A disk that is used goes on changing. Its file systems are frozen while the map is [taken](Self::take); after that
/// every write [marks](Self::written) its range, and what is still free may be given up, if no write comes in between.
///
/// That they are frozen is not taken on trust. Of one that is not, data may lie in a block before its allocation is on
/// the disk, and no write comes after the map that would mark it. So only volumes count whose own marks say that no
/// system is changing them: ext2, ext3 and ext4, which freezing marks as unmounting does; FAT and exFAT, which are
/// marked before the first change. What is left alone otherwise, and why, is in [`kept`](Self::kept).
pub struct FreeMap {
    unit: u64,
    size: u64,
    words: Vec<u64>,
    kept: Vec<String>,
}

impl FreeMap {
    /// Asks the file systems of a disk.
    ///
    /// # Errors
    ///
    /// They changed while they were read.
    pub fn take<S: Storage>(chain: &Chain<S>) -> Result<Self, Error> {
        let sector = chain.disks().first().map_or(512, |disk| disk.parameters().logical_sector);
        let bytes = Bytes(chain);
        let mut tree = tree::Disk::examine(&bytes, sector);
        tree.distrust(Mounted::Untold);
        let mut map = Self::new(chain.size());
        map.keep(tree.root());
        let ended = tree.for_each_free(&bytes, &mut |range| map.free(&range));
        ended.map_err(|doubt| Error::Changed(doubt.reason))?;
        Ok(map)
    }

    /// Nothing is free.
    fn new(size: u64) -> Self {
        let unit = size.div_ceil(UNITS_MAX).next_power_of_two().max(UNIT_MIN);
        Self { unit, size, words: vec![0; size.div_ceil(unit).div_ceil(64) as usize], kept: Vec::new() }
    }

    /// Notes why nothing of a part of the disk is free, and of the parts in it.
    fn keep(&mut self, node: &Node) {
        if let (Some(kind), Some(reason)) = (node.kind, &node.reason) {
            let remedy = node.remedy.map(|remedy| format!(" ({remedy})")).unwrap_or_default();
            self.kept.push(format!("{kind} at byte {}: {reason}{remedy}", node.offset));
        }
        node.children.iter().for_each(|child| self.keep(child));
    }

    /// Volumes of which nothing counts as free: what and where each is, why, and what would help. No full stops.
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    /// Returns `true` if nothing is free.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The units that lie in a range as a whole are free.
    fn free(&mut self, range: &Range<u64>) {
        let end = if range.end >= self.size { self.size.div_ceil(self.unit) } else { range.end / self.unit };
        for unit in range.start.div_ceil(self.unit)..end {
            self.words[(unit / 64) as usize] |= 1 << (unit % 64);
        }
    }

    /// A range was written: it is free no longer.
    pub fn written(&mut self, range: &Range<u64>) {
        for unit in range.start / self.unit..range.end.min(self.size).div_ceil(self.unit) {
            self.words[(unit / 64) as usize] &= !(1 << (unit % 64));
        }
    }

    /// The first range from `from` on that is free; it ends at the next multiple of `within` at the latest.
    pub fn next(&self, from: u64, within: u64) -> Option<Range<u64>> {
        let units = self.size.div_ceil(self.unit);
        let mut unit = from.div_ceil(self.unit);
        while unit < units && !self.is_free(unit) {
            let empty = unit.is_multiple_of(64) && self.words[(unit / 64) as usize] == 0;
            unit += if empty { 64 } else { 1 };
        }
        if unit >= units {
            return None;
        }
        let start = unit * self.unit;
        let border = (start + 1).next_multiple_of(within.max(self.unit)).min(self.size);
        while unit < units && unit * self.unit < border && self.is_free(unit) {
            unit += 1;
        }
        Some(start..(unit * self.unit).min(border))
    }

    fn is_free(&self, unit: u64) -> bool {
        self.words[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn all(map: &FreeMap, within: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(range) = map.next(at, within) {
            at = range.end;
            found.push(range);
        }
        found
    }

    #[test]
    fn what_is_written_is_free_no_longer() {
        let mut map = FreeMap::new(10 * MIB + 512);
        map.free(&(MIB + 1..4 * MIB));
        map.free(&(9 * MIB..10 * MIB + 512));
        let unit = UNIT_MIN;
        let tail = 10 * MIB..10 * MIB + 512;
        assert_eq!(all(&map, 2 * MIB), [MIB + unit..2 * MIB, 2 * MIB..4 * MIB, 9 * MIB..10 * MIB, tail]);
        map.written(&(3 * MIB - 1..3 * MIB + 1));
        map.written(&(9 * MIB..10 * MIB + 512));
        assert_eq!(
            all(&map, 2 * MIB),
            [MIB + unit..2 * MIB, 2 * MIB..3 * MIB - unit, 3 * MIB + unit..4 * MIB]
        );
        map.written(&(0..10 * MIB + 512));
        assert!(all(&map, MIB).is_empty());
    }

    #[test]
    fn a_map_of_the_largest_disk_is_bounded() {
        let map = FreeMap::new(64 << 40);
        assert_eq!((map.unit, map.words.len() * 8), (512 << 10, 16 << 20));
    }
}
