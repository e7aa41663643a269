//! Operations under way, and the end of all of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

const CLOSED: usize = 1;
/// One operation, in the same number.
const ONE: usize = 2;

/// Counts operations under way and refuses new ones once it is closed: two atomic operations for each.
#[derive(Default)]
pub(crate) struct Gate {
    /// Operations under way, times two, and whether it is closed.
    state: AtomicUsize,
    /// For the one thread that waits for the last of them.
    lock: Mutex<()>,
    idle: Condvar,
}

impl Gate {
    /// Begins an operation, unless the gate is closed.
    pub(crate) fn enter(&self) -> bool {
        let open = self.state.fetch_add(ONE, Ordering::AcqRel) & CLOSED == 0;
        if !open {
            self.leave();
        }
        open
    }

    /// Ends an operation.
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(ONE, Ordering::AcqRel) == ONE | CLOSED {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.idle.notify_all();
        }
    }

    /// Lets no further operation begin.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Waits until none is under way. Only after [`close`](Self::close).
    pub(crate) fn wait(&self) {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.state.load(Ordering::Acquire) != CLOSED {
            held = self.idle.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn the_end_waits_for_the_last_operation_and_lets_none_begin() {
        let gate = Arc::new(Gate::default());
        assert!(gate.enter() && gate.enter());
        gate.close();
        assert!(!gate.enter(), "closed");
        gate.leave();
        let waits = Arc::clone(&gate);
        let waiter = thread::spawn(move || waits.wait());
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished(), "one is under way");
        gate.leave();
        waiter.join().unwrap();
    }
}
