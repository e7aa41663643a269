//! Units under way: read, compared and written side by side, and taken in the order of the disk.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::stream::{FuturesOrdered, StreamExt};

use crate::error::Result;
use crate::journal::Counted;
use crate::leaf::UnitLeaves;

/// Work on one unit.
type Job<'a> = Pin<Box<dyn Future<Output = Result<(UnitLeaves, Counted)>> + 'a>>;

/// Units under way.
#[derive(Default)]
pub(crate) struct Underway<'a> {
    jobs: FuturesOrdered<Job<'a>>,
    units: VecDeque<u32>,
}

impl<'a> Underway<'a> {
    /// Begins a unit, which lies behind all that are under way.
    pub(crate) fn push(&mut self, unit: u32, job: impl Future<Output = Result<(UnitLeaves, Counted)>> + 'a) {
        self.jobs.push_back(Box::pin(job));
        self.units.push_back(unit);
    }

    /// Waits for the first one; `None` if there is none.
    pub(crate) async fn next(&mut self) -> Option<Result<(UnitLeaves, Counted)>> {
        let done = self.jobs.next().await;
        self.units.pop_front();
        done
    }

    pub(crate) fn len(&self) -> usize {
        self.units.len()
    }

    /// The first one: all units before it have been taken.
    pub(crate) fn first(&self) -> Option<u32> {
        self.units.front().copied()
    }
}
