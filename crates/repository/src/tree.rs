//! The tree of a point: from the ids of its leaves to one id.
//!
//! ```text
//!   leaf    64 KiB of the disk
//!   node    1 MiB: the ids of 16 leaves                  512 bytes
//!   branch  256 MiB: the ids of 256 nodes              8,192 bytes
//!   root    the disk: the ids of its branches     at most 8 MiB
//! ```
//!
//! Each is an entry by its content, so that two points share what is alike: a mebibyte that did not change costs
//! nothing, and a scattered change a leaf, a node and a branch. 32 zeroes stand for what is zeroes, of any size.

use lunway_backup::{LEAVES, Leaf};

use crate::codec::{Id, ZEROES};

/// Nodes of a branch: with fewer the root of 64 TiB had more than 8 MiB, with more a scattered change cost more than an
/// eighth of itself.
pub(crate) const NODES: u32 = 256;

/// Bytes of a node.
pub(crate) const NODE_LEN: usize = LEAVES * 32;

/// Branches of a disk of so many units.
pub(crate) fn branches(units: u32) -> u32 {
    units.div_ceil(NODES)
}

/// A node's bytes; `None`: zeroes.
pub(crate) fn node(leaves: &[Leaf; LEAVES]) -> Option<Vec<u8>> {
    let id = |leaf: &Leaf| match leaf {
        Leaf::Zero => ZEROES,
        Leaf::Data(id) => *id,
    };
    join(leaves.iter().map(id))
}

/// The leaves of a node.
pub(crate) fn leaves(node: &[u8]) -> Option<[Leaf; LEAVES]> {
    if node.len() != NODE_LEN {
        return None;
    }
    let mut leaves = [Leaf::Zero; LEAVES];
    for (leaf, id) in leaves.iter_mut().zip(split(node)?) {
        if id != ZEROES {
            *leaf = Leaf::Data(id);
        }
    }
    Some(leaves)
}

/// Ids one behind another; `None` where all of them are zeroes.
pub(crate) fn join(ids: impl IntoIterator<Item = Id>) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = ids.into_iter().flatten().collect();
    (!lunway_backup::is_zero(&bytes)).then_some(bytes)
}

/// The ids again; `None` if they are not whole.
pub(crate) fn split(bytes: &[u8]) -> Option<Vec<Id>> {
    bytes
        .len()
        .is_multiple_of(32)
        .then(|| bytes.chunks_exact(32).filter_map(|id| id.try_into().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reads_back_and_zeroes_are_none() {
        let mut of = [Leaf::Zero; LEAVES];
        assert_eq!(node(&of), None);
        of[3] = Leaf::Data([5; 32]);
        let bytes = node(&of).expect("data");
        assert_eq!((bytes.len(), leaves(&bytes)), (NODE_LEN, Some(of)));
        assert_eq!(leaves(&bytes[1..]), None);
    }

    #[test]
    fn the_largest_disk_has_a_root_that_an_entry_can_be() {
        let units = lunway_backup::units(lunway_backup::DISK_MAX);
        assert_eq!(branches(units) * 32, crate::codec::ENTRY_MAX);
    }
}
