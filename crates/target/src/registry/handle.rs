//! Handle of a connection.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, watch};

use super::order::Order;
use crate::source::SourceHost;
use crate::summary::SessionSummary;

/// The way to a connection, from anywhere.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Its number; later connections have higher ones.
    pub(crate) id: u64,
    /// Source of the connection.
    pub(super) from: IpAddr,
    pub(super) source: SourceHost,
    orders: mpsc::UnboundedSender<Order>,
    /// The logical units whose devices still have commands of the connection, once it begins no more of them.
    stopped: watch::Receiver<Option<BTreeSet<u16>>>,
    pub(super) session: OnceLock<SessionSummary>,
    /// The CmdSN that comes next in its session, once it has stopped.
    pub(super) next_cmd_sn: OnceLock<u32>,
}

impl Handle {
    /// The handle of a connection from there, and the connection's ends of it.
    pub(super) fn new(
        id: u64,
        from: IpAddr,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Order>, watch::Sender<Option<BTreeSet<u16>>>) {
        let (orders, to_connection) = mpsc::unbounded_channel();
        let (stops, stopped) = watch::channel(None);
        let handle = Self {
            id,
            from,
            source: SourceHost::from(from),
            orders,
            stopped,
            session: OnceLock::new(),
            next_cmd_sn: OnceLock::new(),
        };
        (Arc::new(handle), to_connection, stops)
    }

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
