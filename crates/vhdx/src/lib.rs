//! The VHDX format (MS-VHDX) as an engine that knows no runtime: what a virtual disk's bytes are in a file, and how the
//! file changes without ever losing one.
//!
//! ```text
//!        caller: a LUN, NBD, a tool
//!           │  resolve_read, begin_write, complete, flush        ▲ ranges of the file
//!           ▼                                                    │
//!        Disk ── table and bitmap pages ── free space ── log     │  payload: the caller reads and writes it
//!           │  metadata, 4 KiB at a time                         ▼
//!        Storage: a file, a LUN, a device that fails on purpose
//! ```
//!
//! # I/O model
//!
//! Payload never passes through this crate: [`Disk::resolve_read`] and [`Disk::begin_write`] turn ranges of the disk
//! into ranges of the file, and the caller moves the bytes as it likes (io_uring, O_DIRECT, straight from a socket).
//! What a write allocates becomes visible when the caller says that the bytes are there.
//!
//! Metadata goes through [`Storage`], a trait of blocking calls, and not through the project's `BlockDevice`: a file
//! grows and shrinks, which no device does; the order of writes is what keeps a file whole, and it can be read from top
//! to bottom only in straight code; and a test must see each write and flush, to rebuild what a power cut leaves of
//! them. Nothing of it is on the way of an I/O whose metadata is in memory: resolving never blocks, and says what it
//! needs ([`Need`]) where it would. A device that must not block gives that to a thread of its own.
//!
//! # Order of writes
//!
//! `disk/commit.rs` has it and says why: payload, flush, log, flush, then in place. A flush costs two flushes of the
//! storage however many blocks were allocated since the last one, and one where none were.
//!
//! # Errors
//!
//! [`VhdxOpenError`] says which structure is wrong, where, and how; nothing that a file can contain makes this crate
//! panic, loop, or take memory beyond stated bounds. [`DiskError`] tells a full host ([`DiskError::NoSpace`]: nothing
//! has changed, try again) from a storage that failed. [`check`](check::check) reports what opening tolerates too.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`mod@format`] | on-disk types and constants |
//! | [`Storage`], [`Measured`] | what a file lies on; its length, which no other program may change |
//! | `header`, `region`, `metadata`, `locator` | the parts of a file, parsed, checked, built |
//! | `log` | active sequence, replay on the file and in memory, new entries |
//! | `geometry` | blocks, chunks, the interleaved table |
//! | `transition` | payload states: one table for all operations |
//! | `bitmap`, `pages`, `space`, `pins` | sector bitmaps; metadata in memory; free space; what I/O may still reach |
//! | `scan`, [`check`] | every entry of the table looked at: by opening, by people |
//! | [`Disk`] | an open file: resolving, completing, committing |
//! | [`create`], `open` | from nothing to a disk |
//! | [`pack`](mod@pack) | blocks moved from the file's end into its holes |
//! | [`BeforeRepair`] | what a repair changes, as it was; whose change a file has had since |
//! | `edit` | a closed file's size, blocks or parent changed, in one transaction |
//! | [`Chain`] | a disk with its parents: blocking, and reads that wait for nothing |
//! | `runs` | where the bytes lie of a chain's files that do not change |
//! | [`crash`] | the crash kit (`lunway_crash`) as a [`Storage`] |

mod before_repair;
mod bitmap;
mod chain;
pub mod check;
pub mod crash;
mod create;
mod disk;
mod edit;
mod error;
pub mod format;
mod geometry;
mod header;
mod locator;
mod log;
mod measured;
pub mod merge;
mod metadata;
mod open;
pub mod pack;
mod pages;
mod pins;
mod region;
mod runs;
mod scan;
mod space;
mod storage;
mod transition;

pub use before_repair::{BeforeRepair, RepairGuids};
pub use chain::{CHAIN_FILES_MAX, Chain, MapSegment};
pub use create::{CreateOptions, create, create_unflushed};
pub use disk::{
    Completed, Disk, Fill, Need, Placed, ReadPlan, ReadSegment, Relocation, SegmentSource, Stop, WritePlan,
    WriteSegment,
};
pub use edit::{
    IdentityChange, Repairs, Resize, detach, divide_blocks, pack_metadata, repair, repaired_parts, resize,
    set_identity, set_linkage2, set_parent,
};
pub use error::{CreateError, DiskError, EditError, Structure, VhdxOpenError};
pub use locator::{Locator, relative_path};
pub use measured::Measured;
pub use metadata::{DiskKind, Item, Parameters};
pub use open::VhdxOpenOptions;
pub use region::Span;
pub use scan::{Anomaly, AnomalySeverity, Counts};
pub use storage::{Storage, open_as_parent, open_file, open_unlocked, rename_new};
pub use transition::DiscardMode;
