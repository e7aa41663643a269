//! The end of the file cut off while the disk is used.
//!
//! ```text
//!   1  commit, checkpoint   what has freed the end is durable, and no entry of the log is needed any more
//!   2  free space           nothing is allocated behind the new end; a write that needs more waits for it to grow
//!   3  log entry, flush     an empty one, which says the new length: the only one that a replay would look at
//!   4  file, flush          cut
//! ```
//!
//! A file that is shorter than the newest entry of its log says is taken for damaged (2.3.3): therefore 3 before 4.
//! After a power cut between them the file is longer than it has to be.

use super::Disk;
use super::commit::Order;
use crate::error::DiskError;
use crate::log::write::EntryContent;
use crate::storage::Storage;

impl<S: Storage> Disk<S> {
    /// Cuts off what is free at the end of the file, durably, and says how many bytes that were. Reads and writes go
    /// on; flushes, and writes that need a longer file, wait. A storage of fixed length stays as it is.
    ///
    /// # Errors
    ///
    /// Those of the storage. Nothing is lost.
    pub fn cut(&self) -> Result<u64, DiskError> {
        {
            let state = self.state();
            state.check_alive()?;
            if self.read_only || state.space.end() >= state.file_len {
                return Ok(0);
            }
        }
        // A file that was left too long is cut before anything is written to it, too.
        self.begin_session()?;
        let mut committer = self.committer();
        if committer.log.is_none() {
            return Ok(0);
        }
        self.commit(&mut committer, Order::DataFirst)?;
        self.checkpoint(&mut committer)?;
        let _alone = self.length();
        let (old, end) = {
            let mut state = self.state();
            let (old, end) = (state.file_len, state.space.end());
            if end >= old || !committer.unapplied.is_empty() {
                return Ok(0);
            }
            state.space.shrink(end);
            state.file_len = end;
            (old, end)
        };
        let cut = self.cut_behind(&mut committer, end);
        if !matches!(cut, Ok(true)) {
            // The file is as long as it was, or may be.
            let mut state = self.state();
            state.file_len = old;
            state.space.lengthen(old);
        }
        Ok(if cut? { old - end } else { 0 })
    }

    fn cut_behind(&self, committer: &mut super::Committer, end: u64) -> Result<bool, DiskError> {
        let Some(log) = &mut committer.log else { return Ok(false) };
        let content =
            EntryContent { zeroes: &[], pages: &[], flushed_file_offset: end, last_file_offset: end };
        log.write(&self.storage, &content).map_err(DiskError::storage("writing the log"))?;
        self.barrier_of_log(committer)?;
        if self.storage.set_len(end).is_err() {
            return Ok(false);
        }
        committer.stable_len = end;
        self.barrier_of_log(committer)?;
        Ok(true)
    }
}
