//! A VHDX file with its parents, or a VHDX on another device, as a [`BlockDevice`](lunway_block::BlockDevice).
//!
//! ```text
//!   read, write, unmap …  ──▶  a thread of the device's own  ──▶  lunway_vhdx::Chain  ──▶  pread, pwrite, fallocate …
//! ```
//!
//! The engine says which metadata an operation needs and where its payload lies; both are blocking system calls here,
//! on threads of the device's own as a file's are (`lunway_file::ThreadPool`): no core waits for them, no other device
//! does, and what waits is bounded.
//!
//! | part | is |
//! |---|---|
//! | [`VhdxDevice`] | the device |
//! | `backing` | what it lies on: a file, or another device |
//! | `compact` | the file made shorter while it is used |
//! | `holes` | holes of the host in what is allocated, for maps |
//! | `names` | whether the names of its files still lead to them |
//! | `chain_state`, `unopened` | a chain open, given up for a change, or closed; also while it could not be opened again |
//! | [`PullParent`], `pull` | a disk that is used while what it lacks comes from its parent |
//! | `range` | ranges of files that copies share |
//! | `resize` | another size |
//! | `snapshot` | going on in a new file, whose parent the old one becomes |
//! | [`VhdxDeviceOpenError`] | why a file is not one |
//! | `guids` | random GUIDs for the engine |

mod backing;
mod chain_state;
mod compact;
mod device;
#[cfg(test)]
mod failing;
mod guids;
mod holes;
mod names;
mod pull;
mod range;
mod resize;
#[cfg(test)]
mod room;
mod snapshot;
mod unopened;

pub use device::{VhdxDevice, VhdxDeviceOpenError};
pub use guids::random_guids;
pub use pull::{PullParent, PullSource};
