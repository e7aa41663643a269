//! End of a connection, and what must end before it.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use lunway_iscsi::CloseReason;
use lunway_iscsi::pdu::LoginStatus;
use tokio::net::TcpStream;

use super::session::Takeover;
use super::{Connection, Done};
use crate::registry::{self, Cause, Order};

/// Maximum time that an answer may wait to be sent when the connection ends.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// Time that the peer has to close its side after ours. Without it, unread bytes would make the kernel send a reset,
/// which can overtake our last PDU.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// Reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The protocol's reasons.
    #[error(transparent)]
    Protocol(CloseReason),
    /// We ended it for another reason.
    #[error(transparent)]
    Ordered(Cause),
    /// The peer closed it.
    #[error("the initiator closed the connection")]
    Closed,
    /// Broke.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The session whose place it was to take did not stop.
    #[error("the initiator's last session has not stopped")]
    NotReinstated,
    /// All sessions were taken between the login's first and last step.
    #[error("no place for another session")]
    NoPlace,
}

impl End {
    /// Returns the cause for the other connections of the session, if they end with this one. RFC 7143 §7.1.4.4: a
    /// connection that breaks takes its session with it, as there is no connection recovery (error recovery level 2)
    /// here.
    fn ends_session(&self) -> Option<Cause> {
        match self {
            Self::Protocol(CloseReason::ConnectionLoggedOut) => None,
            Self::Protocol(CloseReason::LoggedOut) => Some(Cause::LoggedOut),
            Self::Ordered(cause) if cause.spares_session() => None,
            Self::Ordered(cause) => Some(*cause),
            Self::Protocol(_) | Self::Closed | Self::Broken(_) | Self::NotReinstated | Self::NoPlace => {
                Some(Cause::SessionFailed)
            }
        }
    }
}

impl Connection {
    /// Ends the connection once its answers are sent. A peer that is silent is not waited for.
    pub(super) fn end(&mut self, end: End) {
        let silent = matches!(
            end,
            End::Protocol(CloseReason::LoginTimeout | CloseReason::PingTimeout | CloseReason::LogoutTimeout)
        );
        let time = if silent { Duration::ZERO } else { FLUSH_TIME };
        self.ending.get_or_insert_with(|| (end, Instant::now() + time));
    }

    /// Returns the end of the connection if it is to end now.
    pub(super) fn ended(&mut self) -> Option<End> {
        let (_, by) = self.ending.as_ref()?;
        let nothing_to_send = self.core.unsent() == 0 || self.takeover.is_mute();
        let late = Instant::now() >= *by;
        self.ending.take_if(|_| nothing_to_send || late).map(|(end, _)| end)
    }

    /// The socket first, so that the peer knows; then what the device is still doing, unit by unit, so that a session
    /// that takes this one's place waits for no more than it must; then the session's name is free.
    pub(super) async fn finish(self, end: End) {
        let Self {
            shared,
            mut core,
            mut ticket,
            session,
            mut executing,
            limited,
            mut aborts,
            ends,
            socket,
            mut takeover,
            login,
            ..
        } = self;
        let peer = ends.peer;
        // Where the last PDU is an answer that the peer waits for, or news.
        let lingers = match &end {
            End::Protocol(_) => true,
            End::Ordered(cause) => cause.is_news(),
            _ => false,
        };
        let stream = if lingers {
            Some(socket.into_stream())
        } else {
            drop(socket);
            None
        };
        if let Some(stream) = &stream {
            // RFC 7143 [7.1.4.3-1, 11.15-1]
            let _ = socket2::SockRef::from(stream).shutdown(Shutdown::Write);
        }
        if let Some(cause) = end.ends_session() {
            ticket.end_session(cause);
        }
        for cid in core.abandon() {
            if let Some(sibling) = ticket.sibling(cid) {
                sibling.send(Order::Resume);
            }
        }
        // What waits for a limit never begins.
        drop(limited);
        // Before anybody can know that the connection is over, and send elsewhere what was sent here.
        executing.give_up(|_| true);
        let nexus = session.as_ref().and_then(|session| session.nexus.clone());
        if let Some(nexus) = &nexus {
            nexus.release_waiting();
        }
        if let (Some(nexus), true) = (&nexus, end.ends_session().is_some()) {
            nexus.owner().leave();
            // What the devices have not begun is dropped when it is polled.
            executing.poll_anew();
        }
        if let Some(nexus) = &nexus {
            // RFC 7143 §11.14.5: where the session goes on, it does so without them.
            // RFC 7143 [11.14.5-1]
            core.luns_in_flight().iter().for_each(|lun| nexus.commands_lost(*lun));
        }
        if let Takeover::Stopping(predecessors) = takeover {
            // A session that waits until this one has stopped relies on its predecessors' having stopped.
            let held = registry::busy_after(&predecessors, None).await;
            executing.forget_others();
            if let Some(nexus) = &nexus {
                nexus.hold(&held);
            }
            takeover = Takeover::settling(predecessors, held, &mut executing);
        }
        // RFC 7143 [7.14-2, 11.14-2]
        let mut resets = Vec::new();
        loop {
            let own = executing.luns();
            resets.retain(|(lun, _)| match lun {
                Some(lun) => own.contains(lun),
                None => !own.is_empty(),
            });
            let held = takeover.held();
            let busy = own.into_iter().chain(held.into_iter().flatten().copied()).collect();
            if ticket.settle(&busy, core.next_cmd_sn()) {
                shared.review(|| ticket.standing().into_iter().collect());
            }
            if executing.is_idle() && held.is_none() {
                break;
            }
            let next_done = poll_fn(|cx| {
                let _entered = nexus.as_ref().map(|nexus| nexus.owner().enter());
                executing.poll_next(cx)
            });
            tokio::select! {
                done = next_done => match done {
                    Some(Done::Command { task, .. }) => aborts.ended(task),
                    Some(Done::Stopped(Some(busy))) => {
                        if let Takeover::Settling { predecessors, held } = takeover {
                            if let Some(nexus) = &nexus {
                                nexus.release(&(&held - &busy));
                            }
                            takeover = Takeover::settling(predecessors, busy, &mut executing);
                        }
                    }
                    Some(_) => {}
                    None => break,
                },
                // The commands are dropped already; who resets their unit waits for their end.
                Some(order) = ticket.orders.recv() => match order {
                    Order::AbortTasks { scope, done } => resets.push((scope.lun(), done)),
                    Order::AbortEarlier { lun, function, .. } => resets.push((lun, function.done)),
                    _ => {}
                },
            }
        }
        drop((executing, resets));
        match session {
            Some(session) => {
                if let Some(nexus) = ticket.depart() {
                    nexus.close();
                }
                drop((core, nexus));
                ticket.leave();
                let (initiator, target) =
                    (session.initiator, session.target.as_deref().unwrap_or("discovery"));
                shared.session_log.info(&session.principal, |suppressed| {
                    tracing::info!(?initiator, %target, %peer, suppressed, "connection over: {end}");
                });
            }
            None => match login.into_ask() {
                Some(ask) if is_denial(&end) => shared.denied(peer.ip(), |more| {
                    let (initiator, target) = (ask.initiator_name, ask.target_name.unwrap_or_default());
                    let more = (more > 0).then_some(more);
                    tracing::warn!(%peer, ?initiator, ?target, more, "denied: {end}");
                }),
                asked => shared.no_login(|suppressed| match asked {
                    Some(ask) => {
                        // Names come from the peer: shown escaped.
                        let (initiator, target) = (ask.initiator_name, ask.target_name.unwrap_or_default());
                        tracing::info!(%peer, ?initiator, ?target, suppressed, "no login: {end}");
                    }
                    None => tracing::debug!(%peer, suppressed, "no login: {end}"),
                }),
            },
        }
        drop(aborts);
        if let Some(stream) = stream {
            linger(&stream).await;
        }
        drop(ticket);
    }
}

/// Returns `true` if the end was a denied login.
fn is_denial(end: &End) -> bool {
    let denials = [LoginStatus::AUTHENTICATION_FAILURE, LoginStatus::AUTHORIZATION_FAILURE];
    matches!(end, End::Protocol(CloseReason::LoginRefused(status)) if denials.contains(status))
}

/// Reads and forgets until the peer closes, for a bounded time and number of bytes.
async fn linger(stream: &TcpStream) {
    const BYTES_MAX: usize = 4 << 20;
    let to_its_end = async {
        // Not an array: it would make every connection's task larger, from the start.
        let (mut scrap, mut bytes) = (vec![0; 4096], 0);
        while bytes < BYTES_MAX && stream.readable().await.is_ok() {
            match stream.try_read(&mut scrap) {
                Ok(0) => return,
                Ok(read) => bytes += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER_TIME, to_its_end).await;
}
