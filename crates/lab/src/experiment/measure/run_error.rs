//! Reason why an experiment could not be run.

use std::io;

use crate::error::LabError;

/// Reason why an experiment could not be run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A rate is asked for, and no cable has one.
    #[error("--rate changes the rates of cables, and no cable of `{0}` has one")]
    NoRates(String),
    /// The network.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A target did not start.
    #[error("the target on host `{host}` did not start: {said}")]
    Target {
        /// The host.
        host: String,
        /// Output of the target, or the fault in it.
        said: String,
    },
    /// A scratch file could not be made.
    #[error("cannot make a scratch file of {size} bytes in {folder}: {source}")]
    Scratch {
        /// Its size.
        size: u64,
        /// Folder of the file.
        folder: String,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// A unit could not be reached.
    #[error("run `{test}`: {source}")]
    Open {
        /// The run.
        test: String,
        /// Underlying error.
        source: Box<lunway_device::DeviceOpenError>,
    },
    /// A job could not be run.
    #[error("run `{test}`: {source}")]
    Bench {
        /// The run.
        test: String,
        /// Underlying error.
        source: lunway_bench::BenchError,
    },
    /// The wire could not be measured.
    #[error("run `{test}`: {source}")]
    Net {
        /// The run.
        test: String,
        /// Underlying error.
        source: lunway_net::NetError,
    },
    /// A comparison that cannot be made.
    #[error("run `{test}`: {said}")]
    Compare {
        /// The run.
        test: String,
        /// Reason.
        said: String,
    },
    /// Nothing could be written before measuring.
    #[error("run `{test}`: the unit could not be filled before measuring: {said}")]
    Fill {
        /// The run.
        test: String,
        /// Message of the first failed I/O.
        said: String,
    },
    /// A program of the share is not installed.
    #[error("`{program}` is not installed, by which a network has a share: it is in the package {package}")]
    NoShare {
        /// Its name.
        program: &'static str,
        /// The package in which it is.
        package: &'static str,
    },
    /// The share cannot be mounted.
    #[error("the share cannot be mounted: {said}")]
    Share {
        /// Output of its client.
        said: String,
    },
    /// A backup cannot be prepared.
    #[error("run `{test}`: the first point cannot be made: {said}")]
    Backup {
        /// The run.
        test: String,
        /// Output of the command.
        said: String,
    },
    /// A thread or a runtime could not be started.
    #[error("cannot start the measurement: {0}")]
    Start(io::Error),
}
