//! Session: the state behind its lock, and the answer to one command, to come.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use lunway_block::BlockError;
use lunway_iscsi::initiator::InitiatorConnection;
use lunway_scsi::{AccessState, Lun};
use tokio::sync::Notify;

use super::SessionState;
use super::slots::{Command, Outcome, Stage};
use crate::SessionOptions;
use crate::observer::{SessionEvent, SharedObserver};

/// Session state that the callers of a device share with its driver, behind one lock. It is held for a few hundred
/// nanoseconds per command, and for the system calls of the driver.
///
/// A command enters from any thread: it takes a slot and goes to the core at once if the window is open, else into the
/// queue. Nothing is sent by the caller: it rouses the driver, which finds everything that came in meanwhile and sends
/// it with one vectored write. While the driver is awake, rousing it costs a store.
///
/// **Invariant**: every command without an answer is in exactly one place: the queue, the delayed list, the core, or
/// expired. Each of them ends by an answer, the end of the core, or a tick of the clock, so no caller waits for ever.
pub(crate) struct Session {
    state: Mutex<SessionState>,
    /// Told that the driver shall end.
    pub(crate) closing: Notify,
    /// Told that it has.
    pub(crate) ended: Notify,
    /// Told that an attempt to connect may succeed now.
    pub(crate) hope: Notify,
    /// The port that it leaves by is dead: an attempt to connect is in vain, and worse (see
    /// [`IscsiDevice::set_port_down`](crate::IscsiDevice::set_port_down)).
    port_down: AtomicBool,
    /// Told that the state of access of an inactive port may be another one now.
    pub(crate) look: Notify,
    /// Told, for who looks at the idle unit, that the driver shall end.
    pub(crate) leaving: Notify,
    observer: Option<SharedObserver>,
    /// The number of the session; the first is 1. Changed under the lock.
    epoch: AtomicU64,
}

impl Session {
    pub(crate) fn new(
        core: InitiatorConnection,
        address: String,
        lun: Lun,
        volatile: bool,
        options: &SessionOptions,
    ) -> Arc<Self> {
        let state = Mutex::new(SessionState::new(core, address, lun, volatile, options));
        Arc::new(Self {
            state,
            closing: Notify::new(),
            ended: Notify::new(),
            hope: Notify::new(),
            port_down: AtomicBool::new(false),
            look: Notify::new(),
            leaving: Notify::new(),
            observer: options.observer.clone(),
            epoch: AtomicU64::new(1),
        })
    }

    /// A panic elsewhere leaves the state whole: no code in here panics half way.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command.
    pub(crate) fn submit(self: &Arc<Self>, command: Command) -> Result<Ticket, BlockError> {
        self.submit_in(None, command)
    }

    /// Starts a command, if given an epoch only in the session of that number.
    pub(crate) fn submit_in(
        self: &Arc<Self>,
        epoch: Option<u64>,
        command: Command,
    ) -> Result<Ticket, BlockError> {
        let (token, waker) = {
            let mut state = self.lock();
            if epoch.is_some_and(|epoch| epoch != self.epoch()) {
                return Err(BlockError::gone("the session that it belongs to has ended"));
            }
            (state.enter(command)?, state.rouse())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(Ticket { session: self.clone(), token: Some(token) })
    }

    /// The number of the session there is, or of the last one.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A new connection, in a new session.
    pub(crate) fn connect(&self, core: InitiatorConnection, volatile: bool) {
        self.change(|state| {
            self.epoch.fetch_add(1, Ordering::AcqRel);
            state.connect(core, volatile, Instant::now());
        });
    }

    /// Asks the driver to drop the connection.
    pub(crate) fn sever(&self, why: &str) {
        let waker = {
            let mut state = self.lock();
            let Some(connection) = &mut state.connection else { return };
            connection.severed.get_or_insert_with(|| why.to_owned());
            state.rouse()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns `true` if attempts to connect are in vain.
    pub(crate) fn is_port_down(&self) -> bool {
        self.port_down.load(Ordering::Acquire)
    }

    pub(crate) fn set_port_down(&self, port_down: bool) {
        self.port_down.store(port_down, Ordering::Release);
    }

    /// Takes note of the state of access, and has it told.
    pub(crate) fn note_access(&self, access: AccessState) {
        let waker = {
            let mut state = self.lock();
            state.note_access(access);
            state.rouse()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns `true` if there is a connection that is not closing.
    pub(crate) fn is_up(&self) -> bool {
        let state = self.lock();
        state.connection.is_some() && !state.is_closing()
    }

    /// Returns `true` if there is an observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Tells the observer. Only the driver's task does, so that the order of events is that of their happening.
    pub(crate) fn tell(&self, event: SessionEvent) {
        if let Some(observer) = &self.observer {
            observer.happened(event);
        }
    }

    /// Tells what has happened since, as [`tell`](Self::tell).
    pub(crate) fn tell_news(&self) {
        let events = mem::take(&mut self.lock().deferred.events);
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// Asks the driver to log out and end, once no caller waits for an answer.
    pub(crate) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.life.close(BlockError::gone("it was closed"));
            state.rouse()
        };
        self.closing.notify_one();
        self.leaving.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// [`close`](Self::close), and waits for the end of it.
    pub(crate) async fn end(&self) {
        self.close();
        loop {
            let ended = self.ended.notified();
            if self.lock().life.has_ended() {
                return;
            }
            ended.await;
        }
    }

    /// Changes the state and wakes the callers that got an answer by it.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut SessionState) -> T) -> T {
        let (result, wakes) = {
            let mut state = self.lock();
            (f(&mut state), mem::take(&mut state.deferred.wakes))
        };
        wakes.into_iter().for_each(Waker::wake);
        result
    }
}

/// The answer to one command, to come. Dropped before, the answer is forgotten; the buffers stay with the core until
/// the target is done with them.
pub(crate) struct Ticket {
    session: Arc<Session>,
    token: Option<u64>,
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let gone = || Outcome::Failed(BlockError::lost());
        let Some(token) = self.token else { return Poll::Ready(gone()) };
        let mut state = self.session.lock();
        match state.slots.get_mut(token) {
            Some(entry) if !entry.is_answered() => {
                match &mut entry.waker {
                    Some(waker) if waker.will_wake(cx.waker()) => {}
                    waker => *waker = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            _ => {}
        }
        let entry = state.slots.remove(token);
        drop(state);
        self.token = None;
        Poll::Ready(match entry.map(|entry| entry.stage) {
            Some(Stage::Answered(outcome)) => outcome,
            _ => gone(),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            // Freed outside of the lock: it may hold megabytes.
            let entry = self.session.lock().forget(token);
            drop(entry);
        }
    }
}
