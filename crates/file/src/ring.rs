//! `io_uring`, where it is allowed.
#![expect(
    unsafe_code,
    reason = "the kernel reads and writes memory by address: see `Transfer` for why it stays valid"
)]

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use lunway_block::{BlockError, Buf, Durability, FairQueue, Owner, OwnerKey, SharedBuf};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::answer::{Answer, Sender, pair};
use crate::collector;
use crate::handle::{Handle, Placement};
use crate::transfer::meaning;
use crate::workers::unless_gone;

/// Operations of one device that the kernel has at once; more wait their turn. The queue depth at which an NVMe disk is
/// busy.
const DEPTH: usize = 128;
/// Operations that the kernel is told of together while others are under way: it tells a virtual disk of them once,
/// which takes up to 60 µs. 4 KiB writes at depth 32 are 10 % faster than if each is told of by itself, reads 3 %; more
/// at a time gain nothing more.
const BATCH: usize = 8;
/// Operations of one device that wait for one of these: as many as for its threads, see `workers`.
const WAITING_MAX: usize = 4096;
/// Threads that the kernel may start for operations of one of our threads that it cannot begin without waiting; by
/// default it takes four per core, which one hung disk would have all. Enough for eight disks that hang with all of
/// their operations in this state.
const KERNEL_THREADS: u32 = 8 * DEPTH as u32;
/// The most that one operation moves, bytes; the kernel's own limit is just below 2 GiB.
const LEN_MAX: usize = 1 << 30;
/// Number of times that one operation is restarted after a transient answer, before that becomes its answer.
const RETRIES_MAX: u32 = 100;
/// Number of times in a row that the kernel is offered operations: signals may interrupt it, and it may have no memory
/// for a moment.
const OFFERS: u32 = 4;
/// Pause of a thread after the kernel had no memory for an operation, before it is offered again.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// A thread's ring: made at its first use, gone when the thread is and nothing is under way.
///
/// Callers put operations in under an uncontended lock and submit them, so that an operation costs its caller one
/// system call at most and no thread switch: at once where nothing is under way, else with others of the same round, by
/// the time that one of their answers is asked for, or dropped. A [`collector`] takes what is done, starts the rest of
/// short transfers, and wakes the tasks: normally a task of the caller's own runtime.
///
/// **Isolation.** A thread's devices share its ring and nothing in it: each has [`DEPTH`] operations with the kernel at
/// most and a bounded queue of its own for more, so that one whose disk does not answer takes no other's places. In
/// that queue the device's owners take turns, and what waits of an owner who is gone is dropped.
///
/// **Invariants.** An operation with the kernel has a slot; slots are made as they are needed. The submission queue is
/// emptied by each submission, and when it is full; what the kernel has no memory for stays in it, and a thread sees to
/// it that it is offered again, so that no caller waits for that. Completions that find no room the kernel keeps until
/// they are asked for. Only who holds `state` looks at either queue. What is in a slot stays there until its completion
/// has come, and while a slot is taken there is a collector, which keeps the ring alive.
pub(crate) struct Ring {
    ring: IoUring,
    state: Mutex<State>,
    /// The submission queue has operations that wait for others. Set by the thread that puts them in; who has their
    /// answers has seen it.
    keeps: AtomicBool,
    /// The kernel takes nothing.
    #[cfg(test)]
    refuses: AtomicBool,
}

struct State {
    slots: Vec<Option<Transfer>>,
    free: Vec<usize>,
    /// By device, while it has operations.
    devices: HashMap<u64, Turn>,
    /// Somebody collects.
    collected: bool,
    /// The kernel has not taken what is in the submission queue, and a thread offers it again.
    offered_later: bool,
    /// Transfers that ended between two collections: kept for its memory.
    over: Vec<(Transfer, Result<(), BlockError>)>,
}

impl State {
    /// The kernel took no operation; what waits for another one to end still does, unless there is none.
    fn refuse(&mut self, transfer: Transfer) {
        let device = transfer.device;
        self.over.push((transfer, Err(BlockError::Busy)));
        let Some(turn) = self.devices.get_mut(&device) else { return };
        turn.under_way -= 1;
        if turn.under_way == 0
            && let Some(turn) = self.devices.remove(&device)
        {
            let Turn { mut waiting, .. } = turn;
            self.over.extend(waiting.drain().map(|transfer| (transfer, Err(BlockError::Busy))));
        }
    }
}

/// Transfers of one device in a ring.
struct Turn {
    /// With the kernel.
    under_way: usize,
    waiting: FairQueue<Transfer>,
}

impl Default for Turn {
    fn default() -> Self {
        Self { under_way: 0, waiting: FairQueue::new(WAITING_MAX) }
    }
}

/// Transfer: an operation, and everything that the kernel needs to stay in place until it is done.
///
/// The file and the memory are owned here and nowhere else does anybody get at them mutably: `Buf` is unique,
/// and a `SharedBuf` is never written. Their bytes lie on the heap and do not move with the handle. A caller
/// that drops its answer drops no part of this, and a ring is not dropped that has work.
struct Transfer {
    device: u64,
    file: Arc<Handle>,
    offset: u64,
    done: usize,
    retries: u32,
    memory: Memory,
}

enum Memory {
    Read(Buf, Sender<Result<Buf, BlockError>>),
    Write(SharedBuf, Durability, Sender<Result<(), BlockError>>),
}

/// Next step of a transfer after a completion.
enum Next {
    /// Go on, behind what is done.
    Again,
    Over(Result<(), BlockError>),
}

impl Ring {
    /// Tells whether there are rings, else why not: determined at first use, and logged once.
    pub(crate) fn allowed() -> Result<(), &'static str> {
        static ALLOWED: OnceLock<Result<(), String>> = OnceLock::new();
        let allowed = ALLOWED.get_or_init(|| {
            let probed = Self::probe().map(drop);
            match &probed {
                Ok(()) => tracing::info!("io_uring is allowed: direct file I/O uses it"),
                Err(why) => tracing::info!("io_uring is not available ({why}): file I/O uses threads"),
            }
            probed
        });
        allowed.as_ref().copied().map_err(String::as_str)
    }

    /// The calling thread's; `None` if the kernel has no memory for another one.
    pub(crate) fn here() -> Option<Arc<Self>> {
        thread_local! {
            static RING: OnceCell<Option<Arc<Ring>>> = const { OnceCell::new() };
        }
        let get = |ring: &OnceCell<Option<Arc<Self>>>| {
            ring.get_or_init(|| Self::probe().ok().map(Arc::new)).clone()
        };
        RING.try_with(get).ok().flatten()
    }

    /// Makes a ring and sends an empty operation round it: containers forbid either step.
    fn probe() -> Result<Self, String> {
        let failed = |step: &str, error: &io::Error| format!("{step}: {error}");
        let mut ring = IoUring::new(DEPTH as u32).map_err(|error| failed("setting up", &error))?;
        let nop = opcode::Nop::new().build();
        // SAFETY: the operation refers to no memory.
        let pushed = unsafe { ring.submission().push(&nop) };
        pushed.map_err(|_| "the ring has no room".to_owned())?;
        ring.submit_and_wait(1).map_err(|error| failed("entering", &error))?;
        match ring.completion().next().map(|completion| completion.result()) {
            Some(0) => {}
            other => return Err(format!("an empty operation came back as {other:?}")),
        }
        // The plain read and write are younger than the ring itself (Linux 5.6).
        let mut known = Probe::new();
        ring.submitter()
            .register_probe(&mut known)
            .map_err(|error| failed("querying its operations", &error))?;
        if !known.is_supported(opcode::Read::CODE) || !known.is_supported(opcode::Write::CODE) {
            return Err("it cannot read and write".to_owned());
        }
        // Kernels before 5.15 do not know it, and start four threads per core.
        let _ = ring.submitter().register_iowq_max_workers(&mut [KERNEL_THREADS, 0]);
        let state = State {
            slots: Vec::new(),
            free: Vec::new(),
            devices: HashMap::new(),
            collected: false,
            offered_later: false,
            over: Vec::new(),
        };
        Ok(Self {
            ring,
            state: Mutex::new(state),
            keeps: AtomicBool::new(false),
            #[cfg(test)]
            refuses: AtomicBool::new(false),
        })
    }

    /// Reads into `buf` behind its first `done` bytes, from `offset` + `done` of the file of `device`.
    pub(crate) fn read(
        self: &Arc<Self>,
        device: u64,
        file: Arc<Handle>,
        offset: u64,
        buf: Buf,
        done: usize,
    ) -> impl Future<Output = Option<Result<Buf, BlockError>>> + Send + use<> {
        let (sender, answer) = pair();
        let memory = Memory::Read(buf, sender);
        self.begin(Transfer { device, file, offset, done, retries: 0, memory }, answer)
    }

    /// Writes `data` at `offset` of the file of `device`.
    pub(crate) fn write(
        self: &Arc<Self>,
        device: u64,
        file: Arc<Handle>,
        offset: u64,
        data: SharedBuf,
        durability: Durability,
    ) -> impl Future<Output = Option<Result<(), BlockError>>> + Send + use<> {
        let (sender, answer) = pair();
        let memory = Memory::Write(data, durability, sender);
        self.begin(Transfer { device, file, offset, done: 0, retries: 0, memory }, answer)
    }

    /// Starts a transfer for the owner that the thread works for.
    fn begin<T: Send>(
        self: &Arc<Self>,
        transfer: Transfer,
        answer: Answer<T>,
    ) -> impl Future<Output = Option<T>> + Send + use<T> {
        let (owner, device) = (Owner::current(), transfer.device);
        match owner.as_ref() {
            Some(owner) if owner.is_gone() => transfer.finish(Err(BlockError::Busy)),
            owner => self.start(owner.map_or(OwnerKey::NONE, Owner::key), transfer),
        }
        let ring = Arc::clone(self);
        let answer = answer.after(move || ring.submit_kept());
        let ring = Arc::downgrade(self);
        unless_gone(owner, answer, move |owner| {
            if let Some(ring) = ring.upgrade() {
                ring.forget(device, owner);
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what waits of an owner, which answers it.
    fn forget(&self, device: u64, owner: OwnerKey) {
        let dropped = self.lock().devices.get_mut(&device).map(|turn| turn.waiting.remove(owner));
        let dropped = dropped.into_iter().flatten();
        dropped.for_each(|transfer| transfer.finish(Err(BlockError::lost())));
    }

    fn start(self: &Arc<Self>, owner: OwnerKey, transfer: Transfer) {
        let (collected, refused, later) = {
            let mut state = self.lock();
            let mut later = false;
            let turn = state.devices.entry(transfer.device).or_default();
            if turn.under_way < DEPTH {
                turn.under_way += 1;
                self.take(&mut state, transfer);
                later = self.submit_some(&mut state);
            } else if let Err(transfer) = turn.waiting.push(owner, transfer) {
                drop(state);
                return transfer.finish(Err(BlockError::Busy));
            }
            let refused = if state.over.is_empty() { Vec::new() } else { mem::take(&mut state.over) };
            (mem::replace(&mut state.collected, true), refused, later)
        };
        refused.into_iter().for_each(|(transfer, result)| transfer.finish(result));
        if !collected {
            collector::start(self);
        }
        if later {
            collector::offer_later(self);
        }
    }

    /// The collector goes; true if it must not, because operations are under way.
    pub(crate) fn is_needed(&self) -> bool {
        let mut state = self.lock();
        state.collected = state.free.len() < state.slots.len();
        state.collected
    }

    /// Puts a transfer into a slot, and its operation into the submission queue.
    fn take(&self, state: &mut State, transfer: Transfer) {
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(None);
            state.slots.len() - 1
        });
        self.push(state, slot, transfer);
    }

    /// An operation of a device is over: the next one of the same has its place.
    fn advance(&self, state: &mut State, device: u64) {
        let Some(turn) = state.devices.get_mut(&device) else { return };
        if let Some(transfer) = turn.waiting.pop() {
            return self.take(state, transfer);
        }
        turn.under_way -= 1;
        if turn.under_way == 0 {
            state.devices.remove(&device);
        }
    }

    /// Puts a transfer into its slot and its operation into the submission queue.
    fn push(&self, state: &mut State, slot: usize, mut transfer: Transfer) {
        let entry = transfer.entry().user_data(slot as u64);
        state.slots[slot] = Some(transfer);
        // SAFETY: the lock on `state` is held, so this is the only view of the submission queue. The memory
        // and the file of the operation are owned by the transfer, which stays in its slot until the
        // completion has come.
        let mut pushed = unsafe { self.ring.submission_shared().push(&entry) };
        if pushed.is_err() {
            // Full: the kernel takes what is there.
            self.offer();
            // SAFETY: as above.
            pushed = unsafe { self.ring.submission_shared().push(&entry) };
        }
        if pushed.is_err() {
            let Some(transfer) = state.slots[slot].take() else { return };
            state.free.push(slot);
            state.refuse(transfer);
        }
    }

    /// Tells the kernel of an operation that was put in, or keeps it for the next ones. Answers as
    /// [`submit`](Self::submit).
    fn submit_some(&self, state: &mut State) -> bool {
        let under_way = state.slots.len() - state.free.len();
        // SAFETY: the lock on `state` is held, so this is the only view of the submission queue.
        let kept = unsafe { self.ring.submission_shared().len() };
        if under_way == 1 || kept >= BATCH {
            return self.submit(state);
        }
        self.keeps.store(true, Ordering::Relaxed);
        false
    }

    /// Tells the kernel of the operations that were kept.
    fn submit_kept(self: &Arc<Self>) {
        if self.keeps.load(Ordering::Relaxed) && self.submit(&mut self.lock()) {
            collector::offer_later(self);
        }
    }

    /// Tells the kernel. True: it has not taken everything, and the caller has a thread [offer](Self::offer_again) it
    /// later, when the lock is free.
    fn submit(&self, state: &mut State) -> bool {
        self.keeps.store(false, Ordering::Relaxed);
        !self.offer() && !mem::replace(&mut state.offered_later, true)
    }

    /// Offers again what the kernel has not taken. False: it still has not.
    pub(crate) fn offer_again(&self) -> bool {
        let mut state = self.lock();
        let taken = self.offer();
        state.offered_later = !taken;
        taken
    }

    /// Offers what is in the submission queue to the kernel, and says whether it has taken that. The lock on `state` is
    /// held so that no caller adds entries meanwhile.
    fn offer(&self) -> bool {
        // SAFETY: as in `push`; a fresh view sees what the kernel has taken.
        let is_taken = || unsafe { self.ring.submission_shared().is_empty() };
        #[cfg(test)]
        if self.refuses.load(Ordering::SeqCst) {
            return is_taken();
        }
        (0..OFFERS).any(|_| is_taken() || self.ring.submit().is_ok() && is_taken())
    }

    /// Waits until something is done.
    pub(crate) fn wait(&self) {
        self.enter(1);
    }

    /// Waits for so many completions.
    fn enter(&self, completions: u32) {
        // The flag's value is fixed by the kernel's interface: `IORING_ENTER_GETEVENTS`.
        const GET_EVENTS: u32 = 1;
        // SAFETY: no argument is passed, and nothing is submitted.
        let entered =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, completions, GET_EVENTS, None) };
        if let Err(error) = entered
            && error.kind() != io::ErrorKind::Interrupted
        {
            thread::sleep(PAUSE);
        }
    }

    /// Takes what is done, and goes on with what waits.
    pub(crate) fn collect(self: &Arc<Self>) {
        let mut state = self.lock();
        // SAFETY: the lock on `state` is held, so this is the only view of the submission queue.
        if unsafe { self.ring.submission_shared().cq_overflow() } {
            // The kernel brings what it has kept when it is entered for completions.
            self.enter(0);
        }
        // SAFETY: the lock on `state` is held, so this is the only view of the completion queue.
        for completion in unsafe { self.ring.completion_shared() } {
            let slot = completion.user_data() as usize;
            let Some(mut transfer) = state.slots.get_mut(slot).and_then(Option::take) else { continue };
            match transfer.advance(completion.result()) {
                Next::Again => self.push(&mut state, slot, transfer),
                Next::Over(result) => {
                    state.free.push(slot);
                    let device = transfer.device;
                    state.over.push((transfer, result));
                    self.advance(&mut state, device);
                }
            }
        }
        let later = self.submit(&mut state);
        let mut over = mem::take(&mut state.over);
        drop(state);
        if later {
            collector::offer_later(self);
        }
        // Without the lock: who is woken may come back at once.
        over.drain(..).for_each(|(transfer, result)| transfer.finish(result));
        let mut state = self.lock();
        if state.over.is_empty() {
            state.over = over;
        }
    }
}

/// A ring as something that a runtime waits for: readable while completions are there.
pub(crate) struct Completions(Arc<Ring>);

impl Completions {
    /// Registers with the runtime of the calling thread.
    pub(crate) fn of(ring: &Arc<Ring>) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the descriptor is the ring's, which this owns a part of: it is the same one and open until the
        // `AsyncFd` is gone.
        let watched = unsafe { AsyncFd::register_with_interest(Self(Arc::clone(ring)), Interest::READABLE) };
        watched.map_err(|error| error.into_parts().1)
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.0
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        self.0.ring.as_raw_fd()
    }
}

impl Transfer {
    fn entry(&mut self) -> squeue::Entry {
        let file = types::Fd(self.file.as_raw_fd());
        let offset = self.offset + self.done as u64;
        let entry = match &mut self.memory {
            Memory::Read(buf, _) => {
                let rest = &mut buf[self.done..];
                let len = rest.len().min(LEN_MAX) as u32;
                opcode::Read::new(file, rest.as_mut_ptr(), len).offset(offset).build()
            }
            Memory::Write(data, durability, _) => {
                let rest = &data[self.done..];
                let len = rest.len().min(LEN_MAX) as u32;
                let flags = if *durability == Durability::Stable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(file, rest.as_ptr(), len).offset(offset).rw_flags(flags).build()
            }
        };
        match self.file.placement() {
            // FUSE waits for a place in its own queue when it is told not to wait: a kernel thread does.
            Placement::Remote => entry.flags(squeue::Flags::ASYNC),
            Placement::Memory | Placement::Local => entry,
        }
    }

    fn len(&self) -> usize {
        match &self.memory {
            Memory::Read(buf, _) => buf.len(),
            Memory::Write(data, ..) => data.len(),
        }
    }

    /// Takes a completion's result: bytes moved, or an error number below 0.
    fn advance(&mut self, result: i32) -> Next {
        let at = self.offset + self.done as u64;
        match usize::try_from(result) {
            // The end of a file that was cut, see `transfer::read_fully`.
            Ok(0) => Next::Over(Err(BlockError::Medium { offset: at })),
            Ok(count) => {
                self.done += count;
                if self.done < self.len() { Next::Again } else { Next::Over(Ok(())) }
            }
            Err(_) => {
                let errno = Errno::from_raw_os_error(-result);
                // Canceled: the thread that submitted it has ended. From here it is this thread's.
                let transient = matches!(errno, Errno::AGAIN | Errno::INTR | Errno::CANCELED);
                self.retries += 1;
                match transient && self.retries <= RETRIES_MAX {
                    true => Next::Again,
                    false => Next::Over(Err(meaning(errno, at))),
                }
            }
        }
    }

    fn finish(self, result: Result<(), BlockError>) {
        match self.memory {
            Memory::Read(buf, sender) => sender.send(result.map(|()| buf)),
            Memory::Write(data, _, sender) => {
                drop(data);
                sender.send(if self.done > 0 { result.map_err(BlockError::after_a_part) } else { result });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Placement;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    fn handle(file: impl Into<OwnedFd>) -> Arc<Handle> {
        Arc::new(Handle::new(file.into(), true, Placement::Local).unwrap().0)
    }

    /// Reads of a pipe without a writer are as good as those of a disk that does not answer.
    #[test]
    fn a_device_whose_operations_hang_is_bounded_and_takes_no_place_of_another_in_the_same_ring() {
        if Ring::allowed().is_err() {
            return;
        }
        let (reader, mut writer) = io::pipe().unwrap();
        let (hung, other) = (handle(reader), tempfile::tempfile().unwrap());
        other.set_len(512).unwrap();
        let other = handle(other);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ring = Ring::here().unwrap();
            let read = |id, file: &Arc<Handle>| ring.read(id, Arc::clone(file), 0, Buf::zeroed(512), 0);
            let hanging: Vec<_> = (0..DEPTH + WAITING_MAX).map(|_| read(1, &hung)).collect();
            assert_eq!(read(1, &hung).await.unwrap().unwrap_err(), BlockError::Busy);
            for _ in 0..2 * DEPTH {
                let answer = tokio::time::timeout(Duration::from_secs(20), read(2, &other)).await;
                answer.expect("the other device waits").unwrap().unwrap();
            }
            // What waited is done when the disk answers.
            let count = hanging.len();
            thread::spawn(move || (0..count).for_each(|_| writer.write_all(&[7; 512]).unwrap()));
            for answer in hanging {
                assert_eq!(answer.await.unwrap().unwrap()[0], 7);
            }
        });
    }

    #[test]
    fn what_waits_for_other_operations_begins_when_an_answer_is_asked_for_or_dropped() {
        if Ring::allowed().is_err() {
            return;
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 8 * 512]).unwrap();
        let device = handle(file.try_clone().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ring = Ring::here().unwrap();
            let write = |sector: u64| {
                let data = Buf::copy_of(&[7; 512]).freeze();
                ring.write(1, Arc::clone(&device), sector * 512, data, Durability::Volatile)
            };
            let is_kept = || ring.keeps.load(Ordering::SeqCst);
            let first = write(0);
            assert!(!is_kept(), "with nothing under way it begins at once");
            let (second, third) = (write(1), write(2));
            assert!(is_kept());
            drop(third);
            assert!(!is_kept());
            let fourth = write(3);
            assert!(is_kept());
            fourth.await.unwrap().unwrap();
            assert!(!is_kept());
            first.await.unwrap().unwrap();
            second.await.unwrap().unwrap();
            // The third has no one who waits for it.
            let written = |sector: u64| {
                let mut sectors = [0; 512];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut sectors, sector * 512).unwrap();
                sectors == [7; 512]
            };
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while !written(2) && std::time::Instant::now() < deadline {
                tokio::time::sleep(PAUSE).await;
            }
            assert!((0..4).all(written) && !written(4));
        });
    }

    #[test]
    fn what_the_kernel_has_no_memory_for_waits_without_its_caller_and_is_done_later() {
        if Ring::allowed().is_err() {
            return;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(512).unwrap();
        let file = handle(file);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ring = Ring::here().unwrap();
            let refuses = |refuses| ring.refuses.store(refuses, Ordering::SeqCst);
            refuses(true);
            let reads: Vec<_> =
                (0..2 * DEPTH).map(|_| ring.read(1, Arc::clone(&file), 0, Buf::zeroed(512), 0)).collect();
            tokio::time::sleep(Duration::from_millis(300)).await;
            refuses(false);
            // Nothing else is asked of the ring.
            for read in reads {
                let answer = tokio::time::timeout(Duration::from_secs(20), read).await;
                answer.expect("it was forgotten").unwrap().unwrap();
            }
            assert!(!ring.lock().offered_later);
        });
    }
}
