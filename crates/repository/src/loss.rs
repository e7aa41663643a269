//! Points that are gone, though no prune has removed them.

use lunway_backup::PointId;

/// A point that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// A sentence about it.
    pub(crate) what: String,
    /// Its generation and id, if these are known.
    pub(crate) point: Option<(u64, PointId)>,
}

impl Loss {
    /// Of a series whose folder is gone, and of points of which only a number is known.
    pub(crate) fn unknown(what: String) -> Self {
        Self { what, point: None }
    }
}
