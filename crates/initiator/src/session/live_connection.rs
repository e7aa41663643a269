//! Connection of a session while there is one: its protocol core, the watch over it, and its logout.

use std::time::{Duration, Instant};

use lunway_iscsi::initiator::InitiatorConnection;

use crate::connection::probe::{Kernel, Probe};
use crate::connection::silence::Watch;
use crate::session::traffic::Pings;

/// Connection of a session while there is one. What belongs to one connection ends with it.
pub(crate) struct LiveConnection {
    pub(crate) core: InitiatorConnection,
    /// `None` until the driver attends to the connection, and where the process has no descriptor left.
    pub(crate) probe: Option<Probe>,
    /// `None` where silence is not watched.
    pub(crate) watch: Option<Watch>,
    /// Response times of the target to pings.
    pub(crate) pings: Pings,
    /// It has carried out a command that reads, writes or flushes: a target that only says what it is has done nothing
    /// yet.
    pub(crate) carried_out: bool,
    /// Reason why it is to be dropped, where it is.
    pub(crate) severed: Option<String>,
    logout: Logout,
}

/// Logout of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logout {
    /// Neither asked for nor sent.
    None,
    /// Nothing new is sent; commands in flight may finish until then.
    DueBy(Instant),
    /// Sent; the target has to answer until then.
    Sent(Instant),
}

impl LiveConnection {
    pub(super) fn new(core: InitiatorConnection) -> Self {
        Self {
            core,
            probe: None,
            watch: None,
            pings: Pings::default(),
            carried_out: false,
            severed: None,
            logout: Logout::None,
        }
    }

    /// Returns what the kernel says of the socket.
    pub(crate) fn ask_kernel(&self) -> Option<Kernel> {
        self.probe.as_ref().and_then(Probe::ask)
    }

    /// Returns `true` unless a logout is due or sent.
    pub(super) fn is_staying(&self) -> bool {
        self.logout == Logout::None
    }

    /// Logs out where that is wanted and its time has come. `done`: the device is closing, and no caller waits.
    pub(super) fn log_out_when_due(&mut self, done: bool, now: Instant, timeout: Duration) {
        // Of operations that were dropped too: the target may still be writing what they sent.
        let in_flight = self.core.unanswered() > 0;
        if self.logout == Logout::None && done {
            self.logout = Logout::DueBy(now + timeout);
        }
        if let Logout::DueBy(by) = self.logout
            && (!in_flight || by <= now)
        {
            self.logout = Logout::Sent(now + timeout);
            self.core.logout();
        }
    }

    /// Returns `true` if [`Self::log_out_when_due`] has anything to look at in a device that is closing or not.
    pub(super) fn is_leaving(&self, is_closing: bool) -> bool {
        match self.logout {
            Logout::None => is_closing,
            Logout::DueBy(_) => true,
            Logout::Sent(_) => false,
        }
    }

    /// The time by which the logout is to be sent, before it was.
    pub(super) fn logout_due(&self) -> Option<Instant> {
        if let Logout::DueBy(by) = self.logout { Some(by) } else { None }
    }

    /// The deadline of the logout's answer, once it was sent.
    pub(crate) fn logout_deadline(&self) -> Option<Instant> {
        if let Logout::Sent(by) = self.logout { Some(by) } else { None }
    }

    /// The target wants us to log out within `time`: nothing new is sent, what is in flight may finish.
    pub(super) fn leave_within(&mut self, time: Duration, now: Instant) {
        if self.logout == Logout::None {
            self.logout = Logout::DueBy(now + time / 2);
        }
    }
}
