//! Raw files and block devices as block devices.
//!
//! ```text
//!   read ──▶ cached? ── yes ──▶ answered inline (preadv2 with RWF_NOWAIT, 1.5 µs)
//!                └───── no ───▶ ring, for O_DIRECT where io_uring is allowed
//!                            └▶ pool of threads otherwise (10–25 µs more)
//! ```
//!
//! | part | is |
//! |---|---|
//! | [`FileDevice`] | the device: which way each operation goes |
//! | [`FileOptions`], [`OpenError`] | opening, locking, what the file is |
//! | `transfer` | bytes in and out by system calls |
//! | `space` | holes: punching, zeroing, mapping |
//! | `size` | how large the device is, and changing it |
//! | `store` | what the file system holds and has left |
//! | `flush` | the memory that a flush failed |
//! | `pool`, `answer` | threads for what blocks, and the way back |
//! | `ring` | io_uring; the only `unsafe` code of the crate |
//! | `collector` | who takes completions from a ring: a task of the caller's runtime, else a thread |

mod answer;
mod collector;
mod device;
mod flush;
mod open;
mod pool;
mod ring;
mod size;
mod space;
mod store;
mod transfer;

pub use device::FileDevice;
pub use open::{Engine, FileOptions, OpenError};
