//! Leaves and units: the grain in which a disk is hashed, compared and sent.

use std::collections::HashSet;
use std::ops::Range;

use crate::point_id::PointId;

/// Bytes of a leaf: what one hash covers, and the least that is sent. The grain of change tracking (`track`), and 32
/// bytes of hash for each, 0.05 %.
pub const LEAF: u64 = 64 << 10;
/// Bytes of a unit: what is read at a time, and a block of the VHDX files.
pub const UNIT: u64 = 1 << 20;
/// Leaves of a unit.
pub const LEAVES: usize = (UNIT / LEAF) as usize;
/// The largest disk, bytes: VHDX's own limit. Numbers of units fit into 32 bits.
pub const DISK_MAX: u64 = 64 << 40;

/// BLAKE3 of a leaf's bytes. The last leaf of a disk may be shorter than others.
pub type LeafHash = [u8; 32];

/// Content of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaf {
    /// Zeroes.
    #[default]
    Zero,
    /// Bytes with this hash.
    Data(LeafHash),
}

impl Leaf {
    /// The leaf that these bytes are.
    pub fn of(bytes: &[u8]) -> Self {
        match is_zero(bytes) {
            true => Self::Zero,
            false => Self::Data(*blake3::hash(bytes).as_bytes()),
        }
    }
}

/// Leaves that no one should read any more: the point whose file holds them, unit, and which of the unit's.
pub(crate) type Lost = HashSet<(PointId, u32, u8)>;

/// Returns `true` if all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Ored together in pieces of a few cache lines, which the compiler does with vectors.
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Units of a disk of `size` bytes.
pub fn units(size: u64) -> u32 {
    size.div_ceil(UNIT) as u32
}

/// The bytes of a unit on a disk of `size` bytes.
pub fn unit_range(unit: u32, size: u64) -> Range<u64> {
    let start = u64::from(unit) * UNIT;
    start.min(size)..(start + UNIT).min(size)
}

/// The bytes of a leaf of a unit on a disk of `size` bytes; empty behind its end.
pub fn leaf_range(unit: u32, leaf: usize, size: u64) -> Range<u64> {
    let start = u64::from(unit) * UNIT + leaf as u64 * LEAF;
    start.min(size)..(start + LEAF).min(size)
}

/// Leaves that a point changed in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitLeaves {
    /// Index of the unit.
    pub unit: u32,
    /// A bit for each leaf that the point holds.
    pub changed: u16,
    /// The changed leaves that are zeroes, a bit for each.
    pub zero: u16,
    /// Hashes of the others, at their places.
    pub hashes: [LeafHash; LEAVES],
}

impl UnitLeaves {
    /// None of a unit.
    pub fn none(unit: u32) -> Self {
        Self { unit, changed: 0, zero: 0, hashes: [[0; 32]; LEAVES] }
    }

    /// Returns the point's state of a leaf; `None` if the point does not hold it.
    pub fn get(&self, leaf: usize) -> Option<Leaf> {
        match (self.changed >> leaf & 1, self.zero >> leaf & 1) {
            (0, _) => None,
            (_, 1) => Some(Leaf::Zero),
            _ => Some(Leaf::Data(self.hashes[leaf])),
        }
    }

    /// The point holds a leaf.
    pub fn set(&mut self, leaf: usize, state: Leaf) {
        self.changed |= 1 << leaf;
        match state {
            Leaf::Zero => {
                self.zero |= 1 << leaf;
                self.hashes[leaf] = [0; 32];
            }
            Leaf::Data(hash) => {
                self.zero &= !(1 << leaf);
                self.hashes[leaf] = hash;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_end_where_the_disk_does() {
        let size = UNIT + LEAF + 512;
        assert_eq!(units(size), 2);
        assert_eq!(unit_range(1, size), UNIT..size);
        assert_eq!(leaf_range(1, 1, size), UNIT + LEAF..size);
        assert!(leaf_range(1, 2, size).is_empty());
    }

    #[test]
    fn a_leaf_that_was_set_is_told_again() {
        let mut unit = UnitLeaves::none(7);
        let data = Leaf::of(b"abc");
        unit.set(0, data);
        unit.set(15, Leaf::Zero);
        assert_eq!([unit.get(0), unit.get(1), unit.get(15)], [Some(data), None, Some(Leaf::Zero)]);
        unit.set(15, data);
        unit.set(0, Leaf::of(&[0; 512]));
        assert_eq!([unit.get(0), unit.get(15)], [Some(Leaf::Zero), Some(data)]);
    }
}
