//! The map, its log and its epochs as one: what an operation does before and after it changes the disk.

mod epochs;
mod log;
mod operation;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lunway_vhdx::Storage;

use crate::format::{RecordEntry, TEXT_MAX};
use crate::grain::{DISK_MAX, GRAIN, HOT_MAX, region_grains};
use crate::journal::{Journal, Loaded};
use crate::live::Live;
use crate::state::TrackState;
pub use epochs::{ClosedEpoch, EpochError};
pub use operation::{Begun, Change, Ended, Operation};

/// An operation of more regions is logged as a range: it would make other regions cold for no later write.
const REGIONS_MAX: u64 = 8;
/// An operation of more regions does not become unmapped: 65536 are 256 GiB at least, and the list of what was under
/// way at its start takes 1 MiB.
const UNMAP_REGIONS_MAX: u64 = 65536;
/// Ranges of regions that wait to be logged as unmapped. Beyond it they stay written.
const SETTLES_MAX: usize = 1024;
/// Ranges of operations of which the end will not be known. Beyond it neighbours become one.
const ABANDONED_MAX: usize = 1024;

const TRACKING: u8 = 0;
const SHUT: u8 = 1;
const LOST: u8 = 2;
const CLOSED: u8 = 3;

/// Identity of the store that a disk lies on, so that a change behind the tracker's back is noticed. Both are bytes
/// that are compared and mean nothing here; at most 1024.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Identity that our own writes do not change: a file's device and inode. Empty: nothing is known, and tracking
    /// begins anew at each start.
    pub lasting: Vec<u8>,
    /// Identity that every write changes: size, modification time, a VHDX file's DataWriteGuid. It is kept at a clean
    /// end, and compared at the next start.
    pub exact: Vec<u8>,
}

/// Sizes of what a tracker keeps. The defaults are what runs; tests take smaller ones.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Regions that may be hot, at most [`HOT_MAX`].
    pub hot_max: usize,
    /// Number of regions that become hot together with one that is written in order, after it. Eight of 4 MiB are 32
    /// MiB: a writer of 3 GB/s needs 10 ms for them, in which any disk has flushed a record.
    pub ahead: u64,
    /// Length of the log, bytes: when it is full, all of the map is written again. 1 MiB has 2048 records of the least
    /// length.
    pub log: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { hot_max: HOT_MAX, ahead: 8, log: 1 << 20 }
    }
}

/// Change tracking of one disk. [The crate](crate) says what it promises.
///
/// The order of calls: [`begin`](Self::begin) before an operation reaches the disk, [`end`](Self::end) after it. One
/// thread calls [`commit`](Self::commit) whenever something waits: the only call that takes long but for those about
/// epochs. An epoch is closed between [`shut`](Self::shut) and [`reopen`](Self::reopen), when
/// [`at_rest`](Self::at_rest) says that nothing is under way.
pub struct Tracker {
    live: Live,
    mode: AtomicU8,
    size: AtomicU64,
    queue: Mutex<Queue>,
    log: Mutex<LogState>,
    abandoned: Mutex<Vec<(u64, u64)>>,
    any_abandoned: AtomicBool,
    /// The storage holds the map of an earlier time, which must not be found.
    stale: AtomicBool,
    /// As [`LogState::lost`], for those who must not wait for the storage.
    told: Mutex<Option<String>>,
    tuning: Tuning,
}

/// Queue for the next commit.
#[derive(Default)]
struct Queue {
    /// The number of the next commit.
    ticket: u64,
    regions: BTreeSet<u64>,
    ranges: Vec<(u64, u64)>,
    ahead: Vec<u64>,
    settles: Vec<Range<u64>>,
}

/// The log, and what it says.
struct LogState {
    journal: Journal,
    /// Without the map of the open epoch, which is [`Live`], and the hot regions, which are `order`.
    state: TrackState,
    hot: BTreeSet<u64>,
    /// Hot regions, oldest first, and how many operations had begun in them when they were looked at.
    order: VecDeque<(u64, u64)>,
    /// Reason why nothing is tracked.
    lost: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shortened(mut text: String) -> String {
    while text.len() > TEXT_MAX {
        text.pop();
    }
    text
}

impl Tracker {
    /// Opens the track file of a disk of `size` bytes, or makes one of an empty storage.
    ///
    /// A file that is harmed, or of another disk than `backing` is, begins a new chain of epochs; asked for an older
    /// one, [`changes`](Self::changes) says why that is.
    ///
    /// # Errors
    ///
    /// The storage's; [`InvalidInput`](io::ErrorKind::InvalidInput) for a disk larger than [`DISK_MAX`].
    pub fn open(storage: Box<dyn Storage>, size: u64, backing: &Backing, tuning: Tuning) -> io::Result<Self> {
        if size > DISK_MAX || backing.lasting.len().max(backing.exact.len()) > TEXT_MAX {
            let why = "changes are tracked of disks of at most 1 PiB";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let tuning = Tuning { hot_max: tuning.hot_max.clamp(1, HOT_MAX), ..tuning };
        let regions = region_grains(size);
        let anew = |why: &str| TrackState::new(size, regions, shortened(why.to_owned()));
        let (mut journal, mut state) = match Journal::load(storage)? {
            (Loaded::Whole(journal, state), _) => match doubt(&state, size, backing) {
                Some(why) => (*journal, anew(why)),
                None => (*journal, *state),
            },
            (loaded, storage) => {
                let why = match loaded {
                    Loaded::Damaged(damage) => format!("the track file is damaged: {damage}"),
                    _ => String::new(),
                };
                let storage = storage.ok_or(io::ErrorKind::Other)?;
                (Journal::create(storage)?, anew(&why))
            }
        };
        state.settle();
        (state.region_grains, state.clean) = (regions, false);
        (state.lasting, state.exact) = (backing.lasting.clone(), Vec::new());
        let live = Live::new(regions);
        let map = std::mem::take(&mut state.live);
        live.restore(&map);
        journal.rebase(&state, &[], map.pages.into_iter(), tuning.log)?;
        Ok(Self {
            live,
            mode: AtomicU8::new(TRACKING),
            size: AtomicU64::new(size),
            queue: Mutex::new(Queue { ticket: 1, ..Queue::default() }),
            log: Mutex::new(LogState {
                journal,
                state,
                hot: BTreeSet::new(),
                order: VecDeque::new(),
                lost: None,
            }),
            abandoned: Mutex::default(),
            any_abandoned: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            told: Mutex::default(),
            tuning,
        })
    }

    /// A tracker of a disk of `size` bytes that tracks nothing, because its storage cannot be had or written:
    /// everything counts as changed, for the reason `why`. As after a failure, tracking begins with the next epoch that
    /// is closed. What the storage holds is of an earlier time: it is [forgotten](Self::forget_stale), now or later.
    pub fn lost_from_start(
        storage: Box<dyn Storage>,
        size: u64,
        backing: &Backing,
        tuning: Tuning,
        why: &str,
    ) -> Self {
        let tuning = Tuning { hot_max: tuning.hot_max.clamp(1, HOT_MAX), ..tuning };
        let regions = region_grains(size);
        let mut state = TrackState::new(size, regions, String::new());
        if backing.lasting.len() <= TEXT_MAX {
            state.lasting.clone_from(&backing.lasting);
        }
        let why = shortened(why.to_owned());
        let tracker = Self {
            live: Live::new(regions),
            mode: AtomicU8::new(LOST),
            size: AtomicU64::new(size),
            queue: Mutex::new(Queue { ticket: 1, ..Queue::default() }),
            log: Mutex::new(LogState {
                journal: Journal::unread(storage),
                state,
                hot: BTreeSet::new(),
                order: VecDeque::new(),
                lost: Some(why.clone()),
            }),
            abandoned: Mutex::default(),
            any_abandoned: AtomicBool::new(false),
            stale: AtomicBool::new(true),
            told: Mutex::new(Some(why)),
            tuning,
        };
        // What fails now is tried again.
        let _ = tracker.forget_stale();
        tracker
    }

    /// Returns `true` while the storage holds a map that must not be found.
    pub fn is_stale(&self) -> bool {
        self.stale.load(SeqCst)
    }

    /// Makes the storage say nothing, if what it says is of an earlier time. Blocks.
    ///
    /// # Errors
    ///
    /// The storage's: a later start may take what it holds for the truth.
    pub fn forget_stale(&self) -> io::Result<()> {
        let mut log = lock(&self.log);
        if self.is_stale() {
            log.journal.forget()?;
            self.stale.store(false, SeqCst);
        }
        Ok(())
    }

    /// An operation is about to change `length` bytes at `offset`.
    ///
    /// Where its regions are hot, or the log has its grains, this is a few atomic operations: no lock, no allocation.
    pub fn begin(&self, change: Change, offset: u64, length: u64) -> Begun {
        let Some(end) = offset.checked_add(length).filter(|&end| end <= DISK_MAX) else {
            return Begun::Beyond;
        };
        let (first, last) = (offset / GRAIN, if length == 0 { offset / GRAIN } else { end.div_ceil(GRAIN) });
        let regions = if first < last { self.live.regions(first, last) } else { 0..0 };
        let count = regions.end - regions.start;
        let mut began = Vec::new();
        let remember = change == Change::Zeroed && count <= UNMAP_REGIONS_MAX;
        let entered = self.live.enter(regions.clone(), |state| {
            if remember {
                began.push(state);
            }
        });
        let operation = Operation { offset, end, regions: regions.clone(), began };
        let mode = self.mode.load(SeqCst);
        if mode == SHUT || mode == CLOSED {
            self.live.leave(regions);
            return if mode == SHUT { Begun::Shut } else { Begun::Closed };
        }
        let saved = self.live.mark(first, last);
        let covered = saved || self.live.are_hot(regions.clone()) || mode == LOST;
        if covered && entered.ahead.is_none() {
            return Begun::Covered { operation, wake: false };
        }
        let mut queue = lock(&self.queue);
        queue.ahead.extend(entered.ahead);
        if covered {
            return Begun::Covered { operation, wake: true };
        }
        if count > REGIONS_MAX {
            queue.ranges.push((first, last));
        } else {
            queue.regions.extend(regions);
        }
        Begun::Waiting { operation, ticket: queue.ticket }
    }

    /// An operation that was let in has ended.
    pub fn end(&self, operation: Operation, ended: Ended) {
        let Operation { offset, end, regions, began } = operation;
        let mut settled = false;
        if ended == Ended::Abandoned {
            self.abandon(offset / GRAIN, end.div_ceil(GRAIN));
        } else if ended == Ended::Done && !began.is_empty() {
            let whole = if end == self.size.load(SeqCst) { end.div_ceil(GRAIN) } else { end / GRAIN };
            let whole = offset.div_ceil(GRAIN)..whole;
            if !self.is_abandoned(&whole) {
                for (region, began) in regions.clone().zip(began) {
                    let (first, last) = self.live.grains_of(region);
                    let (first, last) = (first.max(whole.start), last.min(whole.end));
                    let Some(began) = began.filter(|_| first < last) else { continue };
                    settled |= self.live.unmap(region, began, first, last);
                }
            }
        }
        self.live.leave(regions.clone());
        if settled {
            let mut queue = lock(&self.queue);
            if queue.settles.len() < SETTLES_MAX {
                queue.settles.push(regions);
            }
        }
    }

    /// Lets nothing begin until [`reopen`](Self::reopen).
    pub fn shut(&self) {
        if self.mode.load(SeqCst) != CLOSED {
            self.mode.store(SHUT, SeqCst);
        }
    }

    /// Ends what [`shut`](Self::shut) began.
    pub fn reopen(&self) {
        let mode = if lock(&self.log).lost.is_some() { LOST } else { TRACKING };
        let _ = self.mode.compare_exchange(SHUT, mode, SeqCst, SeqCst);
    }

    /// Checks that nothing is in flight. `Err` has a place for the next call while the tracker is shut, which then
    /// looks no further back; begin with 0.
    pub fn at_rest(&self, from: u32) -> Result<(), u32> {
        self.live.at_rest(from)
    }

    /// The disk may have another size from now on: called before it gets it. What lies beyond the smaller one counts as
    /// written.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit); [`InvalidInput`](io::ErrorKind::InvalidInput) for more than [`DISK_MAX`].
    pub fn resize(&self, size: u64) -> io::Result<()> {
        if size > DISK_MAX {
            let why = "changes are tracked of disks of at most 1 PiB";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut log = lock(&self.log);
        if log.state.size == size {
            return Ok(());
        }
        log.state.resize(size);
        self.size.store(size, SeqCst);
        if log.lost.is_some() {
            return Ok(());
        }
        let hot: Vec<u64> = log.hot.iter().copied().collect();
        let logged = self.log(&mut log, &[RecordEntry::Size(size)], &hot);
        self.survive(&mut log, logged)
    }

    /// The backing store is another one from now on, with the same content.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn set_lasting(&self, lasting: Vec<u8>) -> io::Result<()> {
        let mut log = lock(&self.log);
        if log.state.lasting == lasting || lasting.len() > TEXT_MAX {
            return Ok(());
        }
        log.state.lasting = lasting;
        if log.lost.is_some() {
            return Ok(());
        }
        let hot: Vec<u64> = log.hot.iter().copied().collect();
        let logged = self.rebase(&mut log, &hot);
        self.survive(&mut log, logged)
    }

    /// Ends tracking in order: the disk is closed, and `backing` is what the next start will find if nothing changes it
    /// meanwhile. Nothing begins afterwards.
    ///
    /// # Errors
    ///
    /// The storage's: the next start finds a file that was not left in order, which is right as well.
    pub fn close_disk(&self, backing: &Backing) -> io::Result<()> {
        let mut log = lock(&self.log);
        let before = self.mode.swap(CLOSED, SeqCst);
        let in_order = self.live.at_rest(0).is_ok() && !self.any_abandoned.load(SeqCst);
        if before == CLOSED || log.lost.is_some() || !in_order {
            return Ok(());
        }
        (log.state.lasting, log.state.exact) = (backing.lasting.clone(), backing.exact.clone());
        log.state.clean = log.state.lasting.len().max(log.state.exact.len()) <= TEXT_MAX;
        self.rebase(&mut log, &[])
    }

    /// Size of the disk, bytes.
    pub fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    /// Bytes that changed since the last epoch was closed, about.
    pub fn changed(&self) -> u64 {
        (self.live.touched() * GRAIN).min(self.size.load(SeqCst))
    }

    /// Returns the reason why nothing is tracked; `None`: it is.
    pub fn lost(&self) -> Option<String> {
        lock(&self.log).lost.clone()
    }

    /// The same, as last known: waits for no storage.
    pub fn lost_now(&self) -> Option<String> {
        lock(&self.told).clone()
    }

    fn abandon(&self, first: u64, last: u64) {
        let mut abandoned = lock(&self.abandoned);
        self.any_abandoned.store(true, SeqCst);
        abandoned.push((first, last));
        if abandoned.len() > ABANDONED_MAX {
            abandoned.sort_unstable();
            let mut joined: Vec<(u64, u64)> = Vec::new();
            // Those closest to each other: half of the list is left.
            for pair in abandoned.chunks(2) {
                let end = pair.iter().map(|range| range.1).max().unwrap_or_default();
                joined.push((pair[0].0, end));
            }
            *abandoned = joined;
        }
    }

    fn is_abandoned(&self, grains: &Range<u64>) -> bool {
        self.any_abandoned.load(SeqCst)
            && lock(&self.abandoned).iter().any(|&(first, last)| first < grains.end && last > grains.start)
    }
}

/// Returns the reason why a track file is not this disk's as it is now.
fn doubt(state: &TrackState, size: u64, backing: &Backing) -> Option<&'static str> {
    if backing.lasting.is_empty() {
        return Some("nothing shows whether the disk was changed while it was not served");
    }
    if state.lasting != backing.lasting {
        return Some("the track file is of another disk, or the disk's file was replaced");
    }
    if state.clean && (state.exact != backing.exact || state.size != size) {
        return Some("the disk was changed while it was not served");
    }
    // Also after a crash in the middle of a resize, of which the log may have the size before the disk does.
    if state.size != size {
        return Some("the disk has another size than when it was served last, before a crash");
    }
    None
}
