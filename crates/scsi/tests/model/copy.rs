//! EXTENDED COPY (LID1) of the model: SPC-4 6.4, block to block.

use crate::answer::{LIST_LENGTH, Outcome, Refusal, Reply, refuse};
use crate::layout::{ConflictClass, number};
use crate::random::Random;
use crate::step::{Payload, Step};
use crate::unit::Unit;
use crate::world::World;

/// COPY ABORTED, because a unit would refuse such a READ or WRITE.
const PARTY_FAILED: (u8, u16) = (0xA, 0x0D01);
const NOT_REACHABLE: (u8, u16) = (0xA, 0x0D02);
const INEXACT: (u8, u16) = (0xA, 0x260A);
/// Blocks that are not there: without a code of its own.
const NO_SUCH_BLOCKS: (u8, u16) = (0xA, 0x0000);

const HEADER: usize = 16;
const TARGET: usize = 32;
const SEGMENT: usize = 28;

impl World {
    /// Copies segment by segment, as far as it goes.
    pub(crate) fn extended_copy(&mut self, nexus: usize, cdb: &[u8], data: &[u8]) -> Outcome {
        let len = number(&cdb[10..14]) as usize;
        if len == 0 {
            return Reply::nothing();
        }
        if len < HEADER || data.len() < HEADER {
            return refuse(&[LIST_LENGTH]);
        }
        let segments = HEADER + number(&data[2..4]) as usize;
        let end = segments + number(&data[8..12]) as usize;
        if len < end || data.len() < end {
            return refuse(&[LIST_LENGTH]);
        }
        let parties: Vec<Option<u16>> =
            data[HEADER..segments].chunks(TARGET).map(|slot| self.named(nexus, &slot[8..24])).collect();
        for segment in data[segments..end].chunks(SEGMENT) {
            let party = |at: usize| parties[number(&segment[at..at + 2]) as usize];
            let (Some(source), Some(destination)) = (party(4), party(6)) else {
                return refuse(&[NOT_REACHABLE]);
            };
            self.copy_segment(nexus, source, destination, segment)?;
        }
        Reply::took(len as u64)
    }

    fn copy_segment(
        &mut self,
        nexus: usize,
        source: u16,
        destination: u16,
        segment: &[u8],
    ) -> Result<(), Refusal> {
        let disk = |lun: u16| &self.units[usize::from(lun)].disk;
        let (from, to) = (disk(source).sector, disk(destination).sector);
        let by_destination = segment[1] & 0x02 != 0;
        let len = number(&segment[10..12]) as usize * if by_destination { to } else { from };
        if !len.is_multiple_of(from) || !len.is_multiple_of(to) {
            return refuse(&[INEXACT, NO_SUCH_BLOCKS]);
        }
        let (first, second) = (number(&segment[12..20]), number(&segment[20..28]));
        let (reads, writes) = ((len / from) as u64, (len / to) as u64);
        let there = |lun: u16, lba: u64, count: u64| {
            lba.checked_add(count).is_some_and(|end| end <= disk(lun).blocks())
        };
        if !there(source, first, reads) || !there(destination, second, writes) {
            return refuse(&[NO_SUCH_BLOCKS]);
        }
        if len == 0 {
            return Ok(());
        }
        let closed = |lun: u16, access: ConflictClass| {
            let unit = &self.units[usize::from(lun)];
            !unit.medium || unit.reservations.conflicts(access, nexus)
        };
        if closed(source, ConflictClass::Read)
            || closed(destination, ConflictClass::Write)
            || self.protected(nexus, destination)
        {
            return refuse(&[PARTY_FAILED]);
        }
        let data = disk(source).read(first, reads).to_vec();
        self.units[usize::from(destination)].disk.copy_in(second, &data);
        Ok(())
    }
}

fn slot(unit: &Unit) -> [u8; TARGET] {
    let mut slot = [0; TARGET];
    slot[0] = 0xE4;
    // Binary, NAA, of the logical unit.
    slot[4..6].copy_from_slice(&[1, 3]);
    slot[7] = 16;
    slot[8..24].copy_from_slice(&unit.naa);
    slot
}

/// A copy between any two of the world's units, or within one.
pub(crate) fn step(random: &mut Random, world: &World, nexus: usize, lun: u16) -> Step {
    let mut segments = Vec::new();
    for _ in 0..1 + random.below(3) {
        let (source, destination) = (random.below(3) as usize, random.below(3) as usize);
        let count = 1 + random.below(40);
        let lba = |random: &mut Random, unit: &Unit| {
            let blocks = unit.disk.blocks();
            if random.once_in(12) { blocks + random.below(2) } else { random.below(blocks) / 8 * 8 }
        };
        let (first, second) = (lba(random, &world.units[source]), lba(random, &world.units[destination]));
        if source == destination && first.abs_diff(second) < count {
            // What an overlap comes to is nobody's business.
            continue;
        }
        let mut segment = vec![0x02, u8::from(random.once_in(2)) << 1, 0, 24];
        segment.extend((source as u16).to_be_bytes());
        segment.extend((destination as u16).to_be_bytes());
        segment.extend([0, 0]);
        segment.extend((count as u16).to_be_bytes());
        segment.extend(first.to_be_bytes());
        segment.extend(second.to_be_bytes());
        segments.extend(segment);
    }
    let mut list = vec![0; HEADER];
    // No list identifier.
    list[1] = 0b11 << 3;
    list[2..4].copy_from_slice(&((TARGET * world.units.len()) as u16).to_be_bytes());
    list[8..12].copy_from_slice(&(segments.len() as u32).to_be_bytes());
    list.extend(world.units.iter().flat_map(slot));
    list.extend(segments);
    let mut cdb = vec![0; 16];
    cdb[0] = 0x83;
    let len = list.len() as u32 - u32::from(random.once_in(20));
    cdb[10..14].copy_from_slice(&len.to_be_bytes());
    Step::Command { nexus, lun, cdb, data: Payload::Raw(list) }
}
