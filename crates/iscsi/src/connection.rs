//! Types common to the connections of both roles.

use std::fmt;
use std::ops::Deref;

use crate::login::LoginError;
use crate::pdu::LoginStatus;
use crate::receive::ReceiveError;

/// A command descriptor block: 16 bytes, or longer where the command came with an extended-CDB AHS (RFC 7143
/// §11.2.2.3).
#[derive(Clone, PartialEq, Eq)]
pub struct Cdb {
    first: [u8; 16],
    /// The whole CDB where it is longer than 16 bytes.
    extended: Option<Box<[u8]>>,
}

/// Longest CDB that SPC-4 allows, bytes.
pub const CDB_LEN_MAX: usize = 260;

impl Cdb {
    /// A CDB; shorter ones than 16 bytes are filled up with zeroes, as they are on the wire. More than
    /// [`CDB_LEN_MAX`] bytes are cut off.
    pub fn new(bytes: &[u8]) -> Self {
        let mut first = [0; 16];
        let len = bytes.len().min(16);
        first[..len].copy_from_slice(&bytes[..len]);
        let extended = (bytes.len() > 16).then(|| bytes[..bytes.len().min(CDB_LEN_MAX)].into());
        Self { first, extended }
    }

    /// The first 16 bytes, which the SCSI Command PDU carries.
    pub(crate) fn first(&self) -> &[u8; 16] {
        &self.first
    }
}

impl Deref for Cdb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.extended.as_deref().unwrap_or(&self.first)
    }
}

impl fmt::Debug for Cdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cdb({:02x?})", &**self)
    }
}

/// Targets that a SendTargets asks for (RFC 7143 appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// All that the initiator may see; in discovery sessions only.
    All,
    /// The one with this name.
    Named(String),
    /// The one that the session is with; in normal sessions only.
    This,
}

/// Record of one target in the answer to a SendTargets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// iSCSI name.
    pub name: String,
    /// Portals: address with port (`192.0.2.1:3260`, `[2001:db8::1]:3260`) and target portal group tag.
    pub addresses: Vec<(String, u16)>,
}

/// Reason why a connection ends. `Display` gives a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// By a Logout Request and its response.
    #[error("logged out")]
    LoggedOut,
    /// By a Logout Request for this connection alone (target).
    #[error("the connection was logged out")]
    ConnectionLoggedOut,
    /// The peer broke the protocol in a way that leaves no other answer.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// PDUs of the peer, or ours, were lost on the way, though the connection lives (initiator).
    #[error("lost on the way: {0}")]
    Missing(String),
    /// The byte stream can no longer be followed.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// We refused the login (target).
    #[error("login refused: {0}")]
    LoginRefused(LoginStatus),
    /// Our login failed (initiator).
    #[error("login failed: {0}")]
    LoginFailed(LoginError),
    /// Full feature phase was not reached in time.
    #[error("the login took too long")]
    LoginTimeout,
    /// A ping was not answered in time.
    #[error("no answer to a NOP ping")]
    PingTimeout,
    /// The peer did not log out in the time that it was given.
    #[error("the peer did not log out in time")]
    LogoutTimeout,
    /// The target asked to end the connection by an asynchronous message.
    #[error("the target dropped the connection: {0}")]
    Dropped(String),
}
