//! Stacks of block devices, as the kernel describes them in `/sys`: what a device lies on, and loop devices that lie on
//! it.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

use crate::{FileId, OtherUser, has_record_lock, lock_holder};

/// Longest stack that is followed: partitions on RAID on partitions are four.
const DEPTH_MAX: usize = 16;

/// Bytes of a file that end with its end, as `sizelimit` of a loop device says it.
const TO_THE_END: u64 = 0;

/// A block device, as `/sys/dev/block` knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(u64);

impl Device {
    /// The block device that an open file is.
    pub(crate) fn of(metadata: &fs::Metadata) -> Option<Self> {
        metadata.file_type().is_block_device().then(|| Self(metadata.rdev()))
    }

    /// The one that a file `dev` in `/sys` names: `MAJOR:MINOR`.
    fn named_in(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self(makedev(major.parse().ok()?, minor.parse().ok()?)))
    }

    fn folder(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}:{}", major(self.0), minor(self.0)))
    }

    /// Its path: the kernel's name, in which `!` stands for `/`.
    fn node(self) -> Option<PathBuf> {
        let folder = fs::canonicalize(self.folder()).ok()?;
        Some(Path::new("/dev").join(folder.file_name()?.to_str()?.replace('!', "/")))
    }

    /// Returns `true` if the kernel takes no writes to it, whatever the mode of its node says.
    pub(crate) fn is_read_only(self) -> bool {
        fs::read(self.folder().join("ro")).is_ok_and(|ro| ro.starts_with(b"1"))
    }

    /// The disk that it is a partition of.
    fn whole(self) -> Option<Self> {
        self.folder().join("partition").exists().then_some(())?;
        Self::named_in(&fs::canonicalize(self.folder()).ok()?.parent()?.join("dev"))
    }

    /// The bytes of the whole disk that a partition has.
    fn bytes_of_whole(self) -> Range<u64> {
        let number =
            |name: &str| fs::read_to_string(self.folder().join(name)).ok()?.trim().parse::<u64>().ok();
        // In units of 512 bytes, whatever the sectors are.
        match (number("start"), number("size")) {
            (Some(start), Some(size)) => start * 512..start.saturating_add(size) * 512,
            _ => 0..u64::MAX,
        }
    }

    /// The devices that a device mapper or RAID puts it together from.
    fn parts(self) -> Vec<Self> {
        let slaves = fs::read_dir(self.folder().join("slaves")).into_iter().flatten().flatten();
        slaves.filter_map(|slave| Self::named_in(&slave.path().join("dev"))).collect()
    }

    /// Backing file of a loop device.
    fn backing(self) -> Option<PathBuf> {
        backing_file(&self.folder())
    }
}

/// The `backing_file` of a loop device whose folder in `/sys` this is.
pub(crate) fn backing_file(folder: &Path) -> Option<PathBuf> {
    let backing = fs::read(folder.join("loop/backing_file")).ok()?;
    let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
    (!backing.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(backing)))
}

/// Backing files of the loop device at a path, from the next one down to the last.
pub(crate) fn backing_files(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    while found.len() < DEPTH_MAX {
        let top = found.last().map_or(path, PathBuf::as_path);
        let device = fs::metadata(top).ok().and_then(|metadata| Device::of(&metadata));
        // A partition of a loop device lies on its file too.
        let below = device.and_then(|device| device.backing().or_else(|| device.whole()?.backing()));
        match below {
            Some(below) => found.push(below),
            None => break,
        }
    }
    found
}

/// Bytes of a file or device that something is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    of: Base,
    bytes: Range<u64>,
}

/// A device, or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Device(Device),
    File(FileId),
}

/// Returns `true` if two files or devices are made of the same bytes, in full or in part: one is the other by whatever
/// name, or lies on it as a loop device or partition, or both lie on the same bytes of a third. What a device mapper or
/// RAID puts together is not followed.
pub(crate) fn share_bytes(one: &Path, other: &Path) -> bool {
    let (one, other) = (pieces(one), pieces(other));
    one.iter().any(|one| {
        other.iter().any(|other| {
            one.of == other.of && one.bytes.start < other.bytes.end && other.bytes.start < one.bytes.end
        })
    })
}

/// Pieces that a file or device is made of: itself, and so on down.
fn pieces(path: &Path) -> Vec<Piece> {
    let mut found: Vec<Piece> = Vec::new();
    let (mut at, mut bytes) = (path.to_owned(), 0..u64::MAX);
    while found.len() < DEPTH_MAX {
        let Ok(metadata) = fs::metadata(&at) else { break };
        let Some(device) = Device::of(&metadata) else {
            found.push(Piece { of: Base::File(FileId::of(&metadata)), bytes });
            break;
        };
        found.push(Piece { of: Base::Device(device), bytes: bytes.clone() });
        let below = match (device.backing(), device.whole().and_then(Device::node)) {
            (Some(backing), _) => Some((backing, attached_bytes(&device.folder()))),
            (None, Some(whole)) => Some((whole, device.bytes_of_whole())),
            (None, None) => None,
        };
        let Some((below, inside)) = below else { break };
        let start = inside.start.saturating_add(bytes.start);
        bytes = start..inside.end.min(inside.start.saturating_add(bytes.end));
        at = below;
    }
    found
}

/// Folders in `/sys` of all loop devices.
pub(crate) fn loop_devices() -> impl Iterator<Item = PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter(|device| device.file_name().as_bytes().starts_with(b"loop")).map(|device| device.path())
}

/// The path of the device whose folder in `/sys/block` this is.
pub(crate) fn node_of(folder: &Path) -> PathBuf {
    Path::new("/dev").join(folder.file_name().unwrap_or_default())
}

/// A loop device that lies on this device, on its partition or on its whole disk.
pub(crate) fn loop_on(device: Device) -> Option<PathBuf> {
    let own = [Some(device), device.whole()];
    let found = loop_devices().find(|folder| {
        // Only names of devices are looked at: a `stat` of a file on a server that hangs would hang with it.
        let backing = backing_file(folder).filter(|path| path.starts_with("/dev"));
        let backing = backing.and_then(|path| Device::of(&fs::metadata(path).ok()?));
        backing.is_some_and(|backing| own.contains(&Some(backing)) || backing.whole() == Some(device))
    })?;
    Some(node_of(&found))
}

/// The user of something that this device lies on, where that and a use of the device exclude each other: the file of a
/// loop device, and what lies below partitions and devices that are put together.
///
/// Who `writes` is excluded by every other user; who reads only by one that holds a `flock` for writing, as lunway
/// does.
pub(crate) fn user_below(device: Device, writes: bool) -> Option<OtherUser> {
    below(device, writes, DEPTH_MAX)
}

fn below(device: Device, writes: bool, depth: usize) -> Option<OtherUser> {
    let depth = depth.checked_sub(1)?;
    if let Some(backing) = device.backing()
        && let Some(found) = user_of_backing(device, &backing, writes, depth)
    {
        return Some(found);
    }
    if let Some(whole) = device.whole() {
        // Of two that write the kernel refuses one (`O_EXCL`); it does not know of a reader.
        if !writes
            && let Some(node) = whole.node()
            && let Some(by) = opened(&node).ok().and_then(|file| locked(&file, false))
        {
            return Some(OtherUser::below(node, by));
        }
        return below(whole, writes, depth);
    }
    // The kernel keeps these for the device that is put together from them.
    device.parts().into_iter().find_map(|part| below(part, writes, depth))
}

/// The user of the file or device that a loop device is attached to, beside that loop device.
fn user_of_backing(device: Device, backing: &Path, writes: bool, depth: usize) -> Option<OtherUser> {
    // A file that was removed, or that has another path in this mount namespace, cannot be asked.
    let file = opened(backing).ok()?;
    let metadata = file.metadata().ok()?;
    let by = match Device::of(&metadata) {
        _ if let Some(by) = locked(&file, writes) => Some(by),
        Some(_) if writes && is_claimed(backing) => Some(OtherUser::Kernel),
        None if writes && has_record_lock(&file).unwrap_or(false) => {
            Some(lock_holder(&file).map_or(OtherUser::RecordLock, OtherUser::Process))
        }
        _ => twin(device, &metadata, writes).map(OtherUser::LoopDevice),
    };
    match (by, Device::of(&metadata)) {
        (Some(by), _) => Some(OtherUser::below(backing.to_owned(), by)),
        (None, Some(base)) => below(base, writes, depth),
        (None, None) => None,
    }
}

/// Another loop device on the same bytes of the same file, which is in use.
fn twin(device: Device, backing: &fs::Metadata, writes: bool) -> Option<PathBuf> {
    let bytes = attached_bytes(&device.folder());
    let is_same = |folder: &PathBuf| {
        let other = backing_file(folder).and_then(|path| fs::metadata(path).ok());
        let is_same_file = |other: fs::Metadata| FileId::of(&other) == FileId::of(backing);
        let theirs = attached_bytes(folder);
        Device::named_in(&folder.join("dev")) != Some(device)
            && other.is_some_and(is_same_file)
            && bytes.start < theirs.end
            && theirs.start < bytes.end
    };
    // Where the file has one name, others need not be looked at; where it has several, each may be it.
    let named = device.backing();
    let mut twins = loop_devices()
        .filter(|folder| backing.nlink() > 1 || backing_file(folder) == named)
        .filter(is_same)
        .map(|folder| node_of(&folder));
    twins.find(|node| match writes {
        true => is_claimed(node),
        false => opened(node).ok().and_then(|file| locked(&file, false)).is_some(),
    })
}

/// The bytes of its file that a loop device shows.
fn attached_bytes(folder: &Path) -> Range<u64> {
    let number = |name: &str| {
        let text = fs::read_to_string(folder.join("loop").join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let (start, len) = (number("offset"), number("sizelimit"));
    start..if len == TO_THE_END { u64::MAX } else { start.saturating_add(len) }
}

/// Opens a file to ask about it. A pipe is not waited for.
fn opened(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Returns `true` if the kernel has a use of a block device, or a program has it for itself alone (open(2), `O_EXCL`).
fn is_claimed(node: &Path) -> bool {
    let opened = File::options().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(node);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// The holder of a `flock` that excludes one for writing, or one for reading.
fn locked(file: &File, writing: bool) -> Option<OtherUser> {
    let locked = if writing { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Err(TryLockError::WouldBlock) => {
            Some(lock_holder(file).map_or(OtherUser::AnotherProcess, OtherUser::Process))
        }
        Ok(()) => {
            // Where it fails, closing does it.
            let _ = file.unlock();
            None
        }
        Err(TryLockError::Error(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::other_user;

    /// A loop device, detached when dropped.
    struct Loop(PathBuf);

    impl Loop {
        /// `None` where there are none.
        fn attach(backing: &Path, options: &[&str]) -> Option<Self> {
            let losetup = lunway_foreign::program("losetup")?;
            let attached =
                Command::new(losetup).args(["--find", "--show"]).args(options).arg(backing).output();
            let attached = attached.unwrap();
            if !attached.status.success() {
                lunway_foreign::not_run("loop devices (root, on a machine that has some)");
                return None;
            }
            Some(Self(String::from_utf8(attached.stdout).unwrap().trim().into()))
        }

        /// Its user, for who writes or reads.
        fn user(&self, writes: bool) -> Option<OtherUser> {
            let file = opened(&self.0).unwrap();
            user_below(Device::of(&file.metadata().unwrap()).unwrap(), writes)
        }

        /// Opened as who writes to it alone.
        fn claimed(&self) -> File {
            File::options().read(true).write(true).custom_flags(libc::O_EXCL).open(&self.0).unwrap()
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        }
    }

    fn image(folder: &Path) -> (PathBuf, File) {
        let path = folder.join("disk.img");
        fs::write(&path, vec![0; 8 << 20]).unwrap();
        (path.clone(), File::options().read(true).write(true).open(path).unwrap())
    }

    #[test]
    fn the_user_of_the_file_below_a_loop_device_excludes_who_would_write_there_too() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = image(folder.path());
        let Some(device) = Loop::attach(&path, &[]) else { return };
        assert_eq!((device.user(true), device.user(false)), (None, None), "nobody has the file");
        file.try_lock_shared().unwrap();
        let found = device.user(true).unwrap();
        assert!(found.to_string().contains(path.to_str().unwrap()), "{found}");
        assert!(found.to_string().contains(&std::process::id().to_string()), "{found}");
        assert_eq!(device.user(false), None, "two that read");
        file.unlock().unwrap();
        file.try_lock().unwrap();
        assert!(device.user(true).is_some() && device.user(false).is_some());
        file.unlock().unwrap();
        crate::announce(&file, true);
        assert!(device.user(true).is_some(), "as QEMU locks");
        crate::withdraw(&file);
        assert_eq!(device.user(true), None);
    }

    #[test]
    fn loop_devices_on_the_same_bytes_exclude_each_other_once_one_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _file) = image(folder.path());
        let Some(all) = Loop::attach(&path, &[]) else { return };
        let Some(end) = Loop::attach(&path, &["--offset", "4194304"]) else { return };
        let Some(start) = Loop::attach(&path, &["--sizelimit", "4194304"]) else { return };
        assert_eq!(start.user(true), None, "nobody uses them");
        let in_use = end.claimed();
        assert_eq!(start.user(true), None, "it shows other bytes");
        let found = all.user(true).unwrap();
        assert!(found.to_string().contains(end.0.to_str().unwrap()), "{found}");
        assert_eq!(all.user(false), None, "a reader is excluded by a lock only");
        drop(in_use);
        assert_eq!(all.user(true), None);
    }

    #[test]
    fn what_lies_on_the_same_bytes_is_one_disk_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _file) = image(folder.path());
        let (second, other) = (folder.path().join("second"), folder.path().join("other"));
        fs::hard_link(&path, &second).unwrap();
        fs::write(&other, vec![0; 8 << 20]).unwrap();
        assert!(share_bytes(&path, &second) && !share_bytes(&path, &other));
        let Some(all) = Loop::attach(&path, &[]) else { return };
        let Some(end) = Loop::attach(&second, &["--offset", "4194304"]) else { return };
        let Some(start) = Loop::attach(&path, &["--sizelimit", "4194304"]) else { return };
        let Some(upper) = Loop::attach(&end.0, &["--offset", "1048576"]) else { return };
        for (one, other) in [(&all.0, &path), (&all.0, &end.0), (&all.0, &start.0), (&upper.0, &end.0)] {
            assert!(share_bytes(one, other) && share_bytes(other, one), "{one:?} {other:?}");
        }
        assert!(share_bytes(&upper.0, &second));
        for (one, other) in [(&start.0, &end.0), (&start.0, &upper.0), (&all.0, &other)] {
            assert!(!share_bytes(one, other) && !share_bytes(other, one), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_loop_device_that_takes_no_writes_is_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _file) = image(folder.path());
        for (options, expected) in [(&[][..], false), (&["--read-only"][..], true)] {
            let Some(device) = Loop::attach(&path, options) else { return };
            assert_eq!(crate::is_read_only_device(&fs::metadata(&device.0).unwrap()), expected);
        }
        assert!(!crate::is_read_only_device(&fs::metadata(&path).unwrap()));
    }

    #[test]
    fn a_stack_of_loop_devices_is_followed_down_and_up() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = image(folder.path());
        let Some(lower) = Loop::attach(&path, &[]) else { return };
        let Some(upper) = Loop::attach(&lower.0, &[]) else { return };
        assert_eq!(upper.user(true), None);
        file.try_lock().unwrap();
        let found = upper.user(true).unwrap().to_string();
        assert!(found.contains(path.to_str().unwrap()), "{found}");
        file.unlock().unwrap();
        let opened = lower.claimed();
        let found = upper.user(true).unwrap().to_string();
        assert!(found.contains(lower.0.to_str().unwrap()), "{found}");
        assert_eq!(other_user(&opened), Some(OtherUser::LoopDevice(upper.0.clone())), "it lies on it");
    }
}
