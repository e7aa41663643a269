//! Used and available space of the file system.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::Space;
use rustix::fs::{fstat, fstatvfs};

use crate::handle::{Handle, Placement};

/// Age of an answer from which a query triggers a refresh: that takes two system calls, which a network file system may
/// have to ask its server for, and every INQUIRY of page B2h queries it.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// Interval at which every device is refreshed that is not asked for: others fill the file system too, and the first
/// one to ask gets what is known. 1,000 devices are 2,000 system calls, 2 ms, in this time.
const PERIOD: Duration = Duration::from_secs(5);

/// Age from which a figure is no longer told: the file system has not answered for all this time, and others fill it.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// The space of the file system behind a regular file. A block device does not say what it has.
///
/// [`space`](Self::space) never asks the file system, which may not answer: it says what is known. A thread for each
/// file system refreshes what its devices know, every [`PERIOD`] and soon after somebody has asked. If the file system
/// does not answer, that thread is the only one that waits, and what was known last is told for [`KNOWN_FOR`].
pub(crate) struct Store {
    entry: Option<Arc<Entry>>,
    watch: Option<Arc<Watch>>,
}

struct Entry {
    file: Weak<Handle>,
    known: Mutex<Known>,
}

#[derive(Clone, Copy)]
struct Known {
    when: Instant,
    space: Option<Space>,
    /// Length of the file; `None`: not known, or about to be another.
    length: Option<u64>,
    /// Counts changes of the length by ourselves.
    changes: u64,
    /// A refresh was asked for and has not begun.
    wanted: bool,
}

impl Store {
    /// Asks for the first time, on the thread that opens the file; `device` is the number of the file system.
    pub(crate) fn new(file: &Arc<Handle>, regular: bool, device: u64) -> Self {
        if !regular {
            return Self { entry: None, watch: None };
        }
        let (space, length) = ask(file.as_fd());
        let known = Known { when: Instant::now(), space, length, changes: 0, wanted: false };
        let entry = Arc::new(Entry { file: Arc::downgrade(file), known: Mutex::new(known) });
        let watch = (file.placement() != Placement::Memory).then(|| Watch::of(device, &entry));
        Self { entry: Some(entry), watch: watch.flatten() }
    }

    /// Space as last known. Never waits.
    pub(crate) fn space(&self) -> Option<Space> {
        self.known(|known| known.space)
    }

    /// Length of the file as last known. Never waits.
    pub(crate) fn length(&self) -> Option<u64> {
        self.known(|known| known.length)
    }

    /// The length is not known from now on, until this is dropped and the file asked again.
    pub(crate) fn changing(&self) -> Changing<'_> {
        let entry = self.entry.as_deref();
        entry.into_iter().for_each(Entry::forget_length);
        Changing(entry)
    }

    fn known<T>(&self, of: impl Fn(&Known) -> Option<T>) -> Option<T> {
        let entry = self.entry.as_ref()?;
        let mut known = entry.lock();
        if known.when.elapsed() < GOOD_FOR {
            return of(&known);
        }
        match &self.watch {
            Some(watch) => {
                let told = of(&known).filter(|_| known.when.elapsed() < KNOWN_FOR);
                if !std::mem::replace(&mut known.wanted, true) {
                    drop(known);
                    watch.wake();
                }
                told
            }
            None => {
                drop(known);
                // Memory knows at once. A disk whose thread could not be started is not known for long.
                entry.refresh_if(|file| file.placement() == Placement::Memory);
                let known = entry.lock();
                of(&known).filter(|_| known.when.elapsed() < KNOWN_FOR)
            }
        }
    }
}

/// A change of the length under way.
pub(crate) struct Changing<'a>(Option<&'a Entry>);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(Entry::forget_length);
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refresh_if(&self, may: impl FnOnce(&Handle) -> bool) {
        let Some(file) = self.file.upgrade().filter(|file| may(file)) else { return };
        let changes = {
            let mut known = self.lock();
            known.wanted = false;
            known.changes
        };
        let (space, length) = ask(file.as_fd());
        let mut known = self.lock();
        (known.when, known.space) = (Instant::now(), space);
        known.length = length.filter(|_| known.changes == changes);
    }

    fn forget_length(&self) {
        let mut known = self.lock();
        known.length = None;
        known.changes += 1;
    }

    fn is_due(&self) -> bool {
        let known = self.lock();
        // At the next turn of the thread it would be too old.
        known.wanted || known.when.elapsed() >= PERIOD / 2
    }
}

/// The devices on one file system, and the thread that asks it.
struct Watch {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    entries: Vec<Weak<Entry>>,
    woken: bool,
    /// The thread has gone.
    over: bool,
}

/// By number of the file system.
static WATCHES: LazyLock<Mutex<HashMap<u64, Weak<Watch>>>> = LazyLock::new(Mutex::default);

impl Watch {
    /// Watches a device of a file system; `None` if there is no thread to be had.
    fn of(device: u64, entry: &Arc<Entry>) -> Option<Arc<Self>> {
        let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|_, watch| watch.strong_count() > 0);
        if let Some(watch) = watches.get(&device).and_then(Weak::upgrade) {
            let mut state = watch.lock();
            if !state.over {
                state.entries.push(Arc::downgrade(entry));
                drop(state);
                return Some(watch);
            }
        }
        let state = State { entries: vec![Arc::downgrade(entry)], ..State::default() };
        let watch = Arc::new(Self { state: Mutex::new(state), wake: Condvar::new() });
        let watching = Arc::clone(&watch);
        thread::Builder::new().name("file-space".to_owned()).spawn(move || watching.run()).ok()?;
        watches.insert(device, Arc::downgrade(&watch));
        Some(watch)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.lock().woken = true;
        self.wake.notify_one();
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            state.entries.retain(|entry| entry.strong_count() > 0);
            if state.entries.is_empty() {
                state.over = true;
                return;
            }
            if !state.woken {
                state = self.wake.wait_timeout(state, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.woken = false;
            let entries = state.entries.clone();
            // Nothing is locked while the file system is asked.
            drop(state);
            let due = entries.iter().filter_map(Weak::upgrade).filter(|entry| entry.is_due());
            due.for_each(|entry| entry.refresh_if(|_| true));
            state = self.lock();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.entry = None;
        // So that the thread goes with the last device.
        self.watch.iter().for_each(|watch| watch.wake());
    }
}

/// The space, and the length of the file.
fn ask(file: BorrowedFd<'_>) -> (Option<Space>, Option<u64>) {
    let (Ok(stat), fs) = (fstat(file), fstatvfs(file)) else { return (None, None) };
    let length = u64::try_from(stat.st_size).ok();
    // `st_blocks` counts units of 512 bytes everywhere on Linux.
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let Ok(fs) = fs else { return (None, length) };
    let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
    let space = Some(Space {
        allocated,
        used: bytes(fs.f_blocks.saturating_sub(fs.f_bfree)),
        // Not `f_bfree`: the reserve for root is nothing to count on.
        available: bytes(fs.f_bavail),
    });
    (space, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn handle(file: &File, placement: Placement) -> Arc<Handle> {
        Arc::new(Handle::new(file.try_clone().unwrap().into(), false, placement).unwrap().0)
    }

    #[test]
    fn memory_is_asked_once_a_second_at_most() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let handle = handle(file.as_file(), Placement::Memory);
        let store = Store::new(&handle, true, 1);
        file.as_file().write_all_at(&[1; 1 << 20], 0).unwrap();
        assert_eq!(store.space().unwrap().allocated, 0);
        assert_eq!(ask(file.as_file().as_fd()).0.unwrap().allocated, 1 << 20);
        store.entry.as_ref().unwrap().lock().when -= GOOD_FOR;
        assert!(store.space().is_some_and(|space| space.allocated == 1 << 20 && space.used >= 1 << 20));
        assert_eq!(Store::new(&handle, false, 1).space(), None);
    }

    #[test]
    fn a_disk_is_asked_on_another_thread_which_goes_with_its_last_device() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let handle = handle(file.as_file(), Placement::Remote);
        let stores = [(); 2].map(|()| Store::new(&handle, true, u64::MAX));
        let watch = Arc::downgrade(stores[0].watch.as_ref().unwrap());
        assert_eq!(watch.strong_count(), 3, "two devices and one thread");
        file.as_file().write_all_at(&[1; 1 << 20], 0).unwrap();
        stores[0].entry.as_ref().unwrap().lock().when -= GOOD_FOR;
        assert_eq!(stores[0].space().unwrap().allocated, 0, "what was known, at once");
        let eventually = |done: &dyn Fn() -> bool| {
            (0..2000).any(|_| {
                thread::sleep(Duration::from_millis(5));
                done()
            })
        };
        assert!(eventually(&|| stores[0].space().unwrap().allocated == 1 << 20));
        assert_eq!(stores[0].length(), Some(1 << 20));
        // What is as old as that is not told any more.
        stores[0].entry.as_ref().unwrap().lock().when -= KNOWN_FOR;
        assert_eq!(stores[0].space(), None);
        assert!(eventually(&|| stores[0].space().is_some()));
        drop(stores);
        assert!(eventually(&|| watch.upgrade().is_none()));
    }
}
