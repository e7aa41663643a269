//! The initiator's side of a login.

use super::{LOGIN_PDUS_MAX, LoggedIn, SessionType};
use crate::chap::{Challenge, ChapAccount, ChapAlgorithm};
use crate::keys::{Key, Usage};
use crate::negotiation::{Negotiation, Parameters};
use crate::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage};
use crate::text::{self, Assembler, Builder, LOGIN_SEGMENT_LEN_MAX, Segments, answer};

/// Configuration of an initiator's login.
#[derive(Debug, Clone)]
pub struct InitiatorLoginConfig {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias.
    pub initiator_alias: Option<String>,
    /// TargetName; `None` asks for a discovery session.
    pub target_name: Option<String>,
    /// The initiator's part of the session's identity.
    pub isid: Isid,
    /// 0 for a new session, else the session this connection is to join.
    pub tsih: u16,
    /// The connection within the session.
    pub cid: u16,
    /// Parameters that this side wants.
    pub parameters: Parameters,
    /// CHAP configuration that proves who we are, if there is a secret.
    pub chap: Option<InitiatorChap>,
}

/// CHAP configuration of an initiator.
#[derive(Debug, Clone)]
// RFC 7143 [4.2.4-1]
pub struct InitiatorChap {
    /// Account that the initiator proves.
    pub account: ChapAccount,
    /// Algorithms to offer, best first; see [`ChapAlgorithm::OFFER`].
    pub algorithms: Vec<ChapAlgorithm>,
    /// Account that the target must prove (mutual CHAP).
    pub mutual: Option<ChapAccount>,
}

/// The initiator's side of one connection's login (RFC 7143 §6.3).
///
/// Send what [`Self::first`] gives, then feed every Login Response to [`Self::response`] and do what the
/// [`InitiatorStep`] says.
///
/// * Begins in the security stage, always: targets without authentication agree to `None`, and every target may
///   redirect there.
/// * With a secret it offers `CHAP,None`, so that the secret may also be given to targets that ask for none; if the
///   target has to prove itself, `CHAP` only.
/// * The operational stage follows in one request, unless the target makes offers of its own, which are answered.
/// * At most [`LOGIN_PDUS_MAX`] responses; the caller limits the time.
#[derive(Debug)]
pub struct InitiatorLogin {
    config: InitiatorLoginConfig,
    stage: Stage,
    /// The stage the last request asked to go to.
    asked: Option<Stage>,
    progress: Progress,
    responses: u32,
    incoming: Assembler,
    outgoing: Option<Outgoing>,
    /// Longest data segment we send; the login default but in tests.
    pub(super) segment_len: usize,
    negotiation: Negotiation,
    target_alias: Option<String>,
    target_address: Option<String>,
    target_portal_group_tag: Option<u16>,
    /// The name under which we answered a challenge.
    user: Option<String>,
    /// Deviations of the target that the standard forbids and that do no harm, each kind once.
    tolerated: Vec<String>,
    other_isid: bool,
}

/// Progress of a login: what the next response should bring.
#[derive(Debug)]
enum Progress {
    /// The choice of an authentication method.
    MethodOffered,
    /// The choice of an algorithm, and a challenge.
    AlgorithmsOffered,
    /// The end of the security stage, and with mutual CHAP the target's proof.
    Answered {
        algorithm: ChapAlgorithm,
        /// Our challenge to the target.
        ours: Option<Challenge>,
    },
    /// The end of the security stage.
    Admitted,
    /// Answers to our offers.
    Negotiating,
    /// Nothing: the login is over.
    Over,
}

/// A text being sent, and the stage to go to after it.
#[derive(Debug)]
struct Outgoing {
    segments: Segments,
    transit: Option<Stage>,
}

/// The security keys of one text.
#[derive(Debug, Default)]
struct Security<'a> {
    method: Option<&'a str>,
    algorithm: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
}

/// A Login Request to send.
#[derive(Debug, Clone)]
pub struct LoginMessage {
    /// Complete but for ITT, CmdSN and ExpStatSN.
    pub header: LoginRequest,
    /// The data segment, unpadded.
    pub data: Vec<u8>,
}

/// Next step of a login.
#[derive(Debug)]
pub enum InitiatorStep {
    /// Send this.
    Send(LoginMessage),
    /// The full feature phase begins.
    Finished(Box<LoggedIn>),
    /// Close the connection.
    Failed(LoginError),
}

/// Reason why a login failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target is at another address.
    #[error("the target has moved {} to {address}", if *.permanent { "for good" } else { "for now" })]
    Redirected {
        /// `host[:port][,portal group]`.
        address: String,
        /// `true` if the new address is to be remembered.
        permanent: bool,
    },
    /// Wrong name or secret, or the target requires an authentication we did not offer.
    #[error("the target refused the CHAP user or secret")]
    AuthenticationFailed,
    /// The target failed to prove who it is.
    #[error("the target did not prove who it is: {0}")]
    TargetNotAuthenticated(&'static str),
    /// This initiator may not use this target.
    #[error("this initiator may not use this target")]
    AuthorizationFailed,
    /// No such target there.
    #[error("there is no such target")]
    NotFound,
    /// The target is gone.
    #[error("the target was removed")]
    Removed,
    /// The target exists and does not serve now.
    #[error("the target is unavailable: {0}")]
    TargetUnavailable(LoginStatus),
    /// Another status of class 2 or 3, or an unknown one.
    #[error("the target refused the login: {0}")]
    Refused(LoginStatus),
    /// The target broke the protocol, or insists on parameters this side cannot follow.
    #[error("the login broke down: {0}")]
    Protocol(String),
}

type Outcome<T> = Result<T, LoginError>;

fn broken(what: &str) -> LoginError {
    LoginError::Protocol(what.to_owned())
}

/// The authentication methods to offer.
fn methods(chap: Option<&InitiatorChap>) -> &'static str {
    match chap {
        None => "None",
        Some(InitiatorChap { mutual: None, .. }) => "CHAP,None",
        Some(_) => "CHAP",
    }
}

impl InitiatorLogin {
    /// A login not yet begun.
    pub fn new(config: InitiatorLoginConfig) -> Self {
        let negotiation =
            Negotiation::new(config.parameters.clone(), config.target_name.is_none(), config.tsih == 0);
        Self {
            config,
            stage: Stage::SECURITY,
            asked: None,
            progress: Progress::MethodOffered,
            responses: 0,
            incoming: Assembler::new(),
            outgoing: None,
            segment_len: LOGIN_SEGMENT_LEN_MAX,
            negotiation,
            target_alias: None,
            target_address: None,
            target_portal_group_tag: None,
            user: None,
            tolerated: Vec::new(),
            other_isid: false,
        }
    }

    /// Takes the target's deviations since the last call that the standard forbids and that do no harm, for people.
    pub(crate) fn take_tolerated(&mut self) -> Vec<String> {
        std::mem::take(&mut self.tolerated)
    }

    /// TargetName of the config; `None`: a discovery session.
    pub fn target_name(&self) -> Option<&str> {
        self.config.target_name.as_deref()
    }

    /// The first request.
    // RFC 7143 [4.2.7.1-3, 6.3-2, 11.12.10-1, 13.4-1, 13.5-1, 13.7-1, 13.21-2, 6.3.3-1]
    pub fn first(&mut self) -> LoginMessage {
        let mut out = Builder::new();
        // RFC 7143 [13.4-2, 13.5-2]
        out.pair(Key::InitiatorName.rule().name, &self.config.initiator_name);
        if let Some(alias) = &self.config.initiator_alias {
            out.pair(Key::InitiatorAlias.rule().name, alias);
        }
        match &self.config.target_name {
            Some(name) => {
                out.pair(Key::SessionType.rule().name, "Normal");
                out.pair(Key::TargetName.rule().name, name);
            }
            None => out.pair(Key::SessionType.rule().name, "Discovery"),
        }
        out.pair(Key::AuthMethod.rule().name, methods(self.config.chap.as_ref()));
        // With CHAP on offer the stage cannot end yet.
        let transit = self.config.chap.is_none().then_some(Stage::OPERATIONAL);
        self.begin(out, transit)
    }

    /// Feeds one Login Response: header and data segment.
    pub fn response(&mut self, header: &LoginResponse, data: &[u8]) -> InitiatorStep {
        self.take(header, data).unwrap_or_else(|error| {
            self.progress = Progress::Over;
            InitiatorStep::Failed(error)
        })
    }

    fn take(&mut self, header: &LoginResponse, data: &[u8]) -> Outcome<InitiatorStep> {
        self.responses += 1;
        // RFC 7143 [6.2-13]
        if matches!(self.progress, Progress::Over) || self.responses > LOGIN_PDUS_MAX {
            return Err(broken("more responses than a login has"));
        }
        if header.status() != LoginStatus::SUCCESS {
            return Err(self.refusal(header.status(), data));
        }
        // RFC 7143 [11.13.2-2]
        if header.version_active != 0 {
            let chosen = header.version_active;
            return Err(LoginError::Protocol(format!(
                "the target chose version {chosen}, we offered 0 alone"
            )));
        }
        // RFC 7143 [9.2-2]
        if header.current_stage() != self.stage {
            return Err(LoginError::Protocol(format!(
                "the response is for the stage \"{}\", we are in \"{}\"",
                header.current_stage(),
                self.stage
            )));
        }
        // The connection says whose response it is; some targets send zeroes, or extend the sign of a byte.
        if header.isid != self.config.isid && !std::mem::replace(&mut self.other_isid, true) {
            let (ours, theirs) =
                (text::to_hexadecimal(&self.config.isid), text::to_hexadecimal(&header.isid));
            self.tolerated.push(format!("its Login Response has ISID {theirs}, our request had {ours}"));
        }
        if header.transits() && (header.continues() || self.asked != Some(header.next_stage())) {
            let asked = match self.asked {
                Some(stage) => format!("we asked for \"{stage}\""),
                None => format!("we asked to stay in \"{}\"", self.stage),
            };
            let goes_on = if header.continues() { ", in the middle of its text" } else { "" };
            return Err(LoginError::Protocol(format!(
                "the target goes on to \"{}\"{goes_on}: {asked}",
                header.next_stage()
            )));
        }
        if self.outgoing.is_some() {
            // RFC 7143 [6.2-2, 6.3-1]
            // The target owes an empty response for every request with the C bit (§6.2).
            if !data.is_empty() || header.continues() {
                return Err(broken("a response in the middle of our request"));
            }
            return Ok(InitiatorStep::Send(self.send()));
        }
        let text = self.incoming.push(data, header.continues());
        let Some(text) = text.map_err(|error| LoginError::Protocol(error.to_string()))? else {
            // RFC 7143 [6.3.3-2, 6.2-2]
            // The wish to leave the stage is repeated: the end of the long answer may grant it.
            return Ok(InitiatorStep::Send(self.begin(Builder::new(), self.asked)));
        };
        self.process(header, &text)
    }

    /// Answers one complete text.
    fn process(&mut self, header: &LoginResponse, text: &[u8]) -> Outcome<InitiatorStep> {
        let mut out = Builder::new();
        let mut security = Security::default();
        for (name, value) in text::parse(text).map_err(|error| LoginError::Protocol(error.to_string()))? {
            let Some(key) = Key::find(name) else {
                // An answer needs no answer; only an offer does.
                if value != answer::NOT_UNDERSTOOD {
                    // RFC 7143 [6.2-6]
                    out.pair(name, answer::NOT_UNDERSTOOD);
                }
                continue;
            };
            match key.rule().usage {
                // RFC 7143 [6.2-8]
                Usage::Login => self.declared(key, value)?,
                Usage::Security => security.set(key, value)?,
                Usage::FullFeature => {
                    return Err(LoginError::Protocol(format!("{key} is a key of the full feature phase")));
                }
                Usage::Operational | Usage::LeadingOnly | Usage::OperationalOrFullFeature => {
                    self.negotiation
                        .receive(key, value, &mut out)
                        .map_err(|error| LoginError::Protocol(error.to_string()))?;
                }
            }
        }
        self.negotiation.end_of_text(&mut out);
        let next = header.transits().then(|| header.next_stage());
        if self.stage == Stage::SECURITY {
            self.secure(&security, next, out)
        } else {
            self.operate(header, next, out)
        }
    }

    /// Takes a declaration of the target's.
    fn declared(&mut self, key: Key, value: &str) -> Outcome<()> {
        match key {
            Key::TargetAlias => self.target_alias = Some(value.to_owned()),
            Key::TargetAddress => self.target_address = Some(value.to_owned()),
            Key::TargetPortalGroupTag => {
                let tag = text::number(value).ok().and_then(|tag| u16::try_from(tag).ok());
                let bad = || {
                    let value: String = value.chars().take(32).collect();
                    LoginError::Protocol(format!("{key}={value:?}: a number from 0 to 65535 is expected"))
                };
                self.target_portal_group_tag = Some(tag.ok_or_else(bad)?);
            }
            // Some targets repeat what we declared.
            _ => {}
        }
        Ok(())
    }

    /// Moves on in the security stage (§12.1, §12.1.3).
    fn secure(
        &mut self,
        security: &Security<'_>,
        next: Option<Stage>,
        mut out: Builder,
    ) -> Outcome<InitiatorStep> {
        let chap = self.config.chap.as_ref();
        let transit = match &self.progress {
            Progress::MethodOffered => match (security.method, chap) {
                // RFC 7143 [12.1-1, 12.1.3-1]
                (Some("CHAP"), Some(chap)) => {
                    let numbers: Vec<_> = chap.algorithms.iter().map(|a| a.number().to_string()).collect();
                    out.pair(Key::ChapA.rule().name, numbers.join(","));
                    self.progress = Progress::AlgorithmsOffered;
                    None
                }
                (Some(answer::NONE) | None, chap) => {
                    if chap.is_some_and(|chap| chap.mutual.is_some()) {
                        return Err(LoginError::TargetNotAuthenticated("it asks for no authentication"));
                    }
                    self.progress = Progress::Admitted;
                    Some(Stage::OPERATIONAL)
                }
                (Some(answer::REJECT), _) => return Err(LoginError::AuthenticationFailed),
                // RFC 7143 [6.2.1-4, 9.2-2]
                (Some(method), chap) => {
                    let method: String = method.chars().take(32).collect();
                    let offered = methods(chap);
                    return Err(LoginError::Protocol(format!(
                        "AuthMethod: we offered {offered}, the target answered {method:?}"
                    )));
                }
            },
            Progress::AlgorithmsOffered => {
                let chap = chap.ok_or(broken("CHAP without a secret"))?;
                let (progress, answers) = chap.answer(security)?;
                answers.into_iter().for_each(|(key, value)| out.pair(key.rule().name, value));
                self.progress = progress;
                self.user = Some(chap.account.user.clone());
                Some(Stage::OPERATIONAL)
            }
            Progress::Answered { algorithm, ours } => {
                if let (Some(ours), Some(account)) = (ours, chap.and_then(|chap| chap.mutual.as_ref())) {
                    // RFC 7143 [12.1.3-6]
                    security.prove(*algorithm, ours, account)?;
                }
                self.progress = Progress::Admitted;
                Some(Stage::OPERATIONAL)
            }
            Progress::Admitted => Some(Stage::OPERATIONAL),
            Progress::Negotiating | Progress::Over => return Err(broken("security keys after their stage")),
        };
        match next {
            None => Ok(InitiatorStep::Send(self.begin(out, transit))),
            Some(_) if !matches!(self.progress, Progress::Admitted) => {
                // RFC 7143 [6.3-5]
                Err(broken("the target leaves the security stage too early"))
            }
            Some(next) => {
                self.stage = next;
                self.progress = Progress::Negotiating;
                self.negotiation.offer(&mut out);
                self.negotiation.declare(&mut out);
                Ok(InitiatorStep::Send(self.begin(out, Some(Stage::FULL_FEATURE))))
            }
        }
    }

    /// Moves on in the operational stage.
    fn operate(
        &mut self,
        header: &LoginResponse,
        next: Option<Stage>,
        out: Builder,
    ) -> Outcome<InitiatorStep> {
        if next.is_none() {
            return Ok(InitiatorStep::Send(self.begin(out, Some(Stage::FULL_FEATURE))));
        }
        if !out.is_empty() {
            // Everything that matters we offer ourselves: what is left are markers, extensions and, in discovery, keys
            // without a meaning, of which the defaults hold.
            let offers = String::from_utf8_lossy(&out.into_bytes()).replace('\0', " ");
            let offers: String = offers.trim_end().chars().take(128).collect();
            self.tolerated
                .push(format!("it ends the login with offers, to which we would have said: {offers}"));
        }
        self.progress = Progress::Over;
        let negotiated =
            self.negotiation.finish().map_err(|error| LoginError::Protocol(error.to_string()))?;
        let config = &self.config;
        let session_type =
            if config.target_name.is_some() { SessionType::Normal } else { SessionType::Discovery };
        Ok(InitiatorStep::Finished(Box::new(LoggedIn {
            negotiated,
            initiator_name: config.initiator_name.clone(),
            initiator_alias: config.initiator_alias.clone(),
            target_name: config.target_name.clone(),
            target_alias: self.target_alias.take(),
            target_portal_group_tag: self.target_portal_group_tag,
            session_type,
            isid: config.isid,
            tsih: header.tsih.get(),
            cid: config.cid,
            user: self.user.take(),
        })))
    }

    /// Begins to send a text.
    fn begin(&mut self, out: Builder, transit: Option<Stage>) -> LoginMessage {
        self.outgoing = Some(Outgoing { segments: Segments::new(out, self.segment_len), transit });
        self.send()
    }

    /// The next piece of the text being sent.
    fn send(&mut self) -> LoginMessage {
        let mut header = LoginRequest::new();
        let mut data = Vec::new();
        self.asked = None;
        if let Some(mut outgoing) = self.outgoing.take() {
            data = outgoing.segments.take();
            if outgoing.segments.continues() {
                // RFC 7143 [11.12.2-1]
                header.flags |= LoginRequest::CONTINUE;
                self.outgoing = Some(outgoing);
            } else {
                self.asked = outgoing.transit;
            }
        }
        header.set_stages(self.stage, self.asked);
        // RFC 7143 [11.12.4-1, 11.12.4.1-1, 11.12.4.2-1, 11.12.6-1, 11.12.6-2, 11.12.7-1]
        header.isid = self.config.isid;
        header.tsih = self.config.tsih.into();
        header.cid = self.config.cid.into();
        header.data_segment_length.set(data.len() as u32);
        LoginMessage { header, data }
    }

    /// Converts a status other than success to an error.
    // RFC 7143 [11.13.5-2, 11.13.5-3]
    fn refusal(&mut self, status: LoginStatus, data: &[u8]) -> LoginError {
        match status {
            LoginStatus::TARGET_MOVED_TEMPORARILY | LoginStatus::TARGET_MOVED_PERMANENTLY => {
                let pairs = text::parse(data).unwrap_or_default();
                let address = pairs.iter().find(|(name, _)| *name == Key::TargetAddress.rule().name);
                match address.map(|(_, address)| (*address).to_owned()).or(self.target_address.take()) {
                    Some(address) => LoginError::Redirected {
                        address,
                        permanent: status == LoginStatus::TARGET_MOVED_PERMANENTLY,
                    },
                    None => broken("the target has moved and does not say where"),
                }
            }
            LoginStatus::AUTHENTICATION_FAILURE => LoginError::AuthenticationFailed,
            LoginStatus::AUTHORIZATION_FAILURE => LoginError::AuthorizationFailed,
            LoginStatus::NOT_FOUND => LoginError::NotFound,
            LoginStatus::TARGET_REMOVED => LoginError::Removed,
            status if status.class() == 3 => LoginError::TargetUnavailable(status),
            status => LoginError::Refused(status),
        }
    }
}

impl InitiatorChap {
    /// Our answer to the target's challenge, and our own challenge if the target has to prove itself.
    // RFC 7143 [12.1.3-3, 9.2.1-10]
    fn answer(&self, security: &Security<'_>) -> Outcome<(Progress, Vec<(Key, String)>)> {
        let algorithm = security
            .algorithm
            .and_then(|number| ChapAlgorithm::from_number(text::number(number).ok()?))
            .filter(|algorithm| self.algorithms.contains(algorithm))
            .ok_or(broken("a CHAP algorithm that was not offered"))?;
        let (Some(identifier), Some(challenge)) = (security.identifier, security.challenge) else {
            return Err(broken("CHAP without a challenge"));
        };
        let challenge = Challenge::from_text(identifier, challenge)
            .map_err(|error| LoginError::Protocol(error.to_string()))?;
        let response = challenge.answer(algorithm, &self.account.secret);
        let mut answers =
            vec![(Key::ChapN, self.account.user.clone()), (Key::ChapR, text::to_hexadecimal(&response))];
        let ours = match &self.mutual {
            None => None,
            Some(_) => {
                let ours = Challenge::fresh().map_err(|error| LoginError::Protocol(error.to_string()))?;
                answers.push((Key::ChapI, ours.identifier().to_string()));
                answers.push((Key::ChapC, text::to_hexadecimal(ours.bytes())));
                Some(ours)
            }
        };
        Ok((Progress::Answered { algorithm, ours }, answers))
    }
}

impl<'a> Security<'a> {
    /// Keeps a security key of the text.
    fn set(&mut self, key: Key, value: &'a str) -> Outcome<()> {
        let field = match key {
            Key::AuthMethod => &mut self.method,
            Key::ChapA => &mut self.algorithm,
            Key::ChapI => &mut self.identifier,
            Key::ChapC => &mut self.challenge,
            Key::ChapN => &mut self.name,
            _ => &mut self.response,
        };
        match field.replace(value) {
            None => Ok(()),
            // RFC 7143 [6.3-10]
            Some(_) => Err(LoginError::Protocol(format!("{key} was sent twice"))),
        }
    }

    /// Checks that the target proved to know the mutual secret.
    fn prove(&self, algorithm: ChapAlgorithm, ours: &Challenge, account: &ChapAccount) -> Outcome<()> {
        let (Some(name), Some(response)) = (self.name, self.response) else {
            return Err(LoginError::TargetNotAuthenticated("it did not answer our challenge"));
        };
        if name != account.user {
            return Err(LoginError::TargetNotAuthenticated("it answered under another name"));
        }
        let response = text::binary(response, algorithm.response_len()).unwrap_or_default();
        if ours.is_answered_by(algorithm, &account.secret, &response) {
            Ok(())
        } else {
            // RFC 7143 [6.3.2-5]
            Err(LoginError::TargetNotAuthenticated("its answer is wrong"))
        }
    }
}
