//! Persistent reservations: who is registered, who holds, and what each service action does (SPC-4 §5.13.5 to 5.13.11).

use super::{Notice, Outcome, Refusal, Registration, ReservationType};
use crate::data::sense::{AdditionalSense, Sense};
use crate::model::nexus::PortPair;
use crate::model::unit_attention::UnitAttention;

/// Most registrations of one logical unit: a bound on what initiators can make us keep.
pub(crate) const REGISTRATIONS_MAX: usize = 256;
/// Of these, one in so many, the last 64, is for principals that have few: one that takes all it can get must not keep
/// others from registering, and so from PREEMPT. The parts are those of sessions and memory of a target.
const RESERVED_PART: usize = 4;
/// Few are one in so many of all at most, 32: a host with eight ports at four of the target's has as many.
const FEW_PART: usize = 8;
/// Of the registrations, one in so many, the last 32, is for principals that have next to none: without these, four
/// principals that take all they can get leave none to a fifth.
const FIRST_PART: usize = 8;
/// Next to none are one in so many of all at most, 4: a port at four of the target's, which ALL_TG_PT registers at
/// once.
const FIRST_FEW_PART: usize = 64;

/// A persistent reservation in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) kind: ReservationType,
    /// Port pair that made it; of an all-registrants type every registrant holds it.
    pub(super) holder: PortPair,
}

/// Registrations and the persistent reservation of a logical unit.
///
/// Each service action either changes all that it should, or is refused and changes nothing; what it returns is whom it
/// has to be told. Within one, conflicts are found before other mistakes (SAM-5 §5.3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Persistent {
    /// PRGENERATION: counts changes of registrations since power on; not kept (SPC-4 §6.15.2).
    pub(super) generation: u32,
    /// APTPL of the last registration: all this is kept over power loss.
    pub(super) aptpl: bool,
    pub(super) registrations: Vec<Registration>,
    pub(super) held: Option<Held>,
}

/// REGISTER, and REGISTER AND IGNORE EXISTING KEY.
pub(crate) struct Register<'a> {
    /// Port pair of the sender.
    pub(crate) sender: &'a PortPair,
    /// RESERVATION KEY; `None`: existing keys are ignored.
    pub(crate) key: Option<u64>,
    /// SERVICE ACTION RESERVATION KEY.
    pub(crate) new_key: u64,
    /// APTPL, or why it cannot be.
    pub(crate) aptpl: Result<bool, Sense>,
    /// With SPEC_I_PT, the initiator ports that the list names besides the sender's, or what is wrong with it.
    pub(crate) initiator_ports: Option<Result<Vec<String>, Sense>>,
    /// With ALL_TG_PT all ports of the target, else that of the sender.
    pub(crate) target_ports: Vec<u16>,
}

/// REGISTER AND MOVE.
pub(crate) struct Move<'a> {
    /// Port pair of the sender.
    pub(crate) sender: &'a PortPair,
    /// RESERVATION KEY.
    pub(crate) key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(crate) new_key: u64,
    /// APTPL, or why it cannot be.
    pub(crate) aptpl: Result<bool, Sense>,
    /// UNREG: the sender's registration goes.
    pub(crate) unregister: bool,
    /// To whom, or what is wrong with its name.
    pub(crate) to: Result<PortPair, Sense>,
}

/// PREEMPT, and the part of PREEMPT AND ABORT that concerns registrations.
pub(crate) struct Preempt<'a> {
    /// Port pair of the sender.
    pub(crate) sender: &'a PortPair,
    /// RESERVATION KEY.
    pub(crate) key: u64,
    /// SERVICE ACTION RESERVATION KEY: whose registrations go.
    pub(crate) victim: u64,
    /// SCOPE and TYPE of the reservation that takes the place of the victim's, or what is wrong with them.
    pub(crate) kind: Result<ReservationType, Sense>,
}

impl Persistent {
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn aptpl(&self) -> bool {
        self.aptpl
    }

    pub(crate) fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// Type of the reservation in force.
    pub(crate) fn kind(&self) -> Option<ReservationType> {
        self.held.as_ref().map(|held| held.kind)
    }

    /// Type of the reservation and the key to report: 0 for all-registrants types (SPC-4 §6.15.3.2).
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

    /// Holds the reservation, or is registered under one that registrants share.
    pub(crate) fn takes_part(&self, ports: &PortPair) -> bool {
        self.held.as_ref().is_some_and(|held| {
            (held.kind.shared_by_registrants() || held.holder == *ports) && self.key_of(ports).is_some()
        })
    }

    fn key_of(&self, ports: &PortPair) -> Option<u64> {
        self.registrations.iter().find(|registration| registration.ports == *ports).map(|found| found.key)
    }

    /// Every service action but REGISTER starts here: the sender must be registered with the key it gives.
    pub(crate) fn check_key(&self, ports: &PortPair, key: u64) -> Result<(), Refusal> {
        if self.key_of(ports) == Some(key) { Ok(()) } else { Err(Refusal::Conflict) }
    }

    fn bump(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// REGISTER (tables 67 and 69); without a key, REGISTER AND IGNORE EXISTING KEY (table 68).
    pub(crate) fn register(&mut self, request: Register<'_>) -> Outcome {
        let Register { sender, key, new_key, aptpl, initiator_ports, target_ports } = request;
        let own = |port: u16| PortPair { relative_target_port: port, ..sender.clone() };
        let existing = self.key_of(sender);
        if key.is_some_and(|key| existing.unwrap_or(0) != key) {
            return Err(Refusal::Conflict);
        }
        // Through the other target ports of ALL_TG_PT, registrations that are there must have the key as well.
        let others: Vec<PortPair> =
            target_ports.iter().map(|&port| own(port)).filter(|ports| ports != sender).collect();
        let wrong = |ports: &PortPair| {
            self.key_of(ports).is_some_and(|existing| key.is_some_and(|key| existing != key))
        };
        if others.iter().any(wrong) {
            return Err(Refusal::Conflict);
        }
        if existing.is_some() && initiator_ports.is_some() {
            return Err(Sense::invalid_parameter(20).into());
        }
        let mut nexuses = vec![sender.clone()];
        nexuses.extend(others);
        if new_key == 0 {
            nexuses.retain(|ports| self.key_of(ports).is_some());
            if nexuses.is_empty() {
                return Ok(Vec::new());
            }
            self.aptpl = aptpl?;
            self.bump();
            return Ok(nexuses.iter().flat_map(|ports| self.unregister(ports)).collect());
        }
        let aptpl = aptpl?;
        for initiator_port in initiator_ports.transpose()?.unwrap_or_default() {
            for &port in &target_ports {
                // SPC-4 has no words for principals: they are ports of the sender's own.
                let initiator_port = initiator_port.clone();
                let ports = PortPair { initiator_port, relative_target_port: port, ..sender.clone() };
                if nexuses.contains(&ports) {
                    continue; // the sender itself, or one that is named twice
                }
                if self.key_of(&ports).is_some() {
                    return Err(Sense::invalid_parameter(24).into());
                }
                nexuses.push(ports);
                self.check_room(&nexuses)?;
            }
        }
        self.check_room(&nexuses)?;
        self.aptpl = aptpl;
        self.bump();
        nexuses.into_iter().for_each(|ports| self.set_key(ports, new_key));
        Ok(Vec::new())
    }

    /// All of these, which are ports of one principal, can be registered. An empty principal is everybody alike, and
    /// has no share.
    fn check_room(&self, nexuses: &[PortPair]) -> Result<(), Refusal> {
        let new = nexuses.iter().filter(|ports| self.key_of(ports).is_none()).count();
        let of_principal = |most: usize| {
            let same = |ports: &PortPair| nexuses.iter().all(|new| new.principal == ports.principal);
            let own = self.registrations.iter().filter(|registration| same(&registration.ports)).count();
            own + new <= most || nexuses.iter().all(|ports| ports.principal.is_empty())
        };
        let all = self.registrations.len() + new;
        let has_room = new == 0
            || all <= REGISTRATIONS_MAX - REGISTRATIONS_MAX / RESERVED_PART
            || all <= REGISTRATIONS_MAX - REGISTRATIONS_MAX / FIRST_PART
                && of_principal(REGISTRATIONS_MAX / FEW_PART)
            || all <= REGISTRATIONS_MAX && of_principal(REGISTRATIONS_MAX / FIRST_FEW_PART);
        match has_room {
            true => Ok(()),
            false => Err(Sense::illegal(AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES).into()),
        }
    }

    /// A registration of these ports that was made while the target let in everybody alike, or by an earlier version,
    /// becomes that of the first principal who comes with them.
    pub(crate) fn adopt(&mut self, ports: &PortPair) {
        if ports.principal.is_empty() || self.registrations.is_empty() || self.key_of(ports).is_some() {
            return;
        }
        let anyone = PortPair { principal: String::new(), ..ports.clone() };
        if let Some(found) = self.registrations.iter_mut().find(|registration| registration.ports == anyone) {
            found.ports = ports.clone();
        }
        if let Some(held) = self.held.as_mut().filter(|held| held.holder == anyone) {
            held.holder = ports.clone();
        }
    }

    fn set_key(&mut self, ports: PortPair, key: u64) {
        match self.registrations.iter_mut().find(|registration| registration.ports == ports) {
            Some(registration) => registration.key = key,
            None => self.registrations.push(Registration { ports, key }),
        }
    }

    /// Removes a registration; a reservation that it held goes with it (SPC-4 §5.13.11.2.3).
    fn unregister(&mut self, gone: &PortPair) -> Vec<Notice> {
        self.registrations.retain(|registration| registration.ports != *gone);
        if self.is_orphaned() { self.end_reservation(gone) } else { Vec::new() }
    }

    /// The reservation has no holder any longer (table 71).
    fn is_orphaned(&self) -> bool {
        self.held.as_ref().is_some_and(|held| match held.kind.all_registrants() {
            true => self.registrations.is_empty(),
            false => self.key_of(&held.holder).is_none(),
        })
    }

    /// Ends the reservation and tells the registrants that took part in it.
    fn end_reservation(&mut self, by: &PortPair) -> Vec<Notice> {
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

    /// RESERVE (5.13.9). `kind`: TYPE, or what is wrong with SCOPE and TYPE.
    pub(crate) fn reserve(
        &mut self,
        sender: &PortPair,
        key: u64,
        kind: Result<ReservationType, Sense>,
    ) -> Outcome {
        self.check_key(sender, key)?;
        if self.held.is_some() && self.held_by(sender).is_none() {
            return Err(Refusal::Conflict);
        }
        let kind = kind?;
        match self.kind() {
            None => self.held = Some(Held { kind, holder: sender.clone() }),
            Some(held) if held == kind => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Vec::new())
    }

    /// RELEASE (5.13.11.2.2). `scope`: what is wrong with SCOPE; `kind`: TYPE, where there is such a type.
    pub(crate) fn release(
        &mut self,
        sender: &PortPair,
        key: u64,
        scope: Result<(), Sense>,
        kind: Option<ReservationType>,
    ) -> Outcome {
        self.check_key(sender, key)?;
        scope?;
        match self.held_by(sender) {
            None => Ok(Vec::new()),
            held if held != kind => {
                Err(Sense::illegal(AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into())
            }
            _ => Ok(self.end_reservation(sender)),
        }
    }

    /// CLEAR (5.13.11.2.7).
    pub(crate) fn clear(&mut self, sender: &PortPair, key: u64) -> Outcome {
        self.check_key(sender, key)?;
        let notices = self.tell_others(sender, UnitAttention::ReservationsPreempted);
        self.registrations.clear();
        self.held = None;
        self.bump();
        Ok(notices)
    }

    /// An administrator's CLEAR: every registrant is told.
    pub(crate) fn clear_all(&mut self) -> Vec<Notice> {
        let tell = |registration: Registration| Notice {
            to: registration.ports,
            condition: UnitAttention::ReservationsPreempted,
        };
        let notices: Vec<Notice> = std::mem::take(&mut self.registrations).into_iter().map(tell).collect();
        self.held = None;
        self.bump();
        notices
    }

    /// PREEMPT (table 72). Takes the reservation over where the victim's key is that of its holder, or 0 under an
    /// all-registrants type; else it only removes registrations, the sender's own too if it names that.
    pub(crate) fn preempt(&mut self, request: Preempt<'_>) -> Outcome {
        let Preempt { sender, key, victim, kind } = request;
        self.check_key(sender, key)?;
        let takes_over = match &self.held {
            Some(held) if held.kind.all_registrants() => victim == 0,
            Some(_) if victim == 0 => return Err(Sense::invalid_parameter(8).into()),
            Some(held) => self.key_of(&held.holder) == Some(victim),
            None => false,
        };
        if !takes_over && !self.registrations.iter().any(|registration| registration.key == victim) {
            return Err(Refusal::Conflict);
        }
        let old = self.kind();
        if takes_over {
            self.held = Some(Held { kind: kind?, holder: sender.clone() });
        }
        let goes = |registration: &Registration| {
            let named = victim == 0 || registration.key == victim;
            named && !(takes_over && registration.ports == *sender)
        };
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.registrations).into_iter().partition(goes);
        self.registrations = kept;
        let gone = gone.into_iter().map(|registration| registration.ports);
        let condition = UnitAttention::RegistrationsPreempted;
        let mut notices: Vec<Notice> =
            gone.filter(|ports| ports != sender).map(|to| Notice { to, condition }).collect();
        if takes_over && old != self.kind() {
            notices.extend(self.tell_others(sender, UnitAttention::ReservationsReleased));
        }
        if self.is_orphaned() {
            notices.extend(self.end_reservation(sender));
        }
        self.bump();
        Ok(notices)
    }

    /// REGISTER AND MOVE (table 70).
    pub(crate) fn register_and_move(&mut self, request: Move<'_>) -> Outcome {
        let Move { sender, key, new_key, aptpl, unregister, to } = request;
        self.check_key(sender, key)?;
        let Some(kind) = self.kind() else { return Err(Sense::invalid_cdb_field(1, 4).into()) };
        if kind.all_registrants() || self.held_by(sender).is_none() {
            return Err(Refusal::Conflict);
        }
        if new_key == 0 {
            return Err(Sense::invalid_parameter(8).into());
        }
        let aptpl = aptpl?;
        let to = to?;
        self.check_room(std::slice::from_ref(&to))?;
        self.aptpl = aptpl;
        self.set_key(to.clone(), new_key);
        self.held = Some(Held { kind, holder: to });
        self.bump();
        Ok(if unregister { self.unregister(sender) } else { Vec::new() })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn ports(name: &str) -> PortPair {
        PortPair { initiator_port: name.to_owned(), relative_target_port: 1, principal: String::new() }
    }

    fn request<'a>(sender: &'a PortPair, key: Option<u64>, new_key: u64) -> Register<'a> {
        Register {
            sender,
            key,
            new_key,
            aptpl: Ok(false),
            initiator_ports: None,
            target_ports: vec![sender.relative_target_port],
        }
    }

    #[test]
    fn ports_of_one_name_and_two_principals_have_nothing_of_each_others() {
        let of = |principal: &str| PortPair { principal: principal.to_owned(), ..ports("a") };
        let mut persistent = Persistent::default();
        persistent.register(request(&of("user:a"), Some(0), 1)).unwrap();
        persistent.reserve(&of("user:a"), 1, Ok(ReservationType::WriteExclusive)).unwrap();
        assert!(persistent.takes_part(&of("user:a")) && !persistent.takes_part(&of("user:b")));
        assert_eq!(persistent.register(request(&of("user:b"), Some(1), 0)), Err(Refusal::Conflict));
        persistent.register(request(&of("user:b"), Some(0), 2)).unwrap();
        assert_eq!(persistent.release(&of("user:b"), 1, Ok(()), None), Err(Refusal::Conflict));
        assert_eq!((persistent.key_of(&of("user:a")), persistent.key_of(&of("user:b"))), (Some(1), Some(2)));
    }

    #[test]
    fn a_registration_of_nobody_in_particular_becomes_the_first_principals() {
        let of = |principal: &str| PortPair { principal: principal.to_owned(), ..ports("a") };
        let mut persistent = Persistent::default();
        persistent.register(request(&of(""), Some(0), 1)).unwrap();
        persistent.reserve(&of(""), 1, Ok(ReservationType::WriteExclusive)).unwrap();
        for principal in ["user:a", "user:b"] {
            persistent.adopt(&of(principal));
        }
        assert!(persistent.held_by(&of("user:a")).is_some());
        assert_eq!((persistent.key_of(&of("")), persistent.key_of(&of("user:b"))), (None, None));
    }

    fn change(persistent: &mut Persistent, name: &str, key: u64, new_key: u64) -> Outcome {
        persistent.register(request(&ports(name), Some(key), new_key))
    }

    pub(crate) fn register(persistent: &mut Persistent, name: &str, key: u64) {
        change(persistent, name, 0, key).unwrap();
    }

    pub(crate) fn reserve(persistent: &mut Persistent, name: &str, key: u64, kind: ReservationType) {
        persistent.reserve(&ports(name), key, Ok(kind)).unwrap();
    }

    fn with_registrants(names: &[(&str, u64)]) -> Persistent {
        let mut persistent = Persistent::default();
        names.iter().for_each(|(name, key)| register(&mut persistent, name, *key));
        persistent
    }

    fn preempt(
        persistent: &mut Persistent,
        name: &str,
        key: u64,
        victim: u64,
        kind: ReservationType,
    ) -> Outcome {
        persistent.preempt(Preempt { sender: &ports(name), key, victim, kind: Ok(kind) })
    }

    fn told(notices: &[Notice]) -> Vec<(&str, UnitAttention)> {
        notices.iter().map(|notice| (notice.to.initiator_port.as_str(), notice.condition)).collect()
    }

    use ReservationType as Type;
    use UnitAttention::{RegistrationsPreempted, ReservationsPreempted, ReservationsReleased};

    /// Table 67.
    #[test]
    fn register_needs_the_right_key_and_counts_generations() {
        let mut persistent = Persistent::default();
        assert_eq!(change(&mut persistent, "a", 5, 1), Err(Refusal::Conflict));
        assert_eq!(change(&mut persistent, "a", 0, 0), Ok(vec![]));
        assert_eq!(persistent.generation(), 0);
        register(&mut persistent, "a", 1);
        assert_eq!(change(&mut persistent, "a", 0, 2), Err(Refusal::Conflict));
        assert_eq!(persistent.generation(), 1);
        assert_eq!(persistent.register(request(&ports("a"), None, 3)), Ok(vec![]));
        assert_eq!(persistent.key_of(&ports("a")), Some(3));
        assert_eq!(change(&mut persistent, "a", 3, 0), Ok(vec![]));
        assert_eq!((persistent.generation(), persistent.registrations().len()), (3, 0));
    }

    #[test]
    fn the_last_of_all_registrants_takes_the_reservation_along() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
        reserve(&mut persistent, "a", 1, Type::WriteExclusiveAllRegistrants);
        change(&mut persistent, "a", 1, 0).unwrap();
        assert!(persistent.held.is_some());
        change(&mut persistent, "b", 2, 0).unwrap();
        assert!(persistent.held.is_none());
    }

    #[test]
    fn a_holder_that_unregisters_releases_and_registrants_hear_it() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
        reserve(&mut persistent, "a", 1, Type::WriteExclusiveRegistrantsOnly);
        let notices = change(&mut persistent, "a", 1, 0).unwrap();
        assert_eq!(told(&notices), [("b", ReservationsReleased)]);
        assert!(persistent.held.is_none());
    }

    #[test]
    fn spec_i_pt_registers_all_that_it_names_or_nothing() {
        let sender = ports("a");
        let named = |names: &[&str]| Some(Ok(names.iter().map(|&name| name.to_owned()).collect()));
        let mut persistent = with_registrants(&[("old", 9)]);
        let list = Register { initiator_ports: named(&["b", "old"]), ..request(&sender, Some(0), 7) };
        assert_eq!(persistent.register(list), Err(Sense::invalid_parameter(24).into()));
        assert_eq!((persistent.registrations().len(), persistent.generation()), (1, 1));
        let list = Register { initiator_ports: named(&["b", "a", "c", "b"]), ..request(&sender, Some(0), 7) };
        assert_eq!(persistent.register(list), Ok(vec![]));
        let keys: Vec<_> = ["a", "b", "c"].iter().map(|name| persistent.key_of(&ports(name))).collect();
        assert_eq!(keys, [Some(7); 3]);
        // Table 67: a nexus that is registered may not.
        let list = Register { initiator_ports: named(&["d"]), ..request(&sender, Some(7), 8) };
        assert_eq!(persistent.register(list), Err(Sense::invalid_parameter(20).into()));
    }

    #[test]
    fn all_tg_pt_registers_through_every_port_and_unregisters_so() {
        let sender = ports("a");
        let everywhere =
            |key, new_key| Register { target_ports: vec![1, 2, 3], ..request(&sender, Some(key), new_key) };
        let mut persistent = Persistent::default();
        persistent.register(everywhere(0, 5)).unwrap();
        let through: Vec<_> =
            persistent.registrations().iter().map(|found| found.ports.relative_target_port).collect();
        assert_eq!((through, persistent.generation()), (vec![1, 2, 3], 1));
        let third = PortPair { relative_target_port: 3, ..sender.clone() };
        persistent.register(request(&third, Some(5), 6)).unwrap();
        assert_eq!(persistent.register(everywhere(5, 0)), Err(Refusal::Conflict), "port 3 has key 6");
        let all = Register { key: None, ..everywhere(0, 0) };
        persistent.register(all).unwrap();
        assert_eq!(persistent.registrations(), []);
    }

    #[test]
    fn release_wants_the_holder_and_the_type() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
        let kind = Type::ExclusiveAccess;
        reserve(&mut persistent, "a", 1, kind);
        assert_eq!(persistent.reserve(&ports("b"), 2, Ok(kind)), Err(Refusal::Conflict));
        assert_eq!(persistent.release(&ports("b"), 2, Ok(()), Some(kind)), Ok(vec![]));
        assert!(persistent.held.is_some());
        let wrong = Some(Type::WriteExclusive);
        assert!(matches!(persistent.release(&ports("a"), 1, Ok(()), wrong), Err(Refusal::Check(_))));
        persistent.release(&ports("a"), 1, Ok(()), Some(kind)).unwrap();
        assert!(persistent.held.is_none());
    }

    #[test]
    fn a_conflict_is_found_before_a_wrong_scope() {
        let mut persistent = with_registrants(&[("a", 1)]);
        let wrong = Sense::invalid_cdb_field(2, 7);
        assert_eq!(persistent.reserve(&ports("a"), 5, Err(wrong.clone())), Err(Refusal::Conflict));
        assert_eq!(persistent.reserve(&ports("a"), 1, Err(wrong.clone())), Err(wrong.clone().into()));
        assert_eq!(persistent.release(&ports("b"), 1, Err(wrong), None), Err(Refusal::Conflict));
    }

    #[test]
    fn preempt_takes_over_from_the_holder() {
        let kind = Type::WriteExclusive;
        let mut persistent = with_registrants(&[("a", 1), ("b", 2), ("c", 1), ("d", 3)]);
        reserve(&mut persistent, "a", 1, kind);
        let notices = preempt(&mut persistent, "b", 2, 1, kind).unwrap();
        assert_eq!(told(&notices), [("a", RegistrationsPreempted), ("c", RegistrationsPreempted)]);
        assert_eq!(persistent.held_by(&ports("b")), Some(kind));
        assert_eq!(persistent.registrations().len(), 2);
        // With another type, those who stay hear that the old reservation is gone.
        let notices = preempt(&mut persistent, "b", 2, 2, Type::ExclusiveAccess).unwrap();
        assert_eq!(told(&notices), [("d", ReservationsReleased)]);
        assert_eq!(persistent.held_by(&ports("b")), Some(Type::ExclusiveAccess));
    }

    #[test]
    fn preempt_without_a_match_is_a_conflict_and_zero_under_another_types_reservation_a_mistake() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
        let kind = Type::WriteExclusive;
        assert_eq!(preempt(&mut persistent, "a", 1, 77, kind), Err(Refusal::Conflict));
        assert_eq!(preempt(&mut persistent, "a", 1, 0, kind), Err(Refusal::Conflict));
        assert_eq!(preempt(&mut persistent, "x", 1, 2, kind), Err(Refusal::Conflict));
        reserve(&mut persistent, "a", 1, kind);
        assert!(matches!(preempt(&mut persistent, "b", 2, 0, kind), Err(Refusal::Check(_))));
    }

    #[test]
    fn preempting_all_registrants_with_key_zero_leaves_only_the_sender() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2), ("c", 3)]);
        reserve(&mut persistent, "a", 1, Type::ExclusiveAccessAllRegistrants);
        let kind = Type::ExclusiveAccess;
        preempt(&mut persistent, "c", 3, 0, kind).unwrap();
        assert_eq!(persistent.registrations().len(), 1);
        assert_eq!(persistent.held_by(&ports("c")), Some(kind));
    }

    #[test]
    fn preempt_removes_registrations_whatever_scope_and_type_say_and_the_senders_own_too() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2), ("c", 2)]);
        reserve(&mut persistent, "a", 1, Type::WriteExclusiveRegistrantsOnly);
        let nonsense = Err(Sense::invalid_cdb_field(2, 7));
        let notices =
            persistent.preempt(Preempt { sender: &ports("b"), key: 2, victim: 2, kind: nonsense }).unwrap();
        assert_eq!(told(&notices), [("c", RegistrationsPreempted)]);
        assert_eq!(persistent.registrations().len(), 1);
        assert!(persistent.held_by(&ports("a")).is_some());
        // The last of all registrants, by its own hand.
        let mut persistent = with_registrants(&[("a", 1)]);
        reserve(&mut persistent, "a", 1, Type::WriteExclusiveAllRegistrants);
        preempt(&mut persistent, "a", 1, 1, Type::WriteExclusive).unwrap();
        assert!(persistent.held.is_none() && persistent.registrations().is_empty());
    }

    #[test]
    fn clear_removes_all_and_tells_the_others() {
        let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
        reserve(&mut persistent, "a", 1, Type::WriteExclusive);
        assert_eq!(persistent.clear(&ports("b"), 1), Err(Refusal::Conflict));
        let notices = persistent.clear(&ports("b"), 2).unwrap();
        assert_eq!(told(&notices), [("a", ReservationsPreempted)]);
        assert!(persistent.held.is_none() && persistent.registrations().is_empty());
    }

    /// Table 70.
    #[test]
    fn register_and_move_is_for_the_holder_of_one_reservation() {
        let request = |sender: &'static str, new_key| (ports(sender), new_key);
        let run = |persistent: &mut Persistent, (sender, new_key): (PortPair, u64), key, unregister| {
            let to = Ok(ports("z"));
            persistent.register_and_move(Move {
                sender: &sender,
                key,
                new_key,
                aptpl: Ok(false),
                unregister,
                to,
            })
        };
        let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
        assert_eq!(run(&mut persistent, request("x", 9), 0, false), Err(Refusal::Conflict));
        let none = Err(Sense::invalid_cdb_field(1, 4).into());
        assert_eq!(run(&mut persistent, request("a", 9), 1, false), none);
        reserve(&mut persistent, "a", 1, Type::WriteExclusiveRegistrantsOnly);
        assert_eq!(run(&mut persistent, request("b", 9), 2, false), Err(Refusal::Conflict));
        assert_eq!(run(&mut persistent, request("a", 9), 2, false), Err(Refusal::Conflict));
        assert!(matches!(run(&mut persistent, request("a", 0), 1, false), Err(Refusal::Check(_))));
        assert_eq!(run(&mut persistent, request("a", 9), 1, true), Ok(vec![]));
        assert_eq!(persistent.held_by(&ports("z")), Some(Type::WriteExclusiveRegistrantsOnly));
        assert_eq!((persistent.key_of(&ports("a")), persistent.key_of(&ports("z"))), (None, Some(9)));
        let mut shared = with_registrants(&[("a", 1)]);
        reserve(&mut shared, "a", 1, Type::WriteExclusiveAllRegistrants);
        assert_eq!(run(&mut shared, request("a", 9), 1, false), Err(Refusal::Conflict));
    }

    #[test]
    fn registrations_are_bounded() {
        let mut persistent = Persistent::default();
        for index in 0..REGISTRATIONS_MAX {
            register(&mut persistent, &index.to_string(), 1);
        }
        assert!(matches!(change(&mut persistent, "more", 0, 1), Err(Refusal::Check(_))));
        assert_eq!(change(&mut persistent, "7", 1, 2), Ok(vec![]), "a new key needs no room");
    }

    /// One principal took all of them, by ports that it invented, and no other could register, and so none could
    /// preempt its reservation.
    #[test]
    fn a_principal_that_takes_all_registrations_it_can_get_leaves_some_to_others() {
        let of = |principal: &str, name: &str| PortPair { principal: principal.to_owned(), ..ports(name) };
        let mut persistent = Persistent::default();
        let mut taken = |principal: &str| {
            let before = persistent.registrations().len();
            for session in 0..50 {
                let sender = of(principal, &session.to_string());
                let names = (0..9).map(|port| format!("{session}-{port}")).collect();
                let spec_i_pt = Register { initiator_ports: Some(Ok(names)), ..request(&sender, None, 1) };
                let _ = persistent.register(spec_i_pt);
                let _ = persistent.register(request(&sender, None, 1));
            }
            let taken = persistent.registrations().len() - before;
            if before == 0 {
                let kind = Ok(ReservationType::ExclusiveAccess);
                persistent.reserve(&of(principal, "0"), 1, kind).unwrap();
            }
            taken
        };
        assert_eq!(["a", "b", "c"].map(&mut taken), [192, 32, 4]);
        let other = of("d", "host");
        assert_eq!(persistent.register(request(&other, Some(0), 2)), Ok(Vec::new()));
        let kind = Ok(ReservationType::WriteExclusive);
        persistent.preempt(Preempt { sender: &other, key: 2, victim: 1, kind }).unwrap();
        assert_eq!((persistent.registrations().len(), persistent.held_by(&other).is_some()), (1, true));
    }
}
