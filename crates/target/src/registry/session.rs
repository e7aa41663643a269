//! Session as the registry has it: what it is known by, its connections, and the basis of its rights.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use lunway_iscsi::login::LoggedIn;
use lunway_iscsi::pdu::{Isid, LoginStatus};
use lunway_iscsi::target::SharedSession;
use lunway_scsi::Nexus;

use super::Handle;

/// Session identifier (the ISID rule, RFC 7143 §4.4.3): there is one session at a time for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: Isid,
    pub(crate) target: String,
    /// With the name it is the target port.
    pub(crate) portal_group: u16,
    /// Principal that owns it; `None` while that has not been proven.
    pub(crate) principal: Option<String>,
}

impl SessionKey {
    /// Returns `true` if the other session is of the same initiator, with whichever target.
    pub(super) fn is_of_same_initiator(&self, other: &Self) -> bool {
        self.initiator == other.initiator && other.principal.is_some() && self.principal == other.principal
    }

    /// Returns `true` if both name one session, as far as is known.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let Self { initiator, isid, target, portal_group, principal } = self;
        let same_principal =
            principal.is_none() || other.principal.is_none() || *principal == other.principal;
        *initiator == other.initiator
            && *isid == other.isid
            && *target == other.target
            && *portal_group == other.portal_group
            && same_principal
    }
}

#[derive(Debug)]
pub(super) struct SessionEntry {
    pub(super) key: SessionKey,
    pub(super) tsih: u16,
    /// At least one.
    pub(super) connections: Vec<Member>,
    /// State that a further connection needs to join; `None`: there is none.
    pub(super) joinable: Option<Joinable>,
    /// Once it is open.
    pub(super) nexus: Option<Arc<Nexus>>,
    /// No connection joins any longer.
    pub(super) over: bool,
    /// Another session has its place. It is still here because it is still ending.
    pub(super) replaced: bool,
}

/// State that a connection needs to join a session.
#[derive(Clone, Debug)]
pub(crate) enum Joinable {
    /// Its numbering, shared by several connections.
    Connections(SharedSession),
    /// With MaxConnections=1 the login that made it: a connection can only take the place of the one that is there.
    Replacement(Box<LoggedIn>),
}

impl Joinable {
    /// The login that made the session.
    pub(crate) fn leading(&self) -> &LoggedIn {
        match self {
            Self::Connections(session) => session.leading(),
            Self::Replacement(leading) => leading,
        }
    }
}

/// Basis of the rights of a session, beside the rules of its target.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) nexus: Arc<Nexus>,
    /// The target's name in its normal form.
    pub(crate) target: String,
    pub(crate) initiator: String,
    /// The CHAP user that each of its connections has proven to be.
    pub(crate) user: Option<String>,
    /// The address of each connection that may begin commands; at least one.
    pub(crate) from: Vec<IpAddr>,
}

/// A connection in its session.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) cid: u16,
    pub(super) handle: Arc<Handle>,
    /// Begins no command any more; the devices behind these logical units still have some.
    pub(super) busy: Option<BTreeSet<u16>>,
    /// Nothing of it runs any longer.
    pub(super) departed: bool,
}

impl Member {
    pub(super) fn new(cid: u16, handle: &Arc<Handle>) -> Self {
        Self { cid, handle: Arc::clone(handle), busy: None, departed: false }
    }
}

impl SessionEntry {
    /// The logical units whose devices still have commands of the session; `None` while a connection may begin more.
    pub(super) fn busy(&self) -> Option<BTreeSet<u16>> {
        let sets: Option<Vec<_>> = self.connections.iter().map(|member| member.busy.as_ref()).collect();
        Some(sets?.into_iter().flatten().copied().collect())
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = &Arc<Handle>> {
        self.connections.iter().map(|member| &member.handle)
    }

    /// `None`: it has no nexus, or none of its connections begins a command any more.
    pub(super) fn standing(&self) -> Option<Standing> {
        let summary = self.handles().find_map(|handle| handle.session.get())?;
        let begins = self.connections.iter().filter(|member| member.busy.is_none());
        let from: Vec<_> = begins.map(|member| member.handle.from).collect();
        let nexus = Arc::clone(self.nexus.as_ref()?);
        let (target, initiator) = (self.key.target.clone(), summary.initiator.clone());
        (!from.is_empty()).then(|| Standing { nexus, target, initiator, user: summary.user.clone(), from })
    }

    /// Returns the state for joining if a connection with this number may come in.
    pub(super) fn admits(&self, cid: u16) -> Result<&Joinable, Refusal> {
        let others = self.connections.iter().filter(|member| member.cid != cid).count();
        match &self.joinable {
            _ if self.over || self.nexus.is_none() => Err(Refusal::NoSession),
            Some(joinable) if others < usize::from(joinable.leading().negotiated.max_connections) => {
                Ok(joinable)
            }
            _ => Err(Refusal::TooManyConnections),
        }
    }
}

/// No session can be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As many sessions as are allowed.
    Full,
    /// The server shuts down.
    ShuttingDown,
    /// The initiator has no session with this TSIH.
    NoSession,
    /// The session has as many connections as it may.
    TooManyConnections,
}

impl From<Refusal> for LoginStatus {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::OUT_OF_RESOURCES,
            Refusal::ShuttingDown => Self::SERVICE_UNAVAILABLE,
            Refusal::NoSession => Self::SESSION_DOES_NOT_EXIST,
            Refusal::TooManyConnections => Self::TOO_MANY_CONNECTIONS,
        }
    }
}
