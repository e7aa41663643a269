//! Verification: comparison of what is read with what was written.

use std::fmt;

use lunway_block::{Buf, SharedBuf};

use crate::load::job::{Job, Region};
use crate::load::source::Next;
use crate::load::stamp::{Found, Stamp};

/// Faults kept with their place; more are only counted.
const FAULTS_KEPT_MAX: usize = 64;
/// Remark for the case that [`Verification::found_no_stamp`] holds.
pub const NO_STAMPS: &str = "no block that was read is one of bench: --verify of reads checks what an earlier job with \
                             --verify and the same --seed has written";
/// Blocks tried beside one that is busy, before waiting for a completion.
const PROBES_MAX: u64 = 64;

/// Ledger entry: an I/O on the block is in flight. Two at once have no order, so nothing could be expected of them.
const BUSY: u32 = 1 << 31;
/// Ledger entry: a write failed, so old or new content is both right, until the next write.
const UNKNOWN: u32 = 1 << 30;
/// Ledger entry: how often the block was written; wraps long after a device wears out.
const GENERATION: u32 = UNKNOWN - 1;

/// Result of a verification.
///
/// A job that writes stamps every logical sector with its LBA, the job's seed, a generation and a checksum. Reads in
/// the same job, and one pass over all written blocks after it, check them. A job that only reads checks the stamps
/// that an earlier job **with the same seed** has left in all of its region; it cannot know generations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Blocks read and compared.
    pub checked: u64,
    /// Blocks with a fault.
    pub faulty: u64,
    /// The first 64 faults.
    pub faults: Vec<Fault>,
}

impl Verification {
    /// Returns `true` if all blocks that were read have no stamp at all: they are not damaged, but were never written
    /// by a job that stamps, or all of them are lost.
    pub fn found_no_stamp(&self) -> bool {
        let has_none = |fault: &Fault| matches!(fault.kind, FaultKind::BitRot | FaultKind::Zero);
        self.checked > 0 && self.faulty == self.checked && self.faults.iter().all(has_none)
    }

    /// With what another worker found in its part.
    pub(crate) fn join(mut self, other: Self) -> Self {
        self.checked += other.checked;
        self.faulty += other.faulty;
        self.faults.extend(other.faults);
        self.faults.truncate(FAULTS_KEPT_MAX);
        self
    }
}

/// Faulty sector: the first of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset on the device, bytes.
    pub offset: u64,
    /// Kind of fault.
    pub kind: FaultKind,
}

/// Kind of fault in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Intact, but belongs elsewhere: a write or a read went astray.
    WrongLba {
        /// LBA that its stamp carries, in logical sectors.
        found: u64,
    },
    /// Intact, but not the last one written: a write was lost.
    Stale {
        /// The generation that was written last; `None` if another run, with another seed, wrote what is there.
        expected: Option<u64>,
        /// The generation that is there.
        found: u64,
    },
    /// Damaged: bits changed, or a write was torn.
    BitRot,
    /// Zeroes where data was written.
    Zero,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {}: ", self.offset)?;
        match self.kind {
            FaultKind::WrongLba { found } => write!(f, "wrong LBA, the sector belongs at LBA {found}"),
            FaultKind::Stale { expected: Some(expected), found } => {
                write!(f, "stale, generation {found} where {expected} was written")
            }
            FaultKind::Stale { expected: None, found } => {
                write!(f, "stale, generation {found} of another run")
            }
            FaultKind::BitRot => f.write_str("bit rot, the checksum does not match"),
            FaultKind::Zero => f.write_str("zero, where data was written"),
        }
    }
}

/// The ledger of what was written last, and the judge of what comes back.
#[derive(Debug)]
pub(crate) struct Verifier {
    seed: u64,
    region: u64,
    /// Bytes of one entry of the ledger: every block is so many entries.
    unit: u64,
    largest: u64,
    sector: u64,
    ledger: Vec<u32>,
    writes: bool,
    /// The next block of the pass over what was written; `None` before that pass.
    cursor: Option<usize>,
    found: Verification,
}

impl Verifier {
    pub(crate) fn new(job: &Job, region: Region, logical_sector: u32) -> Self {
        let unit = u64::from(job.block_sizes.unit(job.mix));
        Self {
            seed: job.seed,
            region: region.offset,
            unit,
            largest: job.block_sizes.largest(job.mix).into(),
            sector: u64::from(logical_sector),
            ledger: vec![0; (region.len / unit) as usize],
            writes: job.mix.writes(),
            cursor: None,
            found: Verification::default(),
        }
    }

    /// From here on [`next_written`](Self::next_written) says where to read; how many bytes that will be.
    pub(crate) fn read_back(&mut self) -> u64 {
        // What was abandoned in flight may or may not have happened.
        for entry in &mut self.ledger {
            if *entry & BUSY != 0 {
                *entry = (*entry & GENERATION) | UNKNOWN;
            }
        }
        self.cursor = Some(0);
        self.ledger.iter().filter(|&&entry| is_known(entry)).count() as u64 * self.unit
    }

    pub(crate) fn is_reading_back(&self) -> bool {
        self.cursor.is_some()
    }

    /// The next read of that pass: known content, in order of address.
    pub(crate) fn next_written(&mut self) -> Option<Next> {
        let cursor = self.cursor.as_mut()?;
        let first = self.ledger[*cursor..].iter().position(|&entry| is_known(entry))? + *cursor;
        let known = self.ledger[first..].iter().take_while(|&&entry| is_known(entry));
        let units = known.take((self.largest / self.unit) as usize).count();
        *cursor = first + units;
        let offset = self.region + first as u64 * self.unit;
        Some(Next { is_read: true, offset, len: (units as u64 * self.unit) as u32 })
    }

    /// Takes `len` bytes at `offset`, or free ones soon after it, for one I/O. `None`: all of them are in flight.
    pub(crate) fn claim(&mut self, offset: u64, len: u32) -> Option<u64> {
        let entries = self.ledger.len() as u64;
        let units = u64::from(len) / self.unit;
        let places = entries - units + 1;
        let first = (offset - self.region) / self.unit;
        let free =
            (0..PROBES_MAX.min(places)).map(|step| (first + step * units) % places).find(|&place| {
                self.ledger[place as usize..][..units as usize].iter().all(|&entry| entry & BUSY == 0)
            })?;
        let offset = self.region + free * self.unit;
        self.entries(offset, len).iter_mut().for_each(|entry| *entry |= BUSY);
        Some(offset)
    }

    fn entries(&mut self, offset: u64, len: u32) -> &mut [u32] {
        let (first, count) = ((offset - self.region) / self.unit, u64::from(len) / self.unit);
        &mut self.ledger[first as usize..][..count as usize]
    }

    /// The next content of what was claimed.
    pub(crate) fn stamp(&mut self, offset: u64, len: u32) -> SharedBuf {
        let (seed, unit, sector) = (self.seed, self.unit, self.sector);
        let mut buf = Buf::for_overwrite(len as usize);
        let units = self.entries(offset, len).iter().zip(buf.chunks_exact_mut(unit as usize));
        let mut lba = offset / sector;
        for (&entry, block) in units {
            let generation = next_generation(entry).into();
            for sector in block.chunks_exact_mut(sector as usize) {
                Stamp { lba, seed, generation }.write(sector);
                lba += 1;
            }
        }
        buf.freeze()
    }

    /// The write of what was claimed has ended.
    pub(crate) fn wrote(&mut self, offset: u64, len: u32, succeeded: bool) {
        for entry in self.entries(offset, len) {
            let generation = next_generation(*entry);
            *entry = if succeeded { generation } else { generation | UNKNOWN };
        }
    }

    /// The read of what was claimed, or of what [`next_written`](Self::next_written) said, has ended; `data` is `None`
    /// if it failed.
    pub(crate) fn read(&mut self, offset: u64, len: u32, data: Option<&[u8]>) {
        self.entries(offset, len).iter_mut().for_each(|entry| *entry &= !BUSY);
        let Some(data) = data else { return };
        let (unit, first) = (self.unit, (offset - self.region) / self.unit);
        let (mut known, mut fault) = (false, None);
        for (unit, data) in (first..).zip(data.chunks_exact(unit as usize)) {
            let entry = self.ledger[unit as usize];
            let expected = match self.writes {
                true if !is_known(entry) => continue,
                true => Some(u64::from(entry & GENERATION)),
                false => None,
            };
            known = true;
            fault = fault.or_else(|| self.judge_unit(self.region + unit * self.unit, expected, data));
        }
        self.found.checked += u64::from(known);
        if let Some(fault) = fault {
            self.found.faulty += 1;
            if self.found.faults.len() < FAULTS_KEPT_MAX {
                self.found.faults.push(fault);
            }
        }
    }

    fn judge_unit(&self, offset: u64, expected: Option<u64>, data: &[u8]) -> Option<Fault> {
        let sectors = (offset / self.sector..).zip(data.chunks_exact(self.sector as usize));
        sectors.into_iter().find_map(|(lba, sector)| {
            let kind = judge(self.seed, lba, expected, Stamp::find(sector))?;
            Some(Fault { offset: lba * self.sector, kind })
        })
    }

    pub(crate) fn into_found(self) -> Verification {
        self.found
    }
}

/// Returns the fault of the sector at `lba`, if any, given that a run with that seed wrote it last with the generation
/// `expected` (any, if none).
pub(crate) fn judge(seed: u64, lba: u64, expected: Option<u64>, found: Found) -> Option<FaultKind> {
    match found {
        Found::Zero => Some(FaultKind::Zero),
        Found::Damaged => Some(FaultKind::BitRot),
        Found::Stamp(stamp) if stamp.lba != lba => Some(FaultKind::WrongLba { found: stamp.lba }),
        Found::Stamp(stamp) if stamp.seed != seed => {
            Some(FaultKind::Stale { expected: None, found: stamp.generation })
        }
        Found::Stamp(stamp) if expected.is_some_and(|expected| expected != stamp.generation) => {
            Some(FaultKind::Stale { expected, found: stamp.generation })
        }
        Found::Stamp(_) => None,
    }
}

fn is_known(entry: u32) -> bool {
    entry & UNKNOWN == 0 && entry & GENERATION != 0
}

/// 1 follows the last, since 0 means never written.
fn next_generation(entry: u32) -> u32 {
    (entry & GENERATION) % GENERATION + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::access::Mix;

    fn verifier(mix: Mix) -> Verifier {
        let mut job = Job::new("x");
        job.seed = 9;
        job.mix = mix;
        Verifier::new(&job, Region { offset: 8192, len: 4 * 4096 }, 512)
    }

    fn kinds(verifier: Verifier) -> Vec<FaultKind> {
        verifier.into_found().faults.iter().map(|fault| fault.kind).collect()
    }

    #[test]
    fn a_busy_block_is_not_given_twice() {
        let mut verifier = verifier(Mix::WRITE);
        let claimed: Vec<_> = (0..5).map(|_| verifier.claim(8192 + 4096, 4096)).collect();
        assert_eq!(claimed, [Some(12288), Some(16384), Some(20480), Some(8192), None]);
        verifier.wrote(16384, 4096, true);
        assert_eq!(verifier.claim(8192, 4096), Some(16384));
    }

    #[test]
    fn each_kind_of_fault_is_named() {
        let mut verifier = verifier(Mix::WRITE);
        let offset = verifier.claim(8192, 4096).unwrap();
        let old = verifier.stamp(offset, 4096);
        verifier.wrote(offset, 4096, true);
        let elsewhere = verifier.claim(12288, 4096).unwrap();
        let stray = verifier.stamp(elsewhere, 4096);
        verifier.wrote(elsewhere, 4096, true);
        verifier.claim(8192, 4096).unwrap();
        let new = verifier.stamp(offset, 4096);
        verifier.wrote(offset, 4096, true);
        let mut rotten = new.to_vec();
        rotten[700] ^= 1;

        verifier.read(offset, 4096, Some(&new));
        for data in [&old[..], &stray, &rotten, &[0; 4096]] {
            verifier.read(offset, 4096, Some(data));
        }
        assert_eq!(verifier.found.checked, 5);
        assert_eq!(
            kinds(verifier),
            [
                FaultKind::Stale { expected: Some(2), found: 1 },
                FaultKind::WrongLba { found: 24 },
                FaultKind::BitRot,
                FaultKind::Zero
            ]
        );
    }

    #[test]
    fn a_disk_without_stamps_is_told_from_a_damaged_one() {
        let mut foreign = verifier(Mix::READ);
        foreign.read(8192, 4096, Some(&[7; 4096]));
        foreign.read(12288, 4096, Some(&[0; 4096]));
        let mut damaged = verifier(Mix::READ);
        let mut stamped = verifier(Mix::WRITE);
        let offset = stamped.claim(8192, 4096).unwrap();
        let intact = stamped.stamp(offset, 4096);
        damaged.read(offset, 4096, Some(&intact));
        damaged.read(12288, 4096, Some(&[7; 4096]));
        assert!(foreign.into_found().found_no_stamp() && !damaged.into_found().found_no_stamp());
        assert!(!Verification::default().found_no_stamp(), "nothing was read");
    }

    #[test]
    fn after_a_failed_write_old_and_new_are_both_right() {
        let mut verifier = verifier(Mix::WRITE);
        verifier.claim(8192, 4096).unwrap();
        verifier.wrote(8192, 4096, false);
        verifier.read(8192, 4096, Some(&[0; 4096]));
        verifier.read_back();
        assert_eq!(verifier.next_written(), None);
        assert_eq!(verifier.into_found(), Verification::default());
    }

    #[test]
    fn a_reading_job_accepts_any_generation_of_its_seed_only() {
        let mut writer = verifier(Mix::WRITE);
        writer.claim(8192, 4096).unwrap();
        let data = writer.stamp(8192, 4096);
        let mut reader = verifier(Mix::READ);
        reader.read(8192, 4096, Some(&data));
        assert_eq!(reader.found.faulty, 0);
        reader.seed = 10;
        reader.read(8192, 4096, Some(&data));
        assert_eq!(kinds(reader), [FaultKind::Stale { expected: None, found: 1 }]);
    }
}
