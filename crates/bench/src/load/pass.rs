//! Each block once, then each block once again.

use crate::load::job::{Job, Region};
use crate::load::permutation::Permutation;
use crate::load::random::mix;
use crate::load::sizes::BlockSizes;

/// Passes over a region in random order, in which each block comes exactly once.
///
/// With one size it is a permutation of the block numbers. With several, the region is cut into *tiles* as long as the
/// smallest common multiple of the sizes; in each pass, each tile falls to one size and direction (drawn by its number,
/// so that it need not be remembered, and in proportion to the bytes that this size moves) and is cut into such blocks.
/// Then every multiple of the common unit comes in random order, and those that are no block's start are passed over.
/// So nothing is remembered but a counter, and no block is ever cut short, as with a bitmap it would be where its
/// neighbours have gone before.
#[derive(Debug)]
pub(crate) struct Pass {
    seed: u64,
    number: u64,
    order: Permutation,
    index: u64,
    unit: u64,
    region: u64,
    tiles: Option<Tiles>,
}

/// Kind of block that a tile is cut into.
#[derive(Clone, Copy, Debug)]
struct Kind {
    is_read: bool,
    block: u64,
    /// The sum of the weights up to this one.
    weight_to: u64,
}

#[derive(Debug)]
struct Tiles {
    len: u64,
    kinds: Vec<Kind>,
    /// For a last tile that is not whole.
    smallest: Kind,
}

impl Tiles {
    fn new(job: &Job) -> Option<Self> {
        let BlockSizes::Split { read, write } = &job.block_sizes else { return None };
        let reads = u64::from(job.mix.read_percent);
        let shares = read.iter().map(|share| (true, reads, share));
        let shares = shares.chain(write.iter().map(|share| (false, 100 - reads, share)));
        let mut sum = 0;
        let kinds: Vec<Kind> = shares
            .filter(|(_, percent, share)| *percent > 0 && share.percent > 0)
            .map(|(is_read, percent, share)| {
                let block = u64::from(share.block_size);
                sum += percent * u64::from(share.percent) * block;
                Kind { is_read, block, weight_to: sum }
            })
            .collect();
        let smallest = *kinds.iter().min_by_key(|kind| kind.block)?;
        Some(Self { len: job.block_sizes.multiple(job.mix), kinds, smallest })
    }

    /// The block that starts at `offset` in a region of `region` bytes, in the pass of that `seed`.
    #[inline]
    fn block_at(&self, offset: u64, region: u64, seed: u64) -> Option<Kind> {
        let (tile, within) = (offset / self.len, offset % self.len);
        let left = region - offset;
        let kind = if (tile + 1) * self.len > region {
            self.smallest
        } else {
            let total = self.kinds[self.kinds.len() - 1].weight_to;
            let drawn = ((u128::from(mix(seed ^ mix(tile))) * u128::from(total)) >> 64) as u64;
            *self.kinds.iter().find(|kind| drawn < kind.weight_to)?
        };
        (within.is_multiple_of(kind.block) && kind.block <= left).then_some(kind)
    }
}

impl Pass {
    /// Passes of `job` over `region`, which holds its largest block and, with several sizes, a tile.
    pub(crate) fn new(job: &Job, region: Region) -> Self {
        let unit = u64::from(job.block_sizes.unit(job.mix));
        let tiles = Tiles::new(job);
        let order = Permutation::new(region.len / unit, job.seed);
        Self { seed: job.seed, number: 0, order, index: 0, unit, region: region.len, tiles }
    }

    /// Returns the offset of the next block in the region, with its direction and size where those are not the job's
    /// only ones.
    #[inline]
    pub(crate) fn next(&mut self) -> (u64, Option<(bool, u64)>) {
        loop {
            if self.index == self.order.len() {
                self.number += 1;
                self.index = 0;
                self.order = Permutation::new(self.order.len(), mix(self.seed ^ self.number));
            }
            let offset = self.order.at(self.index) * self.unit;
            self.index += 1;
            let Some(tiles) = &self.tiles else { return (offset, None) };
            if let Some(kind) = tiles.block_at(offset, self.region, mix(self.seed.wrapping_add(self.number)))
            {
                return (offset, Some((kind.is_read, kind.block)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::access::Mix;
    use crate::load::sizes::Share;

    #[test]
    fn every_byte_of_a_pass_comes_once_whatever_the_sizes() {
        let share = |block_size, percent| Share { block_size, percent };
        let mut job = Job::new("x");
        job.mix = Mix { read_percent: 70 };
        job.block_sizes = BlockSizes::Split {
            read: vec![share(4096, 50), share(12288, 50)],
            write: vec![share(8192, 100), share(512, 0)],
        };
        // Tiles of 24 KiB, a last one of 4 KiB, and 512 bytes that hold no block. Sizes are drawn for each tile: of
        // 2000 the rarest kind is on 350, give or take 17, and a difference of 9 percent points is more than five
        // times that.
        let len = 2000 * 24576 + 4096 + 512;
        let mut pass = Pass::new(&job, Region { offset: 0, len });
        let (mut counts, mut bytes) = ([0u32; 3], 0);
        let mut touched = vec![false; (len / 4096) as usize];
        while bytes < len - 512 {
            let (offset, kind) = pass.next();
            let (is_read, block) = kind.unwrap();
            counts[if !is_read { 2 } else { usize::from(block == 12288) }] += 1;
            for unit in &mut touched[(offset / 4096) as usize..((offset + block) / 4096) as usize] {
                assert!(!std::mem::replace(unit, true), "twice in a pass: {offset}");
            }
            bytes += block;
        }
        assert_eq!(pass.number, 0);
        // Of 100 I/Os, 35 are reads of 4 KiB, 35 of 12 KiB, 30 writes.
        let total: u32 = counts.iter().sum();
        for (count, expected) in counts.iter().zip([35, 35, 30]) {
            let percent = count * 100 / total;
            assert!((expected - 9..=expected + 9).contains(&percent), "{counts:?}");
        }
    }
}
