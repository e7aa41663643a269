//! The track file, byte for byte. All numbers are little-endian; checksums are CRC-32C.
//!
//! ```text
//! 0        superblock of even generations     a copy of each, 8 KiB apart, so that no single sector
//! 4096     superblock of odd generations      decides what the file says
//! 8192     copy of the one at 0
//! 12288    copy of the one at 4096
//! 16384 …  areas: base, log, copy of the log; one is current, the next is made beside it
//! ```
//!
//! An area begins at a multiple of 4096: the *base* is all that was known when it was made, the *log* is what came
//! after. A new area is written and flushed before a superblock names it; the superblock is flushed before anything is
//! logged in it. A record of the log is written to both copies of the log, at the same place, and flushed, before a
//! change that rests on it reaches the disk.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::changes::EpochId;
use crate::grain::{
    DISK_MAX, GRAIN, PAGE_GRAINS, PAGE_WORDS, REGION_GRAINS_MIN, SAVED, UNMAPPED, UNTOUCHED, WORD_GRAINS,
    WRITTEN, having, mask,
};
use crate::map::{Page, Runs, plain};

/// Signature of a superblock.
pub(crate) const MAGIC: [u8; 8] = *b"lwtrack1";
/// Distance between the two superblocks, selected by the generation's lowest bit; `COPY`: distance of each from its
/// copy.
pub(crate) const SLOT: u64 = 4096;
/// See [`SLOT`].
pub(crate) const COPY: u64 = 8192;
/// Least offset of the first area.
pub(crate) const AREAS: u64 = 16384;
/// Records begin at multiples of a sector: what comes after a torn one is found.
pub(crate) const SECTOR: u64 = 512;
/// The longest record: 256 regions of 16 MiB (80 bytes each) become cold in one that closes an epoch, and as many
/// again may wait to be saved.
pub(crate) const RECORD_MAX: usize = 64 << 10;
/// The longest identity of a backing store, and the longest reason, bytes.
pub(crate) const TEXT_MAX: usize = 1024;
/// Closed epochs that are kept.
pub const EPOCHS_MAX: usize = 64;

/// A superblock: 512 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    /// 0: `lwtrack1`.
    pub(crate) magic: [u8; 8],
    /// 8: one more than the last one's; the greatest is current.
    pub(crate) generation: U64,
    /// 16: where the base begins.
    pub(crate) base: U64,
    /// 24: its length.
    pub(crate) base_length: U64,
    /// 32: where the log begins.
    pub(crate) log: U64,
    /// 40: length of the log; its copy follows at once.
    pub(crate) log_length: U64,
    /// 48: checksum of the base.
    pub(crate) base_checksum: U32,
    /// 52: zeroes.
    reserved: [u8; 456],
    /// 508: checksum of the bytes before.
    checksum: U32,
}

impl Superblock {
    pub(crate) fn new(generation: u64, base: (u64, u64), base_checksum: u32, log: (u64, u64)) -> Self {
        let mut superblock = Self {
            magic: MAGIC,
            generation: generation.into(),
            base: base.0.into(),
            base_length: base.1.into(),
            log: log.0.into(),
            log_length: log.1.into(),
            base_checksum: base_checksum.into(),
            reserved: [0; 456],
            checksum: 0.into(),
        };
        superblock.checksum = crc32c::crc32c(&superblock.as_bytes()[..508]).into();
        superblock
    }

    /// Returns `true` if this is an intact superblock.
    pub(crate) fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.checksum.get() == crc32c::crc32c(&self.as_bytes()[..508])
    }

    /// Returns `true` if all that it names lies in a file of this length. A superblock that is not current any more
    /// need not.
    pub(crate) fn fits(&self, file_length: u64) -> bool {
        let within = |start: u64, length: u64| {
            start >= AREAS && start.checked_add(length).is_some_and(|end| end <= file_length)
        };
        within(self.base.get(), self.base_length.get())
            && self.log_length.get().checked_mul(2).is_some_and(|length| within(self.log.get(), length))
    }
}

/// Header of a log record: 32 bytes. Entries follow, then zeroes to the next multiple of 512.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeader {
    /// 0: `lwre`.
    pub(crate) magic: [u8; 4],
    /// 4: checksum of the record from offset 8 to the end of its entries.
    pub(crate) checksum: U32,
    /// 8: the superblock's.
    pub(crate) generation: U64,
    /// 16: counts from 0 in each generation.
    pub(crate) sequence: U64,
    /// 24: length of the entries, bytes.
    pub(crate) length: U32,
    /// 28: zero.
    reserved: U32,
}

/// Length of [`RecordHeader`].
pub(crate) const RECORD_HEADER: usize = size_of::<RecordHeader>();

/// A record of these entries, padded.
pub(crate) fn record(generation: u64, sequence: u64, entries: &[u8]) -> Vec<u8> {
    let header = RecordHeader {
        magic: *b"lwre",
        checksum: 0.into(),
        generation: generation.into(),
        sequence: sequence.into(),
        length: (entries.len() as u32).into(),
        reserved: 0.into(),
    };
    let mut bytes = [header.as_bytes(), entries].concat();
    let checksum = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
    bytes
}

/// Entry of a log record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordEntry {
    /// 1: a region is hot: anything in it may be written from now on. Region (8 bytes).
    Hot(u64),
    /// 2: the states of the grains of a region, 2 bits each; it is cold from now on if the flag says so. Region (8),
    /// flag (1), states (16, 32 or 64 bytes).
    Region {
        /// Number of the region.
        region: u64,
        /// No longer hot.
        cold: bool,
        /// As words.
        states: Vec<u64>,
    },
    /// 3: a range of grains has one state: first grain (8), number (8), state (1).
    Range {
        /// First grain.
        first: u64,
        /// Number of grains.
        count: u64,
        /// Unmapped or written.
        state: u64,
    },
    /// 4: the disk may have this size from now on: bytes (8).
    Size(u64),
    /// 5: the epoch is closed, and has this name (16); the next one begins.
    Close(EpochId),
    /// 6: the epoch of this name (16) is referred to no longer.
    Release(EpochId),
}

/// A track file that is not one, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Damage(pub(crate) &'static str);

impl RecordEntry {
    /// Appends the entry.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hot(region) => {
                to.push(1);
                to.extend(region.to_le_bytes());
            }
            Self::Region { region, cold, states } => {
                to.push(2);
                to.extend(region.to_le_bytes());
                to.push(u8::from(*cold));
                states.iter().for_each(|state| to.extend(state.to_le_bytes()));
            }
            Self::Range { first, count, state } => {
                to.push(3);
                to.extend(first.to_le_bytes());
                to.extend(count.to_le_bytes());
                to.push(*state as u8);
            }
            Self::Size(size) => {
                to.push(4);
                to.extend(size.to_le_bytes());
            }
            Self::Close(id) => {
                to.push(5);
                to.extend(id.0);
            }
            Self::Release(id) => {
                to.push(6);
                to.extend(id.0);
            }
        }
    }

    /// Takes the next entry off `from`, of a file whose regions have so many grains.
    pub(crate) fn decode(from: &mut &[u8], region_grains: u64) -> Result<Self, Damage> {
        let damage = Damage("an entry of its log has no meaning");
        let grains = DISK_MAX / GRAIN;
        let region = |region: u64| {
            (region < grains / region_grains).then_some(region).ok_or(Damage("a region is beyond any disk"))
        };
        let [kind] = take(from)?;
        match kind {
            1 => Ok(Self::Hot(region(number(from)?)?)),
            2 => {
                let region = region(number(from)?)?;
                let [cold] = take(from)?;
                if cold > 1 {
                    return Err(damage);
                }
                let count = region_grains / WORD_GRAINS;
                let states = (0..count).map(|_| number(from)).collect::<Result<Vec<_>, _>>()?;
                if states.iter().any(|&word| having(word, SAVED) != 0) {
                    return Err(damage);
                }
                Ok(Self::Region { region, cold: cold == 1, states })
            }
            3 => {
                let (first, count) = (number(from)?, number(from)?);
                let [state] = take(from)?;
                let fits = first.checked_add(count).is_some_and(|end| end <= grains);
                if !fits || !matches!(u64::from(state), UNMAPPED | WRITTEN) {
                    return Err(damage);
                }
                Ok(Self::Range { first, count, state: state.into() })
            }
            4 => Ok(Self::Size(number(from)?)).and_then(|entry| match entry {
                Self::Size(size) if size > DISK_MAX => Err(damage),
                entry => Ok(entry),
            }),
            5 => Ok(Self::Close(EpochId(take(from)?))),
            6 => Ok(Self::Release(EpochId(take(from)?))),
            _ => Err(damage),
        }
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], Damage> {
    let (first, rest) = from.split_first_chunk().ok_or(Damage("a record of its log ends in an entry"))?;
    *from = rest;
    Ok(*first)
}

fn number(from: &mut &[u8]) -> Result<u64, Damage> {
    take(from).map(u64::from_le_bytes)
}

/// Header of a base: 64 bytes. Then come the lasting identity, the exact identity and the reason; the hot regions, 8
/// bytes each; the closed epochs, oldest first, each an [`EpochHeader`] and its pages; the pages of the open epoch.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct BaseHeader {
    /// 0: `lwbase\0\0`.
    pub(crate) magic: [u8; 8],
    /// 8: size of the disk, bytes.
    pub(crate) size: U64,
    /// 16: the least size that it had in the open epoch, bytes.
    pub(crate) low: U64,
    /// 24: grains of a region: 64, 128 or 256.
    pub(crate) region_grains: U32,
    /// 28: 1 if the file was left in order, with nothing under way.
    pub(crate) clean: U32,
    /// 32: how many regions are hot.
    pub(crate) hot: U32,
    /// 36: how many closed epochs there are.
    pub(crate) epochs: U32,
    /// 40: how many pages the open epoch has.
    pub(crate) pages: U32,
    /// 44: length of what identifies the backing store while it is open, bytes.
    pub(crate) lasting: U16,
    /// 46: length of what identifies it exactly, after it was closed.
    pub(crate) exact: U16,
    /// 48: length of the sentence that says why the oldest epoch has no parent.
    pub(crate) reason: U16,
    /// 50: zeroes.
    pub(crate) reserved: [u8; 14],
}

/// Signature of a base.
pub(crate) const BASE_MAGIC: [u8; 8] = *b"lwbase\0\0";

/// Header of a closed epoch in a base: 48 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct EpochHeader {
    /// 0: its name.
    pub(crate) id: [u8; 16],
    /// 16: the name of the one before, or zeroes.
    pub(crate) parent: [u8; 16],
    /// 32: the least size that the disk had in it, bytes.
    pub(crate) low: U64,
    /// 40: how many pages it has.
    pub(crate) pages: U32,
    /// 44: zero.
    pub(crate) reserved: U32,
}

/// Header of a page in a base: 8 bytes. `runs` runs of 4 bytes follow: first grain (2 bytes), number of grains less one
/// (2 bytes, the uppermost bit set if they are unmapped, clear if they are written). Or 4096 bytes: the states
/// themselves, two bits each.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PageHeader {
    /// 0: number of the GiB.
    pub(crate) number: U32,
    /// 4: how many runs follow, or 65535: the states.
    pub(crate) runs: U16,
    /// 6: zero.
    pub(crate) reserved: U16,
}

/// Instead of a number of runs: the page follows as it is.
pub(crate) const RAW: u16 = u16::MAX;
/// A page of more runs than this is shorter as it is.
const RUNS_MAX: usize = PAGE_WORDS * 8 / 4 - 1;
const RUN_UNMAPPED: u16 = 0x8000;

/// A page, header and all.
pub(crate) fn encode_page(number: u32, page: &Page, to: &mut Vec<u8>) {
    let mut runs = Vec::new();
    let mut each = |start: u64, end: u64, state: u64| {
        let unmapped = if state == UNMAPPED { RUN_UNMAPPED } else { 0 };
        runs.push([(start % PAGE_GRAINS) as u16, (end - start - 1) as u16 | unmapped]);
    };
    let plain = page.map(plain);
    let mut list = Runs::default();
    list.page(number, &plain, &mut each);
    list.finish(&mut each);
    let header = |runs: u16| PageHeader { number: number.into(), runs: runs.into(), reserved: 0.into() };
    if runs.len() > RUNS_MAX {
        to.extend(header(RAW).as_bytes());
        plain.iter().for_each(|word| to.extend(word.to_le_bytes()));
    } else {
        to.extend(header(runs.len() as u16).as_bytes());
        runs.iter().flatten().for_each(|half| to.extend(half.to_le_bytes()));
    }
}

/// Length of what follows a page's header, bytes.
pub(crate) fn page_length(header: &PageHeader) -> usize {
    match header.runs.get() {
        RAW => PAGE_WORDS * 8,
        runs => usize::from(runs) * 4,
    }
}

/// A page of what follows its header.
pub(crate) fn decode_page(header: &PageHeader, bytes: &[u8]) -> Result<Box<Page>, Damage> {
    let damage = Damage("a page of its map has no meaning");
    let mut page = Box::new([UNTOUCHED; PAGE_WORDS]);
    if header.runs.get() == RAW {
        for (word, bytes) in page.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if page.iter().any(|&word| having(word, SAVED) != 0) {
            return Err(damage);
        }
        return Ok(page);
    }
    if header.runs.get() == 0 {
        return Err(damage);
    }
    let mut last = 0;
    for run in bytes.as_chunks::<4>().0 {
        let (start, length) = (u16::from_le_bytes([run[0], run[1]]), u16::from_le_bytes([run[2], run[3]]));
        let state = if length & RUN_UNMAPPED != 0 { UNMAPPED } else { WRITTEN };
        let (start, count) = (u64::from(start), u64::from(length & !RUN_UNMAPPED) + 1);
        if start < last || start + count > PAGE_GRAINS {
            return Err(damage);
        }
        last = start + count;
        for index in start / WORD_GRAINS..=(last - 1) / WORD_GRAINS {
            let first = index * WORD_GRAINS;
            let mask = mask(start.saturating_sub(first), (last - first).min(WORD_GRAINS));
            page[index as usize] |= mask & crate::grain::all_of(state);
        }
    }
    Ok(page)
}

/// Returns `true` if a file may have regions of so many grains.
pub(crate) fn is_region(grains: u64) -> bool {
    [1, 2, 4].contains(&(grains / REGION_GRAINS_MIN)) && grains.is_multiple_of(REGION_GRAINS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;

    #[test]
    fn a_page_is_runs_or_itself_and_comes_back_the_same() {
        for step in [2, 3, 7, 500, 16384] {
            let mut map = Map::default();
            for first in (0..16384).step_by(step) {
                map.set(first, first + 1 + first % 2, if first % 3 == 0 { UNMAPPED } else { WRITTEN });
            }
            let mut bytes = Vec::new();
            encode_page(0, &map.pages[&0], &mut bytes);
            let (header, rest) = PageHeader::read_from_prefix(&bytes).unwrap();
            assert_eq!(rest.len(), page_length(&header));
            assert_eq!(decode_page(&header, rest).unwrap(), map.pages[&0]);
            assert_eq!(header.runs.get() == RAW, step < 16, "{step}");
        }
    }

    #[test]
    fn entries_come_back_the_same_and_nonsense_is_refused() {
        let entries = [
            RecordEntry::Hot(3),
            RecordEntry::Region { region: 9, cold: true, states: vec![0b10_01, u64::MAX / 3 * 2] },
            RecordEntry::Range { first: 7, count: 1 << 20, state: UNMAPPED },
            RecordEntry::Size(1 << 40),
            RecordEntry::Close(EpochId([7; 16])),
            RecordEntry::Release(EpochId([9; 16])),
        ];
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        let mut rest = &bytes[..];
        entries.iter().for_each(|entry| assert_eq!(RecordEntry::decode(&mut rest, 64).as_ref(), Ok(entry)));
        assert!(rest.is_empty());
        for length in 0..bytes.len() {
            let mut rest = &bytes[..length];
            while !rest.is_empty() && RecordEntry::decode(&mut rest, 64).is_ok() {}
        }
        assert!(RecordEntry::decode(&mut &[9, 0][..], 64).is_err());
        assert!(RecordEntry::decode(&mut &[1, 0, 0, 0, 0, 0, 0, 0, 1][..], 64).is_err());
    }
}
