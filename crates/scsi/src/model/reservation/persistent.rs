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
pub(super) mod tests;
