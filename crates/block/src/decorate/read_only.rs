//! A device that cannot be written.

use std::path::Path;
use std::sync::Arc;

use crate::{
    BlockDevice, BlockError, Durability, Geometry, Io, Permit, ResizeCallback, SharedBuf, SnapshotCommit,
    Zeroing,
};

/// Refuses every change with [`BlockError::ReadOnly`]: `readonly:DEVICE`.
///
/// Its geometry says so. Flushes pass: what was written before the wrap can still be made durable.
pub struct ReadOnly {
    inner: Arc<dyn BlockDevice>,
}

fn protected(geometry: Geometry) -> Geometry {
    Geometry { read_only: true, ..geometry }
}

impl ReadOnly {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner }
    }
}

impl crate::Layer for ReadOnly {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn geometry(&self) -> Geometry {
        protected(self.inner.geometry())
    }

    fn write(&self, _offset: u64, _data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn unmap(&self, _offset: u64, _len: u64) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn resize(&self, _size: u64, _permit: Permit) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn snapshot(&self, _leaf: &Path, _commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.inner.on_resize(Box::new(move |geometry| callback(protected(geometry))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buf;
    use crate::decorate::test_device::TestDevice;
    use std::sync::Mutex;

    #[test]
    fn every_change_is_refused_and_the_rest_stays_ready() {
        let device = ReadOnly::new(TestDevice::new(4096).shared());
        assert!(device.geometry().read_only);
        let data = Buf::copy_of(&[1; 512]).freeze();
        for refused in [
            device.write(0, data.clone(), Durability::Stable),
            device.write(0, SharedBuf::default(), Durability::Volatile),
            device.unmap(0, 512),
            device.write_zeroes(0, 512, Zeroing::MayUnmap),
            device.resize(8192, Permit::default()),
            device.snapshot(Path::new("leaf"), Box::new(|| Ok(()))),
        ] {
            assert!(matches!(refused, Io::Ready(Err(BlockError::ReadOnly))));
        }
        assert!(matches!(device.flush(), Io::Ready(Ok(()))));
        assert!(matches!(device.extents(0, 4096, usize::MAX), Io::Ready(Ok(_))));
        let Io::Ready(Ok(buf)) = device.read(0, Buf::copy_of(&data)) else { panic!("not ready") };
        assert_eq!(&buf[..], &[0; 512]);
    }

    #[test]
    fn a_resize_is_passed_on_as_read_only() {
        let inner = Arc::new(TestDevice::new(4096));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        ReadOnly::new(inner.clone()).on_resize(Box::new(move |geometry| log.lock().unwrap().push(geometry)));
        assert!(matches!(inner.resize(8192, Permit::default()), Io::Ready(Ok(()))));
        let seen = seen.lock().unwrap();
        assert_eq!(seen.iter().map(|g| (g.size, g.read_only)).collect::<Vec<_>>(), [(8192, true)]);
    }
}
