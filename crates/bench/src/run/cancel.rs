//! Ending a run early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to end early, from anywhere. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Creates an unused handle.
    pub fn new() -> Self {
        Self::default()
    }

    /// The run stops issuing within 100 ms, waits up to a second for what is in flight, and gives its partial outcome.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Tells whether cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
