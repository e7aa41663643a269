//! Registry of connections before login, and of sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lunway_iscsi::login::LoggedIn;
use lunway_iscsi::pdu::{Isid, LoginStatus};
use lunway_iscsi::target::SharedSession;
use lunway_scsi::Nexus;
use tokio::sync::{mpsc, watch};

use crate::config::Limits;
use crate::principal;
use crate::source::SourceHost;
use crate::source_quota::SourceQuota;
use crate::summary::SessionSummary;

mod order;
#[cfg(test)]
mod tests;

pub(crate) use order::{AbortScope, Cause, Order, SiblingFunction};

/// Discovery sessions at a time: each lasts a moment unless it means harm.
const DISCOVERIES_MAX: usize = 64;

/// The way to a connection, from anywhere.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Its number; later connections have higher ones.
    pub(crate) id: u64,
    /// Source of the connection.
    from: IpAddr,
    source: SourceHost,
    orders: mpsc::UnboundedSender<Order>,
    /// The logical units whose devices still have commands of the connection, once it begins no more of them.
    stopped: watch::Receiver<Option<BTreeSet<u16>>>,
    session: OnceLock<SessionSummary>,
    /// The CmdSN that comes next in its session, once it has stopped.
    next_cmd_sn: OnceLock<u32>,
}

impl Handle {
    /// The CmdSN that came next when the connection stopped; `None` before.
    pub(crate) fn next_cmd_sn(&self) -> Option<u32> {
        self.next_cmd_sn.get().copied()
    }

    /// Says who the session is with, once.
    pub(crate) fn describe(&self, session: SessionSummary) {
        let _ = self.session.set(session);
    }

    /// The portal that a normal session's connection came by.
    pub(crate) fn portal(&self) -> Option<SocketAddr> {
        self.session.get().map(|session| session.portal)
    }

    /// Queues an order. A connection that has ended ignores it, and drops what it contains.
    pub(crate) fn send(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Waits until the connection has ended and nothing that it started runs any longer.
    pub(crate) async fn ended(&self) {
        // An error says that the sender is gone: that is the end.
        let mut stopped = self.stopped.clone();
        while stopped.changed().await.is_ok() {}
    }

    /// Waits until the connection begins no command any more and its nexus has left every logical unit but those whose
    /// devices still have commands: these, by number. With `known` waits until they are others than that.
    async fn stopped(&self, known: Option<&BTreeSet<u16>>) {
        let mut stopped = self.stopped.clone();
        // An error says that it has ended.
        let _ = stopped.wait_for(|busy| busy.as_ref().is_some_and(|busy| known != Some(busy))).await;
    }

    /// Waits until it begins no command any more and no device has one of it for this logical unit of a target.
    pub(crate) async fn left(&self, target: &str, lun: u16) {
        if self.session.get().is_some_and(|session| session.target.eq_ignore_ascii_case(target)) {
            let has_left =
                |busy: &Option<BTreeSet<u16>>| busy.as_ref().is_some_and(|busy| !busy.contains(&lun));
            let _ = self.stopped.clone().wait_for(has_left).await;
        }
    }

    /// Returns `Some` if it has stopped: the logical units whose devices still have commands of it.
    pub(crate) fn busy(&self) -> Option<BTreeSet<u16>> {
        self.stopped.borrow().clone()
    }
}

/// Waits until all of these connections have stopped, and the logical units whose devices still have commands of any of
/// them are others than `known`: gives these.
pub(crate) async fn busy_after(connections: &[Arc<Handle>], known: Option<BTreeSet<u16>>) -> BTreeSet<u16> {
    loop {
        let seen: Vec<_> = connections.iter().map(|connection| connection.busy()).collect();
        let all: Option<Vec<_>> = seen.iter().map(Option::as_ref).collect();
        let union: Option<BTreeSet<u16>> = all.map(|sets| sets.into_iter().flatten().copied().collect());
        if let Some(union) = union
            && known.as_ref() != Some(&union)
        {
            return union;
        }
        // One that has nothing with a device any more never has again.
        let done = |busy: &Option<BTreeSet<u16>>| busy.as_ref().is_some_and(BTreeSet::is_empty);
        let left = connections.iter().zip(&seen).filter(|(_, busy)| !done(busy));
        let changes: Vec<_> = left.map(|(one, busy)| Box::pin(one.stopped(busy.as_ref()))).collect();
        if changes.is_empty() {
            return BTreeSet::new();
        }
        futures_util::future::select_all(changes).await;
    }
}

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

/// Session identifier (the ISID rule, RFC 7143 §4.4.3): there is one session at a time for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: Isid,
    pub(crate) target: String,
    /// With the name it is the target port.
    pub(crate) portal_group: u16,
    /// Principal that owns it; `None` while that has not been proven.
    pub(crate) principal: Option<String>,
}

impl SessionKey {
    /// Returns `true` if the other session is of the same initiator, with whichever target.
    fn is_of_same_initiator(&self, other: &Self) -> bool {
        self.initiator == other.initiator && other.principal.is_some() && self.principal == other.principal
    }

    /// Returns `true` if both name one session, as far as is known.
    fn agrees_with(&self, other: &Self) -> bool {
        let Self { initiator, isid, target, portal_group, principal } = self;
        let same_principal =
            principal.is_none() || other.principal.is_none() || *principal == other.principal;
        *initiator == other.initiator
            && *isid == other.isid
            && *target == other.target
            && *portal_group == other.portal_group
            && same_principal
    }
}

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
    /// By the number of the connection that made them.
    sessions: BTreeMap<u64, SessionEntry>,
    by_key: HashMap<SessionKey, u64>,
    tsihs: HashSet<u16>,
    last_tsih: u16,
    closed: bool,
    sessions_max: usize,
    sessions_per_initiator_max: usize,
    before_login_max: usize,
}

#[derive(Debug)]
struct SessionEntry {
    key: SessionKey,
    tsih: u16,
    /// At least one.
    connections: Vec<Member>,
    /// State that a further connection needs to join; `None`: there is none.
    joinable: Option<Joinable>,
    /// Once it is open.
    nexus: Option<Arc<Nexus>>,
    /// No connection joins any longer.
    over: bool,
    /// Another session has its place. It is still here because it is still ending.
    replaced: bool,
}

/// State that a connection needs to join a session.
#[derive(Clone, Debug)]
pub(crate) enum Joinable {
    /// Its numbering, shared by several connections.
    Connections(SharedSession),
    /// With MaxConnections=1 the login that made it: a connection can only take the place of the one that is there.
    Replacement(Box<LoggedIn>),
}

impl Joinable {
    /// The login that made the session.
    pub(crate) fn leading(&self) -> &LoggedIn {
        match self {
            Self::Connections(session) => session.leading(),
            Self::Replacement(leading) => leading,
        }
    }
}

/// Basis of the rights of a session, beside the rules of its target.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) nexus: Arc<Nexus>,
    /// The target's name in its normal form.
    pub(crate) target: String,
    pub(crate) initiator: String,
    /// The CHAP user that each of its connections has proven to be.
    pub(crate) user: Option<String>,
    /// The address of each connection that may begin commands; at least one.
    pub(crate) from: Vec<IpAddr>,
}

/// A connection in its session.
#[derive(Debug)]
struct Member {
    cid: u16,
    handle: Arc<Handle>,
    /// Begins no command any more; the devices behind these logical units still have some.
    busy: Option<BTreeSet<u16>>,
    /// Nothing of it runs any longer.
    departed: bool,
}

impl Member {
    fn new(cid: u16, handle: &Arc<Handle>) -> Self {
        Self { cid, handle: Arc::clone(handle), busy: None, departed: false }
    }
}

impl SessionEntry {
    /// The logical units whose devices still have commands of the session; `None` while a connection may begin more.
    fn busy(&self) -> Option<BTreeSet<u16>> {
        let sets: Option<Vec<_>> = self.connections.iter().map(|member| member.busy.as_ref()).collect();
        Some(sets?.into_iter().flatten().copied().collect())
    }

    fn handles(&self) -> impl Iterator<Item = &Arc<Handle>> {
        self.connections.iter().map(|member| &member.handle)
    }

    /// `None`: it has no nexus, or none of its connections begins a command any more.
    fn standing(&self) -> Option<Standing> {
        let summary = self.handles().find_map(|handle| handle.session.get())?;
        let begins = self.connections.iter().filter(|member| member.busy.is_none());
        let from: Vec<_> = begins.map(|member| member.handle.from).collect();
        let nexus = Arc::clone(self.nexus.as_ref()?);
        let (target, initiator) = (self.key.target.clone(), summary.initiator.clone());
        (!from.is_empty()).then(|| Standing { nexus, target, initiator, user: summary.user.clone(), from })
    }

    /// Returns the state for joining if a connection with this number may come in.
    fn admits(&self, cid: u16) -> Result<&Joinable, Refusal> {
        let others = self.connections.iter().filter(|member| member.cid != cid).count();
        match &self.joinable {
            _ if self.over || self.nexus.is_none() => Err(Refusal::NoSession),
            Some(joinable) if others < usize::from(joinable.leading().negotiated.max_connections) => {
                Ok(joinable)
            }
            _ => Err(Refusal::TooManyConnections),
        }
    }
}

/// No session can be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As many sessions as are allowed.
    Full,
    /// The server shuts down.
    ShuttingDown,
    /// The initiator has no session with this TSIH.
    NoSession,
    /// The session has as many connections as it may.
    TooManyConnections,
}

impl From<Refusal> for LoginStatus {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::OUT_OF_RESOURCES,
            Refusal::ShuttingDown => Self::SERVICE_UNAVAILABLE,
            Refusal::NoSession => Self::SESSION_DOES_NOT_EXIST,
            Refusal::TooManyConnections => Self::TOO_MANY_CONNECTIONS,
        }
    }
}

/// State of the session for a connection that has joined it.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) nexus: Option<Arc<Nexus>>,
    /// The connection whose number it has, told to close; its end must be awaited.
    pub(crate) leaving: Vec<Arc<Handle>>,
}

/// Ticket of a connection: its entry in the [`Registry`], and the way it hears from others.
#[derive(Debug)]
pub(crate) struct Ticket {
    registry: Arc<Registry>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    /// Reserved for a session to be.
    tsih: Option<u16>,
    /// The session that it is a connection of.
    session: Option<u64>,
    /// Dropped last, with the ticket: the session that waits for the end may then take its place.
    stopped: watch::Sender<Option<BTreeSet<u16>>>,
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
        let (to_connection, orders) = mpsc::unbounded_channel();
        let (sender, stopped) = watch::channel(None);
        let session = OnceLock::new();
        let source = SourceHost::from(from);
        let handle = Arc::new(Handle {
            id: inner.last_id,
            from,
            source,
            orders: to_connection,
            stopped,
            session,
            next_cmd_sn: OnceLock::new(),
        });
        let most = inner.before_login_max;
        let oldest = inner.before_login.enter(handle.id, source, Arc::clone(&handle), most, most);
        drop(inner);
        if let Some(oldest) = &oldest {
            oldest.send(Order::Close(Cause::Crowded));
        }
        let registry = Arc::clone(self);
        Some((Ticket { registry, handle, orders, tsih: None, session: None, stopped: sender }, oldest))
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
        let others =
            || self.sessions.values().filter(|session| session.replaced || !session.key.agrees_with(key));
        let (all, max) = (others().count(), self.sessions_max);
        let own = others().filter(|session| session.key.is_of_same_initiator(key)).count();
        // What an initiator says its name is counts for nothing here.
        let has_fewer_than = |most: usize| {
            let of_principal = others().filter(|session| session.key.principal == key.principal).count();
            key.principal.is_none() || of_principal < most
        };
        // A name costs nothing, so a user that may have so many sessions under one has no more under several.
        let user_max = (max / USER_PART).max(self.sessions_per_initiator_max);
        let user_has_place =
            !key.principal.as_deref().is_some_and(principal::is_user) || has_fewer_than(user_max);
        let has_place = all < max - max / RESERVED_PART
            || all < max - max / FIRST_PART && has_fewer_than((max / FEW_PART).max(1))
            || all < max && has_fewer_than(1);
        match has_place && user_has_place && own < self.sessions_per_initiator_max {
            true => Ok(()),
            false => Err(Refusal::Full),
        }
    }

    fn find(&mut self, key: &SessionKey, tsih: u16) -> Result<(u64, &mut SessionEntry), Refusal> {
        let meant = |session: &SessionEntry| {
            session.tsih == tsih && !session.replaced && session.key.agrees_with(key)
        };
        let session = self.sessions.iter_mut().find(|(_, session)| meant(session));
        session.map(|(id, session)| (*id, session)).ok_or(Refusal::NoSession)
    }

    fn connections_with(&self, target: &str, except: Option<u64>) -> Vec<Arc<Handle>> {
        let sessions =
            self.sessions.iter().filter(|(id, session)| session.key.target == target && except != Some(**id));
        sessions.flat_map(|(_, session)| session.handles()).cloned().collect()
    }
}

impl Ticket {
    /// A TSIH for a login that is being granted; given back when the connection ends. `key` names a normal session; one
    /// whose place it takes does not count.
    pub(crate) fn reserve_tsih(&mut self, key: Option<&SessionKey>) -> Result<u16, Refusal> {
        let mut inner = self.registry.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        if let Some(tsih) = self.tsih {
            return Ok(tsih);
        }
        if let Some(key) = key {
            inner.has_place(key)?;
        }
        // Numbers go round, so that one is not used again soon after its session.
        let last = inner.last_tsih;
        let candidates = (1..=u16::MAX).map(|step| last.wrapping_add(step));
        let free = candidates.into_iter().find(|tsih| *tsih != 0 && !inner.tsihs.contains(tsih));
        let tsih = free.ok_or(Refusal::Full)?;
        inner.last_tsih = tsih;
        inner.tsihs.insert(tsih);
        self.tsih = Some(tsih);
        Ok(tsih)
    }

    /// The login has succeeded: this connection is the session `key` now. Returns the connections of the session whose
    /// place it takes, told to close; their end must be awaited before anything of this one happens.
    // RFC 7143 [4.4.3-1, 6.3.5-1, 7.15-2]
    pub(crate) fn establish(
        &mut self,
        key: SessionKey,
        cid: u16,
        joinable: Option<Joinable>,
    ) -> Result<Vec<Arc<Handle>>, Refusal> {
        let mut guard = self.registry.lock();
        let inner = &mut *guard;
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        let predecessor = inner.by_key.get(&key).copied();
        inner.has_place(&key)?;
        let tsih = self.tsih.take().ok_or(Refusal::NoSession)?;
        let id = self.handle.id;
        inner.before_login.leave(id);
        let predecessor = predecessor.and_then(|old| inner.sessions.get_mut(&old));
        let leaving = predecessor.map_or_else(Vec::new, |old| {
            (old.replaced, old.over) = (true, true);
            old.handles().cloned().collect()
        });
        inner.by_key.insert(key.clone(), id);
        let connections = vec![Member::new(cid, &self.handle)];
        let session =
            SessionEntry { key, tsih, connections, joinable, nexus: None, over: false, replaced: false };
        inner.sessions.insert(id, session);
        self.session = Some(id);
        drop(guard);
        leaving.iter().for_each(|old| old.send(Order::Close(Cause::Reinstated)));
        Ok(leaving)
    }

    /// The login has succeeded: this connection is one more of the session.
    // RFC 7143 [6.3.4-1, 6.3.4-2, 4.2.1-2, 4.4.3-2]
    pub(crate) fn join(&mut self, key: &SessionKey, tsih: u16, cid: u16) -> Result<Joined, Refusal> {
        let mut inner = self.registry.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        let (session_id, session) = inner.find(key, tsih)?;
        session.admits(cid)?;
        // It stays in the list until it has ended, so that the session does not seem to be without connections.
        let old = |member: &&Member| member.cid == cid && !member.departed;
        let leaving: Vec<_> =
            session.connections.iter().filter(old).map(|member| Arc::clone(&member.handle)).collect();
        session.connections.push(Member::new(cid, &self.handle));
        let nexus = session.nexus.clone();
        inner.before_login.leave(self.handle.id);
        self.session = Some(session_id);
        drop(inner);
        leaving.iter().for_each(|old| old.send(Order::Close(Cause::ConnectionReinstated)));
        Ok(Joined { nexus, leaving })
    }

    /// From now on connections may join the session.
    pub(crate) fn set_nexus(&self, nexus: &Arc<Nexus>) {
        let mut inner = self.registry.lock();
        if let Some(session) = self.session.and_then(|id| inner.sessions.get_mut(&id)) {
            session.nexus = Some(Arc::clone(nexus));
        }
    }

    /// Basis of the rights of its session.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.registry.lock().sessions.get(&self.session?)?.standing()
    }

    /// The session's other connections.
    pub(crate) fn siblings(&self) -> Vec<Arc<Handle>> {
        let inner = self.registry.lock();
        let session = self.session.and_then(|id| inner.sessions.get(&id));
        let handles = session.into_iter().flat_map(SessionEntry::handles);
        handles.filter(|handle| handle.id != self.handle.id).cloned().collect()
    }

    /// The session's connection with this number, another than this one.
    pub(crate) fn sibling(&self, cid: u16) -> Option<Arc<Handle>> {
        let inner = self.registry.lock();
        let mut members = inner.sessions.get(&self.session?)?.connections.iter().rev();
        let is_meant =
            |member: &&Member| member.cid == cid && !member.departed && member.handle.id != self.handle.id;
        members.find(is_meant).map(|member| Arc::clone(&member.handle))
    }

    /// The connections of all other sessions with a target.
    pub(crate) fn others_with(&self, target: &str) -> Vec<Arc<Handle>> {
        self.registry.lock().connections_with(target, self.session)
    }

    /// The session ends with this connection: no connection joins any longer, and the others are told to close.
    pub(crate) fn end_session(&self, cause: Cause) {
        let mut inner = self.registry.lock();
        let session = self.session.and_then(|id| inner.sessions.get_mut(&id));
        // Those that were told do not tell others again.
        if session.is_none_or(|session| std::mem::replace(&mut session.over, true)) {
            return;
        }
        drop(inner);
        self.siblings().iter().for_each(|sibling| sibling.send(Order::Close(cause)));
    }

    /// This connection begins no command any more; the devices behind `busy` logical units still have some. When that
    /// holds for all connections of the session, its nexus leaves the other units. A session that takes this one's
    /// place is told after that, and where the numbers of commands stood. Says whether the connection has settled only
    /// now: then the rights of its session no longer follow from it.
    pub(crate) fn settle(&self, busy: &BTreeSet<u16>, next_cmd_sn: u32) -> bool {
        let is_news = self.handle.next_cmd_sn.set(next_cmd_sn).is_ok();
        let nexus = {
            let mut inner = self.registry.lock();
            let session = self.session.and_then(|id| inner.sessions.get_mut(&id));
            session.and_then(|session| {
                let own = session.connections.iter_mut().find(|member| member.handle.id == self.handle.id)?;
                own.busy = Some(busy.clone());
                session.nexus.clone().zip(session.busy())
            })
        };
        if let Some((nexus, busy)) = nexus {
            nexus.close_but(&busy);
        }
        self.stopped.send_replace(Some(busy.clone()));
        is_news
    }

    /// Nothing of this connection runs any longer. The last one of a session gets its nexus, to close it before it
    /// [leaves](Self::leave) and the session's name is free.
    pub(crate) fn depart(&mut self) -> Option<Arc<Nexus>> {
        let mut inner = self.registry.lock();
        let session = inner.sessions.get_mut(&self.session?)?;
        for member in &mut session.connections {
            member.departed |= member.handle.id == self.handle.id;
        }
        if session.connections.iter().any(|member| !member.departed) {
            return None;
        }
        session.over = true;
        session.nexus.take()
    }

    /// The login has succeeded: this connection is a discovery session now. None is reinstated: programs that discover
    /// at the same time with the same ISID are common, and nothing of a discovery session can be left behind.
    // RFC 7143 [7.4.2.1-2]
    pub(crate) fn establish_discovery(&mut self) -> Result<(), Refusal> {
        let mut inner = self.registry.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        let id = self.handle.id;
        inner.before_login.leave(id);
        let (source, most) = (self.handle.source, DISCOVERIES_MAX);
        let oldest = inner.discoveries.enter(id, source, Arc::clone(&self.handle), most, most);
        if let Some(oldest) = oldest {
            oldest.send(Order::Close(Cause::Crowded));
        }
        Ok(())
    }

    /// The session is over; the connection may still say good-bye.
    pub(crate) fn leave(&mut self) {
        let id = self.handle.id;
        let mut inner = self.registry.lock();
        inner.before_login.leave(id);
        inner.discoveries.leave(id);
        if let Some(session_id) = self.session.take()
            && let Some(session) = inner.sessions.get_mut(&session_id)
        {
            session.connections.retain(|member| member.handle.id != id);
            if session.connections.is_empty()
                && let Some(SessionEntry { key, tsih, .. }) = inner.sessions.remove(&session_id)
            {
                inner.tsihs.remove(&tsih);
                // A session that took this one's place has the key now.
                if inner.by_key.get(&key) == Some(&session_id) {
                    inner.by_key.remove(&key);
                }
            }
        }
        if let Some(tsih) = self.tsih.take() {
            inner.tsihs.remove(&tsih);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
        self.stopped.send_replace(Some(BTreeSet::new()));
    }
}
