//! The active sequence (2.3.2, 2.3.3): the newest run of entries that was written as one and reaches back to its own
//! tail.

use std::collections::{HashMap, HashSet};

use zerocopy::FromBytes;

use super::ring::Ring;
use crate::error::{Structure, VhdxOpenError};
use crate::format::{
    DataDescriptor, FILE_SIZE_MAX, Guid, LogEntryHeader, PAGE, PAGE_U64, REGION_TABLE_OFFSETS, ZeroDescriptor,
};
use crate::region::Span;
use crate::storage::Storage;

/// Maximum number of bytes of entries checked for each byte of the log. Entries that count do not overlap, so 1 is what
/// an honest log needs, and a little more where old entries are partly overwritten; overlapping forgeries would need
/// thousands.
const CHECKED_PER_BYTE: u64 = 8;

/// A valid entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry {
    pub(crate) position: u64,
    pub(crate) length: u64,
    pub(crate) sequence: u64,
    pub(crate) tail: u64,
    pub(crate) descriptors: usize,
    pub(crate) flushed_file_offset: u64,
    pub(crate) last_file_offset: u64,
}

/// One update of an entry. The data of a sector is read when it is carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Update {
    Data { offset: u64, leading: [u8; 8], trailing: [u8; 4], position: u64 },
    Zero { offset: u64, len: u64 },
}

/// Reads and checks the entries of one log.
pub(crate) struct Scanner<'a, S> {
    storage: &'a S,
    ring: Ring,
    log: Guid,
    known: HashMap<u64, Option<LogEntry>>,
    /// Bytes that may still be checked.
    budget: u64,
}

impl<'a, S: Storage> Scanner<'a, S> {
    pub(crate) fn new(storage: &'a S, ring: Ring, log: Guid) -> Self {
        Self { storage, ring, log, known: HashMap::new(), budget: ring.len() * CHECKED_PER_BYTE }
    }

    /// The active sequence **from its tail on**: entries before the tail are in their places already, and space that
    /// they describe may serve another purpose by now.
    ///
    /// It is empty for a log of zeroes: the writer ended after it had named the log in the headers and before its first
    /// entry, which is durable before what it describes is changed. The standard calls such a file corrupt; QEMU leaves
    /// and opens them.
    pub(crate) fn active(&mut self) -> Result<Vec<LogEntry>, VhdxOpenError> {
        let mut best: Option<Vec<LogEntry>> = None;
        // Entries of runs that were looked at: a run that begins at one of them is the end of one that did, and no
        // better.
        let mut seen = HashSet::new();
        let mut start = 0;
        while start < self.ring.len() {
            let run = if seen.contains(&start) { Vec::new() } else { self.run(start)? };
            seen.extend(run.iter().map(|entry| entry.position));
            let last = run.last().copied();
            let from_tail = last.and_then(|head| run.iter().position(|entry| entry.position == head.tail));
            match (last, from_tail) {
                (Some(head), Some(tail)) => {
                    let newest = best.as_ref().and_then(|best| best.last()).map_or(0, |entry| entry.sequence);
                    if head.sequence > newest {
                        best = Some(run[tail..].to_vec());
                    }
                    // Step 6: on behind the head, or done where the run has wrapped.
                    let end = start + run.iter().map(|entry| entry.length).sum::<u64>();
                    start = end;
                }
                _ => start += PAGE_U64,
            }
        }
        if best.is_none() && self.is_zero()? {
            return Ok(Vec::new());
        }
        best.ok_or_else(|| {
            let problem = "the header says that the log has entries, but none of them are whole";
            VhdxOpenError::corrupt(Structure::Log, self.ring.span.offset, problem)
        })
    }

    /// Returns `true` if no byte of the log was ever written.
    fn is_zero(&self) -> Result<bool, VhdxOpenError> {
        let mut page = [0; PAGE];
        for position in (0..self.ring.len()).step_by(PAGE) {
            self.read(position, &mut page)?;
            if page != [0; PAGE] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The entries that follow one another from `start`, at most once around.
    fn run(&mut self, start: u64) -> Result<Vec<LogEntry>, VhdxOpenError> {
        let mut run: Vec<LogEntry> = Vec::new();
        let (mut position, mut length) = (start, 0);
        while let Some(entry) = self.entry(position)? {
            let follows = run.last().is_none_or(|last| last.sequence.checked_add(1) == Some(entry.sequence));
            length += entry.length;
            if !follows || length > self.ring.len() {
                break;
            }
            self.spend(PAGE_U64)?;
            position = self.ring.advance(position, entry.length);
            run.push(entry);
        }
        Ok(run)
    }

    fn spend(&mut self, bytes: u64) -> Result<(), VhdxOpenError> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            let problem = "its entries overlap as those of no writer do";
            VhdxOpenError::corrupt(Structure::Log, self.ring.span.offset, problem)
        })?;
        Ok(())
    }

    fn read(&self, position: u64, buf: &mut [u8]) -> Result<(), VhdxOpenError> {
        let at = self.ring.span.offset + position;
        self.ring.read(self.storage, position, buf).map_err(VhdxOpenError::storage("reading the log", at))
    }

    fn entry(&mut self, position: u64) -> Result<Option<LogEntry>, VhdxOpenError> {
        if let Some(known) = self.known.get(&position) {
            return Ok(*known);
        }
        let entry = self.check(position)?;
        self.known.insert(position, entry);
        Ok(entry)
    }

    /// The entry at `position` if everything about it is right.
    fn check(&mut self, position: u64) -> Result<Option<LogEntry>, VhdxOpenError> {
        let mut page = [0; PAGE];
        self.read(position, &mut page)?;
        let Ok((header, _)) = LogEntryHeader::read_from_prefix(&page) else { return Ok(None) };
        let (length, tail) = (u64::from(header.entry_length.get()), u64::from(header.tail.get()));
        let descriptors = header.descriptor_count.get() as usize;
        let sectors = LogEntryHeader::descriptor_sectors(descriptors) as u64;
        if header.signature != LogEntryHeader::SIGNATURE
            || header.log != self.log
            || header.sequence.get() == 0
            || length == 0
            || !length.is_multiple_of(PAGE_U64)
            || length > self.ring.len()
            || sectors * PAGE_U64 > length
            || !tail.is_multiple_of(PAGE_U64)
            || tail >= self.ring.len()
        {
            return Ok(None);
        }
        self.spend(length)?;
        let entry = LogEntry {
            position,
            length,
            sequence: header.sequence.get(),
            tail,
            descriptors,
            flushed_file_offset: header.flushed_file_offset.get(),
            last_file_offset: header.last_file_offset.get(),
        };
        // The checksum in pieces: an entry may be as long as the log.
        header_checksum_cleared(&mut page);
        let mut crc = crc32c::crc32c(&page);
        let mut chunk = vec![0; 64 << 10];
        let mut done = PAGE_U64;
        while done < length {
            let now = (length - done).min(chunk.len() as u64);
            self.read(self.ring.advance(position, done), &mut chunk[..now as usize])?;
            crc = crc32c::crc32c_append(crc, &chunk[..now as usize]);
            done += now;
        }
        if crc != header.checksum.get() {
            return Ok(None);
        }
        let mut data = 0;
        let mut sound = true;
        self.updates(&entry, |scanner, update| {
            match update {
                None => sound = false,
                Some(Update::Zero { .. }) => {}
                Some(Update::Data { position, .. }) => {
                    data += 1;
                    sound = sound
                        && (sectors + data) * PAGE_U64 <= length
                        && scanner.data_sector(&entry, position)?.is_some();
                }
            }
            Ok(sound)
        })?;
        Ok((sound && (sectors + data) * PAGE_U64 == length).then_some(entry))
    }

    /// Calls `each` for all updates of an entry, in order, with `None` for one that is malformed, until it returns
    /// `false`.
    pub(crate) fn updates(
        &self,
        entry: &LogEntry,
        mut each: impl FnMut(&Self, Option<Update>) -> Result<bool, VhdxOpenError>,
    ) -> Result<(), VhdxOpenError> {
        let sectors = LogEntryHeader::descriptor_sectors(entry.descriptors) as u64;
        let mut data = self.ring.advance(entry.position, sectors * PAGE_U64);
        let mut page = [0; PAGE];
        for index in 0..entry.descriptors {
            let byte = size_of::<LogEntryHeader>() + index * size_of::<DataDescriptor>();
            let (sector, within) = (byte / PAGE, byte % PAGE);
            if index == 0 || within == 0 {
                self.read(self.ring.advance(entry.position, (sector * PAGE) as u64), &mut page)?;
            }
            let update = self.update(entry, &page[within..within + size_of::<DataDescriptor>()], data);
            if let Some(Update::Data { .. }) = update {
                data = self.ring.advance(data, PAGE_U64);
            }
            if !each(self, update)? {
                break;
            }
        }
        Ok(())
    }

    fn update(&self, entry: &LogEntry, bytes: &[u8], position: u64) -> Option<Update> {
        let data = DataDescriptor::read_from_bytes(bytes).ok()?;
        let zero = ZeroDescriptor::read_from_bytes(bytes).ok()?;
        let (offset, len, update) = match data.signature {
            DataDescriptor::SIGNATURE => {
                let (offset, leading, trailing) = (data.file_offset.get(), data.leading, data.trailing);
                (offset, PAGE_U64, Update::Data { offset, leading, trailing, position })
            }
            ZeroDescriptor::SIGNATURE => {
                let (offset, len) = (zero.file_offset.get(), zero.length.get());
                (offset, len, Update::Zero { offset, len })
            }
            _ => return None,
        };
        let target = Span { offset, len };
        let sound = data.sequence.get() == entry.sequence
            && offset.is_multiple_of(PAGE_U64)
            && len.is_multiple_of(PAGE_U64)
            && offset >= REGION_TABLE_OFFSETS[0]
            && offset.checked_add(len).is_some_and(|end| end <= FILE_SIZE_MAX)
            && !target.overlaps(&self.ring.span);
        sound.then_some(update)
    }

    /// The data sector at `position` of the ring as it was written there, if it belongs to the entry.
    pub(crate) fn data_sector(
        &self,
        entry: &LogEntry,
        position: u64,
    ) -> Result<Option<[u8; PAGE]>, VhdxOpenError> {
        let mut page = [0; PAGE];
        self.read(position, &mut page)?;
        let high = ((entry.sequence >> 32) as u32).to_le_bytes();
        let low = (entry.sequence as u32).to_le_bytes();
        let belongs =
            page[..4] == DataDescriptor::SECTOR_SIGNATURE && page[4..8] == high && page[PAGE - 4..] == low;
        Ok(belongs.then_some(page))
    }
}

fn header_checksum_cleared(page: &mut [u8; PAGE]) {
    page[4..8].fill(0);
}

/// Refuses a file that is shorter than the head of the sequence knew it to be, and sizes that no file has. Only the
/// head counts: earlier entries may know of a size from before the file was shrunk.
pub(crate) fn check_length(entries: &[LogEntry], log: Span, file: u64) -> Result<u64, VhdxOpenError> {
    let Some(head) = entries.last() else { return Ok(file) };
    let at = log.offset + head.position;
    if file < head.flushed_file_offset {
        let problem = format!(
            "the file has {file} bytes, it had {}: it was cut, and data is lost; restore it from a backup, or have lunway disk \
             repair fill what is lost with zeroes",
            head.flushed_file_offset
        );
        return Err(VhdxOpenError::lost(Structure::Log, at, problem));
    }
    if head.last_file_offset > FILE_SIZE_MAX {
        let problem = format!("its newest entry asks for a file of {} bytes", head.last_file_offset);
        return Err(VhdxOpenError::corrupt(Structure::Log, at, problem));
    }
    Ok(head.last_file_offset.max(file))
}
