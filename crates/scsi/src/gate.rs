//! The atomic gate of a logical unit.
//!
//! COMPARE AND WRITE, ORWRITE and WRITE ATOMIC read and write in one indivisible step (SBC-4): no other command
//! may touch the medium in between. Every medium access passes the gate: ordinary commands together, atomic ones alone. So do
//! commands with the attribute ORDERED, whatever they are: they begin when all older ones have ended, and younger ones wait.
//!
//! One word of state: a count of those inside and a bit that says closed. An ordinary command pays one compare and
//! swap on the way in and one subtraction on the way out. Who finds the gate closed waits as a future and retries when
//! woken. Those that wait stand in line, but only who wants to be alone cares for that: it does not go in before those that
//! came before it.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An atomic command is inside or waits for the others to leave.
const CLOSED: usize = 1;
/// One command inside.
const ONE: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicUsize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    wakers: Vec<Waker>,
    /// The numbers of those that are not inside yet.
    line: BTreeSet<u64>,
    next: u64,
}

/// A place in line, given up when it is dropped.
struct Place<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.gate.waiting().line.remove(&self.number);
        self.gate.wake();
    }
}

/// Permission to be inside with others; dropping it leaves.
#[derive(Debug)]
pub(crate) struct SharedPass<G: AsRef<Gate>>(G);

/// Permission to be inside alone; dropping it opens the gate.
#[derive(Debug)]
pub(crate) struct ExclusivePass<G: AsRef<Gate>>(G);

impl AsRef<Gate> for Gate {
    fn as_ref(&self) -> &Gate {
        self
    }
}

impl Gate {
    fn try_enter(&self) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & CLOSED == 0 {
            match self.state.compare_exchange_weak(state, state + ONE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Enters unless the gate is closed. The fast path: the pass borrows.
    pub(crate) fn try_shared(&self) -> Option<SharedPass<&Gate>> {
        // Lazily: a pass made in vain would leave without having entered.
        self.try_enter().then(|| SharedPass(self))
    }

    fn leave(&self) {
        if self.state.fetch_sub(ONE, Ordering::Release) == ONE | CLOSED {
            self.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut self.waiting().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn stand_in_line(&self) -> Place<'_> {
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.line.insert(number);
        Place { gate: self, number }
    }

    /// Closes the gate, unless it is closed or somebody who waits came before.
    fn close(&self, place: &Place<'_>) -> bool {
        self.waiting().line.first() == Some(&place.number)
            && self.state.fetch_or(CLOSED, Ordering::Acquire) & CLOSED == 0
    }

    /// Tries, registers, tries again: a change between the first try and the registration is seen by the second, one
    /// after it wakes.
    fn poll_until(&self, cx: &Context<'_>, attempt: impl Fn(&Self) -> bool) -> Poll<()> {
        if attempt(self) {
            return Poll::Ready(());
        }
        {
            let mut waiting = self.waiting();
            let wakers = &mut waiting.wakers;
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
        }
        if attempt(self) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Enters with others, once the gate is open.
pub(crate) async fn shared<T: AsRef<Gate>>(owner: Arc<T>) -> SharedPass<Owned<T>> {
    let owner = Owned(owner);
    if !owner.as_ref().try_enter() {
        let _place = owner.as_ref().stand_in_line();
        poll_fn(|cx| owner.as_ref().poll_until(cx, Gate::try_enter)).await;
    }
    SharedPass(owner)
}

/// Closes the gate, after those that waited before, and waits until all others have left. A caller that goes away while waiting opens it again.
pub(crate) async fn exclusive<T: AsRef<Gate>>(owner: Arc<T>) -> ExclusivePass<Owned<T>> {
    let owner = Owned(owner);
    {
        let place = owner.as_ref().stand_in_line();
        poll_fn(|cx| owner.as_ref().poll_until(cx, |gate| gate.close(&place))).await;
    }
    let pass = ExclusivePass(owner);
    let alone = |gate: &Gate| gate.state.load(Ordering::Acquire) == CLOSED;
    poll_fn(|cx| pass.0.as_ref().poll_until(cx, alone)).await;
    pass
}

/// A shared owner of a gate, so that a pass can outlive the call that took it.
#[derive(Debug)]
pub(crate) struct Owned<T>(Arc<T>);

impl<T: AsRef<Gate>> AsRef<Gate> for Owned<T> {
    fn as_ref(&self) -> &Gate {
        self.0.as_ref().as_ref()
    }
}

impl SharedPass<&Gate> {
    /// The same permission, for a command that goes on after the call.
    pub(crate) fn into_owned<T: AsRef<Gate>>(self, owner: Arc<T>) -> SharedPass<Owned<T>> {
        std::mem::forget(self);
        SharedPass(Owned(owner))
    }
}

impl<G: AsRef<Gate>> Drop for SharedPass<G> {
    fn drop(&mut self) {
        self.0.as_ref().leave();
    }
}

impl<G: AsRef<Gate>> Drop for ExclusivePass<G> {
    fn drop(&mut self) {
        let gate = self.0.as_ref();
        gate.state.fetch_and(!CLOSED, Ordering::Release);
        gate.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_atomic_command_waits_for_those_inside_and_keeps_others_out() {
        let gate = Arc::new(Gate::default());
        let inside = gate.try_shared().unwrap();
        let mut atomic = pin!(exclusive(gate.clone()));
        assert!(poll(atomic.as_mut()).is_pending());
        assert!(gate.try_shared().is_none());
        drop(inside);
        let Poll::Ready(pass) = poll(atomic.as_mut()) else { panic!("the gate is empty") };
        assert!(gate.try_shared().is_none());
        drop(pass);
        assert!(gate.try_shared().is_some());
    }

    #[test]
    fn an_atomic_command_dropped_while_waiting_opens_the_gate_again() {
        let gate = Arc::new(Gate::default());
        let inside = gate.try_shared().unwrap();
        {
            let mut atomic = pin!(exclusive(gate.clone()));
            assert!(poll(atomic.as_mut()).is_pending());
        }
        assert!(gate.try_shared().is_some());
        drop(inside);
        assert!(gate.try_shared().is_some());
    }

    #[test]
    fn who_wants_to_be_alone_lets_those_go_first_that_waited_before() {
        let gate = Arc::new(Gate::default());
        let mut first = pin!(exclusive(gate.clone()));
        let Poll::Ready(pass) = poll(first.as_mut()) else { panic!("the gate is empty") };
        let (mut older, mut alone) = (pin!(shared(gate.clone())), pin!(exclusive(gate.clone())));
        assert!(poll(older.as_mut()).is_pending() && poll(alone.as_mut()).is_pending());
        drop(pass);
        assert!(poll(alone.as_mut()).is_pending(), "one that came before is not inside yet");
        let Poll::Ready(pass) = poll(older.as_mut()) else { panic!("the gate is open") };
        assert!(poll(alone.as_mut()).is_pending() && gate.try_shared().is_none());
        drop(pass);
        assert!(poll(alone.as_mut()).is_ready());
    }

    #[test]
    fn an_owned_pass_counts_once() {
        let gate = Arc::new(Gate::default());
        let pass = gate.try_shared().unwrap().into_owned(gate.clone());
        let mut atomic = pin!(exclusive(gate));
        assert!(poll(atomic.as_mut()).is_pending());
        drop(pass);
        assert!(poll(atomic.as_mut()).is_ready());
    }

    #[test]
    fn nobody_meets_an_atomic_command_inside_and_nobody_is_forgotten() {
        let gate = Arc::new(Gate::default());
        let (alone, together) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let work = |thread: u32| {
            let (gate, alone, together) = (gate.clone(), alone.clone(), together.clone());
            let rounds = async move {
                for _ in 0..300 {
                    if thread.is_multiple_of(2) {
                        let _pass = exclusive(gate.clone()).await;
                        assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(together.load(Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        alone.fetch_sub(1, Ordering::SeqCst);
                    } else {
                        let _pass = shared(gate.clone()).await;
                        together.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(alone.load(Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        together.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            };
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime
                    .block_on(async { tokio::time::timeout(Duration::from_secs(20), rounds).await })
                    .unwrap();
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
