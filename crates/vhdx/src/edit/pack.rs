//! Metadata moved to lower places of the file: sector bitmap blocks, the block table, the metadata region.

use super::{Changes, Edit, trim_end};
use crate::error::{DiskError, EditError};
use crate::format::{BatEntry, BlockState, GuidSource, MIB, PAGE_U64, region_id};
use crate::geometry::Slot;
use crate::measured::Measured;
use crate::region::Span;
use crate::storage::Storage;

/// Bytes copied at a time.
const STEP: u64 = 1 << 20;

/// Moves what lies behind the end that the file will have when it is packed into the lowest holes, and cuts the file.
/// Each step is a transaction. Gives the bytes that were moved.
///
/// # Errors
///
/// Those of the storage, and damage. What was moved before stays moved.
pub fn pack_metadata(storage: &impl Storage, guids: &mut dyn GuidSource) -> Result<u64, EditError> {
    let storage = &Measured::opened(storage)?;
    let mut moved = 0;
    loop {
        let mut edit = Edit::open(storage, guids)?;
        let step = match edit.lower_bitmaps()? {
            0 => edit.lower_region()?,
            step => step,
        };
        if step == 0 {
            break;
        }
        edit.commit(Changes::File)?;
        moved += step;
    }
    trim_end(storage)?;
    Ok(moved)
}

impl<S: Storage> Edit<'_, S> {
    /// Moves sector bitmap blocks, as many as a transaction holds.
    fn lower_bitmaps(&mut self) -> Result<u64, EditError> {
        let (bat, geometry) = (self.opened.regions.bat, self.opened.geometry);
        let end = self.opened.space.taken();
        // Half of the log, as commits of an open disk.
        let pages_max = (self.opened.headers.ring().len() / 2 / PAGE_U64) as usize;
        let mut moved = 0;
        for chunk in (0..geometry.chunks()).rev() {
            let at = bat.offset + geometry.bitmap_index(chunk) * 8;
            if !geometry.has_bitmap(chunk) || self.pages.len() >= pages_max {
                continue;
            }
            debug_assert!(matches!(geometry.slot(geometry.bitmap_index(chunk)), Slot::Bitmap(_)));
            let mut entry = [0; 8];
            self.read(at, &mut entry)?;
            let entry = BatEntry(u64::from_le_bytes(entry));
            let from = Span { offset: entry.offset(), len: MIB };
            if entry.state() != Some(BlockState::FullyPresent) || from.offset < end {
                continue;
            }
            let Some(to) = self.lower(from)? else { continue };
            self.put(at, &BatEntry::new(BlockState::FullyPresent, to.offset).0.to_le_bytes())?;
            moved += MIB;
        }
        Ok(moved)
    }

    /// Moves the block table or the metadata region.
    fn lower_region(&mut self) -> Result<u64, EditError> {
        let end = self.opened.space.taken();
        for (id, from) in
            [(region_id::BAT, self.opened.regions.bat), (region_id::METADATA, self.opened.regions.metadata)]
        {
            if from.end() <= end {
                continue;
            }
            if let Some(to) = self.lower(from)? {
                self.move_region(id, to)?;
                return Ok(from.len);
            }
        }
        Ok(0)
    }

    /// A copy of a structure in the lowest hole, if there is one below it.
    fn lower(&mut self, from: Span) -> Result<Option<Span>, EditError> {
        let Some(to) = self.opened.space.allocate(from.len) else { return Ok(None) };
        if to.offset > from.offset {
            self.opened.space.release(to, false);
            return Ok(None);
        }
        self.taken.holes.push(to);
        let mut buf = vec![0; STEP as usize];
        let mut done = 0;
        while done < from.len {
            let piece = &mut buf[..(from.len - done).min(STEP) as usize];
            self.read(from.offset + done, piece)?;
            let written = self.storage.write_at(to.offset + done, piece);
            written.map_err(DiskError::storage("writing metadata"))?;
            done += piece.len() as u64;
        }
        Ok(Some(to))
    }
}
