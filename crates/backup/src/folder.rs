//! The destination's folder: the few operations on files that a backup needs, so that a test can stand in for a share
//! whose power fails.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lunway_vhdx::Storage;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, statat, unlinkat};
use serde::Deserialize;

use crate::error::{BackupError, NoInodes, Result, is_of_the_file};
use crate::fuse_file::FuseFile;
use crate::manifest::unseal;

/// The end of the name of a file that is being written: what has it is never taken for whole.
pub const INCOMPLETE: &str = ".incomplete";

/// A file of the folder, open.
pub type Open = Arc<dyn Storage>;

/// A lock; it ends when this is dropped.
pub type Lock = Box<dyn Send + Sync>;

/// A flat folder of files.
///
/// # Contract
///
/// - Calls block and come from any thread. Names are plain: no separators, not hidden.
/// - What was written to a file is durable after its [`Storage::flush`]; what its name is, after [`sync`](Self::sync).
/// - Nothing that depends on the folder's clock is asked for.
pub trait Folder: Send + Sync {
    /// All names, in any order.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Names with this beginning, in any order. An object store answers it with one request, and all names with one for
    /// each thousand.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read.
    fn names_with(&self, beginning: &str) -> io::Result<Vec<String>> {
        let mut names = self.names()?;
        names.retain(|name| name.starts_with(beginning));
        Ok(names)
    }

    /// Makes an empty file that must not exist: of two callers, on two machines too, one succeeds.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists), or what the host says.
    fn create(&self, name: &str) -> io::Result<Open>;

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound), or what the host says.
    fn open(&self, name: &str, writable: bool) -> io::Result<Open>;

    /// Length of a file, bytes. As by [`open`](Self::open), without it where that takes less.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open).
    fn file_len(&self, name: &str) -> io::Result<u64> {
        self.open(name, false)?.len()
    }

    /// Gives a file another name, in one step; a file that has that name is replaced.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; none is no error.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn sync(&self) -> io::Result<()>;

    /// Takes the right to write from a file, or gives it back.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn set_read_only(&self, name: &str, read_only: bool) -> io::Result<()>;

    /// Locks a file for as long as this process lives; `None`: another process of this machine has it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) where the file system has no locks.
    fn lock(&self, name: &str) -> io::Result<Option<Lock>>;

    /// Number of the mount, if locks are its own: a process of this machine may hold one that is not seen here, through
    /// another mount of the same share. `None`: all are seen.
    fn mount_of_locks(&self) -> Option<u64> {
        None
    }

    /// The ranges of a file that are not holes, in order, as offset and length: everything where that is not known.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn data(&self, name: &str) -> io::Result<Vec<(u64, u64)>> {
        let len = self.open(name, false)?.len()?;
        Ok(if len == 0 { Vec::new() } else { vec![(0, len)] })
    }

    /// Display name of a file.
    fn show(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// The byte whose lock means a file: one that is never read or written. CIFS keeps a locked range from all other open
/// files of it, the holder's own as well; `flock`, which means all bytes there, shut a run out of its own lease.
const LOCKED_BYTE: i64 = 1 << 62;

/// A folder of the host: a local one, or a mounted share.
///
/// Its files are reached from the folder as it was opened, not by its path: on a share whose names are asked for anew
/// each time, each step of a path is a round trip, and what is mounted over the path later is another folder.
pub struct HostFolder {
    path: PathBuf,
    /// The folder itself, which can be neither read nor made durable (`O_PATH`): that asks a share nothing.
    place: File,
    /// The same, open since it was first listed or made durable: a share does not have it opened for each time that its
    /// names are made durable.
    opened: OnceLock<File>,
    /// The mode of a new file, before the umask; that of the disks is looked up when the first file is made.
    mode: OnceLock<u32>,
    /// A group shares the folder.
    is_shared: bool,
    /// The mount.
    device: u64,
    /// It is of a file system in user space, which is asked when it matters: a share is asked for that as well.
    is_fuse: OnceLock<bool>,
}

/// Permissions that the owner of a file of a backup always has.
const OWNER: u32 = 0o600;
/// Permissions of a folder that a group shares, as with git's `core.sharedRepository`: what is made in it is the
/// group's, and all of its members make and remove files.
const SHARED_FOLDER: u32 = 0o2070;
/// What a folder in it has of its permissions: all but the sticky bit, which keeps files from other members.
const FOLDER: u32 = 0o2777;
/// What its group has of a file there, whatever umask its maker has.
const SHARED_FILE: u32 = 0o060;
const GROUP_READS: u32 = 0o040;
/// `f_type` of a file system in user space (`FUSE_SUPER_MAGIC`, linux/magic.h). Its locks may be those of one mount:
/// sshfs and rclone hand none on.
const FUSE: u64 = 0x6573_5546;

impl HostFolder {
    /// A folder that exists. Who may not read all disks that it holds may not read a new file in it either, which is
    /// made of them. On a share that costs one question; which disks it holds is asked when a file is made.
    ///
    /// # Errors
    ///
    /// Where it does not, or is no folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
        let found = place.metadata()?;
        let is_shared = found.permissions().mode() & SHARED_FOLDER == SHARED_FOLDER;
        let (mode, opened, is_fuse) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Self { mode, is_shared, device: found.dev(), is_fuse, path, place, opened })
    }

    /// Makes a folder in this one. Where a group shares this one, it has the same permissions.
    ///
    /// # Errors
    ///
    /// What the host says.
    pub fn create_folder(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(plain(name)?);
        fs::create_dir(&path).map_err(|error| self.named_shortage(error))?;
        if self.is_shared {
            let mode = self.path.metadata()?.permissions().mode();
            allowed(fs::set_permissions(&path, fs::Permissions::from_mode(mode & FOLDER)))?;
        }
        Ok(())
    }

    /// The same, with files for those who may read a disk of this mode, as far as the umask allows.
    #[must_use]
    pub fn with_mode(self, mode: u32) -> Self {
        Self { mode: OnceLock::from(mode & 0o666 | OWNER), ..self }
    }

    /// The mode of a new file, before the umask.
    ///
    /// # Errors
    ///
    /// Where the disks that the folder holds cannot be listed.
    pub fn mode(&self) -> io::Result<u32> {
        if let Some(mode) = self.mode.get() {
            return Ok(*mode);
        }
        let mode = self.mode_of_disks()?;
        Ok(*self.mode.get_or_init(|| mode))
    }

    /// Returns `true` if a group shares the folder: what is made there is the group's (the set-group-ID bit), and its
    /// members may make files. New ones are for all of them then, whatever umask their maker has, if they are for the
    /// group at all.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The error of a file that could not be made; it says so where not bytes are lacking but inodes.
    fn named_shortage(&self, error: io::Error) -> io::Error {
        match (error.kind(), rustix::fs::fstatvfs(&self.place)) {
            (io::ErrorKind::StorageFull, Ok(found))
                if lacks_inodes(found.f_files, found.f_favail, found.f_bavail) =>
            {
                io::Error::new(io::ErrorKind::StorageFull, NoInodes)
            }
            _ => error,
        }
    }

    fn place(&self) -> BorrowedFd<'_> {
        self.place.as_fd()
    }

    /// Opens the folder for reading.
    fn open_place(&self) -> io::Result<OwnedFd> {
        Ok(openat(self.place(), ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn open_with(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        let mode = Mode::from_raw_mode(mode);
        Ok(File::from(openat(self.place(), plain(name)?, flags | OFlags::CLOEXEC, mode)?))
    }

    /// One that does not say what it is hands locks on, as all others do.
    fn is_fuse(&self) -> bool {
        let ask = || rustix::fs::fstatfs(&self.place).is_ok_and(|system| system.f_type as u64 == FUSE);
        *self.is_fuse.get_or_init(ask)
    }

    fn storage(&self, file: File) -> Open {
        match rustix::fs::major(self.device) == 0 && self.is_fuse() {
            true => Arc::new(FuseFile(file)),
            false => Arc::new(file),
        }
    }

    /// The mode that all VHDX files have, as far as it tells who may read them.
    fn mode_of_disks(&self) -> io::Result<u32> {
        let mut mode = 0o666;
        for name in self.names()? {
            if Path::new(&name).extension().is_some_and(|extension| extension == "vhdx")
                && let Ok(found) = statat(self.place(), &name, AtFlags::SYMLINK_NOFOLLOW)
            {
                // Who may read it; a point is protected from all writing.
                mode &= found.st_mode & 0o444 | 0o222;
            }
        }
        Ok(mode & 0o644 | OWNER)
    }
}

/// Says whether a file system has free blocks, and no free inode. One that makes inodes as it needs them has none in
/// all (statvfs(3), as btrfs fills it in).
fn lacks_inodes(inodes: u64, free_inodes: u64, free_blocks: u64) -> bool {
    inodes > 0 && free_inodes == 0 && free_blocks > 0
}

/// The answer to permissions that are given to what this process has just made, which its umask took. Where the file
/// system has none of its own, as a share that is mounted for one user, that changes nothing.
fn allowed(set: io::Result<()>) -> io::Result<()> {
    match set {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) =>
        {
            Ok(())
        }
        set => set,
    }
}

/// Returns `true` if a name cannot lead out of its folder.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

fn plain(name: &str) -> io::Result<&str> {
    match is_plain(name) {
        true => Ok(name),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file name")),
    }
}

impl Folder for HostFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let opened = self.open_place()?;
        if self.opened.get().is_none() {
            let _ = self.opened.set(File::from(opened.try_clone()?));
        }
        for entry in Dir::new(opened)? {
            // A name that is not UTF-8 is none of ours.
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Open> {
        let (name, mode) = (plain(name)?, self.mode()?);
        let file = self.open_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode);
        let file = file.map_err(|error| self.named_shortage(error))?;
        if self.is_shared && mode & GROUP_READS != 0 {
            let mode = file.metadata()?.permissions().mode() & 0o777;
            if mode & SHARED_FILE != SHARED_FILE {
                allowed(file.set_permissions(fs::Permissions::from_mode(mode | SHARED_FILE)))?;
            }
        }
        Ok(self.storage(file))
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Open> {
        self.file_len(name)?;
        let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(self.storage(self.open_with(name, flags, 0)?))
    }

    fn file_len(&self, name: &str) -> io::Result<u64> {
        let found = statat(self.place(), plain(name)?, AtFlags::SYMLINK_NOFOLLOW)?;
        // Neither a pipe, which would wait for its other end, nor a link, which leads elsewhere.
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(self.place(), plain(from)?, self.place(), plain(to)?)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(self.place(), plain(name)?, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let opened = match self.opened.get() {
            Some(opened) => opened,
            None => {
                let opened = File::from(self.open_place()?);
                self.opened.get_or_init(|| opened)
            }
        };
        opened.sync_all()
    }

    fn set_read_only(&self, name: &str, read_only: bool) -> io::Result<()> {
        let mode = statat(self.place(), plain(name)?, AtFlags::empty())?.st_mode;
        // The owner's alone is given back: what others had is not known.
        let mode = if read_only { mode & !0o222 } else { mode | 0o200 };
        Ok(chmodat(self.place(), name, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let file = self.open_with(name, OFlags::RDWR, 0)?;
        Ok(lunway_occupancy::try_lock_byte(&file, LOCKED_BYTE)?.then(|| Box::new(file) as Lock))
    }

    fn mount_of_locks(&self) -> Option<u64> {
        self.is_fuse().then_some(self.device)
    }

    fn data(&self, name: &str) -> io::Result<Vec<(u64, u64)>> {
        use rustix::fs::{SeekFrom, seek};
        use rustix::io::Errno;

        let file = self.open_with(name, OFlags::RDONLY, 0)?;
        let len = file.metadata()?.len();
        let (mut list, mut at) = (Vec::new(), 0);
        while at < len {
            let start = match seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(_) => return Ok(vec![(0, len)]),
            };
            let end = seek(&file, SeekFrom::Hole(start)).unwrap_or(len).min(len);
            if end <= start || list.len() >= EXTENTS_MAX {
                list.push((start, len - start));
                break;
            }
            list.push((start, end - start));
            at = end;
        }
        Ok(list)
    }

    fn show(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// Ranges of one file that are told apart: as `vhdx-device` bounds them, 1 MiB of memory.
const EXTENTS_MAX: usize = 65_536;

/// Reads a small file whole.
///
/// # Errors
///
/// Where it cannot be read, or is longer than `max` bytes.
pub fn read_small(folder: &dyn Folder, name: &str, max: u64) -> Result<Vec<u8>> {
    let reading = || BackupError::folder("reading", &folder.show(name));
    let file = folder.open(name, false).map_err(reading())?;
    let len = file.len().map_err(reading())?;
    if len > max {
        let what = format!("it has {len} bytes, and at most {max} are expected");
        return Err(BackupError::Manifest { name: folder.show(name), what });
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(0, &mut bytes).map_err(reading())?;
    Ok(bytes)
}

/// Reads a sealed document. One that is missing or damaged is the default; one that cannot be read now is an error.
pub(crate) fn read_or_none<T>(folder: &dyn Folder, name: &str, max: u64) -> Result<T>
where
    T: Default + for<'de> Deserialize<'de>,
{
    match read_small(folder, name, max) {
        Ok(bytes) => Ok(unseal(&bytes).unwrap_or_default()),
        Err(BackupError::Manifest { .. }) => Ok(T::default()),
        Err(BackupError::Folder { source, .. }) if is_of_the_file(source.kind()) => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Makes an empty file in place of what an earlier attempt has left under that name, which as a rule is nothing.
pub(crate) fn create_anew(folder: &dyn Folder, name: &str) -> io::Result<Open> {
    match folder.create(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            folder.remove(name)?;
            folder.create(name)
        }
        created => created,
    }
}

/// A small file that does not have its name yet.
pub(crate) struct Unnamed {
    pub(crate) file: Open,
    name: String,
}

impl Unnamed {
    /// Makes it, empty.
    pub(crate) fn begin(folder: &dyn Folder, name: &str) -> Result<Self> {
        match create_anew(folder, &format!("{name}{INCOMPLETE}")) {
            Ok(file) => Ok(Self { file, name: name.to_owned() }),
            Err(error) => Err(given_up(folder, name, error)),
        }
    }

    /// Writes all of it, durably.
    pub(crate) fn fill(&self, folder: &dyn Folder, bytes: &[u8]) -> Result<()> {
        let filled = self.file.write_at(0, bytes).and_then(|()| self.file.flush());
        filled.map_err(|error| given_up(folder, &self.name, error))
    }

    /// Makes it whole and durable.
    pub(crate) fn write(folder: &dyn Folder, name: &str, bytes: &[u8]) -> Result<Self> {
        let unnamed = Self::begin(folder, name)?;
        unnamed.fill(folder, bytes).map(|()| unnamed)
    }

    /// Has a client of a share look it up, beside something else: a rename waits for that where the last look was more
    /// than a second ago.
    pub(crate) fn look_up(&self, folder: &dyn Folder) {
        let _ = folder.file_len(&format!("{}{INCOMPLETE}", self.name));
    }

    /// Gives it its name, which is durable after a [`Folder::sync`].
    pub(crate) fn give_name(self, folder: &dyn Folder) -> Result<Open> {
        let renamed = folder.rename(&format!("{}{INCOMPLETE}", self.name), &self.name);
        renamed.map_err(|error| given_up(folder, &self.name, error))?;
        Ok(self.file)
    }
}

/// Removes an unfinished file: a full folder has its room back.
fn given_up(folder: &dyn Folder, name: &str, error: io::Error) -> BackupError {
    let _ = folder.remove(&format!("{name}{INCOMPLETE}"));
    BackupError::folder("writing", &folder.show(name))(error)
}

/// Writes a small file whole and durable; its name is durable after a [`Folder::sync`].
///
/// # Errors
///
/// What the folder says.
pub fn write_whole(folder: &dyn Folder, name: &str, bytes: &[u8]) -> Result<()> {
    Unnamed::write(folder, name, bytes)?.give_name(folder).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_a_free_inode_is_told_from_one_without_bytes() {
        assert!(lacks_inodes(1000, 0, 7));
        for (inodes, free_inodes, free_blocks) in [(0, 0, 7), (1000, 1, 7), (1000, 0, 0)] {
            assert!(!lacks_inodes(inodes, free_inodes, free_blocks));
        }
        let full = |error| BackupError::folder("writing", "f")(error).to_string();
        let lack = io::Error::new(io::ErrorKind::StorageFull, NoInodes);
        assert!(full(lack).contains("f: its file system has free space and no free inode"));
        assert!(full(io::ErrorKind::StorageFull.into()).contains("left for f)"));
    }
}
