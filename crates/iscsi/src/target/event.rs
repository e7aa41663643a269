//! Events of a connection, for its driver.

use lunway_block::SharedBuf;

use super::control::{LogoutId, TaskManagementId, TextId};
use super::task::TaskId;
use crate::connection::{Cdb, CloseReason, SendTargets};
use crate::login::{LoggedIn, LoginAsk};
use crate::pdu::{TaskAttribute, TaskManagementCode};

/// A SCSI command with all its data. An ORDERED one comes after all that arrived before it for its logical unit in this
/// session, and before all that arrived later, whenever their data came. Where the session has several connections, on
/// as many threads, the driver says which commands it has [begun](super::TargetConnection::begun).
#[derive(Debug)]
pub struct Command {
    /// To answer it with.
    pub task: TaskId,
    /// Logical unit number (SAM-5 §4.7).
    pub lun: [u8; 8],
    /// CmdSN: its place in the order of the session's commands. It comes later than that where its data had to be asked
    /// for.
    pub cmd_sn: u32,
    /// Simple, ordered and so on.
    pub attribute: TaskAttribute,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Data to write; shorter than `expected_length` only where that exceeds the configured maximum.
    pub data_out: SharedBuf,
    /// Expected Data Transfer Length of either direction, bytes.
    pub expected_length: u32,
    /// Bytes of data-in that the initiator has room for: the expected length of a read, else 0.
    pub data_in_max: u32,
    /// The driver has let it pass already: it has [asked for its data](super::TargetConnection::ask_for_data), or
    /// [put it back](super::TargetConnection::put_back).
    pub passed: bool,
}

/// A command whose data has to be asked for, of a connection that [announces](super::TargetConnection::announce) such.
#[derive(Debug)]
pub struct Announcement {
    /// To [ask for its data](super::TargetConnection::ask_for_data).
    pub task: TaskId,
    /// Logical unit number (SAM-5 §4.7).
    pub lun: [u8; 8],
    /// Simple, ordered and so on.
    pub attribute: TaskAttribute,
    /// The command descriptor block.
    pub cdb: Cdb,
}

/// Event that the driver must know of or decide on.
#[derive(Debug)]
pub enum TargetEvent {
    /// Someone wants to log in: answer with `grant_login` or `refuse_login`. Until then nothing else happens.
    Login(LoginAsk),
    /// The initiator says that it is this user, and gives a CHAP response: answer with `check_proof`, at once or later,
    /// or with `refuse_login`. Until then nothing else happens. A response that is wrong closes the connection with
    /// [`LoginStatus::AUTHENTICATION_FAILURE`](crate::pdu::LoginStatus::AUTHENTICATION_FAILURE).
    Proof {
        /// CHAP_N.
        user: String,
    },
    /// Full feature phase begins. The last Login Response is queued, not sent: an older session of the same initiator
    /// port must be closed first (session reinstatement, RFC 7143 §6.3.5).
    LoggedIn(Box<LoggedIn>),
    /// Execute this and `complete` it.
    Command(Command),
    /// Call `ask_for_data`, at once or later. Until then the command occupies no more than came with it.
    Announced(Announcement),
    /// Carry this out and call `respond_task_management`.
    TaskManagement {
        /// To answer it with.
        request: TaskManagementId,
        /// Function to carry out.
        function: TaskManagementCode,
        /// The logical unit, for functions that are about one.
        lun: [u8; 8],
        /// The task, for functions that are about one.
        referenced_task_tag: u32,
    },
    /// Close another connection of the session, then call `respond_logout`.
    CloseConnection {
        /// To answer it with.
        request: LogoutId,
        /// CID of the connection.
        cid: u16,
    },
    /// Another connection of the session holds requests whose turn it is now: let it
    /// [`resume`](super::TargetConnection::resume).
    Wake(u16),
    /// Answer with `respond_targets`.
    SendTargets {
        /// To answer it with.
        request: TextId,
        /// Targets asked for.
        which: SendTargets,
    },
    /// The end. Send what is still queued, then close the socket. No event comes after it.
    Closing(CloseReason),
}
