//! One-shot channel: a single answer from a thread to a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A pair: what is sent on one end wakes the other.
pub(crate) fn pair<T>() -> (Sender<T>, Answer<T>) {
    let slot = Arc::new(Slot(Mutex::new(State::Waiting(None))));
    (Sender { slot: Arc::clone(&slot) }, Answer { slot })
}

enum State<T> {
    Waiting(Option<Waker>),
    Sent(T),
    /// Nothing will come: the sender was dropped, or the answer taken.
    Over,
}

struct Slot<T>(Mutex<State<T>>);

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, end: State<T>) {
        let mut state = self.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = end;
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// The end that answers. Dropped unused, it answers `None`.
pub(crate) struct Sender<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Sender<T> {
    pub(crate) fn send(self, value: T) {
        self.slot.finish(State::Sent(value));
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.slot.finish(State::Over);
    }
}

/// The end that waits: a future of the answer, `None` if none will come.
pub(crate) struct Answer<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Answer<T> {
    /// The same, which calls `first` each time before it is waited for, and when it is dropped.
    pub(crate) fn after<F: Fn() + Unpin>(self, first: F) -> After<T, F> {
        After { first, answer: self }
    }
}

/// An answer before which something is done, see [`Answer::after`].
pub(crate) struct After<T, F: Fn()> {
    first: F,
    answer: Answer<T>,
}

impl<T, F: Fn() + Unpin> Future for After<T, F> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.first)();
        Pin::new(&mut self.answer).poll(cx)
    }
}

impl<T, F: Fn()> Drop for After<T, F> {
    fn drop(&mut self) {
        (self.first)();
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.slot.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Waiting(_) => {
                *state = State::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
            State::Sent(value) => Poll::Ready(Some(value)),
            State::Over => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[tokio::test]
    async fn an_answer_arrives_before_or_after_it_is_waited_for() {
        let (sender, answer) = pair();
        sender.send(1);
        assert_eq!(answer.await, Some(1));
        let (sender, answer) = pair();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            sender.send(2);
        });
        assert_eq!(answer.await, Some(2));
    }

    #[tokio::test]
    async fn a_sender_that_dies_answers_none() {
        let (sender, answer) = pair::<u8>();
        thread::spawn(move || drop(sender));
        assert_eq!(answer.await, None);
    }
}
