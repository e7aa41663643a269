//! Writes kept until a flush has made them durable, and written again when a cache was lost.
//!
//! ```text
//!    file system, NBD client, …
//!               │ write, flush
//!        RetainingDevice ────▶ RetainedWrites     what no flush has covered yet
//!               │    ▲
//!               ▼    │ CacheNews: in doubt, lost
//!      one session, or many lanes
//! ```
//!
//! An NFS client keeps what the server has acknowledged as UNSTABLE, and sends it again when COMMIT shows that the
//! server was restarted (RFC 1813 §3.3.7, §3.3.21). A SCSI disk with a volatile cache makes the same promise with other
//! words: WRITE, SYNCHRONIZE CACHE, and the unit attention 29h for the restart. This crate does what the NFS client
//! does.
//!
//! **Invariant:** it knows no SCSI, no session and no lane: what a device below it knows of its cache comes as
//! [`CacheNews`](lunway_block::CacheNews).
//!
//! | part | is |
//! |---|---|
//! | [`RetainedWrites`] | the changes, by range: pure |
//! | [`RetainingDevice`] | the device that retains them, and writes them again |

mod attempts;
mod device;
mod gate;
mod recovery;
mod writes;

pub use device::{RetainingDevice, UNFLUSHED_MAX};
pub use writes::{Change, Discarded, Mark, Retained, RetainedWrites};
