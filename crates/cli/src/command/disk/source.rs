//! A device as the source of bytes that the readers of file systems ask for.

use std::cell::RefCell;

use anyhow::Context;
use lunway_block::{BlockDevice, BlockError, Buf, Extent};
use lunway_filesystem::{ByteSource, Unreadable};

use crate::device::BlockingRuntime;
use crate::failure::Failure;

/// The most that is read at once: what every device takes in one operation.
const MOST: u64 = 1 << 20;

/// A device that is waited for.
///
/// A device that fails as a whole, after all its timeouts, would do so at each further read: it is asked no more, and
/// they fail with the same error. Where the medium is bad, others may succeed.
pub(in crate::command) struct DeviceSource<'a> {
    device: &'a dyn BlockDevice,
    runtime: &'a BlockingRuntime,
    failed: RefCell<Option<BlockError>>,
}

impl<'a> DeviceSource<'a> {
    pub(in crate::command) fn new(device: &'a dyn BlockDevice, runtime: &'a BlockingRuntime) -> Self {
        Self { device, runtime, failed: RefCell::new(None) }
    }

    /// The first error of a read, or one after which the device was not asked any more.
    pub(in crate::command) fn error(&self) -> Option<BlockError> {
        self.failed.borrow().clone()
    }

    /// Bytes of a logical sector.
    pub(in crate::command) fn sector(&self) -> u32 {
        self.device.geometry().logical_sector
    }

    /// Returns the extents that the device reports for its own ranges.
    pub(in crate::command) fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, Failure> {
        let extents = self.runtime.wait(self.device.extents(offset, len, usize::MAX));
        Ok(extents.context("cannot query the allocated ranges of the device")?)
    }

    /// Bytes of whole sectors.
    fn sectors(&self, offset: u64, len: u64) -> Result<Buf, Unreadable> {
        let unreadable = |error: &BlockError| Unreadable {
            what: format!("{len} bytes at {offset} cannot be read: {error}"),
        };
        if let Some(error) = self.error().filter(is_of_the_whole) {
            return Err(unreadable(&error));
        }
        let buf = Buf::for_overwrite(len as usize);
        self.runtime.wait(self.device.read(offset, buf)).map_err(|error| {
            let mut failed = self.failed.borrow_mut();
            if failed.is_none() || is_of_the_whole(&error) {
                *failed = Some(error.clone());
            }
            unreadable(&error)
        })
    }
}

/// Returns `true` if another range would fail as well.
fn is_of_the_whole(error: &BlockError) -> bool {
    !matches!(error, BlockError::Medium { .. } | BlockError::OutOfRange { .. })
}

impl ByteSource for DeviceSource<'_> {
    fn len(&self) -> u64 {
        self.device.geometry().size
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Unreadable> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(Unreadable::outside(offset, buf.len() as u64, self.len()));
        }
        let sector = u64::from(self.sector());
        while !buf.is_empty() {
            let start = offset / sector * sector;
            let inside = (offset - start) as usize;
            let wanted = (inside as u64 + buf.len() as u64).min(MOST);
            let bytes = self.sectors(start, wanted.next_multiple_of(sector))?;
            let len = (wanted as usize) - inside;
            let (now, later) = buf.split_at_mut(len);
            now.copy_from_slice(&bytes[inside..inside + len]);
            (buf, offset) = (later, offset + len as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lunway_block::{Io, Layer};
    use lunway_memory::RamDisk;

    use super::*;

    /// A device on which each read fails, and is counted.
    struct Failing {
        ram: RamDisk,
        error: BlockError,
        reads: Arc<AtomicUsize>,
    }

    impl Layer for Failing {
        fn inner(&self) -> &dyn BlockDevice {
            &self.ram
        }

        fn read(&self, _: u64, _: Buf) -> Io<Result<Buf, BlockError>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Io::err(self.error.clone())
        }
    }

    #[test]
    fn a_device_that_fails_as_a_whole_is_asked_once() {
        let runtime = BlockingRuntime::new().unwrap();
        for (error, asked) in [(BlockError::gone("it is away"), 1), (BlockError::Medium { offset: 0 }, 3)] {
            let (ram, reads) = (RamDisk::new(1 << 20, 512).unwrap(), Arc::<AtomicUsize>::default());
            let device = Failing { ram, error: error.clone(), reads: Arc::clone(&reads) };
            let source = DeviceSource::new(&device, &runtime);
            for offset in [0, 4096, 8192] {
                assert!(source.read(offset, &mut [0; 512]).unwrap_err().what.contains(&error.to_string()));
            }
            assert_eq!((reads.load(Ordering::Relaxed), source.error()), (asked, Some(error)));
        }
    }
}
