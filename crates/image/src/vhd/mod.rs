//! VHD: Microsoft's Virtual Hard Disk Image Format Specification, version 1.0 of October 11, 2006 ("the specification"
//! here).
//!
//! A disk's size is the footer's *Current Size*. Programs that compute it from the geometry (cylinders, heads, sectors)
//! see up to a cylinder less, and of a disk above 127 GiB nothing behind that, unless they know the program that wrote
//! the file for one that means the size: see [`format::CREATOR`].

pub mod format;
mod open;
mod write;

pub use open::Vhd;
pub use write::{Layout, WriteError, Writer};
