//! The sessions there are, and how many of them an initiator and a principal have: a login costs the same beside any
//! number of others.

use std::collections::{BTreeMap, HashMap};

use super::session::{SessionEntry, SessionKey};

/// Sessions by the number of the connection that made them.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    entries: BTreeMap<u64, SessionEntry>,
    /// Those of one initiator port and target port, the oldest first; several only while some are ending, or where
    /// several principals use one name.
    by_ports: HashMap<SessionKey, Vec<u64>>,
    of_initiator: Counts<(String, String)>,
    of_principal: Counts<String>,
}

/// How many there are of each; none of those of which there are none.
type Counts<Of> = HashMap<Of, usize>;

/// Sessions beside the one whose place a session takes: all, those of its initiator, and those of its principal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) all: usize,
    pub(super) of_initiator: usize,
    pub(super) of_principal: usize,
}

/// The key without the principal, by which sessions that may agree with it are found.
fn ports(key: &SessionKey) -> SessionKey {
    SessionKey { principal: None, ..key.clone() }
}

fn initiator(key: &SessionKey) -> Option<(String, String)> {
    key.principal.clone().map(|principal| (key.initiator.clone(), principal))
}

fn count<Of: Eq + std::hash::Hash>(counts: &mut Counts<Of>, of: Option<Of>) {
    if let Some(of) = of {
        *counts.entry(of).or_default() += 1;
    }
}

fn discount<Of: Eq + std::hash::Hash>(counts: &mut Counts<Of>, of: Option<Of>) {
    if let Some(of) = of
        && let Some(number) = counts.get_mut(&of)
    {
        *number -= 1;
        if *number == 0 {
            counts.remove(&of);
        }
    }
}

impl Sessions {
    pub(super) fn get(&self, id: u64) -> Option<&SessionEntry> {
        self.entries.get(&id)
    }

    /// Its key must stay as it is.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut SessionEntry> {
        self.entries.get_mut(&id)
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &SessionEntry)> {
        self.entries.iter()
    }

    /// The oldest first.
    pub(super) fn values(&self) -> impl Iterator<Item = &SessionEntry> {
        self.entries.values()
    }

    pub(super) fn insert(&mut self, id: u64, session: SessionEntry) {
        self.by_ports.entry(ports(&session.key)).or_default().push(id);
        count(&mut self.of_initiator, initiator(&session.key));
        count(&mut self.of_principal, session.key.principal.clone());
        self.entries.insert(id, session);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<SessionEntry> {
        let session = self.entries.remove(&id)?;
        let ports = ports(&session.key);
        if let Some(ids) = self.by_ports.get_mut(&ports) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_ports.remove(&ports);
            }
        }
        discount(&mut self.of_initiator, initiator(&session.key));
        discount(&mut self.of_principal, session.key.principal.clone());
        Some(session)
    }

    /// The session that has this key, and whose place has not been taken.
    pub(super) fn holder(&self, key: &SessionKey) -> Option<u64> {
        self.agreeing(key).find(|(_, session)| session.key == *key).map(|(id, _)| id)
    }

    /// The session with this TSIH that a key names.
    pub(super) fn find(&self, key: &SessionKey, tsih: u16) -> Option<u64> {
        self.agreeing(key).find(|(_, session)| session.tsih == tsih).map(|(id, _)| id)
    }

    /// The sessions beside the one whose place a session with this key takes. One without a principal has no other of
    /// its initiator or principal.
    pub(super) fn others(&self, key: &SessionKey) -> Others {
        let taken = || self.agreeing(key).map(|(_, session)| &session.key);
        let of_initiator = initiator(key).and_then(|of| self.of_initiator.get(&of)).copied();
        let of_principal = key.principal.as_ref().and_then(|of| self.of_principal.get(of)).copied();
        let is_of_principal =
            |other: &&SessionKey| key.principal.is_some() && other.principal == key.principal;
        Others {
            all: self.entries.len() - taken().count(),
            of_initiator: of_initiator.unwrap_or(0)
                - taken().filter(|other| other.is_of_same_initiator(key)).count(),
            of_principal: of_principal.unwrap_or(0) - taken().filter(is_of_principal).count(),
        }
    }

    /// Sessions that agree with a key, and whose place has not been taken.
    fn agreeing<'a>(&'a self, key: &'a SessionKey) -> impl Iterator<Item = (u64, &'a SessionEntry)> {
        let ids = self.by_ports.get(&ports(key)).into_iter().flatten();
        let sessions = ids.filter_map(|id| self.entries.get(id).map(|session| (*id, session)));
        sessions.filter(|(_, session)| !session.replaced && session.key.agrees_with(key))
    }
}
