//! Unit attentions that a nexus is owed by a logical unit.

use std::collections::BTreeSet;

/// Additional sense codes.
pub(crate) const POWER_ON: u16 = 0x2900;
pub(crate) const RESET: u16 = 0x2903;
pub(crate) const NEXUS_LOSS: u16 = 0x2907;
pub(crate) const MEDIUM: u16 = 0x2800;
pub(crate) const MODE: u16 = 0x2A01;
pub(crate) const RESERVATIONS_PREEMPTED: u16 = 0x2A03;
pub(crate) const RESERVATIONS_RELEASED: u16 = 0x2A04;
pub(crate) const REGISTRATIONS_PREEMPTED: u16 = 0x2A05;
pub(crate) const CAPACITY: u16 = 0x2A09;
pub(crate) const CLEARED: u16 = 0x2F00;
pub(crate) const LUNS: u16 = 0x3F0E;

/// The resets come first, in this order (SAM-5 table 53); the rest may come in any.
const FIRST: [u16; 3] = [POWER_ON, RESET, NEXUS_LOSS];

#[derive(Clone, Debug, Default)]
pub(crate) struct Pending(BTreeSet<u16>);

impl Pending {
    pub(crate) fn one(code: u16) -> Self {
        Self(BTreeSet::from([code]))
    }

    pub(crate) fn establish(&mut self, code: u16) {
        if code == RESET {
            self.0.clear();
        }
        self.0.insert(code);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Something is pending that goes before reservations (SAM-5 5.3.3).
    pub(crate) fn has_reset(&self) -> bool {
        FIRST.iter().any(|code| self.0.contains(code))
    }

    pub(crate) fn contains(&self, code: u16) -> bool {
        self.0.contains(&code)
    }

    pub(crate) fn forget(&mut self, code: u16) {
        self.0.remove(&code);
    }

    /// The disk told this one: it must be pending, and nothing that comes before it.
    pub(crate) fn told(&mut self, code: u16) -> Result<(), String> {
        if !self.0.remove(&code) {
            return Err(format!("unit attention {code:04x}, pending are {:04x?}", self.0));
        }
        let rank = |code| FIRST.iter().position(|&first| first == code).unwrap_or(FIRST.len());
        match self.0.iter().find(|&&other| rank(other) < rank(code)) {
            Some(other) => Err(format!("unit attention {code:04x} before {other:04x}")),
            None => Ok(()),
        }
    }
}
