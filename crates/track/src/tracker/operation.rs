//! Operations that change the disk.

use std::ops::Range;

/// Kind of change that an operation makes to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// May hold anything afterwards.
    Written,
    /// Reads as zeroes afterwards.
    Zeroed,
}

/// An operation that was let in; [`Tracker::end`](super::Tracker::end) takes it back.
#[derive(Debug)]
#[must_use = "the operation stays under way, and no epoch can be closed, until its end is told"]
pub struct Operation {
    pub(super) offset: u64,
    pub(super) end: u64,
    pub(super) regions: Range<u64>,
    /// Of an operation that zeroes: how many had begun in each region, if none was under way.
    pub(super) began: Vec<Option<u64>>,
}

/// Permission of an operation to change the disk.
#[derive(Debug)]
pub enum Begun {
    /// At once. `wake`: [`Tracker::commit`](super::Tracker::commit) has something to do that nothing waits for.
    Covered {
        /// For [`Tracker::end`](super::Tracker::end).
        operation: Operation,
        /// See above.
        wake: bool,
    },
    /// Permitted when [`Tracker::commit`](super::Tracker::commit) has returned a number that is not less.
    Waiting {
        /// For [`Tracker::end`](super::Tracker::end).
        operation: Operation,
        /// The number.
        ticket: u64,
    },
    /// Not now: an epoch is being closed. Begin again afterwards.
    Shut,
    /// Never: the tracker is closed.
    Closed,
    /// Never: it is beyond [`DISK_MAX`](crate::DISK_MAX).
    Beyond,
}

/// End of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Carried out.
    Done,
    /// Failed, or never reached the disk; nothing of it will happen any more.
    Failed,
    /// Nothing waits for its end any more: it may happen at any later time.
    Abandoned,
}
