//! Change tracking: which 64 KiB of a disk changed in which epoch, recorded before the change.
//!
//! ```text
//!   Tracked (a layer)   writes, unmaps ──▶ begin ─▶ inner device ─▶ end
//!        │                                   │ cold region: waits
//!        ▼                                   ▼
//!   Tracker      Live (atomics)  ◀──  log  ──▶  Journal ──▶ Storage (a file, or the crash kit)
//!                                     State: closed epochs
//! ```
//!
//! # What it promises
//!
//! - *Nothing is forgotten*: after any crash, what is reported as changed includes every operation that was sent to the
//!   disk, acknowledged or not. A write reaches the disk only after the track file covers it, durably.
//! - *Little else is reported*: what the track file has grain by grain, and at most 256 *hot* regions as a whole (4, 8
//!   or 16 MiB each by the disk's size, 4 GiB together), which were covered ahead of their writes.
//! - *Zeroes are zeroes*: a grain is reported as unmapped only if nothing that was under way with the operation that
//!   zeroed it may have written it.
//! - *Doubt is said*: a track file that is damaged, or of a disk that was changed by others, answers
//!   [`Changes::Unknown`] with the reason. Not noticed: a disk that others changed between a **crash** and the next
//!   start, in place and without another size; and a track file put back from a copy.
//!
//! # Epochs
//!
//! Closing an epoch gives a name to a moment: [`Changes`] since it are the union of what came after, the last state of
//! a grain wins. Any number of readers keep a name each, at most [`EPOCHS_MAX`]; a name that is released costs nothing
//! more, as what changed before it is merged into the next. Names are random and come from the caller: the state
//! machine has no clock, no random numbers and no I/O but its `Storage`.
//!
//! # The file
//!
//! See the module `format` for its bytes, `journal` for the order in which they are written. Memory: 4 KiB for each GiB
//! that an epoch touched, and as much for the open one: 256 MiB for a disk of 64 TiB that was written all over.
//!
//! | part | is |
//! |---|---|
//! | [`Tracked`], [`Tracking`] | the layer around a device, and its epochs for those who ask |
//! | [`Tracker`] | map, log and epochs as one: begin, end, commit, close |
//! | `live`, `map`, `grain` | the open epoch in atomics; closed ones; grains, pages, regions |
//! | `state` | epochs, and what each entry of the log changes |
//! | `journal`, `format` | the file: areas, superblocks, records, bytes |
//! | [`Changes`], [`EpochId`] | answers |

mod changes;
mod format;
mod grain;
mod journal;
mod live;
mod map;
mod state;
mod tracked;
mod tracker;

pub use changes::{ChangeState, ChangedRange, Changes, EpochId, InvalidEpochId};
pub use format::EPOCHS_MAX;
pub use grain::{DISK_MAX, GRAIN, HOT_MAX};
pub use lunway_vhdx::Storage;
pub use tracked::{Identify, InPlace, Tracked, Tracking};
pub use tracker::{Backing, Begun, Change, ClosedEpoch, Ended, EpochError, Operation, Tracker, Tuning};
