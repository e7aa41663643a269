//! Map of a disk's used, free and unknown bytes, as far as its bytes prove it: pure parsers, without I/O, runtimes or
//! clocks.
//!
//! # The contract
//!
//! **Proof before anything is dropped.** A free map is proof, not a hint: a volume's own sums, counts and checksums
//! have to agree with its map before one byte of it is called free. Any doubt makes the whole volume *unknown*, which
//! is kept like *used*, with the reason in one sentence. Too much used is never a fault; one byte free too many is the
//! loss of somebody's file.
//!
//! | a range is | when |
//! |---|---|
//! | [`Use::Used`] | its owner says so, or it is metadata whose place follows from geometry |
//! | [`Use::Free`] | its owner says so, and has been proven right |
//! | [`Use::Unknown`] | not known: gaps, tails, what is not understood, what is dirty, what is broken |
//!
//! 1. Everything begins as unknown. A reader lowers only ranges that it owns.
//! 2. **Superset**: what geometry says is metadata ([`Volume::metadata`]) is raised to used again, whatever a bitmap
//!    says. One piece of code does so for all readers: [`free_in`](volume::free_in).
//! 3. **Ambivalence is use**: two signatures on one volume, a stale superblock beside a new one, and the volume is
//!    unknown ([`probe`]). So is a file system in a partition whose type is for something else
//!    ([`partition::types`]), and a whole disk on which a suspended system lies ([`tree`]).
//! 4. **Dirty is told by the log**, not by a flag: a journal is replayed exactly, in memory, or the volume is unknown.
//! 5. A volume lies inside its container. One larger than its container is unknown; what lies behind the end of a
//!    smaller one is unknown; so are the gaps between partitions. Volumes lie in volumes up to [`DEPTH`] deep.
//! 6. Nothing is free because it is not claimed.
//! 7. A broken volume hides nothing else on the disk.
//! 8. What a disk costs is bounded, whatever its bytes are: bytes read ([`Budget`](source::Budget)), memory, depth.
//!    There is never more than a bit for each cluster, and that only for FAT, while the volume is examined.
//!
//! The map is of the bytes as they lie there. On a disk that a guest is writing, a free block may have its data in the
//! guest's memory already: such a map is good for a backup, and deadly for discarding. Who discards on a disk that may
//! be in use calls [`Disk::distrust`](tree::Disk::distrust) first, which believes only volumes whose own marks say that
//! no system is changing them ([`Mounted`]).
//!
//! # Two steps
//!
//! [`Disk::examine`](tree::Disk::examine) reads what the proofs need and makes a tree: table, partitions, volumes,
//! with used, free and unknown bytes each and a reason for what is unknown. Then
//! [`for_each`](tree::Disk::for_each) and [`for_each_free`](tree::Disk::for_each_free) read the maps again, a window
//! at a time, and give the ranges of the disk, sorted and disjoint.
//!
//! | module | has |
//! |---|---|
//! | [`source`] | bytes to be read: [`ByteSource`], a [`View`](source::View) of a part, a cache, a budget |
//! | [`lvm`] | LVM2: logical volumes, and extents that none has |
//! | [`map`] | ranges: used, free, unknown; the set that metadata is kept in |
//! | [`volume`] | what a reader of a file system gives: identity, proof, free ranges |
//! | [`btrfs`], [`exfat`], [`ext`], [`fat`], [`ntfs`], [`swap`], [`xfs`] | formats with a free map |
//! | [`opaque`] | formats that are recognised and left alone |
//! | [`probe`] | which reader's a volume is, in which order they are asked; ambivalence |
//! | [`tree`] | the disk: containers, volumes, the stream of ranges |
//! | [`partition`] | partition tables (GPT, MBR), and what becomes of them when a disk changes its size |
//! | [`cut`] | what a smaller size would cut |

pub mod btrfs;
mod cluster_bitmap;
pub mod cut;
pub mod exfat;
pub mod ext;
pub mod fat;
mod fields;
pub mod lvm;
pub mod map;
pub mod ntfs;
pub mod opaque;
pub mod partition;
pub mod probe;
pub mod source;
pub mod swap;
pub mod tree;
pub mod volume;
pub mod xfs;

pub use map::{Ranges, Use};
pub use source::{ByteSource, Unreadable};
pub use volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity};

/// Depth to which containers nest: disk, partition table, physical volume, logical volume.
pub const DEPTH: usize = 4;
