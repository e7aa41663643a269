//! Reason why a logical unit could not be reached.

use lunway_block::duration::HumanTime;
use lunway_iscsi::login::LoginError;

/// Reason why a device could not be opened, a portal not be asked. Says where, what, and what may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IscsiOpenError {
    /// The address names no target where one is needed.
    #[error("the address iscsi://{portal} names no target; `lunway discover iscsi://{portal}` lists them")]
    NoTarget {
        /// Portal.
        portal: String,
    },
    /// The address names no logical unit where one is needed.
    #[error(
        "the address names no logical unit: put its number behind the target, as in iscsi://{portal}/{target}/0"
    )]
    NoLun {
        /// Portal.
        portal: String,
        /// The target.
        target: String,
    },
    /// The host's name has no address.
    #[error("cannot find the host of {portal}: {why}")]
    Resolve {
        /// Portal.
        portal: String,
        /// Message from the resolver.
        why: String,
    },
    /// No TCP connection.
    #[error("cannot connect to {portal}: {why}")]
    Connect {
        /// Portal.
        portal: String,
        /// Message from the operating system.
        why: String,
    },
    /// The target did not let us in.
    #[error("cannot log in at {portal}: {error}")]
    Login {
        /// Portal.
        portal: String,
        /// Underlying error.
        error: LoginError,
    },
    /// The target asks for CHAP, and the address has no user.
    #[error("cannot log in at {portal}: the target requires CHAP: use iscsi://USER@…?secret_file=FILE")]
    ChapRequired {
        /// Portal.
        portal: String,
    },
    /// Targets sent us from one to the next.
    #[error("cannot log in at {portal}: it redirected the login too often, or to an invalid address")]
    Redirects {
        /// Portal at which the login began.
        portal: String,
    },
    /// The connection ended.
    #[error("the connection to {portal} ended: {why}")]
    Lost {
        /// Portal.
        portal: String,
        /// Cause.
        why: String,
    },
    /// The address leads to another port of the target than before.
    #[error(
        "{portal} belongs to another portal group than when the device was opened: nothing shows that the lost session has ended; \
         open the device anew"
    )]
    OtherPort {
        /// Portal.
        portal: String,
    },
    /// No answer in time.
    #[error(
        "no answer from {portal} to {what} within {}: {}", HumanTime::millis(*.millis), last_known(*.silent_millis)
    )]
    Timeout {
        /// Portal.
        portal: String,
        /// To what.
        what: String,
        /// Time waited, milliseconds.
        millis: u64,
        /// For how long nothing had come over the connection, milliseconds; `None`: nothing ever came.
        silent_millis: Option<u64>,
    },
    /// Commands of the session that was lost are under way yet.
    #[error(
        "the target at {portal} is reachable, and the LUN is busy with a command of this host's old session"
    )]
    Occupied {
        /// Portal.
        portal: String,
    },
    /// The target has no such logical unit.
    #[error("the target at {portal} has no logical unit {lun}")]
    NoSuchLun {
        /// Portal.
        portal: String,
        /// Its number.
        lun: u16,
    },
    /// The logical unit is a tape, a changer, …
    #[error("logical unit {lun} at {portal} is not a disk: its device type is {device_type:#04x}")]
    NotADisk {
        /// Portal.
        portal: String,
        /// Its number.
        lun: u16,
        /// Peripheral device type (SPC-4 §6.6.2).
        device_type: u8,
    },
    /// A command that every disk must know failed.
    #[error("{command} failed at {portal}: {why}")]
    Command {
        /// Portal.
        portal: String,
        /// Name of the command.
        command: &'static str,
        /// The status and sense data.
        why: String,
    },
    /// The target port is in an asymmetric access state in which the disk tells nothing of its shape (SPC-4 §5.16).
    #[error(
        "{portal} does not lead to the disk now: {why}; another portal may, and this one when the storage makes it active"
    )]
    Inactive {
        /// Portal.
        portal: String,
        /// The sense data.
        why: String,
    },
    /// The free initiator ports cannot be determined, or not be recorded.
    #[error(
        "cannot open the disk at {portal}: the record of this host's iSCSI sessions cannot be used: {why}; LUNWAY_RUNTIME_DIR names another place for it"
    )]
    Record {
        /// Portal.
        portal: String,
        /// Message from the operating system.
        why: String,
    },
    /// A session of an earlier process may still write.
    #[error(
        "an earlier process of this host was ended with a session to {portals} that may still write, and nothing shows that it cannot ({why}); \
         open the disk once over a path to that portal, or, when that port is known to be dead, remove {record}"
    )]
    Predecessor {
        /// Portals of that session.
        portals: String,
        /// Reason why a barrier was no proof.
        why: String,
        /// Location of its record.
        record: String,
    },
    /// A shape that no `BlockDevice` has.
    #[error("the disk at {portal} cannot be used: {why}")]
    Shape {
        /// Portal.
        portal: String,
        /// Description of the fault.
        why: String,
    },
}

/// Describes what is known about a connection over which an answer did not come.
fn last_known(silent_millis: Option<u64>) -> String {
    match silent_millis {
        Some(millis) => {
            format!("the connection is up, and last received data {} ago", HumanTime::millis(millis))
        }
        None => "it accepted the TCP connection, and sent nothing".to_owned(),
    }
}
