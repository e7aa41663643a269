//! Virtual disks of other formats: VHD and qcow2 read with their parents, VHD written anew.
//!
//! ```text
//!        caller: a device, a tool
//!           │  read_at, map                         read_at, write_at, flush
//!           ▼                                                ▼
//!        Image ── layers, the disk first            vhd::Writer: a file that is being filled
//!           │  Vhd · Qcow2 · raw                             │
//!           ▼                                                ▼
//!        lunway_vhdx::Storage: a file, or memory in tests
//! ```
//!
//! Nothing here changes a file that somebody else made: an image is converted, not used. So refcounts, snapshots and
//! bitmaps are not read, and an image whose own writer says that it is not sound is refused.
//!
//! # Bounds
//!
//! Files are hostile. Tables are read a page at a time and kept in a bounded cache (`pages`), chains have a bounded
//! length and no circle, parents are found in the folder of the first file and below and nowhere else, and no size in a
//! file makes anything be allocated. What is wrong is told by [`ImageOpenError`] when a file is opened, and by an
//! [`InvalidData`](std::io::ErrorKind::InvalidData) error with a sentence where a table says nonsense about one range.
//!
//! # Parts
//!
//! | part | is |
//! |---|---|
//! | [`Image`] | a disk with its parents |
//! | `layer` | one file of it, and what lies behind a range there |
//! | `pages` | metadata in memory |
//! | [`vhd`] | on-disk types, opening, writing |
//! | [`qcow2`] | on-disk types, opening, tables, compressed clusters |

mod error;
mod image;
mod layer;
mod layer_info;
mod pages;
pub mod qcow2;
pub mod vhd;

pub use error::ImageOpenError;
pub use image::{Format, Image, MapSegment};
pub use layer_info::{ImageKind, LayerInfo, LayerSource};
