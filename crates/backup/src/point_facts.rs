//! What people are told of a point, whether it is in a chain or in a repository.

use crate::manifest::{Level, Manifest, PointKind};
use crate::point_id::PointId;

/// Facts of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointFacts {
    /// The point's id.
    pub point: PointId,
    /// Counts the points of its folder.
    pub generation: u64,
    /// Seconds since 1970 by the clock of the machine that made it.
    pub time: Option<u64>,
    /// Full or increment.
    pub kind: PointKind,
    /// Reason why it is that.
    pub why: String,
    /// The point below, or that it was compared with.
    pub parent: Option<PointId>,
    /// Name given to the source.
    pub source: String,
    /// Consistency level of the state shown.
    pub level: Level,
    /// The epoch of change tracking that ended with it.
    pub epoch: Option<String>,
    /// Size of the disk, bytes.
    pub virtual_bytes: u64,
    /// Bytes that differ from the parent.
    pub changed_bytes: u64,
    /// Bytes that were read from the source.
    pub read_bytes: u64,
    /// Bytes of leaves that were sent.
    pub sent_bytes: u64,
    /// Bytes of its files, or that its run has added to the repository.
    pub stored_bytes: u64,
    /// Bytes that were left out.
    pub skipped_bytes: u64,
}

impl Manifest {
    /// What people are told of it.
    pub fn facts(&self) -> PointFacts {
        PointFacts {
            point: self.point,
            generation: self.generation,
            time: self.time,
            kind: self.kind,
            why: self.why.clone(),
            parent: self.parent,
            source: self.source.clone(),
            level: self.level,
            epoch: self.epoch.clone(),
            virtual_bytes: self.virtual_bytes,
            changed_bytes: self.changed_bytes,
            read_bytes: self.read_bytes,
            sent_bytes: self.sent_bytes,
            stored_bytes: self.file_bytes + self.leaves_bytes,
            skipped_bytes: self.skipped.iter().map(|skipped| skipped.bytes).sum(),
        }
    }
}
