//! Copy of a GPT (UEFI 2.10, 5.3): a header with its entries, both checked.

use super::{crc32, field, u32_at, u64_at};
use crate::source::{ByteSource, LARGEST, Unreadable};

/// A valid copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// The header, as long as it says.
    pub(super) header: Vec<u8>,
    /// All entries.
    pub(super) entries: Vec<u8>,
}

/// A used entry (5.3.3).
pub(super) struct GptEntry<'a> {
    /// Its number in the table, from 1.
    pub(super) number: usize,
    /// The type's GUID, as it lies there.
    pub(super) kind: [u8; 16],
    /// The first byte, and the one behind the last; an entry whose range is not one has none.
    pub(super) range: Option<std::ops::Range<u64>>,
    name: &'a [u8],
}

impl GptEntry<'_> {
    /// The name: UTF-16, up to 36 units.
    pub(super) fn name(&self) -> Option<String> {
        let units = self.name.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        let name: String = char::decode_utf16(units.take_while(|unit| *unit != 0))
            .map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER))
            .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
            .collect();
        (!name.is_empty()).then_some(name)
    }
}

impl Copy {
    /// Reads the copy whose header is in sector `lba`; `None` where none is whole.
    pub(super) fn read(source: &dyn ByteSource, lba: u64, sector: u64) -> Result<Option<Self>, Unreadable> {
        let Some(at) = lba.checked_mul(sector).filter(|at| source.has(*at, sector)) else { return Ok(None) };
        let header = source.bytes(at, sector as usize)?;
        let Some((header, count, entry, start)) = Self::header(header, lba) else { return Ok(None) };
        let len = u64::from(count) * u64::from(entry);
        let start =
            start.checked_mul(sector).filter(|start| len <= LARGEST as u64 && source.has(*start, len));
        let Some(start) = start else { return Ok(None) };
        let entries = source.bytes(start, len as usize)?;
        let right = Some(crc32(&entries)) == u32_at(&header, field::ENTRIES_CRC);
        Ok(right.then_some(Self { header, entries }))
    }

    /// A header that is right by itself, how many entries it has, how long they are, and where they begin.
    fn header(mut header: Vec<u8>, lba: u64) -> Option<(Vec<u8>, u32, u32, u64)> {
        let size = u32_at(&header, field::SIZE)? as usize;
        if header.get(..8)? != b"EFI PART" || !(field::END..=header.len()).contains(&size) {
            return None;
        }
        header.truncate(size);
        if u32_at(&header, field::CRC)? != Self::crc_of(&header) || u64_at(&header, field::MY_LBA)? != lba {
            return None;
        }
        let (count, entry) = (u32_at(&header, field::ENTRY_COUNT)?, u32_at(&header, field::ENTRY_SIZE)?);
        let start = u64_at(&header, field::ENTRIES_LBA)?;
        (entry >= 128).then_some((header, count, entry, start))
    }

    /// The checksum of a header, whose own field counts as zero.
    pub(super) fn crc_of(header: &[u8]) -> u32 {
        let mut header = header.to_vec();
        header[field::CRC..field::CRC + 4].fill(0);
        crc32(&header)
    }

    /// The used entries.
    pub(super) fn partitions(&self, sector: u64) -> impl Iterator<Item = GptEntry<'_>> {
        let len = u32_at(&self.header, field::ENTRY_SIZE).map_or(128, |len| len as usize).max(128);
        (1..).zip(self.entries.chunks_exact(len)).filter_map(move |(number, bytes)| {
            let kind = *bytes.first_chunk::<16>()?;
            let (first, last) = (u64_at(bytes, 32)?, u64_at(bytes, 40)?);
            let range = first
                .checked_mul(sector)
                .zip(last.checked_add(1).and_then(|end| end.checked_mul(sector)))
                .filter(|(start, end)| start < end)
                .map(|(start, end)| start..end);
            (kind != [0; 16]).then_some(GptEntry { number, kind, range, name: &bytes[56..128] })
        })
    }

    /// LBA of the other copy.
    pub(super) fn alternate(&self) -> u64 {
        u64_at(&self.header, field::ALTERNATE_LBA).unwrap_or(0)
    }

    /// The bytes of the disk that the copy takes.
    pub(super) fn places(&self, sector: u64) -> [std::ops::Range<u64>; 2] {
        let header = u64_at(&self.header, field::MY_LBA).unwrap_or(0).saturating_mul(sector);
        let entries = u64_at(&self.header, field::ENTRIES_LBA).unwrap_or(0).saturating_mul(sector);
        let len = (self.entries.len() as u64).next_multiple_of(sector);
        [header..header.saturating_add(sector), entries..entries.saturating_add(len)]
    }
}
