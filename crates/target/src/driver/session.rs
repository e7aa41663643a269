//! Session state beyond the protocol: when its nexus opens, what it may see, and what becomes of others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::Owner;
use lunway_iscsi::pdu::LogoutResult;
use lunway_iscsi::target::LogoutId;

use super::Connection;
use super::end::End;
use super::executing::Executing;
use super::task_management::SessionTasks;
use super::work::{Done, Work};
use crate::registry::{self, Cause, Handle, Order};
use crate::shared::SessionContext;
use crate::summary::SessionSummary;

/// Maximum time that a new session waits until the one whose place it takes begins no command any more, which no device
/// can delay; and that a logout of another connection waits for devices.
const REINSTATEMENT_TIME: Duration = Duration::from_secs(10);
/// Further wait for commands that devices have: those that do not hang end them sooner, and the initiator need not hear
/// BUSY of them. Much shorter than any timer of a login.
const SETTLING_TIME: Duration = Duration::from_secs(1);
/// Time to log out for an initiator that may not stay.
const LEAVE_TIME: Duration = Duration::from_secs(5);

/// Takeover of the place of other connections: of those of the session that this one replaces, or of the connection
/// whose number it has.
#[derive(Default)]
pub(super) enum Takeover {
    /// There are none, or nothing is left of them.
    #[default]
    Complete,
    /// They may begin commands yet: nothing is read or sent.
    Stopping(Vec<Arc<Handle>>),
    /// They begin none any more. Devices still have commands of theirs for these logical units, which are held.
    Settling { predecessors: Vec<Arc<Handle>>, held: BTreeSet<u16> },
    /// The login has succeeded and finds no place: nothing is read or sent, and the connection ends.
    NoPlace,
}

impl Takeover {
    /// Nothing is read or sent.
    pub(super) fn is_mute(&self) -> bool {
        matches!(self, Self::Stopping(_) | Self::NoPlace)
    }

    /// The logical units that are held.
    pub(super) fn held(&self) -> Option<&BTreeSet<u16>> {
        match self {
            Self::Settling { held, .. } => Some(held),
            Self::Complete | Self::Stopping(_) | Self::NoPlace => None,
        }
    }

    /// Devices still have commands of these connections for these logical units. Has the next change of that waited
    /// for.
    pub(super) fn settling(
        predecessors: Vec<Arc<Handle>>,
        held: BTreeSet<u16>,
        executing: &mut Executing,
    ) -> Self {
        if held.is_empty() {
            return Self::Complete;
        }
        executing.push(predecessors_change(predecessors.clone(), held.clone()));
        Self::Settling { predecessors, held }
    }
}

/// The next change of the logical units that predecessors still have commands for.
fn predecessors_change(predecessors: Vec<Arc<Handle>>, held: BTreeSet<u16>) -> Work {
    Work::Elsewhere(Box::pin(async move {
        Done::Stopped(Some(registry::busy_after(&predecessors, Some(held)).await))
    }))
}

impl Connection {
    /// Full feature phase begins, after the connections whose place this one takes have stopped.
    pub(super) fn begin(&mut self, mut session: SessionContext, predecessors: Vec<Arc<Handle>>) {
        let (initiator, target) = (&session.initiator, session.target.as_deref().unwrap_or("discovery"));
        self.shared.session_log.info(&session.principal, |suppressed| {
            tracing::info!(?initiator, %target, peer = %self.ends.peer, suppressed, "logged in");
        });
        self.shared.metrics.login(true);
        if let (Some(logged_in), Some(_)) = (self.core.logged_in(), &session.target) {
            // The bound is the session's.
            self.executing.share(logged_in.negotiated.max_connections);
            let summary = SessionSummary::new(logged_in, self.ends.peer, self.ends.local);
            self.ticket.handle.describe(summary.clone());
            session.counters = Some(self.shared.metrics.open(summary));
            self.turns_of = Owner::in_groups([&session.principal, &session.initiator]);
        }
        let lease = self.shared.lease(&session, self.ends);
        self.core.set_memory(lease);
        self.session = Some(session);
        // A connection that joins may narrow the session's rights: before its first command.
        self.review();
        self.renew_limits();
        if predecessors.is_empty() {
            return self.open_nexus();
        }
        self.takeover = Takeover::Stopping(predecessors.clone());
        self.executing.push(Work::Elsewhere(Box::pin(async move {
            let stopped = registry::busy_after(&predecessors, None);
            let Ok(mut busy) = tokio::time::timeout(REINSTATEMENT_TIME, stopped).await else {
                return Done::Stopped(None);
            };
            let by = tokio::time::Instant::now() + SETTLING_TIME;
            while !busy.is_empty()
                && let Ok(less) =
                    tokio::time::timeout_at(by, registry::busy_after(&predecessors, Some(busy.clone()))).await
            {
                busy = less;
            }
            Done::Stopped(Some(busy))
        })));
    }

    /// The connections whose place this one takes begin no command any more. The session begins, but for the logical
    /// units whose devices still have commands of theirs: of these the initiator hears BUSY, so that nothing of the old
    /// session happens after something of the new one, and a device that hangs keeps no session from the others.
    pub(super) fn predecessors_stopped(&mut self, busy: BTreeSet<u16>) {
        let (predecessors, held) = match std::mem::take(&mut self.takeover) {
            Takeover::Stopping(predecessors) => (predecessors, None),
            Takeover::Settling { predecessors, held } => (predecessors, Some(held)),
            other @ (Takeover::Complete | Takeover::NoPlace) => return self.takeover = other,
        };
        let stood_at = predecessors.iter().rev().find_map(|old| old.next_cmd_sn());
        self.takeover = Takeover::settling(predecessors, busy.clone(), &mut self.executing);
        let nexus = self.session.as_ref().and_then(|session| session.nexus.as_ref());
        match (held, nexus) {
            (None, Some(joined)) => {
                joined.hold(&busy);
                self.review();
                if let Some(cmd_sn) = stood_at {
                    self.core.may_go_on_at(cmd_sn);
                }
            }
            (None, None) => self.open_nexus(),
            (Some(held), Some(nexus)) => nexus.release(&(&held - &busy)),
            (Some(_), None) => {}
        }
    }

    /// The initiator logs another connection of the session out over this one (RFC 7143 §11.14).
    pub(super) fn close_sibling(&mut self, request: LogoutId, cid: u16) {
        let Some(sibling) = self.ticket.sibling(cid) else {
            return self.core.respond_logout(request, LogoutResult::CID_NOT_FOUND);
        };
        sibling.send(Order::Close(Cause::ConnectionLoggedOut));
        self.executing.push(Work::Elsewhere(Box::pin(async move {
            let in_time = tokio::time::timeout(REINSTATEMENT_TIME, sibling.ended()).await.is_ok();
            Done::LoggedOut { request, in_time }
        })));
    }

    pub(super) fn open_nexus(&mut self) {
        let (Some(logged_in), Some(session)) = (self.core.logged_in(), &mut self.session) else { return };
        if session.target.is_none() || session.nexus.is_some() {
            return;
        }
        session.nexus = self.shared.open_nexus(logged_in, self.ends, &session.principal);
        match &session.nexus {
            Some(nexus) => {
                let registry = Arc::clone(&self.shared.registry);
                nexus.set_tasks(Arc::new(SessionTasks { registry, tsih: logged_in.tsih }));
                // Before another connection can join.
                if let Some(held) = self.takeover.held() {
                    nexus.hold(held);
                }
                self.ticket.set_nexus(nexus);
                // A change after `open_nexus` and before this has not found it.
                self.reconsider();
            }
            None => self.end(End::Ordered(Cause::Removed)),
        }
    }

    /// The session's rights follow from its connections as they are now.
    fn review(&self) {
        self.shared.review(|| self.ticket.standing().into_iter().collect());
    }

    /// The configuration of the target has changed: what the session may see and do follows, or it has to go.
    pub(super) fn reconsider(&mut self) {
        let Some(logged_in) = self.core.logged_in() else { return };
        // A session that waits for its predecessor opens its nexus as things are then.
        self.review();
        let may_stay = self.shared.admit(logged_in, self.ends).is_some();
        self.renew_limits();
        if !may_stay {
            self.core.request_logout(LEAVE_TIME, Instant::now());
            self.eventful = true;
        }
    }
}
