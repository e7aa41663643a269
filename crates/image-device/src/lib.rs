//! VHD and qcow2 files as [`BlockDevice`](lunway_block::BlockDevice)s.
//!
//! Everything blocks in `lunway_image` and is done on threads of the device's own, as a file's operations are
//! (`lunway_file::ThreadPool`).
//!
//! | part | is |
//! |---|---|
//! | [`ImageDevice`] | an image with its parents, for reading |
//! | [`NewVhd`] | a VHD that is being filled by a copy |
//! | [`ImageDeviceOpenError`] | why a file is neither |

mod image;
mod new_vhd;

use std::io;
use std::path::PathBuf;

use lunway_block::BlockError;

pub use image::ImageDevice;
pub use new_vhd::NewVhd;

/// Reason why an image could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}: {source}", path.display())]
pub struct ImageDeviceOpenError {
    /// The file.
    pub path: PathBuf,
    /// Error in it or its parents.
    pub source: lunway_image::ImageOpenError,
}

/// Meaning of an error of a file to a device: what was cut off the file is a medium that failed at `offset` or behind
/// it.
fn meaning(error: io::Error, offset: u64) -> BlockError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => BlockError::Medium { offset },
        _ => error.into(),
    }
}
