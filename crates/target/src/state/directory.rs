//! The state directory as the steps that a disk knows.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use lunway_block::small_file;
use lunway_occupancy::FileId;
use rustix::fs::{FlockOperation, flock};

use super::file;

/// Of files that are being written. No file of ours ends so otherwise: an item has no dot.
const UNFINISHED: &str = ".new";
/// The file that is locked while the directory is in use.
const LOCK: &str = ".lock";

/// Operations on a directory and its files, each step as small as a crash can cut it.
pub(super) trait Directory: Send {
    /// Checks whether its path still leads to it.
    fn check(&self) -> Result<(), LostDirectory>;
    /// The bytes of a file; `None`: there is none.
    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Makes a file empty, or an empty file.
    fn create(&mut self, name: &str) -> io::Result<()>;
    /// Fills the file that was created last.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes its bytes durable.
    fn sync_file(&mut self) -> io::Result<()>;
    /// Gives a file the name, and the place, of another.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a name; none is no mistake.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes names durable.
    fn sync(&mut self) -> io::Result<()>;
    /// All names.
    fn names(&mut self) -> io::Result<Vec<String>>;
}

/// The path of the state directory leads elsewhere or nowhere: what is saved there would not be found again, or would
/// be that of another daemon.
#[derive(Debug, thiserror::Error)]
#[error(
    "the state directory {} is lost: {why}. Reservations with APTPL, mode pages and access states cannot be saved until it is \
     back (move it back, or unmount what covers it) or lunway is restarted, which begins with what is there then",
    path.display()
)]
pub(crate) struct LostDirectory {
    path: PathBuf,
    why: String,
}

/// Identity of the open state directory, with the path by which it was opened.
#[derive(Clone, Debug)]
pub(crate) struct OpenDirectory {
    path: PathBuf,
    /// No other directory gets it as long as this one is open.
    id: FileId,
}

impl OpenDirectory {
    fn of(path: &Path, directory: &File) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: FileId::of(&directory.metadata()?) })
    }

    /// The path as it was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks whether the path still leads to the directory. Waits for the file system.
    pub(crate) fn check(&self) -> Result<(), LostDirectory> {
        let why = match fs::metadata(&self.path) {
            Ok(found) if FileId::of(&found) == self.id => return Ok(()),
            Ok(_) => "another one is in its place".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(LostDirectory { path: self.path.clone(), why })
    }
}

/// Puts `bytes` in the place of a file. Cut anywhere, the old file or the new one is there.
pub(super) fn replace(directory: &mut dyn Directory, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!("{name}{UNFINISHED}");
    directory.create(&unfinished)?;
    directory.write(bytes)?;
    // Before the name: a name that is durable must not lead to bytes that are not.
    directory.sync_file()?;
    directory.rename(&unfinished, name)?;
    directory.sync()
}

/// Removes a file, durably.
pub(super) fn remove(directory: &mut dyn Directory, name: &str) -> io::Result<()> {
    directory.remove(name)?;
    directory.sync()
}

/// Removes what a crash left unfinished.
pub(super) fn sweep(directory: &mut dyn Directory) -> io::Result<()> {
    for name in directory.names()?.iter().filter(|name| name.ends_with(UNFINISHED)) {
        directory.remove(name)?;
    }
    Ok(())
}

/// The real thing.
pub(super) struct FileSystem {
    place: OpenDirectory,
    directory: File,
    unfinished: Option<File>,
    /// Locked as long as it is open.
    _lock: File,
}

impl FileSystem {
    /// Opens a directory, which only its owner may look into. An error inside: another process has it, with its number
    /// if it is known.
    pub(super) fn open(path: &Path) -> io::Result<Result<Self, Option<u32>>> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let mut lock = private().create(true).read(true).write(true).truncate(false).open(path.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut number = String::new();
                // Ten digits: the largest number of a process.
                let read = (&lock).take(10).read_to_string(&mut number);
                return Ok(Err(read.ok().and_then(|_| number.trim().parse().ok())));
            }
            Err(error) => return Err(error.into()),
        }
        // For people, and for the message of the next one; that it is not written does no harm.
        let _ = lock.set_len(0).and_then(|()| lock.write_all(std::process::id().to_string().as_bytes()));
        let directory = File::open(path)?;
        Ok(Ok(Self { place: OpenDirectory::of(path, &directory)?, directory, unfinished: None, _lock: lock }))
    }

    pub(super) fn place(&self) -> &OpenDirectory {
        &self.place
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.place.path.join(name)
    }

    fn unfinished(&mut self) -> io::Result<&mut File> {
        self.unfinished.as_mut().ok_or_else(|| io::Error::other("no file was created"))
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

impl Directory for FileSystem {
    fn check(&self) -> Result<(), LostDirectory> {
        self.place.check()
    }

    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match small_file::open(&self.path_of(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        // One more than there can be: then its length does not fit, which is found as damage.
        file.take(file::LEN_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let file = private().create(true).write(true).truncate(true).open(self.path_of(name))?;
        self.unfinished = Some(file);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.unfinished()?.write_all(bytes)
    }

    fn sync_file(&mut self) -> io::Result<()> {
        self.unfinished()?.sync_all()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path_of(from), self.path_of(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path_of(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn names(&mut self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.place.path)?.map(|entry| entry.map(|entry| entry.file_name()));
        // Names that are no text are not ours.
        names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose()).collect()
    }
}

#[cfg(test)]
mod tests {
    use lunway_crash::Folder;

    use super::*;

    impl Directory for Folder {
        fn check(&self) -> Result<(), LostDirectory> {
            Ok(())
        }

        fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
            Ok(Folder::read(self, name))
        }

        fn create(&mut self, name: &str) -> io::Result<()> {
            Folder::create(self, name)
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            Folder::write(self, bytes)
        }

        fn sync_file(&mut self) -> io::Result<()> {
            Folder::sync_file(self)
        }

        fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
            Folder::rename(self, from, to)
        }

        fn remove(&mut self, name: &str) -> io::Result<()> {
            Folder::remove(self, name)
        }

        fn sync(&mut self) -> io::Result<()> {
            Folder::sync(self)
        }

        fn names(&mut self) -> io::Result<Vec<String>> {
            Ok(Folder::names(self))
        }
    }

    /// Runs `change` on a directory that has `old`, with the power failing at every step, and asserts that afterwards
    /// there is `old` or `new`; and `new` alone once the change has answered.
    fn survives_at_every_step(
        change: fn(&mut dyn Directory) -> io::Result<()>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> usize {
        let mut before = Folder::default();
        if let Some(old) = old {
            replace(&mut before, "f", old).unwrap();
        }
        for steps in 0.. {
            let mut directory = before.failing_after(steps);
            let answered = change(&mut directory).is_ok();
            for mut after in directory.after_power_failure() {
                sweep(&mut after).unwrap();
                let found = after.read("f");
                let found = found.as_deref();
                assert!(found == new || found == old && !answered, "{found:?} after {steps} steps");
                assert_eq!(after.names().len(), usize::from(found.is_some()), "something is left");
                // And it goes on from there.
                change(&mut after).unwrap();
                assert_eq!(after.read("f").as_deref(), new);
            }
            if answered {
                return steps;
            }
        }
        unreachable!("the change ends");
    }

    #[test]
    fn a_power_failure_at_any_step_leaves_the_old_file_or_the_new_one() {
        let replace: fn(&mut dyn Directory) -> io::Result<()> = |directory| replace(directory, "f", b"newer");
        assert_eq!(survives_at_every_step(replace, Some(b"old"), Some(b"newer")), 5);
        assert_eq!(survives_at_every_step(replace, None, Some(b"newer")), 5);
        let remove: fn(&mut dyn Directory) -> io::Result<()> = |directory| remove(directory, "f");
        assert_eq!(survives_at_every_step(remove, Some(b"old"), None), 2);
    }

    /// The test above would be worth nothing if it let these pass.
    #[test]
    #[should_panic(expected = "after 3 steps")]
    fn a_name_before_its_bytes_is_found_out() {
        let hasty: fn(&mut dyn Directory) -> io::Result<()> = |directory| {
            directory.create("f.new")?;
            directory.write(b"newer")?;
            directory.rename("f.new", "f")?;
            directory.sync()
        };
        survives_at_every_step(hasty, Some(b"old"), Some(b"newer"));
    }

    #[test]
    #[should_panic(expected = "after 4 steps")]
    fn an_answer_before_the_name_is_durable_is_found_out() {
        let hasty: fn(&mut dyn Directory) -> io::Result<()> = |directory| {
            directory.create("f.new")?;
            directory.write(b"newer")?;
            directory.sync_file()?;
            directory.rename("f.new", "f")
        };
        survives_at_every_step(hasty, Some(b"old"), Some(b"newer"));
    }

    #[test]
    fn the_real_directory_does_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = FileSystem::open(dir.path()).unwrap().unwrap();
        directory.create("left.new").unwrap();
        sweep(&mut directory).unwrap();
        replace(&mut directory, "f", b"one").unwrap();
        replace(&mut directory, "f", b"two").unwrap();
        assert_eq!(directory.read("f").unwrap(), Some(b"two".to_vec()));
        assert_eq!(directory.names().unwrap().iter().filter(|name| *name != LOCK).count(), 1);
        remove(&mut directory, "f").unwrap();
        assert_eq!(directory.read("f").unwrap(), None);
    }
}
