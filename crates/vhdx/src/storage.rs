//! The inner device: what a VHDX file lies on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use lunway_occupancy::{
    FileId, announce, is_read_only_device, lock_holder, other_user, write_protection, writer_below, writer_of,
};

/// Bytes that a VHDX file lies on: a file, a LUN, or the simulated device of [`crash`](crate::crash).
///
/// # Contract
///
/// - Calls block and come from any thread; the engine never holds its state's lock while it calls.
/// - Writes are durable after a later `flush` returns, until then in any order, torn anywhere at 512 bytes, or lost.
/// - What lies beyond the end of a read is an error of kind [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
/// - A storage of fixed length refuses another one in `set_len` as a full host does.
/// - A full host is an error of kind [`StorageFull`](io::ErrorKind::StorageFull),
///   [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) or [`FileTooLarge`](io::ErrorKind::FileTooLarge).
pub trait Storage: Send + Sync {
    /// Length, bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns `true` if nothing is there.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` from `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Fills `buf` from `offset` if that waits for nothing. `false`: it would wait, or fail; what is in `buf` is not to
    /// be used.
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        let _ = (offset, buf);
        false
    }

    /// Writes all of `data` at `offset`, beyond the end too.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes everything written, and the length, durable.
    fn flush(&self) -> io::Result<()>;

    /// Changes the length; what is added reads as zeroes.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The same for a length that is more than the current one: some storages become longer by less than it takes to
    /// change their length.
    fn lengthen(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    /// Bytes that the host has free for it; `None`: it cannot be told, or others do not share them.
    fn free(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Gives the space behind a range within the length back if that is cheap. `true`: it reads as zeroes now; `false`:
    /// nothing happened.
    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        let _ = (offset, len);
        Ok(false)
    }

    /// Has a range within the length hold what another one does, by sharing space with it, if that is cheap. `false`:
    /// nothing happened.
    fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
        let _ = (from, to, len);
        Ok(false)
    }

    /// Makes a range within the length read as zeroes, and keeps the space behind it or takes some: a later write there
    /// needs none.
    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        write_zeroes(self, offset, len)
    }

    /// Takes space for a range within the length, which keeps its contents: a later write there needs none. A store
    /// that cannot do so changes nothing.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Returns `true` if a range certainly has no data, as far as that is cheap to know. `true` is a hint: file systems
    /// have had errors there, so callers that rely on it read the range as well.
    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        let _ = (offset, len);
        Ok(false)
    }
}

/// Zeroes that are written at once, and the shortest range that a file system is asked to zero: below that the bytes
/// cost less than the change of its extents.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

fn write_zeroes(storage: &(impl Storage + ?Sized), offset: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let now = (len - done).min(ZEROES.len() as u64);
        storage.write_at(offset + done, &ZEROES[..now as usize])?;
        done += now;
    }
    Ok(())
}

impl Storage for File {
    fn len(&self) -> io::Result<u64> {
        use rustix::fs::{AtFlags, StatxFlags, statx};
        // Asked for times as well, as `fstat` does, NFS would first write all that it has of the file to the server.
        match statx(self, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE) {
            Ok(found) if found.stx_mask & StatxFlags::SIZE.bits() != 0 => Ok(found.stx_size),
            _ => Ok(self.metadata()?.len()),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn free(&self) -> io::Result<Option<u64>> {
        use rustix::fs::{FileType, fstat, fstatvfs};
        if FileType::from_raw_mode(fstat(self)?.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let store = fstatvfs(self)?;
        // Without a limit, as a `tmpfs` may be, and where the file system does not tell. What is kept for root counts:
        // less would refuse what root can write.
        Ok((store.f_blocks > 0).then(|| store.f_bfree.saturating_mul(store.f_frsize)))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        if len < ZEROES.len() as u64 {
            return write_zeroes(self, offset, len);
        }
        match fallocate(self, FallocateFlags::ZERO_RANGE, offset, len) {
            Ok(()) => Ok(()),
            // File systems without it; block devices with larger sectors.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => write_zeroes(self, offset, len),
            Err(error) => Err(error.into()),
        }
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(self, FallocateFlags::empty(), offset, len) {
            // File systems without it; block devices.
            Err(error) if ![Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::NODEV].contains(&error) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        use rustix::fs::{SeekFrom, seek};
        use rustix::io::Errno;
        match seek(self, SeekFrom::Data(offset)) {
            Ok(data) => Ok(data >= offset + len),
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => Ok(true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
        use rustix::fs::{copy_file_range, fstatfs};
        use rustix::io::Errno;
        if !SHARING.contains(&(fstatfs(self)?.f_type as u64 & 0xFFFF_FFFF)) {
            return Ok(false);
        }
        let (mut source, mut target) = (from, to);
        while source < from + len {
            let left = usize::try_from(from + len - source).unwrap_or(usize::MAX);
            match copy_file_range(self, Some(&mut source), self, Some(&mut target), left) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if source == from => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// File systems whose files share blocks until they are written (reflinks), by the type that `statfs` tells: XFS,
/// btrfs, bcachefs (`linux/magic.h`).
const SHARING: [u64; 3] = [0x5846_5342, 0x9123_683E, 0xCA45_1A4E];

/// Passes every call on to what a pointer leads to.
macro_rules! through_a_pointer {
    ($pointer:ty) => {
        impl<S: Storage + ?Sized> Storage for $pointer {
            fn len(&self) -> io::Result<u64> {
                (**self).len()
            }

            fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read_at(offset, buf)
            }

            fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
                (**self).read_now(offset, buf)
            }

            fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
                (**self).write_at(offset, data)
            }

            fn flush(&self) -> io::Result<()> {
                (**self).flush()
            }

            fn set_len(&self, len: u64) -> io::Result<()> {
                (**self).set_len(len)
            }

            fn lengthen(&self, len: u64) -> io::Result<()> {
                (**self).lengthen(len)
            }

            fn free(&self) -> io::Result<Option<u64>> {
                (**self).free()
            }

            fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
                (**self).punch(offset, len)
            }

            fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
                (**self).share(from, to, len)
            }

            fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).zero(offset, len)
            }

            fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).reserve(offset, len)
            }

            fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
                (**self).is_hole(offset, len)
            }
        }
    };
}

through_a_pointer!(Arc<S>);
through_a_pointer!(&S);

/// Number of attempts at a lock, and the pause between them: a process that another thread is starting shares this
/// one's locks until it runs its program, so that a file closed a moment ago is still locked; on a busy machine for
/// some milliseconds.
const LOCK_TRIES: u32 = 25;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Opens a file without a lock: for looking at one that is in use. Only regular files and block devices: opening a pipe
/// would wait for its other end. A file whose mode allows no writes, as a point of a backup, is not opened for writing,
/// by root neither.
pub fn open_unlocked(path: &std::path::Path, writable: bool) -> Result<File, crate::VhdxOpenError> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    let opening = || crate::VhdxOpenError::access("opening the file");
    let metadata = path.metadata().map_err(opening())?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = "it is neither a regular file nor a block device";
        return Err(opening()(io::Error::new(io::ErrorKind::InvalidInput, what)));
    }
    if writable && let Some(mode) = write_protection(metadata.permissions().mode()) {
        return Err(crate::VhdxOpenError::WriteProtected { mode });
    }
    if writable && is_read_only_device(&metadata) {
        return Err(crate::VhdxOpenError::ReadOnlyDevice);
    }
    File::options().read(true).write(writable).open(path).map_err(opening())
}

/// Opens a file and locks it: shared for reading, alone for writing (`flock`; `lunway_occupancy` for QEMU and loop
/// devices). The lock ends with the file.
pub fn open_file(path: &std::path::Path, writable: bool) -> Result<File, crate::VhdxOpenError> {
    let file = open_unlocked(path, writable)?;
    let mut patience = LOCK_TRIES;
    loop {
        // Looked for before the file is locked: NFS shows its own lock as another's.
        let other = if writable { other_user(&file) } else { writer_below(&file) };
        let locked = if writable { file.try_lock() } else { file.try_lock_shared() };
        if locked.is_ok() && other.is_some() {
            // So that the next look does not find this process.
            let _ = file.unlock();
        }
        let busy = match (locked, other) {
            (Err(std::fs::TryLockError::WouldBlock), _) => {
                crate::VhdxOpenError::InUse { by: lock_holder(&file) }
            }
            (_, Some(by)) => crate::VhdxOpenError::InUseElsewhere { by },
            (Ok(()), None) => {
                // One that held it may have removed or replaced it.
                if !has_name(&file, path).map_err(crate::VhdxOpenError::access("looking for the file"))? {
                    let gone =
                        io::Error::new(io::ErrorKind::NotFound, "it was removed or replaced meanwhile");
                    return Err(crate::VhdxOpenError::access("locking the file")(gone));
                }
                announce(&file, writable);
                return Ok(file);
            }
            // File systems without locks: as much as they allow.
            (Err(std::fs::TryLockError::Error(error)), None)
                if error.kind() == io::ErrorKind::Unsupported =>
            {
                return Ok(file);
            }
            (Err(std::fs::TryLockError::Error(error)), None) => {
                return Err(crate::VhdxOpenError::access("locking the file")(error));
            }
        };
        if patience == 0 {
            return Err(busy);
        }
        patience -= 1;
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Returns `true` if a name still leads to a file.
fn has_name(file: &File, path: &std::path::Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(FileId::of(&found) == FileId::of(&file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file as a parent: for reading, and locked as by [`open_file`]. One that QEMU or a loop device may be writing
/// to is refused: the child would show the changes. No program begins to write while it is open.
pub fn open_as_parent(path: &std::path::Path) -> Result<File, crate::VhdxOpenError> {
    let file = open_file(path, false)?;
    // Looked for once the file is locked, so that no writer slips in between.
    match writer_of(&file) {
        Some(by) => Err(crate::VhdxOpenError::InUseElsewhere { by }),
        None => Ok(file),
    }
}

/// Gives a whole file its name, durably. A file of that name is never replaced: that is an error of kind
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists).
pub fn rename_new(from: &std::path::Path, to: &std::path::Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, rename, renameat_with};

    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).or_else(|error| match error {
        // Network file systems do not know the flag.
        rustix::io::Errno::INVAL if to.symlink_metadata().is_err() => rename(from, to),
        rustix::io::Errno::INVAL => Err(rustix::io::Errno::EXIST),
        error => Err(error),
    })?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(std::path::Path::new(".")))?.sync_all()
}
