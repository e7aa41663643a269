//! What all connections of a server share, and the decisions made from it: who may log in, to what, and what is told of
//! targets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use lunway_iscsi::login::{ChapAuth, LoggedIn, LoginAsk, LoginGrant, LoginRefusal, SessionType};
use lunway_iscsi::pdu::LoginStatus;
use lunway_iscsi::target::{SharedSession, TargetConnectionConfig};
use lunway_iscsi::{SendTargets, TargetRecord};
use lunway_scsi::{LunView, Nexus, ScsiTarget};

use crate::config::{Limits, TargetConfig};
use crate::driver::Session;
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::portal::PortalTable;
use crate::registry::{Handle, Refusal, Registry, SessionKey, Ticket};
use crate::server::LunSummary;

/// Every portal belongs to this portal group; its number is the relative target port as well.
pub(crate) const PORTAL_GROUP: u16 = 1;

/// One target as it is served. Replaced as a whole when its configuration changes; its SCSI target stays.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) config: TargetConfig,
    /// `None`: everybody may log in.
    pub(crate) auth: Option<ChapAuth>,
    pub(crate) scsi: Arc<ScsiTarget>,
}

impl Target {
    /// Whether it can be reached through this portal group.
    fn is_offered_by(&self, group: u16) -> bool {
        let groups = &self.config.portal_groups;
        groups.is_empty() || groups.iter().any(|of| of.tag == group)
    }

    /// Its logical units as initiators see them.
    pub(crate) fn luns(&self) -> Vec<LunSummary> {
        let luns = self.scsi.luns().into_iter();
        luns.filter_map(|(id, unit)| {
            let geometry = unit.device().geometry();
            Some(LunSummary {
                id,
                device: self.config.lun(id)?.device.to_string(),
                size: geometry.size,
                sector: geometry.logical_sector,
                read_only: unit.is_read_only(),
                serial: unit.identity().serial().to_owned(),
            })
        })
        .collect()
    }
}

/// What is served, in the form that connections need. Replaced as a whole when the configuration changes.
#[derive(Debug)]
pub(crate) struct Serving {
    /// By name in its normal form.
    pub(crate) targets: BTreeMap<String, Arc<Target>>,
    pub(crate) limits: Limits,
    pub(crate) connection: TargetConnectionConfig,
    /// Bytes that one session may have with its devices.
    pub(crate) bytes_executing_max: usize,
}

impl Serving {
    /// A target that initiators may know of.
    fn target(&self, name: &str) -> Option<&Arc<Target>> {
        self.targets.get(&name.to_ascii_lowercase())
    }
}

/// How a login may go on.
#[derive(Debug)]
pub(crate) enum Admission {
    /// As a session of its own.
    Lead(LoginGrant),
    /// As one more connection of this session.
    Join(LoginGrant, SharedSession),
}

/// What all connections share: locked for a moment when sessions come and go, never for I/O.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) serving: RwLock<Arc<Serving>>,
    /// Where connections are accepted, and what initiators are told of it.
    pub(crate) portals: Arc<PortalTable>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    /// Lines about sessions.
    pub(crate) session_log: LogLimit,
    /// Lines about connections that came to nothing.
    pub(crate) reject_log: LogLimit,
}

impl Shared {
    /// What is served now.
    pub(crate) fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves something else from now on.
    pub(crate) fn serve(&self, serving: Serving) {
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
    }

    /// A connection ended without a login: counted, and logged if there were not too many.
    pub(crate) fn no_login(&self, write: impl FnOnce(u64)) {
        self.metrics.login(false);
        self.reject_log.info(write);
    }

    /// Decides on a login.
    pub(crate) fn decide(&self, ask: &LoginAsk, ticket: &mut Ticket) -> Result<Admission, LoginRefusal> {
        let serving = self.serving();
        let (key, target) = match ask.session_type {
            SessionType::Discovery => (None, None),
            SessionType::Normal => {
                let name = ask.target_name.as_deref().ok_or(LoginStatus::MISSING_PARAMETER)?;
                let target = serving.target(name).ok_or(LoginStatus::NOT_FOUND)?;
                if !target.config.enabled {
                    return Err(LoginStatus::SERVICE_UNAVAILABLE.into());
                }
                if let Some(redirect) = &target.config.redirect {
                    return Err(LoginRefusal::moved(redirect.to.to_string(), redirect.permanent));
                }
                let name = target.config.name.as_str();
                (Some(session_key(&ask.initiator_name, ask.isid, name)), Some(target))
            }
        };
        let grant = |tsih| LoginGrant {
            tsih,
            target_portal_group_tag: PORTAL_GROUP,
            target_alias: target.and_then(|target| target.config.alias.clone()),
            auth: target.and_then(|target| target.auth.clone()),
        };
        let status = |refusal| LoginRefusal::from(LoginStatus::from(refusal));
        if ask.tsih == 0 {
            return ticket
                .reserve_tsih(key.as_ref())
                .map(|tsih| Admission::Lead(grant(tsih)))
                .map_err(status);
        }
        // Discovery sessions have one connection.
        let key = key.ok_or(LoginStatus::SESSION_DOES_NOT_EXIST)?;
        let session = self.registry.find(&key, ask.tsih, ask.cid).map_err(status)?;
        Ok(Admission::Join(grant(ask.tsih), session))
    }

    /// Turns a connection whose login has succeeded into a session, or one more connection of a session that it `joins`. With
    /// it come the connections whose place it takes: nothing may happen on the new one before they have ended. `shared` is
    /// what others need to join.
    pub(crate) fn establish(
        &self,
        logged_in: &LoggedIn,
        joins: bool,
        shared: Option<SharedSession>,
        ticket: &mut Ticket,
    ) -> Result<(Session, Vec<Arc<Handle>>), Refusal> {
        let initiator = logged_in.initiator_name.clone();
        let (Some(target), SessionType::Normal) = (&logged_in.target_name, logged_in.session_type) else {
            ticket.establish_discovery()?;
            return Ok((Session { nexus: None, counters: None, initiator, target: None }, Vec::new()));
        };
        let target = target.to_ascii_lowercase();
        let key = session_key(&initiator, logged_in.isid, &target);
        let (nexus, predecessors) = match joins {
            true => {
                let joined = ticket.join(&key, logged_in.tsih, logged_in.cid)?;
                (joined.nexus, joined.leaving)
            }
            false => (None, ticket.establish(key, logged_in.cid, shared)?),
        };
        Ok((Session { nexus, counters: None, initiator, target: Some(target) }, predecessors))
    }

    /// What a session may see and do as things are now; `None`: it may not be.
    pub(crate) fn admit(&self, logged_in: &LoggedIn) -> Option<(Arc<Target>, LunView)> {
        let serving = self.serving();
        let target = serving.target(logged_in.target_name.as_deref()?)?;
        target.config.enabled.then(|| (Arc::clone(target), LunView::ALL))
    }

    /// The nexus of a normal session; `None` if it may not be any longer since the login was granted. The initiator
    /// port's name is RFC 7143 §4.4.2's: name, `,i,0x`, ISID.
    pub(crate) fn open_nexus(&self, logged_in: &LoggedIn) -> Option<Arc<Nexus>> {
        let (target, view) = self.admit(logged_in)?;
        let isid: String = logged_in.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        let port = format!("{},i,0x{isid}", logged_in.initiator_name.to_ascii_lowercase());
        Some(target.scsi.open_nexus(&port, PORTAL_GROUP, view))
    }

    /// Answers SendTargets: to all, or to one by name, or to the session's own `this`. `local` is the address that the
    /// initiator connected to.
    pub(crate) fn records(
        &self,
        which: &SendTargets,
        this: Option<&str>,
        local: SocketAddr,
    ) -> Vec<TargetRecord> {
        let serving = self.serving();
        let portals = self.portals.now();
        let record = |target: &Arc<Target>| {
            let told = portals.told(local, |group| target.is_offered_by(group)).into_iter();
            TargetRecord {
                name: target.config.name.to_string(),
                addresses: told.map(|portal| (portal.address.to_string(), portal.tag)).collect(),
            }
        };
        let shown = |target: &&Arc<Target>| target.config.enabled;
        let one = |name: &str| serving.target(name).filter(shown).map(record).into_iter().collect();
        match which {
            SendTargets::All => serving.targets.values().filter(shown).map(record).collect(),
            SendTargets::Named(name) => one(name),
            SendTargets::This => this.map_or_else(Vec::new, one),
        }
    }
}

/// Names of initiators are compared in their normal form, like those of targets (RFC 7143 §4.2.7).
fn session_key(initiator: &str, isid: [u8; 6], target: &str) -> SessionKey {
    SessionKey { initiator: initiator.to_ascii_lowercase(), isid, target: target.to_owned() }
}
