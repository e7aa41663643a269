//! Write-back in the background, so that a flush has little left to do.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lunway_block::OwnerGroup;

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

/// Threshold of a host's share: it may dirty more while it has less than this many times what is left of the limit. One
/// host alone has 8/9 of the limit, and writes at the disk's speed; the ninth that is left is 1 MiB at least, which is
/// 256 writes of 4 KiB of a host that comes new, before the next pass makes room. Two have 8/17 each.
const SHARE: u64 = 8;

/// Bounds what the page cache holds of a device's writes, in bytes, by the time that the disk takes for it.
///
/// Every volatile write is [`note`](Self::note)d. When a quarter of the limit is dirty a pass is due: `fdatasync`
/// through a file of its own (see `Handle`), on the device's own thread. Writes wait for room while the limit is
/// reached ([`ThreadPool::wait_for`](crate::ThreadPool::wait_for)). Each pass measures the disk and sets the limit to
/// what it writes in four seconds (`TARGET`).
///
/// **Shares.** What is dirty counts as the share of the host that wrote it, and a host may dirty more while its share
/// is less than 8 times (`SHARE`) what is left of the limit: the dynamic thresholds by which switches share their
/// memory (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
/// Transactions on Networking 6(2), 1998). So a host that floods the disk waits before the limit is reached, and what
/// is left is for those who write little.
///
/// Bytes are counted as they are written: what is written twice counts twice, so that the estimate errs by rewriting
/// the same blocks; `LIMIT_MAX` is for that.
pub struct WriteBack {
    /// Bytes written since the device was opened.
    written: AtomicU64,
    /// Of these, known to be on the disk.
    clean: AtomicU64,
    /// Bytes of writes that have begun.
    under_way: AtomicU64,
    limit: AtomicU64,
    /// A pass is queued or under way.
    running: AtomicBool,
    /// Shares of the hosts that have dirty bytes. Its lock guards the wait for room as well.
    shares: Mutex<Shares>,
    room: Condvar,
    /// Told when there may be room.
    on_room: OnceLock<RoomCallback>,
}

/// Called when writes may have room.
type RoomCallback = Box<dyn Fn() + Send + Sync>;

/// Dirty bytes by host.
#[derive(Default)]
struct Shares {
    /// Searched from the front: the hosts that write to one device.
    hosts: Vec<(OwnerGroup, Share)>,
    /// Mark of the flush or pass that writes what is `old`.
    rolled_at: u64,
}

/// Dirty bytes of one host.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    /// Written since the flush under way began.
    new: u64,
    /// Written before.
    old: u64,
    under_way: u64,
}

impl Share {
    fn total(self) -> u64 {
        self.new.saturating_add(self.old).saturating_add(self.under_way)
    }
}

impl Shares {
    fn of(&self, host: OwnerGroup) -> Share {
        self.hosts.iter().find(|(other, _)| *other == host).map(|(_, share)| *share).unwrap_or_default()
    }

    fn of_mut(&mut self, host: OwnerGroup) -> &mut Share {
        let index = self.hosts.iter().position(|(other, _)| *other == host).unwrap_or_else(|| {
            self.hosts.push((host, Share::default()));
            self.hosts.len() - 1
        });
        &mut self.hosts[index].1
    }

    /// A flush begins at `mark`. If another one is under way, what is new stays so until the next: hosts that flush
    /// often have more counted than they have, never less.
    fn roll(&mut self, mark: u64) {
        if self.hosts.iter().any(|(_, share)| share.old > 0) {
            return;
        }
        self.rolled_at = mark;
        self.hosts.iter_mut().for_each(|(_, share)| share.old = mem::take(&mut share.new));
    }

    /// All up to `mark` is on the disk.
    fn clear(&mut self, mark: u64) {
        if mark >= self.rolled_at {
            self.hosts.iter_mut().for_each(|(_, share)| share.old = 0);
            self.forget_empty();
        }
    }

    fn forget_empty(&mut self) {
        self.hosts.retain(|(_, share)| *share != Share::default());
    }
}

impl WriteBack {
    /// Nothing is written yet.
    #[expect(clippy::new_without_default, reason = "of a device that is opened")]
    pub fn new() -> Self {
        Self {
            written: AtomicU64::new(0),
            clean: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            limit: AtomicU64::new(LIMIT_FIRST),
            running: AtomicBool::new(false),
            shares: Mutex::default(),
            room: Condvar::new(),
            on_room: OnceLock::new(),
        }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dirty(&self) -> u64 {
        // In this order: `clean` never overtakes a later look at `written`.
        let clean = self.clean.load(Ordering::Acquire);
        self.written.load(Ordering::Acquire).saturating_sub(clean)
    }

    /// Counts a write of a host that is done. True: the caller starts a pass, or says that it [cannot](Self::give_up).
    pub fn note(&self, host: OwnerGroup, bytes: u64) -> bool {
        {
            let mut shares = self.shares();
            shares.of_mut(host).new += bytes;
            self.written.fetch_add(bytes, Ordering::AcqRel);
        }
        self.is_due() && !self.running.swap(true, Ordering::AcqRel)
    }

    /// A write of a host begins, which is [`note`](Self::note)d before it ends: of several that begin at once each
    /// leaves the later ones less room.
    pub(crate) fn begin(&self, host: OwnerGroup, bytes: u64) {
        self.shares().of_mut(host).under_way += bytes;
        self.under_way.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A write that [began](Self::begin) is over.
    pub(crate) fn end(&self, host: OwnerGroup, bytes: u64) {
        let mut shares = self.shares();
        shares.of_mut(host).under_way -= bytes;
        shares.forget_empty();
        self.under_way.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn is_due(&self) -> bool {
        self.dirty() >= self.limit.load(Ordering::Relaxed) / PASS_AT
    }

    /// Returns the mark up to which a flush that begins now will have written.
    pub fn mark(&self) -> u64 {
        let mut shares = self.shares();
        let mark = self.written.load(Ordering::Acquire);
        shares.roll(mark);
        mark
    }

    /// All up to the mark has been written.
    pub fn cleaned(&self, mark: u64) {
        {
            let mut shares = self.shares();
            self.clean.fetch_max(mark, Ordering::AcqRel);
            shares.clear(mark);
        }
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

    /// No pass is under way; no caller waits for one.
    pub fn give_up(&self) {
        self.running.store(false, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        drop(self.shares());
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

    /// Returns `true` if a write of a host has room, of which the host has a `share` dirty. One that is longer than any
    /// share goes when its host has nothing dirty.
    fn allows(&self, bytes: u64, share: impl FnOnce() -> u64) -> bool {
        let taken = self.dirty().saturating_add(self.under_way.load(Ordering::Relaxed));
        let left = self.limit.load(Ordering::Relaxed).saturating_sub(taken);
        let threshold = left.saturating_sub(bytes) * SHARE;
        // No share is larger than all of them: while much is left it need not be known.
        taken.saturating_add(bytes) <= threshold || {
            let share = share();
            share.saturating_add(bytes) <= threshold || (share == 0 && left > 0)
        }
    }

    /// Returns `true` if a host may dirty more.
    pub(crate) fn has_room(&self, host: OwnerGroup, bytes: u64) -> bool {
        self.allows(bytes, || self.shares().of(host).total())
    }

    /// Returns `true` if a write of a host has to wait: it has no room, and a pass is under way that makes some.
    pub(crate) fn must_wait(&self, host: OwnerGroup, bytes: u64) -> bool {
        self.running.load(Ordering::Acquire) && !self.has_room(host, bytes)
    }

    /// Waits until a host may dirty more. Blocks as long as the disk does.
    pub(crate) fn wait_for_room(&self, host: OwnerGroup, bytes: u64) {
        let mut shares = self.shares();
        while self.running.load(Ordering::Acquire) && !self.allows(bytes, || shares.of(host).total()) {
            shares = self.room.wait(shares).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::{Owner, OwnerKey};
    use std::sync::Arc;
    use std::thread;

    fn host() -> OwnerGroup {
        OwnerKey::NONE.group()
    }

    fn hosts<const N: usize>() -> [OwnerGroup; N] {
        [(); N].map(|()| Owner::new().key().group())
    }

    #[test]
    fn a_pass_is_due_at_a_quarter_of_the_limit_and_started_once() {
        let state = WriteBack::new();
        assert!(!state.note(host(), LIMIT_FIRST / PASS_AT - 1));
        assert!(state.note(host(), 1));
        assert!(!state.note(host(), 1 << 20), "one pass at a time");
        assert!(!state.pass(|| ()), "all is clean");
        assert_eq!(state.dirty(), 0);
        assert!(state.note(host(), LIMIT_MAX), "and the next one is due again");
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
        assert!(state.note(host(), LIMIT_FIRST));
        let waiting = {
            let state = Arc::clone(&state);
            thread::spawn(move || state.wait_for_room(host(), 1))
        };
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "the page cache takes more than the disk can write in time");
        state.cleaned(state.mark());
        waiting.join().unwrap();
        // No caller waits for a pass that cannot be made.
        state.note(host(), LIMIT_FIRST);
        state.give_up();
        state.wait_for_room(host(), 1);
    }

    /// Bytes of a limit that a host dirties, in writes of some length, until it has to wait.
    fn filled(state: &WriteBack, host: OwnerGroup, len: u64) -> u64 {
        let mut bytes = 0;
        while !state.must_wait(host, len) && bytes < 2 * LIMIT_MAX {
            state.note(host, len);
            bytes += len;
        }
        bytes
    }

    /// Lost was more than a second of each 4 KiB write of a host while another one wrote 1 MiB after 1 MiB: that one
    /// filled the limit alone.
    #[test]
    fn a_host_that_floods_the_disk_leaves_room_for_those_who_write_little() {
        let state = WriteBack::new();
        let [flood, second, little] = hosts();
        assert_eq!(filled(&state, flood, 1 << 20), 28 << 20, "8/9 of 32 MiB");
        assert!(!state.must_wait(little, 4096));
        let part = filled(&state, second, 1 << 20);
        assert!((2 << 20..=3 << 20).contains(&part), "8/9 of what the first one has left: {part}");
        assert!(filled(&state, little, 4096) > 256 << 10, "and 8/9 of what both have left");
        assert!(state.dirty() < LIMIT_FIRST);
        assert!(!state.pass(|| ()));
        assert!(state.shares().hosts.is_empty() && !state.must_wait(flood, 1 << 20));
    }

    #[test]
    fn a_share_is_what_was_written_since_the_flush_that_was_the_last_to_end_began() {
        let state = WriteBack::new();
        let [flood, other] = hosts();
        let share = |host| state.shares().of(host).total();
        state.note(flood, 20);
        let first = state.mark();
        state.note(flood, 3);
        state.note(other, 4);
        // Another flush begins meanwhile, and ends first.
        let second = state.mark();
        state.note(flood, 5);
        state.cleaned(second);
        assert_eq!((share(flood), share(other)), (8, 4), "never less than is dirty");
        state.cleaned(first);
        assert_eq!((share(flood), share(other)), (8, 4));
        let third = state.mark();
        state.note(other, 1);
        state.cleaned(third);
        assert_eq!((share(flood), share(other), state.dirty()), (0, 1, 1));
    }

    #[test]
    fn writes_that_have_begun_take_room_and_one_without_bounds_is_let_in_when_its_host_has_nothing_dirty() {
        let state = WriteBack::new();
        let [flood, other] = hosts();
        state.note(flood, LIMIT_FIRST / 2);
        state.begin(flood, 12 << 20);
        assert!(state.must_wait(flood, 1 << 20) && !state.must_wait(other, 1 << 20));
        state.end(flood, 12 << 20);
        assert!(!state.must_wait(flood, 1 << 20));
        assert!(!state.must_wait(other, 2 * LIMIT_FIRST) && state.must_wait(flood, 2 * LIMIT_FIRST));
        state.note(other, LIMIT_FIRST / 2);
        let [third] = hosts();
        assert!(state.must_wait(third, 1), "the limit is one of all hosts");
    }
}
