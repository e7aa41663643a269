//! Random steps: valid ones, and ones that are wrong in one place.

use crate::copy;
use crate::layout::{self, Command, LAYOUTS, Layout};
use crate::random::Random;
use crate::step::{Management, Payload, Step};
use crate::unit::Unit;
use crate::world::{NEXUSES, World};

/// Keys that initiators register: few, so that they meet.
const KEYS: [u64; 4] = [0, 1, 2, 0xFEED_0000_0000_0003];

/// What an episode is about. Without such phases the first reservation, eject or protection would stand in the way of
/// everything else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flavour {
    reservations: bool,
    modes: bool,
    medium: bool,
    nexuses: bool,
    units: bool,
}

impl Flavour {
    pub(crate) fn new(random: &mut Random) -> Self {
        let mut one_in_two = || random.once_in(2);
        Self {
            reservations: one_in_two(),
            modes: one_in_two(),
            medium: one_in_two(),
            nexuses: one_in_two(),
            units: one_in_two(),
        }
    }

    fn has(self, command: Command) -> bool {
        match command {
            Command::Reserve
            | Command::Release
            | Command::ReadKeys
            | Command::ReadReservation
            | Command::ReadFullStatus
            | Command::ReserveOut => self.reservations,
            Command::ModeSelect => self.modes,
            Command::StartStop | Command::PreventAllow => self.medium,
            // It makes every block alike, which is dull for all that follow.
            Command::Sanitize => self.units,
            _ => true,
        }
    }
}

pub(crate) fn step(random: &mut Random, flavour: Flavour, world: &World) -> Step {
    let nexus = random.below(NEXUSES as u64) as usize;
    // Most of it on LUN 0; LUN 9 is never there.
    let lun = *random.pick(&[0, 0, 0, 0, 0, 0, 1, 1, 2, 9]);
    let unit = world.units.get(usize::from(lun));
    match random.below(1000) {
        0..6 if flavour.nexuses => Step::Reopen { nexus },
        6..10 if flavour.nexuses => Step::Manage { nexus, lun, what: Management::Cleared },
        10..14 => Step::Manage { nexus, lun, what: Management::LogicalUnitReset },
        14..16 => Step::Manage { nexus, lun, what: Management::TargetReset },
        16..18 => Step::Manage { nexus, lun, what: Management::AbortTaskSet },
        18..20 => Step::Manage { nexus, lun, what: Management::ClearTaskSet },
        20..24 if flavour.units => Step::Attach { lun: 2 },
        24..26 if flavour.units => Step::Detach { lun: 2 },
        26..30 if flavour.units && unit.is_some() => resize(random, lun),
        34..44 => copy::step(random, world, nexus, lun),
        30..34 if flavour.nexuses => view(random, nexus),
        _ => match unit {
            Some(unit) => command(random, flavour, unit, nexus, lun),
            None => command(random, flavour, &world.units[0], nexus, lun),
        },
    }
}

fn resize(random: &mut Random, lun: u16) -> Step {
    let blocks = if random.once_in(2) { 64 * (1 + random.below(10)) } else { 1 + random.below(640) };
    Step::Resize { lun, blocks }
}

fn view(random: &mut Random, nexus: usize) -> Step {
    let luns = (!random.once_in(3)).then(|| (0..3).filter(|_| !random.once_in(4)).collect());
    Step::View { nexus, luns, read_only: random.once_in(3) }
}

fn command(random: &mut Random, flavour: Flavour, unit: &Unit, nexus: usize, lun: u16) -> Step {
    let layout = loop {
        let layout = random.pick(LAYOUTS);
        // A reservation that somebody else holds is mostly in the way: they end as soon as they begin.
        if flavour.has(layout.command) && layout.command != Command::ExtendedCopy {
            break layout;
        }
    };
    let (mut cdb, mut data) = build(random, layout, unit);
    match random.below(40) {
        0 => {
            let at = 1 + random.below(cdb.len() as u64 - 1) as usize;
            let bit = 1 << random.below(8);
            cdb[at] ^= bit;
            // Another service action may be another command, which the model does not know.
            if layout::find(&cdb).is_none() || layout.command == Command::RequestSense && cdb[4] < 18 {
                // And of sense data that is cut short nobody can tell which unit attention it was.
                cdb[at] ^= bit;
            }
        }
        1 => cdb.truncate(random.below(cdb.len() as u64) as usize),
        2 => data = resized(random, data, unit),
        _ => {}
    }
    // Operation codes that no disk has.
    if let Some(opcode) = cdb.first_mut().filter(|_| random.once_in(500)) {
        *opcode = *random.pick(&[0x02, 0x0B, 0x44, 0x81, 0xC0, 0xFF]);
    }
    Step::Command { nexus, lun, cdb, data }
}

/// The same data with another length.
fn resized(random: &mut Random, data: Payload, unit: &Unit) -> Payload {
    let mut bytes = data.bytes(Some(&unit.disk));
    let step = *random.pick(&[1, 7, unit.disk.sector, 2 * unit.disk.sector]);
    let len = if random.once_in(2) { bytes.len() + step } else { bytes.len().saturating_sub(step) };
    match data {
        Payload::Stamp { seed, .. } => Payload::Stamp { seed, len },
        Payload::Zeroes(_) => Payload::Zeroes(len),
        _ => {
            bytes.resize(len, 0);
            Payload::Raw(bytes)
        }
    }
}

fn put(cdb: &mut [u8], value: u64, at: usize, len: usize) {
    cdb[at..at + len].copy_from_slice(&value.to_be_bytes()[8 - len..]);
}

/// Address and count: mostly within the disk, at its edges, and near other limits.
fn place(random: &mut Random, unit: &Unit) -> (u64, u64) {
    let blocks = unit.disk.blocks();
    let granule = (64 << 10) / unit.disk.sector as u64;
    let count = match random.below(12) {
        0 => 0,
        1..8 => 1 + random.below(8),
        8 => granule,
        9 => 1 + random.below(3 * granule),
        10 => u64::from(unit.limits.transfer_max) + random.below(2),
        _ => 1 + random.below(blocks),
    };
    let lba = match random.below(16) {
        0 => blocks.saturating_sub(count),
        1 => (blocks + 1).saturating_sub(count),
        2 => blocks,
        3 => *random.pick(&[u32::MAX.into(), u64::MAX, u64::MAX - count, 1 << 40, 1 << 31, blocks + 1]),
        4..6 => random.below(blocks) / granule * granule,
        _ => random.below((blocks + 1).saturating_sub(count).max(1)),
    };
    (lba, count)
}

/// Puts address and count where the CDB has them, cut to its fields; gives back what it says then.
fn put_place(cdb: &mut [u8], lba: u64, count: u64) -> (u64, u64) {
    match cdb.len() {
        6 => {
            put(cdb, lba & 0x1F_FFFF, 1, 3);
            cdb[4] = count as u8;
        }
        10 => {
            put(cdb, lba & 0xFFFF_FFFF, 2, 4);
            put(cdb, count & 0xFFFF, 7, 2);
        }
        12 => {
            put(cdb, lba & 0xFFFF_FFFF, 2, 4);
            put(cdb, count, 6, 4);
        }
        _ => {
            put(cdb, lba, 2, 8);
            match cdb[0] {
                0x89 => cdb[13] = count as u8,
                0x9C => put(cdb, count & 0xFFFF, 12, 2),
                _ => put(cdb, count, 10, 4),
            }
        }
    }
    layout::blocks(cdb)
}

fn build(random: &mut Random, layout: &Layout, unit: &Unit) -> (Vec<u8>, Payload) {
    let mut cdb = vec![0; layout.fields.len()];
    cdb[0] = layout.fields[0];
    cdb[1] = layout.action.unwrap_or(0);
    let sector = unit.disk.sector;
    let seed = random.next();
    let data = match layout.command {
        Command::Read | Command::PreFetch | Command::SynchronizeCache => {
            let (lba, count) = place(random, unit);
            put_place(&mut cdb, lba, count);
            cdb[1] |= if cdb.len() > 6 && random.once_in(4) { 0x08 & layout.fields[1] } else { 0 };
            Payload::NOTHING
        }
        Command::Write | Command::OrWrite | Command::WriteAtomic => {
            let (lba, count) = place(random, unit);
            let (_, count) = put_place(&mut cdb, lba, count);
            cdb[1] |= if cdb.len() > 6 && random.once_in(4) { 0x08 } else { 0 };
            match random.once_in(8) {
                true => Payload::Zeroes(count.min(700) as usize * sector),
                false => Payload::Stamp { seed, len: count.min(700) as usize * sector },
            }
        }
        Command::Verify | Command::WriteAndVerify => {
            let (lba, count) = place(random, unit);
            let (lba, count) = put_place(&mut cdb, lba, count);
            let byte_check = *random.pick(&[0, 1, 1, 3, 3, 2]);
            cdb[1] |= byte_check << 1;
            let flip = random.once_in(4).then(|| random.below(1 << 20) as usize);
            match (layout.command, byte_check) {
                (Command::Verify, 0) => Payload::NOTHING,
                (Command::Verify, 3) => Payload::Medium { lba, blocks: 1, flip, write: None },
                (Command::Verify, _) => Payload::Medium { lba, blocks: count.min(700), flip, write: None },
                _ => Payload::Stamp { seed, len: count.min(700) as usize * sector },
            }
        }
        Command::WriteSame => {
            let (lba, count) = place(random, unit);
            put_place(&mut cdb, lba, count);
            cdb[1] = *random.pick(&[0, 0, 0x08, 0x08, 0x18, 0x10]);
            if cdb[0] == 0x93 && random.once_in(3) {
                cdb[1] |= 1;
                Payload::NOTHING
            } else if random.once_in(2) {
                Payload::Zeroes(sector)
            } else {
                Payload::Stamp { seed, len: sector }
            }
        }
        Command::Unmap => unmap(random, &mut cdb, unit),
        Command::CompareAndWrite => {
            let (lba, count) = place(random, unit);
            let (lba, count) = put_place(&mut cdb, lba, count);
            let flip = random.once_in(4).then(|| random.below(1 << 20) as usize);
            Payload::Medium { lba, blocks: count, flip, write: Some(seed) }
        }
        Command::GetLbaStatus => {
            put(&mut cdb, place(random, unit).0, 2, 8);
            put(&mut cdb, *random.pick(&[0, 8, 24, 40, 4096]), 10, 4);
            Payload::NOTHING
        }
        Command::ReadCapacity16 => {
            put(&mut cdb, *random.pick(&[0, 8, 12, 32, 255]), 10, 4);
            Payload::NOTHING
        }
        Command::RequestSense => {
            cdb[1] = random.below(2) as u8;
            cdb[4] = *random.pick(&[18, 24, 252]);
            Payload::NOTHING
        }
        Command::Inquiry => {
            if random.once_in(2) {
                cdb[1] = 1;
                cdb[2] = *random.pick(&[0, 0x80, 0x83, 0xB0, 0xB1, 0xB2, 0x55]);
            }
            put(&mut cdb, *random.pick(&[0, 5, 36, 255, 4096]), 3, 2);
            Payload::NOTHING
        }
        Command::ReportLuns => {
            cdb[2] = *random.pick(&[0, 0, 1, 2, 3]);
            put(&mut cdb, *random.pick(&[16, 24, 4096]), 6, 4);
            Payload::NOTHING
        }
        Command::ModeSense => {
            cdb[1] = *random.pick(&[0, 0x08, 0x10, 0x18]) & layout.fields[1];
            cdb[2] = (random.below(4) as u8) << 6 | *random.pick(&[0x3F, 0x3F, 0x08, 0x0A, 0x01, 0x1C, 0x33]);
            cdb[3] = *random.pick(&[0, 0, 0xFF, 1, 2]);
            let len = cdb.len();
            cdb[len - 2] = *random.pick(&[0, 4, 30, 255]);
            Payload::NOTHING
        }
        Command::ExtendedCopy => unreachable!("its lists need the whole world"),
        Command::Sanitize => sanitize(random, &mut cdb, unit),
        Command::ModeSelect => mode_select(random, &mut cdb, unit),
        Command::ReadKeys | Command::ReadReservation | Command::ReadFullStatus => {
            put(&mut cdb, *random.pick(&[0, 8, 24, 4096]), 7, 2);
            Payload::NOTHING
        }
        Command::ReserveOut => reserve_out(random, &mut cdb, unit),
        Command::StartStop => {
            // Loading more often than ejecting.
            cdb[4] = *random.pick(&[0, 1, 2, 3, 3, 3]);
            Payload::NOTHING
        }
        Command::PreventAllow => {
            cdb[4] = *random.pick(&[0, 0, 0, 1, 2, 3]);
            Payload::NOTHING
        }
        Command::TestUnitReady | Command::ReadCapacity10 | Command::Reserve | Command::Release => {
            Payload::NOTHING
        }
    };
    (cdb, data)
}

fn unmap(random: &mut Random, cdb: &mut [u8], unit: &Unit) -> Payload {
    let many = if random.once_in(20) { 250 + random.below(10) } else { random.below(5) };
    let mut list = vec![0; 8];
    for _ in 0..many {
        let (lba, count) = place(random, unit);
        // One descriptor that is wrong refuses them all, so most are right.
        let reachable = lba.checked_add(count).is_some_and(|end| end <= unit.disk.blocks());
        if reachable || random.once_in(8) {
            list.extend(lba.to_be_bytes());
            list.extend((count as u32).to_be_bytes());
            list.extend([0; 4]);
        }
    }
    let descriptors = (list.len() - 8) as u16;
    list[..2].copy_from_slice(&(descriptors + 6).to_be_bytes());
    let told = if random.once_in(10) { descriptors / 2 } else { descriptors };
    list[2..4].copy_from_slice(&told.to_be_bytes());
    let len = if random.once_in(20) { random.below(40) } else { list.len() as u64 };
    put(cdb, len, 7, 2);
    Payload::Raw(list)
}

fn sanitize(random: &mut Random, cdb: &mut [u8], unit: &Unit) -> Payload {
    cdb[1] |= *random.pick(&[0, 0x80, 0x20]);
    if cdb[1] & 0x1F != 0x01 {
        return Payload::NOTHING;
    }
    let sector = unit.disk.sector as u64;
    let pattern = *random.pick(&[1, 4, sector, sector, 0, sector + 1]);
    let mut list = vec![*random.pick(&[1, 1, 2, 3, 0x81, 0x82, 0, 0x21]), 0];
    list.extend((pattern as u16).to_be_bytes());
    list.extend((0..pattern.min(sector)).map(|_| random.next() as u8));
    put(cdb, list.len() as u64, 7, 2);
    Payload::Raw(list)
}

fn mode_select(random: &mut Random, cdb: &mut [u8], unit: &Unit) -> Payload {
    let six = cdb[0] == 0x15;
    let mut list = vec![0; if six { 4 } else { 8 }];
    if random.once_in(3) {
        let sector = (unit.disk.sector as u32).to_be_bytes();
        let len = list.len();
        list[len - 1] = 8;
        let blocks =
            if random.once_in(2) { 0 } else { unit.disk.blocks() as u32 + u32::from(random.once_in(4)) };
        list.extend(blocks.to_be_bytes());
        list.extend(sector);
    }
    for _ in 0..random.below(3) {
        let (mut page, mask) = unit.mode.page(random.next() as usize);
        for (byte, mask) in page.iter_mut().zip(mask).skip(2) {
            // Write protection, once set, lasts: it is mostly taken back.
            let keep = random.next() as u8 & random.next() as u8;
            *byte = *byte & !mask | *byte & mask & keep | if random.once_in(8) { *mask } else { 0 };
        }
        if random.once_in(10) {
            let at = random.below(page.len() as u64) as usize;
            page[at] ^= 1 << random.below(8);
        }
        list.extend(page);
    }
    cdb[1] = *random.pick(&[0x10, 0x10, 0x10, 0x10, 0x10, 0x00, 0x11]);
    let len = list.len() as u64 - if random.once_in(20) { random.below(list.len() as u64) } else { 0 };
    if six {
        cdb[4] = len as u8;
    } else {
        put(cdb, len, 7, 2);
    }
    Payload::Raw(list)
}

fn reserve_out(random: &mut Random, cdb: &mut [u8], unit: &Unit) -> Payload {
    // Keys of somebody who is registered more often than others.
    let key = |random: &mut Random| match unit.reservations.keys.as_slice() {
        keys if !keys.is_empty() && !random.once_in(3) => random.pick(keys).1,
        _ => *random.pick(&KEYS),
    };
    cdb[2] = *random.pick(&[1, 3, 5, 6, 7, 8, 1, 3, 5, 6, 7, 8, 0, 2, 0x11]);
    if matches!(cdb[1], 0 | 3 | 6) {
        cdb[2] = 0;
    }
    put(cdb, 24, 5, 4);
    let mut list = vec![0; 24];
    let (first, second) = (key(random), key(random));
    list[..8].copy_from_slice(&first.to_be_bytes());
    list[8..16].copy_from_slice(&second.to_be_bytes());
    Payload::Raw(list)
}
