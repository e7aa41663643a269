//! Reservations of a logical unit: RESERVE/RELEASE (SPC-2) and persistent ones (SPC-4 §5.13).
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | types, RESERVE and RELEASE, and the question that each command asks: may this nexus? |
//! | `persistent.rs` | registrations and the persistent reservation: what each service action does to them |
//! | `changes.rs` | how they change: one at a time, kept before in force |
//! | `kept.rs` | how they are written down to outlive the process |

mod changes;
mod kept;
mod persistent;

pub(crate) use changes::Keeper;
pub use changes::{RegistrationSummary, ReservationSummary};
pub(crate) use persistent::{Move, Persistent, Preempt, Register};

use crate::data::sense::Sense;
use crate::model::nexus::PortPair;
use crate::model::unit_attention::UnitAttention;

/// Effect of another nexus's reservation on a command (SPC-4 §5.13.1 and the like table of SBC-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Never refused.
    Free,
    /// Refused under RESERVE only.
    Query,
    /// PERSISTENT RESERVE IN and OUT: refused under RESERVE, to its holder as well (SPC-2 §5.5.1). What persistent
    /// reservations do to them depends on keys.
    Persistent,
    /// Refused under RESERVE and under exclusive access.
    Read,
    /// Refused under RESERVE and under every persistent reservation.
    Write,
}

/// Type of a persistent reservation (SPC-4 table 64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationType {
    /// Others may read.
    WriteExclusive,
    /// Others may do neither.
    ExclusiveAccess,
    /// Registered nexuses may do both, others may read.
    WriteExclusiveRegistrantsOnly,
    /// Registered nexuses may do both, others neither.
    ExclusiveAccessRegistrantsOnly,
    /// Like write exclusive, registrants only, and every registrant is a holder.
    WriteExclusiveAllRegistrants,
    /// Like exclusive access, registrants only, and every registrant is a holder.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// From the TYPE field.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrantsOnly,
            6 => Self::ExclusiveAccessRegistrantsOnly,
            7 => Self::WriteExclusiveAllRegistrants,
            8 => Self::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// The TYPE field.
    pub fn code(self) -> u8 {
        match self {
            Self::WriteExclusive => 1,
            Self::ExclusiveAccess => 3,
            Self::WriteExclusiveRegistrantsOnly => 5,
            Self::ExclusiveAccessRegistrantsOnly => 6,
            Self::WriteExclusiveAllRegistrants => 7,
            Self::ExclusiveAccessAllRegistrants => 8,
        }
    }

    fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Every registrant takes part in it.
    fn shared_by_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Others may read.
    fn lets_others_read(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants
        )
    }
}

/// A pair of ports and the key it is registered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) ports: PortPair,
    pub(crate) key: u64,
}

/// Reason why a PERSISTENT RESERVE OUT was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// Whom a change has to be told.
///
/// A pair of ports without a nexus at the moment hears nothing of it: a unit attention belongs to a nexus and ends with
/// it (SAM-5 §5.14.4), and the one that the pair makes next begins with I_T NEXUS LOSS OCCURRED or POWER ON OCCURRED,
/// after which a host has to look at its reservations anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) to: PortPair,
    pub(crate) condition: UnitAttention,
}

/// Outcome of a service action: the nexuses to notify.
pub(crate) type Outcome = Result<Vec<Notice>, Refusal>;

/// A nexus that used RESERVE.
#[derive(Clone, Debug)]
struct Reserved {
    nexus: u64,
    ports: PortPair,
}

/// All reservations of a logical unit.
///
/// RESERVE belongs to a nexus and goes with it. Registrations and the persistent reservation belong to pairs of ports:
/// they outlive nexuses and resets, and with APTPL the process.
///
/// The two exclude each other (SPC-2 §5.5.1): while a nexus has RESERVE, every PERSISTENT RESERVE conflicts; while
/// there are registrations, RESERVE and RELEASE conflict, but for those who take part in the persistent reservation,
/// who get GOOD and nothing happens (CRH, SPC-4 §5.13.3).
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    reserved_by: Option<Reserved>,
    persistent: Persistent,
}

impl Reservations {
    /// With what was kept.
    pub(crate) fn with(persistent: Persistent) -> Self {
        Self { reserved_by: None, persistent }
    }

    /// The ports of the nexus that has RESERVE.
    pub(crate) fn reserved_by(&self) -> Option<&PortPair> {
        self.reserved_by.as_ref().map(|reserved| &reserved.ports)
    }

    pub(crate) fn persistent(&self) -> &Persistent {
        &self.persistent
    }

    pub(crate) fn set_persistent(&mut self, persistent: Persistent) {
        self.persistent = persistent;
    }

    /// See [`Persistent::adopt`].
    pub(crate) fn adopt(&mut self, ports: &PortPair) {
        self.persistent.adopt(ports);
    }

    /// A command of this nexus may not run.
    pub(crate) fn conflicts(&self, access: Access, nexus: u64, ports: &PortPair) -> bool {
        if access == Access::Free {
            return false;
        }
        if let Some(reserved) = &self.reserved_by
            && (reserved.nexus != nexus || access == Access::Persistent)
        {
            return true;
        }
        let Some(kind) = self.persistent.kind() else { return false };
        match access {
            Access::Free | Access::Query | Access::Persistent => false,
            Access::Read => !kind.lets_others_read() && !self.persistent.takes_part(ports),
            Access::Write => !self.persistent.takes_part(ports),
        }
    }

    /// RESERVE (6) and (10).
    pub(crate) fn reserve(&mut self, nexus: u64, ports: &PortPair) -> Result<(), Refusal> {
        if self.persistent.takes_part(ports) {
            return Ok(());
        }
        let other = self.reserved_by.as_ref().is_some_and(|reserved| reserved.nexus != nexus);
        if other || !self.persistent.registrations().is_empty() {
            return Err(Refusal::Conflict);
        }
        self.reserved_by = Some(Reserved { nexus, ports: ports.clone() });
        Ok(())
    }

    /// RELEASE (6) and (10): of a reservation of another nexus it does nothing, and that is GOOD (SPC-2 §7.16).
    pub(crate) fn release(&mut self, nexus: u64, ports: &PortPair) -> Result<(), Refusal> {
        if !self.persistent.registrations().is_empty() && !self.persistent.takes_part(ports) {
            return Err(Refusal::Conflict);
        }
        self.nexus_lost(nexus);
        Ok(())
    }

    /// Drops a RESERVE of this nexus.
    pub(crate) fn nexus_lost(&mut self, nexus: u64) {
        self.reserved_by.take_if(|reserved| reserved.nexus == nexus);
    }

    /// Drops a RESERVE of any nexus: the logical unit was reset.
    pub(crate) fn release_any(&mut self) {
        self.reserved_by = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use persistent::tests::{ports, register, reserve};

    fn with_reservation(kind: Option<ReservationType>) -> Reservations {
        let mut persistent = Persistent::default();
        register(&mut persistent, "holder", 1);
        register(&mut persistent, "registrant", 2);
        if let Some(kind) = kind {
            reserve(&mut persistent, "holder", 1, kind);
        }
        Reservations::with(persistent)
    }

    #[test]
    fn reserve_and_registrations_exclude_each_other() {
        let mut reservations = with_reservation(None);
        for name in ["holder", "registrant", "stranger"] {
            assert_eq!(reservations.reserve(1, &ports(name)), Err(Refusal::Conflict));
            assert_eq!(reservations.release(1, &ports(name)), Err(Refusal::Conflict));
        }
        let mut reservations = Reservations::default();
        reservations.reserve(1, &ports("a")).unwrap();
        assert!(reservations.conflicts(Access::Persistent, 1, &ports("a")));
        assert!(reservations.conflicts(Access::Persistent, 2, &ports("b")));
    }

    #[test]
    fn who_takes_part_in_a_persistent_reservation_may_reserve_and_release_in_vain() {
        use ReservationType as Type;
        for (kind, registrant) in
            [(Type::WriteExclusive, Err(Refusal::Conflict)), (Type::ExclusiveAccessRegistrantsOnly, Ok(()))]
        {
            let mut reservations = with_reservation(Some(kind));
            assert_eq!(reservations.reserve(1, &ports("holder")), Ok(()));
            assert_eq!(reservations.reserved_by(), None);
            assert_eq!(reservations.release(1, &ports("holder")), Ok(()));
            assert_eq!(reservations.persistent().kind(), Some(kind));
            assert_eq!(reservations.reserve(2, &ports("registrant")), registrant);
            assert_eq!(reservations.reserve(3, &ports("stranger")), Err(Refusal::Conflict));
        }
    }
}
