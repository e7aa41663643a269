//! A disk in smaller blocks: a new table leads to parts of the same blocks, which stay where they are.

use super::resize::STEP;
use super::{Changes, Edit, trim_end};
use crate::bitmap;
use crate::error::{DiskError, EditError, Structure, VhdxOpenError};
use crate::format::{BatEntry, BlockState, GuidSource, MIB, PAGE, item, region_id};
use crate::geometry::{Geometry, Slot};
use crate::measured::Measured;
use crate::metadata::{DiskKind, Parameters, item_place};
use crate::region::Span;
use crate::storage::Storage;

/// Divides the blocks of a dynamic or differencing disk into blocks of `block_size` bytes, at once or not at all. No
/// data moves: needed is space for the new table, 8 bytes for each block. The contents stay, and so does DataWriteGuid.
///
/// # Errors
///
/// [`EditError::Refused`] where blocks cannot become so small, or would have to become larger.
pub fn divide_blocks(
    storage: &impl Storage,
    block_size: u32,
    guids: &mut dyn GuidSource,
) -> Result<(), EditError> {
    let storage = &Measured::opened(storage)?;
    let mut edit = Edit::open(storage, guids)?;
    let parameters = edit.opened.parameters.clone();
    let new = Parameters { block_size, ..parameters.clone() };
    new.check().map_err(EditError::Refused)?;
    if parameters.kind == DiskKind::Fixed {
        return Err(EditError::Refused("a fixed disk has all its blocks: others would save nothing".into()));
    }
    if block_size > parameters.block_size {
        return Err(EditError::Refused(format!(
            "blocks of {} MiB do not become larger in place: convert the file",
            u64::from(parameters.block_size) / MIB
        )));
    }
    if block_size == parameters.block_size {
        return Ok(());
    }
    let (from, to) = (edit.opened.geometry, Geometry::new(&new));
    edit.complete_last_block()?;
    let old = edit.opened.regions.bat;
    let table = edit.allocate(to.bat_region_len())?;
    edit.write_divided(&from, &to, table)?;
    edit.move_region(region_id::BAT, table)?;
    let region = edit.opened.regions.metadata;
    let missing = || VhdxOpenError::corrupt(Structure::Metadata, region.offset, "no file parameters");
    let (at, _) = item_place(storage, region, item::FILE_PARAMETERS)?.ok_or_else(missing)?;
    // The block size is the item's first field (2.6.2.1).
    edit.put(at, &block_size.to_le_bytes())?;
    edit.commit(Changes::File)?;
    storage.punch(old.offset, old.len).map_err(DiskError::storage("giving space back"))?;
    trim_end(storage)
}

impl<S: Storage> Edit<'_, S> {
    /// Lengthens a file that ends within its last block, as others leave them: all of its parts must lie in the file.
    fn complete_last_block(&mut self) -> Result<(), EditError> {
        match self.opened.space.end() {
            end if end > self.opened.file_len => self.lengthen(end),
            _ => Ok(()),
        }
    }

    /// Writes the new table to where nothing leads yet.
    fn write_divided(&mut self, from: &Geometry, to: &Geometry, table: Span) -> Result<(), EditError> {
        let bat = self.opened.regions.bat;
        let ratio = from.block_size / to.block_size;
        let mut bytes = Vec::with_capacity(STEP as usize);
        let (mut start, end) = (0, table.len / size_of::<BatEntry>() as u64);
        let mut known = None;
        for index in 0..end {
            let entry = match to.slot(index) {
                _ if index >= to.entries() => BatEntry::default(),
                Slot::Bitmap(chunk) if from.has_bitmap(chunk) => self.entry(bat, from.bitmap_index(chunk))?,
                Slot::Payload(block) if block < to.blocks => {
                    let old = block / ratio;
                    let whole = match known {
                        Some((of, entry)) if of == old => entry,
                        _ => self.entry(bat, from.payload_index(old))?,
                    };
                    known = Some((old, whole));
                    self.part(from, to, block, whole)?
                }
                Slot::Payload(_) | Slot::Bitmap(_) => BatEntry::default(),
            };
            bytes.extend_from_slice(&entry.0.to_le_bytes());
            if bytes.len() as u64 >= STEP || index + 1 == end {
                self.write(table.offset + start * 8, &bytes)?;
                bytes.clear();
                start = index + 1;
            }
        }
        Ok(())
    }

    /// The entry of a part of a block that had this entry.
    fn part(
        &self,
        from: &Geometry,
        to: &Geometry,
        block: u64,
        whole: BatEntry,
    ) -> Result<BatEntry, EditError> {
        let within = block * to.block_size % from.block_size;
        let placed = |state| BatEntry::new(state, whole.offset() + within);
        Ok(match whole.state() {
            // Not allowed there, and read as fully present.
            Some(BlockState::PartiallyPresent) if from.kind != DiskKind::Differencing => {
                placed(BlockState::FullyPresent)
            }
            Some(BlockState::PartiallyPresent) if self.has_sectors(from, to, block)? => {
                placed(BlockState::PartiallyPresent)
            }
            // All of it is the parent's.
            Some(BlockState::PartiallyPresent) => BatEntry::default(),
            Some(state @ (BlockState::FullyPresent | BlockState::Undefined | BlockState::Unmapped))
                if whole.offset() != 0 =>
            {
                placed(state)
            }
            Some(state) => BatEntry::new(state, 0),
            None => BatEntry::default(),
        })
    }

    /// Returns `true` if any sector of a small block is marked in the bitmap of its chunk, which covers the same
    /// sectors whatever the size of blocks is.
    fn has_sectors(&self, from: &Geometry, to: &Geometry, block: u64) -> Result<bool, EditError> {
        let chunk = to.chunk_of(block);
        let entry = self.entry(self.opened.regions.bat, from.bitmap_index(chunk))?;
        let first = to.first_bit(block);
        let mut page = Box::new([0; PAGE]);
        for (offset, bits) in bitmap::pages(entry.offset(), first..first + to.bits_per_block()) {
            self.read(offset, page.as_mut())?;
            let len = bits.end - bits.start;
            if bitmap::run(&page, bits) != (false, len) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
