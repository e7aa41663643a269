//! Authority: what a nexus must be allowed to do before an operation or a task management function is carried out for
//! it.

/// Authority that an operation needs.
///
/// Where a nexus may not write ([`LunView::read_only`](crate::LunView::read_only)), what is left to it changes nothing
/// for other nexuses: neither data nor mode pages, reservations, the medium's presence, access states or commands in
/// flight. Every row of [`OPERATIONS`](crate::operations::OPERATIONS) and of [`FUNCTIONS`](crate::FUNCTIONS) states its
/// authority; there is no default.
///
/// An operation that changes blocks and lacks it ends with DATA PROTECT, WRITE PROTECTED, like a write to a protected
/// medium; one that changes state with ILLEGAL REQUEST, ACCESS DENIED - NO ACCESS RIGHTS (SPC-3 §8.3.1), because the
/// protection of a medium does not keep an initiator from, say, reserving it. A task management function ends with
/// "function authorization failed" (RFC 7143 §11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The nexus sees the logical unit. The operation changes nothing but what belongs to the nexus itself.
    Observe,
    /// The nexus may write to the logical unit.
    Change,
    /// The nexus sees all logical units of the target, and may write to each.
    ChangeAll,
}

impl Authority {
    /// Returns the wording of the documentation's tables.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Observe => "read access",
            Self::Change => "write access",
            Self::ChangeAll => "write access to all LUNs",
        }
    }
}
