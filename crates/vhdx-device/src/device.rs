//! The device.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Compaction, CompactionPhase, Durability, Extent, ExtentKind,
    FileRange, Geometry, Identity, Io, Owner, OwnerGroup, Permit, Pull, ResizeCallback, SharedBuf,
    SnapshotCommit, Unmap, Zeroing,
};
use lunway_file::{NameWatch, ThreadPool, Workers, WriteBack};
use lunway_vhdx::format::{Guid, GuidSource};
use lunway_vhdx::merge::children;
use lunway_vhdx::{Chain, DiscardMode, Disk, DiskError, DiskKind, SegmentSource, VhdxOpenOptions};

use crate::backing::Backing;
use crate::chain_state::{Alone, ChainState, closed};
use crate::compact::{self, Watch};
use crate::pull::Pulling;
use crate::{holes, names, random_guids, snapshot};

/// The unit in which unmapped parts of a block are given back, bytes: the block of host file systems. Whole blocks
/// change their state.
const UNMAP_GRANULARITY: u32 = 4096;
/// Maximum wait for the end: it comes at once, unless the host's disk does not answer, and then it may never come.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Extents told by one call; what follows is told as data, which is always true enough. As many as a file tells: it
/// bounds time and memory for hostile files.
const EXTENTS_MAX: usize = 65_536;

/// Reason why a VHDX file could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}: {source}{}", path.display(), remedy(source))]
pub struct VhdxDeviceOpenError {
    /// The file.
    pub path: PathBuf,
    /// Error of the file or its parents.
    pub source: lunway_vhdx::VhdxOpenError,
}

/// Alternative to what was refused, as the end of a sentence.
fn remedy(refused: &lunway_vhdx::VhdxOpenError) -> &'static str {
    match refused {
        lunway_vhdx::VhdxOpenError::WriteProtected { .. } | lunway_vhdx::VhdxOpenError::ReadOnlyDevice => {
            "; `readonly:` before its name opens it for reading"
        }
        _ => "",
    }
}

/// A VHDX file with its parents.
///
/// - **No parent is written**: a file that others were made on is opened for reading alone.
/// - **Locked**, as the engine locks: one writer, parents and read-only disks shared.
/// - **Never blocks the caller**: reads of what is cached are answered inline, where a local file system promises not
///   to wait; everything else is done on threads of its own, 16 for reads and 16 for writes at most. A write that
///   allocates waits for others of the same block alone.
/// - **Written back in the background**, so that a flush has little left to do, as raw files are: writes wait for room
///   in the page cache, those of the host first that has most of it.
/// - **Zeroes after an unmap**, also where a parent has data. A fixed disk is not thin: an unmap does nothing there.
/// - **Resized** between two operations: those that come meanwhile wait. A disk that others were made on is not
///   resized.
/// - **Snapshotted** between two operations: it goes on in another file, whose parent the first one becomes.
/// - **Closed by [`close`](Self::close)**, which leaves an empty log. Dropped, it is closed on a thread; killed, it is
///   replayed when it is opened next.
///
/// After a flush of the host has failed, writes and flushes fail until the file is opened again: see
/// [`lunway_vhdx::Disk`]. What another program has cut off a file fails as a medium error, and is not made of zeroes.
///
/// A resize or a snapshot that fails, at whatever step, leaves the device with what was written. Where its file cannot
/// be opened again all operations fail as of a medium that failed, until it can be: that is tried each second.
pub struct VhdxDevice {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// The device that it lies on.
    device: Option<Arc<dyn BlockDevice>>,
    /// Operations share it.
    pub(crate) state: RwLock<ChainState>,
    /// All but the size, which may change.
    geometry: Geometry,
    pub(crate) size: AtomicU64,
    /// Another one after a snapshot.
    pub(crate) identity: Mutex<Identity>,
    /// Callbacks for a change of size.
    pub(crate) on_resize: Mutex<Vec<ResizeCallback>>,
    /// Write-back state: what the page cache has of a file's writes.
    pub(crate) write_back: Arc<WriteBack>,
    /// A flush is queued that gives the host what was unmapped.
    giving_back: AtomicBool,
    /// Watch of the names of its files.
    pub(crate) names: NameWatch,
    /// Reads, writes and the like so far.
    pub(crate) operations: AtomicU64,
    /// Watch for data that must not be given up.
    pub(crate) watch: Watch,
    /// A compaction is under way.
    compacting: AtomicBool,
    /// Work that needs the chain for itself, and waits for it or has it.
    wanting: AtomicUsize,
    /// The device has no user any more.
    left: AtomicBool,
    /// Logged that the file was cut.
    cut: AtomicBool,
    /// Message about a flush of the host that has failed, once it was logged.
    failed: OnceLock<String>,
    pub(crate) workers: Workers,
    /// The pull of a disk that lacks something.
    pulling: Mutex<Option<Arc<Pulling>>>,
    /// There is one: looked at by each read.
    is_pulled: AtomicBool,
}

impl VhdxDevice {
    /// Opens and locks a file and its parents, which are looked for in the file's folder and below. Blocks.
    ///
    /// # Errors
    ///
    /// [`VhdxDeviceOpenError`], which says what is wrong and where.
    pub fn open(path: &Path, read_only: bool) -> Result<Self, VhdxDeviceOpenError> {
        let failed = |source| VhdxDeviceOpenError { path: path.to_owned(), source };
        let options = if read_only { VhdxOpenOptions::read_only() } else { VhdxOpenOptions::writable() };
        let access = |what, source| failed(lunway_vhdx::VhdxOpenError::Access { what, source });
        let random = |error: getrandom::Error| {
            access("asking for random numbers", std::io::Error::other(error.to_string()))
        };
        // The first one is for the file. Its parents are only read, and take none.
        let mut guids = Some(random_guids().map_err(random)?);
        let mut guids = || guids.take().unwrap_or_else(no_guids);
        if !read_only {
            snapshot::finish(path).map_err(failed)?;
        }
        let canonical = path.canonicalize().map_err(|source| access("looking for the file", source))?;
        let no_parent = || match children(&canonical).unwrap_or_default() {
            found if read_only || found.is_empty() => Ok(()),
            found => {
                let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
                Err(lunway_vhdx::VhdxOpenError::IsParent(names.join(", ")))
            }
        };
        // Children that are open lock it, which would be a worse reason.
        no_parent().map_err(failed)?;
        let opened = lunway_vhdx::open_file(&canonical, !read_only).and_then(|file| {
            // None is made while it is locked.
            no_parent()?;
            let disk = Disk::open(Backing::from(file), &options, guids())?;
            Chain::of_disks(vec![disk], std::slice::from_ref(&canonical), folder(&canonical), &options, guids)
        });
        let chain = opened.map_err(failed)?;
        for (disk, path) in chain.disks().iter().zip(chain.paths()).filter(|(disk, _)| disk.lost() > 0) {
            tracing::warn!(
                file = %path.display(), lost = disk.lost(),
                "the VHDX file was cut and has lost data: reads of it fail as medium errors; restore it from a backup"
            );
        }
        Ok(Self { inner: Arc::new(Inner::new(chain)) })
    }

    /// Opens the VHDX that lies on a device, from its first byte on. It has no parents, does not change its size, and
    /// takes space up to the end of the device. Blocks: the device must be carried by another thread.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn open_on(
        device: Arc<dyn BlockDevice>,
        read_only: bool,
    ) -> Result<Self, lunway_vhdx::VhdxOpenError> {
        let read_only = read_only || device.geometry().read_only;
        let options = if read_only { VhdxOpenOptions::read_only() } else { VhdxOpenOptions::writable() };
        let guids = random_guids().map_err(|error| lunway_vhdx::VhdxOpenError::Access {
            what: "asking for random numbers",
            source: std::io::Error::other(error.to_string()),
        })?;
        let disk = Disk::open(Backing::device(device), &options, guids)?;
        Ok(Self { inner: Arc::new(Inner::new(Chain::new(vec![disk])?)) })
    }

    /// Number of files in the chain. `None` where it is not open.
    pub fn levels(&self) -> Option<usize> {
        let state = self.inner.state.read().unwrap_or_else(PoisonError::into_inner);
        state.chain().ok().map(|chain| chain.disks().len())
    }

    /// Ends the device: waits for operations under way, flushes, empties the log. Later operations fail as
    /// [`BlockError::Gone`]. If that takes longer than `time` it goes on, and the answer is [`BlockError::Timeout`].
    pub fn close(&self, time: Duration) -> Io<Result<(), BlockError>> {
        self.on(
            |workers| &workers.upkeep,
            move |inner| {
                let (inner, (told, heard)) = (Arc::clone(inner), mpsc::sync_channel(1));
                let closing = thread::Builder::new().name("vhdx-close".to_owned()).spawn(move || {
                    let _ = told.send(inner.close());
                });
                closing.map_err(BlockError::from)?;
                let timeout = BlockError::late(time);
                heard.recv_timeout(time).unwrap_or(Err(timeout))
            },
        )
    }

    fn on<T: Send + Unpin + 'static>(
        &self,
        pool: impl FnOnce(&Workers) -> &ThreadPool,
        job: impl FnOnce(&Arc<Inner>) -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        let inner = Arc::clone(&self.inner);
        pool(&self.inner.workers).io(move || job(&inner))
    }
}

impl Inner {
    fn new(chain: Chain<Backing>) -> Self {
        let disk = &chain.disks()[0];
        let parameters = disk.parameters();
        let geometry = Geometry {
            physical_sector: parameters.physical_sector.max(parameters.logical_sector),
            unmap: match parameters.kind {
                DiskKind::Fixed => Unmap::Never,
                DiskKind::Dynamic | DiskKind::Differencing => {
                    Unmap::Zeroes { granularity: UNMAP_GRANULARITY }
                }
            },
            read_only: disk.is_read_only(),
            volatile_cache: !disk.is_read_only(),
            ..Geometry::plain(parameters.disk_size).with_sector(parameters.logical_sector)
        };
        let device = match disk.storage() {
            Backing::File(_) => None,
            Backing::Device(bytes) => Some(Arc::clone(bytes.device())),
        };
        let (workers, write_back) = (Workers::new(), Arc::new(WriteBack::new()));
        if device.is_none() {
            workers.writes.wait_for(&write_back);
        }
        Self {
            device,
            identity: Mutex::new(identity(&chain)),
            names: NameWatch::new(names::named(&chain)),
            state: RwLock::new(ChainState::Open(chain)),
            geometry,
            size: AtomicU64::new(geometry.size),
            on_resize: Mutex::default(),
            write_back,
            giving_back: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            watch: Watch::default(),
            compacting: AtomicBool::new(false),
            wanting: AtomicUsize::new(0),
            left: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            failed: OnceLock::new(),
            workers,
            pulling: Mutex::default(),
            is_pulled: AtomicBool::new(false),
        }
    }

    /// A disk that lacks something.
    pub(crate) fn over(chain: Chain<Backing>, pulling: &Arc<Pulling>) -> Self {
        let inner = Self::new(chain);
        *inner.pulling.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(pulling));
        inner.is_pulled.store(true, Ordering::Release);
        inner
    }

    /// The pull, of a disk that lacks something.
    pub(crate) fn pulling(&self) -> Option<Arc<Pulling>> {
        if !self.is_pulled.load(Ordering::Acquire) {
            return None;
        }
        self.pulling.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The disk lacks nothing any more.
    pub(crate) fn end_pull(&self) {
        self.is_pulled.store(false, Ordering::Release);
        self.pulling.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Returns `true` if the device was closed.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), ChainState::Closed)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.geometry }
    }

    /// The chain, for the caller alone: operations under way have ended, later ones wait. A compaction makes way.
    pub(crate) fn alone(&self) -> Alone<'_> {
        Alone::new(&self.wanting, || self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns `true` if a compaction has to make way.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_left() || self.wanting.load(Ordering::Acquire) > 0
    }

    /// Returns `true` if the device has no user any more.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Waits until those have had the chain who want it for themselves.
    pub(crate) fn wait_for_others(&self) {
        /// Polling interval.
        const LOOK: Duration = Duration::from_millis(1);
        while self.wanting.load(Ordering::Acquire) > 0 {
            thread::sleep(LOOK);
        }
    }

    /// As [`with`](Self::with), for errors of another kind.
    pub(crate) fn look<T>(&self, job: impl FnOnce(&Chain<Backing>) -> T) -> Result<T, BlockError> {
        self.with(|chain| Ok(job(chain)))
    }

    fn compact(self: &Arc<Self>, task: &Compaction) -> Result<(), BlockError> {
        let done = compact::run(self, task);
        self.compacting.store(false, Ordering::Release);
        done
    }

    /// Uses the chain, unless it is closed.
    pub(crate) fn with<T>(
        &self,
        job: impl FnOnce(&Chain<Backing>) -> Result<T, DiskError>,
    ) -> Result<T, BlockError> {
        self.with_range(0, job)
    }

    /// The same for what concerns the disk from `offset` on.
    pub(crate) fn with_range<T>(
        &self,
        offset: u64,
        job: impl FnOnce(&Chain<Backing>) -> Result<T, DiskError>,
    ) -> Result<T, BlockError> {
        loop {
            match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
                ChainState::Open(chain) => {
                    return job(chain).map_err(|error| {
                        self.tell_of_a_cut(chain, &error);
                        self.tell_of_a_failure(chain);
                        meaning(error)
                    });
                }
                ChainState::Unopened(unopened) if !unopened.is_due() => return Err(unopened.error(offset)),
                ChainState::Unopened(_) => {}
                ChainState::Closed => return Err(closed()),
            }
            self.open_again();
        }
    }

    /// Fills `buf` if the page cache has all of it, and no lock is waited for.
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Ok(state) = self.state.try_read() else { return false };
        let ChainState::Open(chain) = &*state else { return false };
        let file = chain.disks()[0].storage();
        let done = file.is_worth_a_try(buf.len(), &self.workers.reads) && chain.read_now(offset, buf);
        if done {
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// Says once that the disk takes no writes any more, and how it does again.
    fn tell_of_a_failure(&self, chain: &Chain<Backing>) {
        let Some(why) = chain.disks().first().and_then(Disk::why_failed) else { return };
        self.failed.get_or_init(|| {
            let path = chain.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
            let said = format!(
                "{path}: {why}; which of the writes since the last flush are in the file is not known, so its disk refuses writes and \
                 flushes. When the storage of the file works again, have the file opened anew, which recovers it by its log: \
                 remove the LUN and add it again, or restart the process that has it open"
            );
            tracing::error!("{said}");
            said
        });
    }

    /// Says once that another program has cut the file: its users see medium errors alone.
    fn tell_of_a_cut(&self, chain: &Chain<Backing>, error: &DiskError) {
        let is_cut = match error {
            DiskError::Lost(_) => true,
            DiskError::Storage { kind, .. } => *kind == std::io::ErrorKind::UnexpectedEof,
            _ => false,
        };
        if !is_cut || self.cut.swap(true, Ordering::Relaxed) {
            return;
        }
        let path = chain.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
        tracing::error!(file = path, "{CUT}");
    }

    /// Changes a range of the disk.
    pub(crate) fn change<T>(
        &self,
        offset: u64,
        len: u64,
        job: impl FnOnce(&Chain<Backing>) -> Result<T, DiskError>,
    ) -> Result<T, BlockError> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.with_range(offset, |chain| {
            self.watch.note(offset, len);
            job(chain)
        })
    }

    /// Makes everything durable.
    pub(crate) fn flush(&self) -> Result<(), BlockError> {
        let mark = self.write_back.mark();
        self.with(Chain::flush)?;
        self.write_back.cleaned(mark);
        Ok(())
    }

    /// Counts what the page cache has taken of a host, and has it written when that is due.
    pub(crate) fn dirtied(self: &Arc<Self>, host: OwnerGroup, bytes: u64) {
        if self.device.is_none() && self.write_back.note(host, bytes) {
            self.start_pass();
        }
    }

    fn start_pass(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        // The host's flushes are made on other threads, so this one is free.
        let started = self.workers.flushes.io(move || {
            // Its error is kept by the kernel for the file that is flushed.
            let sync = || drop(inner.reopened().map(|file| file.sync_data()));
            if inner.write_back.pass(sync) {
                inner.start_pass();
            }
            Ok(())
        });
        if let Io::Ready(Err(_)) = started {
            self.write_back.give_up();
        }
    }

    /// Has the space of whole blocks that were unmapped given back to the host, which happens when that is durable: a
    /// host may send no flush for long. One flush is for all that is unmapped until it begins.
    fn give_back(self: &Arc<Self>) {
        if self.giving_back.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        let started = self.workers.flushes.io(move || {
            inner.giving_back.store(false, Ordering::Release);
            inner.flush()
        });
        if let Io::Ready(Err(_)) = started {
            self.giving_back.store(false, Ordering::Release);
        }
    }

    /// The file once more, with a memory of write-back errors of its own: what is told there is told to the disk too.
    fn reopened(&self) -> Option<File> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let Backing::File(file) = state.chain().ok()?.disks()[0].storage() else { return None };
        File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
    }

    fn close(&self) -> Result<(), BlockError> {
        // Of one that could not be opened again everything is durable.
        let chain = self.alone().take();
        self.end_pull();
        chain.map_or(Ok(()), |chain| chain.close().map_err(meaning))
    }

    fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let mut list = Vec::new();
        // A disk that is not thin has no range without space behind it.
        let hole = match self.geometry.unmap.zeroes() {
            true => ExtentKind::Unallocated,
            false => ExtentKind::Zero,
        };
        self.with(|chain| {
            chain.map(offset, len, |segment| match segment.source {
                _ if list.len() >= EXTENTS_MAX => holes::data(&segment).push_onto(&mut list),
                SegmentSource::Zero | SegmentSource::Unmapped | SegmentSource::NeverWritten => {
                    let kind = ExtentKind::Unallocated;
                    Extent { offset: segment.offset, len: segment.len, kind }.push_onto(&mut list);
                }
                SegmentSource::File(from) => holes::push_extents(chain, &segment, from, hole, &mut list),
                SegmentSource::Parent => holes::data(&segment).push_onto(&mut list),
            })
        })?;
        Ok(list)
    }
}

impl Drop for VhdxDevice {
    fn drop(&mut self) {
        // A compaction holds what is inside.
        self.inner.left.store(true, Ordering::Release);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(chain) = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let close = move || {
            if let Err(error) = chain.close() {
                tracing::error!(%error, "a VHDX file was not closed: its log is replayed when it is opened next");
            }
        };
        // Without a thread the closure is dropped, and the file with it: it is replayed when it is opened next.
        drop(thread::Builder::new().name("vhdx-close".to_owned()).spawn(close));
    }
}

/// Returns the identity of a chain's disk. A copy of the file has the same GUID, and lies elsewhere.
pub(crate) fn identity(chain: &Chain<Backing>) -> Identity {
    let disk = &chain.disks()[0];
    Identity {
        content: Some(format!("virtual disk {}", disk.parameters().disk_id)),
        place: match disk.storage() {
            Backing::File(file) => lunway_file::place(&**file),
            Backing::Device(bytes) => bytes.device().identity().place,
        },
    }
}

/// Returns the mode in which an unmap is carried out.
pub(crate) fn unmap(chain: &Chain<Backing>) -> DiscardMode {
    match chain.disks()[0].parameters().kind {
        DiskKind::Dynamic | DiskKind::Fixed => DiscardMode::Unmap,
        // An unmap of a part of a block would leave what the parent has there.
        DiskKind::Differencing => DiscardMode::Zero,
    }
}

/// For disks that are only read, which take none.
pub(crate) fn no_guids() -> Box<dyn GuidSource> {
    Box::new(|| Guid::ZERO)
}

/// The folder in which a file's parents are looked for, and below.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Converts an error of the engine to one of a device.
pub(crate) fn meaning(error: DiskError) -> BlockError {
    match error {
        DiskError::ReadOnly => BlockError::ReadOnly,
        DiskError::OutOfRange { offset, len, size } => BlockError::OutOfRange { offset, len, size },
        DiskError::Misaligned { offset, len, sector } => BlockError::Misaligned { offset, len, sector },
        DiskError::NoSpace | DiskError::Short { .. } => BlockError::NoSpace,
        DiskError::NoParent(offset) | DiskError::Lost(offset) => BlockError::Medium { offset },
        DiskError::Storage { what, kind, message } => {
            BlockError::Io { kind, message: format!("{what}: {message}") }
        }
        other => BlockError::Io { kind: std::io::ErrorKind::Other, message: other.to_string() },
    }
}

/// Message about a file that another program has cut.
const CUT: &str = "the VHDX file, or a parent, was cut behind its device's back: what is missing is lost, and fails as a medium error; \
     restore it from a backup, or let lunway disk repair fill it with zeroes";

impl BlockDevice for VhdxDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        match self.inner.geometry().check(offset, buf.len() as u64) {
            Ok(()) if !buf.is_empty() && self.inner.read_now(offset, &mut buf) => Io::ok(buf),
            Ok(()) if !buf.is_empty() && self.inner.pulling().is_some() => self.read_pulled(offset, buf),
            Ok(()) if !buf.is_empty() => self.on(
                |workers| &workers.reads,
                move |inner| {
                    inner.operations.fetch_add(1, Ordering::Relaxed);
                    inner.with_range(offset, |chain| chain.read_at(offset, &mut buf)).map(|()| buf)
                },
            ),
            checked => Io::Ready(checked.map(|()| buf)),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        match self.inner.geometry().check_write(offset, data.len() as u64) {
            Ok(()) if !data.is_empty() => {
                let (inner, host) = (Arc::clone(&self.inner), Owner::current_key().group());
                let len = data.len() as u64;
                let write = move || {
                    inner.change(offset, len, |chain| chain.write_at(offset, &data))?;
                    match durability {
                        Durability::Volatile => inner.dirtied(host, len),
                        Durability::Stable => inner.flush()?,
                    }
                    // The memory goes back to the pool of the thread that it is from.
                    Ok(data)
                };
                let writes = &self.inner.workers.writes;
                match durability {
                    Durability::Volatile => writes.io_cached(len, write),
                    // It waits for the disk itself.
                    Durability::Stable => writes.io(write),
                }
                .map(|written| written.map(drop))
            }
            checked => Io::Ready(checked),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        if self.inner.geometry.read_only {
            return Io::ok(());
        }
        // Any of the threads for writes: flushes that wait for each other share one commit.
        self.on(|workers| &workers.writes, |inner| inner.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.inner.geometry().check_write(offset, len) {
            Ok(()) if len > 0 && self.inner.geometry.unmap.frees() => self.on(
                |workers| &workers.writes,
                move |inner| {
                    inner.change(offset, len, |chain| chain.discard(offset, len, unmap(chain)))?;
                    inner.give_back();
                    Ok(())
                },
            ),
            checked => Io::Ready(checked),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let mode = match zeroing {
            Zeroing::MayUnmap => DiscardMode::Zero,
            Zeroing::KeepAllocated => DiscardMode::ZeroKeepSpace,
        };
        match self.inner.geometry().check_write(offset, len) {
            Ok(()) if len > 0 => self.on(
                |workers| &workers.writes,
                move |inner| inner.change(offset, len, |chain| chain.discard(offset, len, mode)),
            ),
            checked => Io::Ready(checked),
        }
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        match self.inner.geometry().check(offset, len) {
            Ok(()) if len > 0 => self.on(|workers| &workers.maps, move |inner| inner.extents(offset, len)),
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }

    fn lend(&self, offset: u64, len: u64) -> Io<Result<Option<FileRange>, BlockError>> {
        match self.inner.geometry().check(offset, len) {
            Ok(()) if len > 0 && self.inner.geometry.read_only => {
                self.on(|workers| &workers.reads, move |inner| inner.lend(offset, len))
            }
            checked => Io::Ready(checked.map(|()| None)),
        }
    }

    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        match self.inner.geometry().check_write(offset, from.len) {
            Ok(()) if from.len > 0 => {
                let (inner, host) = (Arc::clone(&self.inner), Owner::current_key().group());
                self.inner.workers.writes.io_cached(from.len, move || {
                    let adopted = inner.adopt(offset, &from)?;
                    if adopted {
                        // What is not shared is copied through the page cache.
                        inner.dirtied(host, from.len);
                    }
                    Ok(adopted)
                })
            }
            checked => Io::Ready(checked.map(|()| false)),
        }
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        self.inner.device.as_ref().map_or_else(|| Io::ok(()), |device| device.confirm())
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        if self.inner.geometry.read_only {
            return Io::err(BlockError::ReadOnly);
        }
        // One thread: one after another.
        self.on(|workers| &workers.upkeep, move |inner| inner.resize(size, &permit))
    }

    fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        if self.inner.geometry.read_only {
            return Io::err(BlockError::ReadOnly);
        }
        let leaf = leaf.to_owned();
        self.on(|workers| &workers.upkeep, move |inner| inner.snapshot(&leaf, commit))
    }

    fn compact(&self, task: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        if self.inner.geometry.read_only {
            return Io::err(BlockError::ReadOnly);
        }
        if let Err(why) = self.inner.refuse_pulled() {
            return Io::err(BlockError::Compaction { why });
        }
        if self.inner.compacting.swap(true, Ordering::AcqRel) {
            return Io::err(BlockError::Busy);
        }
        let job = Arc::clone(&task);
        let answer = self.on(|workers| &workers.background, move |inner| inner.compact(&job));
        if let Io::Ready(Err(_)) = answer {
            self.inner.compacting.store(false, Ordering::Release);
        }
        answer.map(move |answer| {
            task.enter(CompactionPhase::Ended);
            answer
        })
    }

    fn pull(&self) -> Option<Pull> {
        self.inner.pull()
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.inner.on_resize.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        let closed = VhdxDevice::close(self, CLOSE_TIME);
        match self.inner.device.clone() {
            Some(device) => closed.then(move |closed| device.close().map(move |below| closed.and(below))),
            None => closed,
        }
    }

    fn identity(&self) -> Identity {
        self.inner.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn backing(&self) -> Option<String> {
        match (&self.inner.device, self.inner.cut.load(Ordering::Relaxed)) {
            (Some(device), _) => device.backing(),
            (None, true) => Some(CUT.to_owned()),
            (None, false) => self.inner.failed.get().cloned().or_else(|| self.inner.names.found()),
        }
    }

    fn lost_name(&self) -> Option<String> {
        match &self.inner.device {
            Some(device) => device.lost_name(),
            None => self.inner.names.lost_now(),
        }
    }

    fn caching(&self) -> Caching {
        Caching::PageCache
    }
}
