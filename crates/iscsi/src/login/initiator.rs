//! The initiator's side of a login.

use super::LoggedIn;
use crate::chap::{ChapAccount, ChapAlgorithm};
use crate::negotiation::Parameters;
use crate::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus};

/// What an initiator brings to a login.
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
    /// What this side wants.
    pub parameters: Parameters,
    /// How to prove who we are, if there is a secret.
    pub chap: Option<InitiatorChap>,
}

/// What an initiator brings to CHAP.
#[derive(Debug, Clone)]
pub struct InitiatorChap {
    /// What the initiator proves.
    pub account: ChapAccount,
    /// Algorithms to offer, best first.
    pub algorithms: Vec<ChapAlgorithm>,
    /// What the target must prove (mutual CHAP).
    pub mutual: Option<ChapAccount>,
}

/// The initiator's side of one connection's login.
#[derive(Debug)]
pub struct InitiatorLogin {
    config: InitiatorLoginConfig,
}

/// A Login Request to send.
#[derive(Debug, Clone)]
pub struct LoginMessage {
    /// Complete but for ITT, CmdSN and ExpStatSN.
    pub header: LoginRequest,
    /// The data segment, unpadded.
    pub data: Vec<u8>,
}

/// What to do next.
#[derive(Debug)]
pub enum InitiatorStep {
    /// Send this.
    Send(LoginMessage),
    /// The full feature phase begins.
    Finished(Box<LoggedIn>),
    /// Close the connection.
    Failed(LoginError),
}

/// Why a login failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target is at another address.
    #[error("the target has moved {} to {address}", if *.permanent { "for good" } else { "for now" })]
    Redirected {
        /// `host:port[,portal group]`.
        address: String,
        /// Whether to remember it.
        permanent: bool,
    },
    /// Wrong name or secret, or the target requires an authentication we did not offer.
    #[error("the target does not accept our authentication")]
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
    /// Another status of class 2 or 3, or one nobody knows.
    #[error("the target refused the login: {0}")]
    Refused(LoginStatus),
    /// The target broke the protocol, or insists on parameters this side cannot follow.
    #[error("the login broke down: {0}")]
    Protocol(String),
}

impl InitiatorLogin {
    /// A login not yet begun.
    pub fn new(config: InitiatorLoginConfig) -> Self {
        Self { config }
    }

    /// The first request.
    pub fn first(&mut self) -> LoginMessage {
        let _ = &self.config;
        LoginMessage { header: LoginRequest::new(), data: Vec::new() }
    }

    /// Feeds one Login Response: header and data segment.
    pub fn response(&mut self, header: &LoginResponse, data: &[u8]) -> InitiatorStep {
        let _ = data;
        InitiatorStep::Failed(LoginError::Refused(header.status()))
    }
}
