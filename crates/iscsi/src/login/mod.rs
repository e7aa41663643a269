//! The login phase (RFC 7143 §6.3) as two state machines, one per role, that see headers and text only.
//!
//! [`TargetLogin`] answers Login Requests; [`InitiatorLogin`] makes them. Neither knows sockets, clocks or sequence
//! numbers: the connection fills `CmdSN`, `StatSN` and the like, and limits how long a login may take.
//!
//! ```text
//!   InitiatorLogin::first ──────► TargetLogin::request ──► Ask(who may log in?) ──► grant / refuse
//!   InitiatorLogin::response ◄──── Respond                                              │
//!            │ Send                    ▲ ◄──────────────────────────────────────────────┘
//!            └─────────────────────────┘            … until Finished or Failed on both sides
//! ```
//!
//! Both ends finish with the same [`LoggedIn`]: the session's parameters and who is at the other end.

mod initiator;
mod target;
#[cfg(test)]
mod tests;

pub use initiator::{
    InitiatorChap, InitiatorLogin, InitiatorLoginConfig, InitiatorStep, LoginError, LoginMessage,
};
pub use target::{ChapAuth, LoginAsk, LoginGrant, LoginRefusal, LoginReply, TargetLogin, TargetStep};

use crate::negotiation::Negotiated;
use crate::pdu::Isid;

/// Most PDUs one login may take in one direction. A long one takes six; the rest is for text cut into small pieces.
// RFC 7143 [6.2-13, 10.3-1]
pub const LOGIN_PDUS_MAX: u32 = 32;

/// Type of a session (RFC 7143 §13.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionType {
    /// Asks for the names and addresses of targets and does no I/O.
    Discovery,
    /// I/O with one target.
    Normal,
}

/// A login that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// The parameters both sides now follow.
    pub negotiated: Negotiated,
    /// The initiator's iSCSI name.
    pub initiator_name: String,
    /// Alias of the initiator, for people.
    pub initiator_alias: Option<String>,
    /// The target's iSCSI name; none in a discovery session.
    pub target_name: Option<String>,
    /// Alias of the target, for people.
    pub target_alias: Option<String>,
    /// The portal group this connection reached.
    pub target_portal_group_tag: Option<u16>,
    /// Type of the session.
    pub session_type: SessionType,
    /// The initiator's part of the session's identity.
    pub isid: Isid,
    /// The target's part of the session's identity.
    pub tsih: u16,
    /// The connection within the session.
    pub cid: u16,
    /// The CHAP name the initiator proved; none without authentication.
    pub user: Option<String>,
}
