//! Faults in a job.

use super::job::{JOBS_MAX, QUEUE_DEPTH_MAX, VERIFY_BLOCKS_MAX};
use super::sizes::BLOCK_SIZE_MAX;

/// Kind of fault in a [`Job`](crate::Job).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Block size 0, beyond the limit, or not whole sectors.
    #[error(
        "a block size of {block_size} bytes is not possible: it must be a multiple of the sector ({sector}) and at most {BLOCK_SIZE_MAX}"
    )]
    BlockSize {
        /// Block size requested, bytes.
        block_size: u32,
        /// The device's logical sector, bytes.
        sector: u32,
    },
    /// Shares of block sizes that do not make a whole.
    #[error(
        "{count} block sizes with {sum} % together are not a split: at most 64 sizes whose shares add up to 100 % are expected"
    )]
    Split {
        /// Sum of the shares, per cent.
        sum: u32,
        /// Number of block sizes.
        count: usize,
    },
    /// No workers, or too many.
    #[error("{jobs} jobs side by side are not possible: at least 1, at most {JOBS_MAX}")]
    Jobs {
        /// Number of jobs requested.
        jobs: u32,
    },
    /// Each block once, of sizes that do not fill the region together.
    #[error(
        "blocks of these sizes fill {tile} bytes without a gap, and the region has only {len}: take other sizes, or a distribution in which blocks come again"
    )]
    Pass {
        /// The smallest common multiple of the sizes, bytes.
        tile: u64,
        /// Of the region, bytes.
        len: u64,
    },
    /// A distribution with a parameter that makes it none.
    #[error(
        "{what}:{value} is not a distribution: zipf takes an exponent above 0 (and at most 30), pareto a share between 0 and 1"
    )]
    Distribution {
        /// Name of the distribution.
        what: &'static str,
        /// Its parameter.
        value: f64,
    },
    /// Queue depth 0 or beyond the limit, alone or times the block size.
    #[error(
        "a queue depth of {queue_depth} is not possible: at least 1, at most {QUEUE_DEPTH_MAX}, and 4 GiB in flight over all jobs"
    )]
    QueueDepth {
        /// Queue depth requested.
        queue_depth: u32,
    },
    /// More than 100 % reads.
    #[error("{read_percent} % reads is not a percentage")]
    Mix {
        /// Percentage requested.
        read_percent: u8,
    },
    /// The region leaves the device, is not whole sectors, or is shorter than a block.
    #[error(
        "the region of {len} bytes at {offset} does not fit: it must be whole sectors inside the device's {size} bytes and hold a block"
    )]
    Region {
        /// Start, bytes.
        offset: u64,
        /// Length, bytes.
        len: u64,
        /// Size of the device, bytes.
        size: u64,
    },
    /// A limit that ends the job before its first I/O.
    #[error("the limit ends the job before its first I/O")]
    Limit,
    /// A rate of 0.
    #[error("a rate of 0 never starts an I/O")]
    Rate,
    /// Workers that verify share the region out, and a part holds no block.
    #[error(
        "shared out among {jobs} jobs that verify, the region leaves {len} bytes to one, which hold no block"
    )]
    Part {
        /// Number of workers.
        jobs: u32,
        /// Bytes for the one with least.
        len: u64,
    },
    /// Verification keeps 4 bytes per block: too many blocks.
    #[error(
        "verification can follow {VERIFY_BLOCKS_MAX} blocks, the region has {blocks}: take larger blocks or a smaller region"
    )]
    VerifyBlocks {
        /// Blocks in the region.
        blocks: u64,
    },
}
