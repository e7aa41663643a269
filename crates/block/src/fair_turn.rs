//! A turn to do something that takes time: one at a time, and owners take turns.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::fair_queue::FairQueue;
use crate::owner::{Owner, OwnerKey};

/// A lock that is awaited: for changes of one thing that wait for a disk, or for commands that a limit lets begin one
/// after the other. Of those who wait, the next is that of the [owner](Owner) whose turn it is: by principal, host and
/// session. So a session with a window of changes delays one of another by the change under way and one of each turn.
#[derive(Debug, Default)]
pub struct FairTurn(Mutex<State>);

#[derive(Debug)]
struct State {
    taken: bool,
    /// Tickets of those who wait. Bounded by what transports let initiators have in flight.
    waiting: FairQueue<u64>,
    /// The same tickets; one that is not here has its turn.
    wakers: HashMap<u64, Option<Waker>>,
    last_ticket: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { taken: false, waiting: FairQueue::new(usize::MAX), wakers: HashMap::new(), last_ticket: 0 }
    }
}

impl State {
    /// The turn is free: gives it to the next who waits, who is to be woken.
    fn pass_on(&mut self) -> Option<Waker> {
        let next = self.waiting.pop();
        self.taken = next.is_some();
        next.and_then(|ticket| self.wakers.remove(&ticket)).flatten()
    }
}

/// The turn of a [`FairTurn`], or a place among those who wait for it; dropping it gives either up.
#[must_use = "the turn is over when this is dropped"]
#[derive(Debug)]
pub struct HeldTurn {
    of: Arc<FairTurn>,
    /// The owner and the ticket of one who had to wait.
    waited: Option<(OwnerKey, u64)>,
}

impl FairTurn {
    /// Waits for the turn, for the owner for whom the thread calls.
    pub async fn take(self: &Arc<Self>) -> HeldTurn {
        let turn = self.stand();
        poll_fn(|cx| turn.poll(cx)).await;
        turn
    }

    /// Takes the turn if no one has it.
    pub fn try_take(self: &Arc<Self>) -> Option<HeldTurn> {
        let taken = std::mem::replace(&mut self.state().taken, true);
        (!taken).then(|| HeldTurn { of: Arc::clone(self), waited: None })
    }

    fn stand(self: &Arc<Self>) -> HeldTurn {
        let mut state = self.state();
        let waits = std::mem::replace(&mut state.taken, true);
        let waited = waits.then(|| {
            state.last_ticket += 1;
            let (owner, ticket) = (Owner::current_key(), state.last_ticket);
            // There is a place for every ticket of 64 bits.
            let _ = state.waiting.push(owner, ticket);
            state.wakers.insert(ticket, None);
            (owner, ticket)
        });
        HeldTurn { of: Arc::clone(self), waited }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldTurn {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let Some((_, ticket)) = self.waited else { return Poll::Ready(()) };
        match self.of.state().wakers.get_mut(&ticket) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        let mut state = self.of.state();
        if let Some((owner, ticket)) = self.waited
            && state.wakers.remove(&ticket).is_some()
        {
            state.waiting.take(owner, |waiting| *waiting == ticket);
            return;
        }
        let next = state.pass_on();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use super::*;

    fn poll(future: Pin<&mut impl Future<Output = HeldTurn>>) -> Option<HeldTurn> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_window_of_one_owner_lets_another_go_second() {
        let turn = Arc::new(FairTurn::default());
        let [many, one] = [["many", "host"], ["one", "host"]].map(Owner::in_groups);
        let mut waiting: Vec<_> = (0..9).map(|_| Box::pin(turn.take())).collect();
        let first = {
            let _entered = many.enter();
            let first = poll(waiting.remove(0).as_mut());
            assert!(waiting.iter_mut().all(|next| poll(next.as_mut()).is_none()));
            first
        };
        let mut other = pin!(turn.take());
        {
            let _entered = one.enter();
            assert!(poll(other.as_mut()).is_none());
        }
        drop(first);
        assert!(poll(other.as_mut()).is_none(), "the oldest is first");
        drop(poll(waiting[0].as_mut()).expect("its turn"));
        drop(poll(other.as_mut()).expect("before the other seven"));
        assert!(waiting[1..].iter_mut().all(|next| poll(next.as_mut()).is_some()));
        let state = turn.state();
        assert!(!state.taken && state.waiting.is_empty() && state.wakers.is_empty());
    }

    #[test]
    fn a_turn_that_is_free_is_taken_at_once_and_only_then() {
        let turn = Arc::new(FairTurn::default());
        let first = turn.try_take();
        let mut waits = pin!(turn.take());
        assert!(first.is_some() && turn.try_take().is_none() && poll(waits.as_mut()).is_none());
        drop(first);
        assert!(turn.try_take().is_none(), "it is that of who waits");
        drop(poll(waits.as_mut()));
        assert!(turn.try_take().is_some());
    }

    #[test]
    fn who_gives_up_waiting_or_its_turn_keeps_nobody_out() {
        let turn = Arc::new(FairTurn::default());
        let held = poll(pin!(turn.take()));
        let [mut gives_up, mut unaware] = [(); 2].map(|()| Box::pin(turn.take()));
        let mut last = pin!(turn.take());
        assert!(poll(gives_up.as_mut()).is_none() && poll(unaware.as_mut()).is_none());
        assert!(poll(last.as_mut()).is_none());
        drop(gives_up);
        drop(held);
        // It has the turn and has not looked.
        drop(unaware);
        assert!(poll(last.as_mut()).is_some());
    }
}
