//! Reservations of a logical unit: RESERVE/RELEASE (SPC-2) and persistent ones (SPC-4 5.13).

use crate::nexus::PortPair;
use crate::operations::Access;
use crate::sense::{AdditionalSense, Sense};
use crate::unit_attention::UnitAttention;

/// Most registrations of one logical unit: a bound on what initiators can make us keep.
const REGISTRATIONS_MAX: usize = 256;

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

/// A persistent reservation in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    kind: ReservationType,
    /// Who made it; of an all-registrants type every registrant holds it.
    holder: PortPair,
}

/// Why a PERSISTENT RESERVE OUT was refused.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) to: PortPair,
    pub(crate) condition: UnitAttention,
}

type Outcome = Result<Vec<Notice>, Refusal>;

/// All reservations of a logical unit.
///
/// RESERVE belongs to a nexus and goes with it. Registrations and the persistent reservation belong to pairs of ports:
/// they outlive nexuses and resets, and end when they are removed or the process does (APTPL is refused).
/// While there are registrations, RESERVE and RELEASE follow SPC-4's compatible handling (CRH): a registrant gets GOOD
/// and nothing happens, others get a conflict.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    reserved_by: Option<u64>,
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<Held>,
}

impl Reservations {
    pub(crate) fn reserved_by(&self) -> Option<u64> {
        self.reserved_by
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// Type of the reservation and the key to report: 0 for all-registrants types (SPC-4 6.15.3.2).
    pub(crate) fn reservation(&self) -> Option<(ReservationType, u64)> {
        let held = self.held.as_ref()?;
        let key = if held.kind.all_registrants() { 0 } else { self.key_of(&held.holder).unwrap_or(0) };
        Some((held.kind, key))
    }

    /// The reservation's type, where this pair of ports holds it.
    pub(crate) fn held_by(&self, ports: &PortPair) -> Option<ReservationType> {
        let held = self.held.as_ref()?;
        let holds =
            if held.kind.all_registrants() { self.key_of(ports).is_some() } else { held.holder == *ports };
        holds.then_some(held.kind)
    }

    fn key_of(&self, ports: &PortPair) -> Option<u64> {
        self.registrations.iter().find(|registration| registration.ports == *ports).map(|found| found.key)
    }

    /// A command of this nexus may not run.
    pub(crate) fn conflicts(&self, access: Access, nexus: u64, ports: &PortPair) -> bool {
        if access == Access::Free {
            return false;
        }
        if self.reserved_by.is_some_and(|holder| holder != nexus || access == Access::Persistent) {
            return true;
        }
        let Some(held) = &self.held else { return false };
        if self.held_by(ports).is_some() || held.kind.shared_by_registrants() && self.key_of(ports).is_some()
        {
            return false;
        }
        match access {
            Access::Free | Access::Query | Access::Persistent => false,
            Access::Read => !held.kind.lets_others_read(),
            Access::Write => true,
        }
    }

    /// RESERVE (6) and (10).
    pub(crate) fn reserve_unit(&mut self, nexus: u64, ports: &PortPair) -> Result<(), Refusal> {
        if !self.registrations.is_empty() {
            return if self.key_of(ports).is_some() { Ok(()) } else { Err(Refusal::Conflict) };
        }
        if self.reserved_by.is_some_and(|holder| holder != nexus) {
            return Err(Refusal::Conflict);
        }
        self.reserved_by = Some(nexus);
        Ok(())
    }

    /// RELEASE (6) and (10): of a reservation of another nexus it does nothing, and that is GOOD (SPC-2 7.16).
    pub(crate) fn release_unit(&mut self, nexus: u64, ports: &PortPair) -> Result<(), Refusal> {
        if !self.registrations.is_empty() && self.key_of(ports).is_none() {
            return Err(Refusal::Conflict);
        }
        self.release(nexus);
        Ok(())
    }

    /// Drops a RESERVE of this nexus.
    pub(crate) fn release(&mut self, nexus: u64) {
        self.reserved_by.take_if(|holder| *holder == nexus);
    }

    /// Drops a RESERVE of any nexus: the logical unit was reset.
    pub(crate) fn release_any(&mut self) {
        self.reserved_by = None;
    }

    /// REGISTER; with `ignore`, REGISTER AND IGNORE EXISTING KEY.
    pub(crate) fn register(&mut self, ports: &PortPair, key: u64, new_key: u64, ignore: bool) -> Outcome {
        let existing = self.registrations.iter().position(|registration| registration.ports == *ports);
        match existing {
            None if !ignore && key != 0 => return Err(Refusal::Conflict),
            None if new_key == 0 => return Ok(Vec::new()),
            None if self.registrations.len() >= REGISTRATIONS_MAX => {
                return Err(Sense::illegal(AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES).into());
            }
            None => self.registrations.push(Registration { ports: ports.clone(), key: new_key }),
            Some(index) if !ignore && self.registrations[index].key != key => return Err(Refusal::Conflict),
            Some(index) if new_key != 0 => self.registrations[index].key = new_key,
            Some(index) => {
                self.bump();
                return Ok(self.unregister(index));
            }
        }
        self.bump();
        Ok(Vec::new())
    }

    fn bump(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes a registration; a reservation that it held goes with it (SPC-4 5.13.11.3).
    fn unregister(&mut self, index: usize) -> Vec<Notice> {
        let gone = self.registrations.remove(index);
        let Some(held) = &self.held else { return Vec::new() };
        let last = if held.kind.all_registrants() {
            self.registrations.is_empty()
        } else {
            held.holder == gone.ports
        };
        if last { self.release_held(&gone.ports) } else { Vec::new() }
    }

    /// Ends the reservation and tells the registrants that took part in it.
    fn release_held(&mut self, by: &PortPair) -> Vec<Notice> {
        match self.held.take() {
            Some(held) if held.kind.shared_by_registrants() => {
                self.tell_others(by, UnitAttention::ReservationsReleased)
            }
            _ => Vec::new(),
        }
    }

    fn tell_others(&self, by: &PortPair, condition: UnitAttention) -> Vec<Notice> {
        let others = self.registrations.iter().filter(|registration| registration.ports != *by);
        others.map(|registration| Notice { to: registration.ports.clone(), condition }).collect()
    }

    /// Every service action but REGISTER starts here: the sender must be registered with the key it gives.
    fn registered(&self, ports: &PortPair, key: u64) -> Result<(), Refusal> {
        if self.key_of(ports) == Some(key) { Ok(()) } else { Err(Refusal::Conflict) }
    }

    /// RESERVE.
    pub(crate) fn reserve(&mut self, ports: &PortPair, key: u64, kind: ReservationType) -> Outcome {
        self.registered(ports, key)?;
        match &self.held {
            None => self.held = Some(Held { kind, holder: ports.clone() }),
            Some(_) if self.held_by(ports) == Some(kind) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Vec::new())
    }

    /// RELEASE.
    pub(crate) fn release_persistent(
        &mut self,
        ports: &PortPair,
        key: u64,
        kind: Option<ReservationType>,
    ) -> Outcome {
        self.registered(ports, key)?;
        match self.held_by(ports) {
            None => Ok(Vec::new()),
            held if held != kind => {
                Err(Sense::illegal(AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into())
            }
            _ => Ok(self.release_held(ports)),
        }
    }

    /// CLEAR.
    pub(crate) fn clear(&mut self, ports: &PortPair, key: u64) -> Outcome {
        self.registered(ports, key)?;
        let notices = self.tell_others(ports, UnitAttention::ReservationsPreempted);
        self.registrations.clear();
        self.held = None;
        self.bump();
        Ok(notices)
    }

    /// PREEMPT, and PREEMPT AND ABORT after the commands are gone (SPC-4 5.13.11.4).
    pub(crate) fn preempt(
        &mut self,
        ports: &PortPair,
        key: u64,
        victim: u64,
        kind: Option<ReservationType>,
    ) -> Outcome {
        self.registered(ports, key)?;
        let takes_over = match &self.held {
            Some(held) if held.kind.all_registrants() => victim == 0,
            Some(held) => self.key_of(&held.holder) == Some(victim),
            None => false,
        };
        if !takes_over && victim == 0 {
            return Err(Sense::invalid_parameter(8).into());
        }
        let everyone = takes_over && victim == 0;
        let removed = |registration: &Registration| {
            // Its own registration the sender keeps, whatever it preempts.
            registration.ports != *ports && (everyone || registration.key == victim)
        };
        if !takes_over && !self.registrations.iter().any(|registration| registration.key == victim) {
            return Err(Refusal::Conflict);
        }
        let old = self.held.as_ref().map(|held| held.kind);
        if takes_over {
            let kind = kind.ok_or_else(|| Sense::invalid_cdb_field(2, 3))?;
            self.held = Some(Held { kind, holder: ports.clone() });
        }
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.registrations).into_iter().partition(removed);
        self.registrations = kept;
        let mut notices: Vec<Notice> = gone
            .into_iter()
            .map(|registration| Notice {
                to: registration.ports,
                condition: UnitAttention::RegistrationsPreempted,
            })
            .collect();
        // The rest took part in a reservation that is now another one.
        if takes_over && old.is_some_and(ReservationType::shared_by_registrants) && old != kind {
            notices.extend(self.tell_others(ports, UnitAttention::ReservationsReleased));
        }
        self.bump();
        Ok(notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(name: &str) -> PortPair {
        PortPair { initiator_port: name.to_owned(), relative_target_port: 1 }
    }

    fn with_registrants(names: &[(&str, u64)]) -> Reservations {
        let mut reservations = Reservations::default();
        for &(name, key) in names {
            reservations.register(&ports(name), 0, key, false).unwrap();
        }
        reservations
    }

    /// SPC-4 5.13.1: who may read and write under each type: holder, registrant, stranger.
    #[test]
    fn each_type_refuses_what_the_standard_says() {
        use ReservationType as Type;
        let table = [
            (Type::WriteExclusive, [true, false], [true, false]),
            (Type::ExclusiveAccess, [false, false], [false, false]),
            (Type::WriteExclusiveRegistrantsOnly, [true, true], [true, false]),
            (Type::ExclusiveAccessRegistrantsOnly, [true, true], [false, false]),
            (Type::WriteExclusiveAllRegistrants, [true, true], [true, false]),
            (Type::ExclusiveAccessAllRegistrants, [true, true], [false, false]),
        ];
        for (kind, registrant, stranger) in table {
            let mut reservations = with_registrants(&[("holder", 1), ("registrant", 2)]);
            reservations.reserve(&ports("holder"), 1, kind).unwrap();
            let allowed = |name: &str| {
                [Access::Read, Access::Write].map(|access| !reservations.conflicts(access, 9, &ports(name)))
            };
            assert_eq!(allowed("holder"), [true, true], "{kind:?}");
            assert_eq!(allowed("registrant"), registrant, "{kind:?}");
            assert_eq!(allowed("stranger"), stranger, "{kind:?}");
            assert!(!reservations.conflicts(Access::Query, 9, &ports("stranger")));
            assert_eq!(ReservationType::from_code(kind.code()), Some(kind));
        }
    }

    #[test]
    fn register_needs_the_right_key_and_counts_generations() {
        let mut reservations = Reservations::default();
        assert_eq!(reservations.register(&ports("a"), 5, 1, false), Err(Refusal::Conflict));
        assert_eq!(reservations.register(&ports("a"), 0, 0, false), Ok(vec![]));
        assert_eq!(reservations.generation(), 0);
        reservations.register(&ports("a"), 0, 1, false).unwrap();
        assert_eq!(reservations.register(&ports("a"), 2, 3, false), Err(Refusal::Conflict));
        reservations.register(&ports("a"), 1, 3, false).unwrap();
        reservations.register(&ports("a"), 99, 4, true).unwrap();
        assert_eq!(reservations.generation(), 3);
        reservations.register(&ports("a"), 4, 0, false).unwrap();
        assert!(reservations.registrations().is_empty());
    }

    #[test]
    fn the_last_of_all_registrants_takes_the_reservation_along() {
        let mut reservations = with_registrants(&[("a", 1), ("b", 2)]);
        reservations.reserve(&ports("a"), 1, ReservationType::WriteExclusiveAllRegistrants).unwrap();
        reservations.register(&ports("a"), 1, 0, false).unwrap();
        assert!(reservations.is_held());
        reservations.register(&ports("b"), 2, 0, false).unwrap();
        assert!(!reservations.is_held());
    }

    #[test]
    fn a_holder_that_unregisters_releases_and_registrants_hear_it() {
        let mut reservations = with_registrants(&[("a", 1), ("b", 2)]);
        reservations.reserve(&ports("a"), 1, ReservationType::WriteExclusiveRegistrantsOnly).unwrap();
        let notices = reservations.register(&ports("a"), 1, 0, false).unwrap();
        assert_eq!(notices, [Notice { to: ports("b"), condition: UnitAttention::ReservationsReleased }]);
        assert!(!reservations.is_held());
    }

    #[test]
    fn release_wants_the_holder_and_the_type() {
        let mut reservations = with_registrants(&[("a", 1), ("b", 2)]);
        let kind = ReservationType::ExclusiveAccess;
        reservations.reserve(&ports("a"), 1, kind).unwrap();
        assert_eq!(reservations.reserve(&ports("b"), 2, kind), Err(Refusal::Conflict));
        assert_eq!(reservations.release_persistent(&ports("b"), 2, Some(kind)), Ok(vec![]));
        assert!(reservations.is_held());
        let wrong = Some(ReservationType::WriteExclusive);
        assert!(matches!(reservations.release_persistent(&ports("a"), 1, wrong), Err(Refusal::Check(_))));
        reservations.release_persistent(&ports("a"), 1, Some(kind)).unwrap();
        assert!(!reservations.is_held());
    }

    #[test]
    fn preempt_takes_over_from_the_holder() {
        let kind = ReservationType::WriteExclusive;
        let mut reservations = with_registrants(&[("a", 1), ("b", 2), ("c", 1)]);
        reservations.reserve(&ports("a"), 1, kind).unwrap();
        let notices = reservations.preempt(&ports("b"), 2, 1, Some(kind)).unwrap();
        let told: Vec<_> = notices.iter().map(|notice| notice.to.initiator_port.as_str()).collect();
        assert_eq!(told, ["a", "c"]);
        assert_eq!(reservations.held_by(&ports("b")), Some(kind));
        assert_eq!(reservations.registrations().len(), 1);
    }

    #[test]
    fn preempt_without_a_match_is_a_conflict_and_zero_a_mistake() {
        let mut reservations = with_registrants(&[("a", 1), ("b", 2)]);
        assert_eq!(reservations.preempt(&ports("a"), 1, 77, None), Err(Refusal::Conflict));
        assert!(matches!(reservations.preempt(&ports("a"), 1, 0, None), Err(Refusal::Check(_))));
        assert_eq!(reservations.preempt(&ports("x"), 1, 2, None), Err(Refusal::Conflict));
    }

    #[test]
    fn preempting_all_registrants_with_key_zero_leaves_only_the_sender() {
        let mut reservations = with_registrants(&[("a", 1), ("b", 2), ("c", 3)]);
        reservations.reserve(&ports("a"), 1, ReservationType::ExclusiveAccessAllRegistrants).unwrap();
        let kind = ReservationType::ExclusiveAccess;
        reservations.preempt(&ports("c"), 3, 0, Some(kind)).unwrap();
        assert_eq!(reservations.registrations().len(), 1);
        assert_eq!(reservations.held_by(&ports("c")), Some(kind));
    }

    #[test]
    fn reserve_and_registrations_do_not_mix() {
        let mut reservations = with_registrants(&[("a", 1)]);
        assert_eq!(reservations.reserve_unit(1, &ports("a")), Ok(()));
        assert_eq!(reservations.reserved_by(), None);
        assert_eq!(reservations.reserve_unit(2, &ports("b")), Err(Refusal::Conflict));
    }

    #[test]
    fn registrations_are_bounded() {
        let mut reservations = Reservations::default();
        for index in 0..REGISTRATIONS_MAX {
            reservations.register(&ports(&index.to_string()), 0, 1, false).unwrap();
        }
        assert!(matches!(reservations.register(&ports("more"), 0, 1, false), Err(Refusal::Check(_))));
    }
}
