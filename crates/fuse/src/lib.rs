//! Any block device as a file: for programs that know only files, and for the kernel, which puts a loop device and a
//! file system on it.
//!
//! ```text
//!   cp, dd, losetup ──▶ kernel ──▶ /dev/fuse ──▶ Disk ──▶ Bytes ──▶ BlockDevice
//! ```
//!
//! **Invariant:** this crate sees [`BlockDevice`](lunway_block::BlockDevice) and FUSE; it does not know what the device
//! is.
//!
//! | file | room of |
//! |---|---|
//! | `mount.rs` | [`Mounted`]: mounting, and the end |
//! | `disk.rs` | directories with files, as the kernel asks for them |

mod disk;
mod handles;
mod mount;

pub use mount::{MountError, Mounted, Volumes, unmount_by_program};
