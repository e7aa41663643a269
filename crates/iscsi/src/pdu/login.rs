//! Login Request and Login Response.

use super::{Opcode, OpcodeByte, U24};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// A stage of the login phase (RFC 7143 §11.12.3).
    pub struct Stage {
        /// Security negotiation: who is it?
        SECURITY = 0, "security negotiation";
        /// Under which parameters?
        OPERATIONAL = 1, "login operational negotiation";
        /// The login is over.
        FULL_FEATURE = 3, "full feature phase";
    }
}

/// The initiator's part of a session's identity (RFC 7143 §11.12.5).
pub type Isid = [u8; 6];

/// Status of a login: status class in the high, status detail in the low byte (RFC 7143 §11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoginStatus(pub u16);

macro_rules! login_status {
    ($( $(#[$meta:meta])* $name:ident = $code:literal, $text:literal; )*) => {
        impl LoginStatus {
            $( $(#[$meta])* pub const $name: Self = Self($code); )*

            /// The standard's name for this value, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $code => Some($text), )*
                    _ => None,
                }
            }
        }
    };
}

/// Byte 1 of the login PDUs, which is the same in both directions (RFC 7143 §11.12.1–3, §11.13.6–7).
macro_rules! login_flags {
    ($name:ident) => {
        impl $name {
            /// The sender is ready to leave the stage.
            pub const TRANSIT: u8 = 0x80;
            /// The text goes on in the next PDU.
            pub const CONTINUE: u8 = 0x40;

            /// Returns `true` if the sender is ready to leave the stage.
            pub const fn transits(&self) -> bool {
                self.flags & Self::TRANSIT != 0
            }

            /// Returns `true` if the text continues in the next PDU.
            pub const fn continues(&self) -> bool {
                self.flags & Self::CONTINUE != 0
            }

            /// The stage this PDU belongs to.
            pub const fn current_stage(&self) -> Stage {
                Stage(self.flags >> 2 & 0x03)
            }

            /// The stage to go to, meaningful with [`Self::TRANSIT`].
            pub const fn next_stage(&self) -> Stage {
                Stage(self.flags & 0x03)
            }

            /// Sets the stage, and with `next` the transit bit and the stage to go to.
            pub const fn set_stages(&mut self, current: Stage, next: Option<Stage>) {
                self.flags = self.flags & Self::CONTINUE | (current.0 & 0x03) << 2;
                if let Some(next) = next {
                    self.flags |= Self::TRANSIT | next.0 & 0x03;
                }
            }
        }
    };
}

login_status! {
    /// The login goes on or has succeeded.
    SUCCESS = 0x0000, "success";
    /// The target is elsewhere for now; TargetAddress says where.
    TARGET_MOVED_TEMPORARILY = 0x0101, "target moved temporarily";
    /// The target is elsewhere for good; TargetAddress says where.
    TARGET_MOVED_PERMANENTLY = 0x0102, "target moved permanently";
    /// Some other mistake of the initiator.
    INITIATOR_ERROR = 0x0200, "initiator error";
    /// Wrong secret, or no acceptable method.
    AUTHENTICATION_FAILURE = 0x0201, "authentication failure";
    /// This initiator may not use this target.
    AUTHORIZATION_FAILURE = 0x0202, "authorization failure";
    /// No such target.
    NOT_FOUND = 0x0203, "target not found";
    /// The target is gone and left no address.
    TARGET_REMOVED = 0x0204, "target removed";
    /// No common protocol version.
    UNSUPPORTED_VERSION = 0x0205, "unsupported version";
    /// The session has all the connections it may have.
    TOO_MANY_CONNECTIONS = 0x0206, "too many connections";
    /// A key that must be there is not.
    MISSING_PARAMETER = 0x0207, "missing parameter";
    /// This session does not span to this connection's portal.
    CANNOT_INCLUDE_IN_SESSION = 0x0208, "cannot include in session";
    /// No sessions of this type here.
    SESSION_TYPE_NOT_SUPPORTED = 0x0209, "session type not supported";
    /// A connection was to join a session that is not there.
    SESSION_DOES_NOT_EXIST = 0x020a, "session does not exist";
    /// Something was sent that does not belong into a login.
    INVALID_DURING_LOGIN = 0x020b, "invalid request during login";
    /// Some mistake of the target.
    TARGET_ERROR = 0x0300, "target error";
    /// The target is not in service now.
    SERVICE_UNAVAILABLE = 0x0301, "service unavailable";
    /// The target has no room for another session or connection.
    OUT_OF_RESOURCES = 0x0302, "out of resources";
}

impl LoginStatus {
    /// The status class: 0 success, 1 redirection, 2 the initiator's mistake, 3 the target's.
    pub const fn class(self) -> u8 {
        self.0.to_be_bytes()[0]
    }

    /// The status detail within the class.
    pub const fn detail(self) -> u8 {
        self.0.to_be_bytes()[1]
    }
}

impl std::fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#06x})", self.0),
            None => write!(f, "unknown login status ({:#06x})", self.0),
        }
    }
}

impl std::fmt::Debug for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoginStatus({self})")
    }
}

/// Login Request (RFC 7143 §11.12).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LoginRequest {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Transit, continue, current and next stage.
    pub flags: u8,
    /// Highest protocol version the initiator knows.
    pub version_max: u8,
    /// Lowest protocol version the initiator knows.
    pub version_min: u8,
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// The initiator's part of the session's identity.
    pub isid: Isid,
    /// The target's part; 0 asks for a new session.
    pub tsih: U16,
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// The connection within the session.
    pub cid: U16,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Place in the command order (§4.2.2.1).
    pub cmd_sn: U32,
    /// Next status the initiator expects on this connection.
    pub exp_stat_sn: U32,
    /// Reserved.
    pub reserved_tail: [u8; 16],
}

pdu!(LoginRequest, Opcode::LOGIN_REQUEST);
login_flags!(LoginRequest);

/// Login Response (RFC 7143 §11.13).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LoginResponse {
    /// Opcode and immediate bit.
    pub opcode: OpcodeByte,
    /// Transit, continue, current and next stage.
    pub flags: u8,
    /// Highest protocol version the target knows.
    pub version_max: u8,
    /// Protocol version in use.
    pub version_active: u8,
    /// Length of all additional header segments, words.
    pub total_ahs_length: u8,
    /// Length of the data segment, bytes.
    pub data_segment_length: U24,
    /// The initiator's part of the session's identity.
    pub isid: Isid,
    /// The target's part, set in the last response of a leading login.
    pub tsih: U16,
    /// The initiator's name for the task.
    pub initiator_task_tag: U32,
    /// Reserved.
    pub reserved: [u8; 4],
    /// Number of this status on this connection (§4.2.2.2).
    pub stat_sn: U32,
    /// Next command the target expects in the session.
    pub exp_cmd_sn: U32,
    /// Last command the target will accept.
    pub max_cmd_sn: U32,
    /// Class of the status.
    pub status_class: u8,
    /// Detail of the status.
    pub status_detail: u8,
    /// Reserved.
    pub reserved_tail: [u8; 10],
}

pdu!(LoginResponse, Opcode::LOGIN_RESPONSE);
login_flags!(LoginResponse);

impl LoginResponse {
    /// The status.
    pub const fn status(&self) -> LoginStatus {
        LoginStatus(u16::from_be_bytes([self.status_class, self.status_detail]))
    }

    /// Replaces the status.
    pub const fn set_status(&mut self, status: LoginStatus) {
        self.status_class = status.class();
        self.status_detail = status.detail();
    }
}
