//! What the connections of one session share: its parameters and its command numbering (RFC 7143 §4.2.2.1, §6.3).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::login::LoggedIn;
use crate::window::{CommandWindow, Order};

/// A session that may have several connections (MaxConnections above 1).
///
/// The driver gets it from the leading connection and gives it to those that join
/// ([`TargetConnection::join_login`](super::TargetConnection::join_login)). Each connection stays a machine of its own, on a thread
/// of its own where the driver wants that: shared are the parameters that the leading login fixed, and the numbering. A
/// request that comes before its predecessors, which another connection is still to bring, is held by its connection; the
/// one that brings the last of them asks the driver to wake it ([`TargetEvent::Wake`](super::TargetEvent::Wake)).
///
/// The lock is held for a few instructions at a time. A session with MaxConnections=1 has none of this.
#[derive(Clone, Debug)]
pub struct SharedSession(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    leading: LoggedIn,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: CommandWindow,
    last_member: u32,
    waiting: Vec<Waiting>,
}

/// A connection that holds a request until all numbers before `cmd_sn` have come. At most one per number of the window and
/// connection.
#[derive(Debug)]
struct Waiting {
    member: u32,
    cid: u16,
    cmd_sn: u32,
}

/// The numbering of a session, seen from one of its connections.
#[derive(Debug)]
pub(super) enum Numbering {
    /// The connection is the session.
    Own(CommandWindow),
    Shared(Member),
}

/// A connection's place in a [`SharedSession`]. What it occupies of the window is free again when it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    session: SharedSession,
    number: u32,
    cid: u16,
    in_flight: u32,
    /// Connections to wake, by CID.
    wake: Vec<u16>,
}

impl SharedSession {
    /// The login that made the session.
    pub fn leading(&self) -> &LoggedIn {
        &self.0.leading
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(&self, cid: u16) -> Numbering {
        let mut state = self.lock();
        state.last_member += 1;
        let number = state.last_member;
        Numbering::Shared(Member { session: self.clone(), number, cid, in_flight: 0, wake: Vec::new() })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        (0..self.in_flight).for_each(|_| state.window.finished());
        state.waiting.retain(|entry| entry.member != self.number);
    }
}

impl Numbering {
    /// Makes the numbering of a leading connection one that others can join.
    pub(super) fn share(&mut self, leading: &LoggedIn) {
        if let Self::Own(window) = self {
            let window = std::mem::replace(window, CommandWindow::new(0, 1));
            let state = Mutex::new(State { window, last_member: 0, waiting: Vec::new() });
            *self = SharedSession(Arc::new(Shared { leading: leading.clone(), state })).join(leading.cid);
        }
    }

    /// See [`CommandWindow::may_go_on_at`]. Shared numbering goes on by itself.
    pub(super) fn may_go_on_at(&mut self, cmd_sn: u32) {
        if let Self::Own(window) = self {
            window.may_go_on_at(cmd_sn);
        }
    }

    pub(super) fn session(&self) -> Option<&SharedSession> {
        match self {
            Self::Own(_) => None,
            Self::Shared(member) => Some(&member.session),
        }
    }

    /// Takes a request if it is the next one; of one that is to be held notes that it waits.
    pub(super) fn take(&mut self, cmd_sn: u32, occupies: bool) -> Order {
        match self {
            Self::Own(window) => window.take(cmd_sn, occupies),
            Self::Shared(member) => {
                let mut state = member.session.lock();
                let order = state.window.take(cmd_sn, occupies);
                match order {
                    Order::Next => {
                        member.in_flight += u32::from(occupies);
                        state.pass(member.number, &mut member.wake);
                    }
                    Order::Later => state.wait(member, cmd_sn),
                    Order::Outside => {}
                }
                order
            }
        }
    }

    /// Whether a request has to wait until all numbers before `cmd_sn` have come; notes that it does. One that is further
    /// ahead than the window reaches would wait for ever, and does not.
    pub(super) fn waits_for(&mut self, cmd_sn: u32) -> bool {
        match self {
            Self::Own(window) => window.judge(cmd_sn) == Order::Later,
            Self::Shared(member) => {
                let mut state = member.session.lock();
                let waits = state.window.judge(cmd_sn) == Order::Later;
                if waits {
                    state.wait(member, cmd_sn);
                }
                waits
            }
        }
    }

    pub(super) fn has_reached(&self, cmd_sn: u32) -> bool {
        match self {
            Self::Own(window) => window.has_reached(cmd_sn),
            Self::Shared(member) => member.session.lock().window.has_reached(cmd_sn),
        }
    }

    /// See [`CommandWindow::plug`].
    pub(super) fn plug(&mut self, cmd_sn: u32) -> bool {
        match self {
            Self::Own(window) => window.plug(cmd_sn),
            Self::Shared(member) => {
                let mut state = member.session.lock();
                let plugged = state.window.plug(cmd_sn);
                state.pass(member.number, &mut member.wake);
                plugged
            }
        }
    }

    /// A command has been answered or aborted.
    pub(super) fn finished(&mut self) {
        match self {
            Self::Own(window) => window.finished(),
            Self::Shared(member) => {
                member.in_flight = member.in_flight.saturating_sub(1);
                member.session.lock().window.finished();
            }
        }
    }

    /// ExpCmdSN and MaxCmdSN.
    pub(super) fn window(&self) -> (u32, u32) {
        let both = |window: &CommandWindow| (window.expected(), window.maximum());
        match self {
            Self::Own(window) => both(window),
            Self::Shared(member) => both(&member.session.lock().window),
        }
    }

    /// The connections that hold requests whose turn it is now, by CID.
    pub(super) fn take_wakes(&mut self) -> Vec<u16> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Shared(member) => std::mem::take(&mut member.wake),
        }
    }
}

impl State {
    fn wait(&mut self, member: &Member, cmd_sn: u32) {
        let own = |entry: &Waiting| entry.member == member.number && entry.cmd_sn == cmd_sn;
        if !self.waiting.iter().any(own) {
            self.waiting.push(Waiting { member: member.number, cid: member.cid, cmd_sn });
        }
    }

    /// Lets those go on that wait for numbers which have all come now: `own` knows, the others are to be woken.
    fn pass(&mut self, own: u32, wake: &mut Vec<u16>) {
        let Self { window, waiting, .. } = self;
        waiting.retain(|entry| {
            let done = window.has_reached(entry.cmd_sn);
            if done && entry.member != own && !wake.contains(&entry.cid) {
                wake.push(entry.cid);
            }
            !done
        });
    }
}
