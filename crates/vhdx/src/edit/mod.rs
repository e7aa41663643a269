//! Changes of a closed file's own structures: its size, its blocks, its parent, its metadata. Each is one transaction
//! of the log.

mod detach;
mod divide;
mod identity;
mod pack;
mod parent;
mod repair;
mod resize;

use std::collections::BTreeMap;

pub use detach::detach;
pub use divide::divide_blocks;
pub use identity::{IdentityChange, set_identity};
pub use pack::pack_metadata;
pub use parent::{set_linkage2, set_parent};
pub use repair::{Repairs, repair, repaired_parts};
pub use resize::{Resize, resize};

use crate::error::{DiskError, EditError};
use crate::format::{Guid, GuidSource, MIB, PAGE, PAGE_U64, REGION_TABLE_OFFSETS};
use crate::log::write::{EntryContent, LogWriter, Page};
use crate::open::{self, Opened};
use crate::region::{Regions, Span};
use crate::storage::Storage;

/// A transaction on a file that is not open elsewhere.
///
/// # Order of writes
///
/// ```text
///   1  in place     what no structure leads to yet: new tables, new blocks          (by the change, before commit)
///   2  flush
///   3  headers      new GUIDs, both copies
///   4  log entry    all pages that change, in one entry; flush
///   5  headers      LogGuid names the entry: the change is durable with the first copy
///   6  in place     the same pages; flush
///   7  headers      LogGuid is zero
/// ```
///
/// Before step 5 the file is as it was, and a change that fails there leaves it as long as it was ([`Taken`]); after it
/// a replay completes the change.
pub(crate) struct Edit<'a, S: Storage> {
    storage: &'a S,
    opened: Opened,
    guids: &'a mut dyn GuidSource,
    taken: Taken<'a, S>,
    /// Changed pages, by their offset.
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

/// Space that a change took for what no structure leads to yet. When it is dropped, the host gets it back: the store of
/// a file whose change failed for want of space must not stay full for all others.
struct Taken<'a, S: Storage> {
    storage: &'a S,
    /// Length of the file before the change, once that has lengthened it.
    len: Option<u64>,
    /// Holes of the file that the change writes to.
    holes: Vec<Span>,
}

impl<S: Storage> Taken<'_, S> {
    /// The change may be durable from now on.
    fn keep(&mut self) {
        self.len = None;
        self.holes.clear();
    }
}

impl<S: Storage> Drop for Taken<'_, S> {
    fn drop(&mut self) {
        // Where this fails, the file is whole all the same, and compacting it gives the space back.
        for hole in &self.holes {
            let _ = self.storage.punch(hole.offset, hole.len);
        }
        if let Some(len) = self.len {
            let _ = self.storage.set_len(len);
        }
    }
}

/// Effect of a change on the virtual disk: which GUIDs of the header are new (2.2.2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Data, size or identity: children know their parent no longer, unless they were told its next DataWriteGuid.
    Disk(Option<Guid>),
    /// Nothing that a reader of the disk sees.
    File,
}

impl<'a, S: Storage> Edit<'a, S> {
    /// Replays the log, and refuses a file with any damage.
    fn open(storage: &'a S, guids: &'a mut dyn GuidSource) -> Result<Self, EditError> {
        open::replay_onto(storage, guids)?;
        let taken = Taken { storage, len: None, holes: Vec::new() };
        Ok(Self { storage, opened: open::read_sound(storage)?, guids, taken, pages: BTreeMap::new() })
    }

    /// Takes free space for `len` bytes, a multiple of 1 MiB, and lengthens the file where there is no hole. What is
    /// there is undefined.
    fn allocate(&mut self, len: u64) -> Result<Span, EditError> {
        let space = &mut self.opened.space;
        if let Some(span) = space.allocate(len) {
            self.taken.holes.push(span);
            return Ok(span);
        }
        let offset = space.end().max(self.opened.file_len).next_multiple_of(MIB);
        let span = Span { offset, len };
        self.expect_free(len)?;
        self.lengthen(span.end())?;
        self.opened.space.take(span);
        Ok(span)
    }

    /// Refuses what is known to fail: others would find the store full meanwhile.
    fn expect_free(&self, len: u64) -> Result<(), EditError> {
        match self.storage.free().map_err(DiskError::storage("asking for free space"))? {
            Some(free) if free < len => Err(DiskError::Short { needed: len, free }.into()),
            _ => Ok(()),
        }
    }

    /// Lengthens the file until the commit, and for good with it.
    fn lengthen(&mut self, len: u64) -> Result<(), EditError> {
        self.storage.set_len(len).map_err(DiskError::storage("extending the file"))?;
        self.taken.len.get_or_insert(self.opened.file_len);
        self.opened.space.grow(self.opened.file_len, len);
        self.opened.file_len = len;
        Ok(())
    }

    /// Reads metadata as it will be after the commit.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), EditError> {
        self.storage.read_at(offset, buf).map_err(DiskError::storage("reading metadata"))?;
        let end = offset + buf.len() as u64;
        for (&page, bytes) in self.pages.range(offset / PAGE_U64 * PAGE_U64..end) {
            let (from, to) = (page.max(offset), (page + PAGE_U64).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - page) as usize..(to - page) as usize]);
        }
        Ok(())
    }

    /// Changes bytes of metadata with the commit. Pages that stay what they are cost nothing.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), EditError> {
        let end = offset + bytes.len() as u64;
        let mut page = offset / PAGE_U64 * PAGE_U64;
        while page < end {
            let mut old = Box::new([0; PAGE]);
            self.read(page, old.as_mut())?;
            let mut new = old.clone();
            let (from, to) = (page.max(offset), (page + PAGE_U64).min(end));
            new[(from - page) as usize..(to - page) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            if new != old {
                self.pages.insert(page, new);
            }
            page += PAGE_U64;
        }
        Ok(())
    }

    /// Lets the region `id` be at `span` from the commit on.
    fn move_region(&mut self, id: Guid, span: Span) -> Result<(), EditError> {
        let table = Regions::moved(&self.opened.regions.table, id, span);
        self.opened.regions.table.clone_from(&table);
        REGION_TABLE_OFFSETS.iter().try_for_each(|offset| self.put(*offset, &table))
    }

    /// Makes everything that was put durable at once, or nothing of it.
    fn commit(self, changes: Changes) -> Result<(), EditError> {
        let Self { storage, mut opened, guids, mut taken, pages } = self;
        let failed = |what| DiskError::storage(what);
        let pages: Vec<Page> = pages.into_iter().collect();
        storage.flush().map_err(failed("flushing"))?;
        if pages.is_empty() {
            return Ok(());
        }
        let ring = opened.headers.ring();
        let length = LogWriter::length(0, pages.len());
        // As every entry, with room for an empty one behind it.
        if length + PAGE_U64 > ring.len() {
            return Err(EditError::Refused(format!(
                "the change needs a log of more than {length} bytes, this file's has {}: convert the file",
                ring.len()
            )));
        }
        let (file, data, log) = (guids.next(), guids.next(), guids.next());
        let announced = opened.headers.update(storage, |header| {
            header.file_write = file;
            if let Changes::Disk(announced) = changes {
                header.data_write = announced.unwrap_or(data);
            }
        });
        announced.map_err(failed("writing a header"))?;

        let content = EntryContent {
            zeroes: &[],
            pages: &pages,
            flushed_file_offset: opened.file_len / MIB * MIB,
            last_file_offset: opened.space.end(),
        };
        let mut writer = LogWriter::new(ring, log, LogWriter::first_sequence(log));
        writer.write(storage, &content).map_err(failed("writing the log"))?;
        storage.flush().map_err(failed("flushing the log"))?;
        taken.keep();
        let named = opened.headers.update(storage, |header| header.log = log);
        named.map_err(failed("writing a header"))?;

        for (offset, page) in &pages {
            storage.write_at(*offset, page.as_ref()).map_err(failed("writing metadata"))?;
        }
        storage.flush().map_err(failed("flushing"))?;
        let emptied = opened.headers.update(storage, |header| header.log = Guid::ZERO);
        Ok(emptied.map_err(failed("writing a header"))?)
    }
}

/// Cuts off what is free at the end of a closed file. A storage of fixed length stays as it is.
fn trim_end(storage: &impl Storage) -> Result<(), EditError> {
    let opened = open::read_sound(storage)?;
    if opened.space.end() < opened.file_len && storage.set_len(opened.space.end()).is_ok() {
        storage.flush().map_err(DiskError::storage("flushing"))?;
    }
    Ok(())
}
