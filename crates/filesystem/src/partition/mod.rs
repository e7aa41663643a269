//! Partition tables: GPT (UEFI 2.10, chapter 5) and MBR. [`Table`] is for disks that change their size, [`layout`] for
//! disks that are looked at.

mod gpt;
pub mod layout;
pub mod types;

use crc_fast::CrcAlgorithm;

use crate::source::{ByteSource, Unreadable};
use gpt::Copy;
use layout::Start;

/// Length of the start of a disk that holds any table that is read here, bytes: protective MBR, GPT header and 16 KiB
/// of entries fit many times, with sectors of 4096 bytes too.
pub const HEAD: usize = 1 << 20;

/// The table of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// GPT.
    Gpt(Gpt),
    /// MBR, with the primary partitions; an extended one stands for what is in it.
    Mbr(Vec<Partition>),
}

/// A range of a disk, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The first byte.
    pub offset: u64,
    /// Length.
    pub len: u64,
}

impl Partition {
    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// A GUID partition table, by its primary header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpt {
    sector: u64,
    /// Sector 0, which begins with the protective MBR.
    mbr: Vec<u8>,
    /// The header, as long as it says.
    header: Vec<u8>,
    /// All entries.
    entries: Vec<u8>,
    partitions: Vec<Partition>,
}

/// Bytes to write at an offset of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Offset on the disk.
    pub offset: u64,
    /// Bytes to write.
    pub bytes: Vec<u8>,
}

/// Fields of a GPT header (5.3.2): offset in the header.
mod field {
    pub(super) const SIZE: usize = 12;
    pub(super) const CRC: usize = 16;
    pub(super) const MY_LBA: usize = 24;
    pub(super) const ALTERNATE_LBA: usize = 32;
    pub(super) const LAST_USABLE: usize = 48;
    pub(super) const ENTRIES_LBA: usize = 72;
    pub(super) const ENTRY_COUNT: usize = 80;
    pub(super) const ENTRY_SIZE: usize = 84;
    pub(super) const ENTRIES_CRC: usize = 88;
    /// Bytes of the header that have a meaning.
    pub(super) const END: usize = 92;
}

/// The first of four entries of an MBR, and the bytes of one.
const MBR_ENTRIES: usize = 446;
const MBR_ENTRY: usize = 16;
/// The type of the entry that covers a GPT disk (5.2.3).
const PROTECTIVE: u8 = 0xEE;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

impl Table {
    /// Reads the table from the first bytes of a disk, [`HEAD`] of them where it has so many. `None` where there is
    /// none, or none that is whole: a file system may begin at sector 0.
    pub fn read(head: &[u8], sector: u32, disk_size: u64) -> Option<Self> {
        if head.get(510..512)? != [0x55, 0xAA] {
            return None;
        }
        let entries = head.get(MBR_ENTRIES..MBR_ENTRIES + 4 * MBR_ENTRY)?;
        let mut partitions = Vec::new();
        for entry in entries.chunks_exact(MBR_ENTRY) {
            let (status, kind) = (entry[0], entry[4]);
            if kind == PROTECTIVE {
                return Gpt::read(head, u64::from(sector), disk_size).map(Self::Gpt);
            }
            // What begins with a boot sector of a file system has code or text here.
            if status & 0x7F != 0 {
                return None;
            }
            let (first, count) = (u32_at(entry, 8)?, u32_at(entry, 12)?);
            if kind == 0 || count == 0 {
                continue;
            }
            let sector = u64::from(sector);
            let partition = Partition { offset: u64::from(first) * sector, len: u64::from(count) * sector };
            if first == 0 || partition.end() > disk_size {
                return None;
            }
            partitions.push(partition);
        }
        (!partitions.is_empty()).then_some(Self::Mbr(partitions))
    }

    /// Returns `true` if the MBR says that there is a GPT, or is lost, and only the copy at the end of the disk is
    /// whole.
    ///
    /// # Errors
    ///
    /// Those of reading `source`.
    pub fn only_copy_is_whole(source: &dyn ByteSource, sector: u32) -> Result<bool, Unreadable> {
        let sector = u64::from(sector);
        let last = (source.len() / sector).saturating_sub(1);
        let copy_is_whole = |number| Copy::read(source, number, sector).map(|copy| copy.is_some());
        Ok(match layout::start(source)? {
            Start::Protective => !copy_is_whole(1)? && copy_is_whole(last)?,
            // Where the end cannot be read, either, nothing says that there is a table.
            Start::Zero => !copy_is_whole(1)? && copy_is_whole(last).unwrap_or(false),
            Start::Other => false,
        })
    }

    /// The partitions, in the order of the table.
    pub fn partitions(&self) -> &[Partition] {
        match self {
            Self::Gpt(gpt) => &gpt.partitions,
            Self::Mbr(partitions) => partitions,
        }
    }

    /// The smallest disk that holds all partitions, and the copy of the table at its end, bytes.
    pub fn minimum(&self) -> u64 {
        let end = self.partitions().iter().map(Partition::end).max().unwrap_or(0);
        match self {
            Self::Gpt(gpt) => end.max(gpt.first_behind_entries()) + gpt.backup_len(),
            Self::Mbr(_) => end,
        }
    }
}

impl Gpt {
    fn read(head: &[u8], sector: u64, disk_size: u64) -> Option<Self> {
        let copy = Copy::read(&head, 1, sector).ok()??;
        let mut partitions = Vec::new();
        for entry in copy.partitions(sector) {
            let range = entry.range.filter(|range| range.end <= disk_size)?;
            partitions.push(Partition { offset: range.start, len: range.end - range.start });
        }
        let mbr = head.get(..usize::try_from(sector).ok()?)?.to_vec();
        Some(Self { sector, mbr, header: copy.header, entries: copy.entries, partitions })
    }

    fn entries_sectors(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(self.sector)
    }

    fn first_behind_entries(&self) -> u64 {
        let start = u64_at(&self.header, field::ENTRIES_LBA).unwrap_or(2);
        (start + self.entries_sectors()) * self.sector
    }

    /// Bytes of the copy at the end of a disk: the entries, then the header.
    pub fn backup_len(&self) -> u64 {
        (self.entries_sectors() + 1) * self.sector
    }

    /// Returns the writes that adapt the table to a disk of `size` bytes: first the copy at its end, then, when that is
    /// durable, the primary header and the protective MBR. Entries at the start stay as they are.
    pub fn on_disk_of(&self, size: u64) -> [Vec<Write>; 2] {
        let last = size / self.sector - 1;
        let backup_entries = last - self.entries_sectors();
        let mut primary = self.header.clone();
        let set = |header: &mut Vec<u8>, at: usize, value: u64| {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        set(&mut primary, field::ALTERNATE_LBA, last);
        set(&mut primary, field::LAST_USABLE, backup_entries - 1);
        let mut backup = primary.clone();
        set(&mut backup, field::MY_LBA, last);
        set(&mut backup, field::ALTERNATE_LBA, 1);
        set(&mut backup, field::ENTRIES_LBA, backup_entries);
        for header in [&mut primary, &mut backup] {
            let crc = Copy::crc_of(header);
            header[field::CRC..field::CRC + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let whole = |mut bytes: Vec<u8>| {
            bytes.resize((bytes.len() as u64).next_multiple_of(self.sector) as usize, 0);
            bytes
        };
        let mut mbr = self.mbr.clone();
        for entry in mbr[MBR_ENTRIES..MBR_ENTRIES + 4 * MBR_ENTRY].chunks_exact_mut(MBR_ENTRY) {
            if entry[4] == PROTECTIVE {
                let first = u32_at(entry, 8).unwrap_or(1);
                let count = u32::try_from(last + 1 - u64::from(first)).unwrap_or(u32::MAX);
                entry[12..16].copy_from_slice(&count.to_le_bytes());
            }
        }
        [
            vec![
                Write { offset: backup_entries * self.sector, bytes: whole(self.entries.clone()) },
                Write { offset: last * self.sector, bytes: whole(backup) },
            ],
            vec![Write { offset: self.sector, bytes: whole(primary) }, Write { offset: 0, bytes: mbr }],
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of `sectors` with one partition from 2048 to 4095, as the specification lays it out.
    fn disk(sectors: u64, sector: usize) -> Vec<u8> {
        let mut entries = vec![0; 128 * 128];
        entries[..16].fill(1);
        entries[32..40].copy_from_slice(&2048u64.to_le_bytes());
        entries[40..48].copy_from_slice(&4095u64.to_le_bytes());
        let mut header = vec![0; field::END];
        header[..8].copy_from_slice(b"EFI PART");
        header[field::SIZE..field::SIZE + 4].copy_from_slice(&92u32.to_le_bytes());
        for (at, value) in [(field::MY_LBA, 1), (field::ENTRIES_LBA, 2)] {
            header[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        for (at, value) in
            [(field::ENTRY_COUNT, 128), (field::ENTRY_SIZE, 128), (field::ENTRIES_CRC, crc32(&entries))]
        {
            header[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        let crc = Copy::crc_of(&header);
        header[field::CRC..field::CRC + 4].copy_from_slice(&crc.to_le_bytes());
        let mut bytes = vec![0; sectors as usize * sector];
        bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
        bytes[MBR_ENTRIES + 4] = PROTECTIVE;
        bytes[MBR_ENTRIES + 8] = 1;
        bytes[sector..sector + header.len()].copy_from_slice(&header);
        bytes[2 * sector..2 * sector + entries.len()].copy_from_slice(&entries);
        bytes
    }

    fn read(bytes: &[u8], sector: u32) -> Option<Table> {
        Table::read(&bytes[..bytes.len().min(HEAD)], sector, bytes.len() as u64)
    }

    #[test]
    fn a_table_moves_to_the_end_of_a_disk_of_another_size() {
        // Sectors of the entries and of the header at the end.
        for (sector, copy) in [(512, 33), (4096, 5)] {
            for sectors in [4096 + copy, 8192, 5000] {
                let mut bytes = disk(8192, sector);
                let size = sector as u64;
                let Some(Table::Gpt(gpt)) = read(&bytes, sector as u32) else { panic!("a GPT") };
                assert_eq!(gpt.partitions, [Partition { offset: 2048 * size, len: 2048 * size }]);
                assert_eq!(Table::Gpt(gpt.clone()).minimum(), (4096 + copy) * size);
                bytes.resize(sectors as usize * sector, 0);
                for Write { offset, bytes: written } in gpt.on_disk_of(sectors * size).concat() {
                    assert!(offset % size == 0 && written.len() % sector == 0, "whole sectors");
                    bytes[offset as usize..offset as usize + written.len()].copy_from_slice(&written);
                }
                assert!(!Table::only_copy_is_whole(&bytes.as_slice(), sector as u32).unwrap());
                let moved = read(&bytes, sector as u32);
                let Some(Table::Gpt(moved)) = moved else { panic!("a GPT of {sectors} sectors") };
                assert_eq!(moved.partitions, gpt.partitions);
                assert_eq!(u64_at(&moved.header, field::ALTERNATE_LBA), Some(sectors - 1));
                let backup = &bytes[bytes.len() - sector..][..field::END];
                assert_eq!(u32_at(backup, field::CRC), Some(Copy::crc_of(backup)));
                assert_eq!(u64_at(backup, field::ENTRIES_LBA), Some(sectors - copy));
                // Without what is at the start.
                bytes[sector..2 * sector].fill(0);
                assert!(Table::only_copy_is_whole(&bytes.as_slice(), sector as u32).unwrap());
                // Without the MBR as well; but a file system that was made over the table is none.
                bytes[..4096].fill(0);
                assert!(Table::only_copy_is_whole(&bytes.as_slice(), sector as u32).unwrap());
                bytes[1024 + 56] = 0x53;
                assert!(!Table::only_copy_is_whole(&bytes.as_slice(), sector as u32).unwrap());
                bytes[1024 + 56] = 0;
                bytes[sectors as usize * sector - sector] = 0;
                assert!(!Table::only_copy_is_whole(&bytes.as_slice(), sector as u32).unwrap());
            }
        }
    }

    #[test]
    fn what_is_no_whole_table_is_none() {
        let whole = disk(8192, 512);
        for at in [510, 512, 512 + field::CRC, 512 + field::MY_LBA, 1024 + 33, 512 + field::ENTRY_COUNT + 2] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert_eq!(read(&bytes, 512), None, "byte {at}");
        }
        for len in [0, 1, 511, 512, 1000, 1024, 4096] {
            assert_eq!(Table::read(&whole[..len], 512, len as u64), None, "{len} bytes");
        }
        // A boot sector of a file system has text where an MBR has its entries.
        let mut boot = vec![b'x'; 4096];
        boot[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(read(&boot, 512), None);
    }
}
