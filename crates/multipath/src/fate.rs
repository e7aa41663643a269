//! What became of an operation that a lane did not finish.

use lunway_block::BlockError;

/// What an error of a lane says about the operation it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The disk itself answered: every other lane would bring the same.
    Answered,
    /// It was never sent: it may go down another lane at once.
    NotDone,
    /// The disk or the port would not take it now: it was not done, and may go down another lane at once.
    Busy,
    /// It may have happened, and cannot happen any more: it may go down another lane at once.
    Over,
    /// It may have happened, or may happen yet: a write must wait until the lane's session is
    /// [settled](crate::LaneEvent::Settled).
    Unknown,
}

impl Fate {
    /// Reads it from the error.
    pub fn of(error: &BlockError) -> Self {
        match error {
            BlockError::Gone { .. } => Self::NotDone,
            BlockError::Busy => Self::Busy,
            // Aborted by request after it was late, and the abort was confirmed.
            BlockError::Timeout { .. } => Self::Over,
            BlockError::Aborted => Self::Unknown,
            _ => Self::Answered,
        }
    }
}
