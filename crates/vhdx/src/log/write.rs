//! Writer of log entries.

use std::io;

use zerocopy::IntoBytes;

use super::ring::Ring;
use crate::format::{DataDescriptor, Guid, LogEntryHeader, PAGE, PAGE_U64, ZeroDescriptor, checksum};
use crate::region::Span;
use crate::storage::Storage;

/// A page of metadata to write: where, and what.
pub(crate) type Page = (u64, Box<[u8; PAGE]>);

/// The writing end of the ring.
///
/// ```text
///     kept ─────── tail ─────── head
///      │            │            └ place of the next entry
///      │            └ entries from here on may be needed: their updates are not known to be durable in their places
///      └ tail of the newest entry that is durable
/// ```
///
/// An entry is durable after a flush of the storage that follows [`write`](Self::write), which
/// [`settle`](Self::settle) tells; one that was not written to its end fails its checksum, and the next one takes its
/// place and number.
///
/// Nothing between `kept` and `head` is overwritten. Until a newer entry is durable a crash makes the newest durable
/// one the head of the active sequence, and that is none without all entries from its tail on (2.3.3): a log without a
/// sequence is a disk that does not open. So [`release`](Self::release) alone gives no room, but the entry that is
/// written next does once it is durable, and for one that is empty ([`EntryContent::is_empty`]) there is always room.
///
/// Positions are counted on from the first entry, not around: the place in the ring is the rest.
pub(crate) struct LogWriter {
    ring: Ring,
    log: Guid,
    kept: u64,
    /// Tail of the newest entry.
    newest_tail: u64,
    tail: u64,
    head: u64,
    sequence: u64,
}

/// Content of one entry.
pub(crate) struct EntryContent<'a> {
    pub(crate) zeroes: &'a [Span],
    pub(crate) pages: &'a [Page],
    pub(crate) flushed_file_offset: u64,
    pub(crate) last_file_offset: u64,
}

impl EntryContent<'_> {
    /// Returns `true` if there is nothing to update: such an entry tells lengths of the file, and where its sequence
    /// begins.
    pub(crate) fn is_empty(&self) -> bool {
        self.zeroes.is_empty() && self.pages.is_empty()
    }
}

impl LogWriter {
    /// An empty log that begins at the start of the ring, with `sequence` as its first number.
    pub(crate) fn new(ring: Ring, log: Guid, sequence: u64) -> Self {
        Self { ring, log, kept: 0, newest_tail: 0, tail: 0, head: 0, sequence }
    }

    /// The first sequence number of a log: random, as Windows begins, and far from the largest number.
    pub(crate) fn first_sequence(log: Guid) -> u64 {
        log.as_bytes()[..7].iter().fold(1, |number: u64, byte| (number << 8) | u64::from(*byte))
    }

    /// The longest entry, in pages of data: half a ring, so that one is written while another is still needed, and not
    /// more than one descriptor sector describes.
    pub(crate) fn pages_max(&self) -> usize {
        (self.ring.len() / 2 / PAGE_U64 - 1).min(LogEntryHeader::DESCRIPTORS_FIRST as u64 - 16) as usize
    }

    /// Ranges of zeroes that fit beside [`pages_max`](Self::pages_max) pages into the first descriptor sector.
    pub(crate) const ZEROES_MAX: usize = 16;

    /// Bytes of an entry.
    pub(crate) fn length(zeroes: usize, pages: usize) -> u64 {
        ((LogEntryHeader::descriptor_sectors(zeroes + pages) + pages) * PAGE) as u64
    }

    /// Returns `true` if there is room for an entry and an empty one behind it.
    pub(crate) fn fits(&self, length: u64) -> bool {
        self.head + length + PAGE_U64 - self.kept <= self.ring.len()
    }

    /// Returns `true` if no entry is needed: everything that was written is durable in its place.
    pub(crate) fn is_released(&self) -> bool {
        self.tail == self.head
    }

    /// Everything that was written is durable in its place: no entry is needed any more.
    pub(crate) fn release(&mut self) {
        self.tail = self.head;
    }

    /// The position behind the newest entry.
    pub(crate) fn end(&self) -> u64 {
        self.head
    }

    /// The same of all entries before a position that [`end`](Self::end) was.
    pub(crate) fn release_to(&mut self, end: u64) {
        self.tail = self.tail.max(end);
    }

    /// A flush of the storage has succeeded: all entries are durable.
    pub(crate) fn settle(&mut self) {
        self.kept = self.newest_tail;
    }

    /// Appends an entry, which [`fits`](Self::fits) or is empty.
    ///
    /// # Errors
    ///
    /// Those of the storage; then nothing was appended.
    pub(crate) fn write(&mut self, storage: &impl Storage, content: &EntryContent<'_>) -> io::Result<()> {
        let descriptors = content.zeroes.len() + content.pages.len();
        let length = Self::length(content.zeroes.len(), content.pages.len());
        let reserve = if content.is_empty() { 0 } else { PAGE_U64 };
        if self.head + length + reserve - self.kept > self.ring.len() {
            return Err(io::Error::other("the entry would overwrite others that may be needed"));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        let header = LogEntryHeader {
            signature: LogEntryHeader::SIGNATURE,
            checksum: 0.into(),
            entry_length: (length as u32).into(),
            tail: (self.ring.place(self.tail) as u32).into(),
            sequence: self.sequence.into(),
            descriptor_count: (descriptors as u32).into(),
            reserved: 0.into(),
            log: self.log,
            flushed_file_offset: content.flushed_file_offset.into(),
            last_file_offset: content.last_file_offset.into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        for span in content.zeroes {
            let descriptor = ZeroDescriptor {
                signature: ZeroDescriptor::SIGNATURE,
                reserved: 0.into(),
                length: span.len.into(),
                file_offset: span.offset.into(),
                sequence: self.sequence.into(),
            };
            bytes.extend_from_slice(descriptor.as_bytes());
        }
        for (offset, page) in content.pages {
            let (mut leading, mut trailing) = ([0; 8], [0; 4]);
            leading.copy_from_slice(&page[..8]);
            trailing.copy_from_slice(&page[PAGE - 4..]);
            let descriptor = DataDescriptor {
                signature: DataDescriptor::SIGNATURE,
                trailing,
                leading,
                file_offset: (*offset).into(),
                sequence: self.sequence.into(),
            };
            bytes.extend_from_slice(descriptor.as_bytes());
        }
        bytes.resize(LogEntryHeader::descriptor_sectors(descriptors) * PAGE, 0);
        for (_, page) in content.pages {
            bytes.extend_from_slice(&DataDescriptor::SECTOR_SIGNATURE);
            bytes.extend_from_slice(&((self.sequence >> 32) as u32).to_le_bytes());
            bytes.extend_from_slice(&page[8..PAGE - 4]);
            bytes.extend_from_slice(&(self.sequence as u32).to_le_bytes());
        }
        let crc = checksum(&bytes, 4).to_le_bytes();
        bytes[4..8].copy_from_slice(&crc);
        let next = self.sequence.checked_add(1);
        let next = next.ok_or_else(|| io::Error::other("the log's sequence number is exhausted"))?;
        self.ring.write(storage, self.ring.place(self.head), &bytes)?;
        self.newest_tail = self.tail;
        self.head += length;
        self.sequence = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sequence::Scanner;
    use super::*;
    use crate::crash::MemoryStorage;

    const LOG: Guid = Guid::from_digits(0x11111111_2222_4333_8444_555555555555);

    fn ring() -> Ring {
        Ring { span: Span { offset: 1 << 20, len: 1 << 20 } }
    }

    fn content(pages: &[Page]) -> EntryContent<'_> {
        EntryContent { zeroes: &[], pages, flushed_file_offset: 2 << 20, last_file_offset: 4 << 20 }
    }

    #[test]
    fn the_ring_wraps_and_the_newest_sequence_from_its_tail_on_is_active() {
        let storage = MemoryStorage::of_len(2 << 20);
        let mut log = LogWriter::new(ring(), LOG, (1 << 40) - 3);
        let pages: Vec<Page> =
            (0..100).map(|n| ((3 << 20) + n * PAGE_U64, Box::new([n as u8 ^ 0xA5; PAGE]))).collect();
        for round in 0..60u64 {
            // Two entries are needed at any time.
            if round % 2 == 0 {
                log.release();
            }
            let before = log.sequence;
            log.settle();
            log.write(&storage, &content(&pages[..(round as usize * 7) % 80])).expect("memory");
            let active = Scanner::new(&storage, ring(), LOG).active().expect("a sequence");
            let expected: Vec<u64> = if round % 2 == 0 { vec![before] } else { vec![before - 1, before] };
            assert_eq!(
                active.iter().map(|entry| entry.sequence).collect::<Vec<_>>(),
                expected,
                "round {round}"
            );
        }
    }

    #[test]
    fn a_torn_entry_leaves_the_sequence_before_it() {
        let storage = MemoryStorage::of_len(2 << 20);
        let mut log = LogWriter::new(ring(), LOG, 7);
        log.write(&storage, &content(&[])).expect("memory");
        let pages = [(3 << 20, Box::new([1; PAGE]))];
        log.write(&storage, &content(&pages)).expect("memory");
        storage.write_at((1 << 20) + 2 * PAGE_U64 + 512, &[0xFF; 512]).expect("memory");
        let active = Scanner::new(&storage, ring(), LOG).active().expect("a sequence");
        assert_eq!(active.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [7]);
        storage.write_at(1 << 20, &[0; 512]).expect("memory");
        assert!(
            Scanner::new(&storage, ring(), LOG).active().is_err(),
            "no whole entry is damage, not an empty log"
        );
    }

    #[test]
    fn entries_of_the_newest_durable_sequence_are_not_overwritten() {
        let storage = MemoryStorage::of_len(2 << 20);
        let mut log = LogWriter::new(ring(), LOG, 1);
        let pages: Vec<Page> = (0..124).map(|n| ((3 << 20) + n * PAGE_U64, Box::new([1; PAGE]))).collect();
        for _ in 0..2 {
            log.write(&storage, &content(&pages)).expect("memory");
        }
        log.settle();
        log.release();
        // 250 of 256 pages are of the durable sequence; the last one is for an empty entry.
        assert!(log.fits(5 * PAGE_U64) && !log.fits(6 * PAGE_U64));
        assert!(log.write(&storage, &content(&pages[..5])).is_err());
        log.write(&storage, &content(&pages[..4])).expect("memory");
        assert!(!log.fits(PAGE_U64));
        log.write(&storage, &content(&[])).expect("there is always room for an empty one");
        assert!(log.write(&storage, &content(&[])).is_err());
        assert!(!log.fits(PAGE_U64), "it is not durable");
        log.settle();
        // The entry of 4 pages and the empty one.
        assert!(log.fits(249 * PAGE_U64) && !log.fits(250 * PAGE_U64));
    }
}
