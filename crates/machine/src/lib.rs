//! Network facts of this machine: its addresses, the cards behind them, the route that the kernel would take; and
//! notification of changes.
//!
//! The target's portals follow [`MachineAddress`]es as they come and go; a multipath device plans its lanes on them and
//! hears here that a cable was pulled. Nothing is changed, only looked at.
//!
//! | part | is |
//! |---|---|
//! | [`Machine`] | the addresses now, and when they change |
//! | [`machine_id`], [`host_name`] | what tells this machine from others |
//! | [`Link`] | an interface: carrier, MTU, what it stands on, speed |
//! | [`KernelRoute`] | the way that the kernel takes to an address |
//! | `netlink` | the kernel's routing socket, which says all this |
//!
//! A network namespace belongs to a thread: everything here is asked on the thread that calls, and news come from the
//! namespace in which [`Machine::watch`] was called.

mod address;
mod identity;
mod link;
mod machine;
mod netlink;
mod route;

pub use address::MachineAddress;
pub use identity::{host_name, machine_id};
pub use link::Link;
pub use machine::Machine;
pub use route::KernelRoute;
