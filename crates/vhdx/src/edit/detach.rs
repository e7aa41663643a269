//! A differencing disk that needs its parent no longer becomes a dynamic one.
//!
//! ```text
//!   1  bitmaps   entries of sector bitmap blocks, which only partially present blocks need    (a transaction a batch)
//!   2  parent    HasParent and the parent locator                                             (one transaction)
//!   3  end       the file is cut behind its last block
//! ```
//!
//! Each transaction leaves a whole file: before the second it is a differencing disk on its parent, after it a dynamic
//! one.

use super::{Changes, Edit, trim_end};
use crate::error::{DiskError, EditError, Structure, VhdxOpenError};
use crate::format::{BatEntry, BlockState, GuidSource, MIB, PAGE_U64, item};
use crate::geometry::Slot;
use crate::measured::Measured;
use crate::metadata::{DiskKind, build, read_items};
use crate::region::Span;
use crate::storage::Storage;

/// Bytes of the table read at a time.
const STEP: u64 = 1 << 20;

/// Makes a dynamic disk of a differencing disk all of whose blocks are in the file. Blocks that are not read as zeroes
/// from then on: that the parent has zeroes there the caller has seen. DataWriteGuid stays, since the disk shows what
/// it has shown: children still know it. One that is dynamic already stays as it is.
///
/// # Errors
///
/// [`EditError::Refused`] where a block is in the file in part, or of a fixed disk.
pub fn detach(storage: &impl Storage, guids: &mut dyn GuidSource) -> Result<(), EditError> {
    let storage = &Measured::opened(storage)?;
    loop {
        let mut edit = Edit::open(storage, guids)?;
        match edit.opened.parameters.kind {
            DiskKind::Differencing => {}
            DiskKind::Dynamic => return trim_end(storage),
            DiskKind::Fixed => return Err(EditError::Refused("a fixed disk has no parent".into())),
        }
        let freed = edit.clear_bitmaps()?;
        if freed.is_empty() {
            edit.remove_parent()?;
            edit.commit(Changes::File)?;
            return trim_end(storage);
        }
        edit.commit(Changes::File)?;
        for span in freed {
            storage.punch(span.offset, span.len).map_err(DiskError::storage("giving space back"))?;
        }
    }
}

impl<S: Storage> Edit<'_, S> {
    /// Gives up sector bitmap blocks, as many as a transaction holds: where they were. Refuses a partially present
    /// block, which needs its own.
    fn clear_bitmaps(&mut self) -> Result<Vec<Span>, EditError> {
        let (bat, geometry) = (self.opened.regions.bat, self.opened.geometry);
        // Half of the log, as commits of an open disk.
        let pages_max = (self.opened.headers.ring().len() / 2 / PAGE_U64) as usize;
        let mut freed = Vec::new();
        let mut bytes = vec![0; STEP as usize];
        let mut index = 0;
        while index < geometry.entries() {
            let now = ((geometry.entries() - index) * 8).min(STEP) as usize;
            self.read(bat.offset + index * 8, &mut bytes[..now])?;
            for entry in bytes[..now].as_chunks::<8>().0 {
                let entry = BatEntry(u64::from_le_bytes(*entry));
                match (geometry.slot(index), entry.state()) {
                    (Slot::Payload(block), Some(BlockState::PartiallyPresent)) if block < geometry.blocks => {
                        return Err(EditError::Refused(format!(
                            "block {block} is in the file only in part: the rest is in the parent"
                        )));
                    }
                    (Slot::Bitmap(_), Some(BlockState::FullyPresent)) if self.pages.len() < pages_max => {
                        self.put(bat.offset + index * 8, &BatEntry::default().0.to_le_bytes())?;
                        freed.push(Span { offset: entry.offset(), len: MIB });
                    }
                    _ => {}
                }
                index += 1;
            }
        }
        Ok(freed)
    }

    /// Takes the parent out of the metadata.
    fn remove_parent(&mut self) -> Result<(), EditError> {
        let region = self.opened.regions.metadata;
        let mut items = read_items(self.storage, region)?;
        let old = build(&items).len();
        items.retain(|item| item.id != item::PARENT_LOCATOR || item.is_users());
        let file = items.iter_mut().find(|item| item.id == item::FILE_PARAMETERS && !item.is_users());
        let missing = || VhdxOpenError::corrupt(Structure::Metadata, region.offset, "no file parameters");
        let file = file.ok_or_else(missing)?;
        // Block size, then the flags, of which a dynamic disk has none (2.6.2.1).
        let flags = file.data.get_mut(4..8).ok_or_else(missing)?;
        flags.copy_from_slice(&0u32.to_le_bytes());
        let mut table = build(&items);
        // What the locator has taken is zero.
        table.resize(old.max(table.len()), 0);
        self.put(region.offset, &table)
    }
}
