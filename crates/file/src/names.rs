//! Names of open files: whether they still lead to them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lunway_occupancy::FileId;
use rustix::fs::{FileType, fstat};

/// Age of an answer from which a query has the names looked at again: one system call for each, which a network file
/// system may have to ask its server for.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// A thread without work ends after this time.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// An open file, as it is found again by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    path: PathBuf,
    /// Number of its file system.
    device: u64,
    identity: Identity,
}

/// What a name has to lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// A block device, whose nodes come and go, by its number.
    BlockDevice(u64),
    File(FileId),
}

impl Identity {
    fn new(mode: u32, device: u64, inode: u64, number: u64) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::BlockDevice => Self::BlockDevice(number),
            _ => Self::File(FileId::new(device, inode)),
        }
    }
}

impl NamedFile {
    /// The file that was opened by this name. `None` where that cannot be told. May wait for the file system, as
    /// opening did.
    pub fn of(path: &Path, file: impl AsFd) -> Option<Self> {
        let stat = fstat(file).ok()?;
        let path = std::path::absolute(path).ok()?;
        let identity = Identity::new(stat.st_mode, stat.st_dev, stat.st_ino, stat.st_rdev);
        Some(Self { path, device: stat.st_dev, identity })
    }

    fn is_block_device(&self) -> bool {
        matches!(self.identity, Identity::BlockDevice(_))
    }

    /// Fault of its name, a sentence. Blocks. `None` also where that cannot be told.
    fn check(&self) -> Option<String> {
        let name = self.path.display();
        let found = match fs::metadata(&self.path) {
            Ok(found)
                if Identity::new(found.mode(), found.dev(), found.ino(), found.rdev()) == self.identity =>
            {
                return None;
            }
            Ok(_) => "leads to another file than the one that is served",
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                "is gone, which the file that is served had"
            }
            Err(_) => return None,
        };
        let pid = std::process::id();
        Some(format!(
            "the name {name} {found}, so that the next start serves another disk or none: rename that file back to it; `ls -l \
             /proc/{pid}/fd` shows where it is, or that it was deleted: then copy it from there before the daemon ends"
        ))
    }
}

/// Watches the names of a device's files, on a thread for each file system that is asked.
///
/// [`found`](Self::found) says what is known, and has the names looked at again where that is some seconds old. A
/// device that is not asked about costs nothing.
pub struct NameWatch(Arc<Entry>);

struct Entry {
    files: Mutex<Vec<NamedFile>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// `None`: never.
    when: Option<Instant>,
    /// A look was asked for and has not ended.
    wanted: bool,
    found: Option<String>,
}

/// Threads by number of the file system, each with a queue of what it shall look at.
static THREADS: LazyLock<Mutex<HashMap<u64, Sender<Weak<Entry>>>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NameWatch {
    /// Of a device with these files.
    pub fn new(files: Vec<NamedFile>) -> Self {
        Self(Arc::new(Entry { files: Mutex::new(files), known: Mutex::default() }))
    }

    /// The device has other files.
    pub fn set(&self, files: Vec<NamedFile>) {
        *lock(&self.0.files) = files;
        let mut known = lock(&self.0.known);
        (known.when, known.found) = (None, None);
    }

    /// Fault of the first name that does not lead to its file, as last known. Never waits.
    pub fn found(&self) -> Option<String> {
        let mut known = lock(&self.0.known);
        if !known.wanted && known.when.is_none_or(|when| when.elapsed() >= GOOD_FOR) {
            let device = lock(&self.0.files).first().map(|file| file.device);
            known.wanted = device.is_some_and(|device| look_soon(device, &self.0));
        }
        known.found.clone()
    }

    /// Fault of the first name that does not lead to its file, a sentence, as of now. A block device has its data
    /// without a name, too. Blocks.
    pub fn lost_now(&self) -> Option<String> {
        let files = lock(&self.0.files).clone();
        files.iter().filter(|file| !file.is_block_device()).find_map(NamedFile::check)
    }
}

impl Entry {
    fn look(&self) {
        let files = lock(&self.files).clone();
        let found = files.iter().find_map(NamedFile::check);
        let mut known = lock(&self.known);
        (known.when, known.wanted) = (Some(Instant::now()), false);
        // A device that has gone on in another file meanwhile is looked at again.
        if *lock(&self.files) != files {
            known.when = None;
            return;
        }
        if let Some(why) = found.as_ref().filter(|why| known.found.as_ref() != Some(*why)) {
            tracing::warn!("{why}");
        }
        known.found = found;
    }
}

/// Has a thread look. `false`: there is none to be had.
fn look_soon(device: u64, entry: &Arc<Entry>) -> bool {
    let mut threads = lock(&THREADS);
    let queue = match threads.get(&device) {
        Some(queue) => queue.clone(),
        None => {
            let (queue, work) = mpsc::channel();
            let run = move || run(device, &work);
            if thread::Builder::new().name("file-names".to_owned()).spawn(run).is_err() {
                return false;
            }
            threads.insert(device, queue.clone());
            queue
        }
    };
    queue.send(Arc::downgrade(entry)).is_ok()
}

fn run(device: u64, work: &Receiver<Weak<Entry>>) {
    loop {
        let entry = match work.recv_timeout(IDLE_TIME) {
            Ok(entry) => entry,
            Err(_) => {
                // Nothing is sent while this is held.
                let mut threads = lock(&THREADS);
                let Ok(entry) = work.try_recv() else {
                    threads.remove(&device);
                    return;
                };
                entry
            }
        };
        if let Some(entry) = entry.upgrade() {
            entry.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_told_and_so_is_that_it_is_right_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("disk"), "one").unwrap();
        let file = File::open(path("disk")).unwrap();
        let watch = NameWatch::new(vec![NamedFile::of(&path("disk"), &file).unwrap()]);
        let until = |done: &dyn Fn(Option<String>) -> bool| {
            for _ in 0..2000 {
                lock(&watch.0.known).when = None;
                if done(watch.found()) {
                    return;
                }
                thread::sleep(Duration::from_millis(5));
            }
            panic!("it is not noticed");
        };
        watch.found();
        until(&|found| found.is_none() && !lock(&watch.0.known).wanted);
        fs::rename(path("disk"), path("moved")).unwrap();
        until(&|found| found.is_some_and(|why| why.contains("is gone")));
        fs::write(path("disk"), "two").unwrap();
        until(&|found| found.is_some_and(|why| why.contains("leads to another file")));
        fs::rename(path("moved"), path("disk")).unwrap();
        until(&|found| found.is_none());
        watch.set(vec![NamedFile::of(&path("disk"), File::open(folder.path()).unwrap()).unwrap()]);
        until(&|found| found.is_some());
    }
}
