//! Source of I/Os: where the next one goes.

use crate::load::access::{Distribution, Mix, Pattern};
use crate::load::job::{Job, Region};
use crate::load::pass::Pass;
use crate::load::permutation::Permutation;
use crate::load::random::Random;
use crate::load::sizes::{BlockSizes, Share};
use crate::load::skew::Skew;

/// Next I/O to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) is_read: bool,
    /// On the device, bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u32,
}

/// The endless stream of I/Os of a job: a function of its seed, whatever the device does.
#[derive(Debug)]
pub(crate) struct IoSource {
    random: Random,
    order: Order,
    mix: Mix,
    sizes: BlockSizes,
    region: Region,
    /// Offsets in the region are multiples of this.
    align: u64,
}

#[derive(Debug)]
enum Order {
    Sequential { cursor: u64 },
    Uniform,
    Once(Pass),
    Skewed(Skew, Permutation),
}

impl IoSource {
    /// For a job that was checked against a device with that region.
    pub(crate) fn new(job: &Job, region: Region) -> Self {
        let align = u64::from(job.block_sizes.smallest(job.mix));
        let places = region.len / align;
        let spread = || Permutation::new(places, job.seed ^ 0x7370_7265_6164);
        let order = match job.pattern {
            Pattern::Sequential => Order::Sequential { cursor: 0 },
            Pattern::Random(Distribution::Uniform) => Order::Uniform,
            Pattern::Random(Distribution::Once) => Order::Once(Pass::new(job, region)),
            Pattern::Random(Distribution::Zipf(theta)) => Order::Skewed(Skew::zipf(places, theta), spread()),
            Pattern::Random(Distribution::Pareto(h)) => Order::Skewed(Skew::pareto(places, h), spread()),
        };
        let sizes = job.block_sizes.clone();
        Self { random: Random::new(job.seed), order, mix: job.mix, sizes, region, align }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Next {
        let (is_read, len, offset) = match &mut self.order {
            Order::Once(pass) => {
                let (offset, kind) = pass.next();
                match kind {
                    Some((is_read, len)) => (is_read, len, offset),
                    None => (self.draw_direction(), self.align, offset),
                }
            }
            _ => {
                let is_read = self.draw_direction();
                let len = self.draw_size(is_read);
                (is_read, len, self.draw_offset(len))
            }
        };
        Next { is_read, offset: self.region.offset + offset, len: len as u32 }
    }

    #[inline]
    fn draw_direction(&mut self) -> bool {
        match self.mix.read_percent {
            100 => true,
            0 => false,
            percent => self.random.below(100) < u64::from(percent),
        }
    }

    #[inline]
    fn draw_size(&mut self, is_read: bool) -> u64 {
        let shares = match &self.sizes {
            BlockSizes::Fixed(block_size) => return u64::from(*block_size),
            BlockSizes::Split { read, .. } if is_read => read,
            BlockSizes::Split { write, .. } => write,
        };
        u64::from(draw(shares, self.random.below(100)))
    }

    /// Draws the offset in the region at which a block of `len` bytes starts.
    #[inline]
    fn draw_offset(&mut self, len: u64) -> u64 {
        let last = (self.region.len - len) / self.align;
        match &mut self.order {
            Order::Uniform | Order::Once(_) => self.random.below(last + 1) * self.align,
            Order::Skewed(skew, spread) => spread.at(skew.rank(&mut self.random)).min(last) * self.align,
            Order::Sequential { cursor } => {
                let offset = if *cursor + len > self.region.len { 0 } else { *cursor };
                *cursor = offset + len;
                offset
            }
        }
    }
}

/// The size that `percent`, below 100, falls to.
fn draw(shares: &[Share], percent: u64) -> u32 {
    let mut sum = 0;
    let share = shares.iter().find(|share| {
        sum += u64::from(share.percent);
        percent < sum
    });
    share.or(shares.last()).map_or(0, |share| share.block_size)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn source_in(region: Region, change: impl Fn(&mut Job)) -> IoSource {
        let mut job = Job::new("x");
        job.seed = 3;
        change(&mut job);
        IoSource::new(&job, region)
    }

    fn source(change: impl Fn(&mut Job)) -> IoSource {
        source_in(Region { offset: 8192, len: 3 * 4096 + 512 }, change)
    }

    fn share(block_size: u32, percent: u8) -> Share {
        Share { block_size, percent }
    }

    #[test]
    fn sequential_addresses_start_over_at_the_last_whole_block() {
        let mut source = source(|job| job.pattern = Pattern::Sequential);
        let offsets: Vec<u64> = (0..4).map(|_| source.next().offset).collect();
        assert_eq!(offsets, [8192, 12288, 16384, 8192]);
    }

    #[test]
    fn random_addresses_reach_every_block_and_stay_inside() {
        for distribution in [
            Distribution::Uniform,
            Distribution::Once,
            Distribution::Zipf(0.9),
            Distribution::Zipf(1.0),
            Distribution::Pareto(0.3),
        ] {
            let mut source = source(|job| job.pattern = Pattern::Random(distribution));
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..1000 {
                seen.insert(source.next().offset);
            }
            assert_eq!(seen.into_iter().collect::<Vec<_>>(), [8192, 12288, 16384], "{distribution:?}");
        }
    }

    #[test]
    fn once_is_once_a_pass_and_each_pass_in_another_order() {
        let region = Region { offset: 4096, len: 100 * 4096 };
        let mut source = source_in(region, |job| job.pattern = Pattern::Random(Distribution::Once));
        let passes: Vec<Vec<u64>> =
            (0..3).map(|_| (0..100).map(|_| source.next().offset).collect()).collect();
        for pass in &passes {
            let mut sorted = pass.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq((1..=100).map(|block| block * 4096)));
        }
        assert!(passes[0] != passes[1] && passes[1] != passes[2]);
    }

    #[test]
    fn the_hottest_blocks_of_a_skewed_pattern_do_not_lie_side_by_side() {
        let region = Region { offset: 0, len: 10_000 * 4096 };
        let mut source = source_in(region, |job| job.pattern = Pattern::Random(Distribution::Zipf(1.2)));
        let mut counts = BTreeMap::<u64, u32>::new();
        (0..20_000).for_each(|_| *counts.entry(source.next().offset / 4096).or_default() += 1);
        let mut hottest: Vec<(u32, u64)> = counts.iter().map(|(&block, &count)| (count, block)).collect();
        hottest.sort_unstable_by(|a, b| b.cmp(a));
        let share = hottest[0].0 as f64 / 20_000.0;
        // 1 / the sum of k^-1.2 to 10,000, which is 4.80.
        assert!((share - 0.208).abs() < 0.02, "{share}");
        let blocks: Vec<u64> = hottest[..8].iter().map(|&(_, block)| block).collect();
        let (least, most) = (blocks.iter().min().unwrap(), blocks.iter().max().unwrap());
        assert!(most - least > 3000, "{blocks:?}");
    }

    #[test]
    fn a_split_draws_sizes_by_their_shares_for_each_direction_and_stays_inside() {
        // The region holds a large block at one place only, and no block in its last 512 bytes.
        let region = Region { offset: 8192, len: 65536 + 512 };
        for pattern in [
            Pattern::Sequential,
            Pattern::RANDOM,
            Pattern::Random(Distribution::Zipf(1.1)),
            Pattern::Random(Distribution::Pareto(0.2)),
        ] {
            let mut source = source_in(region, |job| {
                job.pattern = pattern;
                job.mix = Mix { read_percent: 50 };
                job.block_sizes = BlockSizes::Split {
                    read: vec![share(4096, 90), share(65536, 10)],
                    write: vec![share(8192, 100)],
                };
            });
            let mut counts = BTreeMap::<(bool, u32), u32>::new();
            for _ in 0..10_000 {
                let Next { is_read, offset, len } = source.next();
                assert!(
                    offset >= 8192 && offset + u64::from(len) <= 8192 + region.len,
                    "{pattern:?}: {offset}"
                );
                assert!((offset - 8192).is_multiple_of(4096), "{pattern:?}: {offset}");
                *counts.entry((is_read, len)).or_default() += 1;
            }
            let count = |is_read, len| counts.get(&(is_read, len)).copied().unwrap_or(0);
            assert!((4300..4700).contains(&count(true, 4096)), "{pattern:?}: {counts:?}");
            assert!((400..600).contains(&count(true, 65536)), "{pattern:?}: {counts:?}");
            assert!((4800..5200).contains(&count(false, 8192)), "{pattern:?}: {counts:?}");
            assert_eq!(counts.len(), 3);
        }
    }

    #[test]
    fn a_mix_of_70_percent_reads_reads_70_percent() {
        let mut source = source(|job| job.mix.read_percent = 70);
        let reads = (0..10_000).filter(|_| source.next().is_read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
    }
}
