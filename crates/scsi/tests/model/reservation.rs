//! Reservations of one unit: RESERVE, and SPC-4 5.13.

use lunway_scsi::Response;

use crate::answer::{INVALID_CDB, INVALID_PARAMETER, Outcome, Refusal, Reply, refuse, wrong};
use crate::attention::{REGISTRATIONS_PREEMPTED, RESERVATIONS_PREEMPTED, RESERVATIONS_RELEASED};
use crate::layout::{Command, ConflictClass, number};

const INVALID_RELEASE: (u8, u16) = (5, 0x2604);

/// An initiator's number: each has one nexus at a time, and registrations are the initiator's.
pub(crate) type Who = usize;

/// Whom to tell what.
pub(crate) type Notices = Vec<(Who, u16)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    /// RESERVE is the nexus's, and goes with it.
    pub(crate) reserved_by: Option<Who>,
    pub(crate) generation: u32,
    pub(crate) keys: Vec<(Who, u64)>,
    /// Type, and who made it.
    held: Option<(u8, Who)>,
}

fn all_registrants(kind: u8) -> bool {
    kind == 7 || kind == 8
}

fn shared(kind: u8) -> bool {
    kind >= 5
}

impl Reservations {
    pub(crate) fn key(&self, who: Who) -> Option<u64> {
        self.keys.iter().find(|(other, _)| *other == who).map(|(_, key)| *key)
    }

    pub(crate) fn holds(&self, who: Who) -> Option<u8> {
        let (kind, holder) = self.held?;
        let holds = if all_registrants(kind) { self.key(who).is_some() } else { holder == who };
        holds.then_some(kind)
    }

    /// READ RESERVATION: type and key.
    pub(crate) fn reservation(&self) -> Option<(u8, u64)> {
        let (kind, holder) = self.held?;
        Some((kind, if all_registrants(kind) { 0 } else { self.key(holder).unwrap_or(0) }))
    }

    /// A command of this kind ends with RESERVATION CONFLICT.
    pub(crate) fn conflicts(&self, access: ConflictClass, who: Who) -> bool {
        if access == ConflictClass::Free {
            return false;
        }
        if self.reserved_by.is_some_and(|holder| holder != who || access == ConflictClass::Persistent) {
            return true;
        }
        let Some((kind, _)) = self.held else { return false };
        if self.takes_part(who) {
            return false;
        }
        match access {
            ConflictClass::Free | ConflictClass::Query | ConflictClass::Persistent => false,
            ConflictClass::Read => matches!(kind, 3 | 6 | 8),
            ConflictClass::Write => true,
        }
    }

    /// RESERVE and RELEASE of those who take part in a persistent reservation do nothing (CRH, SPC-4 5.13.3).
    fn takes_part(&self, who: Who) -> bool {
        self.holds(who).is_some()
            || self.held.is_some_and(|(kind, _)| shared(kind)) && self.key(who).is_some()
    }

    pub(crate) fn reserve_unit(&mut self, who: Who) -> Result<(), Refusal> {
        if self.takes_part(who) {
            return Ok(());
        }
        if !self.keys.is_empty() || self.reserved_by.is_some_and(|holder| holder != who) {
            return Err(Refusal::Conflict);
        }
        self.reserved_by = Some(who);
        Ok(())
    }

    pub(crate) fn release_unit(&mut self, who: Who) -> Result<(), Refusal> {
        if !self.keys.is_empty() && !self.takes_part(who) {
            return Err(Refusal::Conflict);
        }
        if self.reserved_by == Some(who) {
            self.reserved_by = None;
        }
        Ok(())
    }

    fn others(&self, who: Who, code: u16) -> Notices {
        self.keys.iter().filter(|(other, _)| *other != who).map(|(other, _)| (*other, code)).collect()
    }

    fn end(&mut self, who: Who) -> Notices {
        match self.held.take() {
            Some((kind, _)) if shared(kind) => self.others(who, RESERVATIONS_RELEASED),
            _ => Notices::new(),
        }
    }

    /// PERSISTENT RESERVE OUT.
    pub(crate) fn out(
        &mut self,
        who: Who,
        action: u8,
        byte: u8,
        key: u64,
        new: u64,
    ) -> Result<Notices, Refusal> {
        let (scope, kind) = (byte >> 4, byte & 0xF);
        let known = matches!(kind, 1 | 3 | 5 | 6 | 7 | 8);
        if matches!(action, 0 | 6) {
            return self.register(who, if action == 6 { None } else { Some(key) }, new);
        }
        let wrong_key = self.key(who) != Some(key);
        if matches!(action, 1 | 2) && scope != 0 || action == 1 && !known {
            // Where it would be a conflict too, the unit may say that first.
            let conflict = wrong_key || action == 1 && self.held.is_some() && self.holds(who).is_none();
            return if conflict { Err(Refusal::ConflictOr(INVALID_CDB)) } else { refuse(&[INVALID_CDB]) };
        }
        if wrong_key {
            return Err(Refusal::Conflict);
        }
        match action {
            1 => match (self.held, self.holds(who)) {
                (None, _) => {
                    self.held = Some((kind, who));
                    Ok(Notices::new())
                }
                (Some(_), Some(held)) if held == kind => Ok(Notices::new()),
                _ => Err(Refusal::Conflict),
            },
            2 => match self.holds(who) {
                None => Ok(Notices::new()),
                Some(held) if held == kind => Ok(self.end(who)),
                Some(_) => refuse(&[INVALID_RELEASE]),
            },
            3 => {
                let notices = self.others(who, RESERVATIONS_PREEMPTED);
                self.keys.clear();
                self.held = None;
                self.generation += 1;
                Ok(notices)
            }
            _ => self.preempt(who, new, (known && scope == 0).then_some(kind)),
        }
    }

    /// `key` is `None` where it is ignored.
    fn register(&mut self, who: Who, key: Option<u64>, new: u64) -> Result<Notices, Refusal> {
        let registered = self.key(who);
        if key.is_some_and(|key| key != registered.unwrap_or(0)) {
            return Err(Refusal::Conflict);
        }
        let place = self.keys.iter().position(|(other, _)| *other == who);
        let notices = match (place, new) {
            (None, 0) => return Ok(Notices::new()),
            (None, new) => {
                self.keys.push((who, new));
                Notices::new()
            }
            (Some(place), 0) => {
                self.keys.remove(place);
                match self.held {
                    Some((kind, _)) if all_registrants(kind) && self.keys.is_empty() => self.end(who),
                    Some((kind, holder)) if !all_registrants(kind) && holder == who => self.end(who),
                    _ => Notices::new(),
                }
            }
            (Some(place), new) => {
                self.keys[place].1 = new;
                Notices::new()
            }
        };
        self.generation += 1;
        Ok(notices)
    }

    fn preempt(&mut self, who: Who, victim: u64, kind: Option<u8>) -> Result<Notices, Refusal> {
        let takes_over = match self.held {
            Some((held, _)) if all_registrants(held) => victim == 0,
            Some((_, holder)) => self.key(holder) == Some(victim),
            None => false,
        };
        if victim == 0 && !takes_over {
            // Key 0 preempts all registrants, and there is no reservation of that kind.
            return match self.held {
                Some(_) => refuse(&[INVALID_PARAMETER]),
                None => Err(Refusal::ConflictOr(INVALID_PARAMETER)),
            };
        }
        if !takes_over && !self.keys.iter().any(|(_, key)| *key == victim) {
            return Err(Refusal::Conflict);
        }
        if takes_over && kind.is_none() {
            return refuse(&[INVALID_CDB]);
        }
        // Who takes over keeps its own registration (SPC-4 5.13.11.2.4), whatever its key.
        let goes = |other: Who, key: u64| (victim == 0 || key == victim) && !(takes_over && other == who);
        let mut notices: Notices = self
            .keys
            .iter()
            .filter(|(other, key)| *other != who && goes(*other, *key))
            .map(|(other, _)| (*other, REGISTRATIONS_PREEMPTED))
            .collect();
        self.keys.retain(|(other, key)| !goes(*other, *key));
        if let (true, Some(kind)) = (takes_over, kind) {
            let old = self.held.replace((kind, who));
            if old.is_some_and(|(old, _)| old != kind) {
                notices.extend(self.others(who, RESERVATIONS_RELEASED));
            }
        }
        if self.keys.is_empty() {
            self.held = None;
        }
        self.generation += 1;
        Ok(notices)
    }

    /// PERSISTENT RESERVE IN.
    pub(crate) fn read(&self, command: Command, cdb: &[u8], actual: &Response) -> Outcome {
        let allocation = number(&cdb[7..9]) as usize;
        let header = |len: usize| {
            let mut data = self.generation.to_be_bytes().to_vec();
            data.extend((len as u32).to_be_bytes());
            data
        };
        match command {
            Command::ReadKeys => {
                let mut data = header(8 * self.keys.len());
                data.extend(self.keys.iter().flat_map(|(_, key)| key.to_be_bytes()));
                Reply::data(data, allocation)
            }
            Command::ReadReservation => {
                let Some((kind, key)) = self.reservation() else {
                    return Reply::data(header(0), allocation);
                };
                let mut data = header(16);
                data.extend(key.to_be_bytes());
                data.extend([0, 0, 0, 0, 0, kind, 0, 0]);
                Reply::data(data, allocation)
            }
            _ => {
                let data = &actual.data_in[..];
                if data.len() < 8 || data.len() < 8 + number(&data[4..8]) as usize {
                    return if data.len() == allocation {
                        Reply::checked()
                    } else {
                        wrong("a list that was cut")
                    };
                }
                let mut rest = &data[8..];
                for &(who, key) in &self.keys {
                    let Some(kind) = rest.get(12).map(|flags| (flags & 1 != 0).then(|| rest[13])) else {
                        return wrong("a registration is missing");
                    };
                    if number(&rest[..8]) != key || kind != self.holds(who) {
                        return wrong(format!("the status of initiator {who}"));
                    }
                    rest = &rest[24 + number(&rest[20..24]) as usize..];
                }
                if rest.is_empty() { Reply::checked() } else { wrong("more registrations than there are") }
            }
        }
    }
}
