//! Opening, locking, and finding out what the file is.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use lunway_block::{Buf, Geometry};
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, flock, fstat, fstatfs, ioctl_blkpbszget,
    ioctl_blksszget, major, minor, open, seek,
};
use rustix::io::Errno;

use crate::ring::Ring;
use crate::space::can_punch;

/// `f_type` of the file systems that live in memory: no read or write there waits for a disk (swap aside).
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// How a file is opened. The default: what the file says, buffered, for writing, the engine that suits.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Logical sector, bytes: 512 or 4096. `None`: the block device's own; 512 for a regular file, or more
    /// where `direct` needs it.
    pub sector: Option<u32>,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// For reading only; others may read as well, nobody may write.
    pub read_only: bool,
    /// What does the I/O that cannot be done inline.
    pub engine: Engine,
}

/// What does the I/O that cannot be done inline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The ring for `direct` where the kernel allows it, the pool otherwise.
    #[default]
    Auto,
    /// A bounded pool of threads.
    Pool,
    /// `io_uring`; opening fails where it is not allowed.
    Uring,
}

/// Why a file could not be opened as a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The operating system said no.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A directory, a pipe, a terminal …
    #[error("{} is neither a regular file nor a block device", path.display())]
    NotADisk {
        /// The file.
        path: PathBuf,
    },
    /// Another process, or another device of this one, has it.
    #[error("{} is in use{}: close it there first", path.display(), if *read_only { " for writing" } else { "" })]
    InUse {
        /// The file.
        path: PathBuf,
        /// It was only to be read.
        read_only: bool,
    },
    /// A sector size that no initiator knows.
    #[error("a sector of {sector} bytes is not possible: 512 or 4096 is")]
    Sector {
        /// What was asked for, bytes.
        sector: u32,
    },
    /// A sector smaller than the device below can do.
    #[error("{} cannot be used in sectors of {sector} bytes: it takes whole {needed} bytes only", path.display())]
    SectorTooSmall {
        /// The file.
        path: PathBuf,
        /// What was asked for, bytes.
        sector: u32,
        /// What it takes, bytes.
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
    /// The file system has no `O_DIRECT`.
    #[error("{} cannot be opened past the page cache: its file system does not support O_DIRECT", path.display())]
    Direct {
        /// The file.
        path: PathBuf,
    },
    /// The ring was required and is not to be had.
    #[error("io_uring cannot be used here: {why}")]
    Uring {
        /// What the probe found.
        why: String,
    },
}

/// A file that is ready to be a device.
pub(crate) struct Opened {
    pub(crate) file: OwnedFd,
    /// See [`reopened`].
    pub(crate) sync: OwnedFd,
    pub(crate) geometry: Geometry,
    /// A regular file, whose size is ours to change.
    pub(crate) regular: bool,
    /// Reads and writes never wait for a disk.
    pub(crate) in_memory: bool,
    /// Buffers must start at a multiple of this, bytes; 1 without `O_DIRECT`.
    pub(crate) alignment: usize,
    pub(crate) ring: bool,
}

pub(crate) fn open_file(path: &Path, options: &FileOptions) -> Result<Opened, OpenError> {
    if let Some(sector) = options.sector.filter(|&sector| sector != 512 && sector != 4096) {
        return Err(OpenError::Sector { sector });
    }
    let failed = |errno: Errno| OpenError::Io { path: path.to_owned(), source: errno.into() };
    let kind = file_type(path, &rustix::fs::stat(path).map_err(failed)?)?;
    let file = open(path, flags(kind, options), Mode::empty()).map_err(|errno| match errno {
        Errno::INVAL if options.direct => OpenError::Direct { path: path.to_owned() },
        // `O_EXCL` on a block device that is mounted, or part of another device.
        Errno::BUSY => OpenError::InUse { path: path.to_owned(), read_only: options.read_only },
        errno => failed(errno),
    })?;
    // Looked at again, now that it cannot be exchanged any more.
    let stat = fstat(&file).map_err(failed)?;
    let kind = file_type(path, &stat)?;
    lock(path, &file, options.read_only)?;
    let in_memory = fstatfs(&file).is_ok_and(|fs| MEMORY_FILE_SYSTEMS.contains(&(fs.f_type as u32)));
    let device = match kind {
        FileType::BlockDevice => ioctl_blksszget(&file).map_err(failed)?,
        _ => 512,
    };
    let alignment = if options.direct { direct_alignment(file.as_fd()).max(device) } else { 1 };
    let needed = alignment.max(device);
    let sector = options.sector.unwrap_or(if needed > 512 { 4096 } else { 512 });
    if sector < needed {
        return Err(OpenError::SectorTooSmall { path: path.to_owned(), sector, needed });
    }
    let size = seek(&file, SeekFrom::End(0)).map_err(failed)?;
    if size < u64::from(sector) {
        return Err(OpenError::TooSmall { path: path.to_owned(), size, sector });
    }
    let geometry = geometry(file.as_fd(), &stat, kind, size, sector, options.read_only);
    let ring = match options.engine {
        Engine::Pool => false,
        Engine::Auto => options.direct && Ring::allowed().is_ok(),
        Engine::Uring => {
            Ring::allowed().map(|()| true).map_err(|why| OpenError::Uring { why: why.to_owned() })?
        }
    };
    let sync = reopened(&file, options.read_only).or_else(|_| file.try_clone());
    let sync = sync.map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    let regular = kind == FileType::RegularFile;
    Ok(Opened { file, sync, geometry, regular, in_memory, alignment: alignment as usize, ring })
}

fn file_type(path: &Path, stat: &Stat) -> Result<FileType, OpenError> {
    match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::RegularFile | FileType::BlockDevice) => Ok(kind),
        _ => Err(OpenError::NotADisk { path: path.to_owned() }),
    }
}

fn flags(kind: FileType, options: &FileOptions) -> OFlags {
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    flags.set(OFlags::DIRECT, options.direct);
    // The kernel's own protection of mounted file systems.
    flags.set(OFlags::EXCL, kind == FileType::BlockDevice && !options.read_only);
    flags
}

/// One writer, or any number of readers. The lock belongs to the open file and ends with it, however the
/// process ends.
fn lock(path: &Path, file: &OwnedFd, read_only: bool) -> Result<(), OpenError> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => Err(OpenError::InUse { path: path.to_owned(), read_only }),
        Err(errno) => Err(OpenError::Io { path: path.to_owned(), source: errno.into() }),
    }
}

/// The same file as another open file, with a memory of write-back errors of its own: a synchronous write
/// that fails takes the error from the memory of the file it went through, at a moment when a flush may be
/// just about to look there. Where `/proc` is missing the two share one, and that moment stays.
fn reopened(file: &OwnedFd, read_only: bool) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::CLOEXEC | if read_only { OFlags::RDONLY } else { OFlags::RDWR }, Mode::empty())?)
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
            thin,
            unmap_granularity: if thin { granularity } else { 0 },
            unmap_zeroes: thin,
            rotational: queue.number("rotational") > 0,
            ..plain
        };
    }
    // Block sizes beyond a page are a hint for transfers (NFS says 1 MiB), not a unit of writing.
    let block = u32::try_from(stat.st_blksize).unwrap_or(0).clamp(sector, 4096.max(sector));
    let thin = !read_only && can_punch(file, size);
    Geometry {
        physical_sector: block,
        thin,
        unmap_granularity: if thin { block } else { 0 },
        unmap_zeroes: thin,
        rotational: Queue::of(stat.st_dev).number("rotational") > 0,
        ..plain
    }
}

/// What the kernel says about a disk, in `/sys`.
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
