//! What the file system holds and has left.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lunway_block::Space;
use rustix::fs::{fstat, fstatvfs};

/// How long an answer is good: it is asked for after writes, and takes two system calls, which a network file system may
/// have to ask its server for.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// The space of the file system behind a regular file. A block device does not say what it has.
pub(crate) struct Store {
    regular: bool,
    last: Mutex<Option<(Instant, Option<Space>)>>,
}

impl Store {
    pub(crate) fn new(regular: bool) -> Self {
        Self { regular, last: Mutex::default() }
    }

    pub(crate) fn space(&self, file: BorrowedFd<'_>) -> Option<Space> {
        if !self.regular {
            return None;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((when, space)) if when.elapsed() < GOOD_FOR => space,
            _ => {
                let space = ask(file);
                *last = Some((Instant::now(), space));
                space
            }
        }
    }
}

fn ask(file: BorrowedFd<'_>) -> Option<Space> {
    let (stat, fs) = (fstat(file).ok()?, fstatvfs(file).ok()?);
    // `st_blocks` counts units of 512 bytes everywhere on Linux.
    let allocated = u64::try_from(stat.st_blocks).ok()?.saturating_mul(512);
    let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
    Some(Space {
        allocated,
        used: bytes(fs.f_blocks.saturating_sub(fs.f_bfree)),
        // Not `f_bfree`: the reserve for root is nothing to count on.
        available: bytes(fs.f_bavail),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_file_system_is_asked_once_a_second_at_most() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let store = Store::new(true);
        let before = store.space(file.as_file().as_fd()).unwrap();
        file.as_file().write_all_at(&[1; 1 << 20], 0).unwrap();
        let at_once = store.space(file.as_file().as_fd()).unwrap();
        let now = ask(file.as_file().as_fd()).unwrap();
        assert_eq!((before.allocated, at_once.allocated, now.allocated), (0, 0, 1 << 20));
        assert!(now.used >= 1 << 20);
        assert_eq!(Store::new(false).space(file.as_file().as_fd()), None);
    }
}
