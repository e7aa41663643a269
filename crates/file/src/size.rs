//! Size of the device, and changes of it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_block::size::HumanSize;
use lunway_block::{BlockError, Geometry, Permit, ResizeCallback};
use rustix::fs::{SeekFrom, fstat, fsync, ftruncate, seek};
use rustix::io::Errno;

use crate::transfer::meaning;

/// The size of an open file as its device promises it.
///
/// I/O takes no lock. A write that passed its check before a shrink may reach the file after it, and make it longer
/// again. So each write looks at the size once more when it is done and cuts what it added
/// ([`cut_again`](Self::cut_again)); and a growth first cuts at the old end, for the sake of writes that no caller
/// waited for. What a growth adds is therefore always a hole.
///
/// A regular file that somebody else has cut is a medium that has lost data ([`loss`](Self::loss)), until the file has
/// its length again or the device is given a size that is left of it. Nothing here makes it longer meanwhile, not even
/// a growth: what is lost would read as zeroes. So is a block device that became smaller ([`ended`](Self::ended)).
pub(crate) struct Size {
    bytes: AtomicU64,
    /// The file's length is ours to change. A block device has the size that it has.
    regular: bool,
    /// Bytes that were left when the file was found shorter than its device, which was logged, or [`WHOLE`].
    left: AtomicU64,
    /// Held while the size changes, also while the disk does it: only for threads that may wait.
    changing: Mutex<()>,
    /// Held for no longer than a look.
    callbacks: Mutex<Vec<Arc<ResizeCallback>>>,
}

/// Nothing of the file is missing.
const WHOLE: u64 = u64::MAX;

/// A file is shorter than its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Bytes that are left.
    pub(crate) length: u64,
    /// Not known before.
    pub(crate) new: bool,
}

impl Size {
    pub(crate) fn new(bytes: u64, regular: bool) -> Self {
        Self {
            bytes: AtomicU64::new(bytes),
            regular,
            left: AtomicU64::new(WHOLE),
            changing: Mutex::default(),
            callbacks: Mutex::default(),
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    fn callbacks(&self) -> MutexGuard<'_, Vec<Arc<ResizeCallback>>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never waits for a change that is under way.
    pub(crate) fn on_change(&self, callback: ResizeCallback) {
        self.callbacks().push(Arc::new(callback));
    }

    /// Cuts what writes have added behind the end. Blocks.
    pub(crate) fn cut_again(&self, file: BorrowedFd<'_>) {
        let _changing = self.changing();
        let size = self.get();
        // One that somebody else has cut stays as short as it is.
        if self.regular && length(file).is_ok_and(|actual| actual > size) {
            // Where it fails, the next growth does it.
            let _ = truncate(file, size);
        }
    }

    /// Returns the part that the file has lost, if it is shorter than its device. Costs one `fstat`, for which local
    /// file systems look at the inode in memory and others may wait.
    pub(crate) fn loss(&self, file: BorrowedFd<'_>) -> Option<Loss> {
        if !self.regular {
            return None;
        }
        loop {
            let size = self.get();
            let length = u64::try_from(fstat(file).ok()?.st_size).unwrap_or(0);
            // While the size changes, the promise is never longer than the file; only the two looks may be.
            if self.get() != size {
                continue;
            }
            return self.compare(length, size);
        }
    }

    /// Returns the part that a block device has lost, if it is smaller than it was. Asks no disk, but waits for its
    /// discards in Linux: for flushes, and for requests that failed. The kernel calls a write behind the end one
    /// without space.
    pub(crate) fn ended(&self, file: BorrowedFd<'_>) -> Option<Loss> {
        if self.regular { None } else { self.compare(length(file).ok()?, self.get()) }
    }

    /// Bytes that are left of a block device that was found smaller. Never waits.
    pub(crate) fn left(&self) -> Option<u64> {
        Some(self.left.load(Ordering::Relaxed)).filter(|left| !self.regular && *left < self.get())
    }

    fn compare(&self, length: u64, size: u64) -> Option<Loss> {
        let left = if length < size { length } else { WHOLE };
        let known =
            self.left.load(Ordering::Relaxed) == left || self.left.swap(left, Ordering::AcqRel) == left;
        (left != WHOLE).then_some(Loss { length, new: !known })
    }

    /// Gives the device `size` bytes, durably, and tells who wants to know, if that may still begin when all is known
    /// for it. Of a file that somebody else has cut, only what is left: a shrink gives up what is behind the new end.
    /// Blocks.
    pub(crate) fn change(
        &self,
        file: BorrowedFd<'_>,
        shape: &Geometry,
        size: u64,
        permit: &Permit,
    ) -> Result<(), BlockError> {
        let sector = u64::from(shape.logical_sector);
        if size == 0 || !size.is_multiple_of(sector) {
            let why = format!("{size} bytes are not whole sectors of {sector} bytes, and at least one");
            return Err(BlockError::Size { why });
        }
        // Callbacks see sizes in their order.
        let _changing = self.changing();
        let before = self.get();
        let actual = length(file)?;
        permit.begin()?;
        if actual / sector * sector == size {
            // It has that size already: ours to know, not to change.
        } else if !self.regular {
            let why = format!("{size} bytes were asked for, and the block device has {actual}");
            return Err(BlockError::Size { why });
        } else if shape.read_only {
            return Err(BlockError::ReadOnly);
        } else if actual < before && size > actual {
            return Err(BlockError::Size { why: lost(actual, before, sector) });
        } else if size < before {
            // First the promise, then the data.
            self.bytes.store(size, Ordering::SeqCst);
            if let Err(error) = truncate(file, size) {
                self.bytes.store(before, Ordering::SeqCst);
                return Err(error);
            }
        } else {
            if actual > before {
                truncate(file, before)?;
            }
            truncate(file, size)?;
        }
        self.bytes.store(size, Ordering::SeqCst);
        if size != before {
            let geometry = Geometry { size, ..*shape };
            let callbacks = self.callbacks().clone();
            callbacks.iter().for_each(|callback| callback(geometry));
        }
        Ok(())
    }
}

/// Says what a block device of `actual` bytes has lost of the `size` that it had, and how to go on.
pub(crate) fn lost_device(actual: u64, size: u64) -> String {
    format!(
        "the block device has {} now, and {} bytes of its data are lost: give it its size again, or give up what is lost \
         by shrinking the device to {actual} bytes",
        HumanSize(actual),
        size - actual
    )
}

/// Says what a file of `actual` bytes has lost of its device's `size`, and how to go on.
pub(crate) fn lost(actual: u64, size: u64, sector: u64) -> String {
    let way = match actual / sector * sector {
        0 => format!("give it its length again by hand, which fills it with zeroes (truncate -s {size})"),
        left => format!("give up what is lost by shrinking the device to {left} bytes"),
    };
    format!(
        "another program has truncated its file to {}, and {} bytes of its data are lost: restore the file, or {way}",
        HumanSize(actual),
        size - actual
    )
}

/// The size of a file or block device as the kernel knows it now.
fn length(file: BorrowedFd<'_>) -> Result<u64, BlockError> {
    seek(file, SeekFrom::End(0)).map_err(|errno| meaning(errno, 0))
}

fn truncate(file: BorrowedFd<'_>, size: u64) -> Result<(), BlockError> {
    let result = loop {
        match ftruncate(file, size) {
            Err(Errno::INTR) => {}
            result => break result,
        }
    };
    match result.and_then(|()| fsync(file)) {
        Ok(()) => Ok(()),
        Err(Errno::FBIG | Errno::INVAL) => {
            Err(BlockError::Size { why: format!("the file system has no files of {size} bytes") })
        }
        Err(errno) => Err(meaning(errno, size)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_block_device_that_became_smaller_has_lost_data_until_it_has_its_size_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (end, fd) = (|length| file.as_file().set_len(length).unwrap(), file.as_file().as_fd());
        // A file stands for the block device: only its end is asked for.
        let device = Size::new(8192, false);
        for times in [0, 1] {
            end(8192);
            assert_eq!((device.ended(fd), device.left()), (None, None), "{times}");
            end(4096);
            for new in [true, false] {
                assert_eq!(device.ended(fd), Some(Loss { length: 4096, new }), "{times}");
                assert_eq!(device.left(), Some(4096));
            }
        }
        assert_eq!(Size::new(8192, true).ended(fd), None, "of a file, that it was cut");
    }

    #[test]
    fn a_write_that_a_shrink_overtook_does_not_make_a_file_longer_that_somebody_else_has_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = Size::new(8192, true);
        for (length, after) in [(4096, 4096), (16_384, 8192)] {
            file.as_file().set_len(length).unwrap();
            size.cut_again(file.as_file().as_fd());
            assert_eq!(file.as_file().metadata().unwrap().len(), after);
        }
    }
}
