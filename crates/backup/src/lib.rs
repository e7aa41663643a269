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
//! | [`Lease`], [`Presence`], [`MountedPoint`] | one writer at a time; readers for which a prune waits |
//! | [`run()`], [`Request`], [`Changed`] | one run; how its source is read and sampled (`reading`, `sample`) |
//! | `draft`, `journal`, `ship`, `seal` | its steps: files of an incomplete point, what is durable, units, the commit |
//! | `underway`, `rhythm` | units side by side, when what was sent is recorded |
//! | [`leftovers()`], [`remove_leftovers()`] | incomplete points of runs that were stopped |
//! | [`Catalogue`], [`Manifest`], [`PointId`], [`PointFacts`] | which points there are |
//! | `sidecar`, `history`, `leaf`, `skeleton` | hashes: of a point, through a chain, of 64 KiB, of all else |
//! | [`restore()`], [`Content`], [`verify()`], [`prune()`] | the other verbs |
//! | [`Epochs`], [`SourceId`] | those of change tracking closed for a destination; what tells sources of one name apart |
//! | `merge`, `heal`, [`Notes`] | points into one; damage, noted and repaired |
//!
//! **Invariant:** this crate is handed devices, maps and a folder. It does not know the command line, where devices
//! come from, or why something need not be kept.

mod access;
mod ahead;
mod broken;
mod catalogue;
mod changed;
mod coarse_map;
mod content;
mod draft;
mod draft_sample;
mod epochs;
mod error;
mod folder;
mod fuse_file;
mod guids;
mod heal;
mod history;
mod hold;
mod holder;
mod journal;
mod leaf;
mod lease;
mod leftover;
mod manifest;
mod manifest_copies;
mod merge;
mod merge_record;
mod mount;
mod notes;
mod pace;
mod point_facts;
mod point_files;
mod point_id;
mod point_name;
mod point_reader;
mod presence;
mod prune;
mod reading;
mod request;
mod restore;
mod rhythm;
mod run;
mod sample;
mod seal;
mod ship;
mod sidecar;
mod skeleton;
mod source_id;
mod threads;
mod time;
mod underway;
mod unreadable;
mod verify;
mod written;

pub use access::RetryingFolder;
pub use ahead::Ahead;
pub use catalogue::{Catalogue, LINKS_MAX, Point};
pub use changed::{Change, ChangeMap, Changed, ChangedRange, Since};
pub use coarse_map::CoarseMap;
pub use content::Content;
pub use epochs::{EPOCHS, Epochs};
pub use error::{BackupError, Result, is_of_the_file};
pub use folder::{Folder, HostFolder, INCOMPLETE, Lock, Open, is_plain, read_small, write_whole};
pub use guids::{Guids, new_id};
pub use history::{History, Layer};
pub use hold::{hold_points, release_points};
pub use holder::Holder;
pub use journal::Counted;
pub use leaf::{
    DISK_MAX, LEAF, LEAVES, Leaf, LeafHash, UNIT, UnitLeaves, is_zero, leaf_range, unit_range, units,
};
pub use lease::{LEASE, Lease};
pub use leftover::{Leftover, leftovers, remove_leftovers};
pub use manifest::{FORMAT, Level, Manifest, PointKind, SkippedBytes, manifest_names, seal, unseal};
pub use mount::{MountedPoint, PointMount, refuse_mounts};
pub use notes::{Damage, NOTES, Notes};
pub use pace::Pace;
pub use point_facts::PointFacts;
pub use point_id::{PointId, parse_stem, stem};
pub use point_name::{NameablePoint, find_point};
pub use point_reader::PointReader;
pub use presence::{Presence, refuse};
pub use prune::{Retention, Step, prune, remove_unreadable};
pub use reading::Masks;
pub use request::Request;
pub use restore::{Order, Restored, Target, restore, restore_content};
pub use run::{Outcome, Progress, run};
pub use sample::{NewestPoint, SampledBase};
pub use sidecar::{Sidecar, SidecarError, Writer};
pub use source_id::SourceId;
pub use threads::{both, on};
pub use time::Moment;
pub use underway::Underway;
pub use unreadable::UnreadablePoint;
pub use verify::{FoundDamage, Report, Verification, verify};
