//! The device: which way each operation goes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Extent, Geometry, Io, SharedBuf, Zeroing};
use rustix::fs::fdatasync;
use rustix::io::Errno;

use crate::flush::FlushState;
use crate::open::{FileOptions, OpenError, Opened, open_file};
use crate::pool;
use crate::ring::Ring;
use crate::space;
use crate::transfer::{Now, meaning, read_fully, read_now, write_fully, write_now};

/// A raw image file or a block device.
///
/// - **Locked.** One writer or any number of readers, by `flock`: a second writer, here or in another process
///   that locks too, is refused when it opens. The lock goes with the last operation in flight.
/// - **Never blocks the caller.** Reads are tried inline where the kernel can promise not to wait; what would
///   wait goes to the ring or the pool, see the crate's picture.
/// - **Honest.** A file that was cut behind our back answers with a medium error, not with zeroes. A
///   write-back error makes a flush fail, whoever the kernel told it to first. An abandoned operation keeps
///   its buffer until it is done.
/// - **Of fixed size**: that of the file when it was opened, rounded down to sectors.
///
/// Measured on ext4 (Linux 6.18), 4 KiB in the page cache: a read with `RWF_NOWAIT` 1.5 µs, the same as
/// without. A write takes 3 µs, but ext4 answers `EOPNOTSUPP` to `RWF_NOWAIT` for buffered writes, and an
/// ordinary one may wait for write-back for seconds; so writes there go to the pool, which makes 30 µs of
/// them. Others (XFS, btrfs) take the flag in newer kernels, and tmpfs needs none: it has no disk to wait
/// for. With `O_DIRECT` on a virtual disk, ring and pool come out alike: 8–10 µs per read at depth 32, 35–60
/// µs at depth 1. The ring goes 128 deep where the pool ends at 16, which only a faster disk shows.
pub struct FileDevice {
    inner: Arc<Inner>,
}

struct Inner {
    /// Shared with operations on the ring.
    file: Arc<OwnedFd>,
    /// The same file, opened once more for `fdatasync` alone, see `open::reopened`.
    sync: OwnedFd,
    geometry: Geometry,
    in_memory: bool,
    direct: bool,
    alignment: usize,
    ring: Option<&'static Ring>,
    /// Whether the file system takes `RWF_NOWAIT`, until it says no.
    reads_now: AtomicBool,
    writes_now: AtomicBool,
    flush: FlushState,
}

/// Where an operation is done.
enum Way {
    /// At once, by an ordinary system call.
    Inline,
    /// At once as far as possible, the rest elsewhere.
    TryInline,
    /// On the ring or the pool.
    Elsewhere,
}

impl FileDevice {
    /// Opens and locks `path`.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which says what is wrong with the file or the options.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, OpenError> {
        let Opened { file, sync, geometry, in_memory, alignment, ring } = open_file(path.as_ref(), options)?;
        let inner = Inner {
            file: Arc::new(file),
            sync,
            geometry,
            in_memory,
            direct: options.direct,
            alignment,
            ring,
            reads_now: AtomicBool::new(true),
            writes_now: AtomicBool::new(true),
            flush: FlushState::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether operations that cannot be done inline go to an `io_uring`.
    pub fn uses_ring(&self) -> bool {
        self.inner.ring.is_some()
    }

    /// Runs `job` on the pool.
    fn on_pool<T: Send + Unpin + 'static>(
        &self,
        job: impl FnOnce(&Inner) -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        let inner = Arc::clone(&self.inner);
        let answer = pool::run(move || job(&inner));
        Io::pending(async move { answer.await.unwrap_or(Err(BlockError::Aborted)) })
    }

    /// Reads what is missing behind the first `done` bytes.
    fn read_rest(&self, offset: u64, mut buf: Buf, done: usize) -> Io<Result<Buf, BlockError>> {
        if let Some(ring) = self.inner.ring {
            let answer = ring.read(Arc::clone(&self.inner.file), offset, buf, done);
            return Io::pending(async move { answer.await.unwrap_or(Err(BlockError::Aborted)) });
        }
        self.on_pool(move |inner| {
            read_fully(inner.fd(), &mut buf[done..], offset + done as u64)?;
            Ok(buf)
        })
    }

    /// Writes what is missing behind the first `done` bytes.
    fn write_rest(
        &self,
        offset: u64,
        data: SharedBuf,
        done: usize,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        let data = self.inner.aligned(data);
        if let Some(ring) = self.inner.ring {
            let inner = Arc::clone(&self.inner);
            let answer = ring.write(Arc::clone(&self.inner.file), offset, data, done, durability);
            return Io::pending(async move {
                let result = answer.await.unwrap_or(Err(BlockError::Aborted));
                inner.noted(durability, result)
            });
        }
        self.on_pool(move |inner| {
            inner.noted(durability, write_fully(inner.fd(), &data[done..], offset + done as u64, durability))
        })
    }

    fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.on_pool(move |inner| space::zero(inner.fd(), offset, len, zeroing))
    }
}

impl Inner {
    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn way(&self, supported: &AtomicBool) -> Way {
        match () {
            () if self.in_memory => Way::Inline,
            // Past the page cache every transfer waits for the disk.
            () if self.direct || !supported.load(Ordering::Relaxed) => Way::Elsewhere,
            () => Way::TryInline,
        }
    }

    /// `O_DIRECT` needs aligned memory, and data may come as a slice from the middle of something.
    fn aligned(&self, data: SharedBuf) -> SharedBuf {
        if data.as_ptr().addr().is_multiple_of(self.alignment) { data } else { Buf::copy_of(&data).freeze() }
    }

    /// A failed synchronous write takes the kernel's note of earlier write-back errors with it: a flush must
    /// still fail.
    fn noted(&self, durability: Durability, result: Result<(), BlockError>) -> Result<(), BlockError> {
        if let (Durability::Stable, Err(error)) = (durability, &result) {
            self.flush.fail(error.clone());
        }
        result
    }

    fn sync(&self) -> Result<(), BlockError> {
        loop {
            match fdatasync(&self.sync) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(meaning(errno, 0)),
            }
        }
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        let inner = &*self.inner;
        if let Err(error) = inner.geometry.check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() {
            return Io::ok(buf);
        }
        let done = match inner.way(&inner.reads_now) {
            Way::Inline => return Io::Ready(read_fully(inner.fd(), &mut buf, offset).map(|()| buf)),
            Way::Elsewhere => 0,
            Way::TryInline => match read_now(inner.fd(), &mut buf, offset) {
                Ok(Now::Done) => return Io::ok(buf),
                Ok(Now::Partly(done)) => done,
                Ok(Now::Unsupported) => {
                    inner.reads_now.store(false, Ordering::Relaxed);
                    0
                }
                Err(error) => return Io::err(error),
            },
        };
        self.read_rest(offset, buf, done)
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let inner = &*self.inner;
        if let Err(error) = inner.geometry.check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let done = match inner.way(&inner.writes_now) {
            Way::Inline => return Io::Ready(write_fully(inner.fd(), &data, offset, durability)),
            Way::TryInline if durability == Durability::Volatile => {
                match write_now(inner.fd(), &data, offset) {
                    Ok(Now::Done) => return Io::ok(()),
                    Ok(Now::Partly(done)) => done,
                    Ok(Now::Unsupported) => {
                        inner.writes_now.store(false, Ordering::Relaxed);
                        0
                    }
                    Err(error) => return Io::err(error),
                }
            }
            // Stable writes wait for the disk by their nature.
            Way::TryInline | Way::Elsewhere => 0,
        };
        self.write_rest(offset, data, done, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        if self.inner.in_memory || self.inner.geometry.read_only {
            return Io::ok(());
        }
        let ticket = self.inner.flush.issue();
        let inner = Arc::clone(&self.inner);
        let synced = pool::run(move || inner.flush.sync(ticket, || inner.sync()));
        let inner = Arc::clone(&self.inner);
        Io::pending(async move {
            let ran = synced.await;
            inner.flush.tell(ticket)?;
            ran.ok_or(BlockError::Aborted)
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.inner.geometry.check_write(offset, len) {
            Ok(()) if len > 0 && self.inner.geometry.thin => self.zero(offset, len, Zeroing::MayUnmap),
            checked => Io::Ready(checked),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        match self.inner.geometry.check_write(offset, len) {
            Ok(()) if len > 0 => self.zero(offset, len, zeroing),
            checked => Io::Ready(checked),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Result<Vec<Extent>, BlockError>> {
        let sector = self.inner.geometry.logical_sector;
        match self.inner.geometry.check(offset, len) {
            Ok(()) if len > 0 => self.on_pool(move |inner| space::extents(inner.fd(), offset, len, sector)),
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }
}
