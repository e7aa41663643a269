//! One operation over several lanes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lunway_block::{BlockError, Fate, Io};

use super::attempt::start;
use super::core::{Flight, Shared};
use super::operation::Divisible;

type Answer<T> = Result<T, BlockError>;

/// One operation over several lanes: answered when all its parts are.
///
/// Each part is tried again by itself. If some fail, the others are waited for all the same, so that nothing of the
/// operation happens after its answer; then the worst error is the answer.
pub(super) struct Split<O: Divisible> {
    whole: Option<O>,
    parts: Vec<Part<O::Output>>,
}

enum Part<T> {
    Answered(Answer<T>),
    Pending(Pin<Box<dyn Future<Output = Answer<T>> + Send>>),
}

/// Starts an operation that was placed on several lanes.
pub(super) fn start_split<O: Divisible>(
    shared: &Arc<Shared>,
    whole: O,
    flights: Vec<Flight>,
) -> Io<Answer<O::Output>>
where
    O::Output: Unpin,
{
    let mut at = 0;
    let parts = flights
        .into_iter()
        .map(|flight| {
            let len = flight.piece.len;
            let part = whole.part(at, len);
            at += len;
            match start(shared, part, flight) {
                Io::Ready(answer) => Part::Answered(answer),
                Io::Pending(future) => Part::Pending(future),
            }
        })
        .collect();
    let mut split = Split { whole: Some(whole), parts };
    match split.answer() {
        Some(answer) => Io::Ready(answer),
        None => Io::Pending(Box::pin(split)),
    }
}

impl<O: Divisible> Split<O> {
    /// The answer, once all parts have theirs.
    fn answer(&mut self) -> Option<Answer<O::Output>> {
        if self.parts.iter().any(|part| matches!(part, Part::Pending(_))) {
            return None;
        }
        let (mut outputs, mut worst) = (Vec::with_capacity(self.parts.len()), None);
        for part in std::mem::take(&mut self.parts) {
            match part {
                Part::Answered(Ok(output)) => outputs.push(output),
                Part::Answered(Err(error))
                    if worst.as_ref().is_none_or(|worst| gravity(&error) > gravity(worst)) =>
                {
                    worst = Some(error);
                }
                _ => {}
            }
        }
        let whole = self.whole.take()?;
        Some(match worst {
            Some(error) => Err(error),
            None => Ok(whole.join(outputs)),
        })
    }
}

/// Rank of an error for the caller: an answer of the disk first, then an unknown outcome.
fn gravity(error: &BlockError) -> u8 {
    match error.fate() {
        Fate::NotDone => 0,
        Fate::Over | Fate::Unknown => 1,
        Fate::Answered => 2,
    }
}

impl<O: Divisible> Future for Split<O>
where
    O::Output: Unpin,
{
    type Output = Answer<O::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Eight at most: looking at all of them costs less than knowing which one was roused.
        for part in &mut self.parts {
            if let Part::Pending(future) = part
                && let Poll::Ready(answer) = future.as_mut().poll(cx)
            {
                *part = Part::Answered(answer);
            }
        }
        match self.answer() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}
