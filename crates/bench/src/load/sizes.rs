//! Block sizes of the I/Os.

use crate::JobError;
use crate::load::access::Mix;

/// Largest block, bytes.
pub const BLOCK_SIZE_MAX: u32 = 64 << 20;
/// Most sizes in a split, as fio has it.
const SHARES_MAX: usize = 64;

/// Bytes per I/O: always the same, or drawn anew for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSizes {
    /// All alike.
    Fixed(u32),
    /// Drawn by these shares (fio's `bssplit`). Blocks lie at multiples of the smallest size from the start of the
    /// region, as fio's `blockalign` has it by default, and wholly inside the region.
    Split {
        /// For reads; 100 % together. May be empty where the job does not read.
        read: Vec<Share>,
        /// For writes; 100 % together. May be empty where the job does not write.
        write: Vec<Share>,
    },
}

/// Share of one block size in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Bytes.
    pub block_size: u32,
    /// Share of the I/Os, per cent.
    pub percent: u8,
}

impl BlockSizes {
    /// The size that all I/Os have, if there is one.
    pub fn fixed(&self) -> Option<u32> {
        match self {
            Self::Fixed(block_size) => Some(*block_size),
            Self::Split { .. } => None,
        }
    }

    /// The largest size that comes up in that mix, bytes.
    pub fn largest(&self, mix: Mix) -> u32 {
        self.all(mix).max().unwrap_or(0)
    }

    /// The smallest size that comes up in that mix, bytes.
    pub fn smallest(&self, mix: Mix) -> u32 {
        self.all(mix).min().unwrap_or(0)
    }

    /// Greatest common divisor of all sizes and offsets of that mix, bytes.
    pub(crate) fn unit(&self, mix: Mix) -> u32 {
        self.all(mix).fold(0, gcd).max(1)
    }

    /// The smallest that is a multiple of every size of that mix, bytes; `u64::MAX` where that is more than fits.
    pub(crate) fn multiple(&self, mix: Mix) -> u64 {
        self.all(mix).map(u64::from).fold(1, |sum, size| {
            let common = u64::from(gcd((sum % size) as u32, size as u32));
            sum.saturating_mul(size / common.max(1))
        })
    }

    /// The sizes that come up in that mix, each at least once.
    pub(crate) fn all(&self, mix: Mix) -> impl Iterator<Item = u32> + '_ {
        let (fixed, read, write): (_, &[Share], &[Share]) = match self {
            Self::Fixed(block_size) => (Some(*block_size), &[], &[]),
            Self::Split { read, write } => (None, read, write),
        };
        let read = read.iter().filter(move |_| mix.reads());
        let shares = read.chain(write.iter().filter(move |_| mix.writes()));
        fixed.into_iter().chain(shares.filter(|share| share.percent > 0).map(|share| share.block_size))
    }

    pub(crate) fn check(&self, mix: Mix, sector: u32) -> Result<(), JobError> {
        if let Self::Split { read, write } = self {
            for (shares, used) in [(read, mix.reads()), (write, mix.writes())] {
                let sum: u32 = shares.iter().map(|share| u32::from(share.percent)).sum();
                if used && sum != 100 || shares.len() > SHARES_MAX {
                    return Err(JobError::Split { sum, count: shares.len() });
                }
            }
        }
        let wrong = |&block_size: &u32| {
            block_size == 0 || block_size > BLOCK_SIZE_MAX || !block_size.is_multiple_of(sector)
        };
        match self.all(mix).find(wrong) {
            Some(block_size) => Err(JobError::BlockSize { block_size, sector }),
            None => Ok(()),
        }
    }
}

impl From<u32> for BlockSizes {
    fn from(block_size: u32) -> Self {
        Self::Fixed(block_size)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(sizes: &[(u32, u8)]) -> BlockSizes {
        let shares: Vec<Share> =
            sizes.iter().map(|&(block_size, percent)| Share { block_size, percent }).collect();
        BlockSizes::Split { read: shares, write: vec![Share { block_size: 512, percent: 100 }] }
    }

    #[test]
    fn only_the_sizes_of_the_directions_that_a_job_has_count() {
        let sizes = split(&[(12288, 60), (8192, 40), (65536, 0)]);
        assert_eq!(
            (sizes.smallest(Mix::READ), sizes.largest(Mix::READ), sizes.unit(Mix::READ)),
            (8192, 12288, 4096)
        );
        assert_eq!(sizes.smallest(Mix { read_percent: 50 }), 512);
        assert_eq!(sizes.check(Mix::READ, 4096), Ok(()));
        let refused = sizes.check(Mix::WRITE, 4096);
        assert_eq!(refused, Err(JobError::BlockSize { block_size: 512, sector: 4096 }));
    }

    #[test]
    fn shares_that_are_not_a_hundred_together_are_refused() {
        let refused = split(&[(4096, 60), (8192, 30)]).check(Mix::READ, 512);
        assert_eq!(refused, Err(JobError::Split { sum: 90, count: 2 }));
    }
}
