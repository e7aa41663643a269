//! qcow2, versions 2 and 3: QEMU's `docs/interop/qcow2` ("the specification" here).
//!
//! Read are the active tables, with zlib-compressed clusters, extended L2 entries and backing files. Refused with a
//! sentence are encryption, external data files, other compression than zlib, and images that QEMU has marked as dirty
//! or corrupt.
//! Refcounts, internal snapshots and bitmaps say nothing of what the disk shows, and are not read.

mod format;
mod header;
mod tables;

pub use header::BackingFormat;
pub use tables::Qcow2;
