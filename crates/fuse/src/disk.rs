//! The file system: directories with files in them, each of which is a device.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use lunway_block::{BlockDevice, BlockError, Bytes, Durability, Extent, ExtentKind, Io, Permit, Zeroing};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::handles::Handles;

/// Time for which the kernel may cache entries and attributes: none, since a device may change its size.
const TTL: Duration = Duration::ZERO;
/// Longest request, bytes: what kernels take at most unless `fs.fuse.max_pages_limit` was raised.
const REQUEST_MAX: u32 = 1 << 20;
/// Requests that the kernel sends on its own account without waiting for answers: half of a loop device's queue, with
/// requests of the longest kind as much as [`UNDER_WAY_MAX`].
const BACKGROUND_MAX: u16 = 64;
/// Bytes of reads and writes that may be under way. Above it the kernel is not listened to, whose callers wait.
const UNDER_WAY_MAX: u32 = 64 << 20;
/// Length of the device that the first search for data or a hole covers, bytes. Each that finds neither makes the next
/// twice as long: an extent is 24 bytes here, and at worst 4 KiB there.
const LOOK_MIN: u64 = 1 << 30;
const LOOK_MAX: u64 = 1 << 40;
/// Pieces that are asked for at a time: of two neighbours one is data as a rule, and the other is not.
const LOOK_PIECES: usize = 2;

/// Directories with devices in them, as the kernel sees them.
///
/// A file behaves as a block device would: it has the device's size, opening it with `O_TRUNC` leaves that alone, and
/// writes past the end find no space. `fsync` is a flush, a write with `O_DSYNC` is one with [`Durability::Stable`],
/// punching a hole gives space back, `SEEK_DATA` and `SEEK_HOLE` ask the device, `ftruncate` resizes it where it can be
/// resized.
///
/// It is always read and written past the page cache ([`OPENED`]). A cached page would outlive what another host writes
/// to the disk; it would make each byte exist twice under a loop device, whose file system caches already; and a write
/// that had been taken into it would be acknowledged before the device has heard of it, so that its error came with a
/// later `fsync`, or with none. The price: no shared writable mapping.
///
/// # Order
///
/// The kernel asks for several things at a time, and they go to the device as they come. What the device answers at
/// once is answered on the thread that heard of it; the rest on the runtime that carries the device, in whatever order.
pub(crate) struct Disk {
    /// The entry whose inode has number N is at N - 1: the first one is the root, and each has its directory before it.
    entries: Vec<FileNode>,
    runtime: Handle,
    room: Arc<Semaphore>,
    since: SystemTime,
    owner: (u32, u32),
}

/// A directory, or a file in one.
pub(crate) struct FileNode {
    /// Its name, and the directory that it is in by its place in the list.
    name: OsString,
    parent: usize,
    /// `None`: a directory.
    file: Option<DeviceFile>,
}

/// A device as a file.
#[derive(Clone)]
pub(crate) struct DeviceFile {
    bytes: Bytes,
    handles: Arc<Handles>,
}

impl DeviceFile {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { handles: Arc::new(Handles::new(device.clone())), bytes: Bytes::new(device) }
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        self.bytes.device()
    }

    /// Returns `true` if no program has it open.
    pub(crate) fn is_unused(&self) -> bool {
        self.handles.is_empty()
    }
}

/// The root directory's place in the list.
pub(crate) const ROOT: usize = 0;

impl FileNode {
    /// The list of a file system without files.
    pub(crate) fn root() -> Vec<Self> {
        vec![Self { name: OsString::new(), parent: ROOT, file: None }]
    }

    fn kind(&self) -> FileType {
        if self.file.is_some() { FileType::RegularFile } else { FileType::Directory }
    }

    pub(crate) fn folder(parent: usize, name: OsString) -> Self {
        Self { name, parent, file: None }
    }

    pub(crate) fn file(parent: usize, name: OsString, file: DeviceFile) -> Self {
        Self { name, parent, file: Some(file) }
    }
}

/// The inode of the entry at this place in the list.
fn inode(at: usize) -> INodeNo {
    INodeNo(at as u64 + 1)
}

/// Converts an error to the error number for a program.
fn errno(error: &BlockError) -> Errno {
    match error {
        BlockError::NoSpace => Errno::ENOSPC,
        BlockError::ReadOnly => Errno::EROFS,
        BlockError::OutOfRange { .. } | BlockError::Misaligned { .. } | BlockError::Size { .. } => {
            Errno::EINVAL
        }
        BlockError::Unsupported => Errno::EOPNOTSUPP,
        BlockError::Busy => Errno::EBUSY,
        BlockError::ReservationConflict => Errno::EACCES,
        BlockError::Io { kind: io::ErrorKind::PermissionDenied, .. } => Errno::EPERM,
        _ => Errno::EIO,
    }
}

impl Disk {
    pub(crate) fn new(entries: Vec<FileNode>, runtime: Handle, owner: (u32, u32)) -> Self {
        let room = Arc::new(Semaphore::new(UNDER_WAY_MAX as usize));
        Self { entries, runtime, room, since: SystemTime::now(), owner }
    }

    /// The entry with this inode, and its place in the list.
    fn entry(&self, ino: INodeNo) -> Option<(usize, &FileNode)> {
        let at = usize::try_from(ino.0.checked_sub(1)?).ok()?;
        Some((at, self.entries.get(at)?))
    }

    /// The file with this inode.
    fn file(&self, ino: INodeNo) -> Option<&DeviceFile> {
        self.entry(ino)?.1.file.as_ref()
    }

    /// The entries of a directory, with their places in the list.
    fn inside(&self, folder: usize) -> impl Iterator<Item = (usize, &FileNode)> {
        let all = self.entries.iter().enumerate();
        all.filter(move |(at, entry)| *at != ROOT && entry.parent == folder)
    }

    /// Waits until a request of `len` bytes may be under way.
    fn room(&self, len: u32) -> OwnedSemaphorePermit {
        let len = len.min(UNDER_WAY_MAX);
        match self.room.clone().try_acquire_many_owned(len) {
            Ok(room) => room,
            Err(_) => self
                .runtime
                .block_on(self.room.clone().acquire_many_owned(len))
                .expect("nobody closes the semaphore"),
        }
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (_, entry) = self.entry(ino)?;
        let device = entry.file.as_ref().map(|file| &**file.device());
        let geometry = device.map(BlockDevice::geometry);
        let size = geometry.map_or(0, |geometry| geometry.size);
        // What it takes of its store where that is known, as a sparse file would say.
        let space = device.and_then(BlockDevice::space);
        let allocated = space.map_or(size, |space| space.allocated);
        Some(FileAttr {
            ino,
            size,
            blocks: allocated.div_ceil(512),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: entry.kind(),
            perm: match geometry {
                None => 0o700,
                Some(geometry) if geometry.read_only => 0o400,
                Some(_) => 0o600,
            },
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: geometry.map_or(0, |geometry| geometry.physical_sector).max(4096),
            flags: 0,
        })
    }

    /// Starts an operation where devices find the runtime they may need, and answers now or later.
    fn answer<T: Send + 'static>(
        &self,
        file: &DeviceFile,
        operation: impl FnOnce(&Bytes) -> Io<T>,
        answer: impl FnOnce(T) + Send + 'static,
    ) {
        let _inside = self.runtime.enter();
        match operation(&file.bytes) {
            Io::Ready(result) => answer(result),
            Io::Pending(future) => {
                self.runtime.spawn(async move { answer(future.await) });
            }
        }
    }

    fn answer_empty(
        &self,
        file: &DeviceFile,
        operation: impl FnOnce(&Bytes) -> Io<Result<(), BlockError>>,
        reply: ReplyEmpty,
    ) {
        self.answer(file, operation, |result| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        });
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // All are wishes: kernels that know less are served as well.
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        // Then an `O_TRUNC` is told from an `ftruncate`.
        let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        // Then a loop device with direct I/O, io_uring and libaio have several requests here at a time.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.entry(parent).and_then(|(folder, _)| {
            let (at, _) = self.inside(folder).find(|(_, entry)| entry.name == name)?;
            self.attributes(inode(at))
        });
        match found {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        let Some(attributes) = self.attributes(ino) else { return reply.error(Errno::ENOENT) };
        let (Some(file), Some(size)) = (self.file(ino), size.filter(|size| *size != attributes.size)) else {
            // Times are not kept.
            return reply.attr(&TTL, &attributes);
        };
        let resize = |bytes: &Bytes| bytes.device().resize(size, Permit::default());
        self.answer(file, resize, move |result| match result {
            Ok(()) => reply.attr(&TTL, &FileAttr { size, ..attributes }),
            Err(BlockError::Unsupported) => reply.error(Errno::EPERM),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        match flags.acc_mode() {
            fuser::OpenAccMode::O_RDONLY => {}
            _ if file.device().geometry().read_only => return reply.error(Errno::EROFS),
            _ => {}
        }
        reply.opened(file.handles.open(), OPENED);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(file) = self.file(ino) {
            file.handles.release(handle);
        }
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        let room = self.room(size);
        let read = |bytes: &Bytes| bytes.read(offset, size);
        self.answer(file, read, move |result| {
            match result {
                Ok((buf, inside)) => reply.data(&buf[inside]),
                Err(error) => reply.error(errno(&error)),
            }
            drop(room);
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        // `O_SYNC` contains `O_DSYNC`. The kernel sets it for RWF_DSYNC as well.
        let durability = match flags.0 & libc::O_DSYNC {
            0 => Durability::Volatile,
            _ => Durability::Stable,
        };
        // A request is at most as long as was agreed.
        let room = self.room(data.len() as u32);
        let write = |bytes: &Bytes| bytes.write(offset, data, durability);
        self.answer(file, write, move |result| {
            match result {
                Ok(written) => reply.written(written),
                Err(error) => reply.error(errno(&error)),
            }
            drop(room);
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Each close of a descriptor comes by here. There is nothing that a write has not been told already.
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        let opener = file.handles.get(handle);
        self.answer_empty(
            file,
            |bytes| match opener {
                Some(opener) => opener.flush(),
                None => bytes.device().flush(),
            },
            reply,
        );
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        let geometry = file.device().geometry();
        let beyond = offset.checked_add(length).is_none_or(|end| end > geometry.size);
        let prepare = |bytes: &Bytes| match mode & !FALLOC_FL_KEEP_SIZE {
            _ if geometry.read_only => Io::err(BlockError::ReadOnly),
            // Elsewhere a hole would be zeroes that are written, and an `fstrim` would fill the disk with them.
            FALLOC_FL_PUNCH_HOLE if geometry.unmap.zeroes() => bytes.zero(offset, length, Zeroing::MayUnmap),
            FALLOC_FL_PUNCH_HOLE => Io::err(BlockError::Unsupported),
            _ if beyond => Io::err(BlockError::NoSpace),
            FALLOC_FL_ZERO_RANGE => bytes.zero(offset, length, Zeroing::KeepAllocated),
            // A promise of space that only a device can keep which has it all.
            0 if !geometry.unmap.is_thin() => Io::ok(()),
            _ => Io::err(BlockError::Unsupported),
        };
        self.answer_empty(file, prepare, reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EINVAL) };
        let want_data = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let device = file.device().clone();
        let size = device.geometry().size;
        let Some(from) = u64::try_from(offset).ok().filter(|from| *from < size) else {
            return reply.error(Errno::ENXIO);
        };
        self.runtime.spawn(async move {
            let place = match seek(&*device, from, size, want_data).await {
                Err(error) => return reply.error(errno(&error)),
                Ok(Some(place)) => place,
                Ok(None) if want_data => return reply.error(Errno::ENXIO),
                // Behind the end of a file there is a hole.
                Ok(None) => size,
            };
            reply.offset(i64::try_from(place).unwrap_or(i64::MAX));
        });
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some((folder, entry)) = self.entry(ino).filter(|(_, entry)| entry.file.is_none()) else {
            return reply.error(Errno::ENOTDIR);
        };
        let own = [(ino, FileType::Directory, "."), (inode(entry.parent), FileType::Directory, "..")];
        let own = own.into_iter().map(|(ino, kind, name)| (ino, kind, OsStr::new(name)));
        let inside = self.inside(folder).map(|(at, entry)| (inode(at), entry.kind(), entry.name.as_os_str()));
        let entries = (1u64..).zip(own.chain(inside));
        for (index, (ino, kind, name)) in entries.filter(|(index, _)| *index > offset) {
            if reply.add(ino, index, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: fuser::ReplyCreate) {
        // Else it would be “function not implemented”.
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let unit = 4096;
        let devices = || self.entries.iter().filter_map(|entry| Some(entry.file.as_ref()?.device()));
        let size: u64 = devices().map(|device| device.geometry().size / u64::from(unit)).sum();
        let space = devices().find_map(|device| device.space());
        let free = space.map_or(0, |space| space.available / u64::from(unit));
        reply.statfs(size, free, free, devices().count() as u64, 0, unit, 255, unit);
    }
}

/// The first byte from `from` on that is data, or that is none.
async fn seek(
    device: &dyn BlockDevice,
    from: u64,
    size: u64,
    want_data: bool,
) -> Result<Option<u64>, BlockError> {
    let geometry = device.geometry();
    let sector = u64::from(geometry.logical_sector);
    // A hole reads as zeroes, whether there is space behind it or not.
    let wanted = |kind| match kind {
        ExtentKind::Data => want_data,
        ExtentKind::Zero => !want_data,
        ExtentKind::Unallocated => geometry.unmap.zeroes() != want_data,
    };
    let (mut at, mut look) = (from / sector * sector, LOOK_MIN);
    while at < size {
        let len = look.min(size - at);
        let extents = device.extents(at, len, LOOK_PIECES).await?;
        if let Some(found) = extents.iter().find(|extent| wanted(extent.kind) && extent.end() > from) {
            return Ok(Some(found.offset.max(from)));
        }
        at = extents.last().map_or(at + len, Extent::end);
        look = (look * 2).min(LOOK_MAX);
    }
    Ok(None)
}

/// Past the page cache, and several writes at a time.
const OPENED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
