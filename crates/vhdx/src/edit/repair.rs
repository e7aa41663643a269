//! Repairs of what is provably safe: what two copies or an entry's own state decide. Nothing that holds data is
//! changed.

use super::{Changes, Edit};
use crate::error::{DiskError, EditError};
use crate::format::{
    BatEntry, BlockState, GuidSource, HEADER_OFFSETS, HEADER_SECTION, Header, PAGE, PAGE_U64,
    REGION_TABLE_OFFSETS,
};
use crate::geometry::{Geometry, Slot};
use crate::log::write::LogWriter;
use crate::metadata::Kind;
use crate::open;
use crate::region::Span;
use crate::storage::Storage;
use zerocopy::FromBytes;

/// How much of the table is read at a time, bytes.
const STEP: u64 = 1 << 20;

/// What a repair did.
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
    /// Bytes that the file was too short for its last block.
    pub lengthened: u64,
}

impl Repairs {
    /// Whether nothing was to be done.
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
    let opened = open::read(storage)?;
    let sections = Span { offset: 0, len: HEADER_SECTION };
    Ok(vec![sections, open::ring_of(&opened.headers).span, opened.regions.bat, opened.regions.metadata])
}

/// Repairs a file: replays the log, renews a damaged header and a stale copy of the region table, lengthens a file that
/// was cut within its last block, and corrects entries of the block table whose meaning is certain. A file with damage
/// beyond that is refused.
///
/// # Errors
///
/// The damage that makes the file unreadable, and which no rule of the standard decides.
pub fn repair(storage: &impl Storage, guids: &mut dyn GuidSource) -> Result<Repairs, EditError> {
    let mut repairs = Repairs {
        log_replayed: open::read(storage)?.overlay.is_some(),
        headers: HEADER_OFFSETS.iter().filter(|offset| !header_is_valid(storage, **offset)).count() as u64,
        ..Repairs::default()
    };
    let mut edit = Edit::open(storage, guids)?;
    repairs.region_tables = u64::from(edit.opened.regions.stale_copy.is_some());
    let (end, len) = (edit.opened.space.end(), edit.opened.file_len);
    if end > len {
        storage.set_len(end).map_err(DiskError::storage("extending the file"))?;
        repairs.lengthened = end - len;
        edit.opened.file_len = end;
    }
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

fn header_is_valid(storage: &impl Storage, offset: u64) -> bool {
    let mut page = [0; PAGE];
    storage.read_at(offset, &mut page).is_ok()
        && Header::read_from_bytes(&page).is_ok_and(|header| header.is_valid())
}

impl<S: Storage> Edit<'_, S> {
    /// Puts corrected entries, as many as a log entry holds, and says whether there are more.
    fn correct_entries(&mut self) -> Result<(u64, bool), EditError> {
        let (bat, geometry) = (self.opened.regions.bat, self.opened.geometry);
        let log = open::ring_of(&self.opened.headers).len();
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

/// What an entry should be, where it is unusual and its meaning is certain.
fn correction(geometry: &Geometry, slot: Slot, entry: BatEntry) -> Option<BatEntry> {
    let right = match (slot, entry.state()?) {
        _ if entry.0 == 0 => entry,
        (Slot::Payload(block), _) if block >= geometry.blocks => BatEntry::default(),
        (Slot::Payload(_), state @ (BlockState::NotPresent | BlockState::Zero)) => BatEntry::new(state, 0),
        (Slot::Payload(_), BlockState::PartiallyPresent) if geometry.kind != Kind::Differencing => {
            BatEntry::new(BlockState::FullyPresent, entry.offset())
        }
        (Slot::Bitmap(_), BlockState::FullyPresent) if geometry.kind != Kind::Differencing => {
            BatEntry::default()
        }
        _ => entry,
    };
    (right != entry).then_some(right)
}
