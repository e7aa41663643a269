//! Reads that wait for nothing, for devices whose files are not [`FileDevice`](crate::FileDevice)s.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, fstat};

use crate::handle::Placement;
use crate::open::{inline_max_of, placement};
use crate::transfer::{INLINE_BYTES_MAX, Now, read_fully, read_now};
use crate::workers::ThreadPool;

/// Reads of what the page cache has of a file, where its file system promises not to wait.
#[derive(Debug)]
pub struct CachedReads {
    /// The file system is memory itself.
    in_memory: bool,
    /// `true` while the file system accepts `RWF_NOWAIT`: local ones until they refuse it.
    accepted: AtomicBool,
    inline_max: usize,
}

impl CachedReads {
    /// Those of an open file.
    pub fn of(file: &File) -> Self {
        let stat = fstat(file).ok();
        let kind = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        let placement = placement(file.as_fd(), kind);
        let inline_max = inline_max_of(stat.map_or(0, |stat| stat.st_dev));
        let accepted = AtomicBool::new(placement == Placement::Local);
        Self { in_memory: placement == Placement::Memory, accepted, inline_max }
    }

    /// Returns `true` if a read of `len` bytes should be tried inline: copying it takes no longer than others may wait,
    /// and few reads are under way. One that finds nothing starts read-ahead, which waits for a place in the disk's
    /// queue.
    pub fn is_worth_a_try(&self, len: usize, reads: &ThreadPool) -> bool {
        len <= INLINE_BYTES_MAX && reads.pending() < self.inline_max
    }

    /// Fills `buf` if all of it is cached. `false`: it is to be read in the ordinary way, which also says what failed.
    pub fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> bool {
        if self.in_memory {
            return read_fully(file.as_fd(), buf, offset).is_ok();
        }
        if !self.accepted.load(Ordering::Relaxed) {
            return false;
        }
        match read_now(file.as_fd(), buf, offset) {
            Ok(Now::Done) => true,
            Ok(Now::Unsupported) => {
                self.accepted.store(false, Ordering::Relaxed);
                false
            }
            Ok(Now::Partly(_)) | Err(_) => false,
        }
    }
}
