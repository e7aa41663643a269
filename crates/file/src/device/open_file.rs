//! An open file: what the operations on it share, and the outcome of each.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Instant;

use lunway_block::{BlockError, Buf, Durability, Geometry, Identity, Io, OwnerGroup, SharedBuf, Zeroing};
use rustix::fs::fdatasync;
use rustix::io::Errno;

use crate::flush::FlushState;
use crate::handle::{Closed, Handle, Placement};
use crate::names::NameWatch;
use crate::pieces::{PIECE_TIME, Pieces};
use crate::size::{Loss, Size};
use crate::space;
use crate::store::Store;
use crate::transfer::{INLINE_BYTES_MAX, meaning};
use crate::workers::Workers;
use crate::write_back::WriteBack;

/// An open file, with what its operations share wherever they are carried out.
pub(super) struct OpenFile {
    /// Shared with operations on the ring.
    pub(super) file: Arc<Handle>,
    pub(super) id: u64,
    pub(super) identity: Identity,
    pub(super) path: PathBuf,
    pub(super) size: Size,
    /// All but the size.
    pub(super) shape: Geometry,
    pub(super) store: Store,
    pub(super) names: NameWatch,
    pub(super) direct: bool,
    pub(super) alignment: usize,
    /// Goes to the calling thread's ring where it cannot be done inline.
    pub(super) ring: bool,
    /// `true` while the file system accepts `RWF_NOWAIT`: local ones until they refuse it.
    pub(super) reads_now: AtomicBool,
    /// Operations under way above which none is tried inline.
    pub(super) inline_max: usize,
    pub(super) flush: FlushState,
    /// Write-back state, for I/O through the page cache.
    pub(super) write_back: Option<Arc<WriteBack>>,
    pub(super) workers: Workers,
    pub(super) closed: Mutex<Option<Closed>>,
}

/// Way in which a read is carried out.
pub(super) enum Way {
    /// At once, by an ordinary system call.
    Inline,
    /// At once as far as possible, the rest elsewhere.
    TryInline,
    /// On the ring or a thread.
    Elsewhere,
}

impl OpenFile {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn in_memory(&self) -> bool {
        self.file.placement() == Placement::Memory
    }

    pub(super) fn way_of_read(&self, len: usize) -> Way {
        match () {
            () if len > INLINE_BYTES_MAX => Way::Elsewhere,
            () if self.in_memory() => Way::Inline,
            // Past the page cache every transfer waits for the disk.
            () if self.direct || !self.reads_now.load(Ordering::Relaxed) => Way::Elsewhere,
            () if self.workers.reads.pending() >= self.inline_max => Way::Elsewhere,
            () => Way::TryInline,
        }
    }

    /// `O_DIRECT` needs aligned memory, and data may come as a slice from the middle of something.
    pub(super) fn aligned(&self, data: SharedBuf) -> SharedBuf {
        if data.as_ptr().addr().is_multiple_of(self.alignment) { data } else { Buf::copy_of(&data).freeze() }
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry { size: self.size.get(), ..self.shape }
    }

    /// The error for a range, if the file has lost bytes of it. What the file has lost fails the next flush once:
    /// writes that were not flushed may have been there.
    pub(super) fn lost(&self, offset: u64, len: u64) -> Option<BlockError> {
        self.told(self.size.loss(self.fd())?, offset, len)
    }

    /// The same of a block device that became smaller, for requests that failed and for flushes.
    pub(super) fn ended(&self, offset: u64, len: u64) -> Option<BlockError> {
        self.told(self.size.ended(self.fd())?, offset, len)
    }

    pub(super) fn told(&self, Loss { length, new }: Loss, offset: u64, len: u64) -> Option<BlockError> {
        if new {
            let (path, size) = (self.path.display(), self.size.get());
            tracing::error!(
                file = %path, size, length,
                "the file was cut behind its device's back: what is missing fails as a medium error until the file has its length again \
                 or the device is shrunk to what is left"
            );
            self.flush.fail(BlockError::Medium { offset: length });
        }
        (offset + len > length).then(|| BlockError::Medium { offset: offset.max(length) })
    }

    /// Counts what the page cache has taken of a host, and starts write-back when it is due.
    pub(super) fn dirtied(self: &Arc<Self>, host: OwnerGroup, bytes: u64) {
        let Some(write_back) = &self.write_back else { return };
        if write_back.note(host, bytes) {
            self.start_pass(write_back);
        }
    }

    pub(super) fn start_pass(self: &Arc<Self>, write_back: &WriteBack) {
        let inner = Arc::clone(self);
        let pass = self.workers.upkeep.run(move || {
            let Some(write_back) = &inner.write_back else { return };
            // Its error is kept by the kernel for the file that is flushed.
            let sync = || {
                let _ = inner.file.behind().map(fdatasync);
            };
            if write_back.pass(sync) {
                inner.start_pass(write_back);
            }
        });
        if pass.is_err() {
            write_back.give_up();
        }
    }

    /// Zeroes the next piece. Where writes wait, they have their turn at the file after it: the lock that a file system
    /// takes for either is not a fair one.
    pub(super) fn zero_piece(
        self: &Arc<Self>,
        host: OwnerGroup,
        pieces: &mut Pieces,
        zeroing: Zeroing,
    ) -> Poll<Result<(), BlockError>> {
        let (offset, len) = pieces.next();
        if let Some(error) = self.lost(offset, len) {
            return Poll::Ready(Err(error));
        }
        let begun = Instant::now();
        let result = space::zero(self.fd(), offset, len, zeroing, |bytes| {
            // This thread may wait for the disk.
            self.write_back.iter().for_each(|write_back| write_back.wait_for_room(host, bytes));
            self.dirtied(host, bytes);
        });
        let took = begun.elapsed();
        pieces.took(took);
        let result = result.map_err(BlockError::after_a_part);
        let zeroed = self.written_here(offset, len, Durability::Volatile, result);
        if zeroed.is_err() || pieces.is_over() {
            return Poll::Ready(zeroed);
        }
        if self.workers.writes.pending() > 0 {
            thread::sleep(took.min(PIECE_TIME));
        }
        Poll::Pending
    }

    /// Returns the outcome of a write, as far as it can be known without waiting, and whether [`Size::cut_again`] must
    /// follow.
    pub(super) fn outcome(
        &self,
        offset: u64,
        len: u64,
        durability: Durability,
        result: Result<(), BlockError>,
    ) -> (Result<(), BlockError>, bool) {
        let result = match result {
            // A block device that became smaller is not a full one.
            Err(BlockError::NoSpace) if let Some(error) = self.ended(offset, len) => Err(error),
            result => result,
        };
        let result = self.noted(durability, result);
        let size = self.size.get();
        // One that was overtaken by a shrink has made the file longer again, see [`Size`].
        let overtaken = offset + len > size;
        (if overtaken { Err(BlockError::OutOfRange { offset, len, size }) } else { result }, overtaken)
    }

    /// Returns the outcome of a change, on a thread that may wait.
    pub(super) fn written_here(
        &self,
        offset: u64,
        len: u64,
        durability: Durability,
        result: Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let (result, overtaken) = self.outcome(offset, len, durability, result);
        if overtaken {
            self.size.cut_again(self.fd());
        }
        result
    }

    /// Returns the outcome of a write, for a caller that must not wait.
    pub(super) fn written(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        durability: Durability,
        result: Result<(), BlockError>,
    ) -> Io<Result<(), BlockError>> {
        let (result, overtaken) = self.outcome(offset, len, durability, result);
        if !overtaken {
            return Io::Ready(result);
        }
        let inner = Arc::clone(self);
        self.workers.upkeep.io(move || {
            inner.size.cut_again(inner.fd());
            result
        })
    }

    /// Returns the outcome of a read: reaching the end of the file is no medium error where the device ends too. With
    /// direct I/O, a read that continues past the end of the file is refused as misaligned. `may_ask`: the file system
    /// may be asked for the file's length here.
    pub(super) fn was_read<T>(
        &self,
        offset: u64,
        len: usize,
        may_ask: bool,
        result: Result<T, BlockError>,
    ) -> Result<T, BlockError> {
        let (len, size) = (len as u64, self.size.get());
        match result {
            Err(error) if offset + len > size => Err(match error {
                BlockError::Medium { .. } => BlockError::OutOfRange { offset, len, size },
                error => error,
            }),
            Err(error) if may_ask => {
                Err(self.lost(offset, len).or_else(|| self.ended(offset, len)).unwrap_or(error))
            }
            result => result,
        }
    }

    /// A failed synchronous write takes the kernel's note of earlier write-back errors with it: a flush must
    /// still fail.
    pub(super) fn noted(
        &self,
        durability: Durability,
        result: Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        if let (Durability::Stable, Err(error)) = (durability, &result) {
            self.flush.fail(error.clone());
        }
        result
    }

    /// Waits for the disk: one that hangs shall hang before a change has begun, and not in it. Its errors are kept by
    /// the kernel for the file that is flushed.
    pub(super) fn await_disk(&self) {
        let _ = self.file.behind().map(fdatasync);
    }

    pub(super) fn sync(&self) -> Result<(), BlockError> {
        // A file that was cut has lost what was to be flushed: noted here, told by the flush.
        let _ = self.lost(0, 0).or_else(|| self.ended(0, 0));
        let mark = self.write_back.as_ref().map(|write_back| write_back.mark());
        let result = loop {
            match fdatasync(self.file.sync()) {
                Ok(()) => break Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => break Err(meaning(errno, 0)),
            }
        };
        if let (Some(write_back), Some(mark)) = (&self.write_back, mark) {
            write_back.cleaned(mark);
        }
        result
    }
}
