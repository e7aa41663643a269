//! The device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Geometry, Io, SharedBuf, Zeroing,
};
use lunway_file::{Lane, Workers};
use lunway_vhdx::{Chain, DiscardMode, DiskError, Kind, Source};

use crate::random_guids;

/// The unit in which unmapped parts of a block are given back, bytes: the block of host file systems. Whole blocks change their state.
const UNMAP_GRANULARITY: u32 = 4096;
/// Extents told by one call; what follows is told as data, which is always true enough. As many as a file tells: it bounds time and memory
/// for hostile files.
const EXTENTS_MAX: usize = 65_536;

/// Why a VHDX file could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}: {source}", path.display())]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it or its parents.
    pub source: lunway_vhdx::OpenError,
}

/// A VHDX file with its parents.
///
/// - **Locked**, as the engine locks: one writer, parents and read-only disks shared.
/// - **Never blocks the caller**: everything is done on threads of its own, 16 for reads and 16 for writes at most. A write that allocates
///   waits for others of the same block alone.
/// - **Zeroes after an unmap**, also where a parent has data. A fixed disk is not thin: an unmap does nothing there.
/// - **Closed by [`close`](Self::close)**, which leaves an empty log. Dropped, it is closed on a thread; killed, it is replayed when it is
///   opened next.
///
/// After a flush of the host has failed, writes and flushes fail until the file is opened again: see [`lunway_vhdx::Disk`].
pub struct VhdxDevice {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None` once it is closed. Operations share it, on their threads.
    chain: RwLock<Option<Chain<File>>>,
    geometry: Geometry,
    /// How a guest's unmap is carried out.
    unmap: DiscardMode,
    workers: Workers,
}

impl VhdxDevice {
    /// Opens and locks a file and its parents, which are looked for in the file's folder and below. Blocks.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which says what is wrong and where.
    pub fn open(path: &Path, read_only: bool) -> Result<Self, OpenError> {
        let failed = |source| OpenError { path: path.to_owned(), source };
        let options = match read_only {
            true => lunway_vhdx::OpenOptions::read_only(),
            false => lunway_vhdx::OpenOptions::writable(),
        };
        let access = |what, source| failed(lunway_vhdx::OpenError::Access { what, source });
        let random = |error: getrandom::Error| {
            access("asking for random numbers", std::io::Error::other(error.to_string()))
        };
        // The first one is for the file. Its parents are only read, and take none.
        let mut guids = Some(random_guids().map_err(random)?);
        let guids = || guids.take().unwrap_or_else(|| Box::new(|| lunway_vhdx::format::Guid::ZERO));
        let canonical = path.canonicalize().map_err(|source| access("looking for the file", source))?;
        let folder = canonical.parent().unwrap_or(Path::new("/"));
        let chain = Chain::open_files(&canonical, folder, &options, guids).map_err(failed)?;
        Ok(Self { inner: Arc::new(Inner::new(chain)) })
    }

    /// The disks of the chain, the one that is written first: their parameters, for people. `None` once it is closed.
    pub fn levels(&self) -> Option<usize> {
        self.inner
            .chain
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|chain| chain.disks().len())
    }

    /// Ends the device: waits for operations under way, flushes, empties the log. Later operations fail as [`BlockError::Gone`]. If that
    /// takes longer than `time` it goes on, and the answer is [`BlockError::Timeout`].
    pub fn close(&self, time: Duration) -> Io<Result<(), BlockError>> {
        self.on(
            |workers| &workers.upkeep,
            move |inner| {
                let (inner, (told, heard)) = (Arc::clone(inner), mpsc::sync_channel(1));
                let closing = thread::Builder::new().name("vhdx-close".to_owned()).spawn(move || {
                    let _ = told.send(inner.close());
                });
                closing.map_err(BlockError::from)?;
                let timeout = BlockError::Timeout { millis: time.as_millis() as u64 };
                heard.recv_timeout(time).unwrap_or(Err(timeout))
            },
        )
    }

    fn on<T: Send + Unpin + 'static>(
        &self,
        lane: impl FnOnce(&Workers) -> &Lane,
        job: impl FnOnce(&Arc<Inner>) -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        let inner = Arc::clone(&self.inner);
        lane(&self.inner.workers).io(move || job(&inner))
    }
}

impl Inner {
    fn new(chain: Chain<File>) -> Self {
        let disk = &chain.disks()[0];
        let parameters = disk.parameters();
        let thin = parameters.kind != Kind::Fixed;
        let geometry = Geometry {
            physical_sector: parameters.physical_sector.max(parameters.logical_sector),
            thin,
            unmap_granularity: if thin { UNMAP_GRANULARITY } else { 0 },
            unmap_zeroes: thin,
            read_only: disk.is_read_only(),
            volatile_cache: !disk.is_read_only(),
            ..Geometry::plain(parameters.disk_size).with_sector(parameters.logical_sector)
        };
        let unmap = match parameters.kind {
            Kind::Dynamic | Kind::Fixed => DiscardMode::Unmap,
            // An unmap of a part of a block would leave what the parent has there.
            Kind::Differencing => DiscardMode::Zero,
        };
        Self { chain: RwLock::new(Some(chain)), geometry, unmap, workers: Workers::new() }
    }

    /// Uses the chain, unless it is closed.
    fn with<T>(&self, job: impl FnOnce(&Chain<File>) -> Result<T, DiskError>) -> Result<T, BlockError> {
        match &*self.chain.read().unwrap_or_else(PoisonError::into_inner) {
            Some(chain) => job(chain).map_err(meaning),
            None => Err(BlockError::Gone { why: "the VHDX file was closed".to_owned() }),
        }
    }

    fn close(&self) -> Result<(), BlockError> {
        let chain = self.chain.write().unwrap_or_else(PoisonError::into_inner).take();
        chain.map_or(Ok(()), |chain| chain.close().map_err(meaning))
    }

    fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let mut list = Vec::new();
        self.with(|chain| {
            chain.map(offset, len, |segment| {
                let kind = match segment.source {
                    Source::Zero | Source::Unmapped | Source::NeverWritten if list.len() < EXTENTS_MAX => {
                        ExtentKind::Unallocated
                    }
                    _ => ExtentKind::Data,
                };
                Extent { offset: segment.offset, len: segment.len, kind }.push_onto(&mut list);
            })
        })?;
        Ok(list)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(chain) = self.chain.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let close = move || {
            if let Err(error) = chain.close() {
                tracing::error!(%error, "a VHDX file was not closed: its log is replayed when it is opened next");
            }
        };
        // Without a thread the closure is dropped, and the file with it: it is replayed when it is opened next.
        drop(thread::Builder::new().name("vhdx-close".to_owned()).spawn(close));
    }
}

/// What the engine's errors are to a device.
fn meaning(error: DiskError) -> BlockError {
    match error {
        DiskError::ReadOnly => BlockError::ReadOnly,
        DiskError::OutOfRange { offset, len, size } => BlockError::OutOfRange { offset, len, size },
        DiskError::Misaligned { offset, len, sector } => BlockError::Misaligned { offset, len, sector },
        DiskError::NoSpace => BlockError::NoSpace,
        DiskError::NoParent(offset) => BlockError::Medium { offset },
        DiskError::Storage { what, kind, message } => {
            BlockError::Io { kind, message: format!("{what}: {message}") }
        }
        other => BlockError::Io { kind: std::io::ErrorKind::Other, message: other.to_string() },
    }
}

impl BlockDevice for VhdxDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        match self.inner.geometry.check(offset, buf.len() as u64) {
            Ok(()) if !buf.is_empty() => self.on(
                |workers| &workers.reads,
                move |inner| inner.with(|chain| chain.read_at(offset, &mut buf)).map(|()| buf),
            ),
            checked => Io::Ready(checked.map(|()| buf)),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        match self.inner.geometry.check_write(offset, data.len() as u64) {
            Ok(()) if !data.is_empty() => self.on(
                |workers| &workers.writes,
                move |inner| {
                    inner.with(|chain| {
                        chain.write_at(offset, &data)?;
                        match durability {
                            Durability::Volatile => Ok(()),
                            Durability::Stable => chain.flush(),
                        }
                    })
                },
            ),
            checked => Io::Ready(checked),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        if self.inner.geometry.read_only {
            return Io::ok(());
        }
        // Any of the threads for writes: flushes that wait for each other share one commit.
        self.on(|workers| &workers.writes, |inner| inner.with(Chain::flush))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.inner.geometry.check_write(offset, len) {
            Ok(()) if len > 0 && self.inner.geometry.thin => self.on(
                |workers| &workers.writes,
                move |inner| inner.with(|chain| chain.discard(offset, len, inner.unmap)),
            ),
            checked => Io::Ready(checked),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let mode = match zeroing {
            Zeroing::MayUnmap => DiscardMode::Zero,
            Zeroing::KeepAllocated => DiscardMode::ZeroKeepSpace,
        };
        match self.inner.geometry.check_write(offset, len) {
            Ok(()) if len > 0 => self.on(
                |workers| &workers.writes,
                move |inner| inner.with(|chain| chain.discard(offset, len, mode)),
            ),
            checked => Io::Ready(checked),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Result<Vec<Extent>, BlockError>> {
        match self.inner.geometry.check(offset, len) {
            Ok(()) if len > 0 => self.on(|workers| &workers.reads, move |inner| inner.extents(offset, len)),
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }

    fn caching(&self) -> Caching {
        Caching::PageCache
    }
}
