//! Reason why a disk over several paths could not be opened.

use lunway_multipath::plan::PlanError;

/// Reason why a disk over several paths could not be opened: a sentence that names what, and what may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathsOpenError {
    /// A host's name has no address.
    #[error("cannot find the host {host}: {why}")]
    Resolve {
        /// Its name.
        host: String,
        /// Message from the resolver.
        why: String,
    },
    /// The target could not be asked for its portals.
    #[error("cannot ask {device} for its portals: {source}; or name them with portal=")]
    Discover {
        /// The address without secrets.
        device: String,
        /// Underlying error.
        source: lunway_initiator::IscsiOpenError,
    },
    /// No plan could be made.
    #[error("cannot plan paths to {device}: {source}")]
    Plan {
        /// The address without secrets.
        device: String,
        /// Underlying error.
        source: PlanError,
    },
    /// A session of an earlier process is in the way.
    #[error(transparent)]
    Before {
        /// Error that describes what is in the way.
        source: lunway_initiator::IscsiOpenError,
    },
    /// No lane could be connected.
    #[error("no lane could be connected: {failures}")]
    NoLane {
        /// Failure of each lane.
        failures: String,
    },
    /// Lanes lead to different disks. Nothing is read or written where that is so.
    #[error(
        "the paths do not lead to the same disk: over {lane}, {why}; look whether an address is used twice"
    )]
    OtherDisk {
        /// The lane that leads elsewhere than the first.
        lane: String,
        /// Difference between the disks.
        why: String,
    },
}
