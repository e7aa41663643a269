//! Opening, locking, and finding out what the file is.

use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunway_block::{Buf, Geometry, Unmap};
use lunway_occupancy::{
    LockHolder, OtherUser, announce, is_read_only_device, lock_holder, other_user, write_protection,
    writer_below,
};
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, flock, fstat, fstatfs, ioctl_blkpbszget,
    ioctl_blksszget, major, minor, open, seek,
};
use rustix::io::Errno;

use crate::answer::pair;
use crate::container::Container;
use crate::handle::{Closed, Handle, Placement};
use crate::ring::Ring;
use crate::space::can_punch;

/// `f_type` of the file systems that live in memory (tmpfs, ramfs): no read or write there waits for a disk (swap
/// aside).
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];
/// `f_type` of the file systems on local disks of which it is known that `RWF_NOWAIT` and `fstat` on an open file wait
/// for nothing: ext2 to ext4, XFS, btrfs, F2FS. Others may be as good (or ask a server, as FUSE, NFS and SMB do); their
/// operations take a thread.
const LOCAL_FILE_SYSTEMS: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// Time limit for a file system to open a file: an automounter that dials, a disk that spins up. A dead server never
/// answers.
const OPEN_TIME: Duration = Duration::from_secs(15);
/// Operations under way above which none is tried inline, where the disk's queue is as long as usual: when all threads
/// are busy.
const INLINE_MAX: usize = 16;

/// Options for opening a file. The default: the file's own properties, buffered, for writing, with the engine that
/// suits.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Logical sector, bytes: 512 or 4096. `None`: the block device's own; 512 for a regular file, or more
    /// where `direct` needs it.
    pub sector: Option<u32>,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// For reading only; others may read as well, none may write.
    pub read_only: bool,
    /// Raw data whatever it holds. Without this, a file that begins or ends as a [`Container`] is refused.
    pub raw: bool,
    /// A regular file whose last bytes are no whole sector is opened for writing, too, and they are left out. Without
    /// this it is refused: what is served or attached would lack data without a word.
    pub without_tail: bool,
    /// Engine for the I/O that cannot be done inline.
    pub engine: Engine,
}

/// Engine for the I/O that cannot be done inline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The ring for `direct` on local disks where the kernel allows it, threads otherwise.
    #[default]
    Auto,
    /// The device's own threads, a bounded number.
    Threads,
    /// `io_uring`; opening fails where it is not allowed.
    Uring,
}

/// Reason why a file could not be opened as a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileOpenError {
    /// The operating system said no.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// A directory, a pipe, a terminal …
    #[error("{} is neither a regular file nor a block device", path.display())]
    NotADisk {
        /// The file.
        path: PathBuf,
    },
    /// Its mode allows no writes.
    #[error(
        "cannot open {}: the file is write-protected (mode {mode:04o}): `chmod u+w` it first, if it may be changed, and \
         is no file of a backup; `readonly:` before its name opens it for reading", path.display()
    )]
    WriteProtected {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A block device that takes no writes.
    #[error(
        "cannot open {}: the device is read-only: `blockdev` changes that, where it may be; `readonly:` before its name \
         opens it for reading", path.display()
    )]
    ReadOnlyDevice {
        /// The block device.
        path: PathBuf,
    },
    /// Another process, or another device of this one, has it.
    #[error(
        "{} is in use{} by {}: close it there first", path.display(), if *read_only { " for writing" } else { "" },
        by.as_ref().map_or_else(|| "another process".to_owned(), LockHolder::to_string)
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Only to be read.
        read_only: bool,
        /// The process; `None`: it cannot be told.
        by: Option<LockHolder>,
    },
    /// Another program has it, and does not use `flock`.
    #[error("{} is in use {by}: close it there first", path.display())]
    InUseElsewhere {
        /// The file.
        path: PathBuf,
        /// The other user.
        by: OtherUser,
    },
    /// A sector size that no initiator knows.
    #[error("a sector of {sector} bytes is not possible: 512 or 4096 is")]
    Sector {
        /// Sector size requested, bytes.
        sector: u32,
    },
    /// A sector smaller than the device below can do.
    #[error("{} cannot be used in sectors of {sector} bytes: it takes whole {needed} bytes only", path.display())]
    SectorTooSmall {
        /// The file.
        path: PathBuf,
        /// Sector size requested, bytes.
        sector: u32,
        /// Sector size needed, bytes.
        needed: u32,
    },
    /// Not even one sector.
    #[error("{} has {size} bytes, which is not one sector of {sector} bytes", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its size, bytes.
        size: u64,
        /// The logical sector, bytes.
        sector: u32,
    },
    /// Its last bytes are no whole sector.
    #[error(
        "{} has {size} bytes, and the last {} of them are no whole sector of {sector} and would be left out: if it is a \
         disk, lengthen it first, as with `truncate -s %4096`; `readonly:` before its name opens it for reading, without them",
        path.display(), size % u64::from(*sector)
    )]
    Tail {
        /// The file.
        path: PathBuf,
        /// Its size, bytes.
        size: u64,
        /// The logical sector, bytes.
        sector: u32,
    },
    /// Holds a disk in another form than its bytes, and was not named as raw.
    #[error("{} is {container}, not raw data: {}", path.display(), container.remedy(&path.display().to_string()))]
    Container {
        /// The file.
        path: PathBuf,
        /// Format of the container.
        container: Container,
    },
    /// Its content cannot be read, and it was not named as raw.
    #[error(
        "cannot read the beginning and the end of {path} to check for other formats: {source}; raw:{path} skips the check",
        path = path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The file system has no `O_DIRECT`.
    #[error("{} cannot be opened past the page cache: its file system does not support O_DIRECT", path.display())]
    Direct {
        /// The file.
        path: PathBuf,
    },
    /// The file system does not answer.
    #[error("cannot open {}: its file system has not answered for {} s", path.display(), OPEN_TIME.as_secs())]
    NoAnswer {
        /// The file.
        path: PathBuf,
    },
    /// The ring was required and is not to be had.
    #[error("io_uring cannot be used here: {why}")]
    Uring {
        /// Result of the probe.
        why: String,
    },
}

/// A file that is ready to be a device.
pub(crate) struct Opened {
    pub(crate) file: Handle,
    pub(crate) closed: Closed,
    pub(crate) geometry: Geometry,
    /// A regular file, whose size is ours to change.
    pub(crate) regular: bool,
    /// Buffers must start at a multiple of this, bytes; 1 without `O_DIRECT`.
    pub(crate) alignment: usize,
    pub(crate) ring: bool,
    /// Operations under way above which none is tried inline.
    pub(crate) inline_max: usize,
    /// Number of the file system.
    pub(crate) device: u64,
}

/// Runs `open` on a thread, and waits for it no longer than [`OPEN_TIME`].
pub(crate) fn open_on_thread<T: Send + 'static>(
    path: PathBuf,
    open: impl FnOnce(&Path) -> Result<T, FileOpenError> + Send + 'static,
) -> impl Future<Output = Result<T, FileOpenError>> + Send + 'static {
    let (sender, answer) = pair();
    let failed = |path: &Path| {
        let (path, source) = (path.to_owned(), io::Error::other("no thread for it can be started"));
        FileOpenError::Io { path, source }
    };
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    let none = failed(&path);
    // A thread that waits, so that any runtime will do, and one that may hang.
    let waiting = move || {
        let (opened, result) = mpsc::sync_channel(1);
        let opening = path.clone();
        // If the caller waits no more, what was opened is closed here.
        let spawned = named("file-open").spawn(move || drop(opened.send(open(&opening))));
        sender.send(match spawned.map(|_| result.recv_timeout(OPEN_TIME)) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(FileOpenError::NoAnswer { path }),
            Err(_) => Err(failed(&path)),
        });
    };
    let spawned = named("file-opening").spawn(waiting);
    async move {
        match spawned {
            Ok(_) => answer.await.unwrap_or(Err(none)),
            Err(_) => Err(none),
        }
    }
}

pub(crate) fn open_file(path: &Path, options: &FileOptions) -> Result<Opened, FileOpenError> {
    if let Some(sector) = options.sector.filter(|&sector| sector != 512 && sector != 4096) {
        return Err(FileOpenError::Sector { sector });
    }
    let failed = |errno: Errno| FileOpenError::Io { path: path.to_owned(), source: errno.into() };
    let stat = rustix::fs::stat(path).map_err(failed)?;
    let kind = file_type(path, &stat)?;
    // The kernel lets root write to it.
    if !options.read_only
        && let Some(mode) = write_protection(stat.st_mode)
    {
        return Err(FileOpenError::WriteProtected { path: path.to_owned(), mode });
    }
    let file = open(path, flags(kind, options), Mode::empty()).map_err(|errno| match errno {
        Errno::INVAL if options.direct => FileOpenError::Direct { path: path.to_owned() },
        // `O_EXCL` on a block device that is mounted, or part of another device.
        Errno::BUSY => FileOpenError::InUseElsewhere { path: path.to_owned(), by: OtherUser::Kernel },
        errno => failed(errno),
    })?;
    // Looked at again, now that it cannot be exchanged any more.
    let stat = fstat(&file).map_err(failed)?;
    let kind = file_type(path, &stat)?;
    let file = std::fs::File::from(file);
    if !options.read_only && file.metadata().is_ok_and(|metadata| is_read_only_device(&metadata)) {
        return Err(FileOpenError::ReadOnlyDevice { path: path.to_owned() });
    }
    // Looked for before the file is locked: NFS shows its own lock as another's.
    let other = if options.read_only { writer_below(&file) } else { other_user(&file) };
    let file = OwnedFd::from(file);
    lock(path, &file, options.read_only)?;
    if let Some(by) = other {
        return Err(FileOpenError::InUseElsewhere { path: path.to_owned(), by });
    }
    announce(&file, !options.read_only);
    let placement = placement(file.as_fd(), kind);
    let device = match kind {
        FileType::BlockDevice => ioctl_blksszget(&file).map_err(failed)?,
        _ => 512,
    };
    let alignment = if options.direct { direct_alignment(file.as_fd()).max(device) } else { 1 };
    let needed = alignment.max(device);
    let sector = options.sector.unwrap_or(if needed > 512 { 4096 } else { 512 });
    if sector < needed {
        return Err(FileOpenError::SectorTooSmall { path: path.to_owned(), sector, needed });
    }
    let size = seek(&file, SeekFrom::End(0)).map_err(failed)?;
    if !options.raw {
        let container = Container::of(file.as_fd(), size)
            .map_err(|errno| FileOpenError::Unreadable { path: path.to_owned(), source: errno.into() })?;
        if let Some(container) = container {
            return Err(FileOpenError::Container { path: path.to_owned(), container });
        }
    }
    if size < u64::from(sector) {
        return Err(FileOpenError::TooSmall { path: path.to_owned(), size, sector });
    }
    let may_lack_tail = options.read_only || options.without_tail || kind != FileType::RegularFile;
    if !may_lack_tail && !size.is_multiple_of(sector.into()) {
        return Err(FileOpenError::Tail { path: path.to_owned(), size, sector });
    }
    let geometry = geometry(file.as_fd(), &stat, kind, size, sector, options.read_only);
    let ring = match options.engine {
        Engine::Threads => false,
        // Elsewhere the ring would take threads for everything, of which it has few for all devices.
        Engine::Auto => options.direct && placement == Placement::Local && Ring::allowed().is_ok(),
        Engine::Uring => {
            Ring::allowed().map(|()| true).map_err(|why| FileOpenError::Uring { why: why.to_owned() })?
        }
    };
    let regular = kind == FileType::RegularFile;
    let device = if regular { stat.st_dev } else { stat.st_rdev };
    let inline_max = inline_max_of(device);
    let handle = Handle::new(file, options.read_only, placement);
    let (file, closed) = handle.map_err(|source| FileOpenError::Io { path: path.to_owned(), source })?;
    let alignment = alignment as usize;
    Ok(Opened { file, closed, geometry, regular, alignment, ring, inline_max, device })
}

pub(crate) fn placement(file: BorrowedFd<'_>, kind: FileType) -> Placement {
    if kind == FileType::BlockDevice {
        return Placement::Local;
    }
    match fstatfs(file).map(|fs| fs.f_type as u32) {
        Ok(kind) if MEMORY_FILE_SYSTEMS.contains(&kind) => Placement::Memory,
        Ok(kind) if LOCAL_FILE_SYSTEMS.contains(&kind) => Placement::Local,
        _ => Placement::Remote,
    }
}

/// Operations under way above which none is tried inline on a disk, by the length of its queue.
pub(crate) fn inline_max_of(device: u64) -> usize {
    inline_max(Queue::of(device).number("nr_requests"))
}

/// Operations under way above which none is tried inline. A read with `RWF_NOWAIT` starts read-ahead for what is not
/// cached, and that waits for a place in the disk's queue (`nr_requests`; 0: not known), for ever if the disk hangs: a
/// quarter of the places, since one read may take several.
fn inline_max(requests: u64) -> usize {
    match usize::try_from(requests / 4).unwrap_or(INLINE_MAX) {
        0 if requests == 0 => INLINE_MAX / 2,
        quarter => quarter.clamp(1, INLINE_MAX),
    }
}

fn file_type(path: &Path, stat: &Stat) -> Result<FileType, FileOpenError> {
    match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::RegularFile | FileType::BlockDevice) => Ok(kind),
        _ => Err(FileOpenError::NotADisk { path: path.to_owned() }),
    }
}

fn flags(kind: FileType, options: &FileOptions) -> OFlags {
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    flags.set(OFlags::DIRECT, options.direct);
    // The kernel's own protection of mounted file systems.
    flags.set(OFlags::EXCL, kind == FileType::BlockDevice && !options.read_only);
    flags
}

/// Locks the file for one writer, or for any number of readers. The lock belongs to the open file and ends with it,
/// however the process ends.
fn lock(path: &Path, file: &OwnedFd, read_only: bool) -> Result<(), FileOpenError> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => {
            Err(FileOpenError::InUse { path: path.to_owned(), read_only, by: lock_holder(file) })
        }
        Err(errno) => Err(FileOpenError::Io { path: path.to_owned(), source: errno.into() }),
    }
}

/// The smallest piece that an `O_DIRECT` read takes, found by trying: file systems differ, and `statx` says
/// it only since Linux 6.1 and not everywhere. A file that is too short to tell needs what is safe
/// everywhere.
fn direct_alignment(file: BorrowedFd<'_>) -> u32 {
    let mut buf = Buf::zeroed(4096);
    let fits = |len: &u32| {
        // At an offset and an address that are multiples of this size and of no larger one.
        let len = *len as usize;
        let target = if len < 4096 { len..2 * len } else { 0..len };
        matches!(rustix::io::pread(file, &mut buf[target], len as u64), Ok(count) if count > 0)
    };
    [512, 1024, 2048].into_iter().find(fits).unwrap_or(4096)
}

fn geometry(
    file: BorrowedFd<'_>,
    stat: &Stat,
    kind: FileType,
    size: u64,
    sector: u32,
    read_only: bool,
) -> Geometry {
    let plain = Geometry { read_only, volatile_cache: true, ..Geometry::plain(size).with_sector(sector) };
    if kind == FileType::BlockDevice {
        let queue = Queue::of(stat.st_rdev);
        // Unmapping goes through `fallocate`, which promises zeroes and therefore needs both.
        let thin =
            !read_only && queue.number("discard_max_bytes") > 0 && queue.number("write_zeroes_max_bytes") > 0;
        let granularity = u32::try_from(queue.number("discard_granularity")).unwrap_or(0).max(sector);
        return Geometry {
            physical_sector: ioctl_blkpbszget(file).unwrap_or(sector).max(sector),
            unmap: if thin { Unmap::Zeroes { granularity } } else { Unmap::Never },
            rotational: queue.number("rotational") > 0,
            ..plain
        };
    }
    // Block sizes beyond a page are a hint for transfers (NFS says 1 MiB), not a unit of writing.
    let block = u32::try_from(stat.st_blksize).unwrap_or(0).clamp(sector, 4096.max(sector));
    let thin = !read_only && can_punch(file, size);
    Geometry {
        physical_sector: block,
        unmap: match read_only {
            _ if thin => Unmap::Zeroes { granularity: block },
            // A hole reads as zeroes in any file. In one that cannot be punched, an unmap does nothing: that must not
            // be promised.
            true => Unmap::Holes,
            false => Unmap::Never,
        },
        rotational: Queue::of(stat.st_dev).number("rotational") > 0,
        ..plain
    }
}

/// Queue attributes of a disk, which the kernel reports in `/sys`.
struct Queue(PathBuf);

impl Queue {
    fn of(device: u64) -> Self {
        let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
        let own = device.join("queue");
        // A partition has the queue of its disk, one directory up behind the link.
        Self(if own.exists() { own } else { device.join("../queue") })
    }

    /// 0 where it does not say.
    fn number(&self, attribute: &str) -> u64 {
        let text = fs::read_to_string(self.0.join(attribute)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}
