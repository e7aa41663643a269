//! Errors of a network.

use std::io;

use crate::network::Shortfall;
use crate::topology::TopologyError;

/// Reason why a network cannot be built, or something not be done on it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The description is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Outside of a sandbox: devices would be made among the machine's own.
    #[error("networks are built in a sandbox only: this process is outside of one")]
    Outside,
    /// A program that is needed is not installed.
    #[error("`{program}` is not installed: it is in the package iproute2 (iproute on some systems)")]
    Missing {
        /// Its name.
        program: String,
    },
    /// A program refused to do something.
    #[error("`{command}` failed in {place}: {said}")]
    Refused {
        /// The command line.
        command: String,
        /// The host, or the fabric.
        place: String,
        /// Output of the program.
        said: String,
    },
    /// The kernel refused.
    #[error("cannot {doing}: {source}")]
    Kernel {
        /// The operation that was attempted.
        doing: String,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// No such host, card or cable.
    #[error("there is no {what} `{name}` in this network")]
    Unknown {
        /// Host, card or cable.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Something is asked of a cable that it cannot do.
    #[error(
        "cable `{cable}` cannot change its {what} while it runs: give it {what} in its description, be it {none}"
    )]
    NotALine {
        /// The cable.
        cable: String,
        /// Delay or loss.
        what: &'static str,
        /// Notation for no delay or no loss.
        none: &'static str,
    },
    /// A rate for a cable that has none.
    #[error("cable `{cable}` has no rate to change: give it one in its description")]
    NoRate {
        /// The cable.
        cable: String,
    },
    /// A cable does not carry its rate.
    #[error(transparent)]
    Calibration(#[from] Box<Shortfall>),
    /// A cable could not be measured.
    #[error("cable `{cable}` could not be measured: {source}")]
    Measurement {
        /// The cable.
        cable: String,
        /// Underlying error.
        source: lunway_net::NetError,
    },
    /// The watcher asked to stop.
    #[error("interrupted")]
    Interrupted,
}
