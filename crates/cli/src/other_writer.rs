//! The other program that writes to a file which is served for reading alone.

use std::fmt;
use std::path::{Path, PathBuf};

use lunway_block::spec::DeviceSpec;
use lunway_occupancy::{OtherUser, user_of};

use crate::report_file::file_of;

/// A program that has a file open for writing, or a loop device on it, while this process only reads the file.
#[derive(Debug)]
pub(crate) struct Writer {
    file: PathBuf,
    by: OtherUser,
}

impl Writer {
    /// The writer of a device's file; `None`: none is seen, or it is no regular file. A block device can only be asked
    /// by taking it for this process alone, which another LUN on it would find. Blocks.
    pub(crate) fn of(device: &DeviceSpec) -> Option<Self> {
        let file = file_of(device).filter(|file| Path::is_file(file))?;
        // Who served the file could open it: this is a warning alone.
        let by = user_of(file).ok().flatten()?;
        Some(Self { file: file.to_owned(), by })
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, by } = self;
        write!(
            f,
            "{} is in use {by}: what is read here may be old, or of different times, so that a file system on it looks damaged",
            file.display()
        )
    }
}
