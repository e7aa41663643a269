//! Timer of a connection.

use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

/// Interval of checks whether the protocol core's timer may be looked at again.
const POSTPONEMENT: Duration = Duration::from_secs(1);

/// Timer that is moved only to earlier times, and set anew when it ends too early: so it is not touched for each PDU.
pub(super) struct Timer {
    sleep: Pin<Box<Sleep>>,
    /// Deadline of `sleep`, while it is waited for.
    armed: Option<Instant>,
    /// The core's timer is not looked at before.
    postponed: Option<Instant>,
}

impl Timer {
    pub(super) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), armed: None, postponed: None }
    }

    /// Arms it for this time, or before.
    pub(super) fn arm(&mut self, at: Instant) {
        if self.armed.is_none_or(|armed| at < armed) {
            self.sleep.as_mut().reset(at.into());
            self.armed = Some(at);
        }
    }

    /// The core is due at this time, if at all, but is not looked at while that is [postponed](Self::postpone).
    pub(super) fn arm_for_core(&mut self, at: Option<Instant>) {
        if let Some(at) = at.max(self.postponed) {
            self.arm(at);
        }
    }

    /// Postpones work that the core has due.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.postponed = Some(now + POSTPONEMENT);
    }

    /// Disarms it if it is due, and returns `true`; else the task is woken when it is.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.armed.is_some() && self.sleep.as_mut().poll(cx).is_ready();
        if due {
            (self.armed, self.postponed) = (None, None);
        }
        due
    }
}
