//! State shared by the connections of one session: its parameters and its command numbering (RFC 7143 §4.2.2.1, §6.3).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::order::TaskOrder;
use crate::login::LoggedIn;
use crate::pdu::ScsiCommand;
use crate::window::{CommandWindow, Order};

/// A session that may have several connections (MaxConnections above 1).
///
/// The driver gets it from the leading connection and gives it to those that join
/// ([`TargetConnection::join_login`](super::TargetConnection::join_login)). Each connection stays a machine of its own,
/// on a thread of its own where the driver wants that: shared are the parameters that the leading login fixed, the
/// numbering, and the order that ORDERED commands make. A request that comes before its predecessors, which another
/// connection is still to bring, is held by its connection; the one that brings the last of them asks the driver to
/// wake it ([`TargetEvent::Wake`](super::TargetEvent::Wake)).
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
    /// CIDs of the connections, by their numbers as members.
    cids: Vec<(u32, u16)>,
    waiting: Vec<Waiting>,
    order: TaskOrder,
}

/// A connection that holds a request until all numbers before `cmd_sn` have come. At most one per number of the window
/// and connection.
#[derive(Debug)]
struct Waiting {
    member: u32,
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
    in_flight: u32,
    /// Of the command that was taken last, in the order of the session.
    place: Option<u64>,
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
        state.cids.push((number, cid));
        let session = self.clone();
        Numbering::Shared(Member { session, number, in_flight: 0, place: None, wake: Vec::new() })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        (0..self.in_flight).for_each(|_| state.window.finished());
        state.waiting.retain(|entry| entry.member != self.number);
        state.cids.retain(|(number, _)| *number != self.number);
        state.order.leave_all(self.number);
    }
}

impl Numbering {
    /// Makes the numbering of a leading connection one that others can join.
    pub(super) fn share(&mut self, leading: &LoggedIn) {
        if let Self::Own(window) = self {
            let window = std::mem::replace(window, CommandWindow::new(0, 1));
            let state = State {
                window,
                last_member: 0,
                cids: Vec::new(),
                waiting: Vec::new(),
                order: TaskOrder::default(),
            };
            let state = Mutex::new(state);
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

    /// Takes a request if it is the next one; of one that is to be held notes that it waits. A `command` occupies the
    /// window.
    pub(super) fn take(&mut self, cmd_sn: u32, command: Option<&ScsiCommand>) -> Order {
        let occupies = command.is_some();
        match self {
            Self::Own(window) => window.take(cmd_sn, occupies),
            Self::Shared(member) => {
                let mut state = member.session.lock();
                let order = state.window.take(cmd_sn, occupies);
                match order {
                    Order::Next => {
                        member.in_flight += u32::from(occupies);
                        member.place = command.map(|command| state.order.enter(member.number, command));
                        state.pass(member.number, &mut member.wake);
                    }
                    Order::Later => state.wait(member.number, cmd_sn),
                    Order::Outside => {}
                }
                order
            }
        }
    }

    /// Returns `true` if a request has to wait until all numbers before `cmd_sn` have arrived, and notes that it does.
    /// A request beyond the window would wait forever, so it does not wait.
    pub(super) fn waits_for(&mut self, cmd_sn: u32) -> bool {
        match self {
            Self::Own(window) => window.judge(cmd_sn) == Order::Later,
            Self::Shared(member) => {
                let mut state = member.session.lock();
                let waits = state.window.judge(cmd_sn) == Order::Later;
                if waits {
                    state.wait(member.number, cmd_sn);
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

    /// A command has been answered or aborted; so many may be in flight from now on.
    pub(super) fn finished(&mut self, depth: u16) {
        let finish = |window: &mut CommandWindow| {
            window.set_depth(depth);
            window.finished();
        };
        match self {
            Self::Own(window) => finish(window),
            Self::Shared(member) => {
                member.in_flight = member.in_flight.saturating_sub(1);
                finish(&mut member.session.lock().window);
            }
        }
    }

    /// The place of a command among those of all connections: the one that was taken just now, or else (it is
    /// immediate) the last. A connection that is the session needs none.
    pub(super) fn place(&mut self, command: &ScsiCommand) -> Option<u64> {
        let Self::Shared(member) = self else { return None };
        let taken = member.place.take();
        taken.or_else(|| Some(member.session.lock().order.enter(member.number, command)))
    }

    /// Returns `true` if a task of another connection has to reach the device server before the one at this place.
    pub(super) fn has_to_wait(&self, place: u64) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Shared(member) => member.session.lock().order.has_to_wait(place),
        }
    }

    /// The device server has the task, or it has ended early.
    pub(super) fn leave_order(&mut self, place: u64) {
        if let Self::Shared(member) = self {
            let mut state = member.session.lock();
            let blocked = state.order.leave(place);
            state.note_wakes(&blocked, member.number, &mut member.wake);
        }
    }

    /// No task of this connection will be begun.
    pub(super) fn abandon_order(&mut self) {
        if let Self::Shared(member) = self {
            let mut state = member.session.lock();
            let blocked = state.order.leave_all(member.number);
            state.note_wakes(&blocked, member.number, &mut member.wake);
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

    /// The connections that hold requests or tasks whose turn it is now, by CID.
    pub(super) fn take_wakes(&mut self) -> Vec<u16> {
        match self {
            Self::Own(_) => Vec::new(),
            Self::Shared(member) => std::mem::take(&mut member.wake),
        }
    }
}

impl State {
    fn wait(&mut self, member: u32, cmd_sn: u32) {
        let own = |entry: &Waiting| entry.member == member && entry.cmd_sn == cmd_sn;
        if !self.waiting.iter().any(own) {
            self.waiting.push(Waiting { member, cmd_sn });
        }
    }

    /// Lets those go on that wait for numbers which have all come now: `own` knows, the others are to be woken.
    fn pass(&mut self, own: u32, wake: &mut Vec<u16>) {
        let Self { window, waiting, .. } = self;
        let mut passed = Vec::new();
        waiting.retain(|entry| {
            let done = window.has_reached(entry.cmd_sn);
            if done {
                passed.push(entry.member);
            }
            !done
        });
        self.note_wakes(&passed, own, wake);
    }

    /// Adds those of `members` that are connected and not `own` to the connections to wake.
    fn note_wakes(&self, members: &[u32], own: u32, wake: &mut Vec<u16>) {
        for (number, cid) in &self.cids {
            if *number != own && members.contains(number) && !wake.contains(cid) {
                wake.push(*cid);
            }
        }
    }
}
