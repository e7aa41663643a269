//! A fresh session with a target, used by one caller for one thing at a time.

use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};
use lunway_iscsi::chap::ChapAlgorithm;
use lunway_iscsi::initiator::{InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission};
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig, LoggedIn, LoginError};
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::{Isid, LoginStatus, ServiceResponse, TaskAttribute};
use lunway_iscsi::{Cdb, CloseReason, SendTargets, TargetRecord};
use lunway_scsi::{AdditionalSense, Lun, Sense, Status, cdb};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::connection::probe::Probe;
use crate::connection::silence::{Sign, Watch, black_hole};
use crate::connection::wire::{self, Alarm};
use crate::dialling::{Dialling, close_in_order};
use crate::options::initiator_name;
use crate::ports::initiator_port::ClaimedPort;
use crate::session::{REJECTS_MAX, Rejection, portal_group_of, reject_wait};
use crate::unit::exchange::{ATTENTIONS_MAX, Answer, Exchange};
use crate::url::portal_of;
use crate::{IscsiOpenError, IscsiUrl, SessionOptions};

/// Most targets that one login may be sent on through (RFC 7143 §11.13.5, status class 1).
const REDIRECTS_MAX: usize = 4;

/// First and last wait for a unit that is busy.
const BUSY_WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Listing targets.
    Discovery,
    /// I/O with the target of the address.
    Normal,
}

/// A fresh session with a target: dialled, logged in, and used for one command at a time.
///
/// Opening, listing and inspecting use nothing else. A device hands `stream` and `core` to its driver once it knows the
/// logical unit, and comes back to a new one after each lost connection.
pub(crate) struct FreshSession {
    stream: TcpStream,
    core: InitiatorConnection,
    portal: String,
    lun: Lun,
    alarm: Alarm,
    command_timeout: Duration,
    logout_timeout: Duration,
    token: u64,
    watch: Option<(Watch, Probe)>,
    /// Time at which bytes came last; `None`: never.
    heard: Option<Instant>,
}

impl FreshSession {
    /// Connects and logs in, following redirections. See [`Dialling`] for `hope`.
    pub(crate) async fn dial(
        url: &IscsiUrl,
        options: &SessionOptions,
        isid: Isid,
        purpose: Purpose,
        hope: Option<&Notify>,
    ) -> Result<Self, IscsiOpenError> {
        let dialling = Dialling { url, options, hope };
        let mut portal = (url.host.clone(), url.port);
        let mut config = connection_config(url, options, isid, purpose);
        for _ in 0..=REDIRECTS_MAX {
            match Self::log_in(&portal.0, portal.1, &dialling, config.clone()).await {
                Err(IscsiOpenError::Login {
                    error: LoginError::Refused(LoginStatus::INITIATOR_ERROR),
                    ..
                }) if without_sha256(&mut config) => {}
                Err(IscsiOpenError::Login { error: LoginError::AuthenticationFailed, portal })
                    if url.account.is_none() =>
                {
                    return Err(IscsiOpenError::ChapRequired { portal });
                }
                // RFC 7143 [11.13.5-2, 11.13.5-3]
                Err(IscsiOpenError::Login { error: LoginError::Redirected { address, .. }, .. }) => {
                    // `host:port[,portal group]`, RFC 7143 §13.8.
                    let address = address.split(',').next().unwrap_or_default();
                    portal =
                        portal_of(address).map_err(|_| IscsiOpenError::Redirects { portal: url.portal() })?;
                }
                other => return other,
            }
        }
        Err(IscsiOpenError::Redirects { portal: url.portal() })
    }

    async fn log_in(
        host: &str,
        port: u16,
        dialling: &Dialling<'_>,
        config: InitiatorConnectionConfig,
    ) -> Result<Self, IscsiOpenError> {
        let stream = dialling.connect(host, port).await?;
        let Dialling { url, options, .. } = dialling;
        let portal = stream.peer_addr().map_or_else(|_| url.portal(), |address| address.to_string());
        let now = Instant::now();
        let watch =
            options.silence.and_then(|silence| Some((Watch::new(silence, now), Probe::of(&stream).ok()?)));
        let mut fresh = Self {
            stream,
            watch,
            heard: None,
            core: InitiatorConnection::new(config, now),
            portal,
            lun: Lun::new(url.lun.unwrap_or(0)),
            alarm: Alarm::new(),
            command_timeout: options.command_timeout,
            logout_timeout: options.logout_timeout,
            token: 0,
        };
        // The core has its own limit; this one is for a core that is never asked because bytes trickle.
        let deadline = now + options.login_timeout + Duration::from_secs(1);
        loop {
            match fresh.event("the login", options.login_timeout, deadline).await? {
                InitiatorEvent::LoggedIn(_) => return Ok(fresh),
                InitiatorEvent::Closing(reason) => return Err(fresh.closed(reason)),
                _ => {}
            }
        }
    }

    /// Portal of the session, for errors.
    pub(crate) fn portal(&self) -> &str {
        &self.portal
    }

    /// The portal group that it reached.
    pub(crate) fn portal_group(&self) -> Option<u16> {
        portal_group_of(&self.core)
    }

    /// Waits for what older sessions have left with the unit, after a login that took the place of one.
    ///
    /// The login alone should be enough: it succeeds when the old session's tasks have ended (RFC 7143 §6.3.5). Not
    /// every target waits for those that its store is carrying out: a write of the old session that took tgt 700 ms
    /// reached the medium half a second after the new login. But the unit's task set is the same one for all nexuses,
    /// and in it an ORDERED command begins only when all older ones have ended (SAM-5 §8.6.3), so one that asks nothing
    /// is answered when nothing is left. Where targets wait at the login it costs a round trip. It is asked again as
    /// long as the answer [does not come from the task set](Answer::is_of_the_task_set).
    ///
    /// Two answers leave it with the login's word. RESERVATION CONFLICT comes before the command's turn, and for as
    /// long as the reservation is held. And a unit with a task set for each nexus (TST of its Control mode page) does
    /// not know of another nexus's commands.
    pub(crate) async fn outwait(
        &mut self,
        attentions: &mut Vec<AdditionalSense>,
    ) -> Result<(), IscsiOpenError> {
        let until = Instant::now() + self.command_timeout;
        let mut wait = BUSY_WAIT.0;
        let mut why = "unit attentions without end".to_owned();
        let mut told = 0;
        while told < ATTENTIONS_MAX {
            let answer = self.command(&cdb::test_unit_ready(), 0, TaskAttribute::ORDERED).await?;
            if let Some(code) = answer.attention() {
                attentions.push(code);
                told += 1;
                continue;
            }
            if answer.is_of_the_task_set() || answer.status == Status::RESERVATION_CONFLICT {
                return Ok(());
            }
            why = answer.describe();
            if Instant::now() >= until {
                break;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(BUSY_WAIT.1);
        }
        Err(IscsiOpenError::Command { portal: self.portal.clone(), command: "TEST UNIT READY", why })
    }

    /// Returns the parts with which a driver continues.
    pub(crate) fn into_parts(self) -> (TcpStream, InitiatorConnection) {
        (self.stream, self.core)
    }

    /// Names and parameters of the session.
    pub(crate) fn logged_in(&self) -> Option<&LoggedIn> {
        self.core.logged_in()
    }

    /// Sends later commands to another logical unit.
    pub(crate) fn address(&mut self, lun: Lun) {
        self.lun = lun;
    }

    /// Asks for targets.
    pub(crate) async fn targets(&mut self, which: SendTargets) -> Result<Vec<TargetRecord>, IscsiOpenError> {
        self.core.send_targets(&which);
        let deadline = Instant::now() + self.command_timeout;
        loop {
            match self.event("SendTargets", self.command_timeout, deadline).await? {
                InitiatorEvent::Targets(targets) => return Ok(targets),
                InitiatorEvent::Closing(reason) => return Err(self.closed(reason)),
                _ => {}
            }
        }
    }

    /// Records the portal group that it reached, before anything is written over it.
    pub(crate) fn record(&self, port: &mut ClaimedPort, url: &IscsiUrl) -> Result<(), IscsiOpenError> {
        // Every target names its group (RFC 7143 §13.9); one that does not has one.
        let group = self.portal_group().unwrap_or_default();
        let failed = |error: std::io::Error| IscsiOpenError::Record {
            portal: self.portal.clone(),
            why: error.to_string(),
        };
        port.note(group, &self.portal, url.from).map_err(failed)
    }

    /// Ends the session in order, or at least soon. Says whether in order.
    // RFC 7143 [4.2.6-1]
    pub(crate) async fn logout(mut self) -> bool {
        self.core.logout();
        let deadline = Instant::now() + self.logout_timeout;
        loop {
            match self.event("the logout", self.logout_timeout, deadline).await {
                Ok(InitiatorEvent::Closing(CloseReason::LoggedOut)) => {
                    close_in_order(&self.stream);
                    return true;
                }
                Err(_) | Ok(InitiatorEvent::Closing(_)) => return false,
                Ok(_) => {}
            }
        }
    }

    /// The next event.
    async fn event(
        &mut self,
        what: &str,
        patience: Duration,
        deadline: Instant,
    ) -> Result<InitiatorEvent, IscsiOpenError> {
        loop {
            match self.core.poll_event() {
                Some(InitiatorEvent::Tolerated(what)) => {
                    log_tolerated(&self.core, &what);
                    continue;
                }
                Some(event) => return Ok(event),
                None => {}
            }
            let moved = wire::send(&self.stream, &mut self.core)
                .and_then(|_| wire::receive(&self.stream, &mut self.core, false));
            self.keep_watch(matches!(moved, Ok(true)))?;
            match moved {
                // Bytes that came before the end may explain it.
                Err(error) => match self.core.poll_event() {
                    Some(event) => return Ok(event),
                    None => {
                        return Err(IscsiOpenError::Lost {
                            portal: self.portal.clone(),
                            why: error.to_string(),
                        });
                    }
                },
                Ok(true) => {
                    self.heard = Some(Instant::now());
                    continue;
                }
                Ok(false) => {}
            }
            let now = Instant::now();
            if now >= deadline {
                let millis = patience.as_millis() as u64;
                return Err(IscsiOpenError::Timeout {
                    portal: self.portal.clone(),
                    what: what.to_owned(),
                    millis,
                    silent_millis: self.heard.map(|at| now.duration_since(at).as_millis() as u64),
                });
            }
            let next = self.core.next_timeout();
            if next.is_some_and(|at| at <= now) {
                self.core.handle_timeout(now);
                continue;
            }
            let look = self.watch.as_ref().and_then(|(watch, _)| watch.next());
            let until = [next, look].into_iter().flatten().fold(deadline, Instant::min);
            wire::wait(&self.stream, self.core.unsent() > 0, &mut self.alarm, Some(until)).await;
        }
    }

    /// The caller waits for an answer.
    fn keep_watch(&mut self, heard: bool) -> Result<(), IscsiOpenError> {
        let Some((watch, probe)) = &mut self.watch else { return Ok(()) };
        let now = Instant::now();
        watch.note(heard, true, now);
        if !watch.is_time(now) {
            return Ok(());
        }
        match watch.look(probe.ask(), now) {
            Sign::Silent => {
                self.core.ping();
                // An error is told by the next call.
                let _ = wire::send(&self.stream, &mut self.core);
                watch.asked(probe.ask(), now);
                Ok(())
            }
            Sign::Dead(time) => {
                Err(IscsiOpenError::Lost { portal: self.portal.clone(), why: black_hole(time) })
            }
            Sign::None | Sign::Heard => Ok(()),
        }
    }

    async fn command(
        &mut self,
        cdb: &[u8],
        data_in: usize,
        attribute: TaskAttribute,
    ) -> Result<Answer, IscsiOpenError> {
        let mut submission = Some(self.submission(cdb, data_in, attribute));
        let mut rejects = 0;
        let deadline = Instant::now() + self.command_timeout;
        loop {
            if let Some(waiting) = submission.take() {
                submission = self.core.submit(waiting).err();
            }
            // A window that opens is no event: look again now and then.
            let patience = if submission.is_some() { Duration::from_millis(20) } else { Duration::MAX };
            let until = Instant::now().checked_add(patience).map_or(deadline, |at| at.min(deadline));
            let event = self.event("a command", self.command_timeout, until).await;
            if until < deadline && matches!(event, Err(IscsiOpenError::Timeout { .. })) {
                continue;
            }
            match event? {
                InitiatorEvent::Completed(done) if done.token == self.token => {
                    if done.response != ServiceResponse::COMPLETED {
                        let why = "the target failed to execute a command".to_owned();
                        return Err(IscsiOpenError::Lost { portal: self.portal.clone(), why });
                    }
                    let mut data = done.data_in;
                    data.truncate(done.data_in_len);
                    let sense = Sense::parse(&done.sense);
                    return Ok(Answer { status: Status(done.status), sense, data });
                }
                InitiatorEvent::Rejected { token, reason, .. } if token == self.token => {
                    if Rejection::of(reason) != Rejection::Again || rejects == REJECTS_MAX {
                        let why = format!("the target rejected a command: {reason}");
                        return Err(IscsiOpenError::Lost { portal: self.portal.clone(), why });
                    }
                    tokio::time::sleep(reject_wait(rejects)).await;
                    rejects += 1;
                    submission = Some(self.submission(cdb, data_in, attribute));
                }
                InitiatorEvent::Closing(reason) => return Err(self.closed(reason)),
                _ => {}
            }
        }
    }

    fn submission(&mut self, cdb: &[u8], data_in: usize, attribute: TaskAttribute) -> Submission {
        self.token += 1;
        Submission {
            token: self.token,
            lun: self.lun.0,
            cdb: Cdb::new(cdb),
            data_out: SharedBuf::default(),
            data_in: Buf::zeroed(data_in),
            attribute,
        }
    }

    fn closed(&self, reason: CloseReason) -> IscsiOpenError {
        let portal = self.portal.clone();
        match reason {
            CloseReason::LoginFailed(error) => IscsiOpenError::Login { portal, error },
            other => IscsiOpenError::Lost { portal, why: other.to_string() },
        }
    }
}

impl Exchange for FreshSession {
    async fn exchange(&mut self, cdb: &[u8], data_in: usize) -> Result<Answer, IscsiOpenError> {
        self.command(cdb, data_in, TaskAttribute::SIMPLE).await
    }

    fn portal(&self) -> String {
        self.portal.clone()
    }

    fn patience(&self) -> Duration {
        self.command_timeout
    }
}

/// Logs what a target does against the standard without harm. Each kind comes once a connection.
pub(crate) fn log_tolerated(core: &InitiatorConnection, what: &str) {
    let target = core.target_name().unwrap_or("discovery");
    tracing::warn!(%target, "the target deviates from RFC 7143; the deviation is harmless and tolerated: {what}");
}

fn connection_config(
    url: &IscsiUrl,
    options: &SessionOptions,
    isid: Isid,
    purpose: Purpose,
) -> InitiatorConnectionConfig {
    let digest = |wanted| if wanted { DigestPolicy::Require } else { DigestPolicy::Never };
    let parameters = Parameters {
        header_digest: digest(url.header_digest),
        data_digest: digest(url.data_digest),
        ..Parameters::default()
    };
    let chap = url.account.clone().map(|account| InitiatorChap {
        account,
        algorithms: ChapAlgorithm::ALL.to_vec(),
        mutual: url.target_account.clone(),
    });
    let target_name = if purpose == Purpose::Discovery { None } else { url.target.clone() };
    InitiatorConnectionConfig {
        login: InitiatorLoginConfig {
            initiator_name: initiator_name(url, options),
            initiator_alias: None,
            target_name,
            isid,
            tsih: 0,
            cid: 0,
            parameters,
            chap,
        },
        login_timeout: options.login_timeout,
        nop_interval: options.nop_interval,
        nop_timeout: options.nop_timeout,
    }
}

/// Takes CHAP algorithm 7 out of the offer; false if it was not in it. Older targets (tgt among them) take 7 for SHA1,
/// choose it because it is offered first, and then call our SHA-256 response an initiator error.
fn without_sha256(config: &mut InitiatorConnectionConfig) -> bool {
    let Some(chap) = &mut config.login.chap else { return false };
    let before = chap.algorithms.len();
    chap.algorithms.retain(|&algorithm| algorithm != ChapAlgorithm::Sha256);
    chap.algorithms.len() < before
}
