//! Changes at the source since the last point: an argument of a run.

use std::fmt;

use crate::point_id::PointId;

/// Kind of change: written or unmapped. Both are handled alike: what the source reports for the range counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Written.
    Written,
    /// Unmapped.
    Unmapped,
}

/// A range that changed, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRange {
    /// First byte.
    pub offset: u64,
    /// Length, bytes; not 0.
    pub len: u64,
    /// Kind of change.
    pub change: Change,
}

/// A map of changes, in the order of the disk: a list, or a bitmap that is not copied for this.
pub trait ChangeMap: Send + Sync {
    /// The first range that ends behind `offset`, cut to begin at `offset` or later.
    fn next(&self, offset: u64) -> Option<ChangedRange>;
}

impl ChangeMap for Vec<ChangedRange> {
    fn next(&self, offset: u64) -> Option<ChangedRange> {
        let at = self.partition_point(|range| range.offset.saturating_add(range.len) <= offset);
        self.get(at).map(|range| {
            let cut = offset.saturating_sub(range.offset);
            ChangedRange { offset: range.offset + cut, len: range.len - cut, ..*range }
        })
    }
}

/// Changes since the last point.
pub enum Changed {
    /// Not known: everything is read and compared by hash, and only differences are sent.
    Unknown {
        /// Reason why it is not known, for people.
        why: String,
    },
    /// At most this changed since `since`. The ranges must not overlap.
    Known {
        /// The moment that the ranges count from.
        since: Since,
        /// The ranges.
        ranges: Box<dyn ChangeMap>,
    },
}

impl Changed {
    /// How the changes of an increment are known, as its manifest says.
    pub fn why(&self) -> String {
        match self {
            Self::Unknown { why } => format!("compared by hash: {why}"),
            Self::Known { since, .. } => format!("changes since {since} are known"),
        }
    }
}

/// Moment that changes count from. Only if it is that of the newest point are they believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// The epoch that ended with a point: [`Manifest::epoch`](crate::Manifest::epoch).
    Epoch(String),
    /// The state that a point shows, by the word of its user.
    Point(PointId),
}

impl Since {
    /// Returns `true` if it is the moment of a point that ended with this epoch.
    pub fn is_moment(&self, point: PointId, ended: Option<&str>) -> bool {
        match self {
            Self::Epoch(epoch) => ended == Some(epoch),
            Self::Point(since) => *since == point,
        }
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch(epoch) => write!(f, "epoch {epoch}"),
            Self::Point(point) => write!(f, "point {point}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_range_is_cut_at_the_offset() {
        let range = |offset, len| ChangedRange { offset, len, change: Change::Written };
        let list = vec![range(10, 5), range(20, 1)];
        let next = |offset| ChangeMap::next(&list, offset);
        assert_eq!(
            [next(0), next(12), next(15), next(21)],
            [Some(range(10, 5)), Some(range(12, 3)), Some(range(20, 1)), None]
        );
    }
}
