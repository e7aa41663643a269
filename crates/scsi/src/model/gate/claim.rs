//! Claims: the blocks that a command has to itself, or with others, while it is inside the gate.

use std::ops::Range;

/// Blocks that a command touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Claim {
    /// None: a flush, or a question about the medium.
    #[default]
    Nothing,
    /// One range.
    One(Range<u64>),
    /// Several.
    Many(Box<[Range<u64>]>),
}

impl Claim {
    /// `count` blocks from `first` on.
    pub(crate) fn blocks(first: u64, count: u64) -> Self {
        if count == 0 { Self::Nothing } else { Self::One(first..first.saturating_add(count)) }
    }

    /// Several ranges, of which empty ones do not count.
    pub(crate) fn ranges(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        match ranges.len() {
            0 => Self::Nothing,
            1 => Self::One(ranges.swap_remove(0)),
            _ => Self::Many(ranges.into()),
        }
    }

    fn as_slice(&self) -> &[Range<u64>] {
        match self {
            Self::Nothing => &[],
            Self::One(range) => std::slice::from_ref(range),
            Self::Many(ranges) => ranges,
        }
    }

    /// Some block is in both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let meet = |one: &Range<u64>, other: &Range<u64>| one.start < other.end && other.start < one.end;
        self.as_slice().iter().any(|one| other.as_slice().iter().any(|other| meet(one, other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_overlap_where_they_share_a_block() {
        let one = Claim::blocks(10, 5);
        for (first, count, overlaps) in
            [(5, 5, false), (5, 6, true), (12, 1, true), (14, 9, true), (15, 1, false), (12, 0, false)]
        {
            let other = Claim::blocks(first, count);
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (overlaps, overlaps), "{first}+{count}");
        }
        let many = Claim::ranges([0..2, 3..3, 20..21].into_iter());
        assert!(!many.overlaps(&one) && many.overlaps(&Claim::blocks(20, 1)) && many.overlaps(&many));
        assert!(!Claim::Nothing.overlaps(&Claim::blocks(0, u64::MAX)));
        assert_eq!(Claim::blocks(u64::MAX, 2), Claim::One(u64::MAX..u64::MAX));
    }
}
