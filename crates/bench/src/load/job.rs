//! Job description: the I/Os to issue.

use std::time::Duration;

use lunway_block::Geometry;

use crate::JobError;
use crate::load::access::Distribution;
use crate::load::access::{Mix, Pattern};
use crate::load::sizes::BlockSizes;

/// Most I/Os in flight.
pub const QUEUE_DEPTH_MAX: u32 = 4096;
/// Most blocks of a verified region: the ledger takes 4 bytes for each.
pub const VERIFY_BLOCKS_MAX: u64 = 16 << 20;
/// Most workers of a job.
pub const JOBS_MAX: u32 = 256;
/// Most bytes in flight.
const IN_FLIGHT_BYTES_MAX: u64 = 4 << 30;

/// A measurement: its I/Os, how many are in flight, and for how long.
///
/// [`Job::new`] gives 4 KiB random reads at depth 1 for 10 s over the whole device; change what differs. Everything is
/// public and plain, and checked against the device when the job is run. The words are fio's where fio has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Shown in tables; `jobname` in JSON.
    pub name: String,
    /// Order of addresses.
    pub pattern: Pattern,
    /// Reads, writes or both.
    pub mix: Mix,
    /// Bytes per I/O.
    pub block_sizes: BlockSizes,
    /// I/Os kept in flight, by each worker.
    pub queue_depth: u32,
    /// Workers, each on a thread of its own, each doing all of this: depth, rate and limit are per worker, as with
    /// fio's `numjobs`. All work in the same region, with different random addresses; sequential ones run over the same
    /// blocks side by side. With [`verify`](Self::verify) each has its own part of the region, since two writers of one
    /// block leave no order to check.
    pub jobs: u32,
    /// Limit after which the job stops issuing; I/Os then in flight are waited for and counted.
    pub limit: Limit,
    /// Runs this long before measuring starts; not part of the limit.
    pub ramp: Duration,
    /// Open loop: I/Os are *due* at this rate, whatever the device does. The last 1.5 ms before each are spent turning,
    /// not sleeping, since timers are no more exact than that: from about 600 IOPS a core is busy.
    pub rate: Option<Rate>,
    /// Distribution of those due times.
    pub arrivals: Arrivals,
    /// Region to work in; `None` is the whole device.
    pub region: Option<Region>,
    /// Of addresses and data. The same seed issues the same I/Os.
    pub seed: u64,
    /// Writes carry stamps, reads check them; see [`Verification`](crate::Verification).
    pub verify: bool,
    /// Contents of unverified writes.
    pub fill: Fill,
    /// The job may overwrite data. Without it a job that writes is refused unless the region is known to be empty.
    pub destroy: bool,
}

impl Job {
    /// 4 KiB random reads at depth 1 for 10 s over the whole device, with a seed from the operating system.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            pattern: Pattern::RANDOM,
            mix: Mix::READ,
            block_sizes: BlockSizes::Fixed(4096),
            queue_depth: 1,
            jobs: 1,
            limit: Limit::Time(Duration::from_secs(10)),
            ramp: Duration::ZERO,
            rate: None,
            arrivals: Arrivals::Even,
            region: None,
            seed: random_seed(),
            verify: false,
            fill: Fill::Random,
            destroy: false,
        }
    }

    /// The region this job works in on a device of that geometry.
    pub fn region_on(&self, geometry: &Geometry) -> Region {
        self.region.unwrap_or(Region { offset: 0, len: geometry.size })
    }

    /// The part of `region` that worker number `index` has to itself where workers share nothing.
    pub(crate) fn part(&self, region: Region, index: u32) -> Region {
        let unit = u64::from(self.block_sizes.unit(self.mix));
        let units = region.len / unit;
        let first =
            |index: u32| (u128::from(units) * u128::from(index) / u128::from(self.jobs)) as u64 * unit;
        let offset = first(index);
        Region { offset: region.offset + offset, len: first(index + 1) - offset }
    }

    /// Refuses what cannot run on a device of that geometry.
    pub fn check(&self, geometry: &Geometry) -> Result<(), JobError> {
        self.block_sizes.check(self.mix, geometry.logical_sector)?;
        let largest = self.block_sizes.largest(self.mix);
        let (jobs, queue_depth) = (self.jobs, self.queue_depth);
        if jobs == 0 || jobs > JOBS_MAX {
            return Err(JobError::Jobs { jobs });
        }
        if queue_depth == 0
            || queue_depth > QUEUE_DEPTH_MAX
            || u64::from(queue_depth) * u64::from(jobs) * u64::from(largest) > IN_FLIGHT_BYTES_MAX
        {
            return Err(JobError::QueueDepth { queue_depth });
        }
        if self.mix.read_percent > 100 {
            return Err(JobError::Mix { read_percent: self.mix.read_percent });
        }
        let Region { offset, mut len } = self.region_on(geometry);
        if geometry.check(offset, len).is_err() || len < u64::from(largest) {
            return Err(JobError::Region { offset, len, size: geometry.size });
        }
        let too_short = self.limit.time().is_some_and(|time| time.is_zero())
            || self.limit.bytes().is_some_and(|bytes| bytes < u64::from(largest));
        if too_short {
            return Err(JobError::Limit);
        }
        if matches!(self.rate, Some(Rate::Iops(0) | Rate::BytesPerSecond(0))) {
            return Err(JobError::Rate);
        }
        self.pattern.check()?;
        if self.verify {
            // The first part is the smallest.
            len = self.part(Region { offset, len }, 0).len;
            if len < u64::from(largest) {
                return Err(JobError::Part { jobs, len });
            }
        }
        if self.pattern == Pattern::Random(Distribution::Once) && self.block_sizes.multiple(self.mix) > len {
            return Err(JobError::Pass { tile: self.block_sizes.multiple(self.mix), len });
        }
        let blocks = len / u64::from(self.block_sizes.unit(self.mix)) * u64::from(jobs);
        if self.verify && blocks > VERIFY_BLOCKS_MAX {
            return Err(JobError::VerifyBlocks { blocks });
        }
        Ok(())
    }
}

/// Limit at which a job stops issuing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many bytes (whole blocks; less than one block left is left out).
    Bytes(u64),
    /// Whichever comes first.
    Either {
        /// After this time.
        time: Duration,
        /// After this many bytes.
        bytes: u64,
    },
}

impl Limit {
    /// The limit of time, if there is one.
    pub fn time(self) -> Option<Duration> {
        match self {
            Self::Time(time) | Self::Either { time, .. } => Some(time),
            Self::Bytes(_) => None,
        }
    }

    /// The limit of bytes, if there is one.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) | Self::Either { bytes, .. } => Some(bytes),
            Self::Time(_) => None,
        }
    }
}

/// Rate at which I/Os are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// I/Os per second.
    Iops(u64),
    /// Bytes per second.
    BytesPerSecond(u64),
}

/// Distribution of due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal intervals
    Even,
    /// At random, each independent of the others: what many clients that know nothing of each other make together
    /// (fio's `rate_process=poisson`). Bursts come with it, and a queue before a device that keeps up on average.
    Poisson,
}

/// A part of a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte; whole sectors.
    pub offset: u64,
    /// Length; whole sectors.
    pub len: u64,
}

/// Contents of unverified writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Incompressible bytes: slices of one random buffer, so that making them costs no time per I/O. A device that
    /// looks for equal blocks will find some.
    Random,
    /// Zeroes.
    Zero,
}

/// A seed from the operating system.
pub fn random_seed() -> u64 {
    // Without an entropy source addresses are still as good as random, only alike from run to run.
    getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry::plain(1 << 20)
    }

    #[test]
    fn a_new_job_runs_anywhere() {
        assert_eq!(Job::new("x").check(&geometry()), Ok(()));
    }

    #[test]
    fn what_cannot_run_is_refused_by_name() {
        let check = |change: &dyn Fn(&mut Job)| {
            let mut job = Job::new("x");
            change(&mut job);
            job.check(&geometry()).unwrap_err()
        };
        assert!(matches!(check(&|job| job.block_sizes = BlockSizes::Fixed(0)), JobError::BlockSize { .. }));
        assert!(matches!(
            check(&|job| job.block_sizes = BlockSizes::Fixed(1000)),
            JobError::BlockSize { block_size: 1000, sector: 512 }
        ));
        assert!(matches!(check(&|job| job.queue_depth = 0), JobError::QueueDepth { .. }));
        assert!(matches!(check(&|job| job.queue_depth = QUEUE_DEPTH_MAX + 1), JobError::QueueDepth { .. }));
        assert_eq!(check(&|job| job.jobs = 0), JobError::Jobs { jobs: 0 });
        let crowded = |job: &mut Job| {
            (job.jobs, job.verify) = (JOBS_MAX, true);
            job.block_sizes = 8192.into();
        };
        assert_eq!(check(&crowded), JobError::Part { jobs: 256, len: 0 }, "128 blocks");
        assert!(matches!(check(&|job| job.mix.read_percent = 101), JobError::Mix { .. }));
        assert!(matches!(
            check(&|job| job.region = Some(Region { offset: 512, len: 1 << 20 })),
            JobError::Region { .. }
        ));
        assert!(matches!(
            check(&|job| job.region = Some(Region { offset: 0, len: 512 })),
            JobError::Region { .. }
        ));
        assert_eq!(check(&|job| job.limit = Limit::Time(Duration::ZERO)), JobError::Limit);
        assert_eq!(check(&|job| job.limit = Limit::Bytes(4095)), JobError::Limit);
        assert_eq!(check(&|job| job.rate = Some(Rate::Iops(0))), JobError::Rate);
    }

    #[test]
    fn a_verified_region_has_a_bounded_ledger() {
        let mut job = Job::new("x");
        job.verify = true;
        let huge = Geometry::plain(4096 * (VERIFY_BLOCKS_MAX + 1));
        assert_eq!(job.check(&huge), Err(JobError::VerifyBlocks { blocks: VERIFY_BLOCKS_MAX + 1 }));
    }
}
