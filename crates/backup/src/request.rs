//! The request for a run.

use lunway_block::BlockDevice;
use lunway_copy::Skipped;

use crate::changed::Changed;
use crate::manifest::Level;

/// Backup request: what is backed up, and how.
pub struct Request<'a> {
    /// The source. It must not change while it is read.
    pub source: &'a dyn BlockDevice,
    /// Name of the source, without secrets.
    pub source_name: String,
    /// Changes since the last point.
    pub changed: Changed,
    /// Ranges of the source that need not be kept.
    pub skipped: &'a Skipped,
    /// Reason why it need not.
    pub skipped_why: &'a str,
    /// The frozen state that is read, where it is one: a snapshot's name. An interrupted run of the same state goes on
    /// where it stopped; else everything is read again, and what was sent is not sent again.
    pub state: Option<String>,
    /// The epoch of change tracking that ends with this point.
    pub epoch: Option<String>,
    /// What a schedule calls the due time that the point is for. The point has it, so that it is found again where its
    /// run has ended and was not heard of.
    pub due: Option<String>,
    /// Consistency level: what the users of the source had done.
    pub level: Level,
    /// Seconds since 1970: information for people.
    pub time: Option<u64>,
    /// Make a full, whatever is known.
    pub full: bool,
    /// The source is the same disk under another name.
    pub rename_source: bool,
    /// Bytes of data that are sent each second, at most.
    pub bytes_per_second: Option<u64>,
    /// Bytes of what is said to be unchanged that are compared with the source.
    pub sample_bytes: u64,
    /// Chooses the sample.
    pub seed: u64,
    /// Returns `true` if the run should end early; asked before each unit.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}
