//! iSCSI (RFC 7143) without I/O: bytes in, bytes and events out, for both roles.
//!
//! The crate knows no socket, no runtime, no clock (time is an argument) and no meaning of a SCSI command. A driver
//! reads into a connection, takes its events, answers them, and writes what the connection gathers; the same code runs
//! against sockets, a simulated wire and a fuzzer.
//!
//! ```text
//!    bytes ──▶ receive ──▶ login │ command │ control ──▶ events        target::TargetConnection
//!    bytes ◀── transmit ◀─────────────────────────────── answers       initiator::InitiatorConnection
//! ```
//!
//! | module | room of |
//! |---|---|
//! | [`target`], [`initiator`] | a connection of either role: full feature phase, numbering, data sequences |
//! | [`login`] | the login phase of either role: stages, authentication, negotiation |
//! | [`negotiation`], [`keys`] | operational parameters; every key of §13 as a row of one table |
//! | [`chap`] | CHAP with MD5, SHA1, SHA-256, SHA3-256, one-way and mutual |
//! | [`pdu`] | the PDUs of §11 as the bytes of the wire |
//! | [`text`], [`digest`], [`serial`] | key=value texts, CRC32C, serial number arithmetic |
//! | `receive`, `transmit` | the byte stream to PDUs and back, digests included |
//! | `liveness` | pings, and silence after them |
//! | `window` | CmdSN, ExpCmdSN, MaxCmdSN at the target |
//!
//! # Errors
//!
//! What a peer does wrong becomes an answer of the protocol (Reject, a response, a login status) where RFC 7143 has
//! one, and otherwise the end of the connection, as [`CloseReason`]. Nothing panics, and nothing grows without bound.

pub mod chap;
mod connection;
pub mod digest;
pub mod initiator;
pub mod keys;
mod liveness;
pub mod login;
pub mod negotiation;
pub mod pdu;
mod receive;
pub mod serial;
pub mod target;
pub mod text;
mod transmit;
mod window;

pub use connection::{CDB_LEN_MAX, Cdb, CloseReason, SendTargets, TargetRecord};
pub use receive::ReceiveError;
