//! An image as a block device.
#![expect(unsafe_code, reason = "librbd calls back with a pointer when the image has changed: see `Watched`")]

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use lunway_block::spec::RbdName;
use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Fate, Geometry, Identity, Io,
    Permit, ResizeCallback, SharedBuf, Unmap, Zeroing,
};

use crate::RbdOpenError;
use crate::cluster::{Cluster, limit};
use crate::gate::Gate;
use crate::image::Image;
use crate::lane::Lane;
use crate::library::Library;
use crate::{lock, request};

/// The unit of BlueStore's allocation (`bluestore_min_alloc_size`, 4 KiB since Ceph 16): smaller writes read first.
const PHYSICAL_SECTOR: u32 = 4096;
/// The unit in which hosts are asked to give space back, bytes: librbd's own for discards
/// (`rbd_discard_granularity_bytes`). Smaller parts become zeroes as well, but cost an operation of an OSD each.
const UNMAP_GRANULARITY: u32 = 64 << 10;
/// Objects of which the map is asked for at a time: 4 GiB of an image with objects of the usual 4 MiB, so that a map of
/// the first pieces does not wait for all.
const MAP_OBJECTS: u64 = 1024;

/// Options for opening an image.
#[derive(Clone, Debug)]
pub struct RbdOptions {
    /// Opens it for reading, without its lock.
    pub read_only: bool,
    /// Logical sector, bytes: 512 or 4096.
    pub sector: u32,
    /// One file that has all functions of librados and librbd, for tests; `None`: those that are installed.
    pub library: Option<PathBuf>,
}

impl Default for RbdOptions {
    fn default() -> Self {
        Self { read_only: false, sector: 512, library: None }
    }
}

/// An image of a Ceph cluster, or a snapshot of one.
///
/// Opened by [`open`](Self::open), ended by [`close`](BlockDevice::close). Dropped without that, it gives up lock and
/// connection on its own thread once what is under way is answered.
pub struct RbdDevice {
    shared: Arc<Shared>,
}

/// What operations under way keep alive.
pub(crate) struct Shared {
    pub(crate) image: Image,
    pub(crate) gate: Gate,
    lane: Lane,
    name: RbdName,
    /// All of the geometry but the size.
    shape: Geometry,
    size: AtomicU64,
    object_size: u64,
    identity: Identity,
    callbacks: Mutex<Vec<ResizeCallback>>,
    /// A look at the size is on its way.
    looking: AtomicBool,
    watch: Mutex<Option<Watched>>,
    /// Why the cluster refuses this client for good.
    fenced: OnceLock<String>,
}

/// A watch on the image's header: its number and the argument of its callback, a leaked `Weak`, freed when the image is
/// closed and no callback can come any more.
struct Watched {
    number: u64,
    argument: *const Shared,
}

// SAFETY: the pointer is a `Weak`, which may be sent and dropped on any thread, because `Shared` may.
unsafe impl Send for Watched {}

/// Called by librbd on a thread of its own after each change of the image's header.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: the argument is the leaked `Weak` of a watch, which is freed after the watch and the image were closed;
    // it is not dropped here.
    let weak = std::mem::ManuallyDrop::new(unsafe { Weak::from_raw(argument.cast_const().cast::<Shared>()) });
    if let Some(shared) = weak.upgrade() {
        Shared::look(&shared);
    }
}

impl RbdDevice {
    /// Opens an image, on a thread.
    ///
    /// # Errors
    ///
    /// [`RbdOpenError`]: the library or the image is missing, another client writes, or what the cluster said.
    pub async fn open(name: &RbdName, options: &RbdOptions) -> Result<Self, RbdOpenError> {
        let started = Lane::start();
        let lane = started.map_err(|source| RbdOpenError::Failed {
            name: name.to_string(),
            doing: "starting a thread".to_owned(),
            source,
        })?;
        let (name_there, options) = (name.clone(), options.clone());
        let opening = lane.io(move || Ok(Ready::open(&name_there, &options)));
        let ready = opening
            .await
            .map_err(|error| RbdOpenError::Shape { name: name.to_string(), why: error.to_string() })??;
        let shared = Arc::new(Shared {
            image: ready.image,
            gate: Gate::default(),
            lane,
            name: name.clone(),
            size: AtomicU64::new(ready.shape.size),
            shape: ready.shape,
            object_size: ready.object_size,
            identity: ready.identity,
            callbacks: Mutex::default(),
            looking: AtomicBool::new(false),
            watch: Mutex::default(),
            fenced: OnceLock::new(),
        });
        let device = Self { shared };
        let watching = Arc::clone(&device.shared);
        let watched = device.shared.lane.io(move || Ok(Shared::watch(&watching)));
        let failed = |why: String| RbdOpenError::Shape { name: name.to_string(), why };
        watched
            .await
            .map_err(|error| failed(error.to_string()))?
            .map_err(|errno| RbdOpenError::failed(errno, name, "watching the image"))?;
        Ok(device)
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        self.shared.gate.close();
        let shared = Arc::clone(&self.shared);
        self.shared.lane.run(move || {
            if let Err(error) = shared.end() {
                tracing::error!(device = %shared.name, %error, "the image was not closed in order");
            }
        });
    }
}

/// An image that was opened, and locked where it is written.
struct Ready {
    image: Image,
    shape: Geometry,
    object_size: u64,
    identity: Identity,
}

impl Ready {
    fn open(name: &RbdName, options: &RbdOptions) -> Result<Self, RbdOpenError> {
        let library = Library::load(options.library.as_deref())?;
        let failed = |doing: &'static str| move |errno| RbdOpenError::failed(errno, name, doing);
        let read_only = options.read_only || name.snapshot.is_some();
        let image = Image::open(Cluster::connect(library, name)?, name, read_only)?;
        if !read_only {
            lock::take(&image, name)?;
        }
        let (size, object_size) = image.sizes().map_err(failed("asking for its size"))?;
        let cached = image.has_cache().map_err(failed("asking for its options"))?;
        let plain = Geometry::plain(size).with_sector(options.sector);
        if plain.size != size {
            let why = format!("{size} bytes are not whole sectors of {} bytes", options.sector);
            return Err(RbdOpenError::Shape { name: name.to_string(), why });
        }
        let shape = Geometry {
            physical_sector: PHYSICAL_SECTOR,
            optimal_transfer: u32::try_from(object_size).unwrap_or(0),
            unmap: if read_only { Unmap::Holes } else { Unmap::Zeroes { granularity: UNMAP_GRANULARITY } },
            read_only,
            volatile_cache: cached && !read_only,
            ..plain
        };
        let snapshot = match &name.snapshot {
            Some(snapshot) => Some(image.snapshot_id(snapshot).map_err(failed("asking for the snapshot"))?),
            None => None,
        };
        let id = image.id().map_err(failed("asking for its id"))?;
        let namespace = name.namespace.as_deref().unwrap_or("");
        let (fsid, pool) = (image.cluster.fsid(), image.cluster.pool_id());
        let at = snapshot.map(|number| format!("@{number}")).unwrap_or_default();
        let identity = Identity::of_place(format!("rbd {fsid}/{pool}/{namespace}/{id}{at}"));
        Ok(Self { image, shape, object_size, identity })
    }
}

impl Shared {
    pub(crate) fn library(&self) -> &'static Library {
        self.image.cluster.library
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.shape }
    }

    /// Refusal of an operation after [`BlockDevice::close`].
    pub(crate) fn closed(&self) -> BlockError {
        BlockError::gone("it was closed")
    }

    /// Refuses what the cluster would refuse.
    pub(crate) fn usable(&self) -> Result<(), BlockError> {
        match self.fenced.get() {
            Some(why) => Err(BlockError::gone(why.clone())),
            None => Ok(()),
        }
    }

    /// Takes note of an error: from the first answer that says so the client is fenced, for good.
    pub(crate) fn failed(&self, errno: i32) {
        if errno != -libc::ESHUTDOWN || self.fenced.get().is_some() {
            return;
        }
        let why = format!(
            "the cluster has fenced this client (it is on the blocklist): another one writes to {} now; open the device again to go on",
            self.name.image_path()
        );
        if self.fenced.set(why.clone()).is_ok() {
            tracing::error!(device = %self.name, "{why}");
        }
    }

    /// Error for an answer of librbd about a range.
    pub(crate) fn meaning(&self, errno: i32, offset: u64, len: u64) -> BlockError {
        let gone = |why: &str, fate| BlockError::Gone { why: why.to_owned(), fate };
        match -errno {
            // Every part of the operation was answered, and none of this client's can happen any more.
            libc::ESHUTDOWN => {
                gone(self.fenced.get().map_or("the cluster has fenced this client", |why| why), Fate::Over)
            }
            libc::ENOENT => gone("the image is not there any more", Fate::Over),
            libc::EROFS if !self.shape.read_only => gone("the image's lock was lost", Fate::Over),
            libc::ENOSPC | libc::EDQUOT => BlockError::NoSpace,
            // librbd has given up; an OSD may have it, or get it yet.
            libc::ETIMEDOUT => BlockError::late(limit(&self.name)),
            libc::EBUSY => BlockError::Busy,
            libc::EIO => BlockError::Medium { offset },
            // Checked when it was begun: the image has become smaller since.
            libc::EINVAL if len > 0 => {
                let size = self.size.load(Ordering::Acquire).min(offset);
                BlockError::OutOfRange { offset, len, size }
            }
            errno => std::io::Error::from_raw_os_error(errno).into(),
        }
    }

    /// Begins to watch for changes of the size. On the lane.
    fn watch(shared: &Arc<Self>) -> Result<(), i32> {
        let argument = Arc::downgrade(shared).into_raw();
        // SAFETY: the argument is valid until it is freed: here, if there is no watch, else in `end` after the watch
        // and the image were closed.
        match unsafe { shared.image.watch(updated, argument.cast_mut().cast()) } {
            Ok(number) => {
                *shared.watch.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Watched { number, argument });
                Ok(())
            }
            Err(errno) => {
                // SAFETY: it was leaked above, and nothing else has it.
                drop(unsafe { Weak::from_raw(argument) });
                Err(errno)
            }
        }
    }

    /// Has the lane look whether the size has changed. Never blocks.
    fn look(shared: &Arc<Self>) {
        if !shared.looking.swap(true, Ordering::AcqRel) {
            let looks = Arc::clone(shared);
            shared.lane.run(move || {
                looks.looking.store(false, Ordering::Release);
                if looks.image.is_open() {
                    looks.take_size();
                }
            });
        }
    }

    /// Asks for the size, takes it and tells those who asked. On the lane.
    fn take_size(&self) {
        let Ok((size, _)) = self.image.sizes() else { return };
        // A size of another client's choice may be no whole sectors: the last bytes are not shown.
        let size = size / u64::from(self.shape.logical_sector) * u64::from(self.shape.logical_sector);
        if self.size.swap(size, Ordering::AcqRel) != size {
            let geometry = self.geometry();
            for callback in &*self.callbacks.lock().unwrap_or_else(PoisonError::into_inner) {
                callback(geometry);
            }
        }
    }

    /// Gives everything up. On the lane, once the gate is closed; nothing where that was done.
    fn end(&self) -> Result<(), BlockError> {
        self.gate.wait();
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(watched) = &watch {
            self.image.unwatch(watched.number);
        }
        let closed = self.image.shut(!self.shape.read_only);
        if let Some(Watched { argument, .. }) = watch {
            // SAFETY: leaked by `watch`, freed once; the image is closed, so that no callback has it.
            drop(unsafe { Weak::from_raw(argument) });
        }
        match closed {
            // A fenced client has nothing that it acknowledged and that is not durable.
            Err(_) if self.fenced.get().is_some() && !self.shape.volatile_cache => Ok(()),
            Err(errno) => Err(self.meaning(errno, 0, 0)),
            Ok(()) => Ok(()),
        }
    }

    /// Pieces of a range, by whole objects. On the lane.
    fn extents(&self, offset: u64, len: u64, count: usize) -> Result<Vec<Extent>, BlockError> {
        let (mut list, end) = (Vec::new(), offset + len);
        let step = self.object_size.max(1).saturating_mul(MAP_OBJECTS);
        let mut at = offset;
        while at < end {
            // Up to a border of objects.
            let until = end.min((at / step + 1) * step);
            if !self.image.is_open() {
                return Err(self.closed());
            }
            let mut there = self.image.allocated(at, until - at).map_err(|errno| {
                self.failed(errno);
                self.meaning(errno, at, until - at)
            })?;
            there.sort_unstable();
            for (from, len) in there {
                let (from, to) = (from.max(at), (from.saturating_add(len)).min(until));
                if from < to {
                    Extent { offset: at, len: from - at, kind: ExtentKind::Unallocated }.push_onto(&mut list);
                    Extent { offset: from, len: to - from, kind: ExtentKind::Data }.push_onto(&mut list);
                    at = to;
                }
            }
            Extent { offset: at, len: until - at, kind: ExtentKind::Unallocated }.push_onto(&mut list);
            at = until;
            // The last piece may go on.
            if list.len() >= count {
                break;
            }
        }
        Ok(list)
    }

    fn resize(&self, size: u64, permit: &Permit) -> Result<(), BlockError> {
        if !self.image.is_open() {
            return Err(self.closed());
        }
        self.usable()?;
        let sector = self.shape.logical_sector;
        if size == 0 || !size.is_multiple_of(u64::from(sector)) {
            let why = format!("{size} bytes are not whole sectors of {sector} bytes, or none");
            return Err(BlockError::Size { why });
        }
        permit.begin()?;
        let resized = self.image.resize(size).map_err(|errno| {
            self.failed(errno);
            self.meaning(errno, 0, 0)
        });
        self.take_size();
        resized
    }
}

impl BlockDevice for RbdDevice {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() { Io::ok(buf) } else { request::read(&self.shared, offset, buf) }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.geometry().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let written = request::write(&self.shared, offset, data);
        self.stable(written, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        request::flush(&self.shared)
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.write_zeroes(offset, len, Zeroing::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.geometry().check_write(offset, len) {
            return Io::err(error);
        }
        let flags = if zeroing == Zeroing::KeepAllocated { request::THICK } else { 0 };
        if len == 0 { Io::ok(()) } else { request::write_zeroes(&self.shared, offset, len, flags) }
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.geometry().check(offset, len).and_then(|()| self.shared.usable()) {
            return Io::err(error);
        }
        let shared = Arc::clone(&self.shared);
        self.shared.lane.io(move || shared.extents(offset, len, count))
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        if self.shared.shape.read_only {
            return Io::err(BlockError::ReadOnly);
        }
        let shared = Arc::clone(&self.shared);
        self.shared.lane.io(move || shared.resize(size, &permit))
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        self.shared.gate.close();
        let shared = Arc::clone(&self.shared);
        self.shared.lane.ending(move || shared.end())
    }

    fn identity(&self) -> Identity {
        self.shared.identity.clone()
    }

    fn backing(&self) -> Option<String> {
        self.shared.fenced.get().cloned()
    }

    fn caching(&self) -> Caching {
        if self.shared.shape.volatile_cache { Caching::WriteBack } else { Caching::PastPageCache }
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.shared.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }
}

impl RbdDevice {
    /// A completed write is durable unless librbd keeps writes.
    fn stable(
        &self,
        written: Io<Result<(), BlockError>>,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        if durability == Durability::Volatile || !self.shared.shape.volatile_cache {
            return written;
        }
        let shared = Arc::clone(&self.shared);
        written.then(move |done| match done {
            Ok(()) => request::flush(&shared),
            Err(error) => Io::err(error),
        })
    }
}
