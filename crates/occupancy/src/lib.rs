//! Users of a file that hold no `flock` on it: [`other_user`] finds loop devices, and programs that lock parts of a file, as QEMU does.
//!
//! lunway's own programs keep each other out of a file by `flock`. A file that is written while a guest runs on it, or while a file
//! system on it is mounted, is destroyed all the same, so whatever opens a file for writing asks here first.
#![expect(unsafe_code, reason = "fcntl(2) takes the lock that it is asked about by address")]

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Who has a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherUser {
    /// The file is attached as this loop device.
    LoopDevice(PathBuf),
    /// A program has locked a part of the file (`fcntl(2)`): QEMU locks single bytes of every image that it opens.
    RecordLock,
}

impl fmt::Display for OtherUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoopDevice(device) => write!(f, "as {}", device.display()),
            Self::RecordLock => f.write_str("by a program that has locked a part of it, such as QEMU"),
        }
    }
}

/// The user of a regular file beside those that `flock` knows; `None`: none is seen. Ask before taking a `flock`: NFS makes record
/// locks of those, which would be found.
///
/// A loop device is not seen where its file has another path here than for the program that attached it (another mount
/// namespace).
pub fn other_user(file: &File) -> Option<OtherUser> {
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    match has_record_lock(file) {
        Ok(true) => Some(OtherUser::RecordLock),
        // A file system without record locks has none.
        Ok(false) | Err(_) => loop_device(file).map(OtherUser::LoopDevice),
    }
}

fn has_record_lock(file: &File) -> io::Result<bool> {
    // A length of 0 reaches to the end of any file.
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: `lock` is a whole `flock` that the kernel reads and writes during the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The loop device whose backing file this is. Other files are only looked at where this one has a second name: a `stat` of a file on a
/// server that hangs would hang with it.
fn loop_device(file: &File) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let own = file.metadata().ok()?;
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let mut loops = devices.filter(|device| device.file_name().as_bytes().starts_with(b"loop"));
    let is_it = |backing: &Path| {
        let same_file = |other: fs::Metadata| (other.dev(), other.ino()) == (own.dev(), own.ino());
        backing == path || own.nlink() > 1 && fs::metadata(backing).is_ok_and(same_file)
    };
    let found = loops.find(|device| {
        let backing = fs::read(device.path().join("loop/backing_file")).unwrap_or_default();
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        !backing.is_empty() && is_it(Path::new(std::ffi::OsStr::from_bytes(backing)))
    })?;
    Some(Path::new("/dev").join(found.file_name()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_that_a_loop_device_has_is_found_by_each_of_its_names() {
        let Some(losetup) = lunway_foreign::program("losetup") else { return };
        let folder = tempfile::tempdir().unwrap();
        let (disk, second) = (folder.path().join("disk.img"), folder.path().join("second"));
        fs::write(&disk, vec![0; 1 << 20]).unwrap();
        fs::hard_link(&disk, &second).unwrap();
        let user = |path: &Path| other_user(&File::options().read(true).write(true).open(path).unwrap());
        assert_eq!((user(&disk), user(&second)), (None, None));
        let attached = Command::new(&losetup).args(["--find", "--show"]).arg(&disk).output().unwrap();
        if !attached.status.success() {
            return lunway_foreign::not_run("loop devices (root, on a machine that has some)");
        }
        let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
        let found = (user(&disk), user(&second));
        Command::new(&losetup).args(["--detach", &device]).status().unwrap();
        let expected = Some(OtherUser::LoopDevice(PathBuf::from(&device)));
        assert_eq!(found, (expected.clone(), expected));
    }

    #[test]
    fn a_file_of_which_another_program_has_locked_a_part_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = file.reopen().unwrap();
        let mut lock = libc::flock {
            l_type: libc::F_RDLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 100,
            l_len: 1,
            l_pid: 0,
        };
        assert_eq!(other_user(file.as_file()), None);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }, 0);
        assert_eq!(other_user(file.as_file()), Some(OtherUser::RecordLock));
        drop(other);
        assert_eq!(other_user(file.as_file()), None);
    }
}
