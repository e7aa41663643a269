//! Compaction of a device that is used: what is free is given up, blocks move from the file's end into its holes, the
//! file is cut.
//!
//! ```text
//!   1  watch      every write from now on is noted; what was begun before has ended
//!   2  map        what the file systems, which are frozen, do not use; discarded where a write came meanwhile
//!   3  drop       what was not written since, range by range, none while a write to it begins
//!   4  move       the highest block into the lowest hole: `lunway_vhdx::pack::move_block`
//!   5  cut        `lunway_vhdx::Disk::cut`
//! ```
//!
//! 1 to 3 only where the file systems are frozen for it. Each step leaves a whole file: after a kill the next
//! compaction goes on where this one was. A snapshot, a change of size and the end of the device come in between two
//! pieces of a block, which then stays where it was.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{BlockError, Compaction, CompactionPhase, OwnerKey};
use lunway_compact::FreeMap;
use lunway_vhdx::pack::{Step, move_block};
use lunway_vhdx::{Chain, DiskKind, SegmentSource};

use crate::backing::Backing;
use crate::device::{Inner, unmap};

/// A device whose last operation is not longer ago is busy: a guest that writes back every few seconds is so while it
/// does.
const BUSY_TIME: Duration = Duration::from_millis(100);
/// While it is, a piece is followed by a rest of this many times what the piece took: a fifth of the disk's time, and
/// of a core's, is the compaction's at most.
const BUSY_REST: u32 = 4;
/// Maximum length of a rest without a check whether the device is to do something else.
const LOOK_TIME: Duration = Duration::from_millis(5);
/// Interval of checks whether the device is idle.
const IDLE_LOOK: Duration = Duration::from_millis(500);
/// Blocks that one look at the table brings: 64 KiB of memory.
const BLOCKS: usize = 4096;
/// Bytes moved between two flushes: a flush of the initiators waits for one of ours.
const BETWEEN_FLUSHES: u64 = 256 << 20;
/// Maximum number of attempts at a block that writes wait for, before the next one has its turn.
const TRIES: u32 = 8;

/// Watch of writes since a map was begun.
#[derive(Default)]
pub(crate) struct Watch {
    /// `true` if there is anything to note. Changed with the chain locked for everybody else: operations hold it.
    on: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Something was written before the map was there.
    disturbed: bool,
    map: Option<FreeMap>,
}

impl Watch {
    /// Notes a change of the disk, before it begins.
    pub(crate) fn note(&self, offset: u64, len: u64) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let mut seen = self.seen();
        match &mut seen.map {
            Some(map) => map.written(&(offset..offset + len)),
            None => seen.disturbed = true,
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pace of a compaction: no faster than permitted, and slower while the device is used.
struct Pace<'a> {
    inner: &'a Arc<Inner>,
    task: &'a Compaction,
    /// Start of the current piece.
    begun: Instant,
    rest_until: Instant,
    operations: u64,
    busy_until: Instant,
}

impl<'a> Pace<'a> {
    fn new(inner: &'a Arc<Inner>, task: &'a Compaction) -> Self {
        let now = Instant::now();
        let operations = inner.operations.load(Ordering::Relaxed);
        Self { inner, task, begun: now, rest_until: now, operations, busy_until: now }
    }

    /// As `move_block` asks.
    fn next(&mut self, copied: u64) -> Option<Duration> {
        if self.task.is_cancelled() || self.inner.is_wanted() {
            return None;
        }
        let now = Instant::now();
        let operations = self.inner.operations.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.operations, operations) != operations {
            if self.task.idle().is_some() {
                self.busy_until = now;
                return None;
            }
            self.busy_until = now + BUSY_TIME;
        }
        if copied > 0 {
            let took = now - self.begun;
            let due = Duration::from_secs_f64(copied as f64 / self.task.rate() as f64).saturating_sub(took);
            let busy = if now < self.busy_until { took * BUSY_REST } else { Duration::ZERO };
            self.rest_until = now + due.max(busy);
            self.begun = self.rest_until;
        }
        match self.rest_until.saturating_duration_since(now) {
            Duration::ZERO => {
                self.begun = now;
                Some(Duration::ZERO)
            }
            rest => Some(rest.min(LOOK_TIME)),
        }
    }

    /// Waits until no user has used the device for as long as the compaction is to wait for.
    fn wait_until_idle(&mut self) {
        let Some(time) = self.task.idle() else { return };
        let mut since = Instant::now();
        while !ends(self.inner, self.task) && since.elapsed() < time {
            thread::sleep(IDLE_LOOK.min(time));
            let operations = self.inner.operations.load(Ordering::Relaxed);
            if std::mem::replace(&mut self.operations, operations) != operations {
                since = Instant::now();
            }
        }
    }

    /// Rests as long as is due after `done` bytes.
    fn rest(&mut self, done: u64) {
        let mut done = done;
        while let Some(time) = self.next(done)
            && time > Duration::ZERO
        {
            done = 0;
            thread::sleep(time);
        }
    }
}

/// Compacts the device, to the end or until it is cancelled.
pub(crate) fn run(inner: &Arc<Inner>, task: &Compaction) -> Result<(), BlockError> {
    let mut pace = Pace::new(inner, task);
    if task.is_of_frozen() {
        let dropped = drop_free(inner, task, &mut pace);
        inner.watch.on.store(false, Ordering::Relaxed);
        *inner.watch.seen() = Seen::default();
        dropped?;
    }
    task.enter(CompactionPhase::Moving);
    pack(inner, task, &mut pace)
}

/// Returns `true` if it is no longer wanted.
fn ends(inner: &Inner, task: &Compaction) -> bool {
    task.is_cancelled() || inner.is_left()
}

fn refused(why: impl Into<String>) -> BlockError {
    BlockError::Compaction { why: why.into() }
}

/// Gives up what frozen file systems do not use.
fn drop_free(inner: &Arc<Inner>, task: &Compaction, pace: &mut Pace<'_>) -> Result<(), BlockError> {
    if inner.look(|chain| chain.disks()[0].parameters().kind == DiskKind::Fixed)? {
        return Err(refused("a fixed disk keeps its space: `lunway disk convert` makes a dynamic one of it"));
    }
    {
        // Operations that were begun before have ended, and all later ones are noted.
        let _alone = inner.alone();
        *inner.watch.seen() = Seen::default();
        inner.watch.on.store(true, Ordering::Relaxed);
    }
    let map = inner.look(|chain| FreeMap::take(chain).map_err(|error| refused(error.to_string())))??;
    if map.is_empty() && !map.kept().is_empty() {
        return Err(refused(format!("nothing was dropped: {}", map.kept().join("; "))));
    }
    for kept in map.kept() {
        tracing::warn!("a compaction drops nothing of a volume: {kept}");
    }
    {
        let mut seen = inner.watch.seen();
        if seen.disturbed {
            return Err(refused(
                "the disk was written while its free space was looked for, so nothing was dropped: freeze its file systems, \
                 and thaw them after that",
            ));
        }
        seen.map = Some(map);
    }
    if task.is_cancelled() {
        return Ok(());
    }
    task.enter(CompactionPhase::Dropping);
    let mut at = 0;
    while !ends(inner, task) {
        inner.wait_for_others();
        let Some((next, dropped)) = inner.look(|chain| drop_next(inner, chain, at))?? else { break };
        task.add_dropped(dropped);
        at = next;
        pace.rest(dropped);
    }
    // What was given up is the host's when that is durable.
    inner.flush()
}

/// Gives up the next free range behind `at`: where it ends, and how many bytes had data. `None`: there is none.
fn drop_next(inner: &Arc<Inner>, chain: &Chain<Backing>, at: u64) -> Result<Option<(u64, u64)>, BlockError> {
    let block = chain.disks().first().map_or(1 << 20, |disk| u64::from(disk.parameters().block_size));
    // Held until the range is given up: a write that comes now waits, and finds the range gone.
    let seen = inner.watch.seen();
    let Some(range) = seen.map.as_ref().and_then(|map| map.next(at, block)) else { return Ok(None) };
    let held = held(chain, &range).map_err(crate::device::meaning)?;
    if held > 0 {
        chain.discard(range.start, range.end - range.start, unmap(chain)).map_err(crate::device::meaning)?;
    }
    Ok(Some((range.end, held)))
}

/// Bytes of a range that the first file of the chain has.
fn held(chain: &Chain<Backing>, range: &Range<u64>) -> Result<u64, lunway_vhdx::DiskError> {
    let mut held = 0;
    chain.map(range.start, range.end - range.start, |segment| {
        if segment.level == 0 && matches!(segment.source, SegmentSource::File(_)) {
            held += segment.len;
        }
    })?;
    Ok(held)
}

/// Moves blocks, and cuts the file.
fn pack(inner: &Arc<Inner>, task: &Compaction, pace: &mut Pace<'_>) -> Result<(), BlockError> {
    pace.wait_until_idle();
    // What was given up before becomes a hole.
    inner.flush()?;
    while !ends(inner, task) {
        let (highest, len) = inner.with(|chain| {
            let disk = &chain.disks()[0];
            let len = u64::from(disk.parameters().block_size);
            let above = disk.taken().saturating_sub(len - (1 << 20));
            Ok((disk.highest_blocks(above, BLOCKS)?, len))
        })?;
        let (mut moved, mut since_flush) = (false, 0);
        for (number, placed) in highest.iter().enumerate() {
            if ends(inner, task) {
                break;
            }
            let step = move_one(inner, task, pace, placed.block)?;
            let Step::Moved(bytes) = step else { continue };
            moved = true;
            task.add_moved(bytes, (highest.len() - number - 1) as u64 * len);
            inner.dirtied(OwnerKey::NONE.group(), bytes);
            since_flush += bytes;
            if since_flush >= BETWEEN_FLUSHES {
                inner.flush()?;
                since_flush = 0;
            }
        }
        inner.flush()?;
        task.add_cut(inner.with(|chain| chain.disks()[0].cut())?);
        if !moved {
            break;
        }
    }
    Ok(())
}

/// Moves a block, unless writes wait for it again and again.
fn move_one(
    inner: &Arc<Inner>,
    task: &Compaction,
    pace: &mut Pace<'_>,
    block: u64,
) -> Result<Step, BlockError> {
    let mut tries = 0;
    loop {
        inner.wait_for_others();
        let step =
            inner.with(|chain| move_block(&chain.disks()[0], block, &mut |copied| pace.next(copied)))?;
        // That the device is wanted for something else is no fault of the block.
        tries += u32::from(!inner.is_wanted());
        if step == Step::Yielded && task.idle().is_some() {
            pace.wait_until_idle();
        }
        if step != Step::Yielded || tries >= TRIES || ends(inner, task) {
            return Ok(step);
        }
        thread::sleep(LOOK_TIME);
    }
}
