//! Time slices of long work on a thread that serves many.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};

use crate::fair_queue::FairQueue;
use crate::owner::Owner;

/// Bytes of a command that need no time slice: 10 µs of copying, as long as a round trip's work of the processor.
const FREE_BYTES: u64 = 64 << 10;

/// Time slices of long work of the processor: memory that is copied, compared or cleared.
///
/// Each [`poll`](Self::poll) that is ready permits one slice, a tenth of a millisecond of work. On a thread that
/// [hands out time slices](hand_out_time_slices), one is given between two looks at its sockets, whichever connection
/// and command it belongs to, and [owners](Owner) take turns: however many commands are long, a short one waits for the
/// slice that has begun. On any other thread, what is ready goes first between two slices.
#[derive(Debug, Default)]
pub struct TimeSlices {
    begun: bool,
    /// Bytes of work since the last slice, or since the beginning.
    spent: u64,
    ticket: Option<u64>,
}

/// The time slices of a thread.
#[derive(Debug)]
struct State {
    /// `true` if the thread [hands them out](hand_out_time_slices).
    handed_out: bool,
    /// The slice of this round is taken.
    taken: bool,
    waiting: FairQueue<u64>,
    /// Of the tickets that wait; without one, a ticket has its turn or was given up.
    wakers: HashMap<u64, Waker>,
    last_ticket: u64,
    /// Waker of the task that hands them out, while it waits for the first one.
    giver: Option<Waker>,
}

thread_local! {
    static SLICES: RefCell<State> = RefCell::new(State::new());
}

impl TimeSlices {
    /// Work that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ready when the next slice may be used.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let first = !std::mem::replace(&mut self.begun, true);
        if let Some(ticket) = self.ticket {
            // What a waker drops may be a task with slices of its own: not while this thread's are borrowed.
            let replaced = SLICES.with_borrow_mut(|state| state.replace_waker(ticket, cx.waker()));
            if replaced.is_some() {
                return Poll::Pending;
            }
            self.ticket = None;
            return Poll::Ready(());
        }
        match SLICES.with_borrow_mut(|state| state.take(first, cx.waker())) {
            Taken::Slice(giver) => {
                if let Some(giver) = giver {
                    giver.wake();
                }
                Poll::Ready(())
            }
            Taken::Ticket(ticket) => {
                self.ticket = Some(ticket);
                Poll::Pending
            }
        }
    }

    /// Waits until the next slice may be used.
    pub async fn next(&mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Waits for the next slice, unless this work is so short with what went before that it needs none.
    pub async fn spend(&mut self, bytes: u64) {
        let spent = self.spent.saturating_add(bytes);
        self.spent = if spent <= FREE_BYTES {
            spent
        } else {
            self.next().await;
            bytes
        };
    }
}

/// Answer to work that asks for a slice.
enum Taken {
    /// The slice; who hands them out is woken, if it waits for that.
    Slice(Option<Waker>),
    Ticket(u64),
}

impl State {
    fn new() -> Self {
        Self {
            handed_out: false,
            taken: false,
            waiting: FairQueue::new(usize::MAX),
            wakers: HashMap::new(),
            last_ticket: 0,
            giver: None,
        }
    }

    fn take(&mut self, first: bool, waker: &Waker) -> Taken {
        if self.handed_out && !self.taken {
            self.taken = true;
            return Taken::Slice(self.giver.take());
        }
        if !self.handed_out && first {
            return Taken::Slice(None);
        }
        self.last_ticket += 1;
        if self.handed_out {
            // There is a place for every ticket of 64 bits.
            let _ = self.waiting.push(Owner::current_key(), self.last_ticket);
            self.wakers.insert(self.last_ticket, waker.clone());
        } else {
            waker.wake_by_ref();
        }
        Taken::Ticket(self.last_ticket)
    }

    /// The waker before, if the ticket waits.
    fn replace_waker(&mut self, ticket: u64, waker: &Waker) -> Option<Waker> {
        self.wakers.get_mut(&ticket).map(|before| std::mem::replace(before, waker.clone()))
    }

    /// Gives the next ticket its turn.
    fn give(&mut self) -> Option<Waker> {
        while let Some(ticket) = self.waiting.pop() {
            if let Some(waker) = self.wakers.remove(&ticket) {
                return Some(waker);
            }
        }
        self.taken = false;
        None
    }
}

impl Drop for TimeSlices {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // A thread that ends may have lost its slices already.
            let _ = SLICES.try_with(|state| state.borrow_mut().wakers.remove(&ticket));
        }
    }
}

/// Hands out the [slices](TimeSlices) of this thread, one after each `between`, which lets other tasks go on and looks
/// at the thread's sockets. Never ends; when it is dropped, work goes on as on any other thread. One future does it for
/// a thread: a second one does nothing.
pub async fn hand_out_time_slices<F: Future<Output = ()>>(between: impl Fn() -> F) {
    struct Given;
    impl Drop for Given {
        fn drop(&mut self) {
            let waiting = SLICES.try_with(|state| std::mem::replace(&mut *state.borrow_mut(), State::new()));
            waiting.into_iter().flat_map(|state| state.wakers).for_each(|(_, waker)| waker.wake());
        }
    }
    if SLICES.with_borrow_mut(|state| std::mem::replace(&mut state.handed_out, true)) {
        return std::future::pending().await;
    }
    let _given = Given;
    loop {
        poll_fn(|cx| {
            SLICES.with_borrow_mut(|state| {
                state.giver = (!state.taken).then(|| cx.waker().clone());
                if state.taken { Poll::Ready(()) } else { Poll::Pending }
            })
        })
        .await;
        between().await;
        if let Some(waker) = SLICES.with_borrow_mut(State::give) {
            waker.wake();
        }
    }
}

/// Does a part of `work` in each of its [slices](TimeSlices), until that is ready.
pub async fn in_time_slices<T>(mut work: impl FnMut() -> Poll<T>) -> T {
    let mut slices = TimeSlices::new();
    poll_fn(move |cx| {
        loop {
            ready!(slices.poll(cx));
            if let Poll::Ready(done) = work() {
                return Poll::Ready(done);
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Work of some slices, which writes down its name at each.
    async fn work(name: u64, steps: usize, done: Arc<Mutex<Vec<u64>>>) {
        let mut left = steps;
        let owner = Owner::new();
        let mut work = Box::pin(in_time_slices(move || {
            done.lock().unwrap().push(name);
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }));
        poll_fn(|cx| {
            let _entered = owner.enter();
            work.as_mut().poll(cx)
        })
        .await;
    }

    #[tokio::test]
    async fn one_slice_is_given_between_two_looks_and_owners_take_turns() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let giver = tokio::spawn(hand_out_time_slices(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now()
        }));
        tokio::task::yield_now().await;
        let done = Arc::new(Mutex::new(Vec::new()));
        let all: Vec<_> = (0..3).map(|name| tokio::spawn(work(name, 4, Arc::clone(&done)))).collect();
        for task in all {
            task.await.unwrap();
        }
        let done = done.lock().unwrap().clone();
        assert_eq!(done.len(), 12);
        assert!(looks.load(Ordering::Relaxed) >= 11, "{looks:?} between 12 slices");
        assert!(done[1..10].windows(2).all(|two| two[0] != two[1]), "one owner after another: {done:?}");
        giver.abort();
    }

    #[tokio::test]
    async fn work_goes_on_where_slices_are_not_handed_out_and_when_that_ends() {
        let done = Arc::new(Mutex::new(Vec::new()));
        work(1, 3, Arc::clone(&done)).await;
        let giver = tokio::spawn(hand_out_time_slices(std::future::pending));
        tokio::task::yield_now().await;
        let stuck = tokio::spawn(work(2, 3, Arc::clone(&done)));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(!stuck.is_finished());
        giver.abort();
        stuck.await.unwrap();
        assert_eq!(*done.lock().unwrap(), [1, 1, 1, 2, 2, 2]);
    }

    #[tokio::test]
    async fn work_that_is_given_up_keeps_no_turn() {
        let giver = tokio::spawn(hand_out_time_slices(tokio::task::yield_now));
        tokio::task::yield_now().await;
        let done = Arc::new(Mutex::new(Vec::new()));
        let [one, other] = [1, 2].map(|name| tokio::spawn(work(name, 100, Arc::clone(&done))));
        tokio::task::yield_now().await;
        one.abort();
        other.await.unwrap();
        giver.abort();
        assert_eq!(SLICES.with_borrow(|state| state.wakers.len()), 0);
    }
}
