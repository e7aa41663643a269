//! An image of a Ceph cluster as a device: librbd and librados, loaded at run time.
//!
//! ```text
//!   read, write, flush ──▶ request ──▶ librbd ──▶ callback on its thread ──▶ the task's waker
//!   open, resize, extents, close ──▶ lane (one thread) ──▶ librbd, which blocks
//! ```
//!
//! **Durability.** librbd's cache is off, so a completed write is on all replicas, and the geometry says so. Where the
//! pool or the image has the cache on all the same, the geometry says that, and every durable write is followed by a
//! flush.
//!
//! **One writer.** A device that is open for writing holds the image's exclusive lock for as long as it is open
//! (`lock`). A client that is fenced, because another has broken its lock, is refused by the cluster for good: from the
//! first such answer on the device refuses everything, and says why. One that is served opens the image again with
//! another client (`renewal`). Images that are served under one `share=` have one client, and are fenced together
//! (`connection`).
//!
//! **Compare and write** needs no call of librbd (`rbd_aio_compare_and_write`, for a range within one object): the SCSI
//! layer reads, compares and writes while no other of its commands touches the blocks, and the lock keeps other clients
//! from writing between the two. If it is broken there, the write is refused.
//!
//! **Zeroes.** `unmap` is librbd's write of zeroes, not its discard: that one leaves out what is not whole blocks of
//! 64 KiB, and promises nothing of it.
//!
//! | module | is |
//! |---|---|
//! | `library` | the functions, bound by name |
//! | `connection`, `cluster`, `image` | a client of a cluster, a pool of it, an open image: calls that block |
//! | `request` | operations that do not |
//! | `pending` | their answers, and those that do not come |
//! | `gate` | which of them are under way |
//! | `lane` | the thread for calls that block |
//! | `lock` | the exclusive lock |
//! | `client` | a client with the image open, until it is fenced |
//! | `renewal` | the next client |
//! | `snapshots` | [`RbdSnapshots`], made and removed by name |
//! | `device` | [`RbdDevice`] |

mod client;
mod cluster;
mod connection;
mod device;
mod gate;
mod image;
mod lane;
mod library;
mod lock;
mod open_error;
mod options;
mod pending;
mod renewal;
mod request;
mod snapshots;

pub use client::RbdChanges;
pub use device::RbdDevice;
pub use open_error::RbdOpenError;
pub use options::RbdOptions;
pub use snapshots::RbdSnapshots;
