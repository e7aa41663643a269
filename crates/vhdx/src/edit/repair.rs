//! Repairs of what is provably safe: what two copies or an entry's own state decide. Nothing that holds data is
//! changed.

use std::io;

use super::{Changes, Edit};
use crate::error::{DiskError, EditError, Structure, VhdxOpenError};
use crate::format::{
    BatEntry, BlockState, GuidSource, HEADER_OFFSETS, HEADER_SECTION, Header, PAGE, PAGE_U64,
    REGION_TABLE_OFFSETS,
};
use crate::geometry::{Geometry, Slot};
use crate::log::replay::View;
use crate::log::write::LogWriter;
use crate::measured::Measured;
use crate::metadata::DiskKind;
use crate::open;
use crate::region::Span;
use crate::scan::{AnomalySeverity, scan};
use crate::storage::Storage;
use zerocopy::FromBytes;

/// Bytes of the table read at a time.
const STEP: u64 = 1 << 20;

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// The log had entries, and was replayed.
    pub log_replayed: bool,
    /// Headers that were damaged, and written anew from the other one.
    pub headers: u64,
    /// Copies of the region table that differed from the one that counts.
    pub region_tables: u64,
    /// Entries of the block table.
    pub entries: u64,
    /// Bytes that the file was too short for its blocks or its log.
    pub lengthened: u64,
    /// Of these, what blocks of the disk have lost: they read as zeroes now.
    pub lost: u64,
}

impl Repairs {
    /// Returns `true` if nothing was to be done.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The parts of a file that a repair may change: headers, region tables, log, block table, metadata. A copy of them
/// undoes it.
///
/// # Errors
///
/// As for [`repair`].
pub fn repaired_parts(storage: &impl Storage) -> Result<Vec<Span>, EditError> {
    let opened = open::read(&completed(storage)?)?;
    let sections = Span { offset: 0, len: HEADER_SECTION };
    Ok(vec![sections, opened.headers.ring().span, opened.regions.bat, opened.regions.metadata])
}

/// Repairs a file: replays the log, renews a damaged header and a stale copy of the region table, and corrects entries
/// of the block table whose meaning is certain. A file that was cut gets its length again, so that it can be used: what
/// its blocks have lost reads as zeroes. A file with damage beyond that is refused, and one that has lost a structure.
///
/// # Errors
///
/// The damage that makes the file unreadable, and which no rule of the standard decides.
pub fn repair(storage: &impl Storage, guids: &mut dyn GuidSource) -> Result<Repairs, EditError> {
    let storage = &Measured::opened(storage)?;
    let end = needed(&completed(storage)?)?;
    let mut repairs = Repairs {
        headers: HEADER_OFFSETS.iter().filter(|offset| !header_is_valid(storage, **offset)).count() as u64,
        lengthened: end.missing,
        lost: end.lost,
        log_replayed: end.log_in_use,
        ..Repairs::default()
    };
    if end.missing > 0 {
        storage.set_len(end.len).map_err(DiskError::storage("extending the file"))?;
    }
    let mut edit = Edit::open(storage, guids)?;
    repairs.region_tables = u64::from(edit.opened.regions.stale_copy.is_some());
    loop {
        let (entries, more) = edit.correct_entries()?;
        repairs.entries += entries;
        let table = edit.opened.regions.table.clone();
        REGION_TABLE_OFFSETS.iter().try_for_each(|offset| edit.put(*offset, &table))?;
        if edit.pages.is_empty() && !more {
            break;
        }
        edit.commit(Changes::File)?;
        edit = Edit::open(storage, guids)?;
    }
    // A commit has written both headers already, and so has a replay.
    if HEADER_OFFSETS.iter().any(|offset| !header_is_valid(storage, *offset)) {
        let file = edit.guids.next();
        let renewed = edit.opened.headers.update(storage, |header| header.file_write = file);
        renewed.map_err(DiskError::storage("writing a header"))?;
    }
    Ok(repairs)
}

/// A file with the length that its log says it has had, read alone; what is missing of it reads as zeroes.
struct Completed<'a, S> {
    storage: &'a S,
    len: u64,
    /// The length that it has.
    stored: u64,
}

fn completed<S: Storage>(storage: &S) -> Result<Completed<'_, S>, EditError> {
    let stored = storage.len().map_err(DiskError::storage("asking for the file's length"))?;
    let len = open::length_before(storage)?.max(stored);
    Ok(Completed { storage, len, stored })
}

impl<S: Storage> Storage for Completed<'_, S> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (there, missing) =
            buf.split_at_mut(self.stored.saturating_sub(offset).min(buf.len() as u64) as usize);
        missing.fill(0);
        self.storage.read_at(offset, there)
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

/// The end that a file should have.
struct End {
    len: u64,
    /// Bytes that it is too short, whatever a replay of the log adds.
    missing: u64,
    /// Of these, bytes of blocks.
    lost: u64,
    log_in_use: bool,
}

/// Refuses a file that has lost more than data: without a table, an item of metadata or the bitmap of a block's
/// sectors, zeroes would be taken for what they said.
fn needed<S: Storage>(file: &Completed<'_, S>) -> Result<End, EditError> {
    let mut opened = open::read(file)?;
    let refuse = |place, offset| {
        let problem = "it is lost, because the file was cut, and zeroes cannot stand for it: restore the file from a backup, or \
                       open it for reading alone and copy what is left";
        VhdxOpenError::lost(place, offset, problem)
    };
    let structures = [
        (Structure::Log, opened.headers.ring().span),
        (Structure::Bat, opened.regions.bat),
        (Structure::Metadata, opened.regions.metadata),
    ];
    // What a replay adds to a file that was not cut is not lost.
    let len = if file.stored < file.len { file.stored } else { opened.file_len };
    if let Some((place, span)) = structures.iter().find(|(_, span)| span.end() > len) {
        return Err(refuse(*place, span.offset).into());
    }
    let (bat, geometry, overlay) = (opened.regions.bat, opened.geometry, opened.overlay.as_ref());
    let counts = scan(
        &View { storage: file, overlay },
        bat,
        &geometry,
        len,
        overlay,
        &mut opened.space,
        |finding| match (finding.severity, finding.place) {
            (AnomalySeverity::Loss, Structure::Bitmap(_)) => Err(refuse(finding.place, finding.offset)),
            (AnomalySeverity::Damage, place) => {
                Err(VhdxOpenError::corrupt(place, finding.offset, finding.problem))
            }
            (AnomalySeverity::Loss | AnomalySeverity::Note, _) => Ok(()),
        },
        |_| Ok(()),
    )?;
    let end = opened.space.end().max(file.len).max(len);
    Ok(End { len: end, missing: end - len, lost: counts.lost, log_in_use: opened.overlay.is_some() })
}

fn header_is_valid(storage: &impl Storage, offset: u64) -> bool {
    let mut page = [0; PAGE];
    storage.read_at(offset, &mut page).is_ok()
        && Header::read_from_bytes(&page).is_ok_and(|header| header.is_valid())
}

impl<S: Storage> Edit<'_, S> {
    /// Puts corrected entries, as many as a log entry holds, and says whether there are more.
    fn correct_entries(&mut self) -> Result<(u64, bool), EditError> {
        let (bat, geometry) = (self.opened.regions.bat, self.opened.geometry);
        let log = self.opened.headers.ring().len();
        // Half of the log, as commits of an open disk; the region tables have room beside that.
        let pages_max = (log / 2 / PAGE_U64) as usize;
        debug_assert!(LogWriter::length(0, pages_max) <= log, "it fits");
        let mut bytes = vec![0; STEP as usize];
        let (mut index, mut corrected) = (0, 0);
        while index < geometry.entries() {
            let now = ((geometry.entries() - index) * 8).min(STEP) as usize;
            self.read(bat.offset + index * 8, &mut bytes[..now])?;
            for entry in bytes[..now].as_chunks::<8>().0 {
                let entry = BatEntry(u64::from_le_bytes(*entry));
                if let Some(right) = correction(&geometry, geometry.slot(index), entry) {
                    if self.pages.len() >= pages_max {
                        return Ok((corrected, true));
                    }
                    self.put(bat.offset + index * 8, &right.0.to_le_bytes())?;
                    corrected += 1;
                }
                index += 1;
            }
        }
        Ok((corrected, false))
    }
}

/// Returns the correct value of an entry that is unusual, but whose meaning is certain.
fn correction(geometry: &Geometry, slot: Slot, entry: BatEntry) -> Option<BatEntry> {
    let right = match (slot, entry.state()?) {
        _ if entry.0 == 0 => entry,
        (Slot::Payload(block), _) if block >= geometry.blocks => BatEntry::default(),
        (Slot::Payload(_), state @ (BlockState::NotPresent | BlockState::Zero)) => BatEntry::new(state, 0),
        (Slot::Payload(_), BlockState::PartiallyPresent) if geometry.kind != DiskKind::Differencing => {
            BatEntry::new(BlockState::FullyPresent, entry.offset())
        }
        (Slot::Bitmap(_), BlockState::FullyPresent) if geometry.kind != DiskKind::Differencing => {
            BatEntry::default()
        }
        _ => entry,
    };
    (right != entry).then_some(right)
}
