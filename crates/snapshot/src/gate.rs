//! The gate of changes: they are counted while under way, and held for a while.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;

use crate::fleece::{Fleece, FleeceError};
use crate::fleeces::Fleeces;

/// The bit of the count that says that nothing may enter.
const SHUT: u64 = 1 << 63;

/// Reason why changes could not be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// Changes under way have not ended, or what was to be done meanwhile has not, within the time.
    #[error("the disk was not at rest within {} ms: a change was under way for longer", .0.as_millis())]
    Late(Duration),
    /// Somebody else holds them.
    #[error("another snapshot of the disk is being made")]
    Busy,
    /// There is no thread to watch the deadline.
    #[error("no thread could be started to watch the deadline")]
    NoThread,
}

/// Changes of a device: those under way, and those that wait.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Changes under way, and [`SHUT`].
    count: AtomicU64,
    state: Mutex<HoldState>,
}

#[derive(Debug, Default)]
struct HoldState {
    /// The number of the present hold; 0: none.
    hold: u64,
    last: u64,
    /// Of changes that wait.
    waiting: Vec<Waker>,
    /// Of the owner of the hold.
    owner: Option<Waker>,
}

/// A change under way; it ends when this is dropped.
pub(crate) struct Inside(Arc<Gate>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, HoldState> {
        // Every change of it is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change, unless changes are held. It ends with [`leave`](Self::leave).
    pub(crate) fn enter(&self) -> bool {
        let open = self.count.fetch_add(1, SeqCst) & SHUT == 0;
        if !open {
            self.leave();
        }
        open
    }

    /// The end of a change.
    pub(crate) fn leave(&self) {
        if self.count.fetch_sub(1, SeqCst) == SHUT | 1 {
            let owner = self.state().owner.take();
            owner.into_iter().for_each(Waker::wake);
        }
    }

    /// A change that was counted, as a value.
    pub(crate) fn inside(gate: &Arc<Self>) -> Inside {
        Inside(Arc::clone(gate))
    }

    /// Counts a change as soon as changes are not held.
    pub(crate) async fn wait(gate: &Arc<Self>) -> Inside {
        poll_fn(|context| {
            loop {
                if gate.enter() {
                    return Poll::Ready(());
                }
                let mut state = gate.state();
                if state.hold != 0 {
                    if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                        state.waiting.push(context.waker().clone());
                    }
                    return Poll::Pending;
                }
            }
        })
        .await;
        Inside(Arc::clone(gate))
    }

    fn release(&self, hold: u64) {
        let mut state = self.state();
        if state.hold != hold {
            return;
        }
        state.hold = 0;
        self.count.fetch_and(!SHUT, SeqCst);
        let wakers: Vec<_> =
            std::mem::take(&mut state.waiting).into_iter().chain(state.owner.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Changes of a device are held, until this is dropped or its time is over, whichever comes first.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
    device: Arc<dyn Held>,
    number: u64,
    limit: Duration,
    watch: Arc<Watch>,
}

/// Parts of a layer that a hold needs.
pub(crate) trait Held: std::fmt::Debug + Send + Sync {
    fn inner(&self) -> &Arc<dyn BlockDevice>;
    fn fleeces(&self) -> &Fleeces;
}

/// The thread that ends a hold by its deadline.
#[derive(Debug, Default)]
struct Watch {
    over: Mutex<bool>,
    ended: Condvar,
}

impl Watch {
    fn end(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.notify_one();
    }

    fn run(&self, until: Instant) {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        while !*over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (over, _) = self.ended.wait_timeout(over, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Hold {
    /// Shuts the gate. What is under way has not ended yet.
    pub(crate) fn shut(gate: &Arc<Gate>, device: Arc<dyn Held>, limit: Duration) -> Result<Self, HoldError> {
        let number = {
            let mut state = gate.state();
            if state.hold != 0 {
                return Err(HoldError::Busy);
            }
            state.last += 1;
            state.hold = state.last;
            gate.count.fetch_or(SHUT, SeqCst);
            state.hold
        };
        let watch = Arc::<Watch>::default();
        let hold = Self { gate: Arc::clone(gate), device, number, limit, watch: Arc::clone(&watch) };
        let (gate, until) = (Arc::clone(gate), Instant::now() + limit);
        let watching = thread::Builder::new().name("hold".to_owned()).spawn(move || {
            watch.run(until);
            gate.release(number);
        });
        watching.map(|_| hold).map_err(|_| HoldError::NoThread)
    }

    /// Waits until nothing is under way.
    ///
    /// # Errors
    ///
    /// [`HoldError::Late`].
    pub async fn at_rest(&self) -> Result<(), HoldError> {
        self.during(poll_fn(|context| {
            let mut state = self.gate.state();
            if self.gate.count.load(SeqCst) & !SHUT == 0 {
                return Poll::Ready(());
            }
            state.owner = Some(context.waker().clone());
            drop(state);
            // The last one may have left before it was known whom to wake.
            match self.gate.count.load(SeqCst) & !SHUT {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }))
        .await
    }

    /// Waits for something while changes are held.
    ///
    /// # Errors
    ///
    /// [`HoldError::Late`]: the time was over first.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> Result<T, HoldError> {
        let mut work = pin!(work);
        poll_fn(|context: &mut Context<'_>| {
            if !self.note(context) {
                return Poll::Ready(Err(HoldError::Late(self.limit)));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Asks to be woken at the end of the hold. `false`: it has come.
    fn note(&self, context: &Context<'_>) -> bool {
        let mut state = self.gate.state();
        let held = state.hold == self.number;
        if held {
            state.owner = Some(context.waker().clone());
        }
        held
    }

    /// Puts a fleece in the way of changes, from the next one on.
    ///
    /// # Errors
    ///
    /// [`HoldError::Late`]: changes are not held any more.
    pub fn begin(&self, fleece: &Arc<Fleece>) -> Result<(), HoldError> {
        // Under the lock under which a hold ends.
        let state = self.gate.state();
        if state.hold != self.number {
            return Err(HoldError::Late(self.limit));
        }
        self.device.fleeces().add(fleece);
        drop(state);
        Ok(())
    }

    /// A fleece for the device as it is now, with a place for what is copied: not in the way of changes yet.
    ///
    /// # Errors
    ///
    /// As [`Fleece::new`].
    pub fn fleece(&self, area: Arc<dyn BlockDevice>) -> Result<Arc<Fleece>, FleeceError> {
        Fleece::new(Arc::clone(self.device.inner()), area)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gate.release(self.number);
        self.watch.end();
    }
}
