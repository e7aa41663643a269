//! What all connections of a server share, and the decisions made from it: who may log in, to what, and what is told of
//! targets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use lunway_iscsi::login::{ChapAuth, LoggedIn, LoginAsk, LoginGrant, SessionType};
use lunway_iscsi::pdu::LoginStatus;
use lunway_iscsi::target::TargetConnectionConfig;
use lunway_iscsi::{SendTargets, TargetRecord};
use lunway_scsi::{LunView, Nexus, ScsiTarget};

use crate::config::Limits;
use crate::driver::Session;
use crate::log_limit::LogLimit;
use crate::portal;
use crate::registry::{Handle, Refusal, Registry, SessionKey, Ticket};

/// Every portal belongs to this portal group; its number is the relative target port as well.
pub(crate) const PORTAL_GROUP: u16 = 1;

/// One target.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) alias: Option<String>,
    /// `None`: everybody may log in.
    pub(crate) auth: Option<ChapAuth>,
    pub(crate) scsi: Arc<ScsiTarget>,
}

/// What all connections share. Nothing in it changes but the registry and the log limits, which lock for a moment when
/// sessions come and go.
#[derive(Debug)]
pub(crate) struct Shared {
    /// By name in its normal form.
    pub(crate) targets: BTreeMap<String, Target>,
    /// Where connections are accepted, with real ports.
    pub(crate) portals: Vec<SocketAddr>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) limits: Limits,
    pub(crate) connection: TargetConnectionConfig,
    /// Bytes that one session may have with its devices.
    pub(crate) bytes_executing_max: usize,
    /// Lines about sessions.
    pub(crate) session_log: LogLimit,
    /// Lines about connections that came to nothing.
    pub(crate) reject_log: LogLimit,
}

impl Shared {
    fn target(&self, name: &str) -> Option<(&String, &Target)> {
        self.targets.get_key_value(&name.to_ascii_lowercase())
    }

    /// Decides on a login.
    pub(crate) fn decide(&self, ask: &LoginAsk, ticket: &mut Ticket) -> Result<LoginGrant, LoginStatus> {
        if ask.tsih != 0 {
            // MaxConnections=1: a session that is there is full.
            return Err(match self.registry.has_session(ask.tsih) {
                true => LoginStatus::TOO_MANY_CONNECTIONS,
                false => LoginStatus::SESSION_DOES_NOT_EXIST,
            });
        }
        let (key, target) = match ask.session_type {
            SessionType::Discovery => (None, None),
            SessionType::Normal => {
                let name = ask.target_name.as_deref().ok_or(LoginStatus::MISSING_PARAMETER)?;
                let (name, target) = self.target(name).ok_or(LoginStatus::NOT_FOUND)?;
                (Some(session_key(&ask.initiator_name, ask.isid, name)), Some(target))
            }
        };
        Ok(LoginGrant {
            tsih: ticket.reserve_tsih(key.as_ref())?,
            target_portal_group_tag: PORTAL_GROUP,
            target_alias: target.and_then(|target| target.alias.clone()),
            auth: target.and_then(|target| target.auth.clone()),
        })
    }

    /// Turns a connection whose login has succeeded into a session. With it comes the session whose place it takes: nothing
    /// may happen in the new one before that has ended.
    pub(crate) fn establish(
        &self,
        logged_in: &LoggedIn,
        ticket: &mut Ticket,
    ) -> Result<(Session, Option<Arc<Handle>>), Refusal> {
        let initiator = logged_in.initiator_name.clone();
        let target = logged_in.target_name.as_deref().and_then(|name| self.target(name));
        let (Some((target, _)), SessionType::Normal) = (target, logged_in.session_type) else {
            ticket.establish_discovery()?;
            return Ok((Session { nexus: None, initiator, target: None }, None));
        };
        let predecessor = ticket.establish(session_key(&initiator, logged_in.isid, target))?;
        Ok((Session { nexus: None, initiator, target: Some(target.clone()) }, predecessor))
    }

    /// The nexus of a normal session. The initiator port's name is RFC 7143 §4.4.2's: name, `,i,0x`, ISID.
    pub(crate) fn open_nexus(&self, logged_in: &LoggedIn) -> Option<Arc<Nexus>> {
        if logged_in.session_type == SessionType::Discovery {
            return None;
        }
        let (_, target) = self.target(logged_in.target_name.as_deref()?)?;
        let isid: String = logged_in.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        let port = format!("{},i,0x{isid}", logged_in.initiator_name.to_ascii_lowercase());
        Some(target.scsi.open_nexus(&port, PORTAL_GROUP, LunView::ALL))
    }

    /// Answers SendTargets: to all, or to one by name, or to the session's own `this`. `local` is the address that the
    /// initiator connected to.
    pub(crate) fn records(
        &self,
        which: &SendTargets,
        this: Option<&str>,
        local: SocketAddr,
    ) -> Vec<TargetRecord> {
        let portals = portal::reported(&self.portals, local);
        let record = |name: &String| TargetRecord {
            name: name.clone(),
            addresses: portals.iter().map(|portal| (portal.to_string(), PORTAL_GROUP)).collect(),
        };
        let one = |name: &str| self.target(name).map(|(name, _)| record(name)).into_iter().collect();
        match which {
            SendTargets::All => self.targets.keys().map(record).collect(),
            SendTargets::Named(name) => one(name),
            SendTargets::This => this.map_or_else(Vec::new, one),
        }
    }
}

/// Names of initiators are compared in their normal form, like those of targets (RFC 7143 §4.2.7).
fn session_key(initiator: &str, isid: [u8; 6], target: &str) -> SessionKey {
    SessionKey { initiator: initiator.to_ascii_lowercase(), isid, target: target.to_owned() }
}
