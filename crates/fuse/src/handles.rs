//! The file's open handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::FileHandle;
use lunway_block::BlockDevice;
use lunway_block::decorate::{Opener, Openers};

/// The file's open handles: each `fsync` hears of every flush of the device that failed since the last one over the
/// same handle, as with any other file.
///
/// They are as many as the kernel has files open.
#[derive(Debug)]
pub(crate) struct Handles {
    openers: Openers,
    open: Mutex<HashMap<u64, Arc<Opener>>>,
    last: AtomicU64,
}

impl Handles {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { openers: Openers::new(device), open: Mutex::default(), last: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Opener>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> FileHandle {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.lock().insert(number, Arc::new(self.openers.open()));
        FileHandle(number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<Opener>> {
        self.lock().get(&handle.0).cloned()
    }

    pub(crate) fn release(&self, handle: FileHandle) {
        self.lock().remove(&handle.0);
    }
}

#[cfg(test)]
#[path = "../../memory/tests/support/fails_one_flush.rs"]
mod fails_one_flush;

#[cfg(test)]
mod tests {
    use super::fails_one_flush::FailsOneFlush;
    use super::*;
    use lunway_block::BlockError;
    use lunway_memory::RamDisk;

    #[tokio::test]
    async fn a_failed_flush_is_heard_over_every_handle_that_was_open() {
        let ram = RamDisk::new(4096, 512).unwrap();
        let handles = Handles::new(Arc::new(FailsOneFlush::new(ram)));
        let [one, other] = [(); 2].map(|()| handles.get(handles.open()).unwrap());
        let failed = Err(BlockError::Medium { offset: 0 });
        assert_eq!(one.flush().await, failed);
        assert_eq!((one.flush().await, other.flush().await, other.flush().await), (Ok(()), failed, Ok(())));
        let handle = handles.open();
        assert_eq!(handles.get(handle).unwrap().flush().await, Ok(()));
        handles.release(handle);
        assert!(handles.get(handle).is_none());
    }
}
