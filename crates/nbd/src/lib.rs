//! Any block device for every program that speaks NBD, and their exports as devices.
//!
//! ```text
//!   qemu, libnbd, nbd-client, fio ──▶ NbdServer ──▶ handshake ──▶ transmission ──▶ BlockDevice
//! ```
//!
//! Spoken is the fixed newstyle protocol of `doc/proto.md` of the NBD project: structured replies, block status in the
//! contexts `base:allocation` and `qemu:dirty-bitmap:NAME`, flush and FUA, trim, write zeroes, several connections to
//! one export (a flush on one holds for all), and the experimental extension `RESIZE`. Not spoken: TLS, extended
//! headers, `CACHE`, fast zeroes.
//!
//! **Invariant:** this crate sees [`BlockDevice`](lunway_block::BlockDevice) and sockets; it does not know what the
//! device is.
//!
//! | file | room of |
//! |---|---|
//! | `wire.rs` | the protocol's numbers and headers |
//! | `export.rs` | [`Export`]: a device, its name, and what is said of it; [`DirtyBitmaps`] |
//! | `negotiation.rs` | the handshake |
//! | `transmission.rs` | the hot path: requests in, replies out |
//! | `server.rs` | [`NbdServer`]: listening, connections, the end |
//! | `stream.rs` | a connection of either kind |
//! | `client/` | [`NbdClient`]: an export of another process as a device: handshake, connections, replies |

mod client;
mod export;
mod negotiation;
mod server;
mod stream;
mod transmission;
mod wire;

pub use client::{ConnectError, DirtyPart, NbdClient};
pub use export::{BITMAPS_MAX, DirtyBitmaps, Export};
pub use server::{NbdAddress, NbdAddressError, NbdBindError, NbdLimits, NbdServer, PORT};
