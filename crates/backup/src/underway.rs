//! Units under way: read, compared and written side by side, and taken in the order of the disk.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::stream::{FuturesOrdered, StreamExt};

use crate::error::Result;

/// Work on one unit.
type Job<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Units under way.
pub struct Underway<'a, T> {
    jobs: FuturesOrdered<Job<'a, T>>,
    units: VecDeque<u32>,
}

impl<T> Default for Underway<'_, T> {
    fn default() -> Self {
        Self { jobs: FuturesOrdered::new(), units: VecDeque::new() }
    }
}

impl<'a, T> Underway<'a, T> {
    /// Begins a unit, which lies behind all that are under way.
    pub fn push(&mut self, unit: u32, job: impl Future<Output = Result<T>> + 'a) {
        self.jobs.push_back(Box::pin(job));
        self.units.push_back(unit);
    }

    /// Waits for the first one; `None` if there is none.
    pub async fn next(&mut self) -> Option<Result<T>> {
        let done = self.jobs.next().await;
        self.units.pop_front();
        done
    }

    /// Units that are under way.
    #[expect(clippy::len_without_is_empty, reason = "it is compared with a limit")]
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// The first one: all units before it have been taken.
    pub(crate) fn first(&self) -> Option<u32> {
        self.units.front().copied()
    }
}
