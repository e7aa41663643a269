//! The gate before a device whose cache may have been lost.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// State of the device's cache at a moment, and the number of losses before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase(u64);

const CALM: u64 = 0;
const IN_DOUBT: u64 = 1;
const REPLAYING: u64 = 2;
/// The lower bits are one of the above, the upper ones count losses.
const KIND: u64 = 3;

impl Phase {
    /// Nothing is in doubt: what a read finds is what was written.
    pub(crate) fn is_calm(self) -> bool {
        self.0 & KIND == CALM
    }

    /// Number of times that data was lost and written again, or given up, so far.
    pub(crate) fn losses(self) -> u64 {
        self.0 >> 2
    }
}

/// The gate before a device whose cache may have been lost: changes pass it, except while older ones are written again.
///
/// For an operation it costs a count and a load. The phase is changed under the device's lock only.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    phase: AtomicU64,
    changes: AtomicUsize,
}

impl Gate {
    pub(crate) fn phase(&self) -> Phase {
        Phase(self.phase.load(Ordering::SeqCst))
    }

    fn set(&self, kind: u64, losses: u64) {
        self.phase.store(losses << 2 | kind, Ordering::SeqCst);
    }

    pub(crate) fn doubt(&self) {
        self.set(IN_DOUBT, self.phase().losses());
    }

    /// Lets no further change pass.
    pub(crate) fn close(&self) {
        self.set(REPLAYING, self.phase().losses());
    }

    /// Nothing is in doubt any more. `lost`: reads from before may have found what is not there any more.
    pub(crate) fn calm(&self, lost: bool) {
        self.set(CALM, self.phase().losses() + u64::from(lost));
    }

    /// A change wants to pass; if it may, it [leaves](Self::leave) when it has ended.
    pub(crate) fn enter(&self) -> bool {
        // Counted before looking, as `close` is before the count is looked at: one of both sees the other.
        self.changes.fetch_add(1, Ordering::SeqCst);
        let passes = self.phase.load(Ordering::SeqCst) & KIND != REPLAYING;
        if !passes {
            self.changes.fetch_sub(1, Ordering::SeqCst);
        }
        passes
    }

    /// A change has ended. Says whether somebody waits for the last one.
    pub(crate) fn leave(&self) -> bool {
        self.changes.fetch_sub(1, Ordering::SeqCst);
        self.phase.load(Ordering::SeqCst) & KIND == REPLAYING
    }

    /// Returns `true` if a change is in flight.
    pub(crate) fn is_occupied(&self) -> bool {
        self.changes.load(Ordering::SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_no_change_pass_and_waits_for_those_that_have() {
        let gate = Gate::default();
        assert!(gate.enter() && !gate.leave());
        assert!(gate.enter());
        gate.doubt();
        assert!(gate.enter(), "a doubt holds no change");
        gate.close();
        assert!(!gate.enter() && gate.is_occupied());
        assert!(gate.leave() && gate.leave());
        assert!(!gate.is_occupied());
        gate.calm(true);
        assert!(gate.enter() && gate.phase().is_calm());
        assert_eq!(gate.phase().losses(), 1);
    }
}
