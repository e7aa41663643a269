//! A device that retains what it has written until that is flushed.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use lunway_block::{
    BlockDevice, BlockError, Buf, CacheCallback, CacheNews, Durability, Fate, Io, SharedBuf, Zeroing,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::attempts::Attempts;
use crate::gate::{Gate, Phase};
use crate::writes::{Change, Discarded, Mark, RetainedWrites};

/// Default limit of the data retained of a device, bytes: more than a journal commits at a time, and half a second of a
/// gigabit link to write again.
pub const UNFLUSHED_MAX: u64 = 64 << 20;

/// From when on a flush is begun in the background, bytes, unless half of the limit comes first: half of what a
/// thread's pool keeps of buffers of one size. Beyond that each buffer would be allocated and cleared anew, which costs
/// 1 µs for 4 KiB and 2 µs for 64 KiB.
const FLUSH_FROM: u64 = 8 << 20;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, BlockError>> + Send>>;

/// A device that retains what was written through it until a flush has made that durable, and writes it again when the
/// device below says that it may be lost ([`CacheNews`](lunway_block::CacheNews)).
///
/// # Promise
///
/// A flush succeeds because the data is there. Where the device below cannot exclude that its cache was lost,
/// everything retained is written again, in ranges that do not overlap, and flushed; then only the flush that waited
/// succeeds. A flush fails as it would without this device where the data cannot be written again, and where more was
/// unflushed than is retained. To make that rare a flush is begun in the background long before the limit is reached.
///
/// - **Reads** that find a range whose data is in doubt wait, and read again after a loss: what was acknowledged is
///   never missing in between.
/// - **Changes** wait while older ones are written again, and those under way are waited for first: nothing old comes
///   after something new. Of changes that overlap and are under way at the same time, which have no order, the one
///   whose answer comes last is the one that is retained.
/// - A change **of unknown outcome** is retained: writing it again makes it known. One that did not happen is not.
/// - A **reservation conflict** drops everything: this host has been fenced, and must not write what it wrote before.
/// - A cache that is **lost again and again** ends an operation with an error after half a minute: what is retained
///   stays, and the next operation begins anew.
/// - While the device below cannot be reached everything stays; what waits for it fails as it does for any other
///   operation.
///
/// A caller polls a change to its end or drops it: one that it leaves lying is waited for before anything is written
/// again.
///
/// One writer: what *another* host writes to a place after us, before our next flush, is overwritten when ours is
/// written again.
///
/// # Cost
///
/// Memory: at most the limit, of which buffers that are kept count in full. Without a volatile cache below
/// ([`Geometry::volatile_cache`](lunway_block::Geometry::volatile_cache)), nothing. For a change one allocation and one
/// insertion into a tree; for a read one allocation while something is retained.
pub struct RetainingDevice {
    below: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
}

/// State shared by operations, the resolver and the background flush.
pub(crate) struct Shared {
    pub(crate) below: Arc<dyn BlockDevice>,
    pub(crate) gate: Gate,
    /// Something is retained: so long reads are looked at.
    retained: AtomicBool,
    state: Mutex<RetainState>,
    /// Something is decided, or the last change has ended that is waited for.
    pub(crate) changed: Notify,
    pub(crate) runtime: Handle,
    /// From when on a flush is begun in the background, bytes.
    flush_from: u64,
}

/// Behind the lock, under which the device below is never called.
pub(crate) struct RetainState {
    pub(crate) writes: RetainedWrites,
    /// Counts what was heard of the cache.
    pub(crate) news: u64,
    /// Counts losses.
    pub(crate) losses: u64,
    /// A loss that is not made good yet, and whether it was reported.
    pub(crate) lost: Option<bool>,
    /// Somebody is about to find out.
    pub(crate) resolving: bool,
    /// Number of times that nothing could be found out, and the reason.
    pub(crate) postponed: (u64, Option<BlockError>),
    pub(crate) failure: Failure,
    /// A flush in the background is under way, or has failed and one of a caller has not succeeded since.
    flushing: bool,
}

/// Failure that flushes in flight, or else the next one, must report.
#[derive(Default)]
pub(crate) struct Failure {
    number: u64,
    error: Option<BlockError>,
    heard: bool,
}

impl Failure {
    pub(crate) fn add(&mut self, error: BlockError) {
        *self = Self { number: self.number + 1, error: Some(error), heard: false };
    }

    /// Returns `true` if the next flush is to report a failure.
    fn is_unheard(&self) -> bool {
        self.number > 0 && !self.heard
    }

    /// Returns the number of the last failure that a flush beginning now need not report.
    fn begin(&self) -> u64 {
        self.number - u64::from(self.is_unheard())
    }

    /// Returns the error that a flush which began then must report.
    fn hear(&mut self, begun: u64) -> Option<BlockError> {
        if self.number <= begun {
            return None;
        }
        self.heard = true;
        self.error.clone()
    }
}

impl RetainingDevice {
    /// Retains at most `bytes_max` of what is written to `below`. To be called on a tokio runtime, which writes again.
    pub fn new(below: Arc<dyn BlockDevice>, bytes_max: u64) -> Self {
        let state = RetainState {
            writes: RetainedWrites::new(bytes_max),
            news: 0,
            losses: 0,
            lost: None,
            resolving: false,
            postponed: (0, None),
            failure: Failure::default(),
            flushing: false,
        };
        let shared = Arc::new(Shared {
            below,
            gate: Gate::default(),
            retained: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Notify::new(),
            runtime: Handle::current(),
            flush_from: (bytes_max / 2).min(FLUSH_FROM),
        });
        let weak = Arc::downgrade(&shared);
        shared.below.on_cache_news(Box::new(move |news| {
            if let Some(shared) = weak.upgrade() {
                shared.heard(news);
            }
        }));
        let weak = Arc::downgrade(&shared);
        shared.below.on_resize(Box::new(move |geometry| {
            if let Some(shared) = weak.upgrade() {
                shared.lock().writes.truncate(geometry.size);
            }
        }));
        Self { below: shared.below.clone(), shared }
    }

    /// Memory that is kept for what is not flushed, bytes.
    pub fn retained_bytes(&self) -> u64 {
        self.shared.lock().writes.bytes()
    }

    fn change(&self, mut change: Planned) -> Io<Result<(), BlockError>> {
        let shared = &self.shared;
        if !shared.below.geometry().volatile_cache {
            if !shared.retained.load(Ordering::SeqCst) {
                return change.issue(&*shared.below);
            }
            // What is retained from before the cache was switched off must not come after this.
            change.stable = true;
        }
        if shared.gate.enter() {
            return shared.start(change);
        }
        let shared = shared.clone();
        Io::pending(async move {
            shared.wait_for_gate().await;
            shared.start(change).await
        })
    }
}

/// A change that is to be made.
struct Planned {
    offset: u64,
    len: u64,
    change: Change,
    stable: bool,
}

impl Planned {
    fn issue(&self, device: &dyn BlockDevice) -> Io<Result<(), BlockError>> {
        let durability = if self.stable { Durability::Stable } else { Durability::Volatile };
        match &self.change {
            Change::Data(data) => device.write(self.offset, data.clone(), durability),
            Change::Unmap => device.unmap(self.offset, self.len),
            Change::Zero(zeroing) => device.write_zeroes(self.offset, self.len, *zeroing),
        }
    }
}

impl Shared {
    /// A panic elsewhere leaves the state whole: no code in here panics half way.
    pub(crate) fn lock(&self) -> MutexGuard<'_, RetainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes known to reads whether there is something to look at.
    pub(crate) fn note_retained(&self, state: &RetainState) {
        self.retained.store(!state.writes.is_empty(), Ordering::SeqCst);
    }

    /// Waits until a change may pass, and counts it.
    async fn wait_for_gate(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.gate.enter() {
                return;
            }
            changed.await;
        }
    }

    /// Starts a change that has passed the gate.
    fn start(self: &Arc<Self>, change: Planned) -> Io<Result<(), BlockError>> {
        let answer = change.issue(&*self.below);
        let mut flight =
            ChangeFlight { shared: self.clone(), change: Some(change), answer: None, cold: None };
        match answer {
            Io::Ready(answer) => match flight.land(answer) {
                Ok(answer) => Io::Ready(answer),
                Err(cold) => Io::Pending(cold),
            },
            Io::Pending(answer) => {
                flight.answer = Some(answer);
                Io::Pending(Box::pin(flight))
            }
        }
    }

    /// A change has ended; an error says what is known of it.
    fn landed(self: &Arc<Self>, change: Planned, result: &Result<(), BlockError>) {
        let Planned { offset, len, change, stable } = change;
        let mut discarded = Discarded::default();
        let flushes = {
            let mut state = self.lock();
            match result {
                Ok(()) if stable => state.writes.superseded(offset, len),
                Ok(())
                | Err(
                    BlockError::UnflushedLost { .. } | BlockError::Io { kind: io::ErrorKind::TimedOut, .. },
                ) => discarded = state.writes.retain(offset, len, change),
                Err(BlockError::ReservationConflict) => discarded = state.writes.give_up(),
                Err(error) => {
                    if matches!(error.fate(), Fate::Over | Fate::Unknown) {
                        discarded = state.writes.retain(offset, len, change);
                    }
                }
            }
            self.note_retained(&state);
            let due = state.writes.pending() >= self.flush_from || !state.writes.is_complete();
            due && result.is_ok() && !std::mem::replace(&mut state.flushing, true)
        };
        drop(discarded);
        if self.gate.leave() {
            self.changed.notify_waiters();
        }
        if flushes {
            self.runtime.spawn(self.clone().flush_in_background());
        }
    }

    /// Flushes before the limit is reached. What the disk says against it is for the next flush of a caller to report.
    async fn flush_in_background(self: Arc<Self>) {
        let result = self.flush(None, true).await;
        let mut state = self.lock();
        match result {
            Ok(()) => state.flushing = false,
            // The device cannot be reached. A later flush covers the same.
            Err(error) if error.fate() != Fate::Answered => state.flushing = false,
            Err(error) => {
                tracing::warn!("a flush in the background failed: {error}");
                state.failure.add(error);
            }
        }
    }

    /// Flushes until a flush is answered in whose time nothing came into doubt.
    async fn flush(self: &Arc<Self>, mut begun: Option<Flush>, background: bool) -> Result<(), BlockError> {
        let heard = self.lock().failure.begin();
        let mut attempts = Attempts::new();
        while attempts.may_go_on() {
            let Flush { answer, mark, phase } = match begun.take() {
                Some(begun) => begun,
                None => {
                    self.calm().await?;
                    if !background && let Some(error) = self.lock().failure.hear(heard) {
                        return Err(error);
                    }
                    self.begin_flush()
                }
            };
            let result = answer.await;
            if result == Err(BlockError::ReservationConflict) {
                let mut state = self.lock();
                state.abandon();
                self.note_retained(&state);
            }
            match result {
                // Found out by the flush itself.
                Err(BlockError::UnflushedLost { reported }) if self.was_calm_since(phase) => {
                    self.heard(CacheNews::Lost { reported });
                    continue;
                }
                Err(BlockError::UnflushedLost { .. }) => continue,
                Ok(()) if !self.was_calm_since(phase) => continue,
                other => other?,
            }
            let mut state = self.lock();
            if !background {
                if let Some(error) = state.failure.hear(heard) {
                    return Err(error);
                }
                state.flushing = false;
            }
            let discarded = state.writes.flushed(mark);
            self.note_retained(&state);
            drop(state);
            drop(discarded);
            return Ok(());
        }
        Err(BlockError::lost())
    }

    fn begin_flush(&self) -> Flush {
        let (mark, phase) = (self.lock().writes.mark(), self.gate.phase());
        Flush { answer: self.below.flush(), mark, phase }
    }

    /// Judges a read that was sent in the phase `before` and has found something: `false` if it has to be repeated.
    async fn judge_read(self: &Arc<Self>, offset: u64, len: u64, before: Phase) -> Result<bool, BlockError> {
        loop {
            let now = self.gate.phase();
            if now.losses() != before.losses() {
                return Ok(false);
            }
            if now.is_calm() || !self.lock().writes.overlaps(offset, len) {
                return Ok(true);
            }
            self.calm().await?;
        }
    }

    /// Reads until what was found is what was written.
    async fn read_surely(
        self: Arc<Self>,
        offset: u64,
        mut buf: Buf,
        mut before: Phase,
    ) -> Result<Buf, BlockError> {
        let mut attempts = Attempts::new();
        while attempts.may_go_on() {
            if self.judge_read(offset, buf.len() as u64, before).await? {
                return Ok(buf);
            }
            before = self.gate.phase();
            buf = self.below.read(offset, buf).await?;
        }
        Err(BlockError::lost())
    }
}

/// A flush that was sent.
struct Flush {
    answer: Io<Result<(), BlockError>>,
    mark: Mark,
    phase: Phase,
}

/// A change under way.
struct ChangeFlight {
    shared: Arc<Shared>,
    change: Option<Planned>,
    answer: Option<Answer<()>>,
    cold: Option<Answer<()>>,
}

impl ChangeFlight {
    fn land(&mut self, answer: Result<(), BlockError>) -> Result<Result<(), BlockError>, Answer<()>> {
        let Some(change) = self.change.take() else { return Ok(answer) };
        self.shared.landed(change, &answer);
        match answer {
            // One that was to be durable, by a flush behind it: it is retained now, and a flush makes it durable.
            Err(BlockError::UnflushedLost { .. }) => {
                let shared = self.shared.clone();
                Err(Box::pin(async move { shared.flush(None, false).await }))
            }
            other => Ok(other),
        }
    }
}

impl Future for ChangeFlight {
    type Output = Result<(), BlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(answer) = &mut self.answer {
            let answer = ready!(answer.as_mut().poll(cx));
            self.answer = None;
            match self.land(answer) {
                Ok(answer) => return Poll::Ready(answer),
                Err(cold) => self.cold = Some(cold),
            }
        }
        match &mut self.cold {
            Some(cold) => cold.as_mut().poll(cx),
            None => Poll::Ready(Err(BlockError::lost())),
        }
    }
}

impl Drop for ChangeFlight {
    /// Notes a change that may still happen: its outcome is not known.
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            self.shared.landed(change, &Err(BlockError::lost()));
        }
    }
}

/// A read under way while something is retained.
struct ReadFlight {
    shared: Arc<Shared>,
    offset: u64,
    before: Phase,
    answer: Answer<Buf>,
    is_cold: bool,
}

impl Future for ReadFlight {
    type Output = Result<Buf, BlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let result = ready!(self.answer.as_mut().poll(cx));
            let Ok(buf) = result else { return Poll::Ready(result) };
            if self.is_cold || self.shared.was_calm_since(self.before) {
                return Poll::Ready(Ok(buf));
            }
            self.is_cold = true;
            self.answer = Box::pin(self.shared.clone().read_surely(self.offset, buf, self.before));
        }
    }
}

impl Shared {
    /// Returns `true` if nothing was lost since that moment, nor is in doubt.
    fn was_calm_since(&self, before: Phase) -> bool {
        let now = self.gate.phase();
        now.is_calm() && now.losses() == before.losses()
    }
}

impl lunway_block::Layer for RetainingDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.below
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let shared = &self.shared;
        let before = shared.gate.phase();
        let looks = shared.retained.load(Ordering::SeqCst) || !before.is_calm();
        match shared.below.read(offset, buf) {
            Io::Pending(answer) if looks => Io::Pending(Box::pin(ReadFlight {
                shared: shared.clone(),
                offset,
                before,
                answer,
                is_cold: false,
            })),
            Io::Ready(Ok(buf)) if looks && !shared.was_calm_since(before) => {
                Io::pending(shared.clone().read_surely(offset, buf, before))
            }
            other => other,
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let len = data.len() as u64;
        let stable = durability == Durability::Stable;
        self.change(Planned { offset, len, change: Change::Data(data), stable })
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        let shared = self.shared.clone();
        let mut flush = None;
        let owes = shared.lock().failure.is_unheard();
        if shared.gate.phase().is_calm() && !owes {
            let begun = shared.begin_flush();
            if let (Io::Ready(Ok(())), true) = (&begun.answer, shared.was_calm_since(begun.phase)) {
                let mut state = shared.lock();
                let discarded = state.writes.flushed(begun.mark);
                state.flushing = false;
                shared.note_retained(&state);
                drop(state);
                drop(discarded);
                return Io::ok(());
            }
            flush = Some(begun);
        }
        Io::pending(async move { shared.flush(flush, false).await })
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.change(Planned { offset, len, change: Change::Unmap, stable: false })
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.change(Planned { offset, len, change: Change::Zero(zeroing), stable: false })
    }

    /// A loss is mended here: the layers above hear of one that cannot be mended by a flush that fails.
    fn on_cache_news(&self, callback: CacheCallback) {
        drop(callback);
    }
}

impl fmt::Debug for RetainingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetainingDevice").finish_non_exhaustive()
    }
}
