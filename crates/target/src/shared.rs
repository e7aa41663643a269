//! State shared by all connections of a server, and the decisions made from it: who may log in, to what, and what is
//! told of targets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use lunway_block::{MemoryBudget, MemoryLease};
use lunway_iscsi::login::{ChapAuth, LoggedIn, LoginAsk, LoginGrant, LoginRefusal, SessionType};
use lunway_iscsi::pdu::LoginStatus;
use lunway_iscsi::target::TargetConnectionConfig;
use lunway_iscsi::text::to_hexadecimal;
use lunway_iscsi::{SendTargets, TargetRecord};
use lunway_scsi::{LogicalUnit, LunView, Nexus, PortPair, ScsiTarget};

use crate::access::{self, AccessDecision, Asker, Gate};
use crate::chap_failures::ChapFailures;
use crate::config::{AccessRule, FIRST_PORTAL_GROUP, Limits, LunConfig, TargetConfig};
use crate::io_limit::{InitiatorKey, IoLimits, Limiter, LunLimiters};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{DeviceReading, Metrics, SessionCounters};
use crate::portal::{Advertise, Ends, PortalTable};
use crate::principal;
use crate::registry::{Handle, Joinable, Refusal, Registry, SessionKey, Standing, Ticket};
use crate::source::{Denials, LoginThrottle};
use crate::summary::{LunSummary, PullReading, SpaceReading};

/// State of a session that each of its connections has.
pub(crate) struct SessionContext {
    /// `None`: discovery, or not open yet.
    pub(crate) nexus: Option<Arc<Nexus>>,
    /// `None`: discovery.
    pub(crate) counters: Option<SessionCounters>,
    /// Name of its initiator, for the log.
    pub(crate) initiator: String,
    /// Principal that owns it, from login to end: see [`principal`](crate::principal).
    pub(crate) principal: String,
    pub(crate) target: Option<String>,
}

/// One target as it is served. Replaced as a whole when its configuration changes; its SCSI target stays.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) config: TargetConfig,
    /// `None`: nothing has to be proven.
    pub(crate) auth: Option<ChapAuth>,
    pub(crate) scsi: Arc<ScsiTarget>,
}

impl Target {
    /// Returns `true` if it can be reached through this portal group.
    pub(crate) fn is_offered_by(&self, group: u16) -> bool {
        let groups = &self.config.portal_groups;
        groups.is_empty() || groups.iter().any(|of| of.tag == group)
    }

    /// Returns the authentication for a login from there: `None` inside means without proof. An error is what the
    /// initiator is told.
    fn entrance(&self, asker: Asker<'_>) -> Result<Option<ChapAuth>, LoginStatus> {
        let gate = Gate::from(&self.config);
        let Some(auth) = &self.auth else {
            return match access::decide(gate, asker, None) {
                AccessDecision::Granted(_) => Ok(None),
                AccessDecision::Denied => Err(LoginStatus::AUTHORIZATION_FAILURE),
            };
        };
        let users = auth.accounts.iter().map(|account| account.user.as_str());
        let barred = access::barred(gate, asker, users);
        if barred.len() == auth.accounts.len() {
            return Err(LoginStatus::AUTHORIZATION_FAILURE);
        }
        Ok(Some(ChapAuth { barred, ..auth.clone() }))
    }

    /// Returns the present access of an initiator that has logged in through a portal of `group`; denied as well where
    /// the target is disabled or not offered by that group.
    pub(crate) fn access_of(
        &self,
        initiator: &str,
        from: IpAddr,
        user: Option<&str>,
        group: u16,
    ) -> AccessDecision {
        match self.config.enabled && self.is_offered_by(group) {
            true => self.access(Asker { initiator, from }, user),
            false => AccessDecision::Denied,
        }
    }

    /// Returns the view of a session by the present rules: nothing, where it would not be let in. The check does not
    /// ask whether the target is offered where the session came by: a portal that is taken away takes no rights away.
    pub(crate) fn view_of(&self, initiator: &str, from: IpAddr, user: Option<&str>) -> LunView {
        match self.access(Asker { initiator, from }, user) {
            AccessDecision::Granted(view) => view,
            AccessDecision::Denied => LunView::NOTHING,
        }
    }

    /// Returns the present access of a logged-in initiator. One that would not get in any more, because there is
    /// something to prove now or the user is gone, may do nothing.
    fn access(&self, asker: Asker<'_>, user: Option<&str>) -> AccessDecision {
        let is_known =
            |user| self.auth.iter().flat_map(|auth| &auth.accounts).any(|known| known.user == user);
        if self.auth.is_some() && !user.is_some_and(is_known) {
            return AccessDecision::Denied;
        }
        access::decide(Gate::from(&self.config), asker, user)
    }

    /// The size of its logical units, and the space behind them.
    pub(crate) fn devices(&self) -> Vec<DeviceReading> {
        let reading = |(lun, unit): (u16, Arc<LogicalUnit>)| {
            let device = unit.device();
            let space = device.space().map(SpaceReading::from);
            let pull = device.pull().map(PullReading::from);
            DeviceReading {
                target: self.config.name.to_string(),
                lun,
                size: device.geometry().size,
                space,
                pull,
            }
        };
        self.scsi.luns().into_iter().map(reading).collect()
    }

    /// Its logical units as initiators see them.
    pub(crate) fn luns(&self) -> Vec<LunSummary> {
        // By number: `TargetConfig::lun` looks through all of them, of which there may be thousands.
        let configs: BTreeMap<u16, &LunConfig> = self.config.luns.iter().map(|lun| (lun.id, lun)).collect();
        let luns = self.scsi.luns().into_iter();
        luns.filter_map(|(id, unit)| {
            let geometry = unit.device().geometry();
            Some(LunSummary {
                id,
                device: configs.get(&id)?.device.to_string(),
                size: geometry.size,
                sector: geometry.logical_sector,
                read_only: unit.is_read_only(),
                serial: unit.identity().serial().to_owned(),
                space: unit.device().space().map(SpaceReading::from),
                pull: unit.device().pull().map(PullReading::from),
                lost_file: unit.device().backing(),
                shrunk_from: None,
                offline: None,
            })
        })
        .collect()
    }
}

/// Served targets and settings, in the form that connections need. Replaced as a whole when the configuration changes.
#[derive(Debug)]
pub(crate) struct Serving {
    /// By name in its normal form.
    pub(crate) targets: BTreeMap<String, Arc<Target>>,
    /// CHAP proof that discovery sessions must give, or may.
    pub(crate) discovery: Option<ChapAuth>,
    pub(crate) advertise: Advertise,
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

/// Admission of a login: the way it may go on.
#[derive(Debug)]
pub(crate) enum Admission {
    /// As a session of its own.
    Lead(LoginGrant),
    /// As one more connection of this session.
    Join(LoginGrant, Joinable),
}

/// State shared by all connections: locked for a moment when sessions come and go, never for I/O.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) serving: RwLock<Arc<Serving>>,
    /// Portals at which connections are accepted, and what initiators are told of them.
    pub(crate) portals: Arc<PortalTable>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    /// Lines about sessions.
    pub(crate) session_log: LogLimits,
    /// Lines about connections that came to nothing.
    pub(crate) reject_log: LogLimit,
    pub(crate) throttle: LoginThrottle,
    pub(crate) chap_failures: ChapFailures,
    pub(crate) denials: Denials,
    /// Memory that all sessions have, by principal.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Limits on the I/O of logical units and initiators.
    pub(crate) io_limits: IoLimits,
    /// Held while sessions are given [their rights](Self::review).
    pub(crate) reviewing: Mutex<()>,
}

impl Shared {
    /// Returns what is served now.
    pub(crate) fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves something else from now on.
    pub(crate) fn serve(&self, serving: Serving) {
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
        self.limit_io();
    }

    /// Has the limits of I/O be those of what is served.
    pub(crate) fn limit_io(&self) {
        self.io_limits.configure(self.serving().targets.values().map(|target| &target.config));
    }

    /// The limits that a session is under, by the rules of now: of its initiator, and of logical units.
    pub(crate) fn limiters(
        &self,
        logged_in: &LoggedIn,
        ends: Ends,
    ) -> (Option<Arc<Limiter>>, Arc<LunLimiters>) {
        let target = logged_in.target_name.as_deref().unwrap_or_default().to_ascii_lowercase();
        let user = logged_in.user.as_deref();
        let asker = Asker { initiator: &logged_in.initiator_name, from: ends.peer.ip() };
        let serving = self.serving();
        let rules = serving.target(&target).map_or(&[][..], |target| &target.config.acl);
        let limit = access::rule_of(rules, asker, user).and_then(AccessRule::io_limit);
        let of_initiator = limit.map(|limit| {
            let initiator = logged_in.initiator_name.to_ascii_lowercase();
            let key = InitiatorKey { initiator, user: user.map(str::to_owned) };
            self.io_limits.of_initiator(key, limit)
        });
        (of_initiator, self.io_limits.of_luns(&target))
    }

    /// No target is served any longer.
    pub(crate) fn serve_nothing(&self) {
        let now = self.serving();
        self.serve(Serving {
            targets: BTreeMap::new(),
            discovery: None,
            advertise: now.advertise,
            limits: now.limits,
            connection: now.connection.clone(),
            bytes_executing_max: now.bytes_executing_max,
        });
    }

    /// A connection ended without a login: counted, and logged if there were not too many.
    pub(crate) fn no_login(&self, write: impl FnOnce(u64)) {
        self.metrics.login(false);
        self.reject_log.info(write);
    }

    /// A login was denied: counted, and logged if its source has had no line for a while.
    pub(crate) fn denied(&self, from: IpAddr, write: impl FnOnce(u64)) {
        self.metrics.login(false);
        self.denials.note(from, Instant::now(), write);
    }

    /// Decides on a login.
    // RFC 7143 [6.3.1-2]
    pub(crate) fn decide(
        &self,
        ask: &LoginAsk,
        ends: Ends,
        ticket: &mut Ticket,
    ) -> Result<Admission, LoginRefusal> {
        let serving = self.serving();
        if !self.throttle.allows(ends.peer.ip(), serving.limits.logins_per_second, Instant::now()) {
            return Err(LoginStatus::OUT_OF_RESOURCES.into());
        }
        let group = self.portals.now().tag_of(ends.local).unwrap_or(FIRST_PORTAL_GROUP);
        let (key, target, auth) = match ask.session_type {
            SessionType::Discovery => (None, None, serving.discovery.clone()),
            SessionType::Normal => {
                let name = ask.target_name.as_deref().ok_or(LoginStatus::MISSING_PARAMETER)?;
                let offered = |target: &&Arc<Target>| target.is_offered_by(group);
                let target = serving.target(name).filter(offered).ok_or(LoginStatus::NOT_FOUND)?;
                let asker = Asker { initiator: &ask.initiator_name, from: ends.peer.ip() };
                let auth = target.entrance(asker)?;
                if !target.config.enabled {
                    return Err(LoginStatus::SERVICE_UNAVAILABLE.into());
                }
                if let Some(redirect) = &target.config.redirect {
                    return Err(LoginRefusal::moved(redirect.to.to_string(), redirect.permanent));
                }
                let name = target.config.name.as_str();
                // Whose it is, unless that is still to be proven.
                let principal = auth.is_none().then(|| principal::of(&target.config.acl, asker, None));
                let key = session_key(&ask.initiator_name, ask.isid, name, group, principal);
                (Some(key), Some(target), auth)
            }
        };
        let grant = |tsih, auth| LoginGrant {
            tsih,
            target_portal_group_tag: group,
            target_alias: target.and_then(|target| target.config.alias.clone()),
            auth,
            refusal: None,
        };
        let status = |refusal| LoginRefusal::from(LoginStatus::from(refusal));
        if ask.tsih == 0 {
            let tsih = ticket.reserve_tsih(key.as_ref());
            let tsih =
                tsih.inspect_err(|refusal| self.no_place(*refusal, &ask.initiator_name)).map_err(status)?;
            return Ok(Admission::Lead(grant(tsih, auth)));
        }
        // Discovery sessions have one connection.
        let key = key.ok_or(LoginStatus::SESSION_DOES_NOT_EXIST)?;
        match self.registry.find(&key, ask.tsih, ask.cid) {
            Ok(session) => {
                let auth = auth.map(|auth| only_for(auth, session.leading().user.as_deref()));
                Ok(Admission::Join(grant(ask.tsih, auth), session))
            }
            // Which sessions there are is no news for strangers: they are asked who they are like those that find one.
            Err(refusal) if auth.is_some() => {
                let refusal = Some(refusal.into());
                Ok(Admission::Lead(LoginGrant { refusal, ..grant(ask.tsih, auth) }))
            }
            Err(refusal) => Err(status(refusal)),
        }
    }

    /// Turns a connection whose login has succeeded into a session, or one more connection of a session that it
    /// `joins`. With it come the connections whose place it takes: nothing may happen on the new one before they have
    /// ended. `joinable` is what others need to join.
    pub(crate) fn establish(
        &self,
        logged_in: &LoggedIn,
        joins: bool,
        ends: Ends,
        joinable: Option<Joinable>,
        ticket: &mut Ticket,
    ) -> Result<(SessionContext, Vec<Arc<Handle>>), Refusal> {
        let initiator = logged_in.initiator_name.clone();
        let (Some(target), SessionType::Normal) = (&logged_in.target_name, logged_in.session_type) else {
            ticket.establish_discovery()?;
            let principal = String::new();
            let session = SessionContext { nexus: None, counters: None, initiator, principal, target: None };
            return Ok((session, Vec::new()));
        };
        let target = target.to_ascii_lowercase();
        let asker = Asker { initiator: &initiator, from: ends.peer.ip() };
        let serving = self.serving();
        let rules = serving.target(&target).map_or(&[][..], |target| &target.config.acl);
        let principal = principal::of(rules, asker, logged_in.user.as_deref());
        let group = portal_group(logged_in);
        let key = session_key(&initiator, logged_in.isid, &target, group, Some(principal.clone()));
        let (nexus, predecessors) = match joins {
            true => {
                let joined = ticket.join(&key, logged_in.tsih, logged_in.cid)?;
                (joined.nexus, joined.leaving)
            }
            false => {
                let established = ticket.establish(key, logged_in.cid, joinable);
                (None, established.inspect_err(|refusal| self.no_place(*refusal, &initiator))?)
            }
        };
        Ok((
            SessionContext { nexus, counters: None, initiator, principal, target: Some(target) },
            predecessors,
        ))
    }

    /// A part of the memory for a connection of a session: of what its principal has.
    pub(crate) fn lease(&self, session: &SessionContext, ends: Ends) -> MemoryLease {
        let principal = if session.target.is_some() { session.principal.as_str() } else { "discovery" };
        MemoryLease::new(&self.memory, &principal::memory_owner(principal, ends.peer.ip()))
    }

    /// A login that finds no place is logged: its user sees a timeout or "out of resources" at best.
    fn no_place(&self, refusal: Refusal, initiator: &str) {
        if refusal == Refusal::Full {
            self.reject_log.info(|suppressed| {
                tracing::warn!(
                    initiator,
                    suppressed,
                    "no place for another session: limits.sessions or limits.sessions_per_initiator is reached"
                );
            });
        }
    }

    /// Has sessions see and do what the rules of now allow to each of their connections: a session's rights are what
    /// the rights of all its connections have in common, as a command is the session's whichever connection it came by.
    /// To be called when the rules of a target, or the connections of a session, have become others.
    pub(crate) fn review(&self, standings: impl FnOnce() -> Vec<Standing>) {
        // One at a time, from rules and connections that are read meanwhile: so what was changed last is seen last.
        let _reviewing = self.reviewing.lock().unwrap_or_else(PoisonError::into_inner);
        let serving = self.serving();
        for standing in standings() {
            let Some(target) = serving.target(&standing.target) else { continue };
            let view_from =
                |from: &IpAddr| target.view_of(&standing.initiator, *from, standing.user.as_deref());
            if let Some(view) = standing.from.iter().map(view_from).reduce(|all, one| all.common_with(&one)) {
                standing.nexus.set_view(view);
            }
        }
    }

    /// Returns the target and the present view of a session; `None`: it may not be.
    pub(crate) fn admit(&self, logged_in: &LoggedIn, ends: Ends) -> Option<(Arc<Target>, LunView)> {
        let serving = self.serving();
        let target = serving.target(logged_in.target_name.as_deref()?)?;
        let (initiator, user) = (&logged_in.initiator_name, logged_in.user.as_deref());
        match target.access_of(initiator, ends.peer.ip(), user, portal_group(logged_in)) {
            AccessDecision::Granted(view) => Some((Arc::clone(target), view)),
            AccessDecision::Denied => None,
        }
    }

    /// The nexus of a normal session; `None` if it may not be any longer since the login was granted. The initiator
    /// port's name is RFC 7143 §4.4.2's: name, `,i,0x`, ISID.
    // RFC 7143 [4.4.2-1, 4.4.2-2]
    pub(crate) fn open_nexus(&self, logged_in: &LoggedIn, ends: Ends, principal: &str) -> Option<Arc<Nexus>> {
        let (target, view) = self.admit(logged_in, ends)?;
        let isid = to_hexadecimal(&logged_in.isid);
        let ports = PortPair {
            initiator_port: format!("{},i,{isid}", logged_in.initiator_name.to_ascii_lowercase()),
            relative_target_port: portal_group(logged_in),
            principal: principal.to_owned(),
        };
        Some(target.scsi.open_nexus_between(ports, view))
    }

    /// Answers SendTargets: with all targets that the initiator may log in to from where it is, with one by name, or
    /// with the session's own.
    // RFC 7143 [C-3, C-9, C-10]
    pub(crate) fn records(&self, which: &SendTargets, asking: &LoggedIn, ends: Ends) -> Vec<TargetRecord> {
        let serving = self.serving();
        let portals = self.portals.now();
        let record = |target: &Arc<Target>| {
            let told = portals.told(ends, serving.advertise, |group| target.is_offered_by(group)).into_iter();
            TargetRecord {
                name: target.config.name.to_string(),
                addresses: told.map(|portal| (portal.address.to_string(), portal.tag)).collect(),
            }
        };
        let asker = Asker { initiator: &asking.initiator_name, from: ends.peer.ip() };
        let shown = |target: &&Arc<Target>| target.config.enabled && target.entrance(asker).is_ok();
        let one = |name: &str| serving.target(name).filter(shown).map(record).into_iter().collect();
        match which {
            SendTargets::All => serving.targets.values().filter(shown).map(record).collect(),
            SendTargets::Named(name) => one(name),
            SendTargets::This => asking.target_name.as_deref().map_or_else(Vec::new, one),
        }
    }
}

/// Names of initiators are compared in their normal form, like those of targets (RFC 7143 §4.2.7).
fn session_key(
    initiator: &str,
    isid: [u8; 6],
    target: &str,
    portal_group: u16,
    principal: Option<String>,
) -> SessionKey {
    let (initiator, target) = (initiator.to_ascii_lowercase(), target.to_owned());
    SessionKey { initiator, isid, target, portal_group, principal }
}

/// The way in for one user: what a session may see and do is its own, so that no other user can be let into it.
fn only_for(mut auth: ChapAuth, user: Option<&str>) -> ChapAuth {
    let users = auth.accounts.iter().map(|account| &account.user);
    let others: Vec<_> = users.filter(|other| user != Some(other.as_str())).cloned().collect();
    auth.barred.extend(others);
    auth
}

/// The portal group that a session came by: that of its login, also if the portal has moved to another since.
fn portal_group(logged_in: &LoggedIn) -> u16 {
    logged_in.target_portal_group_tag.unwrap_or(FIRST_PORTAL_GROUP)
}
