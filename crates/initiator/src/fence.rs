//! Proof that a lost session is dead, by other paths than its own.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_iscsi::pdu::Isid;
use lunway_scsi::AdditionalSense;

use crate::fresh_session::{FreshSession, Purpose};
use crate::{IscsiOpenError, IscsiUrl, SessionOptions};

/// After a path without an answer the next one is tried beside it, this much later (as addresses are in RFC 8305, but
/// with round trips of storage networks in mind).
const STAGGER: Duration = Duration::from_millis(50);

/// For one path, from the first packet to the end of the login. What takes longer does not help, since no attempt is
/// made over the session's own path meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// For the logout from the session that was made for the proof.
const GOODBYE: Duration = Duration::from_millis(200);

/// Most paths that are tried.
const DETOURS_MAX: usize = 32;

/// Ends a lost session by logging in with its name over a detour.
///
/// To a target a session is named by the initiator's name and ISID and the target's name and portal group. A login with
/// TSIH 0 under a name that is in use takes the old session's place, and succeeds only when all tasks of that one have
/// ended (session reinstatement, RFC 7143 §6.3.5). Over which portal of the group it comes does not matter. So a
/// success over any cable proves that nothing of the lost session will ever reach the disk, while that one's own cable
/// is still dead.
///
/// The unit is then asked for what a target's store may still be doing of it: [`FreshSession::outwait`].
///
/// A login that reaches another portal group proves nothing, as it makes another session; it is logged out like the
/// rest.
///
/// **Invariant**: when [`run`](Self::run) has ended, nothing is left of its attempts that could succeed later and then
/// end the device's next session: they are cut off, which discards what was sent and has not arrived.
pub(crate) struct Fence<'a> {
    pub(crate) url: &'a IscsiUrl,
    pub(crate) options: &'a SessionOptions,
    pub(crate) isid: Isid,
    /// Portal group of the lost session.
    pub(crate) portal_group: u16,
}

impl Fence<'_> {
    /// A session in the place of the lost one, to be logged out, and the unit attentions that it met; none if nothing
    /// is proven.
    pub(crate) async fn run(&self, detours: Vec<IscsiUrl>) -> Option<(FreshSession, Vec<AdditionalSense>)> {
        let options = SessionOptions {
            connect_timeout: PATIENCE,
            login_timeout: PATIENCE,
            logout_timeout: GOODBYE,
            ..self.options.clone()
        };
        let mut waiting = detours.into_iter().take(DETOURS_MAX).map(|detour| self.path(detour)).peekable();
        let mut running = FuturesUnordered::new();
        loop {
            running.extend(waiting.next().map(|path| Box::pin(self.log_in(path, &options))));
            let next = tokio::time::sleep(STAGGER);
            tokio::pin!(next);
            let proof = loop {
                tokio::select! {
                    Some(ended) = running.next() => match ended {
                        Some(proof) => break Some(proof),
                        None if waiting.peek().is_some() => break None,
                        None => {}
                    },
                    () = &mut next, if waiting.peek().is_some() => break None,
                    else => return None,
                }
            };
            if proof.is_some() {
                return proof;
            }
        }
    }

    /// The device's own address by another path.
    fn path(&self, detour: IscsiUrl) -> IscsiUrl {
        IscsiUrl { host: detour.host, port: detour.port, from: detour.from, ..self.url.clone() }
    }

    async fn log_in(
        &self,
        path: IscsiUrl,
        options: &SessionOptions,
    ) -> Option<(FreshSession, Vec<AdditionalSense>)> {
        match tokio::time::timeout(PATIENCE, self.prove(&path, options)).await {
            Ok(Ok(proof)) => proof,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a detour does not help");
                None
            }
            Err(_) => {
                tracing::debug!(portal = %path.portal(), "a detour does not help in time");
                None
            }
        }
    }

    // RFC 7143 [6.3.5-1]
    async fn prove(
        &self,
        path: &IscsiUrl,
        options: &SessionOptions,
    ) -> Result<Option<(FreshSession, Vec<AdditionalSense>)>, IscsiOpenError> {
        let mut fresh = FreshSession::dial(path, options, self.isid, Purpose::Normal, None).await?;
        if fresh.portal_group() != Some(self.portal_group) {
            tracing::debug!(portal = %path.portal(), "a detour leads to another portal group");
            fresh.logout().await;
            return Ok(None);
        }
        let mut attentions = Vec::new();
        fresh.outwait(&mut attentions).await?;
        Ok(Some((fresh, attentions)))
    }
}
