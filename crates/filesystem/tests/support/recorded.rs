//! A disk that the kernel writes, recorded write by write and flush by flush: a loop device on a file of FUSE, whose
//! device is the recorder of the crash kit.
//!
//! ```text
//!   file system ──▶ loop device, direct I/O ──▶ lunway_fuse ──▶ conformance::Disk ──▶ Recorder
//! ```

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use lunway_block::conformance::Disk;
use lunway_crash::{Crash, MemoryStorage, Recorder};

use super::fuse::Fuse;
use super::{Loop, Random, exit, text, unmount};

/// Piece of an image that is read and looked at at once.
const PAGE: usize = 4096;

/// How the volume is mounted.
#[derive(Clone, Copy)]
pub(crate) enum Mount {
    /// By the kernel, with options.
    Kernel(&'static str),
    /// By a program in user space, with arguments that make it stay in the foreground.
    Program(&'static str, &'static [&'static str]),
}

impl Mount {
    /// Lets `work` see the files of a volume. `Err` with what was said if it is not mounted.
    pub(crate) fn on<T>(self, device: &Path, work: impl FnOnce(&Path) -> T) -> Result<T, String> {
        match self {
            Self::Kernel(options) => {
                let folder = tempfile::tempdir().expect("a folder");
                let (said, code) = exit("mount", &["-o", options, text(device), text(folder.path())]);
                if code != 0 {
                    return Err(said.trim().to_owned());
                }
                let done = work(folder.path());
                unmount(folder.path());
                Ok(done)
            }
            Self::Program(program, arguments) => {
                let mounted = Fuse::try_mount(program, arguments, device)?;
                let done = work(mounted.at());
                mounted.close();
                Ok(done)
            }
        }
    }
}

/// Records what happens to a volume from mounting to unmounting. `None`, noted, where that is not allowed here.
pub(crate) fn record(image: &Path, mount: Mount, work: impl FnOnce(&Path)) -> Option<Recorder> {
    let disk = Arc::new(Disk::of(load(image)));
    let recorder = disk.recorder().clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let guard = runtime.enter();
    let attached = match lunway_fuse::Mounted::mount(disk, folder.path(), "disk") {
        Ok(attached) => attached,
        Err(error) => {
            lunway_foreign::machine_lacks(&format!("FUSE: {error}"));
            return None;
        }
    };
    drop(guard);
    let device = Loop::direct(attached.file())?;
    let done = mount.on(&device.0, work);
    drop(device);
    runtime.block_on(attached.detach(|| ())).expect("a disk in memory");
    if let Err(said) = done {
        lunway_foreign::machine_lacks(&format!("a kernel that mounts this: {said}"));
        return None;
    }
    Some(recorder)
}

fn load(image: &Path) -> MemoryStorage {
    let file = std::fs::File::open(image).expect("an image");
    let len = file.metadata().expect("metadata").len();
    let storage = MemoryStorage::of_len(len);
    let mut page = [0; PAGE];
    for at in (0..len).step_by(PAGE) {
        let page = &mut page[..(len - at).min(PAGE as u64) as usize];
        file.read_exact_at(page, at).expect("a read");
        if page.iter().any(|byte| *byte != 0) {
            storage.write(at, page).expect("memory");
        }
    }
    storage
}

/// Writes a disk to a file, whose holes are its zeroes.
pub(crate) fn store(disk: &MemoryStorage, path: &Path) {
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(disk.size()).expect("a length");
    for (at, len) in disk.allocated_in(0, disk.size()) {
        let mut bytes = vec![0; len as usize];
        disk.read(at, &mut bytes).expect("memory");
        file.write_all_at(&bytes, at).expect("a write");
    }
}

/// One of the disks that a power cut at this moment may leave: of what was not flushed everything, nothing, half of the
/// sectors, half of the pages, or all but one page.
pub(crate) fn cut(crash: &Crash<'_>, random: &mut Random) -> (MemoryStorage, &'static str) {
    const SECTOR: u64 = 512;
    match random.below(5) {
        0 => (crash.image(SECTOR, |_| true), "all"),
        1 => (crash.image(SECTOR, |_| false), "nothing"),
        2 => (crash.image(SECTOR, |_| random.once_in(2)), "half of the sectors"),
        3 => (crash.image(PAGE as u64, |_| random.once_in(2)), "half of the pages"),
        _ => {
            let lost = random.below(crash.units(PAGE as u64).max(1) as u64) as usize;
            (crash.image(PAGE as u64, |unit| unit != lost), "all but one page")
        }
    }
}

/// The moments of `count` power cuts among `operations`, in order.
pub(crate) fn moments(count: u64, operations: usize, random: &mut Random) -> Vec<usize> {
    let mut moments: Vec<usize> = (0..count).map(|_| random.below(operations as u64 + 1) as usize).collect();
    moments.sort_unstable();
    moments
}
