//! Target port groups and their asymmetric access states (SPC-4 §5.16).

use std::collections::BTreeMap;

use crate::data::field::{put, u8_at, u16_at, u32_at};
use crate::data::sense::AdditionalSense;

/// ASYMMETRIC ACCESS STATE (SPC-4 §6.37, table 247).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// The path to prefer.
    #[default]
    ActiveOptimized = 0x0,
    /// Works as well, and costs more.
    ActiveNonOptimized = 0x1,
    /// Answers questions, does no I/O; can become active quickly.
    Standby = 0x2,
    /// Answers only questions about what it is.
    Unavailable = 0x3,
    /// On the way from one state to another.
    Transitioning = 0xF,
}

/// Through which target ports a command is carried out (SPC-4 §5.16.2.4, §5.16.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// Active ones.
    Active,
    /// Ports in standby as well.
    Standby,
    /// Unavailable ports as well.
    Unavailable,
    /// Ports in transition as well: every port.
    Every,
}

impl AccessState {
    /// From the field.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x0 => Self::ActiveOptimized,
            0x1 => Self::ActiveNonOptimized,
            0x2 => Self::Standby,
            0x3 => Self::Unavailable,
            0xF => Self::Transitioning,
            _ => return None,
        })
    }

    /// The field.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the reason why a command of this reach is not carried out through a port in this state.
    pub(crate) fn refuses(self, reach: Reach) -> Option<AdditionalSense> {
        let (least, code) = match self {
            Self::ActiveOptimized | Self::ActiveNonOptimized => return None,
            Self::Standby => (Reach::Standby, AdditionalSense::TARGET_PORT_STANDBY),
            Self::Unavailable => (Reach::Unavailable, AdditionalSense::TARGET_PORT_UNAVAILABLE),
            Self::Transitioning => (Reach::Every, AdditionalSense::ASYMMETRIC_ACCESS_TRANSITION),
        };
        (reach < least).then_some(code)
    }

    /// Every command is carried out.
    pub fn is_active(self) -> bool {
        matches!(self, Self::ActiveOptimized | Self::ActiveNonOptimized)
    }
}

/// Ports of a target that are in the same asymmetric access state for all its logical units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// TARGET PORT GROUP; 1 to 65535.
    pub tag: u16,
    /// The state of its ports.
    pub state: AccessState,
    /// PREF: the group that the administrator prefers.
    pub preferred: bool,
    /// Relative target port identifiers of its ports.
    pub ports: Vec<u16>,
}

impl PortGroup {
    /// Reads the parameter data of REPORT TARGET PORT GROUPS (SPC-4 §6.37), as many whole descriptors as are there. A
    /// state that is not known, or that is not one of a whole logical unit, counts as unavailable.
    pub fn parse_list(bytes: &[u8]) -> Option<Vec<Self>> {
        const DESCRIPTOR: usize = 8;
        let len = u32_at(bytes, 0)? as usize;
        let mut rest = bytes.get(4..)?;
        rest = &rest[..rest.len().min(len)];
        let mut groups = Vec::new();
        while let Some(descriptor) = rest.get(..DESCRIPTOR) {
            let ports = &rest[DESCRIPTOR..];
            let count = usize::from(descriptor[7]);
            // Each is two reserved bytes and a relative target port identifier.
            let (numbers, _) = ports.as_chunks::<4>();
            groups.push(Self {
                tag: u16::from_be_bytes([descriptor[2], descriptor[3]]),
                state: AccessState::from_code(descriptor[0] & 0xF).unwrap_or(AccessState::Unavailable),
                preferred: descriptor[0] & 0x80 != 0,
                ports: numbers
                    .iter()
                    .take(count)
                    .map(|port| u16::from_be_bytes([port[2], port[3]]))
                    .collect(),
            });
            rest = ports.get(4 * count..).unwrap_or(&[]);
        }
        Some(groups)
    }
}

/// Reason why a group is in its state (SPC-4 table 308).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StateCause {
    /// Always was.
    #[default]
    Unknown = 0x00,
    /// SET TARGET PORT GROUPS.
    Explicit = 0x01,
    /// The administrator.
    Implicit = 0x02,
}

/// A state that SET TARGET PORT GROUPS chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    /// State that the administrator had chosen. When that changes, this choice is void.
    instead_of: AccessState,
    state: AccessState,
}

/// The target port groups of a target: as they are configured, and in the states that initiators chose.
///
/// The last word counts: a state that an initiator sets holds, over restarts too, until the administrator gives the
/// group another one than it had when that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortGroups {
    /// As they are now.
    groups: Vec<(PortGroup, StateCause)>,
    chosen: BTreeMap<u16, Chosen>,
}

const MAGIC: &[u8; 4] = b"LWPG";
const VERSION: u8 = 1;
const HEADER: usize = 8;
const ENTRY: usize = 4;

impl PortGroups {
    /// Creates one group of one port, with the stored choices.
    pub(crate) fn new(kept: Option<&[u8]>) -> Result<Self, &'static str> {
        let chosen = kept.map(Self::read).transpose()?.unwrap_or_default();
        let mut groups = Self { groups: Vec::new(), chosen };
        let one = PortGroup { tag: 1, state: AccessState::ActiveOptimized, preferred: false, ports: vec![1] };
        groups.groups = vec![groups.in_force(one)];
        Ok(groups)
    }

    /// A configured group in the state that holds.
    fn in_force(&self, group: PortGroup) -> (PortGroup, StateCause) {
        match self.chosen.get(&group.tag) {
            Some(chosen) if chosen.instead_of == group.state => {
                (PortGroup { state: chosen.state, ..group }, StateCause::Explicit)
            }
            _ => (group, StateCause::Unknown),
        }
    }

    /// The groups as they are now.
    pub(crate) fn now(&self) -> impl Iterator<Item = (&PortGroup, StateCause)> {
        self.groups.iter().map(|(group, cause)| (group, *cause))
    }

    /// The group of a port.
    pub(crate) fn of_port(&self, port: u16) -> Option<&PortGroup> {
        self.now().map(|(group, _)| group).find(|group| group.ports.contains(&port))
    }

    /// Relative identifiers of all ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.now().flat_map(|(group, _)| group.ports.iter().copied()).collect()
    }

    /// The administrator's word.
    pub(crate) fn configure(&mut self, configured: Vec<PortGroup>) {
        let state_of = |tag: u16| configured.iter().find(|group| group.tag == tag).map(|group| group.state);
        self.chosen.retain(|&tag, chosen| state_of(tag) == Some(chosen.instead_of));
        let new = configured.into_iter().map(|group| {
            let (group, cause) = self.in_force(group);
            let old = self.groups.iter().find(|(old, _)| old.tag == group.tag);
            let cause = match old {
                Some((old, cause)) if old.state == group.state => *cause,
                Some(_) => StateCause::Implicit,
                None => cause,
            };
            (group, cause)
        });
        self.groups = new.collect();
    }

    /// An initiator's word: groups by their tags, and the states they shall have. An error is the index of the one that
    /// cannot be: an unknown group, or one that is named twice with different states.
    pub(crate) fn choose(&mut self, choices: &[(u16, AccessState)]) -> Result<(), usize> {
        let contradicted = |index: usize, tag: u16, state: AccessState| {
            choices[..index].iter().any(|&(other, before)| other == tag && before != state)
        };
        for (index, &(tag, state)) in choices.iter().enumerate() {
            let Some((group, cause)) = self.groups.iter_mut().find(|(group, _)| group.tag == tag) else {
                return Err(index);
            };
            if contradicted(index, tag, state) {
                return Err(index);
            }
            if group.state == state {
                continue;
            }
            let instead_of = self.chosen.get(&tag).map_or(group.state, |chosen| chosen.instead_of);
            (group.state, *cause) = (state, StateCause::Explicit);
            if state == instead_of {
                self.chosen.remove(&tag);
            } else {
                self.chosen.insert(tag, Chosen { instead_of, state });
            }
        }
        Ok(())
    }

    /// Returns the bytes to store: `LWPG`, version 1, a byte 0, the number of choices (2), and for each the group (2),
    /// the state that the administrator had chosen, and the state. Empty where initiators chose nothing.
    pub(crate) fn to_kept(&self) -> Vec<u8> {
        if self.chosen.is_empty() {
            return Vec::new();
        }
        let mut bytes = vec![0; HEADER];
        put(&mut bytes, 0, *MAGIC);
        bytes[4] = VERSION;
        // Tags are 16 bits and none is 0.
        put(&mut bytes, 6, (self.chosen.len() as u16).to_be_bytes());
        for (tag, chosen) in &self.chosen {
            bytes.extend(tag.to_be_bytes());
            bytes.extend([chosen.instead_of.code(), chosen.state.code()]);
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<BTreeMap<u16, Chosen>, &'static str> {
        if !bytes.starts_with(MAGIC) || u8_at(bytes, 4) != Some(VERSION) {
            return Err("not target port groups of version 1");
        }
        let count = usize::from(u16_at(bytes, 6).ok_or("cut short")?);
        let entries = bytes.get(HEADER..).unwrap_or(&[]);
        if entries.len() != ENTRY * count {
            return Err("of another length than it says");
        }
        let entry = |entry: &[u8]| {
            let state = |at| u8_at(entry, at).and_then(AccessState::from_code).ok_or("an unknown state");
            Ok((u16_at(entry, 0).unwrap_or(0), Chosen { instead_of: state(2)?, state: state(3)? }))
        };
        entries.chunks_exact(ENTRY).map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AccessState::{ActiveNonOptimized, ActiveOptimized, Standby, Unavailable};

    fn group(tag: u16, state: AccessState) -> PortGroup {
        PortGroup { tag, state, preferred: false, ports: vec![tag] }
    }

    fn two() -> PortGroups {
        let mut groups = PortGroups::new(None).unwrap();
        groups.configure(vec![group(1, ActiveOptimized), group(2, ActiveNonOptimized)]);
        groups
    }

    fn states(groups: &PortGroups) -> Vec<(AccessState, StateCause)> {
        groups.now().map(|(group, cause)| (group.state, cause)).collect()
    }

    #[test]
    fn a_choice_holds_over_restarts_until_the_administrator_changes_his_mind() {
        let mut groups = two();
        groups.choose(&[(1, Standby), (2, ActiveOptimized)]).unwrap();
        let chosen = [(Standby, StateCause::Explicit), (ActiveOptimized, StateCause::Explicit)];
        assert_eq!(states(&groups), chosen);
        let mut again = PortGroups::new(Some(&groups.to_kept())).unwrap();
        let configured = vec![group(1, ActiveOptimized), group(2, ActiveNonOptimized)];
        again.configure(configured.clone());
        assert_eq!(states(&again), chosen);
        again.configure(vec![group(1, Unavailable), group(2, ActiveNonOptimized)]);
        assert_eq!(states(&again), [(Unavailable, StateCause::Implicit), chosen[1]]);
        again.configure(configured);
        assert_eq!(states(&again)[0], (ActiveOptimized, StateCause::Implicit), "the choice is over");
    }

    #[test]
    fn a_choice_that_is_the_administrators_need_not_be_kept() {
        let mut groups = two();
        groups.choose(&[(1, Standby)]).unwrap();
        assert_ne!(groups.to_kept(), []);
        groups.choose(&[(1, ActiveOptimized)]).unwrap();
        assert_eq!(groups.to_kept(), []);
    }

    #[test]
    fn unknown_groups_and_contradictions_are_found() {
        assert_eq!(two().choose(&[(1, Standby), (3, Standby)]), Err(1));
        assert_eq!(two().choose(&[(1, Standby), (1, Standby), (1, Unavailable)]), Err(2));
    }

    #[test]
    fn what_is_reported_is_read_and_what_is_cut_off_is_not() {
        let bytes = [
            &[0, 0, 0, 28][..],
            &[0x80, 0x8F, 0, 1, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0, 0, 7],
            &[0x02, 0x8F, 1, 2, 0, 0, 0, 1, 0, 0, 0, 3],
        ]
        .concat();
        let first = PortGroup { preferred: true, ports: vec![1, 7], ..group(1, ActiveOptimized) };
        let second = PortGroup { preferred: false, ports: vec![3], ..group(0x102, Standby) };
        assert_eq!(PortGroup::parse_list(&bytes).unwrap(), [first.clone(), second]);
        assert_eq!(PortGroup::parse_list(&bytes[..22]).unwrap(), [first]);
        for end in 0..bytes.len() {
            let _ = PortGroup::parse_list(&bytes[..end]);
        }
        assert_eq!(PortGroup::parse_list(&[0, 0, 0]), None);
        let offline = PortGroup::parse_list(&[0, 0, 0, 8, 0x0E, 0, 0, 9, 0, 0, 0, 255]).unwrap();
        assert_eq!((offline[0].state, offline[0].ports.len()), (Unavailable, 0));
    }

    #[test]
    fn kept_choices_that_are_damaged_are_refused() {
        let mut groups = two();
        groups.choose(&[(1, Standby)]).unwrap();
        let bytes = groups.to_kept();
        for len in 0..bytes.len() {
            assert!(PortGroups::new(Some(&bytes[..len])).is_err());
        }
        for (at, byte) in [(0, 0), (4, 2), (7, 2), (10, 9), (11, 9)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert!(PortGroups::new(Some(&wrong)).is_err(), "byte {at}");
        }
    }
}
