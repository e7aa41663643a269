//! The way back to the disk after a lost connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::BlockError;
use lunway_iscsi::pdu::Isid;
use tokio::net::TcpStream;

use crate::cache::is_power_on;
use crate::nexus::{Nexus, Purpose};
use crate::session::Session;
use crate::unit::{Unit, UnitCell};
use crate::{IscsiUrl, OpenError, OpenOptions};

/// First and last wait between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The way back to the disk after a lost connection.
///
/// Connects and logs in with the **same ISID**: at the target this reinstates the session, which first ends the old
/// one and all its tasks (RFC 7143 §6.3.5). So once the login has succeeded, nothing that was sent over the old
/// connection can reach the disk any more, and sending it again is safe. Then the unit is read again; only the same
/// disk is accepted: a target that offers another one under the old address ends the device.
///
/// After `replacement_timeout` everything that waits fails and new I/O is refused at once, while the attempts go on: a
/// device that comes back works again without being opened anew.
pub(crate) struct Recovery {
    url: IscsiUrl,
    options: OpenOptions,
    isid: Isid,
    unit: Arc<UnitCell>,
    backoff: Duration,
}

impl Recovery {
    pub(crate) fn new(url: IscsiUrl, options: OpenOptions, isid: Isid, unit: Arc<UnitCell>) -> Self {
        Self { url, options, isid, unit, backoff: BACKOFF.0 }
    }

    pub(crate) fn options(&self) -> &OpenOptions {
        &self.options
    }

    pub(crate) fn portal(&self) -> String {
        self.url.portal()
    }

    /// Reads the unit's shape again over the connection that is there.
    pub(crate) fn refresh(&self, session: &Arc<Session>) {
        let (session, unit) = (session.clone(), self.unit.clone());
        let (portal, patience) = (self.portal(), self.options.command_timeout);
        tokio::spawn(async move { unit.refresh(session, portal, patience).await });
    }

    /// Tries until it has the disk again, and gives the session its new connection. An error is for ever.
    pub(crate) async fn run(&mut self, session: &Arc<Session>, why: String) -> Result<TcpStream, String> {
        // RFC 7143 [7.1.4.3-1]
        let lost = Instant::now();
        let deadline = lost + self.options.replacement_timeout;
        let mut given_up = session.lock().refuses();
        let mut last = why;
        self.backoff = BACKOFF.0;
        loop {
            let mut attempt = Box::pin(self.attempt());
            let result = loop {
                tokio::select! {
                    biased;
                    () = session.closing.notified() => return Err("it was closed".to_owned()),
                    result = &mut attempt => break result,
                    () = tokio::time::sleep_until(deadline.into()), if !given_up => {
                        given_up = true;
                        self.give_up(session, &last);
                    }
                }
            };
            drop(attempt);
            match result {
                Ok((nexus, unit)) => return self.resume(session, nexus, unit, lost).await,
                Err(error) => {
                    tracing::debug!(%error, "no connection yet");
                    last = error.to_string();
                }
            }
            self.backoff = (self.backoff * 2).min(BACKOFF.1);
        }
    }

    fn give_up(&self, session: &Session, last: &str) {
        let waited = self.options.replacement_timeout;
        let why = format!("no connection to {} for {} ms: {last}", self.portal(), waited.as_millis());
        tracing::error!("{why}");
        session.change(|state| state.give_up(&BlockError::Gone { why }, waited));
    }

    async fn resume(
        &self,
        session: &Arc<Session>,
        nexus: Nexus,
        unit: Unit,
        lost: Instant,
    ) -> Result<TcpStream, String> {
        if let Err(why) = self.unit.same_disk(&unit) {
            tracing::error!(portal = nexus.portal(), "{why}");
            nexus.logout().await;
            return Err(why);
        }
        let volatile = unit.shape.geometry.volatile_cache;
        let power_on = unit.attentions.iter().copied().find(|&code| is_power_on(code));
        self.unit.replace(&unit);
        let (stream, core) = nexus.into_parts();
        session.change(|state| {
            // Before the flushes that wait are sent again: they are the ones to report a loss.
            if let Some(code) = power_on {
                state.attention(code);
            }
            state.connect(core, volatile, Instant::now());
        });
        tracing::info!(portal = self.portal(), millis = lost.elapsed().as_millis() as u64, "connected again");
        Ok(stream)
    }

    async fn attempt(&self) -> Result<(Nexus, Unit), OpenError> {
        tokio::time::sleep(self.backoff).await;
        // RFC 7143 [6.3.5-1, 6.3.5-2, 7.14-1, 7.15-1]
        let mut nexus = Nexus::dial(&self.url, &self.options, self.isid, Purpose::Normal).await?;
        let unit = self.unit.learn(&mut nexus).await?;
        Ok((nexus, unit))
    }
}
