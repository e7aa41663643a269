//! A range of a file of this host, for copies that the file system carries out.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{copy_file_range, fstatfs};
use rustix::io::Errno;

/// File systems that let two files share blocks until one of them is written (reflinks), by the type that `statfs`
/// tells: XFS, btrfs, bcachefs (`linux/magic.h`).
const SHARING: [u64; 3] = [0x5846_5342, 0x9123_683E, 0xCA45_1A4E];

/// Location of a device's bytes in a file of this host.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

impl FileRange {
    /// Has another file of the same file system share these bytes at `offset`, or copies them within the kernel where
    /// parts cannot be shared: those that are not whole blocks of the file system. `false`: the file system shares
    /// nothing, or these are two; nothing happened. Blocks.
    ///
    /// # Errors
    ///
    /// Those of the file system. Part of the bytes may have been copied.
    pub fn share_with(&self, to: &File, offset: u64) -> io::Result<bool> {
        let magic = |file: &File| fstatfs(file).map(|found| (found.f_type as u64) & 0xFFFF_FFFF);
        if !SHARING.contains(&magic(&self.file)?) || magic(&self.file)? != magic(to)? {
            return Ok(false);
        }
        let (mut from, mut at) = (self.offset, offset);
        let end = self.offset + self.len;
        while from < end {
            let len = usize::try_from(end - from).unwrap_or(usize::MAX);
            match copy_file_range(&*self.file, Some(&mut from), to, Some(&mut at), len) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if from == self.offset => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
