//! Ticket of a connection: its part in the registry.

use std::collections::BTreeSet;
use std::sync::Arc;

use lunway_scsi::Nexus;
use tokio::sync::{mpsc, watch};

use super::order::{Cause, Order};
use super::session::{Joinable, Member, Refusal, SessionEntry, SessionKey, Standing};
use super::{Handle, Registry};

/// Discovery sessions at a time: each lasts a moment unless it means harm.
pub(super) const DISCOVERIES_MAX: usize = 64;

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
    pub(super) tsih: Option<u16>,
    /// The session that it is a connection of.
    session: Option<u64>,
    /// Dropped last, with the ticket: the session that waits for the end may then take its place.
    stopped: watch::Sender<Option<BTreeSet<u16>>>,
}

impl Ticket {
    pub(super) fn new(
        registry: Arc<Registry>,
        handle: Arc<Handle>,
        orders: mpsc::UnboundedReceiver<Order>,
        stopped: watch::Sender<Option<BTreeSet<u16>>>,
    ) -> Self {
        Self { registry, handle, orders, tsih: None, session: None, stopped }
    }

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
        let predecessor = inner.sessions.holder(&key);
        inner.has_place(&key)?;
        let tsih = self.tsih.take().ok_or(Refusal::NoSession)?;
        let id = self.handle.id;
        inner.before_login.leave(id);
        let predecessor = predecessor.and_then(|old| inner.sessions.get_mut(old));
        let leaving = predecessor.map_or_else(Vec::new, |old| {
            (old.replaced, old.over) = (true, true);
            old.handles().cloned().collect()
        });
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
        if let Some(session) = self.session.and_then(|id| inner.sessions.get_mut(id)) {
            session.nexus = Some(Arc::clone(nexus));
        }
    }

    /// Basis of the rights of its session.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.registry.lock().sessions.get(self.session?)?.standing()
    }

    /// The session's other connections.
    pub(crate) fn siblings(&self) -> Vec<Arc<Handle>> {
        let inner = self.registry.lock();
        let session = self.session.and_then(|id| inner.sessions.get(id));
        let handles = session.into_iter().flat_map(SessionEntry::handles);
        handles.filter(|handle| handle.id != self.handle.id).cloned().collect()
    }

    /// The session's connection with this number, another than this one.
    pub(crate) fn sibling(&self, cid: u16) -> Option<Arc<Handle>> {
        let inner = self.registry.lock();
        let mut members = inner.sessions.get(self.session?)?.connections.iter().rev();
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
        let session = self.session.and_then(|id| inner.sessions.get_mut(id));
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
            let session = self.session.and_then(|id| inner.sessions.get_mut(id));
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
        let session = inner.sessions.get_mut(self.session?)?;
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
            && let Some(session) = inner.sessions.get_mut(session_id)
        {
            session.connections.retain(|member| member.handle.id != id);
            if session.connections.is_empty()
                && let Some(SessionEntry { tsih, .. }) = inner.sessions.remove(session_id)
            {
                inner.tsihs.remove(&tsih);
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
