//! Errors of this crate, as meanings.

use std::io;

use lunway_block::BlockError;

use crate::JobError;

/// Reason why a benchmark did not run. An I/O that fails *during* a run is not one of these: it is counted in the
/// [`Outcome`](crate::Outcome).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The job makes no sense on this device.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The job writes where data is, and was not told that it may.
    #[error(
        "the device holds data (at offset {offset}), and this job writes to it; allow destroying it to go on"
    )]
    WouldDestroy {
        /// Offset of the first data seen, bytes.
        offset: u64,
    },
    /// The job writes, the device cannot be written.
    #[error("the job writes, but the device is read-only")]
    ReadOnly,
    /// The profile cannot do without writing, and was not told that it may.
    #[error(
        "the profile {profile} writes its whole region before it measures: allow that the data there is overwritten"
    )]
    MustWrite {
        /// Its name.
        profile: &'static str,
    },
    /// The data to be read could not be written first.
    #[error("filling the region before reading failed: {said}")]
    Preparation {
        /// Error of the first I/O that failed.
        said: String,
    },
    /// No thread for a job that is to run beside others.
    #[error("cannot start a thread for a job: {0}")]
    Thread(io::Error),
    /// The device failed before the first I/O of the job.
    #[error("{doing} failed: {source}")]
    Device {
        /// The operation attempted.
        doing: &'static str,
        /// Error from the device.
        source: BlockError,
    },
}
