//! The waist of the hourglass: what every back end offers and every front end uses.
//!
//! ```text
//!    iSCSI target   bench   copy   …          front ends see only `BlockDevice`
//!              \      |      /
//!               BlockDevice (this crate)
//!              /      |      \
//!        memory     file     iSCSI path   …   back ends implement only `BlockDevice`
//! ```
//!
//! # I/O model
//!
//! A device is shared (`Arc<dyn BlockDevice>`) and called from any thread. Every operation returns an [`Io`]: either
//! [`Io::Ready`], finished before the call returned, with no allocation and no task switch; or [`Io::Pending`], a
//! future. Memory and cached file data complete inline, which is why a served RAM disk costs a copy and nothing else.
//!
//! Offsets and lengths are **bytes** and multiples of the logical sector; [`BlockDevice`] says which error
//! answers what is not.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`BlockDevice`] | the trait |
//! | [`Layer`] | a device around a device: what it does not change is passed on |
//! | [`Identity`] | which disk a device is |
//! | [`Geometry`], [`Unmap`] | size, sectors, limits, and what unmapping does |
//! | [`BlockError`], [`Fate`] | what can go wrong, as meanings, and what became of the operation |
//! | [`Buf`], [`SharedBuf`] | pooled, aligned memory: unique to fill, shared to send |
//! | [`MemoryBudget`] | what a server may keep for its peers, shared out among them |
//! | [`Io`] | a result that may be ready already |
//! | [`Bytes`] | a device of sectors, addressed by bytes |
//! | [`Extent`] | data, zeroes or nothing |
//! | [`Owner`] | whom operations are made for: devices that queue share out turns by it |
//! | [`Permit`] | leave to begin work that a caller may stop waiting for |
//! | [`FairQueue`] | a queue in which owners take turns |
//! | [`FairTurn`] | a lock that is awaited, in which owners take turns |
//! | [`TimeSlices`] | long work of the processor on a thread that serves many |
//! | [`Caching`] | where answers may come from instead of the medium |
//! | [`Finding`] | something noticed: what, where, why, and what to do |
//! | [`Pull`] | how far a device is that fetches what it lacks |
//! | [`PathSample`] | a way to a device, and what has gone over it |
//! | [`decorate`] | devices around devices: faults, delays, limits, counters |
//! | [`spec`] | the grammar that names devices |
//! | `conformance` | the contract as a test suite for every device (feature `conformance`) |
//! | [`size`], [`duration`] | figures as people write them |
//! | [`small_file`] | configurations and secrets: read within a limit, never waited for |

mod buf;
mod bytes;
mod caching;
mod compaction;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod decorate;
mod device;
pub mod duration;
mod error;
mod extent;
mod fair_queue;
mod fair_turn;
mod file_range;
mod finding;
mod geometry;
mod identity;
mod io;
mod layer;
mod lent;
mod memory_budget;
mod owner;
mod path;
mod permit;
mod pull;
pub mod rate;
pub mod size;
pub mod small_file;
pub mod spec;
mod time_slice;
mod turn;

pub use buf::{ALIGNMENT, Buf, SharedBuf};
pub use bytes::Bytes;
pub use caching::Caching;
pub use compaction::{Compaction, CompactionPhase, CompactionProgress};
pub use device::{
    BlockDevice, CacheCallback, CacheNews, Durability, ResizeCallback, SnapshotCommit, Space, Zeroing,
};
pub use error::{BlockError, Fate};
pub use extent::{Extent, ExtentKind};
pub use fair_queue::FairQueue;
pub use fair_turn::{FairTurn, HeldTurn};
pub use file_range::FileRange;
pub use finding::{Finding, Severity};
pub use geometry::{Geometry, Unmap};
pub use identity::{Identity, file_place, is_file_place};
pub use io::{Io, IoFuture};
pub use layer::Layer;
pub use lent::{DeviceMemory, Lent, LockedBytes};
pub use memory_budget::{MemoryBudget, MemoryLease, MemoryLimits, MemoryUse, OwnerMemory};
pub use owner::{Entered, Owner, OwnerGroup, OwnerKey, beyond_owner};
pub use path::{PathSample, PathState};
pub use permit::Permit;
pub use pull::Pull;
pub use time_slice::{TimeSlices, hand_out_time_slices, in_time_slices};
