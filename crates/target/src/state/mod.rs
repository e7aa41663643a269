//! State that must outlive the process, in files: reservations with APTPL, saved mode pages, asymmetric access states.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`FileStore`]: who asks, and the thread that does it |
//! | `queue.rs` | whose turn it is, and what is written once for several |
//! | `file.rs` | one file: its name and its bytes |
//! | `directory.rs` | the directory as the steps that a disk knows, and the order in which a file is replaced |

mod directory;
mod file;
mod queue;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunway_block::Io;
use lunway_scsi::{StateError, StateStore};
use tokio::sync::oneshot;

use crate::log_limit::LogLimit;
use directory::{Directory, FileSystem, remove, replace, sweep};
use queue::{Queue, Request, Thing};

pub(crate) use directory::OpenDirectory;
pub(crate) use file::name as file_name;

/// File of the state directory with what is known of backups by the clock.
pub const BACKUPS_FILE: &str = "backups.json";

/// Returns `true` if a file of the state directory is the daemon's own by its name: a kept item, a track file, what a
/// snapshot needs, what is known of backups by the clock, the lock.
pub(crate) fn is_state_file(name: &str) -> bool {
    // Each owner is a target and a LUN, with a slash between; a long name ends with a hash.
    let is_item =
        name.rsplit_once('.').is_some_and(|(owner, _)| owner.contains("%2F") || owner.contains('~'));
    let is_of_snapshot = name.strip_prefix("snapshot-").is_some_and(|name| name.ends_with(".area"));
    is_item || is_of_snapshot || name == BACKUPS_FILE || name.starts_with(".lock")
}

/// Advice to who needs a state directory and has none. `state_dir` is one of
/// [`Config::FIXED`](crate::config::Config::FIXED): a reload alone would not help.
pub(crate) const SET_STATE_DIR: &str =
    "set state_dir in the configuration; it takes effect at the next start of the daemon";

/// Reason why state cannot be kept in a directory.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Cannot be made, read or written.
    #[error("cannot keep state in {}: {source}", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// Another process keeps its state there.
    #[error("{} belongs to {}; every daemon needs a state_dir of its own", path.display(), owner(*process))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The number of that process, where it is known.
        process: Option<u32>,
    },
}

/// A process by its number, with what keeps it from ending where that is so.
fn owner(process: Option<u32>) -> String {
    let Some(process) = process else { return "another process".to_owned() };
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default().trim();
    match state.starts_with(['Z', 'D', 'X']) {
        true => format!(
            "process {process}, which is ending and waits for a disk that does not answer ({state}): the directory is free \
             when that disk answers"
        ),
        false => format!("process {process}"),
    }
}

/// Time for the state's own disk to take what was asked for, when the daemon ends.
const END_TIME: Duration = Duration::from_secs(2);
/// Polling interval of the end of its thread.
const END_POLL: Duration = Duration::from_millis(5);

/// A directory with one file for each owner and item.
///
/// A file is replaced as a whole: written under another name, made durable, renamed, and the directory made durable;
/// only then [`save`](StateStore::save) answers. So there is one whole file at any moment, the old or the new one, and
/// its checksum tells when a disk has lost or changed it later: then [`load`](StateStore::load) says so, and the daemon
/// does not start with a disk whose reservations it does not know.
///
/// All of this is done by one thread, because it waits for the disk; those who serve never do. What is to be saved
/// waits in a queue, in which sessions take turns. The directory is locked: two processes that keep the same state
/// would undo each other's. A directory whose path leads elsewhere is lost: then nothing is loaded or
/// saved, as the next start would not find it.
pub struct FileStore {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    place: OpenDirectory,
    lost: Arc<Lost>,
}

/// Reason why the directory is lost, as it was seen last: a caller does not wait for a file system.
#[derive(Debug, Default)]
struct Lost(Mutex<Option<String>>);

impl Lost {
    fn now(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether the directory is lost.
    ///
    /// # Errors
    ///
    /// Why it is.
    fn look(&self, directory: &dyn Directory) -> Result<(), String> {
        let found = directory.check().map_err(|lost| lost.to_string());
        let now = found.as_ref().err().cloned();
        let before = std::mem::replace(&mut *self.now(), now);
        match &found {
            Err(why) if before.as_ref() != Some(why) => tracing::error!("{why}"),
            Ok(()) if before.is_some() => tracing::warn!("the state directory is back"),
            _ => {}
        }
        found
    }
}

impl FileStore {
    /// Opens the directory, which is made if there is none, and locks it.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let unusable = |source| StateDirError::Unusable { path: path.to_owned(), source };
        let directory = FileSystem::open(path).map_err(unusable)?;
        let mut directory =
            directory.map_err(|process| StateDirError::InUse { path: path.to_owned(), process })?;
        sweep(&mut directory).map_err(unusable)?;
        let (queue, lost, place) =
            (Arc::new(Queue::new()), Arc::<Lost>::default(), directory.place().clone());
        let (requests, seen) = (Arc::clone(&queue), Arc::clone(&lost));
        let thread = thread::Builder::new()
            .name("lunway-state".to_owned())
            .spawn(move || serve(&mut directory, &requests, &seen))
            .map_err(unusable)?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)), place, lost })
    }

    /// Ends what was asked for, and gives the directory to the next process; where its disk does not answer within
    /// [`END_TIME`], without waiting for that. Nothing can be asked any longer.
    pub(crate) async fn end(&self) {
        self.queue.close();
        let by = tokio::time::Instant::now() + END_TIME;
        let is_running = || {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.as_ref().is_some_and(|thread| !thread.is_finished())
        };
        while is_running() && tokio::time::Instant::now() < by {
            tokio::time::sleep(END_POLL).await;
        }
    }

    /// The directory.
    pub(crate) fn place(&self) -> &OpenDirectory {
        &self.place
    }

    /// Returns the reason why the directory is lost, if that was seen at the last request or within 10 s.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.now().clone()
    }
}

impl StateStore for FileStore {
    fn load(&self, owner: &str, item: &str) -> Result<Option<Vec<u8>>, StateError> {
        let (answer, loaded) = mpsc::sync_channel(1);
        self.queue.load(Thing { owner: owner.to_owned(), item: item.to_owned() }, answer);
        loaded.recv().unwrap_or_else(|_| Err(unavailable(owner, item, "its thread has ended")))
    }

    fn save(&self, owner: &str, item: &str, bytes: Vec<u8>) -> Io<Result<(), StateError>> {
        let (answer, saved) = oneshot::channel();
        let (owner, item) = (owner.to_owned(), item.to_owned());
        self.queue.save(Thing { owner: owner.clone(), item: item.clone() }, bytes, answer);
        Io::pending(async move {
            saved.await.unwrap_or_else(|_| Err(unavailable(&owner, &item, "its thread has ended")))
        })
    }
}

impl Drop for FileStore {
    /// Ends what was asked for; then the directory is free for the next process.
    fn drop(&mut self) {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("place", &self.place).finish_non_exhaustive()
    }
}

fn unavailable(owner: &str, item: &str, why: impl fmt::Display) -> StateError {
    StateError::Unavailable { owner: owner.to_owned(), item: item.to_owned(), why: why.to_string() }
}

/// The thread. It ends when no sender is left.
fn serve(directory: &mut dyn Directory, queue: &Queue, lost: &Lost) {
    /// However the thread ends, no caller waits for it.
    struct Ending<'a>(&'a Queue);
    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.abandon();
        }
    }
    let _ending = Ending(queue);
    // An initiator can make as many saves fail as it likes.
    let log = LogLimit::default();
    while let Some(request) = queue.next() {
        let there = lost.look(directory);
        match request {
            Request::Look => {}
            Request::Load { thing: Thing { owner, item }, answer } => {
                let there = there.map_err(|why| unavailable(&owner, &item, why));
                let _ = answer.send(there.and_then(|()| load(directory, &owner, &item)));
            }
            Request::Save { thing: Thing { owner, item }, bytes, answers } => {
                let there = there.map_err(|why| unavailable(&owner, &item, why));
                let saved = there.and_then(|()| save(directory, &owner, &item, &bytes));
                if let Err(error) = &saved {
                    log.info(|suppressed| tracing::error!(suppressed, "{error}"));
                }
                for answer in answers {
                    let _ = answer.send(saved.clone());
                }
            }
        }
    }
}

fn load(directory: &mut dyn Directory, owner: &str, item: &str) -> Result<Option<Vec<u8>>, StateError> {
    let read = directory.read(&file::name(owner, item));
    let Some(bytes) = read.map_err(|error| unavailable(owner, item, error))? else { return Ok(None) };
    let payload = file::decode(&bytes, owner, item).map_err(|why| StateError::Damaged {
        owner: owner.to_owned(),
        item: item.to_owned(),
        why: format!("{why} (file {})", file::name(owner, item)),
    })?;
    Ok(Some(payload.to_vec()))
}

fn save(directory: &mut dyn Directory, owner: &str, item: &str, bytes: &[u8]) -> Result<(), StateError> {
    let name = file::name(owner, item);
    let done = if bytes.is_empty() {
        remove(directory, &name)
    } else {
        file::encode(owner, item, bytes).and_then(|bytes| replace(directory, &name, &bytes))
    };
    done.map_err(|error| unavailable(owner, item, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "iqn.2026-11.com.example:disks/0";

    async fn save(store: &FileStore, item: &str, bytes: &[u8]) {
        store.save(OWNER, item, bytes.to_vec()).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_saved_is_there_after_a_restart_and_what_is_emptied_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/here");
        {
            let store = FileStore::open(&path).unwrap();
            assert_eq!(store.load(OWNER, "reservations"), Ok(None));
            save(&store, "reservations", b"one").await;
            save(&store, "reservations", b"two").await;
            save(&store, "mode-pages", b"three").await;
        }
        {
            let store = FileStore::open(&path).unwrap();
            assert_eq!(store.load(OWNER, "reservations"), Ok(Some(b"two".to_vec())));
            save(&store, "reservations", b"").await;
            save(&store, "reservations", b"").await;
        }
        let store = FileStore::open(&path).unwrap();
        assert_eq!(store.load(OWNER, "reservations"), Ok(None));
        assert_eq!(store.load(OWNER, "mode-pages"), Ok(Some(b"three".to_vec())));
    }

    #[tokio::test]
    async fn a_damaged_file_is_an_error_and_not_an_empty_start() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::open(dir.path()).unwrap();
        save(&store, "reservations", b"precious").await;
        let path = dir.path().join(file::name(OWNER, "reservations"));
        let good = std::fs::read(&path).unwrap();
        for wrong in [&good[..good.len() - 1], &[], &[&good[..], b"x"].concat(), &vec![0; good.len()]] {
            std::fs::write(&path, wrong).unwrap();
            let error = store.load(OWNER, "reservations").unwrap_err();
            assert!(matches!(error, StateError::Damaged { .. }), "{error}");
            let (said, file) = (error.to_string(), file::name(OWNER, "reservations"));
            assert!(said.contains(&file) && said.contains("hosts have to register again"), "{said}");
        }
    }

    #[test]
    fn a_directory_that_is_in_use_is_refused_until_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::open(dir.path()).unwrap();
        let error = FileStore::open(dir.path()).unwrap_err();
        assert!(
            matches!(error, StateDirError::InUse { process: Some(process), .. } if process == std::process::id())
        );
        assert!(error.to_string().contains(&format!("process {};", std::process::id())), "{error}");
        drop(store);
        assert!(FileStore::open(dir.path()).is_ok());
    }

    /// Lost was: a reservation that was answered with GOOD, saved into another directory than the next start had.
    #[tokio::test]
    async fn nothing_is_kept_in_a_directory_that_was_removed_or_exchanged_until_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let [path, aside] = ["state", "aside"].map(|name| dir.path().join(name));
        let store = FileStore::open(&path).unwrap();
        save(&store, "reservations", b"one").await;
        std::fs::rename(&path, &aside).unwrap();
        for bytes in [&b"two"[..], b""] {
            let error = store.save(OWNER, "reservations", bytes.to_vec()).await.unwrap_err().to_string();
            assert!(error.contains("state is lost") && error.contains("restarted"), "{error}");
            assert!(store.load(OWNER, "reservations").is_err(), "nothing is not what was kept");
            assert!(store.lost().is_some());
            // Once it is gone, once another is there.
            std::fs::create_dir_all(&path).unwrap();
        }
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "it is of somebody else");
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(store.load(OWNER, "reservations"), Ok(Some(b"one".to_vec())));
        assert_eq!(store.lost(), None);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"").unwrap();
        let error = FileStore::open(&path.join("below")).unwrap_err();
        assert!(error.to_string().contains("file/below"), "{error}");
    }
}
