//! Registry of connections before login, and of sessions.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Limits;
use crate::principal;
use crate::source_quota::SourceQuota;
use crate::summary::SessionSummary;

mod handle;
mod order;
mod session;
mod sessions;
#[cfg(test)]
mod tests;
mod ticket;

pub(crate) use handle::{Handle, busy_after};
pub(crate) use order::{AbortScope, Cause, Order, SiblingFunction};
use session::SessionEntry;
pub(crate) use session::{Joinable, Refusal, SessionKey, Standing};
use sessions::Sessions;
pub(crate) use ticket::Ticket;

/// Of the places for sessions, one in so many is for principals that have few: a user that takes all it can get leaves
/// 64 of 256 to the others.
const RESERVED_PART: usize = 4;
/// Few are fewer than one in so many of all places, 32 of 256: a host with two targets over eight paths has 16.
const FEW_PART: usize = 8;
/// Of the places for sessions, one in so many, the last 32 of 256, is for principals that have none: without these,
/// four principals that take all they can get leave none to a fifth.
const FIRST_PART: usize = 8;

/// Of the places for sessions, one in so many is what one CHAP user gets at least, 64 of 256, over all the names that
/// its hosts say they have: a cluster that shares one user has more sessions than one initiator may.
const USER_PART: usize = 4;

/// All connections of a server.
///
/// A connection [enters](Self::enter) with a [`Ticket`], gets a [TSIH](Ticket::reserve_tsih) when its login is granted,
/// and [becomes a session](Ticket::establish) when that has succeeded, or [joins one](Ticket::join). What it holds here
/// ends with the ticket; a session ends with the last of its connections. The lock is taken at these moments, for task
/// management, and where a command of a session with several connections waits for another, never for I/O.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last_id: u64,
    /// Connections that have not logged in.
    before_login: SourceQuota<Arc<Handle>>,
    /// Discovery sessions. They cost less than others and need no authentication, so they must not take the place of
    /// those: one of them makes place for a new one.
    discoveries: SourceQuota<Arc<Handle>>,
    sessions: Sessions,
    tsihs: HashSet<u16>,
    last_tsih: u16,
    closed: bool,
    sessions_max: usize,
    sessions_per_initiator_max: usize,
    before_login_max: usize,
}

impl Registry {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let registry = Self { inner: Mutex::default() };
        registry.set_limits(limits);
        Arc::new(registry)
    }

    /// Other limits from now on. No present session has to go.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        let mut inner = self.lock();
        inner.sessions_max = limits.sessions;
        inner.sessions_per_initiator_max = limits.sessions_per_initiator;
        inner.before_login_max = limits.connections_before_login;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in. Where there are too many that have not logged in, the oldest of the source that has most
    /// is told to close and returned: who accepts sees to it that not many are still ending. `None` when the server
    /// shuts down.
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr) -> Option<(Ticket, Option<Arc<Handle>>)> {
        let mut inner = self.lock();
        if inner.closed {
            return None;
        }
        inner.last_id += 1;
        let (handle, orders, stopped) = Handle::new(inner.last_id, from);
        let most = inner.before_login_max;
        let oldest = inner.before_login.enter(handle.id, handle.source, Arc::clone(&handle), most, most);
        drop(inner);
        if let Some(oldest) = &oldest {
            oldest.send(Order::Close(Cause::Crowded));
        }
        Some((Ticket::new(Arc::clone(self), handle, orders, stopped), oldest))
    }

    /// The session that a connection may join: RFC 7143 §6.3.1 has initiator, ISID, target and TSIH agree. One that has
    /// the number of a connection which is there takes its place (§6.3.4).
    pub(crate) fn find(&self, key: &SessionKey, tsih: u16, cid: u16) -> Result<Joinable, Refusal> {
        self.lock().find(key, tsih)?.1.admits(cid).cloned()
    }

    /// The connections of all sessions with a target.
    pub(crate) fn connections_with(&self, target: &str) -> Vec<Arc<Handle>> {
        self.lock().connections_with(target, None)
    }

    /// Bases of the rights of all sessions with a target.
    pub(crate) fn standings_with(&self, target: &str) -> Vec<Standing> {
        let inner = self.lock();
        let sessions = inner.sessions.values().filter(|session| session.key.target == target);
        sessions.filter_map(SessionEntry::standing).collect()
    }

    /// Number of sessions with a target.
    pub(crate) fn sessions_with(&self, target: &str) -> usize {
        let inner = self.lock();
        inner.sessions.values().filter(|session| !session.replaced && session.key.target == target).count()
    }

    /// Returns the normal sessions, the oldest first.
    pub(crate) fn summaries(&self) -> Vec<SessionSummary> {
        let inner = self.lock();
        let sessions = inner.sessions.values().filter(|session| !session.replaced);
        sessions
            .filter_map(|session| session.handles().find_map(|handle| handle.session.get()).cloned())
            .collect()
    }

    /// The same without those that are ending.
    pub(crate) fn users(&self) -> Vec<SessionSummary> {
        let inner = self.lock();
        let sessions = inner.sessions.values().filter(|session| !session.replaced && !session.over);
        sessions
            .filter_map(|session| session.handles().find_map(|handle| handle.session.get()).cloned())
            .collect()
    }

    /// The connections of the session with this TSIH; empty if there is none.
    pub(crate) fn connections_of(&self, tsih: u16) -> Vec<Arc<Handle>> {
        let inner = self.lock();
        let session = inner.sessions.values().find(|session| session.tsih == tsih);
        session.map_or_else(Vec::new, |session| session.handles().cloned().collect())
    }

    /// Number of normal sessions.
    pub(crate) fn sessions(&self) -> usize {
        self.lock().live()
    }

    /// Lets no connection in any longer. Returns the connections that may end at once, and those of normal sessions.
    pub(crate) fn close(&self) -> (Vec<Arc<Handle>>, Vec<Arc<Handle>>) {
        let mut inner = self.lock();
        inner.closed = true;
        let idle = inner.before_login.members().chain(inner.discoveries.members()).cloned().collect();
        (idle, inner.sessions.values().flat_map(SessionEntry::handles).cloned().collect())
    }
}

impl Inner {
    /// Sessions whose place is their own.
    fn live(&self) -> usize {
        self.sessions.values().filter(|session| !session.replaced).count()
    }

    /// Checks that there is a place for another session of this name. The session whose place it takes does not count;
    /// others that are still ending do, as they have memory and devices have their commands.
    fn has_place(&self, key: &SessionKey) -> Result<(), Refusal> {
        let others = self.sessions.others(key);
        let (all, max) = (others.all, self.sessions_max);
        // What an initiator says its name is counts for nothing here.
        let has_fewer_than = |most: usize| key.principal.is_none() || others.of_principal < most;
        // A name costs nothing, so a user that may have so many sessions under one has no more under several.
        let user_max = (max / USER_PART).max(self.sessions_per_initiator_max);
        let user_has_place =
            !key.principal.as_deref().is_some_and(principal::is_user) || has_fewer_than(user_max);
        let has_place = all < max - max / RESERVED_PART
            || all < max - max / FIRST_PART && has_fewer_than((max / FEW_PART).max(1))
            || all < max && has_fewer_than(1);
        match has_place && user_has_place && others.of_initiator < self.sessions_per_initiator_max {
            true => Ok(()),
            false => Err(Refusal::Full),
        }
    }

    fn find(&mut self, key: &SessionKey, tsih: u16) -> Result<(u64, &mut SessionEntry), Refusal> {
        let id = self.sessions.find(key, tsih).ok_or(Refusal::NoSession)?;
        let session = self.sessions.get_mut(id).ok_or(Refusal::NoSession)?;
        Ok((id, session))
    }

    fn connections_with(&self, target: &str, except: Option<u64>) -> Vec<Arc<Handle>> {
        let sessions =
            self.sessions.iter().filter(|(id, session)| session.key.target == target && except != Some(**id));
        sessions.flat_map(|(_, session)| session.handles()).cloned().collect()
    }
}
