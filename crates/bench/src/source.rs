//! Where the next I/O goes.

use crate::job::{Job, Mix, Pattern, Region};
use crate::random::Random;

/// The endless stream of (read or write, offset) of a job.
#[derive(Debug)]
pub(crate) struct Source {
    random: Random,
    pattern: Pattern,
    mix: Mix,
    region: u64,
    block: u64,
    blocks: u64,
    cursor: u64,
}

impl Source {
    pub(crate) fn new(job: &Job, region: Region) -> Self {
        let block = u64::from(job.block_size);
        Self {
            random: Random::new(job.seed),
            pattern: job.pattern,
            mix: job.mix,
            region: region.offset,
            block,
            blocks: region.len / block,
            cursor: 0,
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> (bool, u64) {
        let is_read = match self.mix.read_percent {
            100 => true,
            0 => false,
            percent => self.random.below(100) < u64::from(percent),
        };
        let block = match self.pattern {
            Pattern::Random => self.random.below(self.blocks),
            Pattern::Sequential => {
                let block = self.cursor;
                self.cursor += 1;
                if self.cursor == self.blocks {
                    self.cursor = 0;
                }
                block
            }
        };
        (is_read, self.region + block * self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(change: impl Fn(&mut Job)) -> Source {
        let mut job = Job::new("x");
        job.seed = 3;
        change(&mut job);
        Source::new(&job, Region { offset: 8192, len: 3 * 4096 + 512 })
    }

    #[test]
    fn sequential_addresses_start_over_at_the_last_whole_block() {
        let mut source = source(|job| job.pattern = Pattern::Sequential);
        let offsets: Vec<u64> = (0..4).map(|_| source.next().1).collect();
        assert_eq!(offsets, [8192, 12288, 16384, 8192]);
    }

    #[test]
    fn random_addresses_reach_every_block_and_stay_inside() {
        let mut source = source(|_| ());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            seen.insert(source.next().1);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [8192, 12288, 16384]);
    }

    #[test]
    fn a_mix_of_70_percent_reads_reads_70_percent() {
        let mut source = source(|job| job.mix.read_percent = 70);
        let reads = (0..10_000).filter(|_| source.next().0).count();
        assert!((6800..7200).contains(&reads), "{reads}");
    }
}
