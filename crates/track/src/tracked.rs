//! A device whose changes are tracked.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunway_block::{
    BlockDevice, BlockError, Compaction, Durability, Fate, Io, Layer, Lent, Permit, SharedBuf,
    SnapshotCommit, Zeroing,
};
use lunway_vhdx::Storage;

use crate::tracker::{Backing, Begun, Change, Ended, Operation, Tracker, Tuning};

mod tracking;

pub use tracking::{InPlace, Tracking};

/// Maximum time that the end of an epoch waits for operations in flight, and holds others back: initiators give an
/// operation up after 30 s, Windows after 60.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Interval of checks whether they have ended: the table of a 64 TiB disk takes 15 ms to look through, once.
const DRAIN_PERIOD: Duration = Duration::from_micros(500);
/// Interval of attempts to make a track file say nothing that could not be written when the disk was opened.
const STALE_PERIOD: Duration = Duration::from_secs(10);
/// Commits that failed are told to those who waited for them; they are woken at once, and there are few at a time.
const FAILURES_MAX: usize = 1024;

/// Looks what identifies the backing store now: the one that the device was opened on, or the file in which it goes on
/// after a snapshot. It is called on threads that may wait for a disk.
pub type Identify = Arc<dyn Fn(Option<&Path>) -> Backing + Send + Sync>;
/// The file in which a device goes on.
type Leaf = Arc<Mutex<Option<PathBuf>>>;

/// A device around another that records which 64 KiB change, before they do: see [the crate](crate).
///
/// An operation on regions that are hot costs a few atomic operations, and one allocation if the device's answer is
/// pending; else it is pending until the log has its regions. Reads and flushes pass. One thread writes the log.
/// [`close`](BlockDevice::close) leaves the track file in order; a tracked device that is dropped without it is as one
/// whose process was killed.
pub struct Tracked {
    inner: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
    identify: Identify,
    leaf: Leaf,
    worker: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    tracker: Tracker,
    work: Mutex<Work>,
    ordered: Condvar,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Work {
    commit: bool,
    stop: bool,
    commands: VecDeque<Command>,
}

/// Something for the thread that writes the log.
type Command = Box<dyn FnOnce(&Shared) + Send>;

/// State of the callers that wait for the log.
#[derive(Default)]
struct Waiting {
    /// The last commit that has ended.
    done: u64,
    failures: BTreeMap<u64, String>,
    /// Number of times that the tracker was opened again.
    reopened: u64,
    wakers: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn order(&self, command: impl FnOnce(&Self) + Send + 'static) {
        lock(&self.work).commands.push_back(Box::new(command));
        self.ordered.notify_one();
    }

    fn commit_soon(&self) {
        let mut work = lock(&self.work);
        if !std::mem::replace(&mut work.commit, true) {
            self.ordered.notify_one();
        }
    }

    /// Runs on the thread that writes the log, until it is stopped.
    fn run(&self) {
        loop {
            let (commit, command) = {
                let mut work = lock(&self.work);
                while !work.commit && !work.stop && work.commands.is_empty() {
                    if !self.tracker.is_stale() {
                        work = self.ordered.wait(work).unwrap_or_else(PoisonError::into_inner);
                        continue;
                    }
                    let waited = self.ordered.wait_timeout(work, STALE_PERIOD);
                    let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    work = woken;
                    if waited.timed_out() {
                        drop(work);
                        let _ = self.tracker.forget_stale();
                        work = lock(&self.work);
                    }
                }
                if work.stop && work.commands.is_empty() {
                    return;
                }
                (std::mem::take(&mut work.commit), work.commands.pop_front())
            };
            if commit {
                self.commit();
            }
            if let Some(command) = command {
                command(self);
            }
        }
    }

    fn commit(&self) {
        let (ticket, committed) = self.tracker.commit();
        let mut waiting = lock(&self.waiting);
        waiting.done = ticket;
        if let Err(error) = committed {
            waiting.failures.insert(ticket, error.to_string());
            if waiting.failures.len() > FAILURES_MAX {
                waiting.failures.pop_first();
            }
        }
        Self::wake(waiting);
    }

    fn wake(mut waiting: MutexGuard<'_, Waiting>) {
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn until<T>(&self, mut ready: impl FnMut(&Waiting) -> Option<T>) -> T {
        poll_fn(|context| {
            let mut waiting = lock(&self.waiting);
            if let Some(value) = ready(&waiting) {
                return Poll::Ready(value);
            }
            if !waiting.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Until the log has what a ticket stands for.
    async fn committed(&self, ticket: u64) -> Result<(), BlockError> {
        let failed = self.until(|w| (w.done >= ticket).then(|| w.failures.get(&ticket).cloned())).await;
        failed.map_or(Ok(()), |error| Err(unlogged(&error)))
    }

    /// Lets nothing begin, and waits for what is under way. On the thread that writes the log.
    fn drain(&self) -> bool {
        let (start, mut from) = (Instant::now(), 0);
        self.tracker.shut();
        loop {
            // Those that waited for the log are under way as well.
            self.commit();
            match self.tracker.at_rest(from) {
                Ok(()) => return true,
                Err(_) if start.elapsed() > DRAIN_TIME => return false,
                Err(page) => from = page,
            }
            std::thread::sleep(DRAIN_PERIOD);
        }
    }

    fn reopen(&self) {
        self.tracker.reopen();
        let mut waiting = lock(&self.waiting);
        waiting.reopened += 1;
        Self::wake(waiting);
    }

    /// Lets an operation in.
    async fn admit(
        self: &Arc<Self>,
        change: Change,
        offset: u64,
        length: u64,
        mut begun: Begun,
    ) -> Result<UnderWay, BlockError> {
        loop {
            let reopened = lock(&self.waiting).reopened;
            match begun {
                Begun::Covered { operation, wake } => {
                    if wake {
                        self.commit_soon();
                    }
                    return Ok(UnderWay::new(self, operation));
                }
                Begun::Waiting { operation, ticket } => {
                    let under_way = UnderWay::new(self, operation);
                    self.commit_soon();
                    self.committed(ticket).await?;
                    return Ok(under_way);
                }
                Begun::Shut => {
                    begun = self.tracker.begin(change, offset, length);
                    if matches!(begun, Begun::Shut) {
                        self.until(|waiting| (waiting.reopened != reopened).then_some(())).await;
                    }
                }
                Begun::Closed => return Err(BlockError::gone("the disk was closed")),
                Begun::Beyond => {
                    let why = "changes of a disk are tracked up to 1 PiB".to_owned();
                    return Err(BlockError::Size { why });
                }
            }
        }
    }
}

fn unlogged(error: &str) -> BlockError {
    let message = format!("the change was not recorded: the track file could not be written: {error}");
    BlockError::Io { kind: io::ErrorKind::Other, message }
}

/// An operation under way; dropped, it never reached the disk, or what became of it is not known.
struct UnderWay {
    shared: Arc<Shared>,
    operation: Option<Operation>,
    issued: bool,
}

impl UnderWay {
    fn new(shared: &Arc<Shared>, operation: Operation) -> Self {
        Self { shared: Arc::clone(shared), operation: Some(operation), issued: false }
    }

    fn end(&mut self, ended: Ended) {
        if let Some(operation) = self.operation.take() {
            self.shared.tracker.end(operation, ended);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end(if self.issued { Ended::Abandoned } else { Ended::Failed });
    }
}

fn ended(answer: &Result<(), BlockError>) -> Ended {
    match answer {
        Ok(()) => Ended::Done,
        // It may yet happen.
        Err(error) if error.fate() == Fate::Unknown => Ended::Abandoned,
        Err(_) => Ended::Failed,
    }
}

/// The device's answer, and the end of the operation with it.
struct Answer {
    under_way: UnderWay,
    answer: Pin<Box<dyn Future<Output = Result<(), BlockError>> + Send>>,
}

impl Future for Answer {
    type Output = Result<(), BlockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(self.answer.as_mut().poll(context));
        self.under_way.end(ended(&answer));
        Poll::Ready(answer)
    }
}

impl Tracked {
    /// Tracks the changes of `inner` in the file on `storage`. Blocks, as opening a device does.
    ///
    /// `backing` is what `identify` said **before** `inner` was opened: opening may change it.
    ///
    /// # Errors
    ///
    /// As [`Tracker::open`]; the operating system's, without a thread to be had.
    pub fn open(
        inner: Arc<dyn BlockDevice>,
        storage: Box<dyn Storage>,
        backing: &Backing,
        identify: Identify,
        tuning: Tuning,
    ) -> io::Result<Self> {
        let tracker = Tracker::open(storage, inner.geometry().size, backing, tuning)?;
        Self::with(inner, tracker, identify)
    }

    /// The same where the storage cannot be had or written, for the reason `why`: everything counts as changed, see
    /// [`Tracker::lost_from_start`].
    ///
    /// # Errors
    ///
    /// The operating system's, without a thread to be had.
    pub fn lost(
        inner: Arc<dyn BlockDevice>,
        storage: Box<dyn Storage>,
        backing: &Backing,
        identify: Identify,
        tuning: Tuning,
        why: &str,
    ) -> io::Result<Self> {
        let tracker = Tracker::lost_from_start(storage, inner.geometry().size, backing, tuning, why);
        Self::with(inner, tracker, identify)
    }

    fn with(inner: Arc<dyn BlockDevice>, tracker: Tracker, identify: Identify) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tracker,
            work: Mutex::default(),
            ordered: Condvar::new(),
            waiting: Mutex::default(),
        });
        // What the device is called now, which opening it may have changed.
        shared.tracker.set_lasting(identify(None).lasting)?;
        let weak = Arc::downgrade(&shared);
        inner.on_resize(Box::new(move |geometry| {
            if let Some(shared) = weak.upgrade() {
                shared.order(move |shared| drop(shared.tracker.resize(geometry.size)));
            }
        }));
        let worker = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("track".to_owned()).spawn(move || shared.run())?
        };
        Ok(Self { inner, shared, identify, leaf: Leaf::default(), worker: Mutex::new(Some(worker)) })
    }

    /// Its epochs.
    pub fn tracking(&self) -> Tracking {
        Tracking {
            shared: Arc::clone(&self.shared),
            inner: Arc::downgrade(&self.inner),
            in_place: None,
            misplaced: Arc::default(),
        }
    }

    /// Carries out an operation once it may change the disk.
    fn change(
        &self,
        change: Change,
        offset: u64,
        length: u64,
        issue: impl FnOnce(&dyn BlockDevice) -> Io<Result<(), BlockError>> + Send + 'static,
    ) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.inner.geometry().check(offset, length) {
            return Io::err(error);
        }
        let begun = self.shared.tracker.begin(change, offset, length);
        if let Begun::Covered { operation, wake: false } = begun {
            return match issue(&*self.inner) {
                Io::Ready(answer) => {
                    self.shared.tracker.end(operation, ended(&answer));
                    Io::Ready(answer)
                }
                Io::Pending(answer) => {
                    let mut under_way = UnderWay::new(&self.shared, operation);
                    under_way.issued = true;
                    Io::Pending(Box::pin(Answer { under_way, answer }))
                }
            };
        }
        let (shared, inner) = (Arc::clone(&self.shared), Arc::clone(&self.inner));
        // What waits for the log begins to wait now, not when it is polled.
        if matches!(begun, Begun::Waiting { .. } | Begun::Covered { .. }) {
            shared.commit_soon();
        }
        Io::pending(async move {
            let mut under_way = shared.admit(change, offset, length, begun).await?;
            under_way.issued = true;
            let answer = issue(&*inner).await;
            under_way.end(ended(&answer));
            answer
        })
    }

    /// Has the thread that writes the log do something.
    fn on_worker<T: Send + 'static, W: FnOnce(&Shared) -> T + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = T> + Send + use<T, W> {
        on_worker(&self.shared, work)
    }
}

fn on_worker<T: Send + 'static, W: FnOnce(&Shared) -> T + Send + 'static>(
    shared: &Arc<Shared>,
    work: W,
) -> impl Future<Output = T> + Send + use<T, W> {
    let answer = Arc::new(Mutex::new((None, None::<Waker>)));
    let there = Arc::clone(&answer);
    shared.order(move |shared| {
        let value = work(shared);
        let waker = {
            let mut answer = lock(&there);
            answer.0 = Some(value);
            answer.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    });
    poll_fn(move |context| {
        let mut answer = lock(&answer);
        match answer.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                answer.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
}

impl Layer for Tracked {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn lend_memory(&self, offset: u64, len: usize) -> Option<Lent> {
        self.inner.lend_memory(offset, len)
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let length = data.len() as u64;
        self.change(Change::Written, offset, length, move |inner| inner.write(offset, data, durability))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        let unmap = self.inner.geometry().unmap;
        if !unmap.frees() {
            // It changes nothing.
            return self.inner.unmap(offset, len);
        }
        let change = if unmap.zeroes() { Change::Zeroed } else { Change::Written };
        self.change(change, offset, len, move |inner| inner.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.change(Change::Zeroed, offset, len, move |inner| inner.write_zeroes(offset, len, zeroing))
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        let inner = Arc::clone(&self.inner);
        let shared = Arc::clone(&self.shared);
        let logged = self.on_worker(move |shared| shared.tracker.resize(size));
        Io::pending(async move {
            logged.await.map_err(|error| match error.kind() {
                io::ErrorKind::InvalidInput => BlockError::Size { why: error.to_string() },
                _ => unlogged(&error.to_string()),
            })?;
            let answer = inner.resize(size, permit).await;
            let now = inner.geometry().size;
            on_worker(&shared, move |shared| drop(shared.tracker.resize(now))).await;
            answer
        })
    }

    fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        let made = self.inner.snapshot(leaf, commit);
        let (shared, identify) = (Arc::clone(&self.shared), Arc::clone(&self.identify));
        let (leaf, current) = (leaf.to_owned(), Arc::clone(&self.leaf));
        Io::pending(async move {
            made.await?;
            // A kill before this has the next start doubt, and compare.
            on_worker(&shared, move |shared| {
                drop(shared.tracker.set_lasting(identify(Some(&leaf)).lasting));
                *lock(&current) = Some(leaf);
            })
            .await;
            Ok(())
        })
    }

    /// Blocks that move change nothing. What file systems that are frozen do not use would change unnoticed, and is
    /// refused.
    fn compact(&self, task: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        match task.is_of_frozen() {
            true => Io::err(BlockError::Unsupported),
            false => self.inner.compact(task),
        }
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        let drained = self.on_worker(Shared::drain);
        let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&self.shared));
        let (identify, leaf) = (Arc::clone(&self.identify), Arc::clone(&self.leaf));
        Io::pending(async move {
            drained.await;
            let closed = inner.close().await;
            let in_order = closed.is_ok();
            on_worker(&shared, move |shared| {
                let leaf = lock(&leaf).clone();
                let backing = if in_order { identify(leaf.as_deref()) } else { Backing::default() };
                if let Err(error) = shared.tracker.close_disk(&backing) {
                    tracing::warn!(%error, "the track file was not left in order");
                }
                shared.reopen();
            })
            .await;
            closed
        })
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        lock(&self.shared.work).stop = true;
        self.shared.ordered.notify_one();
        // Not joined: nothing that is dropped waits for a disk.
        drop(lock(&self.worker).take());
    }
}
