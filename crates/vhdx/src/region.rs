//! The region table: where block table, metadata and regions of others are.

use std::collections::HashSet;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Structure, VhdxOpenError};
use crate::format::{
    Guid, HEADER_SECTION, MIB, REGION_TABLE_OFFSETS, RegionEntry, RegionTableHeader, TABLE_LEN, checksum,
    region_id,
};
use crate::storage::Storage;

/// A piece of the file, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub len: u64,
}

impl Span {
    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    pub(crate) fn overlaps(&self, other: &Span) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// The regions of a file.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    pub(crate) bat: Span,
    pub(crate) metadata: Span,
    /// All of them, known or not: their space is taken.
    pub(crate) all: Vec<Span>,
    /// The copy of the table that is not like the one that counts: to be repaired before the first change.
    pub(crate) stale_copy: Option<u64>,
    /// The table that counts, as on disk.
    pub(crate) table: Vec<u8>,
}

impl Regions {
    /// Reads both copies of the table; the first valid one counts.
    pub(crate) fn read(storage: &impl Storage) -> Result<Self, VhdxOpenError> {
        let mut copies = Vec::new();
        for offset in REGION_TABLE_OFFSETS {
            let mut table = vec![0; TABLE_LEN];
            storage
                .read_at(offset, &mut table)
                .map_err(VhdxOpenError::storage("reading the region table", offset))?;
            copies.push(table);
        }
        let [first, second] = [is_valid(&copies[0]), is_valid(&copies[1])];
        let at = REGION_TABLE_OFFSETS[usize::from(!first)];
        let (table, other) = match (first, second) {
            (true, _) => (copies.swap_remove(0), copies.swap_remove(0)),
            (false, true) => (copies.swap_remove(1), copies.swap_remove(0)),
            (false, false) => {
                let problem = "neither copy has a right signature and checksum";
                return Err(VhdxOpenError::corrupt(Structure::RegionTable, at, problem));
            }
        };
        let mut regions = Self::parse(&table, at)?;
        let other_at = REGION_TABLE_OFFSETS[usize::from(first)];
        regions.stale_copy = (table != other).then_some(other_at);
        regions.table = table;
        Ok(regions)
    }

    fn parse(table: &[u8], at: u64) -> Result<Self, VhdxOpenError> {
        let corrupt = |problem: String| VhdxOpenError::corrupt(Structure::RegionTable, at, problem);
        let (header, entries) =
            RegionTableHeader::read_from_prefix(table).map_err(|_| corrupt("it is too short".into()))?;
        let count = header.entry_count.get();
        if count > RegionTableHeader::ENTRIES_MAX {
            return Err(corrupt(format!("{count} entries, {} are the most", RegionTableHeader::ENTRIES_MAX)));
        }
        let (mut bat, mut metadata, mut all, mut seen) = (None, None, Vec::new(), HashSet::new());
        for entry in entries.chunks_exact(size_of::<RegionEntry>()).take(count as usize) {
            let entry = RegionEntry::read_from_bytes(entry).map_err(|_| corrupt("it is too short".into()))?;
            let span = Span { offset: entry.offset.get(), len: u64::from(entry.length.get()) };
            if !seen.insert(entry.guid) {
                return Err(corrupt(format!("region {} is listed twice", entry.guid)));
            }
            if span.offset < HEADER_SECTION
                || !span.offset.is_multiple_of(MIB)
                || !span.len.is_multiple_of(MIB)
                || span.len == 0
                || span.offset.checked_add(span.len).is_none()
            {
                let problem = format!(
                    "region {} has {} bytes at {}: multiples of 1 MiB behind the header section are expected",
                    entry.guid, span.len, span.offset
                );
                return Err(corrupt(problem));
            }
            match entry.guid {
                region_id::BAT => bat = Some(span),
                region_id::METADATA => metadata = Some(span),
                other if entry.required.get() != 0 => {
                    return Err(VhdxOpenError::unsupported(
                        Structure::RegionTable,
                        at,
                        format!("region {other} is required"),
                    ));
                }
                _ => {}
            }
            all.push(span);
        }
        Ok(Self {
            bat: bat.ok_or_else(|| corrupt("there is no block allocation table".into()))?,
            metadata: metadata.ok_or_else(|| corrupt("there is no metadata region".into()))?,
            all,
            stale_copy: None,
            table: Vec::new(),
        })
    }

    /// A table in which one region is elsewhere.
    pub(crate) fn moved(table: &[u8], id: Guid, span: Span) -> Vec<u8> {
        let mut table = table.to_vec();
        let (head, entries) = table.split_at_mut(size_of::<RegionTableHeader>());
        let count = RegionTableHeader::read_from_bytes(head).map_or(0, |header| header.entry_count.get());
        for bytes in entries.chunks_exact_mut(size_of::<RegionEntry>()).take(count as usize) {
            if let Ok(mut entry) = RegionEntry::read_from_bytes(bytes)
                && entry.guid == id
            {
                (entry.offset, entry.length) = (span.offset.into(), (span.len as u32).into());
                bytes.copy_from_slice(entry.as_bytes());
            }
        }
        table[4..8].fill(0);
        let crc = checksum(&table, 4);
        table[4..8].copy_from_slice(&crc.to_le_bytes());
        table
    }

    /// The table of a new file, as on disk: block table first, as Windows writes it.
    pub(crate) fn build(bat: Span, metadata: Span) -> Vec<u8> {
        let mut table = vec![0; TABLE_LEN];
        let mut header = RegionTableHeader {
            signature: RegionTableHeader::SIGNATURE,
            checksum: 0.into(),
            entry_count: 2.into(),
            reserved: 0.into(),
        };
        for (slot, (guid, span)) in
            [(region_id::BAT, bat), (region_id::METADATA, metadata)].into_iter().enumerate()
        {
            let entry = RegionEntry {
                guid,
                offset: span.offset.into(),
                length: (span.len as u32).into(),
                required: 1.into(),
            };
            let at = size_of::<RegionTableHeader>() + slot * size_of::<RegionEntry>();
            table[at..at + size_of::<RegionEntry>()].copy_from_slice(entry.as_bytes());
        }
        table[..16].copy_from_slice(header.as_bytes());
        header.checksum = checksum(&table, 4).into();
        table[..16].copy_from_slice(header.as_bytes());
        table
    }
}

fn is_valid(table: &[u8]) -> bool {
    RegionTableHeader::read_from_prefix(table).is_ok_and(|(header, _)| {
        header.signature == RegionTableHeader::SIGNATURE && header.checksum.get() == checksum(table, 4)
    })
}
