//! The device: which way each operation goes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, Geometry, Io, ResizeCallback, SharedBuf,
    Space, Zeroing,
};
use rustix::fs::fdatasync;
use rustix::io::Errno;

use crate::flush::FlushState;
use crate::open::{FileOptions, OpenError, Opened, open_file};
use crate::pool;
use crate::ring::Ring;
use crate::size::Size;
use crate::space;
use crate::store::Store;
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
/// - **As large as it was told**: the size of the file when it was opened, rounded down to sectors, until
///   [`resize`](BlockDevice::resize). That cuts or extends a regular file; what somebody else did to a file, or to a block
///   device, is taken by a resize to just that size.
///
/// Measured on ext4 (Linux 6.18), 4 KiB in the page cache: a read with `RWF_NOWAIT` 1.5 µs, the same as
/// without. A write takes 3 µs, but ext4 answers `EOPNOTSUPP` to `RWF_NOWAIT` for buffered writes, and an
/// ordinary one may wait for write-back for seconds; so writes there go to the pool, which makes 30 µs of
/// them. Others (XFS, btrfs) take the flag in newer kernels, and tmpfs needs none: it has no disk to wait
/// for. With `O_DIRECT` on a virtual disk whose host has the data cached, the ring takes 25–29 µs per read at depth 1
/// and 5–6 µs at depth 16 (fio's `io_uring` engine 24 and 5), the pool 35–60 µs at depth 1. The ring goes 128 deep where the
/// pool ends at 16.
pub struct FileDevice {
    inner: Arc<Inner>,
}

struct Inner {
    /// Shared with operations on the ring.
    file: Arc<OwnedFd>,
    /// The same file, opened once more for `fdatasync` alone, see `open::reopened`.
    sync: OwnedFd,
    size: Size,
    /// All but the size.
    shape: Geometry,
    store: Store,
    in_memory: bool,
    direct: bool,
    alignment: usize,
    /// Goes to the calling thread's ring where it cannot be done inline.
    ring: bool,
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
        let Opened { file, sync, geometry, regular, in_memory, alignment, ring } =
            open_file(path.as_ref(), options)?;
        let inner = Inner {
            file: Arc::new(file),
            sync,
            size: Size::new(geometry.size, regular),
            shape: geometry,
            store: Store::new(regular),
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
        self.inner.ring
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

    fn ring(&self) -> Option<Arc<Ring>> {
        if self.inner.ring { Ring::here() } else { None }
    }

    /// Reads what is missing behind the first `done` bytes.
    fn read_rest(&self, offset: u64, mut buf: Buf, done: usize) -> Io<Result<Buf, BlockError>> {
        if let Some(ring) = self.ring() {
            let (inner, len) = (Arc::clone(&self.inner), buf.len());
            let answer = ring.read(Arc::clone(&self.inner.file), offset, buf, done);
            return Io::pending(async move {
                inner.was_read(offset, len, answer.await.unwrap_or(Err(BlockError::Aborted)))
            });
        }
        self.on_pool(move |inner| {
            let result = read_fully(inner.fd(), &mut buf[done..], offset + done as u64);
            inner.was_read(offset, buf.len(), result).map(|()| buf)
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
        if let Some(ring) = self.ring() {
            let inner = Arc::clone(&self.inner);
            let len = data.len() as u64;
            let answer = ring.write(Arc::clone(&self.inner.file), offset, data, done, durability);
            return Io::pending(async move {
                let result = answer.await.unwrap_or(Err(BlockError::Aborted));
                inner.written(offset, len, durability, result)
            });
        }
        self.on_pool(move |inner| {
            let result = write_fully(inner.fd(), &data[done..], offset + done as u64, durability);
            inner.written(offset, data.len() as u64, durability, result)
        })
    }

    fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.on_pool(move |inner| {
            let result = space::zero(inner.fd(), offset, len, zeroing);
            inner.written(offset, len, Durability::Volatile, result)
        })
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

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.get(), ..self.shape }
    }

    /// What a write came to. One that was overtaken by a shrink has made the file longer again, see [`Size`].
    fn written(
        &self,
        offset: u64,
        len: u64,
        durability: Durability,
        result: Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let result = self.noted(durability, result);
        let size = self.size.get();
        if offset + len > size {
            self.size.cut_again(self.fd());
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        result
    }

    /// What a read came to: the end of the file is no failure of the medium where the device ends too.
    fn was_read<T>(&self, offset: u64, len: usize, result: Result<T, BlockError>) -> Result<T, BlockError> {
        let (len, size) = (len as u64, self.size.get());
        match result {
            Err(BlockError::Medium { .. }) if offset + len > size => {
                Err(BlockError::OutOfRange { offset, len, size })
            }
            result => result,
        }
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
        self.inner.geometry()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        let inner = &*self.inner;
        if let Err(error) = inner.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() {
            return Io::ok(buf);
        }
        let done = match inner.way(&inner.reads_now) {
            Way::Inline => {
                let result = read_fully(inner.fd(), &mut buf, offset);
                return Io::Ready(inner.was_read(offset, buf.len(), result).map(|()| buf));
            }
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
        if let Err(error) = inner.geometry().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let done = match inner.way(&inner.writes_now) {
            Way::Inline => {
                let result = write_fully(inner.fd(), &data, offset, durability);
                return Io::Ready(inner.written(offset, data.len() as u64, durability, result));
            }
            Way::TryInline if durability == Durability::Volatile => {
                match write_now(inner.fd(), &data, offset) {
                    Ok(Now::Done) => {
                        return Io::Ready(inner.written(offset, data.len() as u64, durability, Ok(())));
                    }
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
        if self.inner.in_memory || self.inner.shape.read_only {
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
        match self.inner.geometry().check_write(offset, len) {
            Ok(()) if len > 0 && self.inner.shape.thin => self.zero(offset, len, Zeroing::MayUnmap),
            checked => Io::Ready(checked),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        match self.inner.geometry().check_write(offset, len) {
            Ok(()) if len > 0 => self.zero(offset, len, zeroing),
            checked => Io::Ready(checked),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Result<Vec<Extent>, BlockError>> {
        let sector = self.inner.shape.logical_sector;
        match self.inner.geometry().check(offset, len) {
            Ok(()) if len > 0 => self.on_pool(move |inner| space::extents(inner.fd(), offset, len, sector)),
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }

    fn resize(&self, size: u64) -> Io<Result<(), BlockError>> {
        self.on_pool(move |inner| inner.size.change(inner.fd(), &inner.shape, size))
    }

    fn space(&self) -> Option<Space> {
        self.inner.store.space(self.inner.fd())
    }

    fn caching(&self) -> Caching {
        match () {
            () if self.inner.in_memory => Caching::Memory,
            () if self.inner.direct => Caching::PastPageCache,
            () => Caching::PageCache,
        }
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.inner.size.on_change(callback);
    }
}
