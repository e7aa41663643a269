//! Errors, as meanings: mapped to SCSI sense in crate `scsi` and to a sentence for people by `Display`.

use std::io;
use std::time::Duration;

use crate::duration::HumanTime;

/// Fate of a failed operation: stated where it is known, by the part that ends the session or the wait.
///
/// On it rests whether a write is sent again, and when: an error's kind says why something failed, and nothing of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// Not carried out: it may be sent again at once, over any way.
    NotDone,
    /// May have been carried out, wholly or in part, and nothing of it happens any more: it may be sent again at once.
    Over,
    /// The disk itself answered: every other way would bring the same answer.
    Answered,
    /// May have been carried out, or may yet be: a write waits until the session that it went into is known to be dead.
    Unknown,
}

/// Reason why an operation on a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The range leaves the device.
    #[error("{len} bytes at offset {offset} leave the device, which has {size} bytes")]
    OutOfRange {
        /// Start of the range, bytes.
        offset: u64,
        /// Length of the range, bytes.
        len: u64,
        /// Size of the device, bytes.
        size: u64,
    },
    /// The range does not consist of whole sectors.
    #[error("{len} bytes at offset {offset} are not whole sectors of {sector} bytes")]
    Misaligned {
        /// Start of the range, bytes.
        offset: u64,
        /// Length of the range, bytes.
        len: u64,
        /// The logical sector, bytes.
        sector: u32,
    },
    /// The data could not be read back or written: the medium is bad there.
    #[error("the medium failed at offset {offset}")]
    Medium {
        /// First byte that failed, as exactly as is known.
        offset: u64,
    },
    /// Nothing left to allocate.
    #[error("no space left on the device's backing store")]
    NoSpace,
    /// The device cannot have this size.
    #[error("the device cannot be resized: {why}")]
    Size {
        /// The size, and the reason against it.
        why: String,
    },
    /// No snapshot of the device was made.
    #[error("no snapshot was made: {why}")]
    Snapshot {
        /// Reason against it, or the error that occurred.
        why: String,
    },
    /// The device was not compacted.
    #[error("not compacted: {why}")]
    Compaction {
        /// Reason against it.
        why: String,
    },
    /// The device cannot be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// Another initiator holds a reservation.
    #[error("another initiator holds a reservation on the device")]
    ReservationConflict,
    /// The device cannot take the operation now; later it may.
    #[error("the device is busy")]
    Busy,
    /// The device, or the way to it, is not there.
    #[error("the device is gone: {why}")]
    Gone {
        /// Description of the event.
        why: String,
        /// Fate of the operation.
        fate: Fate,
    },
    /// The storage has shut this client out while the operation was under way (a Ceph client on the blocklist): another
    /// may own the disk by now, and may have told its users something else. A front end with sessions ends those that
    /// wait for it, without an answer.
    #[error("shut out: {why}")]
    Fenced {
        /// By whom, and what happens next.
        why: String,
    },
    /// No answer in time.
    #[error("no answer within {}", HumanTime::millis(*.millis))]
    Timeout {
        /// Time waited, milliseconds.
        millis: u64,
        /// Fate of the operation.
        fate: Fate,
    },
    /// The operation was given up, by request or because its path was reset.
    #[error("the operation was aborted")]
    Aborted {
        /// Fate of the operation.
        fate: Fate,
    },
    /// A flush cannot vouch for what was written before it: the storage may have lost its volatile cache.
    #[error("{}", unflushed_lost(*.reported))]
    UnflushedLost {
        /// The storage said that its power was off; otherwise every session with it has ended, and nothing proves that
        /// its cache lived through that.
        reported: bool,
    },
    /// The device does not know the operation.
    #[error("the device does not support this operation")]
    Unsupported,
    /// The operating system said no.
    #[error("input/output error: {message}")]
    Io {
        /// The kind that the operating system's number maps to.
        kind: io::ErrorKind,
        /// Message from the operating system.
        message: String,
    },
}

impl BlockError {
    /// The first byte that failed, bytes, where the error knows it.
    pub fn place(&self) -> Option<u64> {
        match self {
            Self::Medium { offset } => Some(*offset),
            _ => None,
        }
    }

    /// The device is not there, and the operation was not carried out.
    pub fn gone(why: impl Into<String>) -> Self {
        Self::Gone { why: why.into(), fate: Fate::NotDone }
    }

    /// The operation was given up, and nothing is known of it.
    pub fn lost() -> Self {
        Self::Aborted { fate: Fate::Unknown }
    }

    /// The wait was given up, and nothing is known of the operation.
    pub fn late(waited: Duration) -> Self {
        Self::Timeout { millis: waited.as_millis() as u64, fate: Fate::Unknown }
    }

    /// The same of an operation of which a part may have been carried out before.
    #[must_use]
    pub fn after_a_part(self) -> Self {
        match self {
            Self::Gone { why, fate: Fate::NotDone } => Self::Gone { why, fate: Fate::Over },
            Self::Timeout { millis, fate: Fate::NotDone } => Self::Timeout { millis, fate: Fate::Over },
            Self::Busy | Self::Aborted { fate: Fate::NotDone } => Self::Aborted { fate: Fate::Over },
            error => error,
        }
    }

    /// Fate of the operation.
    pub fn fate(&self) -> Fate {
        match self {
            Self::Gone { fate, .. } | Self::Timeout { fate, .. } | Self::Aborted { fate } => *fate,
            Self::Busy => Fate::NotDone,
            // What has not happened yet is refused by the storage from now on.
            Self::Fenced { .. } => Fate::Over,
            // Each by name, so that a new kind has to say it.
            Self::OutOfRange { .. }
            | Self::Misaligned { .. }
            | Self::Medium { .. }
            | Self::NoSpace
            | Self::Size { .. }
            | Self::Snapshot { .. }
            | Self::Compaction { .. }
            | Self::ReadOnly
            | Self::ReservationConflict
            | Self::UnflushedLost { .. }
            | Self::Unsupported
            | Self::Io { .. } => Fate::Answered,
        }
    }
}

fn unflushed_lost(reported: bool) -> &'static str {
    match reported {
        true => {
            "the storage reported that its power was off while acknowledged writes were not flushed: they may be lost"
        }
        false => {
            "all sessions with the storage have ended while acknowledged writes were not flushed: they may be lost"
        }
    }
}

impl From<io::Error> for BlockError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            io::ErrorKind::ResourceBusy => Self::Busy,
            io::ErrorKind::Unsupported => Self::Unsupported,
            kind => Self::Io { kind, message: error.to_string() },
        }
    }
}
