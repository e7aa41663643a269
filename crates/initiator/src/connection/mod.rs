//! A TCP connection: moved along, and watched.
//!
//! | file | room of |
//! |---|---|
//! | `probe.rs` | TCP state of a connection, as the kernel tells it |
//! | `silence.rs` | detection of a dead path |
//! | `wire.rs` | between a socket and a connection core |

pub(crate) mod probe;
pub(crate) mod silence;
pub(crate) mod wire;
