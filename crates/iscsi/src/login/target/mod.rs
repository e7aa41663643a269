//! The target's side of a login.

mod chap;

use self::chap::{Chap, Security};
use super::{LOGIN_PDUS_MAX, LoggedIn, SessionType};
use crate::keys::{Key, KeySet, ResultFunction, Sender, Usage};
use crate::negotiation::{Negotiation, Parameters};
use crate::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage};
use crate::text::{self, Assembler, Builder, LOGIN_SEGMENT_LEN_MAX, Segments, answer};

pub use self::chap::ChapAuth;

/// Longest iSCSI name, bytes (RFC 7143 §4.2.7.1).
// RFC 7143 [4.2.7.1-2]
const NAME_LEN_MAX: usize = 223;
/// Longest alias and longest CHAP name, bytes (RFC 7143 §6.1).
const TEXT_VALUE_LEN_MAX: usize = 255;

/// The target's side of one connection's login (RFC 7143 §6.3).
///
/// Feed every Login Request to [`Self::request`] and do what the [`TargetStep`] says. After the first complete request
/// it asks once who may log in; answer with [`Self::grant`] or [`Self::refuse`]. Where a CHAP response comes it waits
/// for [`Self::check_proof`]. A login that has finished or failed
/// answers everything with a failure.
///
/// * A text may come in several PDUs (C bit); nothing of it is looked at before it is complete.
/// * If a secret is asked for, no operational key is answered and no stage left before it was proven.
/// * At most [`LOGIN_PDUS_MAX`] requests and [`text::TEXT_LEN_MAX`] bytes per text; the caller limits the time.
/// * Whether ISID and TSIH name a session that is there is the caller's question, answered in grant or refusal.
#[derive(Debug)]
pub struct TargetLogin {
    parameters: Parameters,
    state: State,
    /// The request being answered.
    last: Last,
    /// Identity of the connection, the same in all requests.
    identity: Option<Identity>,
    requests: u32,
    incoming: Assembler,
    outgoing: Option<Outgoing>,
    /// Longest data segment we send; the login default but in tests.
    pub(super) segment_len: usize,
    names: Names,
    seen: KeySet,
    grant: Option<LoginGrant>,
    /// The login of the session that this connection joins.
    leading: Option<Box<LoggedIn>>,
    greeted: bool,
    chap: Chap,
    negotiation: Option<Negotiation>,
}

#[derive(Debug)]
enum State {
    /// Waiting for requests.
    Open,
    /// The first text waits for grant or refusal.
    Asking(Vec<u8>),
    /// A text with a CHAP response waits to be checked.
    Proving(Vec<u8>),
    /// Finished or failed.
    Over,
}

/// Fields that an answer repeats from its request.
#[derive(Debug, Clone)]
struct Last {
    stage: Stage,
    next: Option<Stage>,
    request: LoginRequest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    isid: Isid,
    tsih: u16,
    cid: u16,
}

/// A text being sent, and the stage to go to after it.
#[derive(Debug)]
struct Outgoing {
    segments: Segments,
    transit: Option<Stage>,
}

/// Names that the initiator declared about itself.
#[derive(Debug, Default)]
struct Names {
    initiator: Option<String>,
    alias: Option<String>,
    target: Option<String>,
    session_type: Option<SessionType>,
}

/// Next step of a login.
#[derive(Debug)]
pub enum TargetStep {
    /// The leading request is understood: who may log in? Answer with [`TargetLogin::grant`] or
    /// [`TargetLogin::refuse`].
    Ask(LoginAsk),
    /// The initiator says that it is this user (CHAP_N), and gives a response: check it with
    /// [`TargetLogin::check_proof`], at once or later, or end the login with [`TargetLogin::refuse`]. How often a
    /// secret may be tried is the caller's decision.
    Prove(String),
    /// Send this; the login goes on.
    Respond(LoginReply),
    /// Send this; the full feature phase begins.
    Finished(LoginReply, Box<LoggedIn>),
    /// Send this, then close.
    Failed(LoginReply),
}

/// A Login Response to send.
#[derive(Debug, Clone)]
pub struct LoginReply {
    /// Complete but for StatSN, ExpCmdSN and MaxCmdSN.
    pub header: LoginResponse,
    /// The data segment, unpadded.
    pub data: Vec<u8>,
}

/// Identity claimed in a login: who wants to log in, and to what. Nothing of it is proven yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginAsk {
    /// InitiatorName.
    pub initiator_name: String,
    /// TargetName; always there in a normal session.
    pub target_name: Option<String>,
    /// Type of the session.
    pub session_type: SessionType,
    /// The initiator's part of the session's identity.
    pub isid: Isid,
    /// 0 for a new session, else the session this connection wants to join.
    pub tsih: u16,
    /// The connection within the session.
    pub cid: u16,
}

/// Grant of a login: the target's data about the session it lets in.
#[derive(Debug, Clone)]
pub struct LoginGrant {
    /// The target's part of the session's identity; not 0.
    pub tsih: u16,
    /// The portal group this connection reached.
    pub target_portal_group_tag: u16,
    /// Alias of the target, for people; at most 255 bytes.
    pub target_alias: Option<String>,
    /// CHAP authentication: who must prove to be whom; `None` lets anybody in.
    pub auth: Option<ChapAuth>,
    /// Status with which the login ends once that is proven: not everybody shall learn it.
    pub refusal: Option<LoginStatus>,
}

/// Reason why somebody may not log in, and where to go instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginRefusal {
    /// Status of the answer.
    pub status: LoginStatus,
    /// TargetAddress of a redirection: `host[:port]`, IPv6 in brackets, without portal group tag (RFC 7143 §13.8).
    // RFC 7143 [13.8-1]
    pub target_address: Option<String>,
}

impl LoginRefusal {
    /// The target is elsewhere, for good or for now (RFC 7143 §11.13.5, class 1).
    pub fn moved(target_address: impl Into<String>, permanent: bool) -> Self {
        let status = match permanent {
            true => LoginStatus::TARGET_MOVED_PERMANENTLY,
            false => LoginStatus::TARGET_MOVED_TEMPORARILY,
        };
        Self { status, target_address: Some(target_address.into()) }
    }
}

impl From<LoginStatus> for LoginRefusal {
    fn from(status: LoginStatus) -> Self {
        Self { status, target_address: None }
    }
}

type Outcome<T> = Result<T, LoginStatus>;

impl TargetLogin {
    /// A login that offers these parameters.
    pub fn new(parameters: Parameters) -> Self {
        Self {
            parameters,
            state: State::Open,
            last: Last { stage: Stage::SECURITY, next: None, request: LoginRequest::new() },
            identity: None,
            requests: 0,
            incoming: Assembler::new(),
            outgoing: None,
            segment_len: LOGIN_SEGMENT_LEN_MAX,
            names: Names::default(),
            seen: KeySet::default(),
            grant: None,
            leading: None,
            greeted: false,
            chap: Chap::Start,
            negotiation: None,
        }
    }

    /// Returns `true` if a Login Request has come.
    pub(crate) const fn has_begun(&self) -> bool {
        self.identity.is_some()
    }

    /// Feeds one Login Request: header and data segment.
    pub fn request(&mut self, header: &LoginRequest, data: &[u8]) -> TargetStep {
        let first = self.identity.is_none();
        let stage = self.last.stage;
        self.last = Last {
            stage: header.current_stage(),
            next: header.transits().then(|| header.next_stage()),
            request: *header,
        };
        let step = self.check(header, first, stage).and_then(|()| self.take(header, data));
        step.unwrap_or_else(|status| self.refuse(status))
    }

    /// Lets in who asked. Valid once, after [`TargetStep::Ask`].
    pub fn grant(&mut self, grant: LoginGrant) -> TargetStep {
        let State::Asking(text) = std::mem::replace(&mut self.state, State::Open) else {
            return self.refuse(LoginStatus::TARGET_ERROR);
        };
        self.grant = Some(grant);
        self.process(&text).unwrap_or_else(|status| self.refuse(status))
    }

    /// Checks the proof that [`TargetStep::Prove`] spoke of, and goes on with the login or ends it.
    pub fn check_proof(&mut self) -> TargetStep {
        let State::Proving(text) = std::mem::replace(&mut self.state, State::Open) else {
            return self.refuse(LoginStatus::TARGET_ERROR);
        };
        self.process(&text).unwrap_or_else(|status| self.refuse(status))
    }

    /// Lets in who asked, as a further connection of the session that `leading` made: the parameters of the session are
    /// those it negotiated, and the same user has to prove itself.
    pub fn join(&mut self, grant: LoginGrant, leading: &LoggedIn) -> TargetStep {
        self.leading = Some(Box::new(leading.clone()));
        self.grant(grant)
    }

    /// The connection's number within its session, as the initiator says; 0 before the first request.
    pub(crate) fn cid(&self) -> u16 {
        self.identity.map_or(0, |identity| identity.cid)
    }

    /// Ends the login with this status, and with the address of a redirection.
    // RFC 7143 [7.12-1, 11.13.5-1]
    pub fn refuse(&mut self, refusal: impl Into<LoginRefusal>) -> TargetStep {
        let refusal = refusal.into();
        self.state = State::Over;
        let mut text = Builder::new();
        if let Some(address) = &refusal.target_address {
            text.pair(Key::TargetAddress.rule().name, address);
        }
        let mut reply = self.reply(text.into_bytes(), None);
        reply.header.set_status(refusal.status);
        TargetStep::Failed(reply)
    }

    /// Checks what a header alone can have wrong.
    fn check(&mut self, header: &LoginRequest, first: bool, stage: Stage) -> Outcome<()> {
        if !matches!(self.state, State::Open) {
            return Err(LoginStatus::INVALID_DURING_LOGIN);
        }
        self.requests += 1;
        if self.requests > LOGIN_PDUS_MAX {
            return Err(LoginStatus::INITIATOR_ERROR);
        }
        // RFC 7143 [11.12.4.1-2, 11.12.4.2-2]
        // There is one version, 0 (§11.12.4).
        if header.version_min > 0 {
            return Err(LoginStatus::UNSUPPORTED_VERSION);
        }
        let identity = Identity { isid: header.isid, tsih: header.tsih.get(), cid: header.cid.get() };
        // RFC 7143 [11.12.6-3, 11.12.7-2]
        if *self.identity.get_or_insert(identity) != identity {
            return Err(LoginStatus::INITIATOR_ERROR);
        }
        // RFC 7143 [6.3-3, 6.3-4, 6.2-1]
        // The stage is the initiator's choice in the first request and then follows the agreed transitions (§11.12.3).
        let current = header.current_stage();
        let stage_fits = if first { current.0 <= Stage::OPERATIONAL.0 } else { current == stage };
        let next_fits = match self.last.next {
            None => true,
            Some(next) => {
                !header.continues()
                    && next.0 > current.0
                    && matches!(next, Stage::OPERATIONAL | Stage::FULL_FEATURE)
            }
        };
        if stage_fits && next_fits { Ok(()) } else { Err(LoginStatus::INITIATOR_ERROR) }
    }

    /// Takes the data of a request whose header is in order.
    fn take(&mut self, header: &LoginRequest, data: &[u8]) -> Outcome<TargetStep> {
        if self.outgoing.is_some() {
            // RFC 7143 [6.2-2, 6.3-1]
            // The initiator owes an empty request for every response with the C bit (§6.2).
            if !data.is_empty() || header.continues() {
                return Err(LoginStatus::INITIATOR_ERROR);
            }
            return self.send();
        }
        let text = self.incoming.push(data, header.continues()).map_err(|_| LoginStatus::INITIATOR_ERROR)?;
        let Some(text) = text else {
            return Ok(TargetStep::Respond(self.reply(Vec::new(), None)));
        };
        if self.grant.is_some() {
            return match self.claimed_user(&text) {
                Some(user) => {
                    self.state = State::Proving(text);
                    Ok(TargetStep::Prove(user))
                }
                None => self.process(&text),
            };
        }
        self.introduce(&text)?;
        let ask = self.ask(header)?;
        self.state = State::Asking(text);
        Ok(TargetStep::Ask(ask))
    }

    /// Reads from the first text who the initiator says it is.
    fn introduce(&mut self, text: &[u8]) -> Outcome<()> {
        for (name, value) in text::parse(text).map_err(|_| LoginStatus::INITIATOR_ERROR)? {
            if let Some(key) = Key::find(name) {
                self.names.declare(key, value)?;
            }
        }
        Ok(())
    }

    // RFC 7143 [6.3-2]
    fn ask(&self, header: &LoginRequest) -> Outcome<LoginAsk> {
        let session_type = self.names.session_type.unwrap_or(SessionType::Normal);
        if session_type == SessionType::Normal && self.names.target.is_none() {
            return Err(LoginStatus::MISSING_PARAMETER);
        }
        Ok(LoginAsk {
            initiator_name: self.names.initiator.clone().ok_or(LoginStatus::MISSING_PARAMETER)?,
            target_name: self.names.target.clone(),
            session_type,
            isid: header.isid,
            tsih: header.tsih.get(),
            cid: header.cid.get(),
        })
    }

    /// Answers one complete text.
    fn process(&mut self, text: &[u8]) -> Outcome<TargetStep> {
        let mut out = Builder::new();
        self.greet(&mut out);
        let stage = self.last.stage;
        // RFC 7143 [6.3-5]
        if stage == Stage::OPERATIONAL && !self.is_admitted() {
            return Err(LoginStatus::AUTHENTICATION_FAILURE);
        }
        let mut security = Security::default();
        for (name, value) in text::parse(text).map_err(|_| LoginStatus::INITIATOR_ERROR)? {
            let Some(key) = Key::find(name) else {
                // RFC 7143 [6.2-6]
                out.pair(name, answer::NOT_UNDERSTOOD);
                continue;
            };
            match key.rule().usage {
                Usage::Login => self.names.declare(key, value)?,
                Usage::Security if stage == Stage::SECURITY => {
                    // RFC 7143 [6.3-9]
                    if !self.seen.insert(key) || !security.set(key, value) {
                        return Err(LoginStatus::INITIATOR_ERROR);
                    }
                }
                Usage::Operational | Usage::LeadingOnly | Usage::OperationalOrFullFeature
                    if stage == Stage::OPERATIONAL =>
                {
                    self.negotiation()
                        .receive(key, value, &mut out)
                        .map_err(|_| LoginStatus::INITIATOR_ERROR)?;
                }
                _ if key.rule().function == ResultFunction::Declarative => {
                    return Err(LoginStatus::INITIATOR_ERROR);
                }
                // RFC 7143 [12-1]
                // A key of another stage: some initiators offer early; they may offer again in its stage.
                _ => out.pair(name, answer::REJECT),
            }
        }
        let done = if stage == Stage::SECURITY {
            self.authenticate(&security, &mut out)?;
            self.is_admitted()
        } else {
            let negotiation = self.negotiation();
            negotiation.end_of_text(&mut out);
            negotiation.declare(&mut out);
            true
        };
        if let Some(status) =
            self.grant.as_ref().and_then(|grant| grant.refusal).filter(|_| self.is_admitted())
        {
            return Err(status);
        }
        let transit = self.last.next.filter(|_| done);
        self.outgoing = Some(Outgoing { segments: Segments::new(out, self.segment_len), transit });
        self.send()
    }

    /// Says what the first complete response has to say: the portal group in every session (§6.3.1), the alias in
    /// normal ones (§13.6).
    // RFC 7143 [6.3.1-1, 13.6-1, 11.13.8-1]
    fn greet(&mut self, out: &mut Builder) {
        let (false, Some(grant)) = (std::mem::replace(&mut self.greeted, true), &self.grant) else { return };
        out.pair(Key::TargetPortalGroupTag.rule().name, grant.target_portal_group_tag);
        let normal = self.names.session_type != Some(SessionType::Discovery);
        if let (true, Some(alias)) = (normal, &grant.target_alias) {
            out.pair(Key::TargetAlias.rule().name, alias);
        }
    }

    fn negotiation(&mut self) -> &mut Negotiation {
        let discovery = self.names.session_type == Some(SessionType::Discovery);
        let leading = self.last.request.tsih.get() == 0;
        self.negotiation.get_or_insert_with(|| match &self.leading {
            Some(session) => Negotiation::joining(self.parameters.clone(), session.negotiated.clone()),
            None => Negotiation::new(self.parameters.clone(), discovery, leading),
        })
    }

    /// Sends the next piece of the answer, and after the last changes the stage.
    fn send(&mut self) -> Outcome<TargetStep> {
        let Some(mut outgoing) = self.outgoing.take() else {
            return Err(LoginStatus::TARGET_ERROR);
        };
        let data = outgoing.segments.take();
        if outgoing.segments.continues() {
            self.outgoing = Some(outgoing);
            let mut reply = self.reply(data, None);
            // RFC 7143 [11.13.7-1]
            reply.header.flags |= LoginResponse::CONTINUE;
            return Ok(TargetStep::Respond(reply));
        }
        // RFC 7143 [6.3-6, 6.3-7, 6.3-8, 11.13.6-1, 11.13.6-2]
        // Only a request that asks to leave the stage may be answered by leaving it, also at the end of a long answer.
        let transit = outgoing.transit.filter(|_| self.last.next == outgoing.transit);
        let mut reply = self.reply(data, transit);
        match transit {
            None => {}
            Some(Stage::FULL_FEATURE) => {
                let logged_in = self.finish()?;
                self.state = State::Over;
                // RFC 7143 [6.3.2-3, 11.13.3-1, 4.4.3-2]
                reply.header.tsih = logged_in.tsih.into();
                return Ok(TargetStep::Finished(reply, Box::new(logged_in)));
            }
            Some(next) => self.last.stage = next,
        }
        Ok(TargetStep::Respond(reply))
    }

    fn finish(&mut self) -> Outcome<LoggedIn> {
        let mut negotiated = self.negotiation().finish().map_err(|_| LoginStatus::INITIATOR_ERROR)?;
        let (Some(grant), Some(identity)) = (&self.grant, self.identity) else {
            return Err(LoginStatus::TARGET_ERROR);
        };
        let user = match &self.chap {
            Chap::Passed(user) => user.clone(),
            _ => None,
        };
        if let Some(leading) = &self.leading {
            // RFC 7143 [9.2-7]
            if leading.user != user {
                return Err(LoginStatus::AUTHORIZATION_FAILURE);
            }
            negotiated = negotiated.joining(&leading.negotiated);
        }
        let names = std::mem::take(&mut self.names);
        Ok(LoggedIn {
            negotiated,
            initiator_name: names.initiator.ok_or(LoginStatus::MISSING_PARAMETER)?,
            initiator_alias: names.alias,
            target_name: names.target,
            target_alias: grant.target_alias.clone(),
            target_portal_group_tag: Some(grant.target_portal_group_tag),
            session_type: names.session_type.unwrap_or(SessionType::Normal),
            isid: identity.isid,
            tsih: grant.tsih,
            cid: identity.cid,
            user,
        })
    }

    /// A response to the last request.
    fn reply(&self, data: Vec<u8>, next: Option<Stage>) -> LoginReply {
        let mut header = LoginResponse::new();
        header.set_stages(self.last.request.current_stage(), next);
        header.isid = self.last.request.isid;
        header.tsih = self.last.request.tsih;
        header.initiator_task_tag = self.last.request.initiator_task_tag;
        header.data_segment_length.set(data.len() as u32);
        LoginReply { header, data }
    }
}

impl Names {
    /// Takes a declaration. Some initiators repeat theirs in every stage; a repetition must say the same.
    fn declare(&mut self, key: Key, value: &str) -> Outcome<()> {
        let (field, len_max) = match key {
            Key::InitiatorName => (&mut self.initiator, NAME_LEN_MAX),
            Key::TargetName => (&mut self.target, NAME_LEN_MAX),
            Key::InitiatorAlias => (&mut self.alias, TEXT_VALUE_LEN_MAX),
            Key::SessionType => {
                let session_type = match value {
                    "Normal" => SessionType::Normal,
                    "Discovery" => SessionType::Discovery,
                    _ => return Err(LoginStatus::SESSION_TYPE_NOT_SUPPORTED),
                };
                let same = *self.session_type.get_or_insert(session_type) == session_type;
                return if same { Ok(()) } else { Err(LoginStatus::INITIATOR_ERROR) };
            }
            // What only a target may declare; from an initiator it is no introduction.
            _ if key.rule().sender == Sender::Target => return Err(LoginStatus::INITIATOR_ERROR),
            _ => return Ok(()),
        };
        let is_name = key != Key::InitiatorAlias;
        // A name is text that people read, and stringprep (RFC 3722 §6) prohibits what controls a terminal.
        let not_a_name = is_name && (value.is_empty() || value.contains(char::is_control));
        if value.len() > len_max || not_a_name || field.get_or_insert_with(|| value.to_owned()) != value {
            return Err(LoginStatus::INITIATOR_ERROR);
        }
        Ok(())
    }
}
