//! Backups of block devices in a repository: points of many disks, which share what is alike.
//!
//! ```text
//!   source ──▶ what changed ∩ not dead ──▶ 64 KiB leaves ──▶ known? ──▶ zstd, encrypt ──▶ packs
//!              (the caller says)           (BLAKE3)          (index)                       ▲
//!                                              └──▶ nodes of 1 MiB ──▶ branches ──▶ root ──┘──▶ point
//! ```
//!
//! The rooms `pack`, `segment`, `tree` and `point` have the formats, field for field. What a chain and a repository
//! have in common is in [`lunway_backup`]: folders, leases, requests, how a source is read and sampled, restoring,
//! retention.
//!
//! # Promises
//!
//! - Packs, then the index, then the point, which is the only commit: a kill or power cut at any step leaves all points
//!   that were there, and what was sent before is not sent again.
//! - What is read is compared with its id: damage is named, never given out.
//! - What was put in the place of a repository, of a series or of its newest points by somebody without the key is
//!   noticed.
//! - No decision rests on the destination's clock.
//! - Several runs write at once; a prune removes what none of them may refer to.
//! - Memory does not grow with a disk but by its root, 128 KiB for a tebibyte; a prune and a verification take a bit
//!   for each leaf of the repository, 2 MiB for a tebibyte.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`Places`], [`Repository`], [`Marker`], [`Series`] | where it lies, what it is |
//! | [`HostPlaces`], [`ObjectPlaces`] | a folder of this host, of an object store |
//! | [`locate`], [`open_repository`], [`Pins`], `seen` | paths and addresses, key files; what was seen there before |
//! | `init`, `unlock` | making one; its key, out of the marker or what its user has kept of it |
//! | [`Codec`], [`Identity`], [`Recipient`] | ids, compression, encryption; who may read |
//! | `pack`, `segment`, `tree`, `point`, `head` | the formats |
//! | `next_head` | the head that a run or a prune writes |
//! | [`Points`], `lineage`, `loss`, `missing` | the points of a series, what was put beside them, what is gone |
//! | `index`, `merge` | where entries lie; few segments of many |
//! | `reader`, `content` | reading entries; a point's disk |
//! | [`run()`], `ship`, `packer` | one run |
//! | [`verify()`], `walk`, `damage`, `frames` | what is needed, what is damaged, what is mended |
//! | [`prune()`], [`Removal`], `refusal`, `dying`, `ended` | retention: which points go, how they do, or why not; freeing room |
//!
//! **Invariant:** this crate is handed devices, maps and folders. It does not know the command line, or where devices
//! come from.

mod bytes;
mod codec;
mod content;
mod damage;
mod dying;
mod ended;
mod frames;
mod head;
mod host;
mod index;
mod init;
mod keys;
mod lineage;
mod lock;
mod loss;
mod marker;
mod memory;
mod merge;
mod missing;
mod next_head;
mod object_file;
mod object_folder;
mod object_places;
mod pack;
mod packer;
mod pin;
mod places;
mod point;
mod points;
mod prune;
mod random;
mod reader;
mod refusal;
mod removal;
mod repository;
mod run;
mod seen;
mod segment;
mod series;
mod ship;
mod small;
mod tree;
mod unlock;
mod verify;
mod walk;

pub use codec::{Codec, ENTRY_MAX, Encoded, Id, MasterKey};
pub use content::PointContent;
pub use host::{
    Located, create_repository, locate, open_places, open_points_folder, open_repository, open_series,
    read_identity, series_path,
};
pub use keys::{Identity, Recipient, WrappedKey};
pub use marker::{FORMAT, Marker};
pub use object_places::ObjectPlaces;
pub use pack::{FormatError, Location, PACK_TARGET, PackBuilder, read_directory};
pub use pin::Pins;
pub use places::{HostPlaces, Places, is_series_name};
pub use point::RepositoryPoint;
pub use points::Points;
pub use prune::{check_removal, given_up, prune, remove_points};
pub use removal::{Pruned, Removal, Unwanted};
pub use repository::{Kept, NamedPoints, Repository, is_repository};
pub use run::{RunOutcome, run};
pub use segment::Segment;
pub use series::Series;
pub use verify::{RepositoryReport, verify};
