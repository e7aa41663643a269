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
//! | [`Geometry`] | size, sectors, limits |
//! | [`BlockError`] | what can go wrong, as meanings |
//! | [`Buf`], [`SharedBuf`] | pooled, aligned memory: unique to fill, shared to send |
//! | [`Io`] | a result that may be ready already |
//! | [`Extent`] | data, zeroes or nothing |
//! | [`Caching`] | where answers may come from instead of the medium |
//! | [`PathSample`] | a way to a device, and what has gone over it |
//! | [`decorate`] | devices around devices: faults, delays, limits, counters |
//! | [`pass_on!`] | what a device around a device does not change |
//! | [`spec`] | the grammar that names devices |
//! | [`size`], [`duration`] | figures as people write them |

mod buf;
mod caching;
pub mod decorate;
mod device;
pub mod duration;
mod error;
mod extent;
mod geometry;
mod io;
mod path;
pub mod size;
pub mod spec;

pub use buf::{ALIGNMENT, Buf, SharedBuf};
pub use caching::Caching;
pub use device::{BlockDevice, CacheCallback, CacheNews, Durability, ResizeCallback, Space, Zeroing};
pub use error::BlockError;
pub use extent::{Extent, ExtentKind};
pub use geometry::Geometry;
pub use io::{Io, IoFuture};
pub use path::{PathSample, PathState};
