//! The hot path: an operation over one lane.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lunway_block::{BlockError, Fate, Io};

use super::core::{Flight, Shared};
use super::operation::Operation;
use super::retry::Retry;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, BlockError>> + Send>>;

/// The place that an operation takes on a lane, given back when it lands, however it does.
struct Landing {
    shared: Arc<Shared>,
    flight: Option<Flight>,
}

impl Landing {
    fn land(&mut self, ok: bool, leaves_unflushed: bool) -> Option<Flight> {
        let flight = self.flight.take()?;
        self.shared.lock().landed(&flight, ok, leaves_unflushed);
        Some(flight)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.shared.lock().dropped(&flight);
        }
    }
}

/// An operation that failed over a lane, to be tried again.
pub(super) struct Flown<O> {
    pub(super) operation: O,
    pub(super) flight: Flight,
    pub(super) fate: Fate,
    /// The disk or the port would not take it now.
    pub(super) busy: bool,
}

/// Outcome of sending an operation to its lane.
pub(super) enum Sent<O: Operation> {
    /// Answered: the disk's word, good or bad.
    Answered(Result<O::Output, BlockError>),
    /// The lane failed.
    Failed(Flown<O>),
    /// Under way.
    Flying(Flying<O>),
}

/// Sends an operation to where it was placed.
pub(super) fn send<O: Operation>(shared: Arc<Shared>, mut operation: O, flight: Flight) -> Sent<O> {
    let answer = operation.issue(shared.lanes[flight.piece.lane].device());
    let mut landing = Landing { shared, flight: Some(flight) };
    match answer {
        Io::Pending(answer) => {
            Sent::Flying(Flying { answer: Some(answer), landing, operation: Some(operation) })
        }
        Io::Ready(answer) => {
            let Some(flight) = landing.land(answer.is_ok(), operation.leaves_unflushed()) else {
                return Sent::Answered(Err(BlockError::lost()));
            };
            match judge(&landing.shared, operation, flight, answer) {
                Ok(answer) => Sent::Answered(answer),
                Err(flown) => Sent::Failed(flown),
            }
        }
    }
}

fn judge<O: Operation>(
    shared: &Shared,
    operation: O,
    flight: Flight,
    answer: Result<O::Answer, BlockError>,
) -> Result<Result<O::Output, BlockError>, Flown<O>> {
    match answer {
        Ok(answer) => Ok(Ok(O::output(answer, flight.origin()))),
        Err(error) => match shared.judge(&flight, &error) {
            Fate::Answered => Ok(Err(error)),
            fate => Err(Flown { operation, flight, fate, busy: error == BlockError::Busy }),
        },
    }
}

/// An operation on its way over one lane.
///
/// Dropped, it gives its place back. A change that is dropped goes on all the same; it is followed to its end, and
/// until then nothing is written over it ([`LateChanges`](super::late::LateChanges)).
pub(super) struct Flying<O: Operation> {
    answer: Option<Answer<O::Answer>>,
    landing: Landing,
    operation: Option<O>,
}

impl<O: Operation> Flying<O> {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.landing.shared
    }
}

impl<O: Operation> Future for Flying<O> {
    type Output = Result<Result<O::Output, BlockError>, Flown<O>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(future) = &mut this.answer else { return Poll::Pending };
        let answer = ready!(future.as_mut().poll(cx));
        this.answer = None;
        let Some(operation) = this.operation.take() else { return Poll::Pending };
        let Some(flight) = this.landing.land(answer.is_ok(), operation.leaves_unflushed()) else {
            return Poll::Pending;
        };
        Poll::Ready(judge(&this.landing.shared, operation, flight, answer))
    }
}

impl<O: Operation> Drop for Flying<O> {
    fn drop(&mut self) {
        if !O::CHANGES {
            return;
        }
        let (Some(answer), Some(operation)) = (self.answer.take(), self.operation.take()) else { return };
        let shared = self.landing.shared.clone();
        let landing = Landing { shared: shared.clone(), flight: self.landing.flight.take() };
        let number = shared.lock().late.add_dropped(operation.range());
        shared.runtime.clone().spawn(follow(Followed { shared, number }, landing, answer, operation));
    }
}

/// A change that was dropped. Should its lane never answer, or the runtime end, the range is free again with it.
struct Followed {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.shared.lock().late.answered(self.number);
        self.shared.changed.notify_waiters();
    }
}

async fn follow<O: Operation>(
    followed: Followed,
    mut landing: Landing,
    answer: Answer<O::Answer>,
    operation: O,
) {
    let answer = answer.await;
    // No caller was told that it is done, so no flush owes anything for it.
    let Some(flight) = landing.land(answer.is_ok(), false) else { return };
    if let Err(error) = answer
        && followed.shared.judge(&flight, &error) == Fate::Unknown
    {
        let epoch = followed.shared.epoch_to_settle(&flight);
        let lane = flight.piece.lane;
        followed.shared.may_come_late(operation.range(), lane, epoch);
    }
}

/// An operation as its caller holds it: over one lane, and if that fails, wherever else it takes.
///
/// This is the one allocation that an operation costs which is not ready at once.
pub(super) enum Attempt<O: Operation> {
    Flying(Flying<O>),
    /// The cold path. Boxed, so that it weighs nothing before.
    Retrying(Pin<Box<dyn Future<Output = Result<O::Output, BlockError>> + Send>>),
}

impl<O: Operation> Future for Attempt<O> {
    type Output = Result<O::Output, BlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                Self::Flying(flying) => match ready!(Pin::new(&mut *flying).poll(cx)) {
                    Ok(answer) => return Poll::Ready(answer),
                    Err(flown) => {
                        let retry = Retry::new(flying.shared().clone());
                        *self = Self::Retrying(Box::pin(retry.failed(flown)));
                    }
                },
                Self::Retrying(retry) => return retry.as_mut().poll(cx),
            }
        }
    }
}

/// Starts an operation that is one piece on a lane.
pub(super) fn start<O: Operation>(
    shared: &Arc<Shared>,
    operation: O,
    flight: Flight,
) -> Io<Result<O::Output, BlockError>> {
    match send(shared.clone(), operation, flight) {
        Sent::Answered(answer) => Io::Ready(answer),
        Sent::Flying(flying) => Io::Pending(Box::pin(Attempt::Flying(flying))),
        Sent::Failed(flown) => Io::pending(Retry::new(shared.clone()).failed(flown)),
    }
}
