//! Changes at the source since the last point: an argument of a run.

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
    /// At most this changed since the epoch `since` ended. The ranges must not overlap.
    Known {
        /// The epoch that ended with the point that the ranges count from: [`Manifest::epoch`](crate::Manifest::epoch).
        since: String,
        /// The ranges.
        ranges: Box<dyn ChangeMap>,
    },
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
