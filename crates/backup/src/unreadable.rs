//! Points whose manifest cannot be read in either copy.

use std::fmt;

use crate::point_id::{PointId, stem};

/// A point whose manifest cannot be read in either copy: what its files are called is all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePoint {
    /// The generation in the name of its files.
    pub generation: u64,
    /// The id in the name of its files.
    pub point: PointId,
    /// Which file is wrong, and how.
    pub what: String,
}

impl UnreadablePoint {
    /// The beginning of the names of its files.
    pub fn stem(&self) -> String {
        stem(self.generation, self.point)
    }

    /// Of these points, those that are newer than the newest that can be read.
    pub fn newer_than(all: &[Self], newest: Option<u64>) -> impl Iterator<Item = &Self> {
        all.iter().filter(move |unreadable| Some(unreadable.generation) > newest)
    }

    /// What a run says that goes on without it, as it is newer than all that can be read.
    pub fn passed_over(&self) -> String {
        format!("{self}; it is newer than all that can be, and the run goes on without it")
    }
}

impl fmt::Display for UnreadablePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "point {} cannot be read: {}", self.point, self.what)
    }
}
