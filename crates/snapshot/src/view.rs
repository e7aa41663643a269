//! A snapshot as a device.

use std::sync::Arc;

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, Geometry, Io, SharedBuf, Unmap, Zeroing,
};

use crate::fleece::Fleece;

/// Read-only view of a device's content at one instant. Once the snapshot has ended, every read is [`BlockError::Gone`]
/// with the reason.
#[derive(Clone, Debug)]
pub struct SnapshotDevice {
    fleece: Arc<Fleece>,
}

impl SnapshotDevice {
    /// The snapshot that a fleece keeps.
    pub fn new(fleece: Arc<Fleece>) -> Self {
        Self { fleece }
    }
}

impl BlockDevice for SnapshotDevice {
    fn geometry(&self) -> Geometry {
        let origin = self.fleece.geometry();
        let unmap = if origin.unmap.zeroes() { Unmap::Holes } else { Unmap::Never };
        Geometry { unmap, read_only: true, volatile_cache: false, ..origin }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let fleece = Arc::clone(&self.fleece);
        Io::pending(async move { fleece.read(offset, buf).await })
    }

    fn write(&self, offset: u64, data: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry().check_write(offset, data.len() as u64))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry().check_write(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry().check_write(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.geometry().check(offset, len) {
            return Io::err(error);
        }
        let fleece = Arc::clone(&self.fleece);
        Io::pending(async move { fleece.extents(offset, len, count).await })
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        let fleece = Arc::clone(&self.fleece);
        Io::pending(async move { fleece.confirm().await })
    }

    fn caching(&self) -> Caching {
        Caching::Unknown
    }
}
