//! Write-back in the background, so that a flush has little left to do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Target time for the disk to write all dirty data. Initiators give a flush 30 s (Linux: `SD_TIMEOUT`, and 60 s for
/// SYNCHRONIZE CACHE) before they abort it. A flush that comes at the worst moment waits for one pass and then for what
/// was written since: twice this time, and the disk may become three times slower meanwhile.
const TARGET: Duration = Duration::from_secs(4);
/// Dirty bytes allowed before the disk has shown how fast it is: 4 s at 8 MB/s.
const LIMIT_FIRST: u64 = 32 << 20;
/// Dirty bytes allowed at least: sorted 4 KiB writes bring a hard disk down to 2 MB/s, for which this is 4 s.
const LIMIT_MIN: u64 = 8 << 20;
/// Dirty bytes allowed at most: a disk that wrote one file fast may have to write small scattered pieces next, with 10
/// MB/s in 26 s.
const LIMIT_MAX: u64 = 256 << 20;
/// A pass begins when this part of the limit is dirty, so that writes seldom meet the limit.
const PASS_AT: u64 = 4;

/// Bounds what the page cache holds of a device's writes, in bytes, by the time that the disk takes for it.
///
/// Every volatile write is [`note`](Self::note)d. When a quarter of the limit is dirty a pass is due: `fdatasync`
/// through a file of its own (see `Handle`), on the device's own thread. Writes of a [`FileDevice`](crate::FileDevice)
/// wait for room while the limit is reached. Each pass measures the disk and sets the limit to what it writes in
/// four seconds (`TARGET`).
///
/// Bytes are counted as they are written: what is written twice counts twice, so that the estimate errs by rewriting
/// the same blocks; `LIMIT_MAX` is for that.
pub struct WriteBack {
    /// Bytes written since the device was opened.
    written: AtomicU64,
    /// Of these, known to be on the disk.
    clean: AtomicU64,
    limit: AtomicU64,
    /// A pass is queued or under way.
    running: AtomicBool,
    /// Guards nothing but the wait.
    turn: Mutex<()>,
    room: Condvar,
    /// Told when there may be room.
    on_room: OnceLock<RoomCallback>,
}

/// Called when writes may have room.
type RoomCallback = Box<dyn Fn() + Send + Sync>;

impl WriteBack {
    /// Nothing is written yet.
    #[expect(clippy::new_without_default, reason = "of a device that is opened")]
    pub fn new() -> Self {
        Self {
            written: AtomicU64::new(0),
            clean: AtomicU64::new(0),
            limit: AtomicU64::new(LIMIT_FIRST),
            running: AtomicBool::new(false),
            turn: Mutex::default(),
            room: Condvar::new(),
            on_room: OnceLock::new(),
        }
    }

    fn dirty(&self) -> u64 {
        // In this order: `clean` never overtakes a later look at `written`.
        let clean = self.clean.load(Ordering::Acquire);
        self.written.load(Ordering::Acquire).saturating_sub(clean)
    }

    /// Returns `true` if writes must wait.
    pub(crate) fn is_full(&self) -> bool {
        self.dirty() >= self.limit.load(Ordering::Relaxed)
    }

    /// Counts a write that is done. True: the caller starts a pass, or says that it [cannot](Self::give_up).
    pub fn note(&self, bytes: u64) -> bool {
        self.written.fetch_add(bytes, Ordering::AcqRel);
        self.is_due() && !self.running.swap(true, Ordering::AcqRel)
    }

    fn is_due(&self) -> bool {
        self.dirty() >= self.limit.load(Ordering::Relaxed) / PASS_AT
    }

    /// Returns the mark up to which a flush that begins now will have written.
    pub fn mark(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// All up to the mark has been written.
    pub fn cleaned(&self, mark: u64) {
        self.clean.fetch_max(mark, Ordering::AcqRel);
        self.wake();
    }

    /// Makes a pass. Blocks. True: another one is due, and the caller starts it.
    pub fn pass(&self, sync: impl FnOnce()) -> bool {
        let (begun, mark) = (Instant::now(), self.mark());
        let bytes = mark.saturating_sub(self.clean.load(Ordering::Acquire));
        sync();
        self.measured(bytes, begun.elapsed());
        self.cleaned(mark);
        if self.is_due() {
            return true;
        }
        self.give_up();
        // A write between the two found a pass running.
        self.is_due() && !self.running.swap(true, Ordering::AcqRel)
    }

    /// No pass is under way; nobody waits for one.
    pub fn give_up(&self) {
        self.running.store(false, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        self.room.notify_all();
        if let Some(tell) = self.on_room.get() {
            tell();
        }
    }

    /// Sets the limit to what the disk writes in [`TARGET`], up by a factor of 2 at most.
    fn measured(&self, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let micros = u128::from(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
        let affordable = u128::from(bytes) * TARGET.as_micros() / micros;
        let most = self.limit.load(Ordering::Relaxed).saturating_mul(2).clamp(LIMIT_MIN, LIMIT_MAX);
        let limit = u64::try_from(affordable).unwrap_or(u64::MAX).clamp(LIMIT_MIN, most);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Asks to be told when there may be room; once.
    pub(crate) fn on_room(&self, callback: RoomCallback) {
        // One lane waits for a device's room.
        let _ = self.on_room.set(callback);
    }

    /// Whether a write has to wait: the limit is reached, and a pass is under way that makes room.
    pub(crate) fn must_wait(&self) -> bool {
        self.is_full() && self.running.load(Ordering::Acquire)
    }

    /// Waits until a write may dirty more. Blocks as long as the disk does.
    pub(crate) fn wait_for_room(&self) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while self.must_wait() {
            turn = self.room.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_pass_is_due_at_a_quarter_of_the_limit_and_started_once() {
        let state = WriteBack::new();
        assert!(!state.note(LIMIT_FIRST / PASS_AT - 1));
        assert!(state.note(1));
        assert!(!state.note(1 << 20), "one pass at a time");
        assert!(!state.pass(|| ()), "all is clean");
        assert_eq!(state.dirty(), 0);
        assert!(state.note(LIMIT_MAX), "and the next one is due again");
    }

    #[test]
    fn the_limit_follows_the_disk() {
        let state = WriteBack::new();
        let limit = |bytes: u64, took: u64| {
            state.measured(bytes, Duration::from_millis(took));
            state.limit.load(Ordering::Relaxed)
        };
        assert_eq!(limit(100 << 20, 100), 2 * LIMIT_FIRST, "1 GB/s, by a factor of 2 at a time");
        assert_eq!(limit(100 << 20, 100), 4 * LIMIT_FIRST);
        assert_eq!(limit(1 << 40, 1), LIMIT_MAX);
        assert_eq!(limit(100 << 20, 10_000), 40 << 20, "10 MiB/s for 4 s, at once");
        assert_eq!(limit(1 << 20, 10_000), LIMIT_MIN);
    }

    #[test]
    fn writes_wait_at_the_limit_until_a_pass_or_a_flush_has_made_room() {
        let state = Arc::new(WriteBack::new());
        assert!(state.note(LIMIT_FIRST));
        let waiting = {
            let state = Arc::clone(&state);
            thread::spawn(move || state.wait_for_room())
        };
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "the page cache takes more than the disk can write in time");
        state.cleaned(state.mark());
        waiting.join().unwrap();
        // Nobody waits for a pass that cannot be made.
        state.note(LIMIT_FIRST);
        state.give_up();
        state.wait_for_room();
    }
}
