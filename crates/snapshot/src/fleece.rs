//! Copy before write: what a device held at one instant, as far as it has changed since.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Geometry, Io};

/// The unit of copies, bytes: the grain of change tracking and the leaf of backups, so that what a backup has to read
/// is what is kept for it. A random write of 4 KiB costs a copy of this, once.
pub const GRAIN: u64 = 64 << 10;
/// Maximum time that a change waits for a copy; then the snapshot breaks. A healthy local disk answers within 100 ms;
/// initiators give a command up after 30 s.
pub const COPY_TIME: Duration = Duration::from_secs(2);
/// Interval between checks for a change that waits longer; a disk that was too busy for a copy is asked again as often.
const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// Grains that are copied at a time: 1 MiB.
const COPY_GRAINS: u64 = 16;
/// Range of the disk that is queried for data at a time, bytes, when a change makes holes.
const HOLES_WINDOW: u64 = 256 << 20;
/// Grains that held zeroes take no room in the area, but memory: at most so many beyond those of the area, about 50 MB.
const ZEROES_MAX: usize = 1 << 20;

/// Maximum space of the area's file system that is left to others, bytes: the disks that lie on it must not run out of
/// space for a snapshot's sake. The known free space is up to 5 s old, in which a disk writes 200 MB/s.
const LEFT_TO_OTHERS: u64 = 1 << 30;
/// The same on a small file system: this part of it.
const LEFT_PART: u64 = 20;

/// Reason why a snapshot cannot be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleeceError {
    /// The area has not one grain.
    #[error("the copy-on-write area has {0} bytes: at least 65,536 are needed")]
    Small(u64),
    /// There is no thread to watch the copies.
    #[error("no thread could be started to watch the copies")]
    NoThread,
}

/// Effect of a change on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Anything.
    Data,
    /// Zeroes: what reads as zeroes already does not change.
    Holes,
}

/// Called with the reason when a snapshot breaks.
pub type BreakCallback = Box<dyn Fn(&str) + Send + Sync>;

/// Usage of an area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that were copied.
    pub used: u64,
    /// Bytes that there is room for.
    pub area: u64,
    /// Reason why the snapshot is over; `None`: it is whole.
    pub ended: Option<String>,
}

/// Copy-before-write fleece: the content of a device at one instant, as far as it has changed since. This is the manual
/// of a snapshot.
///
/// Before a change is carried out, `keep` copies the grains that it touches into the area, each once. A
/// grain that is not kept is still what it was, so that a reader takes it from the device and looks afterwards whether
/// it was kept meanwhile.
///
/// It [ends](Self::end) once: deleted, or broken by an area that is full, fails, or does not answer within
/// [`COPY_TIME`]; a disk that is busy is asked again as long. Changes that wait go on at that moment, and readers get
/// the reason as an error.
pub struct Fleece {
    geometry: Geometry,
    area_bytes: u64,
    over: AtomicBool,
    state: Mutex<State>,
    watched: Condvar,
    /// Told the reason when it breaks.
    on_break: OnceLock<BreakCallback>,
}

#[derive(Default)]
struct State {
    /// `None` once it has ended.
    disks: Option<Disks>,
    grains: BTreeMap<u64, GrainState>,
    /// Grains of the area that are taken.
    taken: u32,
    ended: Option<String>,
    /// Time at which each waiting change began to wait.
    changes: BTreeMap<u64, Instant>,
    last_change: u64,
    wakers: Vec<Waker>,
    /// Rounds of the watching thread, and copies that wait for the next one.
    round: u64,
    pausing: Vec<Waker>,
}

/// The device, and the place for what is copied.
#[derive(Clone)]
struct Disks {
    origin: Arc<dyn BlockDevice>,
    area: Arc<dyn BlockDevice>,
}

/// Location of the old content of a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrainState {
    /// On the device still; a change waits for its copy.
    Copying,
    /// Zeroes.
    Zeroes,
    /// In the area, at this grain.
    Area(u32),
}

impl fmt::Debug for Fleece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleece").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl Fleece {
    /// Of `origin` as it is, with all of `area` for what is copied. It keeps nothing before it is
    /// [in the way of changes](crate::Hold::begin).
    ///
    /// # Errors
    ///
    /// As [`FleeceError`].
    pub fn new(origin: Arc<dyn BlockDevice>, area: Arc<dyn BlockDevice>) -> Result<Arc<Self>, FleeceError> {
        let (geometry, area_bytes) = (origin.geometry(), area.geometry().size / GRAIN * GRAIN);
        if area_bytes == 0 {
            return Err(FleeceError::Small(area.geometry().size));
        }
        let state = State { disks: Some(Disks { origin, area }), ..State::default() };
        let fleece = Arc::new(Self {
            geometry,
            area_bytes,
            over: AtomicBool::new(false),
            state: Mutex::new(state),
            watched: Condvar::new(),
            on_break: OnceLock::new(),
        });
        let weak = Arc::downgrade(&fleece);
        let watching = thread::Builder::new().name("fleece".to_owned()).spawn(move || watch(&weak));
        watching.map(|_| fleece).map_err(|_| FleeceError::NoThread)
    }

    /// The device as it was.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the usage of its area, and the reason if it has ended.
    pub fn usage(&self) -> Usage {
        let state = self.state();
        Usage { used: u64::from(state.taken) * GRAIN, area: self.area_bytes, ended: state.ended.clone() }
    }

    /// Returns `true` if it has ended.
    pub fn has_ended(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// Asks to be told the reason when it breaks, and not when it is [ended](Self::end). Once; may come on any thread.
    pub fn on_break(&self, callback: BreakCallback) {
        if let Err(callback) = self.on_break.set(callback) {
            drop(callback);
        }
    }

    /// Ends it, and lets go of the device and of the area. The first reason stays.
    pub fn end(&self, why: &str) {
        self.finish(why);
    }

    /// Ends it because what it needs has failed.
    fn broken(&self, why: &str) {
        if self.finish(why)
            && let Some(tell) = self.on_break.get()
        {
            tell(why);
        }
    }

    /// Ends it: whether it had not ended before.
    fn finish(&self, why: &str) -> bool {
        let (wakers, disks, first) = {
            let mut state = self.state();
            let first = state.ended.is_none();
            if first {
                state.ended = Some(why.to_owned());
            }
            // Before any change goes on that was not copied.
            self.over.store(true, SeqCst);
            state.grains.clear();
            let mut wakers = std::mem::take(&mut state.wakers);
            wakers.append(&mut state.pausing);
            (wakers, state.disks.take(), first)
        };
        self.watched.notify_all();
        drop(disks);
        wakers.into_iter().for_each(Waker::wake);
        first
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The grains that a range touches, of those that the snapshot has.
    fn grains(&self, offset: u64, length: u64) -> Range<u64> {
        let end = offset.saturating_add(length).min(self.geometry.size);
        if offset < end { offset / GRAIN..end.div_ceil(GRAIN) } else { 0..0 }
    }

    fn bytes(&self, grains: Range<u64>) -> Range<u64> {
        grains.start * GRAIN..(grains.end * GRAIN).min(self.geometry.size)
    }

    /// Returns `true` if a change of the range need not wait.
    pub(crate) fn is_kept(&self, offset: u64, length: u64) -> bool {
        self.has_ended() || {
            let state = self.state();
            self.grains(offset, length).all(|grain| {
                matches!(state.grains.get(&grain), Some(GrainState::Zeroes | GrainState::Area(_)))
            })
        }
    }

    /// Copies what a change of the range is about to replace. Whatever goes wrong breaks the snapshot.
    pub(crate) async fn keep(&self, offset: u64, length: u64, effect: Effect) {
        let waiting = Waiting::new(self);
        let all = self.grains(offset, length);
        let mut at = all.start;
        while at < all.end && !self.has_ended() {
            let window = at..(at + HOLES_WINDOW / GRAIN).min(all.end);
            at = window.end;
            let pieces = match effect {
                Effect::Data => vec![window],
                Effect::Holes => self.data(window).await,
            };
            for piece in pieces {
                let mut from = piece.start;
                while from < piece.end {
                    let to = ((from / COPY_GRAINS + 1) * COPY_GRAINS).min(piece.end);
                    self.keep_some(from..to).await;
                    from = to;
                }
            }
        }
        drop(waiting);
    }

    /// Returns the grains that are not known to be zeroes.
    async fn data(&self, grains: Range<u64>) -> Vec<Range<u64>> {
        let range = self.bytes(grains.clone());
        let Some(Disks { origin, .. }) = self.state().disks.clone() else { return Vec::new() };
        let extents = self.for_copy(|| origin.extents(range.start, range.end - range.start, usize::MAX));
        let Some(Ok(extents)) = extents.await else { return vec![grains] };
        let mut pieces: Vec<Range<u64>> = Vec::new();
        let holes = self.geometry.unmap.zeroes();
        let is_data = |extent: &&Extent| match extent.kind {
            ExtentKind::Data => true,
            ExtentKind::Zero => false,
            ExtentKind::Unallocated => !holes,
        };
        for extent in extents.iter().filter(is_data) {
            let piece = extent.offset / GRAIN..extent.end().div_ceil(GRAIN);
            match pieces.last_mut() {
                Some(last) if last.end >= piece.start => last.end = last.end.max(piece.end),
                _ => pieces.push(piece),
            }
        }
        pieces
    }

    /// Copies a few grains; those that others copy are waited for.
    async fn keep_some(&self, grains: Range<u64>) {
        loop {
            let claimed = {
                let mut state = self.state();
                if state.disks.is_none() {
                    return;
                }
                let new: Vec<_> = grains.clone().filter(|grain| !state.grains.contains_key(grain)).collect();
                state.grains.extend(new.iter().map(|grain| (*grain, GrainState::Copying)));
                new
            };
            if claimed.is_empty() {
                return self.copied(grains).await;
            }
            let claim = Claim { fleece: self, grains: claimed };
            match self.copy(&claim.grains).await {
                Some(Err(why)) => return self.broken(&why),
                Some(Ok(())) => {}
                None => return,
            }
            drop(claim);
        }
    }

    /// Until none of the grains is being copied.
    async fn copied(&self, grains: Range<u64>) {
        poll_fn(|context| {
            let mut state = self.state();
            if !state.grains.range(grains.clone()).any(|(_, place)| *place == GrainState::Copying) {
                return Poll::Ready(());
            }
            wake_later(&mut state.wakers, context);
            Poll::Pending
        })
        .await;
    }

    /// Copies grains that were claimed, runs of neighbours at once. `None`: the snapshot has ended.
    async fn copy(&self, grains: &[u64]) -> Option<Result<(), String>> {
        let Disks { origin, area } = self.state().disks.clone()?;
        for run in grains.chunk_by(|one, other| one + 1 == *other) {
            let range = self.bytes(run[0]..run[run.len() - 1] + 1);
            let length = (range.end - range.start) as usize;
            let read = self.for_copy(|| origin.read(range.start, Buf::for_overwrite(length)));
            let data = match read.await? {
                Ok(data) => data.freeze(),
                Err(error) => return Some(Err(format!("the disk could not be read for a copy: {error}"))),
            };
            for (number, grain) in run.iter().enumerate() {
                let from = number * GRAIN as usize;
                let piece = data.slice(from..(from + GRAIN as usize).min(data.len()));
                if piece.iter().all(|byte| *byte == 0) {
                    if let Err(why) = self.kept(*grain, GrainState::Zeroes) {
                        return Some(Err(why));
                    }
                    continue;
                }
                let place = match self.take(&*area) {
                    Ok(place) => place,
                    Err(why) => return Some(Err(why)),
                };
                // Whole grains: the last of a disk may be no sector of the area.
                let piece = match piece.len() as u64 {
                    GRAIN => piece,
                    _ => {
                        let mut whole = Buf::zeroed(GRAIN as usize);
                        whole[..piece.len()].copy_from_slice(&piece);
                        whole.freeze()
                    }
                };
                let at = u64::from(place) * GRAIN;
                let write = self.for_copy(|| area.write(at, piece.clone(), Durability::Volatile));
                if let Err(error) = write.await? {
                    return Some(Err(match error {
                        BlockError::NoSpace => "the file system of the area is full".to_owned(),
                        error => format!("the copy-on-write area failed: {error}"),
                    }));
                }
                if let Err(why) = self.kept(*grain, GrainState::Area(place)) {
                    return Some(Err(why));
                }
            }
        }
        Some(Ok(()))
    }

    /// A free grain of the area.
    fn take(&self, area: &dyn BlockDevice) -> Result<u32, String> {
        // In a store of its own, as that of memory, nothing else needs space.
        if let Some(space) = area.space().filter(|space| space.used > space.allocated) {
            let least = LEFT_TO_OTHERS.min(space.used.saturating_add(space.available) / LEFT_PART);
            if space.available < least {
                let left = space.available >> 20;
                return Err(format!(
                    "the file system of the area has only {left} MiB left, which others need"
                ));
            }
        }
        let mut state = self.state();
        if u64::from(state.taken) >= self.area_bytes / GRAIN {
            return Err(format!("the area of {} MiB for copied data is full", self.area_bytes >> 20));
        }
        state.taken += 1;
        Ok(state.taken - 1)
    }

    fn kept(&self, grain: u64, place: GrainState) -> Result<(), String> {
        let mut state = self.state();
        if state.disks.is_some() {
            state.grains.insert(grain, place);
        }
        let most = (self.area_bytes / GRAIN) as usize + ZEROES_MAX;
        if state.grains.len() > most {
            Err(format!("more than {most} pieces were to be kept"))
        } else {
            Ok(())
        }
    }

    /// A disk's answer to what a copy needs; one that is busy is asked again, until the change has waited for
    /// [`COPY_TIME`]. `None`: this has ended.
    async fn for_copy<T: Unpin>(
        &self,
        ask: impl Fn() -> Io<Result<T, BlockError>>,
    ) -> Option<Result<T, BlockError>> {
        loop {
            match self.unless_ended(ask().into_future()).await? {
                Err(BlockError::Busy) => self.pause().await?,
                answer => return Some(answer),
            }
        }
    }

    /// Waits for the next round of the thread that watches. `None`: this has ended.
    async fn pause(&self) -> Option<()> {
        let begun = self.state().round;
        poll_fn(|context| {
            let mut state = self.state();
            if state.ended.is_some() {
                return Poll::Ready(None);
            }
            if state.round != begun {
                return Poll::Ready(Some(()));
            }
            wake_later(&mut state.pausing, context);
            Poll::Pending
        })
        .await
    }

    /// Waits for something, or until this has ended: `None`.
    async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            let mut state = self.state();
            if state.ended.is_some() {
                return Poll::Ready(None);
            }
            wake_later(&mut state.wakers, context);
            Poll::Pending
        })
        .await
    }

    /// Fills `buf` with what the device held at `offset` then.
    pub(crate) async fn read(&self, offset: u64, buf: Buf) -> Result<Buf, BlockError> {
        let Disks { origin, area } = self.disks()?;
        let length = buf.len() as u64;
        let grains = self.grains(offset, length);
        let is_kept = |state: &State, grain: u64| {
            matches!(state.grains.get(&grain), Some(GrainState::Zeroes | GrainState::Area(_)))
        };
        let all_kept = {
            let state = self.state();
            grains.clone().all(|grain| is_kept(&state, grain))
        };
        let mut buf = buf;
        if !all_kept {
            buf = self.answered(origin.read(offset, buf).into_future()).await?;
        }
        // What was kept by now may have changed before it was read; what was not has not.
        let kept: Vec<(u64, GrainState)> = {
            let state = self.state();
            state.grains.range(grains).map(|(grain, place)| (*grain, *place)).collect()
        };
        for (grain, place) in kept {
            let bytes = self.bytes(grain..grain + 1);
            let (start, end) = (bytes.start.max(offset), bytes.end.min(offset + length));
            let into = (start - offset) as usize..(end - offset) as usize;
            match place {
                GrainState::Copying => {}
                GrainState::Zeroes => buf[into].fill(0),
                GrainState::Area(place) => {
                    let whole = Buf::for_overwrite(GRAIN as usize);
                    let read = area.read(u64::from(place) * GRAIN, whole);
                    let whole = self.answered(read.into_future()).await?;
                    let from = (start - bytes.start) as usize;
                    let length = into.len();
                    buf[into].copy_from_slice(&whole[from..from + length]);
                }
            }
        }
        // A change may have gone on uncopied since.
        self.disks().map(|_| buf)
    }

    /// Extents of the range at the snapshot's instant, as [`BlockDevice::extents`]: the device is asked for no more
    /// pieces than that takes.
    pub(crate) async fn extents(
        &self,
        offset: u64,
        len: u64,
        count: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        let Disks { origin, .. } = self.disks()?;
        let (mut list, mut at, end) = (Vec::new(), offset, offset + len);
        let mut missing = count;
        while at < end && list.len() < count {
            let found = self.answered(origin.extents(at, end - at, missing).into_future()).await?;
            let Some(last) = found.last() else { break };
            at = last.end();
            {
                let state = self.state();
                found.iter().for_each(|extent| self.lay_kept_over(*extent, &state, &mut list));
            }
            // A change may have gone on uncopied since.
            self.disks()?;
            // What is kept joins the pieces around it: so that a disk of which all is kept takes few rounds.
            missing = missing.saturating_mul(2);
        }
        Ok(list)
    }

    /// Says whether what was read is what the device held then, as [`BlockDevice::confirm`].
    pub(crate) async fn confirm(&self) -> Result<(), BlockError> {
        let Disks { origin, area } = self.disks()?;
        self.answered(origin.confirm().into_future()).await?;
        self.answered(area.confirm().into_future()).await
    }

    /// Adds a piece of the device as it is now to `list` as it was: kept grains are data.
    fn lay_kept_over(&self, extent: Extent, state: &State, list: &mut Vec<Extent>) {
        let mut at = extent.offset;
        let mut push = |start: u64, end: u64, kind: ExtentKind| {
            Extent { offset: start, len: end - start, kind }.push_onto(list);
        };
        if extent.kind != ExtentKind::Data {
            for (grain, _) in state.grains.range(self.grains(extent.offset, extent.len)) {
                let kept = self.bytes(*grain..*grain + 1);
                let (start, stop) = (kept.start.max(at), kept.end.min(extent.end()));
                push(at, start, extent.kind);
                push(start, stop, ExtentKind::Data);
                at = stop;
            }
        }
        push(at, extent.end(), extent.kind);
    }

    fn disks(&self) -> Result<Disks, BlockError> {
        let state = self.state();
        state.disks.clone().ok_or_else(|| ended(state.ended.as_deref()))
    }

    /// An answer of a disk, or the reason why there is no snapshot any more.
    async fn answered<T>(&self, work: impl Future<Output = Result<T, BlockError>>) -> Result<T, BlockError> {
        match self.unless_ended(work).await {
            Some(answer) => answer,
            None => Err(ended(self.state().ended.as_deref())),
        }
    }
}

fn ended(why: Option<&str>) -> BlockError {
    BlockError::gone(format!("the snapshot has ended: {}", why.unwrap_or_default()))
}

fn wake_later(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

/// Grains that one change copies. Those that it has not copied, others may.
struct Claim<'a> {
    fleece: &'a Fleece,
    grains: Vec<u64>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let wakers = {
            let mut state = self.fleece.state();
            for grain in &self.grains {
                if state.grains.get(grain) == Some(&GrainState::Copying) {
                    state.grains.remove(grain);
                }
            }
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A change that waits for copies, while this is not dropped.
struct Waiting<'a> {
    fleece: &'a Fleece,
    number: u64,
}

impl<'a> Waiting<'a> {
    fn new(fleece: &'a Fleece) -> Self {
        let mut state = fleece.state();
        state.last_change += 1;
        let number = state.last_change;
        state.changes.insert(number, Instant::now());
        drop(state);
        Self { fleece, number }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.fleece.state().changes.remove(&self.number);
    }
}

/// Breaks a fleece that has a change wait for too long.
fn watch(fleece: &Weak<Fleece>) {
    loop {
        let Some(fleece) = fleece.upgrade() else { return };
        let (oldest, pausing) = {
            let state = fleece.state();
            if state.ended.is_some() {
                return;
            }
            let (mut state, _) =
                fleece.watched.wait_timeout(state, WATCH_PERIOD).unwrap_or_else(PoisonError::into_inner);
            // Numbers count up, and so do times.
            state.round += 1;
            (state.changes.values().next().copied(), std::mem::take(&mut state.pausing))
        };
        pausing.into_iter().for_each(Waker::wake);
        if oldest.is_some_and(|began| began.elapsed() > COPY_TIME) {
            let why = format!("a write had to wait for a copy for more than {} s", COPY_TIME.as_secs());
            fleece.broken(&why);
        }
    }
}
