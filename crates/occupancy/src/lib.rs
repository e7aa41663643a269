//! Users of a file: [`other_user`] finds those that hold no `flock` on it, which are loop devices and programs that
//! lock parts of a file, as QEMU does. [`lock_holder`] names the process that holds a `flock`. [`announce`] lets QEMU
//! find us. [`writer_of`] finds only those that may write, for who reads a file that must not change meanwhile.
//! [`writer_below`] finds those that write to what a block device lies on; [`other_user`] looks there as well.
//!
//! | file | room of |
//! |---|---|
//! | `file_id.rs` | which file a name or an open file is |
//! | `stack.rs` | what a block device lies on, and loop devices that lie on it |
//!
//! lunway's own programs keep each other out of a file by `flock`. A file that is written while a guest runs on it, or
//! while a file system on it is mounted, is destroyed all the same, so whatever opens a file for writing asks here
//! first.
#![expect(unsafe_code, reason = "fcntl(2) takes the lock that it is asked about by address")]

mod file_id;
mod stack;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use file_id::{FileId, is_same_file};
use stack::Device;

/// Other user of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherUser {
    /// The file is attached as this loop device.
    LoopDevice(PathBuf),
    /// A program has locked a part of the file (`fcntl(2)`): QEMU locks single bytes of every image that it opens.
    RecordLock,
    /// This process has locked a part of the file and all of it (`flock(2)`), as lunway does.
    Process(LockHolder),
    /// A process that cannot be told has locked all of the file (`flock(2)`).
    AnotherProcess,
    /// The block device is mounted, or a part of another device.
    Kernel,
    /// The kernel swaps to the file.
    Swap,
    /// A file or device below the block device has a user of its own.
    Below {
        /// The file or device that it lies on.
        base: PathBuf,
        /// Its user.
        by: Box<OtherUser>,
    },
}

impl OtherUser {
    fn below(base: PathBuf, by: Self) -> Self {
        Self::Below { base, by: Box::new(by) }
    }
}

impl fmt::Display for OtherUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoopDevice(device) => write!(f, "as {}", device.display()),
            Self::RecordLock => {
                f.write_str("by a program that has locked a part of it, such as QEMU or another lunway")
            }
            Self::Process(holder) => write!(f, "by {holder}"),
            Self::AnotherProcess => f.write_str("by another process"),
            Self::Below { base, by } => {
                write!(f, "below: it lies on {}, which is in use {by}", base.display())
            }
            Self::Swap => f.write_str("by the kernel: it is swap space"),
            Self::Kernel => f.write_str("by the kernel: it is mounted, or a part of another device"),
        }
    }
}

/// The permission bits of a regular file that its mode does not let be written, as its mode (`st_mode`) says; `None`:
/// it may be written, or it is something else. The kernel lets root write all the same, so who opens a file for writing
/// asks here.
pub fn write_protection(mode: u32) -> Option<u32> {
    let bits = mode & 0o7777;
    (mode & libc::S_IFMT == libc::S_IFREG && bits & 0o222 == 0).then_some(bits)
}

/// Returns `true` if a block device takes no writes, as `blockdev --setro` makes it: a loop device that was attached
/// so, a disk with a switch. The kernel lets it be opened for writing all the same, and then fails each write.
pub fn is_read_only_device(metadata: &fs::Metadata) -> bool {
    Device::of(metadata).is_some_and(Device::is_read_only)
}

/// The process that holds a `flock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Its process, as this one sees it.
    pub pid: u32,
    /// The name of its program, at most 15 bytes (`/proc/PID/comm`); empty: it could not be read.
    pub name: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid == std::process::id(), self.name.is_empty()) {
            (true, _) => write!(f, "this process (PID {})", self.pid),
            (false, true) => write!(f, "PID {}", self.pid),
            (false, false) => write!(f, "{} (PID {})", self.name, self.pid),
        }
    }
}

/// Longest part of `/proc/locks` that is read, bytes: ten thousand locks.
const LOCKS_LEN_MAX: u64 = 1 << 20;

/// The process that holds a `flock` on the file; `None`: none, or it cannot be told, as on file systems whose `st_dev`
/// is not the one that the kernel locks by (btrfs, overlayfs) for processes of other users, and of processes in other
/// PID namespaces.
pub fn lock_holder(file: &impl AsFd) -> Option<LockHolder> {
    let pid = holder_in_locks(file).or_else(|| holder_in_descriptors(file))?;
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end().replace(char::is_control, "?");
    Some(LockHolder { pid, name })
}

/// The holder that `/proc/locks` names.
fn holder_in_locks(file: &impl AsFd) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let id = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
        stat.st_ino
    );
    let mut locks = String::new();
    File::open("/proc/locks").ok()?.take(LOCKS_LEN_MAX).read_to_string(&mut locks).ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF` (proc_locks(5)); who waits has an arrow behind the number.
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, of, ..] if of == id => pid.parse().ok().filter(|pid| *pid != 0),
            _ => None,
        }
    })
}

/// The process that has the file open under the same path and holds a `flock` by that (proc_pid_fdinfo(5)): of those
/// whose descriptors this one may see.
fn holder_in_descriptors(file: &impl AsFd) -> Option<u32> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: u32, descriptor: &fs::DirEntry| {
        // The link alone: a `stat` of a file on a server that hangs would hang with it.
        fs::read_link(descriptor.path()).is_ok_and(|other| other == path)
            && fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(descriptor.file_name()))
                .is_ok_and(|info| {
                    info.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK"))
                })
    };
    pids.find(|&pid| {
        let mut descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.any(|descriptor| holds(pid, &descriptor))
    })
}

/// The user of a file beside those that `flock` knows; `None`: none is seen. Ask before taking a `flock`: NFS makes
/// record locks of those, which would be found. For a block device that this process has for itself alone (open(2),
/// `O_EXCL`): a loop device on it, and the user of what it lies on.
///
/// A loop device is not seen where its file has another path here than for the program that attached it (another mount
/// namespace).
pub fn other_user(file: &File) -> Option<OtherUser> {
    let metadata = file.metadata().ok()?;
    if let Some(device) = Device::of(&metadata) {
        let above = stack::loop_on(device).map(OtherUser::LoopDevice);
        return above.or_else(|| stack::user_below(device, true));
    }
    if !metadata.is_file() {
        return None;
    }
    if is_swap(&metadata) {
        return Some(OtherUser::Swap);
    }
    match has_record_lock(file) {
        // QEMU has no `flock`; our own programs have both, since they take QEMU's locks as well.
        Ok(true) => Some(lock_holder(file).map_or(OtherUser::RecordLock, OtherUser::Process)),
        // A file system without record locks has none.
        Ok(false) | Err(_) => loop_device(file, |_| true).map(OtherUser::LoopDevice),
    }
}

/// The user of what a block device lies on that has it for writing by a `flock`, as lunway has what it serves; `None`:
/// none is seen, or it is a regular file. For who only reads the device: it would read a disk that changes.
pub fn writer_below(file: &File) -> Option<OtherUser> {
    stack::user_below(Device::of(&file.metadata().ok()?)?, false)
}

/// The file or device that a loop device is attached to, and so on down to the last; empty for everything else.
pub fn backing_files(path: &Path) -> Vec<PathBuf> {
    stack::backing_files(path)
}

/// Returns `true` if two files or devices are made of the same bytes, in full or in part, by whatever names: a write to
/// one is one to the other. Waits for the file systems of both.
pub fn share_bytes(one: &Path, other: &Path) -> bool {
    stack::share_bytes(one, other)
}

/// The user of a regular file that may write to it, beside those that `flock` knows; `None`: none is seen. Programs
/// that only read the file are left out. The caller may hold a `flock` on it, and have called [`announce`].
///
/// Loop devices as of [`other_user`].
pub fn writer_of(file: &File) -> Option<OtherUser> {
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    // QEMU takes read locks on the bytes of what it does to the file. Who locks for writing is about to write.
    let locks =
        [(libc::F_WRLCK, QEMU_WRITES, 1), (libc::F_WRLCK, QEMU_RESIZES, 1), (libc::F_RDLCK, 0, TO_THE_END)];
    let writes = |(kind, start, len)| match conflicting(file, lock(kind, start, len)) {
        // NFS shows a shared `flock`, of a reader, as a read lock on the whole file.
        Ok(Some(found)) => {
            (found.l_type, found.l_start, found.l_len) != (libc::F_RDLCK as libc::c_short, 0, TO_THE_END)
        }
        Ok(None) | Err(_) => false,
    };
    if locks.into_iter().any(writes) {
        return Some(OtherUser::RecordLock);
    }
    // `1` in `ro`: the device refuses writes (`losetup --read-only`).
    let is_writable = |device: &Path| fs::read(device.join("ro")).map_or(true, |ro| !ro.starts_with(b"1"));
    loop_device(file, is_writable).map(OtherUser::LoopDevice)
}

/// The user of a file or block device that is not open yet, which may be writing to it: for who only reads. `flock` is
/// asked only for the name of a program.
///
/// # Errors
///
/// It cannot be opened for reading.
pub fn user_of(path: &Path) -> io::Result<Option<OtherUser>> {
    let is_block_device = fs::metadata(path)?.file_type().is_block_device();
    // The kernel refuses `O_EXCL` for a block device that it has a use of (open(2)). A pipe is not waited for.
    let exclusive = if is_block_device { libc::O_EXCL } else { 0 };
    match File::options().read(true).custom_flags(exclusive | libc::O_NONBLOCK).open(path) {
        Ok(file) => Ok(writer_of(&file).or_else(|| writer_below(&file)).map(|writer| match writer {
            // A `flock` of this process, which reads the file already, is not the writer's.
            OtherUser::RecordLock => lock_holder(&file)
                .filter(|holder| holder.pid != std::process::id())
                .map_or(OtherUser::RecordLock, OtherUser::Process),
            writer => writer,
        })),
        Err(error) if is_block_device && error.kind() == io::ErrorKind::ResourceBusy => {
            Ok(Some(OtherUser::Kernel))
        }
        Err(error) => Err(error),
    }
}

/// QEMU's locks (`block/file-posix.c`, `raw_apply_lock_bytes`; `BlkPermission` of `block/block-common.h`): a read lock
/// on byte 100 + *n* by who uses permission *n*, on byte 200 + *n* by a program that does not share it. Consistent
/// reads are 0, writes 1, another size 3.
const QEMU_READS: i64 = 100;
const QEMU_WRITES: i64 = 101;
const QEMU_RESIZES: i64 = 103;
const QEMU_NO_OTHER_WRITES: i64 = 201;
const QEMU_NO_OTHER_RESIZES: i64 = 203;
/// All bytes that QEMU gives a meaning lie from [`QEMU_READS`] on within this length.
const QEMU_BYTES: i64 = 200;
/// Length of a lock that reaches to the end of any file (`fcntl(2)`, `l_len`).
const TO_THE_END: i64 = 0;
/// `f_type` of file systems that make record locks of `flock`, or tell a server of them: NFS, CIFS, SMB2. A record lock
/// that is given up there could take the `flock` with it.
const NETWORK_FILE_SYSTEMS: [u32; 3] = [0x6969, 0xff53_4d42, 0xfe53_4d42];

/// Takes the locks that keep QEMU out: another writer, and a reader that allows no writers; of a file that is only
/// read, who would write. In place of those that the open file has from an earlier call. They end with it. On network
/// file systems, and where there are no such locks, nothing happens.
pub fn announce(file: &impl AsFd, writable: bool) {
    let network = rustix::fs::fstatfs(file).map(|is| NETWORK_FILE_SYSTEMS.contains(&(is.f_type as u32)));
    if network != Ok(false) || set(file, libc::F_UNLCK, QEMU_READS, QEMU_BYTES).is_err() {
        return;
    }
    let writing: &[i64] = if writable { &[QEMU_WRITES, QEMU_RESIZES] } else { &[] };
    let all = [QEMU_READS, QEMU_NO_OTHER_WRITES, QEMU_NO_OTHER_RESIZES];
    for byte in all.iter().chain(writing) {
        // Read locks exclude each other never; a program that locks whole files has been found by `other_user`.
        let _ = set(file, libc::F_RDLCK, *byte, 1);
    }
}

/// Gives up the locks of [`announce`] at once, where closing the file may take its time.
pub fn withdraw(file: &impl AsFd) {
    // Where it fails, closing does it.
    let _ = set(file, libc::F_UNLCK, QEMU_READS, QEMU_BYTES);
}

/// Locks one byte of an open file, which may lie behind its end, against other open files; `false`: another one has it.
/// It ends when the file is closed. On a file system whose locks are mandatory (CIFS) only that byte is kept from
/// others.
///
/// # Errors
///
/// Where there are no such locks, or what the file system says. The file must be open for writing.
pub fn try_lock_byte(file: &impl AsFd, at: i64) -> io::Result<bool> {
    match set(file, libc::F_WRLCK, at, 1) {
        Ok(()) => Ok(true),
        // fcntl(2): which of the two it is depends on the file system.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A lock of `len` bytes from `start`, of this kind: `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
fn lock(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn set(file: &impl AsFd, kind: libc::c_int, start: i64, len: i64) -> io::Result<()> {
    let lock = lock(kind, start, len);
    // SAFETY: `lock` is a whole `flock` that the kernel reads during the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `true` if the kernel swaps to a regular file.
fn is_swap(metadata: &fs::Metadata) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let own = FileId::of(metadata);
    swapped_files(&swaps).any(|path| fs::metadata(path).is_ok_and(|swap| FileId::of(&swap) == own))
}

/// The files of a `/proc/swaps` (proc_swaps(5)): in names, blanks are octal numbers behind a backslash.
fn swapped_files(swaps: &str) -> impl Iterator<Item = PathBuf> {
    let files = swaps.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.next()?;
        (fields.next() == Some("file")).then_some(name)
    });
    files.map(|name| {
        let blanks = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        blanks.iter().fold(name.to_owned(), |name, (escaped, blank)| name.replace(escaped, blank)).into()
    })
}

fn has_record_lock(file: &File) -> io::Result<bool> {
    Ok(conflicting(file, lock(libc::F_WRLCK, 0, TO_THE_END))?.is_some())
}

/// A lock of another open file that excludes this one.
fn conflicting(file: &File, mut lock: libc::flock) -> io::Result<Option<libc::flock>> {
    // SAFETY: `lock` is a whole `flock` that the kernel reads and writes during the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The loop device whose backing file this is, of those whose directory in `/sys/block` `counts`. Other files are only
/// looked at where this one has a second name: a `stat` of a file on a server that hangs would hang with it.
fn loop_device(file: &File, counts: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let own = file.metadata().ok()?;
    let is_it = |backing: &Path| {
        let same_file = |other: fs::Metadata| FileId::of(&other) == FileId::of(&own);
        backing == path || own.nlink() > 1 && fs::metadata(backing).is_ok_and(same_file)
    };
    let found = stack::loop_devices().find(|folder| {
        stack::backing_file(folder).is_some_and(|backing| is_it(&backing)) && counts(folder)
    })?;
    Some(stack::node_of(&found))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns `true` if something comes true in a moment: a program that another test starts has our descriptors, and
    /// with them our locks, between its fork and its exec.
    fn becomes(is_so: impl Fn() -> bool) -> bool {
        (0..500).any(|_| is_so() || (std::thread::sleep(std::time::Duration::from_millis(10)), false).1)
    }

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
    fn the_process_that_holds_a_flock_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(lock_holder(file.as_file()), None);
        let ours = file.reopen().unwrap();
        ours.lock().unwrap();
        let held = lock_holder(file.as_file());
        // A file system that locks by another number tells nothing.
        assert!(held.as_ref().is_none_or(|holder| holder.pid == std::process::id()), "{held:?}");
        drop(ours);
        assert_eq!(lock_holder(file.as_file()), None);
        let other = LockHolder { pid: 1, name: "init".to_owned() };
        assert_eq!(other.to_string(), "init (PID 1)");
    }

    #[test]
    fn a_file_of_which_another_program_has_locked_a_part_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = file.reopen().unwrap();
        let mut lock = lock(libc::F_RDLCK, 100, 1);
        assert_eq!(other_user(file.as_file()), None);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }, 0);
        assert_eq!(other_user(file.as_file()), Some(OtherUser::RecordLock));
        drop(other);
        assert!(becomes(|| other_user(file.as_file()).is_none()));
    }

    #[test]
    fn files_that_the_kernel_swaps_to_are_read_from_its_list() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/dm-1                               partition\t8388604\t0\t-2\n\
                     /var/swap\\040file                      file\t\t1048572\t0\t-3\n";
        let found: Vec<PathBuf> = swapped_files(swaps).collect();
        assert_eq!(found, [PathBuf::from("/var/swap file")]);
    }

    #[test]
    fn a_writer_is_told_from_a_reader() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (ours, other) = (file.reopen().unwrap(), file.reopen().unwrap());
        announce(&ours, false);
        assert_eq!(writer_of(&ours), None, "our own locks are none of another's");
        announce(&other, false);
        assert_eq!(writer_of(&ours), None, "it reads");
        set(&other, libc::F_RDLCK, 0, TO_THE_END).unwrap();
        assert_eq!(writer_of(&ours), None, "it reads, as NFS shows it");
        set(&other, libc::F_UNLCK, 0, TO_THE_END).unwrap();
        announce(&other, true);
        assert_eq!(writer_of(&ours), Some(OtherUser::RecordLock), "it writes");
        withdraw(&other);
        set(&other, libc::F_WRLCK, 4096, 1).unwrap();
        assert_eq!(writer_of(&ours), Some(OtherUser::RecordLock), "it locks what it is about to write");
        drop(other);
        assert!(becomes(|| writer_of(&ours).is_none()));
    }

    #[test]
    fn one_of_our_own_programs_is_named_and_not_taken_for_qemu() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ours = file.reopen().unwrap();
        ours.lock().unwrap();
        announce(&ours, true);
        let found = other_user(file.as_file());
        // A file system that locks by another number tells nothing.
        let expected = lock_holder(file.as_file()).map_or(OtherUser::RecordLock, OtherUser::Process);
        assert_eq!(found, Some(expected.clone()));
        let said = expected.to_string();
        assert!(
            said == format!("by this process (PID {})", std::process::id())
                || said.contains("another lunway")
        );
    }

    #[test]
    fn qemu_is_kept_out_by_who_writes_and_writes_beside_nobody() {
        let (Some(img), Some(io)) = (lunway_foreign::program("qemu-img"), lunway_foreign::program("qemu-io"))
        else {
            return;
        };
        for format in ["raw", "vhdx", "qcow2"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("disk");
            let made = Command::new(&img).args(["create", "-q", "-f", format]).arg(&path).arg("8M").output();
            assert!(made.unwrap().status.success());
            let qemu = |options: &[&str], command: &str| {
                let mut qemu = Command::new(&io);
                qemu.args(["-f", format]).args(options).args(["-c", command]).arg(&path);
                qemu.output().unwrap().status.success()
            };
            let file = File::options().read(true).write(true).open(&path).unwrap();
            announce(&file, true);
            assert!(!qemu(&[], "write 0 4k"), "{format}: we write");
            // Of a raw image it shares all with all where it only reads, as nothing of it is metadata.
            assert_eq!(qemu(&["-r"], "read 0 4k"), format == "raw", "{format}: we write");
            announce(&file, false);
            assert!(!qemu(&[], "write 0 4k") && qemu(&["-r"], "read 0 4k"), "{format}: we read");
            withdraw(&file);
            assert!(qemu(&[], "write 0 4k"), "{format}");
        }
    }
}
