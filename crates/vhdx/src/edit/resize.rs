//! A disk of another size.

use super::{Changes, Edit, trim_end};
use crate::error::{DiskError, EditError, Structure, VhdxOpenError};
use crate::format::{BatEntry, BlockState, Guid, GuidSource, MIB, item, region_id};
use crate::geometry::{Geometry, Slot};
use crate::measured::Measured;
use crate::metadata::{DiskKind, Parameters, item_place};
use crate::region::Span;
use crate::storage::Storage;

/// Bytes of a table written at a time.
pub(super) const STEP: u64 = 1 << 20;

/// New size of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    /// Bytes of the virtual disk.
    pub size: u64,
    /// Bytes of the parent of a differencing disk.
    pub parent_size: Option<u64>,
    /// The DataWriteGuid that the file has afterwards, where a child was told it beforehand; otherwise a new one.
    pub data_write: Option<Guid>,
}

/// Makes the virtual disk larger or smaller, at once or not at all. What is added reads as zeroes; what lies behind a
/// smaller size is lost. A larger disk may need a larger table: one that the host has no room for leaves the file as
/// long as it was.
///
/// DataWriteGuid changes: a disk that has children may not be resized, and whether it has any only the caller can know.
///
/// # Errors
///
/// [`EditError::Refused`] where the size is none, or the parent's data behind the old end would come to light.
pub fn resize(storage: &impl Storage, to: &Resize, guids: &mut dyn GuidSource) -> Result<(), EditError> {
    let storage = &Measured::opened(storage)?;
    let Resize { size, parent_size, data_write } = *to;
    let mut edit = Edit::open(storage, guids)?;
    let parameters = edit.opened.parameters.clone();
    let (old, new) = (parameters.disk_size, Parameters { disk_size: size, ..parameters.clone() });
    if let Err(why) = new.check() {
        return Err(EditError::Refused(why));
    }
    if size == old {
        return Ok(());
    }
    let (from, to) = (edit.opened.geometry, Geometry::new(&new));
    if size > old {
        let hidden = match (parameters.kind, parent_size) {
            (DiskKind::Differencing, None) => {
                return Err(EditError::Refused("the size of the parent is not known".into()));
            }
            (DiskKind::Differencing, Some(parent)) => parent > old,
            (DiskKind::Dynamic | DiskKind::Fixed, _) => false,
        };
        edit.grow(&from, &to, hidden)?;
    }
    let place = item_place(storage, edit.opened.regions.metadata, item::VIRTUAL_DISK_SIZE)?;
    let missing =
        || VhdxOpenError::corrupt(Structure::Metadata, edit.opened.regions.metadata.offset, "no size");
    let (at, _) = place.ok_or_else(missing)?;
    edit.put(at, &size.to_le_bytes())?;
    let freed = if size < old { edit.behind(&from, &to)? } else { Vec::new() };
    let bat = edit.opened.regions.bat;
    edit.commit(Changes::Disk(data_write))?;
    if size < old {
        // Entries behind the end lead nowhere now: zero, as others expect, and their space is the host's.
        clear(storage, bat, &from, &to)?;
        for span in freed {
            storage.punch(span.offset, span.len).map_err(DiskError::storage("giving space back"))?;
        }
        storage.flush().map_err(DiskError::storage("flushing"))?;
        trim_end(storage)?;
    }
    Ok(())
}

impl<S: Storage> Edit<'_, S> {
    /// Makes the table, and what it leads to, ready for more blocks. Nothing of it is in use before the commit.
    fn grow(&mut self, from: &Geometry, to: &Geometry, hidden: bool) -> Result<(), EditError> {
        self.zero_tail(from, to, hidden)?;
        let bat = self.opened.regions.bat;
        let fits = to.entries() * 8 <= bat.len;
        let table = if fits { bat } else { self.allocate(to.bat_region_len())? };
        if !fits {
            // The new region can have been anything before.
            let mut buf = vec![0; STEP as usize];
            let old = from.entries() * 8;
            let mut done = 0;
            while done < table.len {
                let now = (table.len - done).min(STEP) as usize;
                buf[..now].fill(0);
                let there = old.saturating_sub(done).min(now as u64) as usize;
                self.read(bat.offset + done, &mut buf[..there])?;
                self.write(table.offset + done, &buf[..now])?;
                done += now as u64;
            }
        }
        if to.kind == DiskKind::Fixed {
            // At once, not block by block; what the host does not reserve could not be written later.
            let start = self.opened.space.end().max(self.opened.file_len).next_multiple_of(MIB);
            let len = (to.blocks - from.blocks) * to.block_size;
            self.expect_free(len)?;
            self.lengthen(start + len)?;
            self.storage.zero(start, len).map_err(DiskError::storage("reserving space"))?;
        }
        let mut index = from.first_behind();
        let mut bytes = Vec::with_capacity(STEP as usize);
        let mut start = index;
        while index < to.entries() {
            let entry = match to.slot(index) {
                Slot::Payload(block) if block < to.blocks => self.new_block(to, hidden)?,
                Slot::Bitmap(chunk) if from.has_bitmap(chunk) => self.entry(bat, index)?,
                Slot::Payload(_) | Slot::Bitmap(_) => BatEntry::default(),
            };
            bytes.extend_from_slice(&entry.0.to_le_bytes());
            index += 1;
            if bytes.len() as u64 >= STEP || index == to.entries() {
                self.write(table.offset + start * 8, &bytes)?;
                bytes.clear();
                start = index;
            }
        }
        if fits { Ok(()) } else { self.move_region(region_id::BAT, table) }
    }

    /// Makes what lies behind the end in the last block read as zeroes.
    fn zero_tail(&mut self, from: &Geometry, to: &Geometry, hidden: bool) -> Result<(), EditError> {
        let (last, used) = (from.blocks - 1, from.block_len(from.blocks - 1));
        let now = to.block_len(last);
        if now == used {
            return Ok(());
        }
        let entry = self.entry(self.opened.regions.bat, from.payload_index(last))?;
        match entry.state() {
            Some(BlockState::FullyPresent | BlockState::PartiallyPresent) => {
                if hidden && entry.state() == Some(BlockState::PartiallyPresent) {
                    return Err(hidden_data(from));
                }
                let end = (entry.offset() + now).min(self.opened.file_len);
                let start = (entry.offset() + used).min(end);
                Ok(self.storage.zero(start, end - start).map_err(DiskError::storage("writing zeroes"))?)
            }
            Some(BlockState::NotPresent) if hidden => Err(hidden_data(from)),
            _ => Ok(()),
        }
    }

    /// The entry of a block that is added.
    fn new_block(&mut self, to: &Geometry, hidden: bool) -> Result<BatEntry, EditError> {
        match to.kind {
            DiskKind::Fixed => {
                let (span, zero) = match self.opened.space.allocate_block() {
                    Some(found) => found,
                    None => (self.allocate(to.block_size)?, true),
                };
                if !zero {
                    self.taken.holes.push(span);
                    let zeroed = self.storage.zero(span.offset, span.len);
                    zeroed.map_err(DiskError::storage("writing zeroes"))?;
                }
                Ok(BatEntry::new(BlockState::FullyPresent, span.offset))
            }
            DiskKind::Differencing if hidden => Ok(BatEntry::new(BlockState::Zero, 0)),
            DiskKind::Dynamic | DiskKind::Differencing => Ok(BatEntry::default()),
        }
    }

    /// The space of the blocks that are behind the end of a smaller disk.
    fn behind(&self, from: &Geometry, to: &Geometry) -> Result<Vec<Span>, EditError> {
        let mut spans = Vec::new();
        let mut bytes = vec![0; STEP as usize];
        let (mut index, end) = (to.first_behind(), from.entries());
        while index < end {
            let now = ((end - index) * 8).min(STEP) as usize;
            self.read(self.opened.regions.bat.offset + index * 8, &mut bytes[..now])?;
            for entry in bytes[..now].as_chunks::<8>().0 {
                let entry = BatEntry(u64::from_le_bytes(*entry));
                let in_use = match from.slot(index) {
                    Slot::Payload(block) => block < from.blocks,
                    Slot::Bitmap(chunk) => !to.has_bitmap(chunk),
                };
                if in_use && entry.offset() != 0 {
                    let len = if matches!(from.slot(index), Slot::Bitmap(_)) { MIB } else { from.block_size };
                    spans.push(Span { offset: entry.offset(), len });
                }
                index += 1;
            }
        }
        Ok(spans)
    }

    pub(super) fn entry(&self, bat: Span, index: u64) -> Result<BatEntry, EditError> {
        let mut bytes = [0; 8];
        self.read(bat.offset + index * 8, &mut bytes)?;
        Ok(BatEntry(u64::from_le_bytes(bytes)))
    }

    /// Writes what no structure leads to yet.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), EditError> {
        Ok(self.storage.write_at(offset, bytes).map_err(DiskError::storage("writing the block table"))?)
    }
}

fn hidden_data(from: &Geometry) -> EditError {
    EditError::Refused(format!(
        "the parent is larger than this disk, whose end at {} bytes lies within a block: growing it would show the parent's data; \
         merge it into its parent instead",
        from.disk_size
    ))
}

/// Zeroes the entries behind the end of a smaller disk, but the bitmap block's of its last chunk.
fn clear(storage: &impl Storage, bat: Span, from: &Geometry, to: &Geometry) -> Result<(), EditError> {
    let (start, end) = (to.first_behind(), from.entries());
    let last = to.chunks() - 1;
    let keep = if to.has_bitmap(last) { to.bitmap_index(last) } else { end };
    for (first, behind) in [(start, keep.clamp(start, end)), ((keep + 1).clamp(start, end), end)] {
        let zeroed = storage.zero(bat.offset + first * 8, (behind - first) * 8);
        zeroed.map_err(DiskError::storage("writing the block table"))?;
    }
    Ok(())
}
