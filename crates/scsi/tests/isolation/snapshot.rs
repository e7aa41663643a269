//! Everything about logical units that other nexuses can observe.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use lunway_scsi::{Nexus, Response, StateStore, state_item};

use crate::device::{BLOCKS, FILL, SECTOR};
use crate::world::{OWNERS_COPY, TARGET, World, hear, poll, send};

/// Kinds of what can be observed, as the table of expectations names them.
pub(crate) mod aspect {
    /// Unit attentions that are told.
    pub(crate) const ATTENTION: &str = "attention";
    /// Blocks, and the space behind them.
    pub(crate) const DATA: &str = "data";
    /// What the unit says it is: identity, capacity, commands, and the list of units.
    pub(crate) const INVENTORY: &str = "inventory";
    /// Mode pages and log pages.
    pub(crate) const PAGES: &str = "pages";
    /// Registrations and reservations.
    pub(crate) const RESERVATIONS: &str = "reservations";
    /// Target port groups and their states.
    pub(crate) const PORTS: &str = "ports";
    /// Whether commands to the medium are carried out.
    pub(crate) const USE: &str = "use";
    /// Whether the medium can be ejected and loaded.
    pub(crate) const REMOVAL: &str = "removal";
    /// Commands in flight and copies.
    pub(crate) const COMMANDS: &str = "commands";
    /// What outlives the process.
    pub(crate) const KEPT: &str = "kept";
}

type Observation = (&'static str, String, Vec<u8>);

/// What the owner and its partner observe.
pub(crate) struct Snapshot(Vec<Observation>);

/// How observations begin that are answers, and those that are good ones.
const ANSWER: &[u8] = b"answer ";
const GOOD: &[u8] = b"answer GOOD";

fn told(response: Option<Response>) -> Vec<u8> {
    let Some(response) = response else { return [ANSWER, b"outstanding"].concat() };
    match response.sense {
        Some(sense) => format!("answer {} {sense}", response.status).into_bytes(),
        None => [format!("answer {} ", response.status).as_bytes(), &response.data_in].concat(),
    }
}

fn block_16(opcode: u8, lba: u64) -> Vec<u8> {
    let mut cdb = vec![opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb
}

/// Questions that change nothing, by what they tell about.
fn questions() -> Vec<(&'static str, Vec<u8>)> {
    let mut questions = vec![
        (aspect::INVENTORY, vec![0x12, 0, 0, 0, 96, 0]),
        (aspect::INVENTORY, vec![0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        (aspect::INVENTORY, vec![0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]),
        (aspect::INVENTORY, vec![0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0]),
        (aspect::PORTS, vec![0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        (aspect::COMMANDS, vec![0x84, 0x00, OWNERS_COPY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        (aspect::USE, vec![0; 6]),
        (aspect::DATA, vec![0x9E, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        (aspect::USE, block_16(0x88, BLOCKS - 2)),
    ];
    for page in [0x00, 0x80, 0x83, 0xB0, 0xB1, 0xB2] {
        questions.push((aspect::INVENTORY, vec![0x12, 1, page, 1, 0, 0]));
    }
    for control in [0x00, 0x80, 0xC0] {
        // Current, default and saved mode pages.
        questions.push((aspect::PAGES, vec![0x5A, 0, control | 0x3F, 0xFF, 0, 0, 0, 2, 0, 0]));
    }
    for page in [0x00, 0x2F] {
        questions.push((aspect::PAGES, vec![0x4D, 0, 0x40 | page, 0, 0, 0, 0, 1, 0, 0]));
    }
    for action in 0..4 {
        questions.push((aspect::RESERVATIONS, vec![0x5E, action, 0, 0, 0, 0, 0, 1, 0, 0]));
    }
    questions
}

impl Snapshot {
    pub(crate) fn take(world: &mut World, luns: &[u16]) -> Self {
        let mut seen: Vec<Observation> = Vec::new();
        let nexuses = [("owner", world.owner.clone()), ("partner", world.partner.clone())];
        for (name, nexus) in &nexuses {
            for &lun in luns {
                let heard = hear(nexus, lun);
                seen.push((
                    aspect::ATTENTION,
                    format!("{name} on {lun}"),
                    format!("{heard:x?}").into_bytes(),
                ));
            }
        }
        for &lun in luns {
            let dropped = world.dropped.0[usize::from(lun)].load(Ordering::SeqCst);
            seen.push((aspect::COMMANDS, format!("dropped on {lun}"), dropped.to_string().into_bytes()));
        }
        for (index, pending) in world.in_flight.iter_mut().enumerate() {
            let ended = poll(pending).is_some();
            seen.push((aspect::COMMANDS, format!("in flight {index}"), format!("{ended}").into_bytes()));
        }
        for &lun in luns {
            let (unit, disk) = (&world.units[usize::from(lun)], &world.disks[usize::from(lun)]);
            seen.push((aspect::DATA, format!("blocks of {lun}"), disk.content()));
            let summary = format!("{:?}", unit.reservation_summary());
            seen.push((aspect::RESERVATIONS, format!("of {lun}"), summary.into_bytes()));
            for item in [state_item::RESERVATIONS, state_item::SANITIZE, state_item::MODE_PAGES] {
                let kept = world.store.load(&format!("isolation/{lun}"), item);
                seen.push((aspect::KEPT, format!("{item} of {lun}"), format!("{kept:?}").into_bytes()));
            }
        }
        let kept = world.store.load(TARGET, state_item::PORT_GROUPS);
        seen.push((aspect::KEPT, "port groups".to_owned(), format!("{kept:?}").into_bytes()));
        seen.push((
            aspect::PORTS,
            "groups".to_owned(),
            format!("{:?}", world.target.port_groups()).into_bytes(),
        ));
        for (name, nexus) in &nexuses {
            for &lun in luns {
                for (what, cdb) in questions() {
                    seen.push((
                        what,
                        format!("{name} on {lun}: {cdb:02x?}"),
                        told(send(nexus, lun, &cdb, &[])),
                    ));
                }
                // What is there already, so that it changes nothing.
                let write = told(send(nexus, lun, &block_16(0x8A, BLOCKS - 2), &[FILL; SECTOR]));
                seen.push((aspect::USE, format!("{name} on {lun} writes"), write));
            }
        }
        if world.situation.usable() {
            seen.extend(removal(&world.owner, luns));
            for nexus in [&world.owner, &world.partner, &world.intruder] {
                [0, 1].iter().for_each(|&lun| drop(hear(nexus, lun)));
            }
        }
        Self(seen)
    }

    /// What has changed since: the kinds, and the details.
    pub(crate) fn changes(&self, after: &Self) -> (BTreeSet<&'static str>, String) {
        assert_eq!(self.0.len(), after.0.len());
        let differs = |(before, after): &(&Observation, &Observation)| before != after;
        let changed: Vec<_> = self.0.iter().zip(&after.0).filter(differs).collect();
        // A question that is refused tells that the unit cannot be used, and nothing of what it is about.
        let refused = |bytes: &[u8]| bytes.starts_with(ANSWER) && !bytes.starts_with(GOOD);
        let kinds = changed
            .iter()
            .map(|(before, after)| match before.0 {
                aspect::REMOVAL => aspect::REMOVAL,
                _ if refused(&before.2) || refused(&after.2) => aspect::USE,
                kind => kind,
            })
            .collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(160)]).into_owned();
        let details = changed
            .iter()
            .map(|(before, after)| format!("  {}: {} → {}\n", before.1, text(&before.2), text(&after.2)))
            .collect();
        (kinds, details)
    }
}

/// Ejects and loads.
fn removal(owner: &Nexus, luns: &[u16]) -> Vec<Observation> {
    let mut seen = Vec::new();
    for &lun in luns {
        for bits in [0x02, 0x03] {
            let answer = told(send(owner, lun, &[0x1B, 0, 0, 0, bits, 0], &[]));
            seen.push((aspect::REMOVAL, format!("START STOP UNIT {bits:02x} on {lun}"), answer));
        }
    }
    seen
}
