//! Errors of a server as a whole.

use std::io;
use std::net::SocketAddr;

use lunway_block::BlockError;
use lunway_block::size::HumanSize;
use lunway_filesystem::cut::Cut;
use lunway_scsi::StateError;

use super::opening::BackEndError;
use crate::config::ConfigError;
use crate::portal::BindError;
use crate::state::StateDirError;

/// Reason why a server did not start, or a change was not made: then everything is as it was.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A portal.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A device.
    #[error("target {target}, lun {lun}, device {device}: {why}")]
    Open {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// The device.
        device: String,
        /// Error of the open.
        why: BackEndError,
    },
    /// Two logical units would have one serial number, and so be one disk for initiators.
    #[error(
        "target {target}, lun {lun}: the serial number {serial} is that of lun {other_lun} of target {other}, and \
         initiators would take both for one disk: give it another serial"
    )]
    SameSerial {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Serial number that both would have.
        serial: String,
        /// The target of the other one.
        other: String,
        /// The number of the other one.
        other_lun: u16,
    },
    /// A device that leads back to the daemon, which opens all devices before anybody can log in.
    #[error(
        "target {target}, lun {lun}: its device is a logical unit of this daemon, reached over its own portal {portal}, and the \
         daemon could not start with it: name the device behind that logical unit"
    )]
    Own {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Portal through which the device is reached.
        portal: SocketAddr,
    },
    /// Error in the stored state, or in the directory for it.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// Error in the stored state of a target.
    #[error(transparent)]
    State(#[from] StateError),
    /// No thread or no runtime.
    #[error("cannot start a thread for connections: {0}")]
    Thread(io::Error),
}

/// Reason why a change was not made. Everything is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The new configuration cannot be, or something that it names cannot be had.
    #[error(transparent)]
    Unfit(#[from] StartError),
    /// The object to be changed does not exist.
    #[error("there is no {0}")]
    NotFound(String),
    /// The object to be used is configured, but its device cannot be opened.
    #[error("{place} is offline: {why}")]
    Offline {
        /// The target and the logical unit.
        place: String,
        /// Reason why it is offline.
        why: String,
    },
    /// The function that edits the configuration refused; its caller knows why.
    #[error("the change was refused")]
    Refused,
    /// Someone else made a change in between.
    #[error(
        "the configuration has changed: it has generation {is}, not {expected}; look at it again and repeat"
    )]
    Generation {
        /// The one that the caller knew.
        expected: u64,
        /// The one that it has.
        is: u64,
    },
    /// Values that hold for as long as the process runs.
    #[error(
        "{0} is read only at the start of the daemon: change it in the configuration file, for the next start"
    )]
    NeedsRestart(String),
    /// A logical unit would lose what is behind its new end, and the request does not say that this is meant.
    #[error(
        "lun {lun} of target {target} has {}; a size of {} would lose the last {}", HumanSize(*present), HumanSize(*size),
        HumanSize(present.saturating_sub(*size))
    )]
    Smaller {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Bytes that it has.
        present: u64,
        /// Bytes that it would have.
        size: u64,
    },
    /// A smaller size would cut a partition or a file system, and the request does not say that this is meant.
    #[error("lun {lun} of target {target}: {cut}")]
    Cut {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Data that would be cut.
        cut: Cut,
    },
    /// A device would be opened a second time for another sector size, or to be written: memory would be empty then,
    /// and anything else is locked by the logical unit itself.
    #[error(
        "lun {lun} of target {target}: {device} cannot be reopened while it is served{}; remove the \
         logical unit, and add it again",
        if *memory { ", as its data would be lost" } else { "" }
    )]
    Reopened {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// The device.
        device: String,
        /// Memory, which removing it loses, too.
        memory: bool,
    },
    /// A device does not take its new size.
    #[error("target {target}, lun {lun}: cannot resize {device}: {error}")]
    Resize {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// The device.
        device: String,
        /// Error that the device returned.
        error: BlockError,
    },
    /// Work on a device was not begun, or not waited for to its end.
    #[error("target {target}, lun {lun}: {why}")]
    Unsettled {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Which work, and what becomes of it.
        why: String,
    },
    /// Changes on the disk of a logical unit are not recorded.
    #[error(
        "target {target}, lun {lun}: its changes are not tracked; remove it, and add it again with track"
    )]
    NotTracked {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
    },
    /// A device makes no snapshot.
    #[error("target {target}, lun {lun}: {error}")]
    Snapshot {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Error that the device returned.
        error: BlockError,
    },
    /// A change would end snapshots, and the request does not say that this is meant.
    #[error(
        "target {target}, lun {lun} has snapshots, which would end if it {change}: {}; delete them first \
         (`lunway snapshot delete`)", names.join(", ")
    )]
    HasSnapshots {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Change to it, in words.
        change: &'static str,
        /// The snapshots.
        names: Vec<String>,
    },
    /// No snapshot is made of logical units, or there is none of that name.
    #[error("{0}")]
    NoSnapshot(String),
    /// A device is not compacted.
    #[error("target {target}, lun {lun}: {}", why_not_compacted(error))]
    Compaction {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Error that the device returned.
        error: BlockError,
    },
    /// Cannot be kept.
    #[error("cannot save the configuration: {0}")]
    Persist(io::Error),
    /// Files that the change needs, or that an earlier one waits for, do not answer. Nothing is changed later either.
    #[error("{}", late(what, *behind, *seconds))]
    Late {
        /// Step that has not ended: `saving the configuration file F`.
        what: String,
        /// An earlier change that does it.
        behind: bool,
        /// Time that was waited, seconds.
        seconds: u64,
    },
    /// The caller went away before the change was made.
    #[error("the change was given up by its client, and was not made")]
    GivenUp,
    /// The thread of a change could not be started, or panicked.
    #[error("the change broke off: {0}")]
    Broken(String),
    /// Initiators use what would be removed or replaced, and the request does not say that this is meant.
    #[error("initiators use {place}, and lose it if it {change}: {}", initiators.join(", "))]
    InUse {
        /// The logical unit or target.
        place: String,
        /// Change to it, in words: `is removed`.
        change: &'static str,
        /// Initiators that are logged in to it.
        initiators: Vec<String>,
    },
    /// Memory that holds data would be removed or replaced, and the request does not say that this is meant.
    #[error(
        "lun {lun} of target {target} is in memory and holds {} of data, which are lost if it {change}", HumanSize(*bytes)
    )]
    HoldsData {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Memory in use, bytes.
        bytes: u64,
        /// Change to it, in words: `is removed`.
        change: &'static str,
    },
    /// A file that has lost its name would be given up, without leave for it.
    #[error(
        "lun {lun} of target {target}: {why}; if the file was deleted, its data are lost once the lun {change}"
    )]
    Nameless {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Fault of the name.
        why: String,
        /// Words for what would be done with it: `is removed`.
        change: &'static str,
    },
    /// A raw image would be made longer that was made shorter while it was not served.
    #[error(
        "lun {lun} of target {target} has {}, and had {} when it was served last: what is lost of it would read as zeroes if it \
         grew; restore the image from a backup, or, if the data are not needed, resize it to {present} bytes first, the size that \
         it has", HumanSize(*present), HumanSize(*before)
    )]
    LostEnd {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// Its size, bytes.
        present: u64,
        /// Its size when it was served last, bytes.
        before: u64,
    },
    /// The server stops.
    #[error("the daemon is shutting down")]
    ShuttingDown,
}

fn late(what: &str, behind: bool, seconds: u64) -> String {
    match behind {
        false => format!(
            "the change was not made, and will not be: {what} has not ended within {seconds} s; check that file system, then \
             repeat the command"
        ),
        true => format!(
            "the change was not made: an earlier one has not ended within {seconds} s ({what}); check that file system, then \
             repeat the command"
        ),
    }
}

fn why_not_compacted(error: &BlockError) -> String {
    match error {
        BlockError::Unsupported => {
            "only a disk in a VHDX file is compacted while it is served; initiators free others by UNMAP (`fstrim`)".to_owned()
        }
        BlockError::Busy => {
            "it is being compacted already: wait until that has ended, or cancel it".to_owned()
        }
        other => other.to_string(),
    }
}

impl From<ConfigError> for ChangeError {
    fn from(error: ConfigError) -> Self {
        Self::Unfit(error.into())
    }
}

/// A device whose data may not be on stable storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("target {target}, lun {lun}: flushing {device} failed: {error}")]
pub struct FlushFailure {
    /// The target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// The device.
    pub device: String,
    /// Error of the flush.
    pub error: BlockError,
}

/// A device that has not ended its commands, or its flush, in time. What was written to it may not be on stable
/// storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("target {target}, lun {lun}: {device} does not answer; recent writes may not be on stable storage")]
pub struct UnansweredDevice {
    /// The target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// The device.
    pub device: String,
}

/// Failures during the shutdown of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct ShutdownError {
    /// Sessions whose commands the devices did not end in time.
    pub unfinished: usize,
    /// Devices that could not be flushed.
    pub flushes: Vec<FlushFailure>,
    /// Devices that were given up.
    pub unanswered: Vec<UnansweredDevice>,
}

impl ShutdownError {
    fn sentence(&self) -> String {
        let sessions = (self.unfinished > 0).then(|| {
            let plural = if self.unfinished == 1 { "" } else { "s" };
            format!("the devices did not end the commands of {} connection{plural} in time", self.unfinished)
        });
        let flushes = self.flushes.iter().map(ToString::to_string);
        let unanswered = self.unanswered.iter().map(ToString::to_string);
        let parts = sessions.into_iter().chain(flushes).chain(unanswered);
        parts.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_went_wrong_at_the_end_is_said_in_one_sentence() {
        let flush = FlushFailure {
            target: "iqn.t".to_owned(),
            lun: 3,
            device: "file:/x".to_owned(),
            error: BlockError::NoSpace,
        };
        let unanswered =
            UnansweredDevice { target: "iqn.t".to_owned(), lun: 4, device: "file:/y".to_owned() };
        let error = ShutdownError { unfinished: 1, flushes: vec![flush], unanswered: vec![unanswered] };
        assert_eq!(
            error.to_string(),
            "the devices did not end the commands of 1 connection in time; \
             target iqn.t, lun 3: flushing file:/x failed: no space left on the device's backing store; \
             target iqn.t, lun 4: file:/y does not answer; recent writes may not be on stable storage"
        );
    }
}
