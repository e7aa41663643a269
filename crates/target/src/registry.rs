//! Who is connected: connections before login, and sessions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lunway_iscsi::pdu::{Isid, LoginStatus};
use tokio::sync::{mpsc, oneshot, watch};

use crate::server::SessionSummary;

/// Discovery sessions at a time: each lasts a moment where nobody means harm.
const DISCOVERIES_MAX: usize = 64;

/// What others ask of a connection.
#[derive(Debug)]
pub(crate) enum Order {
    /// End at once; device I/O under way is awaited.
    Close(Cause),
    /// Ask the initiator to log out within this time (RFC 7143 §11.9.1, event 1).
    RequestLogout(Duration),
    /// See whether the session may still do what it could: the configuration of its target has changed.
    Reconsider,
    /// Give up tasks without an answer.
    AbortTasks {
        scope: AbortScope,
        /// Dropped when no aborted task runs any longer.
        done: oneshot::Sender<()>,
    },
}

/// Which tasks of a session end when another session manages tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortScope {
    /// Those of a logical unit that was reset.
    Reset { lun: u16 },
    /// Those of a logical unit whose task set was cleared, which the initiator is told (SAM-5 5.14).
    Cleared { lun: u16 },
    /// All.
    All,
}

/// Why a connection was told to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    /// RFC 7143 §6.3.5.
    #[error("the initiator logged in again")]
    Reinstated,
    /// Too many connections that have not logged in, or that discover.
    #[error("newer connections need its place")]
    Crowded,
    /// TARGET COLD RESET.
    #[error("the target was reset")]
    ColdReset,
    /// The configuration no longer has it.
    #[error("the target was removed or disabled")]
    Removed,
    /// The administrator.
    #[error("the administrator ended the session")]
    Dropped,
    /// The daemon ends.
    #[error("the target shuts down")]
    Shutdown,
}

/// The way to a connection, from anywhere.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Its number; later connections have higher ones.
    pub(crate) id: u64,
    orders: mpsc::UnboundedSender<Order>,
    ended: watch::Receiver<()>,
    session: OnceLock<SessionSummary>,
}

impl Handle {
    /// Says who the session is with, once.
    pub(crate) fn describe(&self, session: SessionSummary) {
        let _ = self.session.set(session);
    }

    /// Queues an order. A connection that has ended ignores it, and drops what it contains.
    pub(crate) fn send(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Waits until the connection has ended and nothing that it started runs any longer.
    pub(crate) async fn ended(&self) {
        // An error says that the sender is gone: that is the end.
        while self.ended.clone().changed().await.is_ok() {}
    }
}

/// What names a session (RFC 7143 §4.4.2): there is one at a time for each. The portal group is the same for all of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: Isid,
    pub(crate) target: String,
}

/// All connections of a server.
///
/// A connection [enters](Self::enter) with a [`Ticket`], gets a [TSIH](Ticket::reserve_tsih) when its login is granted, and
/// [becomes a session](Ticket::establish) when that has succeeded. What it holds here ends with the ticket. The lock
/// is taken at these moments and for task management, never for I/O.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last_id: u64,
    /// By number, so that the first is the oldest.
    before_login: BTreeMap<u64, Arc<Handle>>,
    /// Discovery sessions, by number. They cost less than others and need no authentication, so they must not take the
    /// place of those: the oldest makes place for a new one.
    discoveries: BTreeMap<u64, Arc<Handle>>,
    sessions: BTreeMap<u64, Session>,
    by_key: HashMap<SessionKey, u64>,
    tsihs: HashSet<u16>,
    last_tsih: u16,
    closed: bool,
    sessions_max: usize,
    before_login_max: usize,
}

#[derive(Debug)]
struct Session {
    handle: Arc<Handle>,
    key: SessionKey,
}

/// No session can be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As many sessions as are allowed.
    Full,
    /// The server shuts down.
    ShuttingDown,
}

impl From<Refusal> for LoginStatus {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::OUT_OF_RESOURCES,
            Refusal::ShuttingDown => Self::SERVICE_UNAVAILABLE,
        }
    }
}

/// What a connection holds in the [`Registry`], and how it hears from others.
#[derive(Debug)]
pub(crate) struct Ticket {
    registry: Arc<Registry>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    tsih: Option<u16>,
    /// Dropped last, with the ticket: whoever waits for the end may then take its place.
    _ended: watch::Sender<()>,
}

impl Registry {
    pub(crate) fn new(sessions_max: usize, before_login_max: usize) -> Arc<Self> {
        let registry = Self { inner: Mutex::default() };
        registry.set_limits(sessions_max, before_login_max);
        Arc::new(registry)
    }

    /// Other limits from now on. Nobody who is there has to go.
    pub(crate) fn set_limits(&self, sessions_max: usize, before_login_max: usize) {
        let mut inner = self.lock();
        inner.sessions_max = sessions_max;
        inner.before_login_max = before_login_max;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below is complete before anything can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in. Where there are too many that have not logged in, the oldest is told to close and returned:
    /// who accepts sees to it that not many are still ending. `None` when the server shuts down.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<(Ticket, Option<Arc<Handle>>)> {
        let mut inner = self.lock();
        if inner.closed {
            return None;
        }
        inner.last_id += 1;
        let (to_connection, orders) = mpsc::unbounded_channel();
        let (sender, ended) = watch::channel(());
        let session = OnceLock::new();
        let handle = Arc::new(Handle { id: inner.last_id, orders: to_connection, ended, session });
        let crowded = inner.before_login.len() >= inner.before_login_max;
        let oldest = if crowded { inner.before_login.pop_first().map(|(_, oldest)| oldest) } else { None };
        inner.before_login.insert(handle.id, Arc::clone(&handle));
        drop(inner);
        if let Some(oldest) = &oldest {
            oldest.send(Order::Close(Cause::Crowded));
        }
        Some((Ticket { registry: Arc::clone(self), handle, orders, tsih: None, _ended: sender }, oldest))
    }

    /// The session that has this TSIH with this initiator, if there is one.
    pub(crate) fn has_session(&self, tsih: u16) -> bool {
        self.lock().tsihs.contains(&tsih)
    }

    /// The sessions with a target, but for the connection `except`.
    pub(crate) fn sessions_with(&self, target: &str, except: u64) -> Vec<Arc<Handle>> {
        let inner = self.lock();
        let with = |session: &&Session| session.key.target == target;
        let sessions = inner.sessions.values().filter(with).map(|session| &session.handle);
        sessions.filter(|handle| handle.id != except).cloned().collect()
    }

    /// Who the normal sessions are with, the oldest first.
    pub(crate) fn summaries(&self) -> Vec<SessionSummary> {
        let inner = self.lock();
        inner.sessions.values().filter_map(|session| session.handle.session.get().cloned()).collect()
    }

    /// The session with this TSIH.
    pub(crate) fn session(&self, tsih: u16) -> Option<Arc<Handle>> {
        let inner = self.lock();
        let mut handles = inner.sessions.values().map(|session| &session.handle);
        handles.find(|handle| handle.session.get().is_some_and(|session| session.tsih == tsih)).cloned()
    }

    /// Number of normal sessions.
    pub(crate) fn sessions(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Lets nobody in any longer. Returns the connections that may end at once, and those of normal sessions.
    pub(crate) fn close(&self) -> (Vec<Arc<Handle>>, Vec<Arc<Handle>>) {
        let mut inner = self.lock();
        inner.closed = true;
        let idle = inner.before_login.values().chain(inner.discoveries.values()).cloned().collect();
        (idle, inner.sessions.values().map(|session| Arc::clone(&session.handle)).collect())
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
        let renews = key.is_none_or(|key| inner.by_key.contains_key(key));
        if !renews && inner.sessions.len() >= inner.sessions_max {
            return Err(Refusal::Full);
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

    /// The login has succeeded: this connection is the session `key` now. Returns the session whose place it takes, told
    /// to close; its end must be awaited before anything of this one happens.
    pub(crate) fn establish(&mut self, key: SessionKey) -> Result<Option<Arc<Handle>>, Refusal> {
        let mut inner = self.registry.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        let predecessor = inner.by_key.get(&key).copied();
        if predecessor.is_none() && inner.sessions.len() >= inner.sessions_max {
            return Err(Refusal::Full);
        }
        let id = self.handle.id;
        inner.before_login.remove(&id);
        let predecessor = predecessor.and_then(|old| inner.sessions.remove(&old)).map(|old| old.handle);
        inner.by_key.insert(key.clone(), id);
        inner.sessions.insert(id, Session { handle: Arc::clone(&self.handle), key });
        drop(inner);
        if let Some(predecessor) = &predecessor {
            predecessor.send(Order::Close(Cause::Reinstated));
        }
        Ok(predecessor)
    }

    /// The login has succeeded: this connection is a discovery session now. None is reinstated: programs that discover at
    /// the same time with the same ISID are common, and nothing of a discovery session can be left behind.
    pub(crate) fn establish_discovery(&mut self) -> Result<(), Refusal> {
        let mut inner = self.registry.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        let id = self.handle.id;
        inner.before_login.remove(&id);
        inner.discoveries.insert(id, Arc::clone(&self.handle));
        let crowded = inner.discoveries.len() > DISCOVERIES_MAX;
        if crowded && let Some((_, oldest)) = inner.discoveries.pop_first() {
            oldest.send(Order::Close(Cause::Crowded));
        }
        Ok(())
    }

    /// The session is over; the connection may still say good-bye.
    pub(crate) fn leave(&mut self) {
        let id = self.handle.id;
        let mut inner = self.registry.lock();
        inner.before_login.remove(&id);
        inner.discoveries.remove(&id);
        if let Some(Session { key, .. }) = inner.sessions.remove(&id) {
            // A session that took this one's place has the key now, and this one is not in `sessions` any longer.
            inner.by_key.remove(&key);
        }
        if let Some(tsih) = self.tsih.take() {
            inner.tsihs.remove(&tsih);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(initiator: &str) -> SessionKey {
        SessionKey { initiator: initiator.to_owned(), isid: [0; 6], target: "iqn.t".to_owned() }
    }

    fn ticket(registry: &Arc<Registry>) -> Ticket {
        registry.enter().unwrap().0
    }

    fn log_in(registry: &Arc<Registry>, initiator: &str) -> (Ticket, Option<Arc<Handle>>) {
        let mut ticket = ticket(registry);
        ticket.reserve_tsih(Some(&key(initiator))).unwrap();
        let predecessor = ticket.establish(key(initiator)).unwrap();
        (ticket, predecessor)
    }

    #[test]
    fn the_oldest_connection_before_login_makes_place() {
        let registry = Registry::new(9, 2);
        let (mut first, second) = (ticket(&registry), ticket(&registry));
        let (_third, evicted) = registry.enter().unwrap();
        assert_eq!(evicted.unwrap().id, first.handle.id);
        assert!(matches!(first.orders.try_recv(), Ok(Order::Close(Cause::Crowded))));
        drop(second);
        assert!(registry.enter().unwrap().1.is_none());
    }

    #[test]
    fn a_second_login_of_the_same_name_takes_the_sessions_place() {
        let registry = Registry::new(1, 9);
        let (mut old, none) = log_in(&registry, "iqn.i");
        assert!(none.is_none());
        let (new, predecessor) = log_in(&registry, "iqn.i");
        assert_eq!(predecessor.unwrap().id, old.handle.id);
        assert!(matches!(old.orders.try_recv(), Ok(Order::Close(Cause::Reinstated))));
        drop(old);
        assert_eq!(registry.sessions(), 1);
        let (_newest, predecessor) = log_in(&registry, "iqn.i");
        assert_eq!(predecessor.unwrap().id, new.handle.id);
    }

    #[test]
    fn one_session_too_many_is_out_of_resources() {
        let registry = Registry::new(1, 9);
        let mut late = ticket(&registry);
        late.reserve_tsih(Some(&key("iqn.b"))).unwrap();
        let (first, _) = log_in(&registry, "iqn.a");
        assert_eq!(late.establish(key("iqn.b")).unwrap_err(), Refusal::Full);
        assert_eq!(ticket(&registry).reserve_tsih(Some(&key("iqn.c"))), Err(Refusal::Full));
        drop(first);
        assert!(late.establish(key("iqn.b")).is_ok());
    }

    #[test]
    fn discovery_sessions_take_nobodys_place_but_each_others() {
        let registry = Registry::new(1, 999);
        let (_session, _) = log_in(&registry, "iqn.a");
        let mut discoveries: Vec<_> = (0..=DISCOVERIES_MAX).map(|_| ticket(&registry)).collect();
        for discovery in &mut discoveries {
            discovery.reserve_tsih(None).unwrap();
            discovery.establish_discovery().unwrap();
        }
        assert!(matches!(discoveries[0].orders.try_recv(), Ok(Order::Close(Cause::Crowded))));
        assert!(discoveries[1].orders.try_recv().is_err());
        assert_eq!(registry.sessions(), 1);
    }

    #[test]
    fn a_tsih_is_never_0_nor_used_twice_at_a_time() {
        let registry = Registry::new(usize::from(u16::MAX), 1 << 20);
        let mut tickets: Vec<_> = (0..u16::MAX).map(|_| ticket(&registry)).collect();
        let tsihs: HashSet<u16> =
            tickets.iter_mut().map(|ticket| ticket.reserve_tsih(None).unwrap()).collect();
        assert_eq!(tsihs.len(), usize::from(u16::MAX));
        assert!(!tsihs.contains(&0));
        assert_eq!(ticket(&registry).reserve_tsih(None), Err(Refusal::Full));
        let freed = tickets.swap_remove(77).tsih.unwrap();
        assert_eq!(ticket(&registry).reserve_tsih(None), Ok(freed));
        assert!(!registry.has_session(freed));
    }

    #[test]
    fn a_closed_registry_lets_nobody_in() {
        let registry = Registry::new(9, 9);
        let mut waiting = ticket(&registry);
        let (_session, _) = log_in(&registry, "iqn.i");
        let (before_login, sessions) = registry.close();
        assert_eq!((before_login.len(), sessions.len()), (1, 1));
        assert!(registry.enter().is_none());
        assert_eq!(waiting.reserve_tsih(None), Err(Refusal::ShuttingDown));
    }

    #[tokio::test]
    async fn the_end_of_a_connection_can_be_awaited() {
        let registry = Registry::new(9, 9);
        let ticket = ticket(&registry);
        let handle = Arc::clone(&ticket.handle);
        assert!(tokio::time::timeout(Duration::from_millis(5), handle.ended()).await.is_err());
        drop(ticket);
        handle.ended().await;
    }
}
