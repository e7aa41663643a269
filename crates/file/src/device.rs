//! The device: which way each operation goes.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, FileRange, Geometry, Identity, Io, Owner,
    Permit, ResizeCallback, SharedBuf, Space, Zeroing,
};

use crate::flush::FlushState;
use crate::handle::{Closed, Placement};
use crate::names::{NameWatch, NamedFile};
use crate::open::{FileOpenError, FileOptions, Opened, open_file, open_on_thread};
use crate::pieces::Pieces;
use crate::place::place;
use crate::ring::Ring;
use crate::size::{Size, lost, lost_device};
use crate::space;
use crate::store::Store;
use crate::transfer::{INLINE_BYTES_MAX, Now, read_fully, read_now, write_fully};
use crate::workers::{ThreadPool, Workers};
use crate::write_back::WriteBack;

mod open_file;

use open_file::{OpenFile, Way};

/// Tells devices apart where they share a thread's ring.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A raw image file or a block device.
///
/// - **Locked.** One writer or any number of readers, by `flock`: a second writer, here or in another process
///   that locks too, is refused when it opens. The lock goes with the last operation in flight.
/// - **Never blocks the caller.** Reads are tried inline where a local file system promises not to wait, and while few
///   of this device's operations are under way, for such a read still starts read-ahead, which waits if the disk's
///   queue is full. What would wait, and everything on file systems behind a server, goes to the ring or the device's
///   own threads, see the crate's picture. Space is told from what a thread of the file system's has found out
///   ([`space`](BlockDevice::space)), and descriptors are closed on a thread.
/// - **Holds up no other.** Threads, queue and places in the ring are the device's own and bounded: if its disk does
///   not answer, its operations wait, more than 4,096 are answered with `Busy`, and no other device notices.
/// - **Flushed in time.** What the page cache holds of its writes is written back in the background and bounded by what
///   the disk writes in some seconds, see `write_back`; writes wait before a flush would take longer than hosts wait
///   for it, those of the host first that has most of it.
/// - **Honest.** A file that was cut behind our back has lost data: reads, writes, unmaps and maps behind the cut fail
///   with a medium error and make the file no longer, and the next flush fails, until the file has its length again or
///   the device is shrunk to what is left; it is not grown until then. A write-back error makes a flush fail, even if
///   the kernel has told another descriptor of it first. An abandoned operation keeps its buffer until it is done.
/// - **As large as it was told**: the size of the file when it was opened, rounded down to sectors, until
///   [`resize`](BlockDevice::resize). That cuts or extends a regular file; what somebody else did to a file, or to a
///   block device, is taken by a resize to just that size.
///
/// Measured on ext4 (Linux 6.18), 4 KiB in the page cache: a read with `RWF_NOWAIT` 1.5 µs, the same as
/// without. A write takes 3 µs, but one may wait for write-back for seconds, and for as long as the file system
/// is frozen, whatever flags it has (`sb_start_write` comes first); so writes go to threads, which makes 30 µs
/// of them. tmpfs has no disk to wait for, and cannot be frozen. With `O_DIRECT` on a virtual disk whose host
/// has the data cached, the ring takes 25–29 µs per read at depth 1
/// and 5–6 µs at depth 16 (fio's `io_uring` engine 24 and 5), threads 35–60 µs at depth 1. The ring goes 128 deep where
/// threads end at 16.
pub struct FileDevice {
    inner: Arc<OpenFile>,
}

impl FileDevice {
    /// Opens and locks `path`. Waits for the file system, see [`open_on_thread`](Self::open_on_thread).
    ///
    /// # Errors
    ///
    /// [`FileOpenError`], which says what is wrong with the file or the options.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, FileOpenError> {
        let path = path.as_ref();
        let Opened { file, closed, geometry, regular, alignment, ring, inline_max, device } =
            open_file(path, options)?;
        let file = Arc::new(file);
        let placement = file.placement();
        let identity = Identity { content: None, place: place(&file) };
        let cached = placement != Placement::Memory && !options.direct && !options.read_only;
        let workers = Workers::new();
        let write_back = (cached && file.behind().is_some()).then(|| Arc::new(WriteBack::new()));
        write_back.iter().for_each(|write_back| workers.writes.wait_for(write_back));
        let inner = OpenFile {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            identity,
            path: path.to_owned(),
            size: Size::new(geometry.size, regular),
            shape: geometry,
            store: Store::new(&file, regular, device),
            names: NameWatch::new(NamedFile::of(path, &*file).into_iter().collect()),
            direct: options.direct,
            alignment,
            ring,
            reads_now: AtomicBool::new(placement == Placement::Local),
            inline_max,
            flush: FlushState::default(),
            write_back,
            workers,
            closed: Mutex::new(Some(closed)),
            file,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// [`open`](Self::open) on a thread of its own, for callers that must not wait. It gives up after some seconds
    /// ([`FileOpenError::NoAnswer`]): what the thread opens after that it closes again.
    pub fn open_on_thread(
        path: PathBuf,
        options: FileOptions,
    ) -> impl Future<Output = Result<Self, FileOpenError>> + Send + 'static {
        open_on_thread(path, move |path| Self::open(path, &options))
    }

    /// Returns `true` if operations that cannot be done inline go to an `io_uring`.
    pub fn uses_ring(&self) -> bool {
        self.inner.ring
    }

    /// The time when the device and all of its operations are gone and its descriptors closed; for the first who asks.
    pub fn closed(&self) -> Option<Closed> {
        self.inner.closed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs `job` in a pool.
    fn on<T: Send + Unpin + 'static>(
        &self,
        pool: impl FnOnce(&Workers) -> &ThreadPool,
        job: impl FnOnce(&Arc<OpenFile>) -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        let inner = Arc::clone(&self.inner);
        pool(&self.inner.workers).io(move || job(&inner))
    }

    fn ring(&self) -> Option<Arc<Ring>> {
        if self.inner.ring { Ring::here() } else { None }
    }

    /// Reads what is missing behind the first `done` bytes.
    fn read_rest(&self, offset: u64, mut buf: Buf, done: usize) -> Io<Result<Buf, BlockError>> {
        if let Some(ring) = self.ring() {
            let (inner, len) = (Arc::clone(&self.inner), buf.len());
            let answer = ring.read(self.inner.id, Arc::clone(&self.inner.file), offset, buf, done);
            return Io::pending(async move {
                let result = answer.await.unwrap_or(Err(BlockError::lost()));
                // The caller must not ask a server how long the file is.
                let may_ask = inner.file.placement() != Placement::Remote;
                inner.was_read(offset, len, may_ask, result)
            });
        }
        self.on(
            |workers| &workers.reads,
            move |inner| {
                let result = read_fully(inner.fd(), &mut buf[done..], offset + done as u64);
                inner.was_read(offset, buf.len(), true, result).map(|()| buf)
            },
        )
    }

    /// Writes what is missing behind the first `done` bytes. Where that is refused, the device has those bytes.
    /// Writes on the ring or a thread.
    fn write_elsewhere(
        &self,
        offset: u64,
        data: SharedBuf,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        let data = self.inner.aligned(data);
        // Before a write it is asked how long the file is, which a thread does where a server knows it.
        let asks_server = self.inner.file.placement() == Placement::Remote;
        if let Some(ring) = self.ring().filter(|_| !asks_server) {
            let inner = Arc::clone(&self.inner);
            let len = data.len() as u64;
            if let Some(error) = inner.lost(offset, len) {
                return Io::err(error);
            }
            let answer = ring.write(inner.id, Arc::clone(&inner.file), offset, data, durability);
            return Io::pending(async move {
                let result = answer.await.unwrap_or(Err(BlockError::lost()));
                inner.written(offset, len, durability, result).await
            });
        }
        let (inner, host) = (Arc::clone(&self.inner), Owner::current_key().group());
        let len = data.len() as u64;
        let write = move || {
            if let Some(error) = inner.lost(offset, len) {
                return Err(error);
            }
            let result = write_fully(inner.fd(), &data, offset, durability);
            if durability == Durability::Volatile {
                inner.dirtied(host, len);
            }
            // The memory goes back to the pool of the thread that it is from.
            inner.written_here(offset, len, durability, result).map(|()| data)
        };
        let writes = &self.inner.workers.writes;
        match durability {
            Durability::Volatile => writes.io_cached(len, write),
            // It waits for the disk itself.
            Durability::Stable => writes.io(write),
        }
        .map(|written| written.map(drop))
    }

    fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let (inner, host) = (Arc::clone(&self.inner), Owner::current_key().group());
        let mut pieces = Pieces::new(offset, len, inner.shape.unmap.granularity());
        self.inner.workers.zeroing.io_in_pieces(move || inner.zero_piece(host, &mut pieces, zeroing))
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
        let done = match inner.way_of_read(buf.len()) {
            Way::Inline => {
                let result = read_fully(inner.fd(), &mut buf, offset);
                return Io::Ready(inner.was_read(offset, buf.len(), true, result).map(|()| buf));
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
        let inner = &self.inner;
        if let Err(error) = inner.geometry().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        if data.len() > INLINE_BYTES_MAX || !inner.in_memory() {
            return self.write_elsewhere(offset, data, durability);
        }
        let len = data.len() as u64;
        if let Some(error) = inner.lost(offset, len) {
            return Io::err(error);
        }
        let result = write_fully(inner.fd(), &data, offset, durability);
        inner.written(offset, len, durability, result)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        if self.inner.in_memory() || self.inner.shape.read_only {
            return Io::ok(());
        }
        let ticket = self.inner.flush.issue();
        let inner = Arc::clone(&self.inner);
        let Ok(synced) = self.inner.workers.flushes.run(move || inner.flush.sync(ticket, || inner.sync()))
        else {
            return Io::err(BlockError::Busy);
        };
        let inner = Arc::clone(&self.inner);
        Io::pending(async move {
            let ran = synced.await;
            inner.flush.tell(ticket)?;
            ran.ok_or(BlockError::lost())
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.inner.geometry().check_write(offset, len) {
            Ok(()) if len > 0 && self.inner.shape.unmap.frees() => self.zero(offset, len, Zeroing::MayUnmap),
            checked => Io::Ready(checked),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        match self.inner.geometry().check_write(offset, len) {
            Ok(()) if len > 0 => self.zero(offset, len, zeroing),
            checked => Io::Ready(checked),
        }
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let sector = self.inner.shape.logical_sector;
        match self.inner.geometry().check(offset, len) {
            Ok(()) if len > 0 => self.on(
                |workers| &workers.maps,
                move |inner| match inner.lost(offset, len) {
                    Some(error) => Err(error),
                    None => space::extents(inner.fd(), offset, len, sector, count.max(1)),
                },
            ),
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }

    fn lend(&self, offset: u64, len: u64) -> Io<Result<Option<FileRange>, BlockError>> {
        let inner = &*self.inner;
        let lent = inner.geometry().check(offset, len).and_then(|()| {
            if !inner.shape.read_only || inner.direct || inner.lost(offset, len).is_some() {
                return Ok(None);
            }
            let file = inner.fd().try_clone_to_owned()?;
            Ok(Some(FileRange { file: Arc::new(file.into()), offset, len }))
        });
        Io::Ready(lent)
    }

    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        match self.inner.geometry().check_write(offset, from.len) {
            Ok(()) if from.len > 0 && !self.inner.direct => {
                let (inner, host) = (Arc::clone(&self.inner), Owner::current_key().group());
                self.inner.workers.writes.io_cached(from.len, move || {
                    if let Some(error) = inner.lost(offset, from.len) {
                        return Err(error);
                    }
                    let to = inner.fd().try_clone_to_owned()?.into();
                    let result = match from.put_into(&to, offset) {
                        Ok(false) => return Ok(false),
                        Ok(true) => Ok(()),
                        Err(error) => Err(BlockError::from(error).after_a_part()),
                    };
                    // What is not shared is copied through the page cache.
                    inner.dirtied(host, from.len);
                    inner.written_here(offset, from.len, Durability::Volatile, result).map(|()| true)
                })
            }
            checked => Io::Ready(checked.map(|()| false)),
        }
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        self.on(
            |workers| &workers.upkeep,
            move |inner| {
                inner.await_disk();
                // It is not what is known of it, from before it changes until it is asked again.
                let _changing = inner.store.changing();
                inner.size.change(inner.fd(), &inner.shape, size, &permit)
            },
        )
    }

    fn identity(&self) -> Identity {
        self.inner.identity.clone()
    }

    fn space(&self) -> Option<Space> {
        self.inner.store.space()
    }

    fn backing(&self) -> Option<String> {
        let inner = &self.inner;
        let size = inner.size.get();
        if let Some(left) = inner.size.left() {
            return Some(format!("{}: {}", inner.path.display(), lost_device(left, size)));
        }
        match inner.store.length().filter(|length| *length < size) {
            Some(length) => {
                let path = inner.path.display();
                Some(format!("{path}: {}", lost(length, size, u64::from(inner.shape.logical_sector))))
            }
            None => inner.names.found(),
        }
    }

    fn lost_name(&self) -> Option<String> {
        self.inner.names.lost_now()
    }

    fn caching(&self) -> Caching {
        match () {
            () if self.inner.in_memory() => Caching::Memory,
            () if self.inner.direct => Caching::PastPageCache,
            () => Caching::PageCache,
        }
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.inner.size.on_change(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::{Fate, OwnerKey};

    #[tokio::test]
    async fn a_write_of_an_owner_who_is_gone_says_that_nothing_was_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = FileDevice::open(file.path(), &FileOptions::default()).unwrap();
        let gone = Owner::new();
        gone.leave();
        let _entered = gone.enter();
        let data = Buf::zeroed(4096).freeze();
        let refused = device.write(0, data, Durability::Volatile).await.unwrap_err();
        assert_eq!(refused.fate(), Fate::NotDone, "{refused}");
    }

    #[tokio::test]
    async fn what_a_host_has_written_counts_as_its_share_of_the_page_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = FileDevice::open(file.path(), &FileOptions::default()).unwrap();
        // None on a file system in memory.
        let Some(write_back) = &device.inner.write_back else { return };
        let [flood, other] = [(); 2].map(|()| Owner::new());
        let write = |owner: &Owner| {
            let _entered = owner.enter();
            device.write(0, Buf::zeroed(1 << 20).freeze(), Durability::Volatile)
        };
        assert!(write_back.note(OwnerKey::NONE.group(), 8 << 20), "a pass is due, which nobody makes");
        // The flood may have 8/9 of what is left of 32 MiB.
        for _ in 0..21 {
            write(&flood).await.unwrap();
        }
        let mut next = std::pin::pin!(write(&flood).into_future());
        let waits = tokio::time::timeout(std::time::Duration::from_millis(100), next.as_mut()).await.is_err();
        assert!(waits, "the flood goes on");
        write(&other).await.unwrap();
        device.flush().await.unwrap();
        next.await.unwrap();
    }
}
