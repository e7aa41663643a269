//! Parameter list of PERSISTENT RESERVE OUT (SPC-4 §6.16.3).

use super::field::{u8_at, u64_at};

/// Flags of the list.
pub(crate) mod flag {
    pub(crate) const APTPL: u8 = 0x01;
    /// In byte 17 of REGISTER AND MOVE.
    pub(crate) const UNREG: u8 = 0x02;
    /// In byte 20 of the basic list.
    pub(crate) const ALL_TG_PT: u8 = 0x04;
    pub(crate) const SPEC_I_PT: u8 = 0x08;
}

/// The parameter list of a REGISTER that removes registrations of the sender alone, and so takes nothing from other
/// nexuses.
pub(crate) fn unregisters_own(list: &[u8]) -> bool {
    u64_at(list, 8) == Some(0) && u8_at(list, 20).is_some_and(|flags| flags & flag::SPEC_I_PT == 0)
}
