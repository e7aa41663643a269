//! LUN masking: what a nexus may see of its target.

use std::collections::BTreeSet;

/// What a nexus may see and do. A logical unit that it may not see does not exist for it: REPORT LUNS leaves it out,
/// INQUIRY answers with peripheral qualifier 3, and everything else with LOGICAL UNIT NOT SUPPORTED.
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

    pub(crate) fn shows(&self, lun: u16) -> bool {
        self.luns.as_ref().is_none_or(|luns| luns.contains(&lun))
    }
}
