//! The iSCSI initiator: a logical unit behind `iscsi://` as a block device.
//!
//! ```text
//!   callers, any thread                         one task per device
//!   read │ write │ flush │ …                    ┌───────────────────────────────┐
//!        ▼                                      │ driver: drain, answer, gather │──── socket
//!   session: slots, queue, core ◀── one lock ──▶│ recovery: dial, prove, resume │
//!        ▲                                      └───────────────────────────────┘
//!        └── unit: geometry, limits, names
//! ```
//!
//! # I/O model
//!
//! A caller hands its command to the connection core itself and wakes the driver; the driver sends what all callers
//! have put in with one vectored write, and hands out what one vectored read brought. A command costs one allocation
//! (its future) and no copy of its data; [`IscsiDevice`] says when there is one.
//!
//! # Errors
//!
//! [`UrlError`] for addresses, [`IscsiOpenError`] until the device is open, and then
//! [`BlockError`](lunway_block::BlockError). No operation waits for ever; [`SessionOptions`] says how long. What
//! happens to work under way when a connection is lost, and to acknowledged writes when a target is, stands at
//! [`IscsiDevice`].
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`IscsiUrl`] | addresses |
//! | [`IscsiDevice`], `operation` | the block device: operations to CDBs, cut where they are too long |
//! | [`SessionOptions`] | how long to wait for what; how to be one of several paths |
//! | [`Observer`], [`SessionEvent`] | what happens to sessions, told as it happens |
//! | [`Silence`], `probe` | whether a silent path is dead, by what the kernel knows of it |
//! | [`discover`], [`inspect`](fn@inspect) | what is there, as plain data |
//! | `session`, `slots` | what callers and driver share: commands that wait for an answer |
//! | `traffic` | what has gone over the path, and its round trip |
//! | `look` | looks at an idle unit, which tells its news only when it is asked something |
//! | `clock`, `cache` | which commands are late; which acknowledged writes a power-on may have cost |
//! | `driver`, `wire` | **the hot path**: the loop that moves bytes, and when it sleeps |
//! | `part` | whether other devices are ways to the same disk |
//! | `recovery` | from a lost connection back to the same disk |
//! | `fence`, [`Detours`] | proof over other paths that a lost session is dead |
//! | [`InitiatorPorts`], [`Predecessors`] | ISIDs that are the same on every start; what a killed process has left at the target, ended before the first I/O |
//! | [`RecordedSession`] | which sessions processes of this host have now, for those who compare them with a target's |
//! | `dialling`, `fresh_session`, `exchange` | a connection, a fresh session, one question at a time |
//! | `unit`, `access`, [`VpdIdentity`] | shape, limits and names of a logical unit, and the state of its port |
//!
//! The crate knows no target: what it is tested against speaks iSCSI over a socket.

mod connection;
mod device;
mod dialling;
mod driver;
mod fence;
mod fresh_session;
mod initiator_ports;
mod inspect;
mod look;
mod observer;
mod open_error;
mod operation;
mod options;
mod part;
mod ports;
mod predecessors;
mod recovery;
mod session;
mod shape;
mod unit;
mod url;

pub use connection::silence::Silence;
pub use device::IscsiDevice;
pub use initiator_ports::InitiatorPorts;
pub use inspect::{Inspection, UnitInspection, discover, inspect, luns};
pub use lunway_iscsi::TargetRecord;
pub use lunway_iscsi::pdu::Isid;
pub use lunway_scsi::AccessState;
pub use observer::{Detours, Observer, SessionEvent, SharedObserver};
pub use open_error::IscsiOpenError;
pub use options::SessionOptions;
pub use ports::isid::IsidFamily;
pub use ports::recorded_session::RecordedSession;
pub use predecessors::Predecessors;
pub use shape::KnownDisk;
pub use unit::identity::VpdIdentity;
pub use url::{DEFAULT_PORT, IscsiUrl, SECRET_VARIABLE, UrlError};
