//! `io_uring`, where it is allowed.
#![expect(
    unsafe_code,
    reason = "the kernel reads and writes memory by address: see `Transfer` for why it stays valid"
)]

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use lunway_block::{BlockError, Buf, Durability, SharedBuf};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::answer::{Answer, Sender, pair};
use crate::collector;
use crate::transfer::meaning;

/// Operations that the kernel has at once; more wait their turn. The queue depth at which an NVMe disk is
/// busy.
const DEPTH: usize = 128;
/// The most that one operation moves, bytes; the kernel's own limit is just below 2 GiB.
const LEN_MAX: usize = 1 << 30;
/// How often one operation is started again after a transient answer, before that becomes its answer.
const RETRIES_MAX: u32 = 100;
/// Waits after the kernel had no memory for an operation: up to 100 times this, then the next submission
/// takes it along.
const PAUSE: Duration = Duration::from_millis(1);

/// A thread's ring: made at its first use, gone when the thread is and nothing is under way.
///
/// Callers put operations in under a lock, which nobody else wants, and submit them at once, so that an operation costs its caller
/// one system call and no thread switch. A [`collector`] takes what is done, starts the rest of short transfers, and wakes the
/// tasks: normally a task of the caller's own runtime.
///
/// **Invariants.** At most [`DEPTH`] operations are with the kernel, one per slot, so neither of its queues can overflow. Only who
/// holds `state` looks at either queue. What is in a slot stays there until its completion has come, and while a slot is taken
/// there is a collector, which keeps the ring alive.
pub(crate) struct Ring {
    ring: IoUring,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Option<Transfer>>,
    free: Vec<usize>,
    waiting: VecDeque<Transfer>,
    /// Somebody collects.
    collected: bool,
    /// What is over, between two collections: kept for its memory.
    over: Vec<(Transfer, Result<(), BlockError>)>,
}

/// One operation, and everything that the kernel needs to be there until it is done.
///
/// The file and the memory are owned here and nowhere else does anybody get at them mutably: `Buf` is unique,
/// and a `SharedBuf` is never written. Their bytes lie on the heap and do not move with the handle. A caller
/// that drops its answer drops no part of this, and nobody drops a ring that has work.
struct Transfer {
    file: Arc<OwnedFd>,
    offset: u64,
    done: usize,
    retries: u32,
    memory: Memory,
}

enum Memory {
    Read(Buf, Sender<Result<Buf, BlockError>>),
    Write(SharedBuf, Durability, Sender<Result<(), BlockError>>),
}

/// What a completion means for its transfer.
enum Next {
    /// Go on, behind what is done.
    Again,
    Over(Result<(), BlockError>),
}

impl Ring {
    /// Whether there are rings, else why not: found out at first use, and logged once.
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
        ring.submitter().register_probe(&mut known).map_err(|error| failed("asking what it can", &error))?;
        if !known.is_supported(opcode::Read::CODE) || !known.is_supported(opcode::Write::CODE) {
            return Err("it cannot read and write".to_owned());
        }
        let state = State {
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).collect(),
            waiting: VecDeque::new(),
            collected: false,
            over: Vec::new(),
        };
        Ok(Self { ring, state: Mutex::new(state) })
    }

    /// Reads into `buf` behind its first `done` bytes, from `offset` + `done` of the file.
    pub(crate) fn read(
        self: &Arc<Self>,
        file: Arc<OwnedFd>,
        offset: u64,
        buf: Buf,
        done: usize,
    ) -> Answer<Result<Buf, BlockError>> {
        let (sender, answer) = pair();
        self.start(Transfer { file, offset, done, retries: 0, memory: Memory::Read(buf, sender) });
        answer
    }

    /// Writes `data` behind its first `done` bytes, at `offset` + `done` of the file.
    pub(crate) fn write(
        self: &Arc<Self>,
        file: Arc<OwnedFd>,
        offset: u64,
        data: SharedBuf,
        done: usize,
        durability: Durability,
    ) -> Answer<Result<(), BlockError>> {
        let (sender, answer) = pair();
        self.start(Transfer {
            file,
            offset,
            done,
            retries: 0,
            memory: Memory::Write(data, durability, sender),
        });
        answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, transfer: Transfer) {
        let collected = {
            let mut state = self.lock();
            state.waiting.push_back(transfer);
            self.fill(&mut state);
            self.submit(&mut state);
            mem::replace(&mut state.collected, true)
        };
        if !collected {
            collector::start(self);
        }
    }

    /// The collector goes; true if it must not, because operations are under way.
    pub(crate) fn is_needed(&self) -> bool {
        let mut state = self.lock();
        state.collected = state.free.len() < DEPTH;
        state.collected
    }

    /// Gives waiting transfers to the kernel while there are slots.
    fn fill(&self, state: &mut State) {
        while let Some(slot) = state.free.pop() {
            let Some(transfer) = state.waiting.pop_front() else {
                state.free.push(slot);
                return;
            };
            self.push(state, slot, transfer);
        }
    }

    /// Puts a transfer into its slot and its operation into the submission queue.
    fn push(&self, state: &mut State, slot: usize, mut transfer: Transfer) {
        let entry = transfer.entry().user_data(slot as u64);
        state.slots[slot] = Some(transfer);
        // SAFETY: the lock on `state` is held, so this is the only view of the submission queue. The memory
        // and the file of the operation are owned by the transfer, which stays in its slot until the
        // completion has come.
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        debug_assert!(pushed.is_ok(), "one entry per slot, and as many entries as slots");
        if pushed.is_err() {
            let transfer = state.slots[slot].take();
            state.free.push(slot);
            transfer.into_iter().for_each(|transfer| transfer.finish(Err(BlockError::Busy)));
        }
    }

    /// Tells the kernel. The lock is held so that nobody adds entries meanwhile.
    fn submit(&self, _state: &mut State) {
        for _ in 0..RETRIES_MAX {
            // SAFETY: as in `push`; a fresh view sees what the kernel has taken.
            if unsafe { self.ring.submission_shared().is_empty() } {
                return;
            }
            if let Err(error) = self.ring.submit()
                && error.kind() != io::ErrorKind::Interrupted
            {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Waits until something is done.
    pub(crate) fn wait(&self) {
        // The flag's value is fixed by the kernel's interface: `IORING_ENTER_GETEVENTS`.
        const GET_EVENTS: u32 = 1;
        // SAFETY: no argument is passed, and nothing is submitted.
        let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GET_EVENTS, None) };
        if let Err(error) = entered
            && error.kind() != io::ErrorKind::Interrupted
        {
            thread::sleep(PAUSE);
        }
    }

    /// Takes what is done, and goes on with what waits.
    pub(crate) fn collect(&self) {
        let mut state = self.lock();
        let mut over = mem::take(&mut state.over);
        // SAFETY: the lock on `state` is held, so this is the only view of the completion queue.
        for completion in unsafe { self.ring.completion_shared() } {
            let slot = completion.user_data() as usize;
            let Some(mut transfer) = state.slots.get_mut(slot).and_then(Option::take) else { continue };
            match transfer.advance(completion.result()) {
                Next::Again => self.push(&mut state, slot, transfer),
                Next::Over(result) => {
                    state.free.push(slot);
                    over.push((transfer, result));
                }
            }
        }
        self.fill(&mut state);
        self.submit(&mut state);
        drop(state);
        // Without the lock: who is woken may come back at once.
        over.drain(..).for_each(|(transfer, result)| transfer.finish(result));
        self.lock().over = over;
    }
}

/// A ring as something that a runtime waits for: readable while completions are there.
pub(crate) struct Completions(Arc<Ring>);

impl Completions {
    /// Registers with the runtime of the calling thread.
    pub(crate) fn of(ring: &Arc<Ring>) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the descriptor is the ring's, which this owns a part of: it is the same one and open until the `AsyncFd` is gone.
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
        match &mut self.memory {
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
                sender.send(result);
            }
        }
    }
}
