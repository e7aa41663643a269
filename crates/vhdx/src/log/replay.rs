//! Replay of the log after a crash, on the file or in memory.

use std::collections::BTreeMap;
use std::io;

use super::ring::Ring;
use super::sequence::{LogEntry, Scanner, Update, check_length};
use crate::error::{Structure, VhdxOpenError};
use crate::format::{Guid, PAGE, PAGE_U64};
use crate::region::Span;
use crate::storage::Storage;

/// Maximum number of 4 KiB pages that a replay in memory keeps: 256 MiB, far more than a log of any known writer holds
/// (1 MiB).
const OVERLAY_PAGES_MAX: usize = 1 << 16;

/// Result of a replay in memory: an overlay of the file, over which everything is read afterwards.
#[derive(Default)]
pub(crate) struct Overlay {
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
    /// Ranges of zeroes under the pages, begin and end, apart from each other.
    zeroes: BTreeMap<u64, u64>,
    /// The length that the file has. What is missing of it later is lost, and does not read as zeroes.
    pub(crate) stored: u64,
    /// The length that the file would have.
    len: u64,
}

impl Overlay {
    /// Returns `true` if the replay changed something in `span`.
    pub(crate) fn touches(&self, span: Span) -> bool {
        let first = span.offset / PAGE_U64 * PAGE_U64;
        let zeroed = self.zeroes.range(..span.end()).next_back().is_some_and(|(_, end)| *end > span.offset);
        zeroed || self.pages.range(first..span.end()).next().is_some()
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        let hidden: Vec<u64> = self.pages.range(start..end).map(|(at, _)| *at).collect();
        hidden.iter().for_each(|at| drop(self.pages.remove(at)));
        while let Some((&begin, &until)) =
            self.zeroes.range(..=end).next_back().filter(|(_, until)| **until >= start)
        {
            self.zeroes.remove(&begin);
            (start, end) = (start.min(begin), end.max(until));
        }
        self.zeroes.insert(start, end);
    }

    fn page(&self, offset: u64) -> Option<Option<&[u8; PAGE]>> {
        let zero = || self.zeroes.range(..=offset).next_back().is_some_and(|(_, end)| offset < *end);
        match self.pages.get(&offset) {
            Some(page) => Some(Some(page)),
            None => zero().then_some(None),
        }
    }
}

/// A file as it is after the replay in memory, if there was one.
pub(crate) struct View<'a, S> {
    pub(crate) storage: &'a S,
    pub(crate) overlay: Option<&'a Overlay>,
}

impl<S: Storage> Storage for View<'_, S> {
    fn len(&self) -> io::Result<u64> {
        match self.overlay {
            Some(overlay) => Ok(overlay.stored.max(overlay.len)),
            None => self.storage.len(),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let Some(overlay) = self.overlay else { return self.storage.read_at(offset, buf) };
        let end = offset + buf.len() as u64;
        if end > self.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let stored = overlay.stored.saturating_sub(offset).min(buf.len() as u64) as usize;
        self.storage.read_at(offset, &mut buf[..stored])?;
        buf[stored..].fill(0);
        if !overlay.touches(Span { offset, len: buf.len() as u64 }) {
            return Ok(());
        }
        let mut at = offset;
        while at < end {
            let page = at / PAGE_U64 * PAGE_U64;
            let until = (page + PAGE_U64).min(end);
            let target = &mut buf[(at - offset) as usize..(until - offset) as usize];
            let within = (at - page) as usize;
            match overlay.page(page) {
                Some(Some(bytes)) => target.copy_from_slice(&bytes[within..within + target.len()]),
                Some(None) => target.fill(0),
                None => {}
            }
            at = until;
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Finds the active sequence without carrying it out.
pub(crate) fn find(storage: &impl Storage, ring: Ring, log: Guid) -> Result<Vec<LogEntry>, VhdxOpenError> {
    let (entries, file) = find_in_cut(storage, ring, log)?;
    check_length(&entries, ring.span, file)?;
    Ok(entries)
}

/// The same in a file that may be shorter than its log says: the sequence, and the length of the file.
fn find_in_cut(storage: &impl Storage, ring: Ring, log: Guid) -> Result<(Vec<LogEntry>, u64), VhdxOpenError> {
    let file = storage.len().map_err(VhdxOpenError::storage("asking for the file's length", 0))?;
    if ring.span.end() > file {
        let problem = format!("it ends at byte {}, the file at {file}", ring.span.end());
        return Err(VhdxOpenError::lost(Structure::Log, ring.span.offset, problem));
    }
    Ok((Scanner::new(storage, ring, log).active()?, file))
}

/// The length that a file has had for certain when the newest entry of its log was written.
pub(crate) fn length_before(storage: &impl Storage, ring: Ring, log: Guid) -> Result<u64, VhdxOpenError> {
    let (entries, _) = find_in_cut(storage, ring, log)?;
    Ok(entries.last().map_or(0, |head| head.flushed_file_offset))
}

/// Replays into memory; the file is only read.
pub(crate) fn in_memory(storage: &impl Storage, ring: Ring, log: Guid) -> Result<Overlay, VhdxOpenError> {
    let (entries, file) = find_in_cut(storage, ring, log)?;
    let len = check_length(&entries, ring.span, file)?;
    let mut overlay = Overlay { stored: file, len, ..Overlay::default() };
    let too_much = || {
        let problem = "more to replay than is kept in memory: open the file for writing once";
        VhdxOpenError::unsupported(Structure::Log, ring.span.offset, problem)
    };
    each_update(storage, ring, log, &entries, |offset, change| {
        match change {
            Change::Data(page) => {
                overlay.len = overlay.len.max(offset + PAGE_U64);
                overlay.pages.insert(offset, Box::new(*page));
            }
            Change::Zero(len) => {
                overlay.len = overlay.len.max(offset + len);
                overlay.zero(offset, len);
            }
        }
        if overlay.pages.len() > OVERLAY_PAGES_MAX || overlay.zeroes.len() > ZERO_RANGES_MAX {
            return Err(too_much());
        }
        Ok(())
    })?;
    Ok(overlay)
}

/// Maximum number of ranges of zeroes that a replay in memory keeps, a few MiB: they are meant for sector bitmap
/// blocks, of which there are 16,384 at most.
const ZERO_RANGES_MAX: usize = 1 << 16;

/// Replays onto the file and flushes it. The log stays as it is: the caller clears the header's LogGuid afterwards.
pub(crate) fn onto_file(storage: &impl Storage, ring: Ring, log: Guid) -> Result<(), VhdxOpenError> {
    let entries = find(storage, ring, log)?;
    let mut len = storage.len().map_err(VhdxOpenError::storage("asking for the file's length", 0))?;
    let last = check_length(&entries, ring.span, len)?;
    // Behind this, whatever the length, everything is zero already: a descriptor of terabytes of zeroes costs nothing
    // there.
    let mut stored = len;
    each_update(storage, ring, log, &entries, |offset, change| {
        let size = match change {
            Change::Data(_) => PAGE_U64,
            Change::Zero(size) => size,
        };
        if offset + size > len {
            storage
                .set_len(offset + size)
                .map_err(VhdxOpenError::storage("extending the file for the log", offset))?;
            len = offset + size;
        }
        match change {
            Change::Data(page) => {
                stored = stored.max(offset + PAGE_U64);
                storage.write_at(offset, page)
            }
            Change::Zero(size) => match (offset + size).min(stored).saturating_sub(offset) {
                0 => Ok(()),
                size => match storage.punch(offset, size) {
                    Ok(false) => storage.zero(offset, size),
                    other => other.map(drop),
                },
            },
        }
        .map_err(VhdxOpenError::storage("replaying the log", offset))
    })?;
    if last > len {
        storage.set_len(last).map_err(VhdxOpenError::storage("extending the file for the log", last))?;
    }
    storage.flush().map_err(VhdxOpenError::storage("flushing the replayed log", 0))
}

#[derive(Clone, Copy)]
enum Change<'a> {
    Data(&'a [u8; PAGE]),
    Zero(u64),
}

fn each_update<S: Storage>(
    storage: &S,
    ring: Ring,
    log: Guid,
    entries: &[LogEntry],
    mut apply: impl FnMut(u64, Change<'_>) -> Result<(), VhdxOpenError>,
) -> Result<(), VhdxOpenError> {
    let scanner = Scanner::new(storage, ring, log);
    for entry in entries {
        scanner.updates(entry, |scanner, update| {
            match update {
                Some(Update::Data { offset, leading, trailing, position }) => {
                    let sector = scanner.data_sector(entry, position)?;
                    let mut page = sector.ok_or_else(|| changed(ring))?;
                    page[..8].copy_from_slice(&leading);
                    page[PAGE - 4..].copy_from_slice(&trailing);
                    apply(offset, Change::Data(&page))?;
                }
                Some(Update::Zero { len: 0, .. }) => {}
                Some(Update::Zero { offset, len }) => apply(offset, Change::Zero(len))?,
                None => return Err(changed(ring)),
            }
            Ok(true)
        })?;
    }
    Ok(())
}

fn changed(ring: Ring) -> VhdxOpenError {
    VhdxOpenError::corrupt(Structure::Log, ring.span.offset, "an entry has changed while it was replayed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::MemoryStorage;

    #[test]
    fn the_overlay_shows_the_newest_of_pages_and_zeroes() {
        let storage = MemoryStorage::of_bytes(&[9; 64 << 10]);
        let mut overlay = Overlay { stored: 64 << 10, len: 80 << 10, ..Overlay::default() };
        overlay.pages.insert(0x2000, Box::new([1; PAGE]));
        overlay.zero(0x1000, 0x2000);
        overlay.zero(0x5000, 0x1000);
        overlay.zero(0x3000, 0x1000);
        overlay.pages.insert(0x3000, Box::new([2; PAGE]));
        assert_eq!(overlay.zeroes.iter().collect::<Vec<_>>(), [(&0x1000, &0x4000), (&0x5000, &0x6000)]);
        let view = View { storage: &storage, overlay: Some(&overlay) };
        let mut bytes = vec![0xEE; 80 << 10];
        view.read_at(0, &mut bytes).expect("memory");
        let firsts: Vec<u8> = bytes.chunks(PAGE).map(|page| page[0]).collect();
        assert_eq!(firsts[..8], [9, 0, 0, 2, 9, 0, 9, 9]);
        assert_eq!(firsts[16..], [0; 4], "behind the end of the file");
        storage.resize(60 << 10);
        let read = view.read_at(56 << 10, &mut bytes[..8 << 10]);
        assert_eq!(read.expect_err("lost").kind(), io::ErrorKind::UnexpectedEof, "cut since the replay");
        let touches = |offset, len| overlay.touches(Span { offset, len });
        assert!(touches(0x3FFF, 1) && touches(0x4FFF, 2) && touches(0x3800, 8) && !touches(0x4000, 0x1000));
    }

    #[test]
    fn zeroes_behind_the_end_of_the_file_are_not_written() {
        use crate::log::write::{EntryContent, LogWriter};

        const LOG: Guid = Guid::from_digits(3);
        let storage = MemoryStorage::of_len(5 << 20);
        let ring = Ring { span: Span { offset: 1 << 20, len: 1 << 20 } };
        storage.write_at((4 << 20) + PAGE_U64, &[7; PAGE]).expect("memory");
        let content = EntryContent {
            zeroes: &[Span { offset: 4 << 20, len: 1 << 32 }],
            pages: &[],
            flushed_file_offset: 5 << 20,
            last_file_offset: 5 << 20,
        };
        LogWriter::new(ring, LOG, 1).write(&storage, &content).expect("memory");
        let before = storage.allocated();
        onto_file(&storage, ring, LOG).expect("a replay");
        assert!(storage.allocated() <= before + (1 << 20), "{} bytes", storage.allocated());
        let mut page = [1; PAGE];
        storage.read_at((4 << 20) + PAGE_U64, &mut page).expect("memory");
        assert_eq!(page, [0; PAGE]);
    }
}
