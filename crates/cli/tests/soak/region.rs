//! Blocks that one session owns, and what they may hold.

use std::collections::BTreeSet;

/// Bytes of a block here.
pub(crate) const BLOCK: usize = 4096;
/// Blocks of a region.
pub(crate) const BLOCKS: u64 = 64;

/// A pattern that no other block and no other write has; 0 are zeroes.
pub(crate) fn pattern(block: u64, stamp: u64) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; BLOCK];
    }
    let mut state = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ stamp.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let words = (0..BLOCK / 8).flat_map(|_| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state ^ state >> 29).to_le_bytes()
    });
    words.collect()
}

/// The blocks of one session: what each was last written with, as far as its owner can know. A write without an answer
/// leaves two possibilities, and the next read decides.
#[derive(Debug)]
pub(crate) struct Region {
    first: u64,
    blocks: Vec<BTreeSet<u64>>,
    last_stamp: u64,
}

impl Region {
    /// Region `index` of a disk that holds zeroes.
    pub(crate) fn new(index: u64) -> Self {
        let blocks = (0..BLOCKS).map(|_| BTreeSet::from([0])).collect();
        Self { first: index * BLOCKS, blocks, last_stamp: 0 }
    }

    /// Logical block of a block of the region.
    pub(crate) fn lba(&self, block: u64) -> u64 {
        self.first + block
    }

    /// Data for `count` blocks that is new, and its stamp.
    pub(crate) fn fresh(&mut self, block: u64, count: u64) -> (u64, Vec<u8>) {
        self.last_stamp += 1;
        let stamp = self.last_stamp;
        (stamp, (block..block + count).flat_map(|block| pattern(self.lba(block), stamp)).collect())
    }

    /// A write has been sent: until it is answered, both are possible.
    pub(crate) fn sent(&mut self, block: u64, count: u64, stamp: u64) {
        self.slots(block, count).for_each(|slot| {
            slot.insert(stamp);
        });
    }

    /// A write has been answered with GOOD.
    pub(crate) fn done(&mut self, block: u64, count: u64, stamp: u64) {
        self.slots(block, count).for_each(|slot| *slot = BTreeSet::from([stamp]));
    }

    fn slots(&mut self, block: u64, count: u64) -> impl Iterator<Item = &mut BTreeSet<u64>> {
        self.blocks[block as usize..(block + count) as usize].iter_mut()
    }

    /// Compares what was read; a block that may hold several things holds one of them from now on.
    pub(crate) fn verify(&mut self, block: u64, data: &[u8]) -> Result<(), String> {
        for (block, bytes) in (block..).zip(data.chunks(BLOCK)) {
            let lba = self.first + block;
            let slot = &mut self.blocks[block as usize];
            match slot.iter().find(|&&stamp| pattern(lba, stamp) == bytes) {
                Some(&stamp) => *slot = BTreeSet::from([stamp]),
                None => {
                    let last = self.last_stamp;
                    let found = (0..=last).rev().find(|&stamp| pattern(lba, stamp) == bytes);
                    return Err(format!(
                        "block {lba} holds stamp {found:?} (begins {:02x?}), may hold {slot:?}",
                        &bytes[..16]
                    ));
                }
            }
        }
        Ok(())
    }
}
