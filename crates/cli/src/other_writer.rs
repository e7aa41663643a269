//! The other program that has a disk of this machine open for writing.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lunway_block::spec::DeviceSpec;
use lunway_occupancy::{OtherUser, user_of};

use crate::report_file::file_of;

/// A program that has a file or block device open for writing, or a loop device on it, while this process only reads
/// it. Printed, it is the beginning of a sentence: `disk.img is in use by …`.
#[derive(Debug)]
pub(crate) struct OtherWriter {
    file: PathBuf,
    by: OtherUser,
}

impl OtherWriter {
    /// The writer of what a device lies in; `None`: none is seen. Blocks.
    pub(crate) fn of(device: &DeviceSpec) -> anyhow::Result<Option<Self>> {
        let Some(file) = file_of(device) else { return Ok(None) };
        let by = user_of(file).with_context(|| format!("cannot open {}", file.display()))?;
        Ok(by.map(|by| Self { file: file.to_owned(), by }))
    }

    /// Warns in the log of the writer of a regular file that is served for reading. A block device can only be asked by
    /// taking it for this process alone, which another LUN on it would find. Blocks.
    pub(crate) fn warn_of(device: &DeviceSpec) {
        if !file_of(device).is_some_and(Path::is_file) {
            return;
        }
        // Who served the file could open it: this is a warning alone.
        if let Ok(Some(writer)) = Self::of(device) {
            tracing::warn!(
                "{writer}: what is read here may be old, or of different times, so that a file system on it looks damaged"
            );
        }
    }
}

impl fmt::Display for OtherWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is in use {}", self.file.display(), self.by)
    }
}
