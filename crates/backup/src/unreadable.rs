//! Points whose manifest cannot be read in either copy.

use std::fmt;

use crate::point_id::PointId;

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

impl fmt::Display for UnreadablePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "point {} cannot be read: {}", self.point, self.what)
    }
}
