//! A sample of what an earlier run has left in a draft, read back before it is gone on with.
//!
//! A file that another program has put back from a copy, or whose disk has lost writes that it had acknowledged, may
//! have every block and not the bytes. All of it cannot be read where the share takes hours for that; what the sample
//! does not hit is found by `verify`, as any damage of a point is.

use lunway_vhdx::Chain;

use crate::error::{BackupError, Result};
use crate::folder::Open;
use crate::leaf::{LEAVES, Leaf, UnitLeaves, leaf_range};
use crate::point_files::{damaged, is_as_written};
use crate::point_id::PointId;
use crate::sidecar::Sidecar;
use crate::threads::each;

/// Segments of hashes that the sample is taken from: a whole one has up to a megabyte of them, and is read whole.
const SEGMENTS: usize = 8;
/// Leaves of each that are read: 4 MiB in all, four round trips of a share.
const LEAVES_OF_EACH: usize = 8;

/// Compares leaves of a draft's disk with their hashes, spread over all that `known` has, the last ones among them.
/// Blocks.
///
/// # Errors
///
/// [`BackupError::Damaged`] where one of them is not what was written, and what the share says.
pub(crate) fn check_sample(disk: &Chain<Open>, name: &str, known: &Sidecar, point: PointId) -> Result<()> {
    let mut places = Vec::new();
    for index in spread(known.segments().len(), SEGMENTS) {
        let units = known.segment(index).map_err(|error| damaged(point, error))?;
        let sampled = spread(units.len(), LEAVES_OF_EACH).zip(0..);
        places.extend(sampled.filter_map(|(unit, turn)| leaf_with_data(&units[unit], turn)));
    }
    let read = each(&places, |(unit, leaf, written)| {
        let range = leaf_range(*unit, *leaf, disk.size());
        if is_as_written(disk, name, range.clone(), *written)? {
            return Ok(());
        }
        let what = format!("{name} does not have what was written to the disk at offset {}", range.start);
        Err(BackupError::Damaged { point, what })
    });
    read.into_iter().collect()
}

/// Up to `most` of the numbers below `count`, spread evenly, the last one among them.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(most);
    (1..=taken).map(move |number| number * count / taken - 1)
}

/// One of a unit's leaves that has data, another one each turn.
fn leaf_with_data(unit: &UnitLeaves, turn: usize) -> Option<(u32, usize, Leaf)> {
    let leaves = (0..LEAVES).map(|leaf| (leaf + turn) % LEAVES);
    let mut held = leaves.filter_map(|leaf| Some((unit.unit, leaf, unit.get(leaf)?)));
    held.find(|(_, _, written)| *written != Leaf::Zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_spread_over_everything_and_has_the_last() {
        assert_eq!(spread(0, 8).count(), 0);
        assert_eq!(spread(3, 8).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(spread(16, 4).collect::<Vec<_>>(), [3, 7, 11, 15]);
        let far: Vec<usize> = spread(1_000_003, 8).collect();
        assert!(far.windows(2).all(|pair| pair[0] < pair[1]) && far.last() == Some(&1_000_002));
    }

    #[test]
    fn each_turn_takes_another_leaf_and_never_a_zero() {
        let mut unit = UnitLeaves::none(5);
        unit.set(2, Leaf::Zero);
        assert!(leaf_with_data(&unit, 0).is_none());
        let (first, second) = (Leaf::of(&[1]), Leaf::of(&[2]));
        unit.set(3, first);
        unit.set(9, second);
        assert_eq!(leaf_with_data(&unit, 0), Some((5, 3, first)));
        assert_eq!(leaf_with_data(&unit, 4), Some((5, 9, second)));
        assert_eq!(leaf_with_data(&unit, 10), Some((5, 3, first)));
    }
}
