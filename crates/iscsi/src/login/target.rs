//! The target's side of a login.

use super::{LoggedIn, SessionType};
use crate::chap::{ChapAccount, ChapAlgorithm};
use crate::negotiation::Parameters;
use crate::pdu::{Isid, LoginRequest, LoginResponse, LoginStatus};

/// The target's side of one connection's login.
#[derive(Debug)]
pub struct TargetLogin {
    parameters: Parameters,
}

/// What to do next.
#[derive(Debug)]
pub enum TargetStep {
    /// The leading request is understood: who may log in? Answer with [`TargetLogin::grant`] or [`TargetLogin::refuse`].
    Ask(LoginAsk),
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

/// Who wants to log in, and to what. Nothing of it is proven yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginAsk {
    /// InitiatorName.
    pub initiator_name: String,
    /// TargetName; always there in a normal session.
    pub target_name: Option<String>,
    /// What the session is for.
    pub session_type: SessionType,
    /// The initiator's part of the session's identity.
    pub isid: Isid,
    /// 0 for a new session, else the session this connection wants to join.
    pub tsih: u16,
    /// The connection within the session.
    pub cid: u16,
}

/// What the target knows about the session it lets in.
#[derive(Debug, Clone)]
pub struct LoginGrant {
    /// The target's part of the session's identity; not 0.
    pub tsih: u16,
    /// The portal group this connection reached.
    pub target_portal_group_tag: u16,
    /// What people call the target.
    pub target_alias: Option<String>,
    /// Who must prove to be whom; `None` lets anybody in.
    pub auth: Option<ChapAuth>,
}

/// The CHAP a login must pass.
#[derive(Debug, Clone)]
pub struct ChapAuth {
    /// The accounts that may log in.
    pub accounts: Vec<ChapAccount>,
    /// What the target proves to an initiator that asks (mutual CHAP).
    pub mutual: Option<ChapAccount>,
    /// Algorithms the target accepts; the initiator's order decides among them.
    pub algorithms: Vec<ChapAlgorithm>,
}

impl TargetLogin {
    /// A login that offers these parameters.
    pub fn new(parameters: Parameters) -> Self {
        Self { parameters }
    }

    /// Feeds one Login Request: header and data segment.
    pub fn request(&mut self, header: &LoginRequest, data: &[u8]) -> TargetStep {
        let _ = (header, data, &self.parameters);
        self.refuse(LoginStatus::TARGET_ERROR)
    }

    /// Lets in who asked. Valid once, after [`TargetStep::Ask`].
    pub fn grant(&mut self, grant: LoginGrant) -> TargetStep {
        let _ = grant;
        self.refuse(LoginStatus::TARGET_ERROR)
    }

    /// Ends the login with this status.
    pub fn refuse(&mut self, status: LoginStatus) -> TargetStep {
        let mut header = LoginResponse::new();
        header.set_status(status);
        TargetStep::Failed(LoginReply { header, data: Vec::new() })
    }
}
