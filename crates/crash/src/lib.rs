//! The crash kit: storage in memory that records what is done to it, and makes of that every state that a power cut
//! could leave.
//!
//! For tests alone, of every crate that keeps something. What is tested writes through a [`Recorder`]; afterwards
//! [`Recorder::each_crash`] visits every prefix of the writes and flushes, with what was durable by then and what was
//! not: the test decides unit by unit (512 or 4096 bytes) what of the rest has reached the medium. Units that are left
//! out cover writes that are lost, torn, and carried out in another order: a cache below may write sectors in any
//! order, but never an older content of a sector over a newer one.
//!
//! | kit | what is tested lies on |
//! |---|---|
//! | [`Recorder`], here | bytes: a file, or a disk (`lunway_block::conformance::Disk` is one as a `BlockDevice`) |
//! | [`Folder`] | files with names, replaced whole |
//! | [`Directory`] | files with names, written anywhere, renamed, removed |

mod directory;
mod folder;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use directory::{Directory, DirectoryFile};
pub use folder::Folder;

const PAGE: u64 = 4096;

/// A sparse file in memory. Clones share what neither changes.
#[derive(Default)]
pub struct MemoryStorage {
    file: Mutex<Sparse>,
}

#[derive(Clone, Default)]
struct Sparse {
    pages: HashMap<u64, Arc<[u8; PAGE as usize]>>,
    len: u64,
    /// Number of pages for which there is space.
    pages_max: Option<usize>,
}

impl Clone for MemoryStorage {
    fn clone(&self) -> Self {
        Self { file: Mutex::new(self.file().clone()) }
    }
}

impl Sparse {
    fn for_pages(
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let mut at = offset;
        while at < offset + len {
            let within = at % PAGE;
            let now = (PAGE - within).min(offset + len - at);
            let done = (at - offset) as usize;
            each(at / PAGE, within as usize..(within + now) as usize, done..done + now as usize);
            at += now;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(max) = self.pages_max {
            let mut new = 0;
            Self::for_pages(offset, data.len() as u64, |page, _, _| {
                new += usize::from(!self.pages.contains_key(&page));
            });
            if new > 0 && self.pages.len() + new > max {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Self::for_pages(offset, data.len() as u64, |page, within, part| {
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within].copy_from_slice(&data[part]);
        });
        self.len = self.len.max(offset + data.len() as u64);
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let len = len.min(self.len.saturating_sub(offset));
        Self::for_pages(offset, len, |number, within, _| {
            if within.len() == PAGE as usize {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                Arc::make_mut(page)[within].fill(0);
            }
        });
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.len = len;
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset + buf.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::for_pages(offset, buf.len() as u64, |page, within, part| match self.pages.get(&page) {
            Some(page) => buf[part].copy_from_slice(&page[within]),
            None => buf[part].fill(0),
        });
        Ok(())
    }
}

impl MemoryStorage {
    /// `len` zeroes.
    pub fn of_len(len: u64) -> Self {
        Self { file: Mutex::new(Sparse { len, ..Sparse::default() }) }
    }

    /// A copy of `bytes`.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let storage = Self::default();
        let _ = storage.file().write(0, bytes);
        storage
    }

    /// All bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let file = self.file();
        let mut bytes = vec![0; file.len as usize];
        let _ = file.read(0, &mut bytes);
        bytes
    }

    /// Bytes that are allocated.
    pub fn allocated(&self) -> u64 {
        self.file().pages.len() as u64 * PAGE
    }

    /// Limits what may be allocated; beyond that writes fail as on a full host.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.file().pages_max = bytes.map(|bytes| (bytes / PAGE) as usize);
    }

    /// Length, bytes.
    pub fn size(&self) -> u64 {
        self.file().len
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) beyond the end.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file().read(offset, buf)
    }

    /// Writes all of `data` at `offset`, beyond the end too.
    ///
    /// # Errors
    ///
    /// [`StorageFull`](io::ErrorKind::StorageFull) where [`set_space`](Self::set_space) leaves no room.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file().write(offset, data)
    }

    /// Makes a range within the length read as zeroes, and frees what it can.
    pub fn clear(&self, offset: u64, len: u64) {
        self.file().zero(offset, len);
    }

    /// Changes the length; what is added reads as zeroes.
    pub fn resize(&self, len: u64) {
        self.file().set_len(len);
    }

    /// The allocated ranges within a range, in order and joined, as offset and length.
    pub fn allocated_in(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let file = self.file();
        let mut list: Vec<(u64, u64)> = Vec::new();
        let end = (offset + len).min(file.len);
        let mut at = offset;
        while at < end {
            let next = ((at / PAGE + 1) * PAGE).min(end);
            if file.pages.contains_key(&(at / PAGE)) {
                match list.last_mut() {
                    Some((start, len)) if *start + *len == at => *len += next - at,
                    _ => list.push((at, next - at)),
                }
            }
            at = next;
        }
        list
    }

    fn file(&self) -> MutexGuard<'_, Sparse> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something that was done to a storage.
#[derive(Clone, Debug)]
pub enum Op {
    /// Bytes at an offset.
    Write(u64, Arc<[u8]>),
    /// The same, durable by itself (SCSI's FUA), whatever else is.
    Stable(u64, Arc<[u8]>),
    /// Zeroes: offset and length.
    Zero(u64, u64),
    /// A new length.
    SetLen(u64),
    /// Everything before is durable.
    Flush,
}

impl Op {
    fn is_durable(&self) -> bool {
        matches!(self, Self::Stable(..))
    }

    fn apply(&self, file: &mut Sparse) {
        match self {
            Self::Write(offset, data) | Self::Stable(offset, data) => drop(file.write(*offset, data)),
            Self::Zero(offset, len) => file.zero(*offset, *len),
            Self::SetLen(len) => file.set_len(*len),
            Self::Flush => {}
        }
    }
}

/// A storage in memory that remembers, in order, all that is done to it.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Recording>);

#[derive(Default)]
struct Recording {
    start: MemoryStorage,
    now: MemoryStorage,
    ops: Mutex<Vec<Op>>,
    /// `true` if freed space cannot be punched, as on a device of fixed blocks.
    no_holes: bool,
}

impl Recorder {
    /// Begins with `start`, which is durable.
    pub fn new(start: MemoryStorage) -> Self {
        Self(Arc::new(Recording { now: start.clone(), start, ..Recording::default() }))
    }

    /// The same on a storage that makes no holes, so that space is reused with what it holds.
    pub fn without_holes(start: MemoryStorage) -> Self {
        Self(Arc::new(Recording { now: start.clone(), start, no_holes: true, ..Recording::default() }))
    }

    /// Number of operations.
    pub fn count(&self) -> usize {
        self.ops().len()
    }

    /// Content that a reader sees now.
    pub fn now(&self) -> &MemoryStorage {
        &self.0.now
    }

    /// Visits every prefix of the operations, from none to all.
    pub fn each_crash(&self, mut visit: impl FnMut(&Crash<'_>)) {
        let ops = self.ops().clone();
        let durable = self.0.start.clone();
        let mut flushed = 0;
        for done in 0..=ops.len() {
            if done > 0 && matches!(ops[done - 1], Op::Flush) {
                ops[flushed..done].iter().for_each(|op| op.apply(&mut durable.file()));
                flushed = done;
            }
            visit(&Crash { done, durable: &durable, pending: &ops[flushed..done] });
        }
    }

    /// Writes all of `data` at `offset`, beyond the end too.
    ///
    /// # Errors
    ///
    /// As [`MemoryStorage::write`].
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.record(|now| now.write(offset, data), || Op::Write(offset, data.into()))
    }

    /// The same, durable when it returns.
    ///
    /// # Errors
    ///
    /// As [`MemoryStorage::write`].
    pub fn write_stable(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.record(|now| now.write(offset, data), || Op::Stable(offset, data.into()))
    }

    /// Makes everything before durable.
    pub fn sync(&self) {
        self.ops().push(Op::Flush);
    }

    /// Changes the length.
    pub fn resize(&self, len: u64) {
        let mut ops = self.ops();
        self.0.now.resize(len);
        ops.push(Op::SetLen(len));
    }

    /// Makes a range within the length read as zeroes.
    pub fn clear(&self, offset: u64, len: u64) {
        let mut ops = self.ops();
        self.0.now.clear(offset, len);
        ops.push(Op::Zero(offset, len));
    }

    /// Returns `true` if freed space can be punched: on a device of fixed blocks it cannot.
    pub fn makes_holes(&self) -> bool {
        !self.0.no_holes
    }

    /// With the recording locked, so that of operations at the same time the order that was recorded is the order that
    /// happened.
    fn record(
        &self,
        change: impl FnOnce(&MemoryStorage) -> io::Result<()>,
        op: impl FnOnce() -> Op,
    ) -> io::Result<()> {
        let mut ops = self.ops();
        change(&self.0.now)?;
        ops.push(op());
        Ok(())
    }

    fn ops(&self) -> MutexGuard<'_, Vec<Op>> {
        self.0.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A moment at which the power may fail.
pub struct Crash<'a> {
    /// Number of operations carried out.
    pub done: usize,
    durable: &'a MemoryStorage,
    pending: &'a [Op],
}

impl Crash<'_> {
    /// Number of units of `unit` bytes that are not durable; a change of length is one unit.
    pub fn units(&self, unit: u64) -> usize {
        self.pending.iter().filter(|op| !op.is_durable()).map(|op| pieces(op, unit).count()).sum()
    }

    /// The operations since the last flush.
    pub fn pending(&self) -> &[Op] {
        self.pending
    }

    /// Returns the content of the medium if, of the units that are not durable, those were written for which `kept`
    /// returns `true`.
    pub fn image(&self, unit: u64, mut kept: impl FnMut(usize) -> bool) -> MemoryStorage {
        let image = self.durable.clone();
        let mut number = 0;
        for op in self.pending {
            if op.is_durable() {
                op.apply(&mut image.file());
                continue;
            }
            for piece in pieces(op, unit) {
                if kept(number) {
                    piece.apply(&mut image.file());
                }
                number += 1;
            }
        }
        image
    }
}

/// Cuts an operation at multiples of `unit`.
fn pieces(op: &Op, unit: u64) -> impl Iterator<Item = Op> + '_ {
    let (offset, len) = match op {
        Op::Write(offset, data) | Op::Stable(offset, data) => (*offset, data.len() as u64),
        Op::Zero(offset, len) => (*offset, *len),
        Op::SetLen(_) => (0, 1),
        Op::Flush => (0, 0),
    };
    // A large hole is one thing to a file system, not thousands.
    let unit = if matches!(op, Op::Zero(..)) { unit.max(len / 16 / unit * unit) } else { unit };
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < offset + len).then(|| {
            let end = (at / unit * unit + unit).min(offset + len);
            let piece = match op {
                Op::Write(_, data) => {
                    Op::Write(at, data[(at - offset) as usize..(end - offset) as usize].into())
                }
                Op::Zero(..) => Op::Zero(at, end - at),
                other => other.clone(),
            };
            at = end;
            piece
        })
    })
}
