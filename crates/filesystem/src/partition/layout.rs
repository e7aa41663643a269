//! Layout of a whole disk by its partition table: partitions, and the sectors that the table itself takes. For disks of
//! any content: GPT with both copies, hybrid ones, MBR with extended partitions.

use std::ops::Range;

use super::gpt::Copy;
use super::types::{self, Declared, guid};
use super::{MBR_ENTRIES, MBR_ENTRY, PROTECTIVE};
use crate::fields::le32;
use crate::map::{Ranges, clip};
use crate::source::{ByteSource, Unreadable};
use crate::volume::Doubt;

/// Partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionEntry {
    /// Its number in the table, as Linux counts: of a GPT its entry, of an MBR 1 to 4, and 5 on for logical ones.
    pub number: usize,
    /// Its bytes; they lie inside of the disk.
    pub range: Range<u64>,
    /// Its name, where the table has names.
    pub name: Option<String>,
    /// Reason why what is in it is not looked at: its type, or a contradiction.
    pub refused: Option<&'static str>,
    /// Content declared by its type, if that is not a file system whose free map is read here.
    pub declared: Option<&'static Declared>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `GPT` or `MBR`.
    pub kind: &'static str,
    /// The partitions, sorted and disjoint.
    pub partitions: Vec<PartitionEntry>,
    /// Ranges of the table itself.
    pub table: Ranges,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// The most links that are followed from one EBR to the next without a partition between them, and the most partitions:
/// what libblkid follows.
const MOST_LINKS: usize = 100;
const MOST_PARTITIONS: usize = 1024;

/// Number that Linux gives the first logical partition of an MBR, behind the four entries of the table.
const FIRST_LOGICAL: usize = 5;

/// Types of MBR partitions that have others in them.
const EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];
/// Logical Disk Manager of Windows: the whole disk is a member.
const LDM: u8 = 0x42;

const OTHER_DISKS: &str = "it belongs to dynamic disks or storage spaces of Windows, which span disks";
const HYBRID: &str = "the MBR and the GPT of this disk do not agree on it";

/// Types of GPT partitions whose content is not to be judged (as they lie on the disk): LDM metadata and data, Storage
/// Spaces.
const REFUSED: [[u8; 16]; 3] = [
    guid(0x5808_C8AA, 0x7E8F, 0x42E0, 0x85D2_E1E9_0434_CFB3),
    guid(0xAF9B_60A0, 0x1431, 0x4F62, 0xBC68_3311_714A_69AD),
    guid(0xE75C_AF8F, 0xF680, 0x4CEE, 0xAFA3_B001_E56E_FC2D),
];

/// An entry of an MBR or EBR.
#[derive(Clone, Copy)]
struct Slot {
    boot: u8,
    kind: u8,
    first: u64,
    count: u64,
}

impl Slot {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.count != 0
    }
}

/// The four entries of a sector, if it ends like one that has some.
fn slots(source: &dyn ByteSource, at: u64) -> Result<Option<[Slot; 4]>, Unreadable> {
    if !source.has(at, 512) {
        return Ok(None);
    }
    let sector: [u8; 512] = source.array(at)?;
    let slot = |number: usize| {
        let bytes = &sector[MBR_ENTRIES + number * MBR_ENTRY..];
        let [first, count] = [8, 12].map(|at| u64::from(le32(bytes, at)));
        Slot { boot: bytes[0], kind: bytes[4], first, count }
    };
    Ok((sector[510..] == [0x55, 0xAA]).then(|| [0, 1, 2, 3].map(slot)))
}

/// Returns `true` if the disk begins with a partition table: its entries are plausible, and at least one is used. A
/// boot sector of a file system ends like one, and has code or text where entries would be.
pub fn recognised(source: &dyn ByteSource, sector: u32) -> Result<bool, Unreadable> {
    let Some(slots) = slots(source, 0)? else { return Ok(false) };
    let sectors = source.len() / u64::from(sector.max(1));
    let plausible = |slot: &Slot| slot.boot & 0x7F == 0 && (!slot.is_used() || slot.first != 0);
    // One that begins behind the disk's end is text.
    let inside = |slot: &Slot| slot.is_used() && slot.first < sectors;
    Ok(slots.iter().all(plausible) && slots.iter().any(inside))
}

/// Bytes at the start of a disk that were overwritten with zeroes if all of them are zero: the superblock of an ext
/// file system, whose first KiB is free, ends there.
const LOST_START: usize = 2048;

/// Start of a disk that may have a GPT.
pub(super) enum Start {
    /// Its MBR says that there is one.
    Protective,
    /// The MBR and all around it is zero: overwritten, or never written.
    Zero,
    Other,
}

/// Reads what the start of a disk says of a GPT.
pub(super) fn start(source: &dyn ByteSource) -> Result<Start, Unreadable> {
    if let Some(slots) = slots(source, 0)? {
        return Ok(if is_protective(&slots) { Start::Protective } else { Start::Other });
    }
    let is_zero = source.has(0, LOST_START as u64) && source.array::<LOST_START>(0)? == [0; LOST_START];
    Ok(if is_zero { Start::Zero } else { Start::Other })
}

fn is_protective(slots: &[Slot; 4]) -> bool {
    slots.iter().any(|slot| slot.kind == PROTECTIVE)
}

/// Reads the table of a disk that has one.
pub fn read(source: &dyn ByteSource, sector: u32) -> Result<Layout, Doubt> {
    let sector = u64::from(sector);
    let slots = slots(source, 0)?.ok_or_else(|| Doubt::new("it has no partition table"))?;
    if is_protective(&slots) { gpt(source, sector, &slots) } else { mbr(source, sector, &slots) }
}

fn gpt(source: &dyn ByteSource, sector: u64, slots: &[Slot; 4]) -> Result<Layout, Doubt> {
    let primary = Copy::read(source, 1, sector)?;
    let last = (source.len() / sector).saturating_sub(1);
    // On a disk that has grown, the copy is where the end was; on one whose start is lost, at the end.
    let backup = Copy::read(source, primary.as_ref().map_or(last, Copy::alternate), sector)?;
    let mut notes = Vec::new();
    let copy = match (&primary, &backup) {
        (None, None) => {
            return Err(Doubt::new("the MBR says that there is a GPT, and neither of its copies is valid")
                .helped_by("repair it with gdisk or sfdisk"));
        }
        (Some(primary), Some(backup)) if primary.entries != backup.entries => {
            return Err(
                Doubt::new("the two copies of the GPT do not agree").helped_by("repair it with gdisk")
            );
        }
        (Some(copy), Some(_)) => copy,
        (Some(copy), None) => {
            notes.push("the copy of the GPT at the end of the disk is not valid".to_owned());
            copy
        }
        (None, Some(copy)) => {
            notes.push("the GPT at the start of the disk is not valid: its copy was read".to_owned());
            copy
        }
    };
    let mut table = vec![0..sector, sector..2 * sector];
    table.extend([&primary, &backup].into_iter().flatten().flat_map(|copy| copy.places(sector)));
    let mut partitions = Vec::new();
    for entry in copy.partitions(sector) {
        let refused = REFUSED.contains(&entry.kind).then_some(OTHER_DISKS);
        let range =
            entry.range.clone().ok_or_else(|| Doubt::new("a partition of the GPT ends before it begins"))?;
        let declared = types::of_guid(&entry.kind);
        let number = entry.number;
        partitions.push(PartitionEntry { number, range, name: entry.name(), refused, declared });
    }
    // A hybrid MBR names partitions of the GPT a second time.
    for slot in slots.iter().filter(|slot| slot.is_used() && slot.kind != PROTECTIVE) {
        let other = slot.first * sector..(slot.first + slot.count) * sector;
        for entry in &mut partitions {
            if clip(&entry.range, &other).is_some() && entry.range != other {
                entry.refused = Some(HYBRID);
            }
        }
    }
    Layout { kind: "GPT", partitions, table: Ranges::default(), notes }.sorted(source, table)
}

fn mbr(source: &dyn ByteSource, sector: u64, slots: &[Slot; 4]) -> Result<Layout, Doubt> {
    let (mut partitions, mut table) = (Vec::new(), Vec::new());
    table.push(0..sector);
    let ldm = slots.iter().any(|slot| slot.kind == LDM);
    for (number, slot) in (1..).zip(slots).filter(|(_, slot)| slot.is_used()) {
        if slot.first == 0 {
            return Err(Doubt::new("a partition of the MBR begins with the MBR"));
        }
        let range = slot.first * sector..(slot.first + slot.count) * sector;
        if EXTENDED.contains(&slot.kind) {
            extended(source, sector, slot, &mut partitions, &mut table)?;
        } else {
            let refused = ldm.then_some(OTHER_DISKS);
            partitions.push(PartitionEntry {
                number,
                range,
                name: None,
                refused,
                declared: types::of_byte(slot.kind),
            });
        }
    }
    Layout { kind: "MBR", partitions, table: Ranges::default(), notes: Vec::new() }.sorted(source, table)
}

/// Follows the chain of EBRs of an extended partition. A partition begins relative to its own EBR, the next EBR
/// relative to the extended partition.
fn extended(
    source: &dyn ByteSource,
    sector: u64,
    outer: &Slot,
    partitions: &mut Vec<PartitionEntry>,
    table: &mut Vec<Range<u64>>,
) -> Result<(), Doubt> {
    let end = outer.first + outer.count;
    let primary = partitions.len();
    let (mut at, mut empty) = (outer.first, 0);
    loop {
        let Some(slots) = slots(source, at.saturating_mul(sector))? else {
            // An extended partition without partitions has no EBR.
            return if at == outer.first {
                Ok(())
            } else {
                Err(Doubt::new("an extended partition ends in nothing"))
            };
        };
        table.push(at * sector..(at + 1) * sector);
        let before = partitions.len();
        let mut next = None;
        for (number, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.is_used()) {
            if EXTENDED.contains(&slot.kind) {
                next.get_or_insert(outer.first + slot.first);
                continue;
            }
            let (first, last) = (at + slot.first, at + slot.first + slot.count);
            let inside = slot.first != 0 && first > outer.first && last <= end;
            if !inside {
                // Entries 3 and 4 have rubbish in them on disks that work.
                if number < 2 {
                    return Err(Doubt::new("a logical partition lies outside of its extended partition"));
                }
                continue;
            }
            let declared = types::of_byte(slot.kind);
            partitions.push(PartitionEntry {
                number: FIRST_LOGICAL + partitions.len() - primary,
                range: first * sector..last * sector,
                name: None,
                refused: None,
                declared,
            });
        }
        empty = if partitions.len() == before { empty + 1 } else { 0 };
        match next {
            None => return Ok(()),
            Some(next) if next <= at || next >= end => {
                return Err(Doubt::new("an extended partition leads back or outside"));
            }
            Some(_) if empty > MOST_LINKS || partitions.len() > MOST_PARTITIONS => {
                return Err(Doubt::new("an extended partition has no end"));
            }
            Some(next) => at = next,
        }
    }
}

impl Layout {
    /// Sorts the partitions, cuts what the disk does not have, and refuses what overlaps.
    fn sorted(mut self, source: &dyn ByteSource, table: Vec<Range<u64>>) -> Result<Self, Doubt> {
        let disk = 0..source.len();
        for entry in &mut self.partitions {
            if entry.range.end > disk.end {
                entry.refused = Some("it ends behind the end of the disk");
                entry.range = entry.range.start.min(disk.end)..disk.end;
            }
        }
        self.partitions.retain(|entry| !entry.range.is_empty());
        self.partitions.sort_by_key(|entry| entry.range.start);
        if self.partitions.windows(2).any(|pair| pair[0].range.end > pair[1].range.start) {
            return Err(Doubt::new("its partitions overlap"));
        }
        self.table = Ranges::union(table.iter().filter_map(|range| clip(range, &disk)));
        if self.partitions.iter().any(|entry| self.table.touches(&entry.range)) {
            return Err(Doubt::new("a partition overlaps the partition table"));
        }
        Ok(self)
    }
}
