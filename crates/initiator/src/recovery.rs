//! Recovery: reconnection to the disk after a lost connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lunway_block::BlockError;
use lunway_block::duration::HumanTime;
use lunway_iscsi::pdu::Isid;
use lunway_scsi::AdditionalSense;
use tokio::net::TcpStream;

use crate::fence::Fence;
use crate::fresh_session::{FreshSession, Purpose};
use crate::ports::initiator_port::ClaimedPort;
use crate::session::cache::is_power_on;
use crate::session::{BREACHES_MAX, Session};
use crate::unit::{Unit, UnitCell};
use crate::{IscsiOpenError, IscsiUrl, SessionEvent, SessionOptions};

/// First wait before an attempt; each further one is twice as long.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// A session that lives shorter than this before a breach of the protocol has ended soon after its login: commands that
/// waited are sent at once, and their answers are looked for within the default `command_timeout`.
const SOON: Duration = Duration::from_secs(30);

/// Between attempts over a port that is said to be dead: some, as packets may leave by another port than the one with
/// the address. Rare, as each may cost the port a second when it is back.
const WAIT_PORT_DOWN: Duration = Duration::from_secs(30);

/// Reconnection to the disk after a lost connection.
///
/// Connects and logs in with the **same ISID**: at the target this reinstates the session, which first ends the old
/// one and all its tasks (RFC 7143 §6.3.5). So once the login has succeeded, nothing that was sent over the old
/// connection can reach the disk any more, and sending it again is safe. Then the unit is read again; only the same
/// disk is accepted: a target that offers another one under the old address ends the device.
///
/// Where there are detours, they come first: [`Fence`] proves by one of them that the old session is dead. Attempts
/// over the device's own path begin only when nothing of the fence is left, as each would end the other's session.
///
/// After `replacement_timeout` everything that waits fails and new I/O is refused at once, while the attempts go on: a
/// device that comes back works again without being opened anew. The time counts from the first loss on, over all
/// sessions that carry out nothing: a target that accepts logins and hangs up at each command gains nothing by them.
/// Each of these sessions doubles the wait before the next login, up to `retry_max`.
pub(crate) struct Recovery {
    url: IscsiUrl,
    options: SessionOptions,
    isid: Isid,
    /// The record of it, for the next process.
    port: Mutex<Option<ClaimedPort>>,
    unit: Arc<UnitCell>,
    /// Start of the current or last session.
    up_since: Instant,
    /// Number of sessions in a row that soon ended by a breach of the protocol.
    breaches: u32,
    /// Number of sessions in a row that have ended soon and carried out nothing.
    barren: u32,
    /// The first loss since a session carried out something, where callers have waited ever since.
    waiting_since: Option<Instant>,
    /// The last of these breaches without its numbers, and how many in a row were the same.
    habit: (String, u32),
}

/// The end of one session, and what is known of it.
struct Loss {
    epoch: u64,
    at: Instant,
    /// Proven that nothing of it is left.
    settled: bool,
    /// With the target's name, the port that it went to.
    portal_group: Option<u16>,
    /// Reason why the connection was lost, for people.
    why: String,
    /// Last error, for people.
    last: Mutex<String>,
}

impl Loss {
    fn note(&self, error: &IscsiOpenError) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
    }
}

impl Recovery {
    pub(crate) fn new(
        url: IscsiUrl,
        options: SessionOptions,
        isid: Isid,
        port: Option<ClaimedPort>,
        unit: Arc<UnitCell>,
    ) -> Self {
        let port = Mutex::new(port);
        Self {
            url,
            options,
            isid,
            port,
            unit,
            up_since: Instant::now(),
            breaches: 0,
            barren: 0,
            waiting_since: None,
            habit: Default::default(),
        }
    }

    /// Nothing is left of the device's sessions at the target.
    pub(crate) fn release_port(&self) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner).take();
        port.into_iter().for_each(ClaimedPort::release);
    }

    pub(crate) fn options(&self) -> &SessionOptions {
        &self.options
    }

    pub(crate) fn portal(&self) -> String {
        self.url.portal()
    }

    /// A session has ended, perhaps by a breach of the protocol, and has carried out something or nothing. What ends
    /// sessions soon after their logins will end the next one too: the wait before that grows.
    ///
    /// An error is for ever: the same breach in [`BREACHES_MAX`] sessions in a row, of a lane. Where this is the only
    /// path, each command counts for itself (`SessionState::blame`); the commands of a lane go to others meanwhile, and
    /// come back as new ones.
    pub(crate) fn note_end(&mut self, breach: Option<&str>, carried_out: bool) -> Result<(), String> {
        let lived = self.up_since.elapsed();
        self.barren = if carried_out || lived >= SOON { 0 } else { self.barren.saturating_add(1) };
        if carried_out || lived >= SOON.max(self.options.replacement_timeout) {
            self.waiting_since = None;
        }
        let Some(why) = breach.filter(|_| lived < SOON) else {
            (self.breaches, self.habit.1) = (0, 0);
            return Ok(());
        };
        self.breaches = self.breaches.saturating_add(1);
        // Tags and offsets are others each time.
        let kind: String = why.chars().filter(|c| !c.is_ascii_digit()).collect();
        match self.habit.0 == kind {
            true => self.habit.1 += 1,
            false => self.habit = (kind, 1),
        }
        match self.habit.1 >= BREACHES_MAX && self.options.part().fails_fast() {
            true => Err(format!(
                "the target at {} broke the protocol in the same way in {BREACHES_MAX} sessions in a row: {why}",
                self.portal()
            )),
            false => Ok(()),
        }
    }

    /// Before the first attempt to connect.
    fn first_wait(&self) -> Duration {
        // One unused session may end at once: a target that restarts, a cable that is plugged in again.
        let in_a_row = self.breaches.max(self.barren.saturating_sub(1));
        let wait = WAIT_MIN * 2u32.saturating_pow(in_a_row.min(16));
        wait.min(self.options.retry_max.max(WAIT_MIN))
    }

    /// Reads the unit's shape again over the connection that is there.
    pub(crate) fn refresh(&self, session: &Arc<Session>) {
        let (session, unit) = (session.clone(), self.unit.clone());
        let (portal, patience) = (self.portal(), self.options.command_timeout);
        tokio::spawn(async move { unit.refresh(session, portal, patience).await });
    }

    /// Reads the state of access again over the connection that is there.
    pub(crate) fn refresh_access(&self, session: &Arc<Session>) {
        let (session, unit) = (session.clone(), self.unit.clone());
        let (portal, patience) = (self.portal(), self.options.command_timeout);
        tokio::spawn(async move { unit.refresh_access(session, portal, patience).await });
    }

    /// Tries until it has the disk again, and gives the session its new connection. An error is for ever. `settled`:
    /// the old session was logged out.
    pub(crate) async fn run(
        &mut self,
        session: &Arc<Session>,
        why: String,
        settled: bool,
    ) -> Result<TcpStream, String> {
        // RFC 7143 [7.1.4.3-1]
        let at = Instant::now();
        let (mut given_up, portal_group, awaited) = {
            let state = session.lock();
            (state.refuses(), state.peer.portal_group, state.slots.unanswered() > 0)
        };
        // Without a waiting operation, none has waited since an earlier loss either.
        self.waiting_since = self.waiting_since.or(Some(at)).filter(|_| awaited);
        let deadline = self.waiting_since.unwrap_or(at) + self.options.replacement_timeout;
        let last = Mutex::new(why.clone());
        let loss = Loss { epoch: session.epoch(), at, settled, portal_group, why, last };
        let last = || loss.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut attempts = Box::pin(self.try_on(session, &loss));
        let (fresh, unit) = loop {
            tokio::select! {
                biased;
                () = session.closing.notified() => return Err("it was closed".to_owned()),
                found = &mut attempts => break found,
                () = tokio::time::sleep_until(deadline.into()), if !given_up => {
                    given_up = true;
                    self.give_up(session, &last());
                }
            }
        };
        drop(attempts);
        if session.lock().slots.unanswered() > 0 {
            self.waiting_since.get_or_insert(at);
        }
        self.resume(session, fresh, unit, loss.at).await
    }

    fn give_up(&self, session: &Session, last: &str) {
        let waited = self.options.replacement_timeout;
        let why = format!("no session with {} for {}: {last}", self.portal(), HumanTime(waited));
        tracing::error!("{why}");
        session.change(|state| state.give_up(&BlockError::gone(why), waited));
    }

    async fn try_on(&self, session: &Session, loss: &Loss) -> (FreshSession, Unit) {
        // Conditions that an attempt met which failed later: told once to each nexus, so no later session hears of
        // them.
        let mut met = Vec::new();
        let mut settled = loss.settled || self.fence(session, loss).await;
        // What gave hope before the loss gives none now.
        let _ = session.hope.notified().now_or_never();
        let mut wait = self.first_wait();
        loop {
            if pause(session, wait).await {
                wait = WAIT_MIN;
            }
            match self.attempt(session, loss, &mut settled, &mut met).await {
                Ok(found) => {
                    session.set_port_down(false);
                    return found;
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection yet");
                    session.change(|state| {
                        state.note_event(format!("connection lost: {}; no new one: {error}", loss.why));
                    });
                    loss.note(&error);
                }
            }
            wait = (wait * 2).min(self.options.retry_max.max(WAIT_MIN));
        }
    }

    /// Tries to end the old session by other ways than its own. Says whether it did.
    async fn fence(&self, session: &Session, loss: &Loss) -> bool {
        let (Some(detours), Some(portal_group)) = (&self.options.detours, loss.portal_group) else {
            return false;
        };
        let fence = Fence { url: &self.url, options: &self.options, isid: self.isid, portal_group };
        let Some((fresh, attentions)) = fence.run(detours.find()).await else { return false };
        // Told once to each nexus: the device's next session may not hear of it again.
        if attentions.into_iter().any(is_power_on) {
            session.tell(SessionEvent::PowerOn);
        }
        session.tell(SessionEvent::Settled { epoch: loss.epoch });
        fresh.logout().await;
        true
    }

    async fn attempt(
        &self,
        session: &Session,
        loss: &Loss,
        settled: &mut bool,
        met: &mut Vec<AdditionalSense>,
    ) -> Result<(FreshSession, Unit), IscsiOpenError> {
        // RFC 7143 [6.3.5-1, 6.3.5-2, 7.14-1, 7.15-1]
        let hope = Some(&session.hope);
        let mut fresh =
            FreshSession::dial(&self.url, &self.options, self.isid, Purpose::Normal, hope).await?;
        if let Some(port) = &mut *self.port.lock().unwrap_or_else(PoisonError::into_inner) {
            fresh.record(port, &self.url)?;
        }
        let same_port = loss.portal_group.is_none() || fresh.portal_group() == loss.portal_group;
        if self.options.part().fails_fast() && !*settled && !same_port {
            // Another session beside the lost one, of which it proves nothing.
            let portal = fresh.portal().to_owned();
            fresh.logout().await;
            return Err(IscsiOpenError::OtherPort { portal });
        }
        if !*settled {
            let occupied = || IscsiOpenError::Occupied { portal: self.portal() };
            loss.note(&occupied());
            fresh.outwait(met).await.map_err(|error| match error {
                IscsiOpenError::Command { .. } | IscsiOpenError::Timeout { .. } => occupied(),
                other => other,
            })?;
            *settled = true;
            session.tell(SessionEvent::Settled { epoch: loss.epoch });
        }
        let mut unit = self.unit.learn(&mut fresh).await?;
        unit.attentions.append(met);
        Ok((fresh, unit))
    }

    async fn resume(
        &mut self,
        session: &Arc<Session>,
        fresh: FreshSession,
        unit: Unit,
        lost: Instant,
    ) -> Result<TcpStream, String> {
        if let Err(why) = self.unit.same_disk(&unit) {
            // The observer says it better.
            match session.is_observed() {
                true => tracing::debug!(portal = fresh.portal(), "{why}"),
                false => tracing::error!(portal = fresh.portal(), "{why}"),
            }
            fresh.logout().await;
            return Err(why);
        }
        let volatile = unit.shape.geometry.volatile_cache;
        let power_on = unit.attentions.iter().copied().find(|&code| is_power_on(code));
        self.unit.replace(&unit);
        let (stream, core) = fresh.into_parts();
        session.change(|state| {
            // Before the flushes that wait are sent again: they are the ones to report a loss.
            if let Some(code) = power_on {
                state.attention(code);
            }
            state.peer.access = None;
        });
        if let Some(access) = unit.access {
            session.note_access(access);
        }
        session.tell_news();
        session.connect(core, volatile);
        self.up_since = Instant::now();
        session.tell(SessionEvent::Up { epoch: session.epoch() });
        let millis = lost.elapsed().as_millis() as u64;
        match session.is_observed() {
            true => tracing::debug!(portal = self.portal(), millis, "connected again"),
            false => tracing::info!(portal = self.portal(), millis, "connected again"),
        }
        Ok(stream)
    }
}

/// Waits before an attempt to connect. Says whether something has given hope meanwhile: of a dead port only its own
/// return does.
async fn pause(session: &Session, wait: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let wait = if session.is_port_down() { WAIT_PORT_DOWN } else { wait };
        match tokio::time::timeout_at((begun + wait).into(), session.hope.notified()).await {
            Ok(()) if session.is_port_down() => {}
            hope => return hope.is_ok(),
        }
    }
}
