//! Backups of block devices: points in time in a folder on any share, as VHDX files that Windows mounts without us.
//!
//! ```text
//!   source ──▶ what changed ∩ not dead ──▶ 1 MiB units ──▶ BLAKE3 of 64 KiB leaves ──▶ compare ──▶ VHDX file
//!              (the caller says)                            (with the last point's)               + leaf hashes
//!                                                                                                 + manifest
//! ```
//!
//! A destination is a folder with the points of one source: a full (dynamic VHDX), then increments (differencing VHDX)
//! on it. `docs/src/backup.md` has the folder's format, field for field.
//!
//! # Promises
//!
//! - A file that is not whole has a name that says so, and a point exists from the moment on at which its manifest is
//!   renamed. A kill or power cut at any step leaves all points that were there.
//! - What is restored is compared with the hashes of what was sent: damage is named, never given out.
//! - No decision rests on the destination's clock, and no path in a file is followed.
//! - Memory does not grow with the disk beyond 40 bytes for each 2 GiB, or 5 s of sending, and point of a chain.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`Folder`], [`HostFolder`] | the few operations on files that a backup needs |
//! | `access` | failures of the way to a file, apart from damage of the file |
//! | [`Lease`], [`MountedPoint`] | one writer at a time; readers for which a prune waits |
//! | [`run()`], [`Request`], [`Changed`] | one run |
//! | `draft`, `journal`, `ship`, `seal` | its steps: files of an incomplete point, what is durable, units, the commit |
//! | `underway`, `rhythm` | units side by side, when what was sent is recorded |
//! | [`Catalogue`], [`Manifest`], [`PointId`] | which points there are |
//! | `sidecar`, `history`, `leaf`, `skeleton` | hashes: of a point, through a chain, of 64 KiB, of all else |
//! | [`restore()`], [`verify()`], [`prune()`] | the other verbs |
//! | [`Epochs`] | those of change tracking that were closed for a destination |
//! | `merge`, `heal`, [`Notes`] | points into one; damage, noted and repaired |
//!
//! **Invariant:** this crate is handed devices, maps and a folder. It does not know the command line, where devices
//! come from, or why something need not be kept.

mod access;
mod catalogue;
mod changed;
mod coarse_map;
mod draft;
mod epochs;
mod error;
mod folder;
mod guids;
mod heal;
mod history;
mod journal;
mod leaf;
mod lease;
mod manifest;
mod merge;
mod merge_record;
mod mount;
mod notes;
mod pace;
mod point_files;
mod point_id;
mod prune;
mod restore;
mod rhythm;
mod run;
mod seal;
mod ship;
mod sidecar;
mod skeleton;
mod threads;
mod time;
mod underway;
mod verify;

pub use catalogue::{Catalogue, LINKS_MAX, Point};
pub use changed::{Change, ChangeMap, Changed, ChangedRange, Since};
pub use coarse_map::CoarseMap;
pub use epochs::Epochs;
pub use error::{BackupError, Result};
pub use folder::{Folder, HostFolder, INCOMPLETE, Lock, Open};
pub use guids::Guids;
pub use history::{History, Layer};
pub use journal::Counted;
pub use leaf::{LEAF, LEAVES, Leaf, LeafHash, UNIT, UnitLeaves};
pub use lease::{Holder, Lease};
pub use manifest::{FORMAT, Level, Manifest, PointKind, SkippedBytes};
pub use mount::{MountedPoint, PointMount};
pub use notes::{Damage, Notes};
pub use point_id::PointId;
pub use prune::{Retention, Step, prune};
pub use restore::{Order, Restored, Target, restore};
pub use run::{Outcome, Progress, Request, run};
pub use sidecar::{Sidecar, SidecarError, Writer};
pub use time::Moment;
pub use verify::{FoundDamage, Report, Verification, verify};
