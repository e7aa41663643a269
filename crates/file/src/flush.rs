//! The memory that a flush failed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lunway_block::BlockError;

/// Runs the flushes of a file, and keeps an error until somebody was told.
///
/// The kernel tells each write-back error once per open file and then forgets it (`errseq_t`), to whichever
/// `fdatasync` comes first. Two flushes in flight, or a flush whose caller has gone away, would lose it. So
/// each flush takes a [`Ticket`] when it is issued; system calls run one at a time, and a failure is noted
/// before the next one starts. It belongs to every flush that was issued before it was found, and if none of
/// them is there any more to hear it, to the next.
///
/// One at a time costs nothing: a flush that was issued before a call started is covered by that call and
/// makes none of its own, so that many commits at once share the disk's work.
#[derive(Default)]
pub(crate) struct FlushState {
    tickets: Mutex<Inner>,
    /// Flushes up to this ticket have had their system call. Held while one runs.
    covered: Mutex<u64>,
}

#[derive(Default)]
struct Inner {
    issued: u64,
    /// Flushes up to this ticket fail.
    failed_up_to: u64,
    error: Option<BlockError>,
    /// The error has not been told to anybody yet.
    untold: bool,
}

/// Ticket of a flush, which tells when it was issued.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

impl FlushState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn issue(&self) -> Ticket {
        let mut inner = self.lock();
        inner.issued += 1;
        Ticket(inner.issued)
    }

    /// Makes the system call, unless one that started after the flush was issued has been made. Blocks.
    pub(crate) fn sync(&self, ticket: Ticket, call: impl FnOnce() -> Result<(), BlockError>) {
        let mut covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        if ticket.0 <= *covered {
            return;
        }
        let covers = self.lock().issued;
        if let Err(error) = call() {
            self.fail(error);
        }
        *covered = covers;
    }

    /// Records that earlier writes may be lost.
    pub(crate) fn fail(&self, error: BlockError) {
        let mut inner = self.lock();
        // The next flush is covered as well, until one has been told.
        inner.failed_up_to = inner.issued;
        inner.error = Some(error);
        inner.untold = true;
    }

    /// The verdict on a flush whose system call went well or whose failure was noted; called when the answer
    /// is handed over, and not before.
    pub(crate) fn tell(&self, ticket: Ticket) -> Result<(), BlockError> {
        let mut inner = self.lock();
        match &inner.error {
            Some(error) if inner.untold || ticket.0 <= inner.failed_up_to => {
                let error = error.clone();
                inner.untold = false;
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_covers_every_flush_that_was_issued_before_it() {
        let state = FlushState::default();
        let mut calls = 0;
        let (first, second) = (state.issue(), state.issue());
        for ticket in [second, first] {
            state.sync(ticket, || {
                calls += 1;
                Ok(())
            });
        }
        assert_eq!(calls, 1);
        let third = state.issue();
        state.sync(third, || Err(ERROR));
        assert_eq!([first, second, third].map(|ticket| state.tell(ticket).is_err()), [true; 3]);
        let fourth = state.issue();
        state.sync(fourth, || Ok(()));
        assert_eq!(state.tell(fourth), Ok(()));
    }

    const ERROR: BlockError = BlockError::Medium { offset: 0 };

    #[test]
    fn an_error_is_told_to_every_flush_that_was_under_way() {
        let state = FlushState::default();
        let (first, second) = (state.issue(), state.issue());
        state.fail(ERROR);
        assert_eq!(state.tell(second), Err(ERROR));
        assert_eq!(state.tell(first), Err(ERROR));
        let third = state.issue();
        assert_eq!(state.tell(third), Ok(()));
    }

    #[test]
    fn an_error_that_nobody_heard_waits_for_the_next_flush() {
        let state = FlushState::default();
        let _abandoned = state.issue();
        state.fail(ERROR);
        let next = state.issue();
        assert_eq!(state.tell(next), Err(ERROR));
        assert_eq!(state.tell(state.issue()), Ok(()));
    }
}
