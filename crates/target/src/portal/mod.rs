//! Portals: the addresses that the target listens on, and those that it tells initiators.
//!
//! ```text
//!   listen (spec) ──┐
//!                   ├──► plan ──► listeners ──► PortalTable: SendTargets, the group of a connection
//!   the machine ────┘                 └───────► Accept: who takes connections from one
//! ```
//!
//! | file | room of |
//! |---|---|
//! | `spec.rs` | [`PortalSpec`]: what `listen` says |
//! | `plan.rs` | where to listen and what to tell: a function of that and of the machine's addresses, which `lunway_machine` knows |
//! | `listeners.rs` | [`Listeners`]: the sockets, kept as planned while both change |
//! | `socket.rs` | binding one |
//! | `inherited.rs` | sockets that systemd passed |

mod inherited;
mod listeners;
mod plan;
mod socket;
mod spec;

pub(crate) use inherited::close_unwanted;
pub(crate) use listeners::{Accept, Listeners, PortalTable, PreparedListeners};
pub(crate) use plan::{Ends, PortalGroup, Portals};

pub use listeners::PortalSummary;
pub use plan::Advertise;
pub use socket::BindError;
pub use spec::{PortalScope, PortalSpec, PortalSpecError};

/// The port that IANA gave iSCSI.
pub const ISCSI_PORT: u16 = 3260;
