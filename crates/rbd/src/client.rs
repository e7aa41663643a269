//! A client of a cluster with one image open: what an [`RbdDevice`](crate::RbdDevice) has until it is fenced.
#![expect(unsafe_code, reason = "librbd calls back with a pointer when the image has changed: see `Watched`")]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lunway_block::duration::HumanTime;
use lunway_block::spec::RbdName;
use lunway_block::{BlockError, Extent, ExtentKind, Fate, Geometry, Identity, Permit, ResizeCallback, Unmap};

use crate::RbdOpenError;
use crate::cluster::Cluster;
use crate::connection::{Connection, limit};
use crate::gate::Gate;
use crate::image::Image;
use crate::lane::Lane;
use crate::library::Library;
use crate::lock;
use crate::options::RbdOptions;
use crate::pending::{self, LookedAfter, Outcome, Pending};

/// The unit of BlueStore's allocation (`bluestore_min_alloc_size`, 4 KiB since Ceph 16): smaller writes read first.
const PHYSICAL_SECTOR: u32 = 4096;
/// The unit in which hosts are asked to give space back, bytes: librbd's own for discards
/// (`rbd_discard_granularity_bytes`). Smaller parts become zeroes as well, but cost an operation of an OSD each.
const UNMAP_GRANULARITY: u32 = 64 << 10;
/// Interval in which it is asked whether what is served and only read is still there: a user who may only read is told
/// of no change.
const PRESENCE_SECONDS: u64 = 10;
/// Objects of which the map is asked for at a time: 4 GiB of an image with objects of the usual 4 MiB, so that a map of
/// the first pieces does not wait for all.
const MAP_OBJECTS: u64 = 1024;

/// What hears of changes of the image, and outlives a client.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) resized: Mutex<Vec<ResizeCallback>>,
    /// Called once for each client that is fenced, on a thread of librbd.
    pub(crate) fenced: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Listeners {
    pub(crate) fn tell(&self, geometry: Geometry) {
        for callback in &*self.resized.lock().unwrap_or_else(PoisonError::into_inner) {
            callback(geometry);
        }
    }
}

/// A client: what operations under way keep alive.
pub(crate) struct Client {
    pub(crate) image: Image,
    pub(crate) gate: Gate,
    pub(crate) lane: Lane,
    name: RbdName,
    /// All of the geometry but the size.
    pub(crate) shape: Geometry,
    size: AtomicU64,
    object_size: u64,
    pub(crate) identity: Identity,
    /// The image's id.
    id: String,
    /// The snapshot's number, of a snapshot.
    pub(crate) snapshot: Option<u64>,
    /// This client's address, by the lock that it has; `None`: it has none.
    pub(crate) address: Option<String>,
    /// Holder of the lock before this client.
    pub(crate) before: Option<String>,
    /// Another takes its place when it is fenced: what is asked of it then is put off, not refused.
    renews: bool,
    listeners: Arc<Listeners>,
    /// Reads, writes and flushes under way.
    pub(crate) pending: Pending<Outcome>,
    /// For how long it has been looked after, about.
    seconds: AtomicU64,
    /// A look at the image is on its way.
    looking: AtomicBool,
    watch: Mutex<Option<Watched>>,
    /// Why this client is of no use any more.
    fenced: OnceLock<String>,
}

/// What an image has had written since an older snapshot of it: a part of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdChanges {
    /// Bytes that were written or given back, in order.
    pub ranges: Vec<Range<u64>>,
    /// Where the next part begins, bytes.
    pub end: u64,
}

/// Ranges in order, those that touch made one.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut list: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match list.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => list.push(range),
        }
    }
    list
}

/// A watch on the image's header: its number and the argument of its callback, a leaked `Weak`, freed when the image is
/// closed and no callback can come any more.
struct Watched {
    number: u64,
    argument: *const Client,
}

// SAFETY: the pointer is a `Weak`, which may be sent and dropped on any thread, because `Client` may.
unsafe impl Send for Watched {}

/// Called by librbd on a thread of its own after each change of the image's header.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: the argument is the leaked `Weak` of a watch, which is freed after the watch and the image were closed;
    // it is not dropped here.
    let weak = std::mem::ManuallyDrop::new(unsafe { Weak::from_raw(argument.cast_const().cast::<Client>()) });
    if let Some(client) = weak.upgrade() {
        Client::look(&client);
    }
}

/// An image that was opened, and locked where it is written.
struct Ready {
    image: Image,
    shape: Geometry,
    object_size: u64,
    identity: Identity,
    id: String,
    snapshot: Option<u64>,
    address: Option<String>,
    before: Option<String>,
}

impl Ready {
    fn open(name: &RbdName, options: &RbdOptions, old: Option<&str>) -> Result<Self, RbdOpenError> {
        let library = Library::load(options.library.as_deref())?;
        // One that ends with an error when its client is fenced shares none.
        let connection = Connection::of(library, name, options.renew)?;
        let opened = Self::on(Arc::clone(&connection), name, options, old);
        if opened.as_ref().err().and_then(RbdOpenError::errno) == Some(-libc::ESHUTDOWN) {
            connection.spend("the cluster has fenced it (it is on the blocklist)");
        }
        opened
    }

    fn on(
        connection: Arc<Connection>,
        name: &RbdName,
        options: &RbdOptions,
        old: Option<&str>,
    ) -> Result<Self, RbdOpenError> {
        let failed = |doing: &'static str| move |errno| RbdOpenError::failed(errno, name, doing);
        let read_only = options.read_only || name.snapshot.is_some();
        let library = connection.library;
        let image = Image::open(Cluster::open(connection, name)?, name, read_only)?;
        let (mut before, mut address) = (None, None);
        if !read_only {
            before = lock::take(&image, name, old).map_err(|refused| image.reason(refused, name))?;
            address = image.lock_owner().map_err(failed("asking who holds its lock"))?;
            if let Some(address) = &address {
                image.cluster.connection.has_address(address);
            }
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
            unmap: match library.rbd_aio_write_zeroes {
                _ if read_only => Unmap::Holes,
                Some(_) => Unmap::Zeroes { granularity: UNMAP_GRANULARITY },
                // Its discards leave what is no whole unit of its own as it was.
                None => Unmap::Ignored,
            },
            read_only,
            volatile_cache: cached && !read_only,
            ..plain
        };
        let snapshot = match &name.snapshot {
            Some(snapshot) => Some(image.snapshot_id(snapshot).map_err(failed("asking for the snapshot"))?),
            None => None,
        };
        let id = image.id().map_err(failed("asking for its id"))?;
        let place = image.place(name, &id);
        let at = snapshot.map(|number| format!("@{number}")).unwrap_or_default();
        let identity = Identity::of_place(format!("rbd {place}{at}"));
        Ok(Self { image, shape, object_size, identity, id, snapshot, address, before })
    }
}

impl LookedAfter for Client {
    fn look_after(self: Arc<Self>) {
        self.give_up_late();
        if self.renews && self.shape.read_only {
            let seconds = self.seconds.fetch_add(1, Ordering::Relaxed);
            if seconds % PRESENCE_SECONDS == PRESENCE_SECONDS - 1 {
                Self::look(&self);
            }
        }
    }
}

impl Client {
    /// Gives up operations that librbd should have answered. It loses some where the image is taken away under it
    /// (seen of Ceph 16: writes that wait for a lock which a removed header cannot give). A device that is served goes
    /// on with a new client, which fences this one before it takes the lock: nothing of it can land later.
    ///
    /// Another image of the same client may have found that it is of no use any more: this one does not wait for an
    /// error of its own.
    fn give_up_late(&self) {
        if let Some(why) = self.image.cluster.connection.spent().filter(|_| self.fenced.get().is_none()) {
            let (image, share) = (self.name.image_path(), self.name.share.as_deref().unwrap_or_default());
            self.lost(format!("{image} shares its client (share={share}), and that has ended: {why}"));
        }
        let (late, time) = (self.pending.give_up(self.patience()), HumanTime(self.patience()));
        if late == 0 {
            return;
        }
        let why =
            format!("librbd has not answered {late} operations on {} within {time}", self.name.image_path());
        match self.renews {
            true => self.lost(why),
            false => tracing::error!(device = %self.name, "{why}"),
        }
    }

    /// Opens an image. Blocks; on `lane`, whose thread the client has from then on. `old` is the address of the client
    /// that this one follows.
    pub(crate) fn open(
        lane: Lane,
        name: &RbdName,
        options: &RbdOptions,
        listeners: &Arc<Listeners>,
        old: Option<&str>,
    ) -> Result<Arc<Self>, RbdOpenError> {
        let ready = Ready::open(name, options, old)?;
        let client = Arc::new(Self {
            image: ready.image,
            gate: Gate::default(),
            lane,
            name: name.clone(),
            size: AtomicU64::new(ready.shape.size),
            shape: ready.shape,
            object_size: ready.object_size,
            identity: ready.identity,
            id: ready.id,
            snapshot: ready.snapshot,
            address: ready.address,
            before: ready.before,
            renews: options.renew,
            listeners: Arc::clone(listeners),
            pending: Pending::default(),
            seconds: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            watch: Mutex::default(),
            fenced: OnceLock::new(),
        });
        let looked_after: Weak<dyn LookedAfter> = Arc::<Self>::downgrade(&client);
        pending::look_after(looked_after).map_err(|source| RbdOpenError::Failed {
            name: name.to_string(),
            doing: "starting a thread".to_owned(),
            source,
        })?;
        Self::watch(&client).map_err(|errno| RbdOpenError::failed(errno, name, "watching the image"))?;
        // What has changed before there was a watch.
        Self::look(&client);
        Ok(client)
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.image.cluster.library
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.shape }
    }

    /// Refusal of an operation after [`BlockDevice::close`].
    pub(crate) fn closed(&self) -> BlockError {
        BlockError::gone("it was closed")
    }

    /// Why this client is of no use any more; `None`: it is in use.
    pub(crate) fn fenced(&self) -> Option<&String> {
        self.fenced.get()
    }

    /// Refuses what the cluster would refuse.
    pub(crate) fn usable(&self) -> Result<(), BlockError> {
        match self.fenced.get() {
            Some(_) if self.renews => Err(BlockError::Busy),
            Some(why) => Err(BlockError::gone(why.clone())),
            None => Ok(()),
        }
    }

    /// Takes note of an error: from the first answer that says so the client is fenced, for good.
    pub(crate) fn failed(&self, errno: i32) {
        if self.fenced.get().is_some() {
            return;
        }
        let image = self.name.image_path();
        // It does not come back: the lock was removed, or the image with it.
        if errno == -libc::EROFS && self.loses_lock() {
            return self
                .lost(format!("this client has lost the lock of {image}: another one may write to it now"));
        }
        if errno != -libc::ESHUTDOWN {
            return;
        }
        let next = if self.renews { "" } else { "; open the device again to go on" };
        let why = format!(
            "the cluster has fenced this client (it is on the blocklist): another one may write to {image} now{next}"
        );
        self.lost(why);
    }

    /// Asks whether the image can still be locked. On the lane.
    ///
    /// Without the feature librbd lets every client write, this one too: nothing would fail here, and nothing would be
    /// protected. The command that takes the feature away has the lock's holder do it, which gives the lock up.
    fn check_lock(&self) {
        if !self.shape.read_only && self.fenced.get().is_none() && self.image.can_lock() == Ok(false) {
            let image = self.name.image_path();
            self.lost(format!(
                "{image} cannot be locked any more (its feature exclusive-lock was disabled), so that any client may write to it now"
            ));
        }
    }

    /// Asks the cluster whether it still has what is only read: its removal makes no read fail. On the lane.
    pub(crate) fn check_presence(&self) -> Result<(), BlockError> {
        if !self.image.is_open() {
            return Err(self.closed());
        }
        self.usable()?;
        // An image that is locked cannot be removed.
        if !self.shape.read_only {
            return Ok(());
        }
        match self.image.is_there(&self.id, self.snapshot) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let what = if self.snapshot.is_some() { "the snapshot" } else { "the image" };
                let why = format!(
                    "{what} was removed while it was in use: what was read of {} lately may be wrong",
                    self.name
                );
                self.end_because(why.clone());
                Err(BlockError::gone(why))
            }
            Err(errno) => {
                self.failed(errno);
                Err(self.meaning(errno, 0, 0))
            }
        }
    }

    /// A lost lock is the end of the client, because another follows.
    fn loses_lock(&self) -> bool {
        self.renews && !self.shape.read_only
    }

    /// This client is of no use any more, nor are those of other images that share its connection.
    fn lost(&self, why: String) {
        if self.fenced.get().is_none() {
            // Before the next client is made: that one is another.
            self.image.cluster.connection.spend(&why);
        }
        self.end_because(why);
    }

    /// This client is of no use any more.
    fn end_because(&self, why: String) {
        if self.fenced.set(why.clone()).is_ok() {
            tracing::error!(device = %self.name, "{why}");
            if let Some(fenced) = self.listeners.fenced.get() {
                fenced();
            }
        }
    }

    /// Time after which an operation is given up that librbd does not answer at all. It may consist of three that have
    /// the limit each: the object map, the parent of a clone, the object.
    fn patience(&self) -> Duration {
        limit(&self.name) * 3
    }

    /// Error of an operation that was given up.
    pub(crate) fn late(&self) -> BlockError {
        BlockError::late(self.patience())
    }

    /// Error for an answer of librbd about a range.
    pub(crate) fn meaning(&self, errno: i32, offset: u64, len: u64) -> BlockError {
        let gone = |why: &str, fate| BlockError::Gone { why: why.to_owned(), fate };
        match -errno {
            // Every part of the operation was answered, and none of this client's can happen any more.
            libc::ESHUTDOWN => BlockError::Fenced {
                why: self.fenced.get().map_or("the cluster has fenced this client", |why| why).to_owned(),
            },
            libc::EROFS if self.loses_lock() => {
                BlockError::Fenced { why: "the image's lock was lost".to_owned() }
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

    /// Begins to watch for changes of the image. On the lane.
    fn watch(client: &Arc<Self>) -> Result<(), i32> {
        let argument = Arc::downgrade(client).into_raw();
        // SAFETY: the argument is valid until it is freed: here, if there is no watch, else in `end` after the watch
        // and the image were closed.
        match unsafe { client.image.watch(updated, argument.cast_mut().cast()) } {
            Ok(number) => {
                *client.watch.lock().unwrap_or_else(PoisonError::into_inner) =
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

    /// Has the lane look what has changed. Never blocks.
    fn look(client: &Arc<Self>) {
        if !client.looking.swap(true, Ordering::AcqRel) {
            let looks = Arc::clone(client);
            client.lane.run(move || {
                looks.looking.store(false, Ordering::Release);
                if looks.image.is_open() {
                    looks.check_lock();
                    let _ = looks.check_presence();
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
            self.listeners.tell(self.geometry());
        }
    }

    /// Gives everything up. On the lane, once the gate is closed; nothing where that was done.
    pub(crate) fn end(&self) -> Result<(), BlockError> {
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
        // Here, and not with the last owner: that may be an operation's answer, on a thread that must not wait.
        self.image.cluster.shut();
        match closed {
            // A fenced client has nothing that it acknowledged and that is not durable.
            Err(_) if self.fenced.get().is_some() && !self.shape.volatile_cache => Ok(()),
            Err(errno) => Err(self.meaning(errno, 0, 0)),
            Ok(()) => Ok(()),
        }
    }

    /// Pieces of a range, by whole objects. On the lane.
    pub(crate) fn extents(&self, offset: u64, len: u64, count: usize) -> Result<Vec<Extent>, BlockError> {
        let (mut list, end) = (Vec::new(), offset + len);
        let step = self.object_size.max(1).saturating_mul(MAP_OBJECTS);
        let mut at = offset;
        while at < end {
            // Up to a border of objects.
            let until = end.min((at / step + 1) * step);
            if !self.image.is_open() {
                return Err(self.closed());
            }
            let there = self.image.differences(None, at..until, true).map_err(|errno| {
                self.failed(errno);
                self.meaning(errno, at, until - at)
            })?;
            for data in joined(there.into_iter().filter(|piece| piece.is_data).map(|piece| piece.range)) {
                let Range { start, end } = data;
                Extent { offset: at, len: start - at, kind: ExtentKind::Unallocated }.push_onto(&mut list);
                Extent { offset: start, len: end - start, kind: ExtentKind::Data }.push_onto(&mut list);
                at = end;
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

    /// What differs from an older snapshot, from `offset` on, of some thousand objects. On the lane.
    ///
    /// The object maps say which objects there are, or were; of those the OSDs say which bytes were written. The maps
    /// alone do not: `rbd snap rollback` puts the older snapshot's map in place of the image's, and with it what that
    /// calls unchanged. librbd is asked by the snapshot's name, and the number is looked at behind its answers: it is
    /// never used again, so that a name which has it then had it all the time. Behind the last part the cluster is
    /// asked, whatever this handle knows.
    pub(crate) fn changed_since(
        &self,
        snapshot: &str,
        number: u64,
        offset: u64,
    ) -> Result<RbdChanges, BlockError> {
        let size = self.size.load(Ordering::Acquire);
        let step = self.object_size.max(1).saturating_mul(MAP_OBJECTS);
        let end = size.min((offset / step + 1).saturating_mul(step));
        let mut changes = RbdChanges { ranges: Vec::new(), end };
        if offset >= end {
            return Ok(changes);
        }
        if !self.image.is_open() {
            return Err(self.closed());
        }
        self.usable()?;
        let not_found = |message: String| BlockError::Io { kind: std::io::ErrorKind::NotFound, message };
        let meaning = |errno: i32| {
            self.failed(errno);
            match -errno {
                libc::ENOENT => {
                    not_found(format!("the image has no snapshot {snapshot}, or none before this one"))
                }
                _ => self.meaning(errno, 0, 0),
            }
        };
        let differences = |since: Option<&str>, range: Range<u64>, whole| {
            let pieces = self.image.differences(since, range, whole).map_err(meaning)?;
            Ok::<_, BlockError>(pieces.into_iter().map(|piece| piece.range))
        };
        let gone = differences(Some(snapshot), offset..end, true)?;
        let mut objects: Vec<Range<u64>> = differences(None, offset..end, true)?.chain(gone).collect();
        objects.sort_unstable_by_key(|object| object.start);
        for run in joined(objects.into_iter()) {
            changes.ranges.extend(joined(differences(Some(snapshot), run, false)?));
        }
        let has_it = match self.image.snapshot_id(snapshot).map_err(meaning)? {
            now if now == number && end == size => {
                self.image.is_there(&self.id, Some(number)).map_err(meaning)?
            }
            now => now == number,
        };
        if !has_it {
            let why = format!("the image's snapshot {snapshot} is not the one that had this name before");
            return Err(not_found(why));
        }
        Ok(changes)
    }

    pub(crate) fn resize(&self, size: u64, permit: &Permit) -> Result<(), BlockError> {
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
