//! An open disk.

mod commit;
mod completion;
mod cut;
mod emptied;
mod read;
mod relocate;
mod write;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub use completion::Completed;
pub(crate) use emptied::Emptied;
pub use read::{ReadPlan, ReadSegment, SegmentSource};
pub use relocate::{Placed, Relocation};
pub use write::{Fill, WritePlan, WriteSegment};

use crate::error::{DiskError, VhdxOpenError};
use crate::format::{BatEntry, Guid, GuidSource, MIB, PAGE};
use crate::geometry::{Geometry, entry_place};
use crate::header::Headers;
use crate::log::replay::{Overlay, View};
use crate::log::write::LogWriter;
use crate::measured::Measured;
use crate::metadata::{Item, Parameters, read_items};
use crate::pages::{Miss, Pages};
use crate::pins::Pins;
use crate::region::{Regions, Span};
use crate::scan::Counts;
use crate::space::Space;
use crate::storage::Storage;

/// One VHDX file, open: the manual of the crate.
///
/// # Order of calls
///
/// Reading: [`resolve_read`](Self::resolve_read) says where the bytes of a range are, the caller reads them, and
/// [`end_read`](Self::end_read) ends it. Writing: [`begin_write`](Self::begin_write) says where bytes and zeroes go,
/// the caller writes them, and [`complete`](Self::complete) makes what was allocated visible, or [`abort`](Self::abort)
/// takes it back. [`begin_discard`](Self::begin_discard) is the same for unmapping and zeroes. [`flush`](Self::flush)
/// makes everything completed durable. [`close`](Self::close) leaves an empty log; a disk that is dropped instead is
/// replayed when it is opened next.
///
/// Resolving never does I/O: where it needs some, it answers [`Stop::Needs`], and is called again after
/// [`provide`](Self::provide), which blocks. So a caller on a core knows beforehand what takes time.
///
/// # Promises
///
/// - What was completed before [`flush`](Self::flush) was called is there after any crash that follows its success.
/// - After a crash, each sector that was written since the last flush has its old or its new contents. No sector ever
///   shows what another block held.
/// - A failed operation for want of space changes nothing, and works again when there is space. After a failed flush of
///   the storage the disk refuses everything but reads: what the storage has is not known, and the log decides at the
///   next open.
/// - What another program cuts off the file is lost, and does not become zeroes: reads of it fail as
///   [`DiskError::Lost`], writes there as well, and so does the next flush ([`Measured`]).
///
/// # Concurrency
///
/// All methods take `&self`. One lock guards the state, for as long as a lookup takes; no I/O is done with it held. One
/// more is held during a commit, and another one, which may be taken with that held, while the file changes its length:
/// a write that needs a longer file does not wait for a commit. Operations on different blocks do not wait for each
/// other; of two writes that would allocate the same block, the second waits until the first is complete.
pub struct Disk<S> {
    pub(crate) storage: Measured<S>,
    pub(crate) parameters: Parameters,
    pub(crate) geometry: Geometry,
    regions: Regions,
    overlay: Option<Overlay>,
    /// Range that a replay in memory has added to the end of the file: it reads as zeroes, and is not there.
    added: Range<u64>,
    read_only: bool,
    data_write_at_open: Guid,
    next_data_write: Option<Guid>,
    is_new: bool,
    counts: Counts,
    state: Mutex<DiskState>,
    /// Told when a claim ends.
    claim_ended: Condvar,
    /// Told when an operation waits for a claim.
    claim_awaited: Condvar,
    committer: Mutex<Committer>,
    /// Held while the file's length is changed.
    length: Mutex<()>,
}

/// Prerequisite of an operation. [`Disk::provide`] gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A page of metadata at this offset of the file.
    Page(u64),
    /// New GUIDs in the headers and an open log, before the first change.
    Session,
    /// A commit: too many changes wait for one.
    Commit,
    /// A longer file than this, bytes.
    Space(u64),
    /// The end of a write that allocates this block.
    Block(u64),
}

/// Reason why an operation was not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// To be called again after [`Disk::provide`].
    Needs(Need),
    /// Failed.
    Failed(DiskError),
}

impl From<Miss> for Stop {
    fn from(miss: Miss) -> Self {
        Self::Needs(Need::Page(miss.0))
    }
}

impl From<DiskError> for Stop {
    fn from(error: DiskError) -> Self {
        Self::Failed(error)
    }
}

pub(crate) struct DiskState {
    pages: Pages,
    space: Space,
    /// Blocks that a write under way allocates.
    claims: HashSet<u64>,
    /// Of these, what operations wait for, and how many.
    awaited: HashMap<u64, u32>,
    pins: Pins,
    /// The headers are announced and the log is open.
    session: bool,
    failed: Option<String>,
    file_len: u64,
    /// Sector bitmap blocks that are all zero, and whose place in the file is not yet.
    fresh_bitmaps: BTreeSet<u64>,
    /// The same, changed since the last commit.
    new_bitmaps: Vec<u64>,
    /// Space that uncommitted changes have freed.
    freed: Vec<Span>,
    /// Space that committed changes have freed, and the generation of I/O that may still reach it.
    quarantine: Vec<(Span, u64)>,
    /// Commits by number: the last one that has begun, and the last one that has succeeded.
    commits_begun: u64,
    commits_done: u64,
}

struct Committer {
    headers: Headers,
    guids: Box<dyn GuidSource>,
    log: Option<LogWriter>,
    /// Pages that are in the log and not in their places, because the storage refused them. Newer entries follow older
    /// ones.
    unapplied: Vec<Unapplied>,
    /// The length of the file that a flush has made durable.
    stable_len: u64,
    /// Nothing of the file is durable, and nothing leads to it.
    is_unflushed: bool,
}

enum Unapplied {
    Zero(Span),
    Page(u64, Box<[u8; PAGE]>),
}

/// Result of [`open`](crate::open).
pub(crate) struct Parts<S> {
    pub(crate) storage: Measured<S>,
    pub(crate) parameters: Parameters,
    pub(crate) geometry: Geometry,
    pub(crate) regions: Regions,
    pub(crate) overlay: Option<Overlay>,
    pub(crate) read_only: bool,
    pub(crate) next_data_write: Option<Guid>,
    pub(crate) is_new: bool,
    pub(crate) headers: Headers,
    pub(crate) guids: Box<dyn GuidSource>,
    pub(crate) space: Space,
    pub(crate) counts: Counts,
    pub(crate) file_len: u64,
    pub(crate) cached_pages: usize,
}

impl<S: Storage> Disk<S> {
    pub(crate) fn from_parts(parts: Parts<S>) -> Self {
        let stored = parts.overlay.as_ref().map_or(parts.file_len, |overlay| overlay.stored);
        Self {
            storage: parts.storage,
            added: stored..parts.file_len,
            parameters: parts.parameters,
            geometry: parts.geometry,
            regions: parts.regions,
            overlay: parts.overlay,
            read_only: parts.read_only,
            data_write_at_open: parts.headers.current.data_write,
            next_data_write: parts.next_data_write,
            is_new: parts.is_new,
            counts: parts.counts,
            state: Mutex::new(DiskState {
                pages: Pages::new(parts.cached_pages),
                space: parts.space,
                claims: HashSet::new(),
                awaited: HashMap::new(),
                pins: Pins::default(),
                session: false,
                failed: None,
                file_len: parts.file_len,
                fresh_bitmaps: BTreeSet::new(),
                new_bitmaps: Vec::new(),
                freed: Vec::new(),
                quarantine: Vec::new(),
                commits_begun: 0,
                commits_done: 0,
            }),
            claim_ended: Condvar::new(),
            claim_awaited: Condvar::new(),
            committer: Mutex::new(Committer {
                headers: parts.headers,
                guids: parts.guids,
                log: None,
                unapplied: Vec::new(),
                stable_len: parts.file_len,
                is_unflushed: parts.is_new,
            }),
            length: Mutex::new(()),
        }
    }

    /// The known metadata items.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns `true` if changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Numbers of blocks in each state as they were when the disk was opened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of blocks that the file did not have when it was opened, since it was cut: reads of them fail.
    pub fn lost(&self) -> u64 {
        self.counts.lost
    }

    /// Bytes of the file that nothing uses.
    pub fn free(&self) -> u64 {
        self.state().space.free() * MIB
    }

    /// Returns `true` if the log has entries, which are replayed in memory: of a disk that is open for reading alone.
    pub fn log_in_use(&self) -> bool {
        self.overlay.is_some()
    }

    /// The DataWriteGuid that the file had when it was opened: what a child's locator must name.
    pub fn data_write_guid(&self) -> Guid {
        self.data_write_at_open
    }

    /// The DataWriteGuid that the file has now: a new one since it was first written after it was opened.
    pub fn data_write_guid_now(&self) -> Guid {
        self.committer().headers.current.data_write
    }

    /// Storage that the file lies on.
    pub fn storage(&self) -> &S {
        self.storage.storage()
    }

    /// Refuses if another program has cut the file of a disk that may have been written.
    fn check_length(&self) -> Result<(), DiskError> {
        if self.read_only {
            return Ok(());
        }
        self.storage.check().map_err(DiskError::storage("looking at the file's length"))
    }

    /// All metadata items with their bytes, those of users too.
    pub fn items(&self) -> Result<Vec<Item>, VhdxOpenError> {
        read_items(&self.view(), self.regions.metadata)
    }

    /// Asks until nothing is needed any more. Blocks.
    pub(crate) fn resolved<T>(&self, mut ask: impl FnMut() -> Result<T, Stop>) -> Result<T, DiskError> {
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(Stop::Needs(need)) => self.provide(need)?,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    /// Does what `need` names. Blocks.
    pub fn provide(&self, need: Need) -> Result<(), DiskError> {
        match need {
            Need::Page(offset) => self.load(offset),
            Need::Session => self.begin_session(),
            Need::Commit => self.flush(),
            Need::Space(len) => self.extend(len),
            Need::Block(block) => {
                let mut state = self.state();
                if !state.claims.contains(&block) {
                    return Ok(());
                }
                *state.awaited.entry(block).or_default() += 1;
                self.claim_awaited.notify_all();
                while state.claims.contains(&block) {
                    state = self.claim_ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if let Some(waiting) = state.awaited.get_mut(&block) {
                    *waiting -= 1;
                    if *waiting == 0 {
                        state.awaited.remove(&block);
                    }
                }
                Ok(())
            }
        }
    }

    fn view(&self) -> View<'_, Measured<S>> {
        View { storage: &self.storage, overlay: self.overlay.as_ref() }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committer(&self) -> MutexGuard<'_, Committer> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self) -> MutexGuard<'_, ()> {
        self.length.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, offset: u64) -> Result<(), DiskError> {
        loop {
            let evictions = {
                let mut state = self.state();
                if state.is_fresh(offset) {
                    state.pages.insert(offset, Box::new([0; PAGE]));
                    return Ok(());
                }
                state.pages.evictions
            };
            let mut page = Box::new([0; PAGE]);
            self.view().read_at(offset, page.as_mut()).map_err(DiskError::storage("reading metadata"))?;
            let mut state = self.state();
            // Meanwhile it may have been read, changed, written and evicted elsewhere: what was read here would be
            // older.
            if state.pages.evictions == evictions && !state.is_fresh(offset) {
                state.pages.insert(offset, page);
                return Ok(());
            }
        }
    }

    /// Makes a file longer that has `len` bytes, by a step: room for a block at least, and where blocks are smaller as
    /// much as it has grown since it was opened, from 32 to 256 MiB, so that small blocks do not change the length each
    /// time. On a share each change is two round trips in which nothing is written to the file.
    fn extend(&self, len: u64) -> Result<(), DiskError> {
        let alone = self.length();
        if self.state().file_len != len {
            // Another write, which found the same end, has done it.
            return Ok(());
        }
        self.lengthen(&alone)
    }

    /// Does so before a write needs it, where the file has fewer free bytes at its end: writes beside this one wait for
    /// nothing. Not where another one does it already, or nothing was written yet.
    ///
    /// # Errors
    ///
    /// Those of the storage: there may be room for the write itself.
    pub fn lengthen_ahead(&self, bytes: u64) -> Result<(), DiskError> {
        let bytes = bytes.min(self.geometry.disk_size.next_multiple_of(self.geometry.block_size));
        let has_enough = |state: &DiskState| !state.session || state.space.behind() * MIB >= bytes;
        if has_enough(&self.state()) {
            return Ok(());
        }
        let Ok(alone) = self.length.try_lock() else { return Ok(()) };
        if has_enough(&self.state()) {
            return Ok(());
        }
        self.lengthen(&alone)
    }

    fn lengthen(&self, _alone: &MutexGuard<'_, ()>) -> Result<(), DiskError> {
        const STEP_MIN: u64 = 32 << 20;
        // What a fast share takes between two checkpoints of a backup: it lengthens the file no more often than that.
        const STEP_MAX: u64 = 256 << 20;
        let old = self.state().file_len;
        let grown = old.saturating_sub(self.added.end);
        let all = self.geometry.disk_size.next_multiple_of(self.geometry.block_size);
        let step = self.geometry.block_size.max(grown.clamp(STEP_MIN, STEP_MAX).min(all));
        let longer = |step: u64| {
            // One more, where the last mebibyte is cut or a bitmap block takes it.
            let new = old.next_multiple_of(MIB) + step + MIB;
            let set = self.storage.set_len(new).map(|()| new);
            set.map_err(DiskError::storage("extending the file"))
        };
        let new = match longer(step) {
            // A host that gives a file all of its space at once may have room for one block.
            Err(DiskError::NoSpace) => longer(self.geometry.block_size)?,
            new => new?,
        };
        let mut state = self.state();
        state.file_len = new;
        state.space.grow(old, new);
        Ok(())
    }

    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let (sector, size) = (self.geometry.sector, self.geometry.disk_size);
        if (offset | len) & (sector - 1) != 0 {
            return Err(DiskError::Misaligned { offset, len, sector: sector as u32 });
        }
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DiskError::OutOfRange { offset, len, size }),
        }
    }

    fn payload_place(&self, block: u64) -> (u64, usize) {
        entry_place(self.regions.bat.offset, self.geometry.payload_index(block))
    }

    fn bitmap_place(&self, chunk: u64) -> (u64, usize) {
        entry_place(self.regions.bat.offset, self.geometry.bitmap_index(chunk))
    }
}

impl<S: Storage> Disk<S> {
    /// Returns the reason why the disk refuses everything but reads: a flush of the storage has failed. `None`: it does
    /// not.
    pub fn why_failed(&self) -> Option<String> {
        self.state().failed.clone()
    }
}

impl DiskState {
    fn is_fresh(&self, page: u64) -> bool {
        self.fresh_bitmaps.range(..=page).next_back().is_some_and(|block| page < block + MIB)
    }

    fn check_alive(&self) -> Result<(), DiskError> {
        match &self.failed {
            None => Ok(()),
            Some(why) => Err(DiskError::Failed(why.clone())),
        }
    }

    /// Checks the prerequisites of a change of metadata: a session, and room among the pages in memory.
    fn may_change(&self) -> Result<(), Stop> {
        if !self.session {
            return Err(Stop::Needs(Need::Session));
        }
        if self.pages.is_full() {
            return Err(Stop::Needs(Need::Commit));
        }
        Ok(())
    }

    fn entry(&mut self, place: (u64, usize)) -> Result<BatEntry, Miss> {
        self.pages.entry(place)
    }
}
