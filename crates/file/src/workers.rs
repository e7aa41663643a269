//! Threads of one device, for system calls that block.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use lunway_block::{BlockError, Io, Owner, OwnerKey};

use crate::answer::{Sender, pair};
use crate::job_queue::{Demand, Job, JobQueue};
use crate::write_back::WriteBack;

/// Threads of a device for reads, and as many for writes: enough to keep a disk's queue busy, few enough to be free.
/// Deeper queues are what the ring is for.
pub(crate) const THREADS_MAX: usize = 16;
/// Threads for reads and writes of all devices together, where that leaves each device [`THREADS_MIN`]: half of what
/// systemd allows a service on a machine whose process numbers end at 32,768 (`TasksMax=15%`, 4,915). 64 devices have
/// all their threads.
const PROCESS_THREADS: usize = 2048;
/// Threads for reads, and as many for writes, however many devices there are.
const THREADS_MIN: usize = 2;
/// Time after which a thread without work ends: longer than the pauses of a host that writes back every few seconds.
const IDLE_TIME: Duration = Duration::from_secs(7);
/// Address space for a stack, bytes. The jobs are system calls and a few frames around them.
const STACK: usize = 256 << 10;

/// Open devices, among which the threads of the process are divided.
static DEVICES: AtomicUsize = AtomicUsize::new(0);

/// The threads of one device, started when there is work and ended when there is none for some seconds.
///
/// **Isolation.** Each device has threads of its own, and each kind of work its pool of them, so that a device whose
/// disk does not answer holds up nothing but itself: not another device, its hanging reads not its flush, and a long
/// flush not its reads. The bound of a pool is the device's share of the process's threads: no device can take
/// another's.
///
/// **Turns.** Reads, maps and writes are taken from the device's owners in turn ([`Owner`]), and what has not begun of
/// an owner who is gone is dropped when its answer is polled.
pub struct Workers {
    /// Reads.
    pub reads: ThreadPool,
    /// Maps of what is allocated, on one thread: a map of a fragmented file is thousands of system calls, none of which
    /// waits for a disk, and its caller can wait for longer than a reader.
    pub maps: ThreadPool,
    /// Writes.
    pub writes: ThreadPool,
    /// Unmaps and zeroing in pieces, on one thread: while a file system gives up space of a file it blocks the
    /// writers of that file.
    pub zeroing: ThreadPool,
    /// Lane of one thread for flushes: they are made one at a time, and one call covers all that wait (`flush`).
    pub flushes: ThreadPool,
    /// Lane of one thread, for resizing and background write-back.
    pub upkeep: ThreadPool,
    /// Lane of one thread, for work beside all others that may take hours.
    pub background: ThreadPool,
}

impl Workers {
    /// Threads for one more device; none is started yet.
    #[expect(clippy::new_without_default, reason = "it counts a device")]
    pub fn new() -> Self {
        DEVICES.fetch_add(1, Ordering::Relaxed);
        Self {
            reads: ThreadPool::new("file-read", Bound::Share),
            maps: ThreadPool::new("file-map", Bound::One),
            writes: ThreadPool::new("file-write", Bound::Share),
            zeroing: ThreadPool::new("file-zero", Bound::One),
            flushes: ThreadPool::new("file-flush", Bound::One).in_one_line(),
            upkeep: ThreadPool::new("file-upkeep", Bound::One).in_one_line(),
            background: ThreadPool::new("file-background", Bound::One).in_one_line(),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        DEVICES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A device's share of the threads, for one of its two pools for transfers.
fn share(devices: usize) -> usize {
    (PROCESS_THREADS / (2 * devices.max(1))).clamp(THREADS_MIN, THREADS_MAX)
}

#[derive(Clone, Copy)]
enum Bound {
    One,
    Share,
}

impl Bound {
    fn threads(self) -> usize {
        match self {
            Self::One => 1,
            Self::Share => share(DEVICES.load(Ordering::Relaxed)),
        }
    }
}

struct Queue {
    jobs: JobQueue,
    threads: usize,
    idle: usize,
    /// An idle thread has been called and is not awake yet. One at a time: the first of a burst has often done several
    /// short jobs before the second would be awake, and each call costs more than such a job.
    calling: bool,
    /// The device is gone; jobs that are left are still done.
    closed: bool,
}

struct Shared {
    name: &'static str,
    bound: Bound,
    /// Owners take turns, and what is left of one who is gone is dropped.
    in_turns: bool,
    queue: Mutex<Queue>,
    work: Condvar,
    /// Jobs that wait or run.
    pending: AtomicUsize,
}

/// Thread pool: a bounded queue, and threads that take from it.
pub struct ThreadPool {
    shared: Arc<Shared>,
}

/// The queue is full, or no thread can be started for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl ThreadPool {
    fn new(name: &'static str, bound: Bound) -> Self {
        let queue = Queue { jobs: JobQueue::new(), threads: 0, idle: 0, calling: false, closed: false };
        let shared = Shared {
            name,
            bound,
            in_turns: true,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            pending: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Everything is of one owner, who never leaves: what concerns the whole device is carried out in its order, and
    /// whichever owner asked for it.
    fn in_one_line(mut self) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.in_turns = false;
        }
        self
    }

    /// Has writes [to the page cache](Self::io_cached) wait for room there.
    pub fn wait_for(&self, write_back: &Arc<WriteBack>) {
        let shared = Arc::downgrade(&self.shared);
        write_back.on_room(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.call(shared.lock());
            }
        }));
        self.shared.lock().jobs.wait_for(Arc::clone(write_back));
    }

    /// Jobs that wait or run.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// Runs `job` on a thread, started if none is idle and the bound allows. The jobs of an owner start in the order of
    /// their calls, those that write to the page cache in orders of their own. Dropping the answer does not stop the
    /// job. Never blocks.
    pub(crate) fn run<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
        &self,
        job: J,
    ) -> Result<impl Future<Output = Option<T>> + Send + use<T, J>, Refused> {
        let (owner, (sender, answer)) = (self.owner(), pair());
        self.push(owner.as_ref(), None, Box::new(move || sender.send(job())))?;
        let shared = Arc::clone(&self.shared);
        Ok(unless_gone(owner, answer, move |owner| shared.forget(owner)))
    }

    /// As [`io`](Self::io), of a job that writes `len` bytes to the page cache, and [notes](WriteBack::note) them: it
    /// is not begun while that has no room for the owner's host. It waits in the queue, and the threads are free for
    /// what needs no room. Of those of more than 128 KiB two run at a time, so that short ones find a thread.
    pub fn io_cached<T: Send + Unpin + 'static>(
        &self,
        len: u64,
        job: impl FnOnce() -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        self.queued(Some(len), |sender| Box::new(move || sender.send(job())))
    }

    /// As [`io`](Self::io), of work in pieces: `step` is called until it is ready, and other owners have their turns
    /// between.
    pub(crate) fn io_in_pieces<T: Send + Unpin + 'static>(
        &self,
        step: impl FnMut() -> Poll<Result<T, BlockError>> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        let (shared, key) =
            (Arc::clone(&self.shared), self.owner().map_or(OwnerKey::NONE, |owner| owner.key()));
        self.queued(None, |sender| pieces(shared, key, sender, step))
    }

    fn owner(&self) -> Option<Owner> {
        Owner::current().filter(|_| self.shared.in_turns)
    }

    fn queued<T: Send + Unpin + 'static>(
        &self,
        cached: Option<u64>,
        job: impl FnOnce(Sender<Result<T, BlockError>>) -> Job,
    ) -> Io<Result<T, BlockError>> {
        let (owner, (sender, answer)) = (self.owner(), pair());
        if self.push(owner.as_ref(), cached, job(sender)).is_err() {
            return Io::err(BlockError::Busy);
        }
        let shared = Arc::clone(&self.shared);
        let answer = unless_gone(owner, answer, move |owner| shared.forget(owner));
        Io::pending(async move { answer.await.unwrap_or(Err(BlockError::lost())) })
    }

    /// The same as an operation of a device: `Busy` where it is refused, `Aborted` where the job panicked.
    pub fn io<T: Send + Unpin + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        match self.run(job) {
            Ok(answer) => Io::pending(async move { answer.await.unwrap_or(Err(BlockError::lost())) }),
            Err(Refused) => Io::err(BlockError::Busy),
        }
    }

    /// Queues a job that writes so many bytes to the page cache, if any.
    fn push(&self, owner: Option<&Owner>, cached: Option<u64>, job: Job) -> Result<(), Refused> {
        let key = owner.map_or(OwnerKey::NONE, Owner::key);
        let demand = cached.map_or_else(|| Demand::plain(key), |len| Demand::cached(key, len));
        let mut queue = self.shared.lock();
        if owner.is_some_and(Owner::is_gone) || !queue.jobs.admits(key, demand) {
            return Err(Refused);
        }
        // An idle thread counts once for each job that waits for it.
        if queue.idle <= queue.jobs.len() && queue.threads < self.shared.bound.threads() {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name(shared.name.to_owned()).stack_size(STACK);
            match thread.spawn(move || shared.work()) {
                Ok(_) => queue.threads += 1,
                Err(_) if queue.threads > 0 => {}
                // The caller may be a core, which does not do it itself.
                Err(_) => return Err(Refused),
            }
        }
        queue.jobs.push(key, demand, job).map_err(|_| Refused)?;
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        self.shared.call(queue);
        Ok(())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what has not begun of an owner, which answers it.
    fn forget(&self, owner: OwnerKey) {
        // They are dropped without the lock.
        let forgotten = self.lock().jobs.remove(owner);
        self.pending.fetch_sub(forgotten.len(), Ordering::Relaxed);
    }

    /// Calls an idle thread where there is work for one, unless another is on its way: that one calls the next.
    fn call(&self, mut queue: MutexGuard<'_, Queue>) {
        let wanted = queue.idle > 0 && !queue.calling && queue.jobs.has_next(self.bound.threads());
        queue.calling |= wanted;
        drop(queue);
        if wanted {
            self.work.notify_one();
        }
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some((demand, job)) = queue.jobs.next(self.bound.threads()) {
                self.call(queue);
                // A job that panics drops its sender, which answers; the thread lives on.
                let _ = catch_unwind(AssertUnwindSafe(job));
                self.pending.fetch_sub(1, Ordering::Relaxed);
                queue = self.lock();
                queue.jobs.over(demand);
                continue;
            }
            if queue.closed && queue.jobs.len() == 0 {
                break;
            }
            queue.idle += 1;
            let waited = self.work.wait_timeout(queue, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
            queue = waited.0;
            queue.idle -= 1;
            queue.calling = false;
            if waited.1.timed_out() && queue.jobs.len() == 0 {
                break;
            }
        }
        queue.threads -= 1;
    }
}

/// Work in pieces as a job: after each it goes behind the jobs of others that wait.
fn pieces<T: Send + 'static>(
    shared: Arc<Shared>,
    key: OwnerKey,
    sender: Sender<T>,
    mut step: impl FnMut() -> Poll<T> + Send + 'static,
) -> Job {
    Box::new(move || {
        loop {
            if let Poll::Ready(done) = step() {
                return sender.send(done);
            }
            let mut queue = shared.lock();
            // An owner whose place others have taken meanwhile goes on.
            let demand = Demand::plain(key);
            if queue.jobs.has_plain() && queue.jobs.admits(key, demand) {
                let rest = pieces(Arc::clone(&shared), key, sender, step);
                if queue.jobs.push(key, demand, rest).is_ok() {
                    shared.pending.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
        }
    })
}

/// An answer; `forget` drops what waits of its owner once that is gone.
pub(crate) fn unless_gone<T>(
    owner: Option<Owner>,
    mut answer: impl Future<Output = Option<T>> + Send + Unpin,
    forget: impl Fn(OwnerKey) + Send,
) -> impl Future<Output = Option<T>> + Send
where
    T: Send,
{
    poll_fn(move |cx| {
        if let Some(owner) = owner.as_ref().filter(|owner| owner.is_gone()) {
            forget(owner.key());
        }
        Pin::new(&mut answer).poll(cx)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_queue::QUEUE_MAX;
    use std::sync::Barrier;
    use std::sync::mpsc;

    fn pool() -> ThreadPool {
        ThreadPool::new("file-test", Bound::Share)
    }

    #[tokio::test]
    async fn jobs_run_side_by_side_up_to_the_limit() {
        let pool = pool();
        // Only if all run at once do any get past the barrier.
        let barrier = Arc::new(Barrier::new(THREADS_MAX));
        let jobs = (0..THREADS_MAX).map(|index| {
            let barrier = Arc::clone(&barrier);
            let job = move || {
                barrier.wait();
                index
            };
            pool.run(job).unwrap()
        });
        for (index, job) in jobs.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(job.await, Some(index));
        }
        let many: Vec<_> = (0..1000).map(|index| pool.run(move || index).unwrap()).collect();
        for (index, job) in many.into_iter().enumerate() {
            assert_eq!(job.await, Some(index));
        }
        assert!(pool.shared.lock().threads <= THREADS_MAX);
    }

    #[tokio::test]
    async fn a_job_that_panics_answers_none_and_costs_no_thread() {
        let pool = pool();
        for _ in 0..2 * THREADS_MAX {
            let job = pool.run(|| std::panic::resume_unwind(Box::new("gone"))).unwrap();
            assert_eq!(job.await, None::<()>);
        }
        assert_eq!(pool.run(|| 1).unwrap().await, Some(1));
        let begun = std::time::Instant::now();
        while pool.pending() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{}", pool.pending());
            thread::yield_now();
        }
    }

    #[test]
    fn a_lane_that_hangs_is_bounded_and_answers_busy_beyond() {
        let pool = pool();
        let (go, hold) = mpsc::channel::<()>();
        let hold = Arc::new(Mutex::new(hold));
        for _ in 0..QUEUE_MAX {
            let hold = Arc::clone(&hold);
            drop(pool.run(move || hold.lock().unwrap().recv().is_ok()).unwrap());
        }
        // Those that run make room for as many again, and no more.
        let more = (0..2 * QUEUE_MAX).filter(|_| pool.run(|| ()).is_ok()).count();
        assert!(more <= THREADS_MAX, "{more}");
        assert!(matches!(pool.io(|| Ok(())), Io::Ready(Err(BlockError::Busy))));
        assert!(pool.shared.lock().threads <= THREADS_MAX);
        drop(go);
    }

    /// A pool of one thread whose job waits for the sender, and what the later jobs note.
    fn held(pool: ThreadPool) -> (ThreadPool, mpsc::Sender<()>, Arc<Mutex<Vec<u32>>>) {
        let ((go, hold), (begins, begun)) = (mpsc::channel::<()>(), mpsc::channel());
        let job = move || {
            begins.send(()).unwrap();
            hold.recv().is_ok()
        };
        drop(pool.run(job).unwrap());
        begun.recv().unwrap();
        (pool, go, Arc::default())
    }

    fn note(pool: &ThreadPool, notes: &Arc<Mutex<Vec<u32>>>, number: u32) -> Io<Result<u32, BlockError>> {
        let notes = Arc::clone(notes);
        pool.io(move || {
            notes.lock().unwrap().push(number);
            Ok(number)
        })
    }

    #[tokio::test]
    async fn an_owner_with_a_thousand_jobs_delays_another_by_one() {
        let (pool, go, notes) = held(ThreadPool::new("file-test", Bound::One));
        let [flood, other] = [(); 2].map(|()| Owner::new());
        let mut jobs: Vec<_> = {
            let _entered = flood.enter();
            (0..1000).map(|number| note(&pool, &notes, number)).collect()
        };
        {
            let _entered = other.enter();
            jobs.extend([1000, 1001].map(|number| note(&pool, &notes, number)));
        }
        drop(go);
        for job in jobs {
            job.await.unwrap();
        }
        assert_eq!(notes.lock().unwrap()[..6], [0, 1000, 1, 1001, 2, 3]);
    }

    /// Lost were seconds of every session's 4 KiB writes while one wrote a pattern to a slow disk: each thread waited
    /// for room, also those that others needed for what needs none.
    #[tokio::test]
    async fn jobs_that_wait_for_room_hold_no_thread() {
        let pool = pool();
        let write_back = Arc::new(WriteBack::new());
        pool.wait_for(&write_back);
        assert!(
            write_back.note(OwnerKey::NONE.group(), u64::MAX / 2),
            "more than any disk takes in time, and a pass is under way"
        );
        let waiting: Vec<_> = (0..100).map(|index| pool.io_cached(4096, move || Ok(index))).collect();
        for index in 0..10 {
            assert_eq!(pool.io(move || Ok(index)).await, Ok(index), "it needs no room");
        }
        assert_eq!(pool.shared.lock().jobs.len(), 100);
        write_back.cleaned(write_back.mark());
        for (index, job) in waiting.into_iter().enumerate() {
            assert_eq!(job.await, Ok(index));
        }
    }

    #[tokio::test]
    async fn jobs_that_wait_for_room_go_with_their_owner() {
        let pool = pool();
        let write_back = Arc::new(WriteBack::new());
        pool.wait_for(&write_back);
        write_back.note(OwnerKey::NONE.group(), u64::MAX / 2);
        let owner = Owner::new();
        let waiting = {
            let _entered = owner.enter();
            pool.io_cached(4096, || Ok(()))
        };
        owner.leave();
        assert_eq!(waiting.await, Err(BlockError::lost()));
        assert_eq!((pool.pending(), pool.shared.lock().jobs.len()), (0, 0));
    }

    #[tokio::test]
    async fn work_in_pieces_has_other_owners_turns_between() {
        let (pool, go, notes) = held(ThreadPool::new("file-test", Bound::One));
        let [long, other] = [(); 2].map(|()| Owner::new());
        let work = {
            let _entered = long.enter();
            let (notes, mut left) = (Arc::clone(&notes), 3);
            pool.io_in_pieces(move || {
                notes.lock().unwrap().push(1000 + left);
                left -= 1;
                if left == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
            })
        };
        let _entered = other.enter();
        let jobs = [1, 2].map(|number| note(&pool, &notes, number));
        drop(go);
        work.await.unwrap();
        for job in jobs {
            job.await.unwrap();
        }
        assert_eq!(*notes.lock().unwrap(), [1003, 1, 1002, 2, 1001]);
    }

    #[tokio::test]
    async fn a_host_with_64_sessions_delays_a_neighbour_by_one_job_to_a_turn() {
        let (pool, go, notes) = held(ThreadPool::new("file-test", Bound::One));
        let job = |owner: &Owner, number| {
            let _entered = owner.enter();
            note(&pool, &notes, number)
        };
        let sessions = (0..64).map(|_| Owner::in_groups(["", "host"]));
        let mut jobs: Vec<_> =
            sessions.flat_map(|session| [0, 1, 2, 3].map(|number| job(&session, number))).collect();
        let neighbour = Owner::in_groups(["", "neighbour"]);
        jobs.extend([1000, 1001, 1002].map(|number| job(&neighbour, number)));
        drop(go);
        for job in jobs {
            job.await.unwrap();
        }
        assert_eq!(notes.lock().unwrap()[..6], [0, 1000, 0, 1001, 0, 1002]);
    }

    #[tokio::test]
    async fn what_has_not_begun_of_an_owner_who_leaves_is_dropped_and_what_has_is_carried_out() {
        let (pool, go, notes) = held(ThreadPool::new("file-test", Bound::One));
        let [gone, stays] = [(); 2].map(|()| Owner::new());
        let of = |owner: &Owner, number| {
            let _entered = owner.enter();
            note(&pool, &notes, number)
        };
        let dropped: Vec<_> = (0..100).map(|number| of(&gone, number)).collect();
        let kept = of(&stays, 200);
        assert_eq!(pool.pending(), 102);
        gone.leave();
        // The thread hangs meanwhile: nothing but the poll drops them.
        for job in dropped {
            assert_eq!(job.await, Err(BlockError::lost()));
        }
        assert_eq!(pool.pending(), 2);
        assert!(matches!(of(&gone, 300), Io::Ready(Err(BlockError::Busy))), "later ones are refused");
        drop(go);
        assert_eq!(kept.await, Ok(200));
        assert_eq!(notes.lock().unwrap()[..], [200]);
    }

    #[tokio::test]
    async fn flushes_are_carried_out_whoever_asked_for_them() {
        let (pool, go, notes) = held(ThreadPool::new("file-test", Bound::One).in_one_line());
        let owner = Owner::new();
        let flush = {
            let _entered = owner.enter();
            note(&pool, &notes, 1)
        };
        owner.leave();
        drop(go);
        assert_eq!(flush.await, Ok(1));
    }

    #[test]
    fn threads_are_divided_among_the_devices_and_end_with_theirs() {
        assert_eq!([1, 64, 128, 1000].map(share), [16, 16, 8, 2]);
        let pool = pool();
        let shared = Arc::downgrade(&pool.shared);
        drop(pool.run(|| ()).unwrap());
        drop(pool);
        let gone = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            shared.upgrade().is_none()
        });
        assert!(gone, "a thread outlives its device");
    }
}
