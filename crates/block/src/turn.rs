//! Taking turns: many at once, or one alone.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A lock that is shared or held alone, awaited without a runtime. A waiter for being alone holds back those that come
/// later, so that it gets its turn.
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shared: usize,
    alone: bool,
    /// Waiting to be alone.
    alone_wanted: usize,
    waiting: VecDeque<Waker>,
}

/// A turn; it ends when this is dropped.
pub(crate) struct Held {
    turn: Arc<Turn>,
    alone: bool,
}

/// Counts one that waits to be alone, until it has its turn or gives up.
struct Wanted<'a>(&'a Turn);

impl Turn {
    /// A shared turn, if there is one at once.
    pub(crate) fn try_share(turn: &Arc<Self>) -> Option<Held> {
        let mut state = turn.state();
        let free = !state.alone && state.alone_wanted == 0;
        free.then(|| {
            state.shared += 1;
            Held { turn: Arc::clone(turn), alone: false }
        })
    }

    /// A shared turn.
    pub(crate) async fn share(turn: &Arc<Self>) -> Held {
        turn.until(|state| {
            let free = !state.alone && state.alone_wanted == 0;
            state.shared += usize::from(free);
            free
        })
        .await;
        Held { turn: Arc::clone(turn), alone: false }
    }

    /// The turn of one alone.
    pub(crate) async fn alone(turn: &Arc<Self>) -> Held {
        turn.state().alone_wanted += 1;
        let wanted = Wanted(turn);
        turn.until(|state| {
            let free = !state.alone && state.shared == 0;
            state.alone |= free;
            free
        })
        .await;
        drop(wanted);
        Held { turn: Arc::clone(turn), alone: true }
    }

    async fn until(&self, mut take: impl FnMut(&mut State) -> bool) {
        poll_fn(|context| {
            let mut state = self.state();
            if take(&mut state) {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiting.push_back(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// All look again: there are few, and a turn is short.
    fn rouse(mut state: MutexGuard<'_, State>) {
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.alone_wanted -= 1;
        Turn::rouse(state);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.turn.state();
        match self.alone {
            true => state.alone = false,
            false => state.shared -= 1,
        }
        // Those that share rouse others only as the last one: no other waiter can go on before.
        if state.shared == 0 {
            Turn::rouse(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_shared_or_alone_and_who_waits_to_be_alone_gets_its_turn() {
        let turn = Arc::new(Turn::default());
        let [one, other] = [(); 2].map(|()| Turn::try_share(&turn).unwrap());
        let alone = {
            let turn = Arc::clone(&turn);
            tokio::spawn(async move { Turn::alone(&turn).await })
        };
        tokio::task::yield_now().await;
        assert!(Turn::try_share(&turn).is_none(), "one waits to be alone");
        drop((one, other));
        let held = alone.await.unwrap();
        let late = {
            let turn = Arc::clone(&turn);
            tokio::spawn(async move { Turn::share(&turn).await })
        };
        tokio::task::yield_now().await;
        assert!(!late.is_finished());
        drop(held);
        drop(late.await.unwrap());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_to_be_alone_holds_nobody_back() {
        let turn = Arc::new(Turn::default());
        let held = Turn::try_share(&turn).unwrap();
        let waiting = {
            let turn = Arc::clone(&turn);
            tokio::spawn(async move { Turn::alone(&turn).await })
        };
        tokio::task::yield_now().await;
        waiting.abort();
        let _ = waiting.await;
        assert!(Turn::try_share(&turn).is_some());
        drop(held);
    }
}
