//! Raw files and block devices as block devices.
//!
//! ```text
//!   read ──▶ cached? ── yes ──▶ answered inline (preadv2 with RWF_NOWAIT, 1.5 µs)
//!                └───── no ───▶ ring, for O_DIRECT on local disks where io_uring is allowed
//!                            └▶ threads of the device's own otherwise (10–25 µs more)
//! ```
//!
//! No call waits for a disk or a server, also not those that have no I/O in their names: attributes, space, opening and
//! closing. What one device may take of threads, queues and the ring is bounded, and no other waits for it.
//!
//! | part | is |
//! |---|---|
//! | [`FileDevice`] | the device: which way each operation goes |
//! | [`FileOptions`], [`FileOpenError`] | opening, locking, what the file is |
//! | [`Container`] | files that are not raw data, and so are refused unless they are named as it |
//! | [`CachedReads`] | the same inline reads for devices that are made of files in another way |
//! | `transfer` | bytes in and out by system calls |
//! | [`extents()`] | the map of a file; `space` also punches holes and zeroes |
//! | `handle` | descriptors, and closing them |
//! | `size` | how large the device is, changing it, and files that others have cut |
//! | `store` | what the file system holds and has left |
//! | [`NameWatch`] | whether the names of open files still lead to them |
//! | `flush` | the memory that a flush failed |
//! | `write_back` | bounding what a flush has to do |
//! | `job_queue` | what waits for a thread, and which is next |
//! | [`Workers`], [`ThreadPool`], `answer` | a device's threads for blocking work, and the way back |
//! | `ring` | io_uring; the only `unsafe` code of the crate |
//! | `collector` | who takes completions from a ring: a task of the caller's runtime, else a thread |

mod answer;
mod cached_reads;
mod collector;
mod container;
mod device;
mod flush;
mod handle;
mod job_queue;
mod names;
mod open;
mod pieces;
mod place;
mod ring;
mod size;
mod space;
mod store;
mod transfer;
mod workers;
mod write_back;

pub use cached_reads::CachedReads;
pub use container::Container;
pub use device::FileDevice;
pub use handle::Closed;
pub use names::{NameWatch, NamedFile};
pub use open::{Engine, FileOpenError, FileOptions};
pub use place::place;
pub use space::extents;
pub use workers::{ThreadPool, Workers};
pub use write_back::WriteBack;
