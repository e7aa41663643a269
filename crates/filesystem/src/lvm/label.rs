//! The label of a physical volume, and its metadata areas (lib/label, lib/format_text of LVM2).

use std::ops::Range;

use super::wrong;
use crate::fields::{le32, le64};
use crate::map::Ranges;
use crate::source::{ByteSource, LARGEST, Unreadable};
use crate::volume::Doubt;

const SECTOR: u64 = super::SECTOR;
/// The label is in one of the first four sectors.
const SECTORS: u64 = 4;

/// Offsets in the label's sector (struct label_header).
mod field {
    pub(super) const SECTOR: usize = 8;
    pub(super) const CRC: usize = 16;
    pub(super) const HEADER: usize = 20;
    pub(super) const TYPE: usize = 24;
}

/// Bytes of a UUID, and of the header in front of the lists of areas (struct pv_header).
const UUID: usize = 32;
const LISTS: usize = 40;

/// Offsets in the header of a metadata area (struct mda_header), and of the places of texts in it.
mod area {
    pub(super) const MAGIC: &[u8] = b" LVM2 x[5A%r0N*>";
    pub(super) const VERSION: usize = 20;
    pub(super) const START: usize = 24;
    pub(super) const SIZE: usize = 32;
    pub(super) const TEXTS: usize = 40;
    pub(super) const LEN: u64 = 512;
    /// Bytes of one place, and the flag of an area that is not kept up to date.
    pub(super) const PLACE: usize = 24;
    pub(super) const IGNORED: u32 = 1;
}

/// LVM2's CRC: CRC-32 (IEEE) that begins with a number of its own, without inversion.
fn crc(bytes: &[u8]) -> u32 {
    const START: u32 = 0xF597_A6CF;
    bytes.iter().fold(START, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 },
        )
    })
}

/// A label that is right.
pub(super) struct Label {
    /// The UUID, without hyphens.
    pub(super) uuid: String,
    /// The area of the extents.
    pub(super) data: Range<u64>,
    /// The label's sectors and the metadata areas.
    pub(super) areas: Ranges,
    metadata: Vec<Range<u64>>,
}

/// The sector of the label, and its number.
pub(super) fn find(source: &dyn ByteSource) -> Result<Option<(u64, [u8; SECTOR as usize])>, Unreadable> {
    for number in (0..SECTORS).filter(|number| source.has(number * SECTOR, SECTOR)) {
        let sector: [u8; SECTOR as usize] = source.array(number * SECTOR)?;
        let right = sector.starts_with(b"LABELONE")
            && le64(&sector, field::SECTOR) == number
            && sector[field::TYPE..].starts_with(b"LVM2 001")
            && crc(&sector[field::HEADER..]) == le32(&sector, field::CRC);
        if right {
            return Ok(Some((number, sector)));
        }
    }
    Ok(None)
}

impl Label {
    pub(super) fn read(source: &dyn ByteSource) -> Result<Self, Doubt> {
        let (_, sector) = find(source)?.ok_or_else(|| Doubt::new("it has no label of LVM2"))?;
        let header = sector.get(le32(&sector, field::HEADER) as usize..).unwrap_or_default();
        let uuid = header.get(..UUID).filter(|uuid| uuid.is_ascii()).ok_or_else(|| wrong("have no UUID"))?;
        let uuid = String::from_utf8_lossy(uuid).into_owned();
        // Two lists of (offset, size), each with zeros at its end.
        let mut pairs = header.get(LISTS..).unwrap_or_default().chunks_exact(16).map(|pair| {
            let (at, len) = (le64(pair, 0), le64(pair, 8));
            (at, len)
        });
        let mut list = || pairs.by_ref().take_while(|(at, _)| *at != 0).collect::<Vec<_>>();
        let (data, metadata) = (list(), list());
        // The size of the data area is that of the rest of the volume, and written as 0.
        let &[(start, len)] = data.as_slice() else { return Err(wrong("have not one data area")) };
        let end = if len == 0 { source.len() } else { start.saturating_add(len) };
        let mut found = Vec::new();
        for (at, len) in metadata {
            if !source.has(at, len) || len < 2 * area::LEN {
                return Err(wrong("lie outside of the physical volume"));
            }
            found.push(at..at + len);
        }
        let areas = Ranges::union(found.iter().cloned().chain(std::iter::once(0..SECTORS * SECTOR)));
        Ok(Self { uuid, data: start..end, areas, metadata: found })
    }

    /// The text that all metadata areas have.
    pub(super) fn text(&self, source: &dyn ByteSource) -> Result<Option<Vec<u8>>, Doubt> {
        let mut found: Option<Vec<u8>> = None;
        for place in &self.metadata {
            let Some(text) = text(source, place)? else { continue };
            if found.as_ref().is_some_and(|found| *found != text) {
                return Err(wrong("are not the same in all copies"));
            }
            found = Some(text);
        }
        Ok(found)
    }
}

/// The text of one metadata area; `None` where it has none, or is not kept.
fn text(source: &dyn ByteSource, place: &Range<u64>) -> Result<Option<Vec<u8>>, Doubt> {
    let header: [u8; area::LEN as usize] = source.array(place.start)?;
    let size = place.end - place.start;
    let right = header[4..].starts_with(area::MAGIC)
        && crc(&header[4..]) == le32(&header, 0)
        && le32(&header, area::VERSION) == 1
        && le64(&header, area::START) == place.start
        && le64(&header, area::SIZE) == size;
    if !right {
        return Err(wrong("have a header that is not right"));
    }
    let text = &header[area::TEXTS..area::TEXTS + area::PLACE];
    // The second place is that of a text that is about to replace the first.
    if le64(&header, area::TEXTS + area::PLACE) != 0 {
        return Err(wrong("were about to change"));
    }
    let (at, len) = (le64(text, 0), le64(text, 8));
    if at == 0 || le32(text, 20) & area::IGNORED != 0 {
        return Ok(None);
    }
    if at < area::LEN || at >= size || len > (LARGEST as u64).min(size - area::LEN) {
        return Err(wrong("are too long"));
    }
    // A ring, whose first sector is the header.
    let straight = len.min(size - at);
    let mut bytes = source.bytes(place.start + at, straight as usize)?;
    bytes.extend(source.bytes(place.start + area::LEN, (len - straight) as usize)?);
    if crc(&bytes) != le32(text, 16) {
        return Err(wrong("have a wrong checksum"));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    /// The register of CRC-32 as everybody has it, and what LVM2 makes of it.
    #[test]
    fn the_checksum_is_the_register_of_crc_32_begun_elsewhere() {
        assert_eq!(super::crc(b""), 0xF597_A6CF);
        let standard = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, b"123456789");
        assert_eq!(standard, 0xCBF4_3926);
        assert_ne!(super::crc(b"123456789"), standard as u32);
    }
}
