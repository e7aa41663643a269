//! Commits: the order in which changes become durable.
//!
//! ```text
//!   1  flush          payload of completed writes, and what the commit before put in place: its entries are released
//!   2  log entries    sector bitmaps first, then the table from its end to its beginning
//!   3  flush          the changes are durable: the flush is acknowledged, freed space may be reused
//!   4  in place       the same pages, made durable by step 1 of the next commit
//! ```
//!
//! - Data before table (1 before 2): no entry ever leads to space that still holds what another block wrote.
//! - A commit may be more than one entry, and a crash between them leaves the first ones. Therefore the order in step
//!   2: a partially present block needs its bitmap block, whose entry lies behind its own, and the bits themselves.
//! - Freed space is not used before step 3 (otherwise an older table would lead to another block's data), nor while an
//!   I/O may reach it. Space of metadata is never freed: an entry of the log could still be replayed onto it.
//! - A log entry overwrites none that a crash before step 3 would still need (`log/write.rs`). Where the ring has no
//!   room for that, [`make_room`](Disk::make_room) writes an empty entry first, at the cost of a flush: only commits of
//!   more than a hundred pages meet it.
//! - Many changes share one commit: they cost two flushes together.
//! - A commit [at once](Disk::flush_at_once) leaves step 1 out. Its own flush makes durable what the commit before put
//!   in place, whose entries are released behind it.

use std::io;

use super::{Committer, Disk, Unapplied};
use crate::error::DiskError;
use crate::format::{MIB, PAGE, PAGE_U64};
use crate::log::write::{EntryContent, LogWriter, Page};
use crate::region::Span;
use crate::storage::Storage;

/// Order of what a commit makes durable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Data before the table that leads to it.
    DataFirst,
    /// Both by one flush.
    AtOnce,
}

/// Changes that are committed together.
struct Batch {
    /// Number of the commit.
    number: u64,
    zeroes: Vec<Span>,
    pages: Vec<Page>,
    freed: Vec<Span>,
    file_len: u64,
    last_file_offset: u64,
}

impl<S: Storage> Disk<S> {
    /// Makes everything durable that was completed before the call. Costs one flush of the storage, two where metadata
    /// has changed.
    pub fn flush(&self) -> Result<(), DiskError> {
        self.flush_in(Order::DataFirst)
    }

    /// The same by one flush of the storage, where metadata has changed too: over a network each is a round trip or two
    /// in which nothing can be written to the file.
    ///
    /// A crash before this returns may leave a table that leads to space without the data of writes that no flush has
    /// acknowledged: zeroes, or what another block wrote that was discarded since. So it is for a caller who believes
    /// nothing of blocks that were written since the last flush, and writes all of them again.
    pub fn flush_at_once(&self) -> Result<(), DiskError> {
        self.flush_in(Order::AtOnce)
    }

    fn flush_in(&self, order: Order) -> Result<(), DiskError> {
        // Of flushes that wait for the same commit, one does it for all that called before it began.
        let enough = self.state().commits_begun + 1;
        let mut committer = self.committer();
        {
            let state = self.state();
            state.check_alive()?;
            if state.commits_done >= enough {
                return Ok(());
            }
        }
        let number = match committer.log {
            None if committer.is_unflushed => return self.look_behind(self.barrier(&mut committer)),
            // Nothing was changed since the file was opened; what was written before must still be there.
            None => return self.check_length(),
            Some(_) => self.commit(&mut committer, order)?,
        };
        self.look_behind(Ok(()))?;
        self.state().commits_done = number;
        Ok(())
    }

    /// Sees behind a flush that nothing is missing of what it vouches for.
    fn look_behind(&self, flushed: Result<(), DiskError>) -> Result<(), DiskError> {
        flushed?;
        self.storage.check().map_err(|error| {
            self.state().failed = Some(format!("a flush failed: {error}"));
            DiskError::storage("flushing")(error)
        })
    }

    /// Flushes, empties the log and cuts off what is free at the end of the file. All I/O must have ended. After an
    /// error the file is whole: its log is replayed when it is opened next.
    pub fn close(self) -> Result<(), DiskError> {
        let mut committer = self.committer();
        self.state().check_alive()?;
        if committer.log.is_none() {
            return match committer.is_unflushed {
                true => self.look_behind(self.barrier(&mut committer)),
                false => self.check_length(),
            };
        }
        self.commit(&mut committer, Order::DataFirst)?;
        // What the commit has put in place is durable before the log that holds it is given up.
        if committer.log.as_ref().is_some_and(|log| !log.is_released()) {
            self.checkpoint(&mut committer)?;
        }
        // The file may be cut once one header says that the log is empty, and both are made durable by one flush: the
        // other header is the one that counted before, or torn, and does not count. Whether another program has cut
        // the file is looked at by that flush.
        let announced = committer
            .headers
            .update_but_for_a_flush(self.storage.storage(), |header| header.log = crate::format::Guid::ZERO);
        announced.map_err(DiskError::storage("writing a header"))?;
        let (end, file_len) = {
            let mut state = self.state();
            for (span, _) in std::mem::take(&mut state.quarantine) {
                state.space.release(span, false);
            }
            (state.space.end(), state.file_len)
        };
        if end < file_len {
            // A device of fixed length stays as it is.
            let _ = self.storage.set_len(end);
        }
        self.storage.flush().map_err(DiskError::storage("flushing"))
    }

    /// New GUIDs into the headers, unless the file is new, an empty log, and the file as long as its blocks need it.
    pub(super) fn begin_session(&self) -> Result<(), DiskError> {
        let mut committer = self.committer();
        let committer = &mut *committer;
        {
            let state = self.state();
            state.check_alive()?;
            if self.read_only {
                return Err(DiskError::ReadOnly);
            }
            if state.session {
                return Ok(());
            }
        }
        let result = self.announce(committer);
        if let Err(DiskError::Storage { message, .. }) = &result {
            self.state().failed = Some(message.clone());
        }
        result
    }

    fn announce(&self, committer: &mut Committer) -> Result<(), DiskError> {
        let _alone = self.length();
        let (file, log) = (committer.guids.next(), committer.guids.next());
        let is_unflushed = committer.is_unflushed;
        if !self.is_new || self.next_data_write.is_some() {
            let data = self.next_data_write.unwrap_or_else(|| committer.guids.next());
            let first = committer
                .headers
                .update(&self.storage, |header| (header.file_write, header.data_write) = (file, data));
            first.map_err(DiskError::storage("writing a header"))?;
        }

        let (end, mut file_len) = {
            let state = self.state();
            (state.space.end(), state.file_len)
        };
        if end > file_len {
            self.storage.set_len(end).map_err(DiskError::storage("extending the file"))?;
            file_len = end;
        }
        // The first entry is there before the header names its GUID: a header that does so without an entry is a
        // corrupt file (2.3.3). It overwrites nothing that counts, since LogGuid is zero until then in both headers.
        let ring = committer.headers.ring();
        // A trim is to give space back on a full host, too, and is logged like any change. What cannot be reserved is
        // taken when it is written.
        let _ = self.storage.reserve(ring.span.offset, ring.span.len);
        let mut writer = LogWriter::new(ring, log, LogWriter::first_sequence(log));
        let content = EntryContent {
            zeroes: &[],
            pages: &[],
            flushed_file_offset: committer.stable_len / MIB * MIB,
            last_file_offset: end,
        };
        writer.write(&self.storage, &content).map_err(DiskError::storage("writing the log"))?;
        let second = match is_unflushed {
            true => committer.headers.update_unflushed(&self.storage, |header| header.log = log),
            false => {
                self.storage.flush().map_err(DiskError::storage("flushing"))?;
                writer.settle();
                committer.headers.update(&self.storage, |header| header.log = log)
            }
        };
        second.map_err(DiskError::storage("writing a header"))?;
        committer.log = Some(writer);

        let mut state = self.state();
        let old = std::mem::replace(&mut state.file_len, file_len);
        state.space.grow(old, file_len);
        if let Some(copy) = self.regions.stale_copy {
            for (number, bytes) in (0..).zip(self.regions.table.as_chunks::<PAGE>().0) {
                let page = copy + number * PAGE_U64;
                state.pages.insert(page, Box::new(*bytes));
                let _ = state.pages.get_mut(page);
            }
        }
        state.session = true;
        Ok(())
    }

    /// Returns the number of the commit. That nothing is missing of the file is still to be seen.
    pub(super) fn commit(&self, committer: &mut Committer, order: Order) -> Result<u64, DiskError> {
        self.put_in_place(committer)?;
        let batch = self.take_batch();
        let (number, file_len) = (batch.number, batch.file_len);
        let has_changes = !batch.pages.is_empty() || !batch.zeroes.is_empty();
        if order == Order::DataFirst || !has_changes {
            if let Err(error) = self.barrier(committer) {
                self.give_back(batch, 0);
                return Err(error);
            }
            committer.stable_len = file_len;
        }
        if has_changes {
            let before = committer.log.as_ref().map(LogWriter::end);
            self.write_batch(committer, batch)?;
            committer.stable_len = file_len;
            // What those before put in place was there when the flush of this batch began.
            if let (Some(log), Some(before)) = (&mut committer.log, before) {
                log.release_to(before);
            }
        } else {
            self.state().freed.extend(batch.freed);
        }
        self.reclaim();
        Ok(number)
    }

    fn take_batch(&self) -> Batch {
        let mut state = self.state();
        let bat = self.regions.bat;
        let mut pages = state.pages.take_dirty();
        // Stable: within each kind, the highest first.
        pages.sort_by_key(|(offset, _)| *offset >= bat.offset && *offset < bat.end());
        let zeroes = std::mem::take(&mut state.new_bitmaps)
            .into_iter()
            .map(|offset| Span { offset, len: MIB })
            .collect();
        state.commits_begun += 1;
        Batch {
            number: state.commits_begun,
            zeroes,
            pages,
            freed: std::mem::take(&mut state.freed),
            file_len: state.file_len,
            last_file_offset: state.space.end(),
        }
    }

    /// Flushes the storage. Everything that was put in place before is durable then, and its log entries are free.
    fn barrier(&self, committer: &mut Committer) -> Result<(), DiskError> {
        self.barrier_of_log(committer)?;
        if let (true, Some(log)) = (committer.unapplied.is_empty(), &mut committer.log) {
            log.release();
        }
        Ok(())
    }

    fn write_batch(&self, committer: &mut Committer, mut batch: Batch) -> Result<(), DiskError> {
        let mut written = 0;
        let mut zeroes = batch.zeroes.chunks(LogWriter::ZEROES_MAX).peekable();
        let result = loop {
            let Some(log) = &mut committer.log else { break Ok(()) };
            let zeroes_now = zeroes.peek().copied().unwrap_or_default();
            // Entries of nothing but zeroes first, until the last of them.
            let more_zeroes =
                batch.zeroes.len() > LogWriter::ZEROES_MAX && zeroes_now.len() == LogWriter::ZEROES_MAX;
            let pages_now = if more_zeroes { 0 } else { (batch.pages.len() - written).min(log.pages_max()) };
            if zeroes_now.is_empty() && pages_now == 0 {
                break Ok(());
            }
            let length = LogWriter::length(zeroes_now.len(), pages_now);
            if !log.fits(length) {
                if let Err(error) = self.make_room(committer, length, batch.last_file_offset) {
                    break Err(error);
                }
                continue;
            }
            let content = EntryContent {
                zeroes: zeroes_now,
                pages: &batch.pages[written..written + pages_now],
                flushed_file_offset: committer.stable_len / MIB * MIB,
                last_file_offset: batch.last_file_offset,
            };
            if let Err(error) = log.write(&self.storage, &content) {
                break Err(DiskError::storage("writing the log")(error));
            }
            committer.unapplied.extend(zeroes_now.iter().map(|span| Unapplied::Zero(*span)));
            committer
                .unapplied
                .extend(content.pages.iter().map(|(offset, page)| Unapplied::Page(*offset, page.clone())));
            zeroes.next();
            written += pages_now;
        };
        let left_zeroes: Vec<Span> = zeroes.flatten().copied().collect();
        if result.is_err() {
            batch.zeroes = left_zeroes;
            self.give_back(batch, written);
            // Entries that were written stay a part of the log, and are put in place when they are durable.
            return result;
        }
        self.barrier_of_log(committer)?;
        {
            let mut state = self.state();
            let now = state.pins.now();
            state.quarantine.extend(batch.freed.drain(..).map(|span| (span, now)));
        }
        // The changes are durable; that they cannot be put in place yet is the next commit's business.
        let _ = self.put_in_place_durable(committer);
        Ok(())
    }

    /// A flush that makes log entries durable, and releases none.
    pub(super) fn barrier_of_log(&self, committer: &mut Committer) -> Result<(), DiskError> {
        if let Err(error) = self.storage.storage().flush() {
            // The kernel reports a lost write once, and takes the pages for clean afterwards: nothing can be known any
            // more.
            self.state().failed = Some(format!("a flush failed: {error}"));
            return Err(DiskError::storage("flushing")(error));
        }
        committer.is_unflushed = false;
        if let Some(log) = &mut committer.log {
            log.settle();
        }
        Ok(())
    }

    /// Makes room for a log entry of `length` bytes, not more than [`LogWriter::pages_max`] allows.
    fn make_room(
        &self,
        committer: &mut Committer,
        length: u64,
        last_file_offset: u64,
    ) -> Result<(), DiskError> {
        if committer.log.as_ref().is_some_and(|log| !log.is_released()) {
            self.checkpoint(committer)?;
        }
        let flushed_file_offset = committer.stable_len / MIB * MIB;
        if let Some(log) = &mut committer.log
            && !log.fits(length)
        {
            // The entry that is to come must not overwrite those that a crash would need without it. With this one
            // none before it are needed.
            let empty = EntryContent { zeroes: &[], pages: &[], flushed_file_offset, last_file_offset };
            log.write(&self.storage, &empty).map_err(DiskError::storage("writing the log"))?;
            self.barrier_of_log(committer)?;
        }
        Ok(())
    }

    /// Empties the log: what it holds is made durable there, then put in place, then made durable there.
    pub(super) fn checkpoint(&self, committer: &mut Committer) -> Result<(), DiskError> {
        self.put_in_place(committer)?;
        self.barrier(committer)
    }

    /// Puts logged pages in place that are not yet; the log is flushed first, which they may need.
    fn put_in_place(&self, committer: &mut Committer) -> Result<(), DiskError> {
        if committer.unapplied.is_empty() {
            return Ok(());
        }
        self.barrier_of_log(committer)?;
        self.put_in_place_durable(committer)
    }

    fn put_in_place_durable(&self, committer: &mut Committer) -> Result<(), DiskError> {
        let mut done = 0;
        let mut result = Ok(());
        for update in &committer.unapplied {
            let applied: io::Result<()> = match update {
                Unapplied::Zero(span) => self.storage.zero(span.offset, span.len),
                Unapplied::Page(offset, page) => self.storage.write_at(*offset, page.as_ref()),
            };
            if let Err(error) = applied {
                result = Err(DiskError::storage("writing metadata")(error));
                break;
            }
            done += 1;
        }
        let mut state = self.state();
        for update in committer.unapplied.drain(..done) {
            match update {
                Unapplied::Zero(span) => drop(state.fresh_bitmaps.remove(&span.offset)),
                Unapplied::Page(offset, _) => state.pages.unhold(offset),
            }
        }
        result
    }

    /// Gives back what was not logged: it waits for the next commit.
    fn give_back(&self, batch: Batch, written: usize) {
        let mut state = self.state();
        for (offset, _) in &batch.pages[written..] {
            state.pages.give_back(*offset);
        }
        state.new_bitmaps.extend(batch.zeroes.iter().map(|span| span.offset));
        state.freed.extend(batch.freed);
    }

    /// Gives freed space away that no I/O can reach any more, as a hole where the storage makes one.
    fn reclaim(&self) {
        let mut ready: Vec<Span> = {
            let mut state = self.state();
            let state = &mut *state;
            let pins = &mut state.pins;
            state
                .quarantine
                .extract_if(.., |(_, freed)| pins.have_left(*freed))
                .map(|(span, _)| span)
                .collect()
        };
        // Neighbours become one hole: a call for each of the blocks that packing moves takes as long as moving it.
        ready.sort_unstable_by_key(|span| span.offset);
        ready.dedup_by(|next, span| {
            let joined = span.end() == next.offset;
            span.len += u64::from(joined) * next.len;
            joined
        });
        for span in ready {
            // Space that could not be given back is used again as it is.
            let zero = self.storage.punch(span.offset, span.len).unwrap_or(false);
            self.state().space.release(span, zero);
        }
    }
}
