//! Permissions of files that a command makes: only users who may read the source may read the copy.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context;
use lunway_block::spec::DeviceSpec;
use rustix::fs::{Mode, OFlags};
use rustix::process::umask;

use crate::report_file::file_of;

/// Reading and writing for everybody: what the user's umask leaves of it, a new file has.
const MODE: u32 = 0o666;
/// Permissions that the owner of a disk always has.
const OWNER: u32 = 0o600;

/// As long as this lives, files that the process makes are its user's alone. A mode that is set after a file was made
/// comes too late: who has opened the file by then reads what is written to it.
pub(crate) struct PrivateFiles {
    usual: Mode,
}

impl PrivateFiles {
    pub(crate) fn begin() -> Self {
        Self { usual: umask(Mode::RWXG | Mode::RWXO) }
    }

    /// The mode that a new file usually has.
    pub(crate) fn end(self) -> u32 {
        MODE & !self.usual.bits()
    }
}

impl Drop for PrivateFiles {
    fn drop(&mut self) {
        umask(self.usual);
    }
}

/// The mode of the file or block device that a disk is made of; `None`: it is something else.
pub(crate) fn file_mode(spec: &DeviceSpec) -> Option<u32> {
    if matches!(spec.leaf(), DeviceSpec::Paths { .. }) {
        return None;
    }
    let metadata = fs::metadata(file_of(spec)?).ok()?;
    let is_disk = metadata.is_file() || metadata.file_type().is_block_device();
    is_disk.then(|| metadata.mode() & 0o777)
}

/// Gives a new file, made under [`PrivateFiles`], the mode of its source, as far as the umask allows; without a source
/// that has one it stays its user's alone.
pub(crate) fn of_source(source: Option<u32>, usual: u32, new: &Path) -> anyhow::Result<()> {
    let mode = source.map_or(OWNER, |mode| mode & usual | OWNER);
    let file = own(new).with_context(|| format!("cannot open {}", new.display()))?;
    set_mode(&file, mode).with_context(|| format!("cannot set the permissions of {}", new.display()))
}

/// Gives a new file the mode of another one, and its owner where the user may.
pub(crate) fn as_file(new: &File, old: &File) -> io::Result<()> {
    let old = old.metadata()?;
    set_mode(new, old.mode() & 0o666 | OWNER)?;
    // As `cp --preserve`: another's file can be read by who may, but not given away.
    let _ = fchown(new, Some(old.uid()), Some(old.gid()));
    Ok(())
}

/// Opens a file that was just made, and no link that somebody has put in its place.
pub(crate) fn own(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)
}

/// On file systems without modes the mount decides who may read.
fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    match file.set_permissions(fs::Permissions::from_mode(mode)) {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => Ok(()),
        set => set,
    }
}

/// A path with more at its end.
pub(crate) fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut longer = path.as_os_str().to_owned();
    longer.push(end);
    PathBuf::from(longer)
}
