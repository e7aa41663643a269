//! LUN masking: what a nexus may see of its target.

use std::collections::BTreeSet;

/// View of a nexus: what it may see and do. A logical unit that it may not see does not exist for it: REPORT LUNS
/// leaves it out, INQUIRY answers with peripheral qualifier 3, and everything else with LOGICAL UNIT NOT SUPPORTED.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LunView {
    /// The numbers that it sees; `None`: all.
    pub luns: Option<BTreeSet<u16>>,
    /// The nexus changes nothing for others: its writes are refused as to a write-protected medium, WP is set in its
    /// mode parameters, and what changes state is refused for want of [`Authority`](crate::Authority).
    pub read_only: bool,
}

impl LunView {
    /// Everything, to read and write.
    pub const ALL: Self = Self { luns: None, read_only: false };

    /// No logical unit, and nothing to change.
    pub const NOTHING: Self = Self { luns: Some(BTreeSet::new()), read_only: true };

    /// Intersection with another view: the units that both show, and writing where both allow it.
    #[must_use]
    pub fn common_with(self, other: &Self) -> Self {
        let luns = match (self.luns, &other.luns) {
            (Some(ours), Some(theirs)) => Some(&ours & theirs),
            (ours, theirs) => ours.or_else(|| theirs.clone()),
        };
        Self { luns, read_only: self.read_only || other.read_only }
    }

    pub(crate) fn shows(&self, lun: u16) -> bool {
        self.luns.as_ref().is_none_or(|luns| luns.contains(&lun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_views_have_in_common_is_no_more_than_each() {
        let of = |luns: &[u16], read_only| LunView { luns: Some(luns.iter().copied().collect()), read_only };
        assert_eq!(LunView::ALL.common_with(&LunView::ALL), LunView::ALL);
        assert_eq!(LunView::ALL.common_with(&of(&[1], true)), of(&[1], true));
        assert_eq!(of(&[1, 2], true).common_with(&LunView::ALL), of(&[1, 2], true));
        assert_eq!(of(&[1, 2], false).common_with(&of(&[2, 3], false)), of(&[2], false));
        assert_eq!(of(&[1], false).common_with(&LunView::NOTHING), LunView::NOTHING);
    }
}
