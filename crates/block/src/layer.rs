//! A device around a device.

use std::path::Path;
use std::sync::Arc;

use crate::{
    BlockDevice, BlockError, Buf, CacheCallback, Caching, Compaction, Durability, Extent, FileRange,
    Geometry, Identity, Io, Lent, PathSample, Permit, Pull, ResizeCallback, SharedBuf, SnapshotCommit, Space,
    Zeroing,
};

/// A device around another: [`inner`](Self::inner), and what it changes of it.
///
/// Every layer is a [`BlockDevice`] by one implementation. What a layer does not write itself goes to the device
/// inside, also a method that the waist gets after the layer was written: a layer cannot forget one. The methods here
/// are those of [`BlockDevice`], each with that as its default, and must be kept equal to them; a method that is
/// missing here does not compile there, because the implementation below names every one
/// (`clippy::missing_trait_methods`).
///
/// ```
/// use std::sync::Arc;
/// use lunway_block::{BlockDevice, BlockError, Durability, Io, Layer, SharedBuf};
///
/// /// Loses what is written.
/// struct Forgetful {
///     inner: Arc<dyn BlockDevice>,
/// }
///
/// impl Layer for Forgetful {
///     fn inner(&self) -> &dyn BlockDevice {
///         &*self.inner
///     }
///
///     fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
///         Io::ok(())
///     }
/// }
/// ```
pub trait Layer: Send + Sync + 'static {
    /// The device inside.
    fn inner(&self) -> &dyn BlockDevice;

    /// As [`BlockDevice::geometry`].
    fn geometry(&self) -> Geometry {
        self.inner().geometry()
    }

    /// As [`BlockDevice::read`].
    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.inner().read(offset, buf)
    }

    /// As [`BlockDevice::write`].
    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.inner().write(offset, data, durability)
    }

    /// As [`BlockDevice::flush`].
    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.inner().flush()
    }

    /// As [`BlockDevice::unmap`].
    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.inner().unmap(offset, len)
    }

    /// As [`BlockDevice::write_zeroes`].
    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.inner().write_zeroes(offset, len, zeroing)
    }

    /// As [`BlockDevice::extents`].
    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        self.inner().extents(offset, len, count)
    }

    /// As [`BlockDevice::lend_memory`], and not passed on, for the same reason as [`lend`](Self::lend).
    fn lend_memory(&self, offset: u64, len: usize) -> Option<Lent> {
        let _ = (offset, len);
        None
    }

    /// As [`BlockDevice::lend`], and not passed on: what a layer makes of reads would be passed by.
    fn lend(&self, offset: u64, len: u64) -> Io<Result<Option<FileRange>, BlockError>> {
        Io::Ready(self.geometry().check(offset, len).map(|()| None))
    }

    /// As [`BlockDevice::adopt`], and not passed on: what a layer makes of writes would be passed by.
    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        Io::Ready(self.geometry().check_write(offset, from.len).map(|()| false))
    }

    /// As [`BlockDevice::confirm`].
    fn confirm(&self) -> Io<Result<(), BlockError>> {
        self.inner().confirm()
    }

    /// As [`BlockDevice::resize`].
    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        self.inner().resize(size, permit)
    }

    /// As [`BlockDevice::snapshot`].
    fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        self.inner().snapshot(leaf, commit)
    }

    /// As [`BlockDevice::compact`].
    fn compact(&self, task: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        self.inner().compact(task)
    }

    /// As [`BlockDevice::close`].
    fn close(&self) -> Io<Result<(), BlockError>> {
        self.inner().close()
    }

    /// As [`BlockDevice::identity`].
    fn identity(&self) -> Identity {
        self.inner().identity()
    }

    /// As [`BlockDevice::pull`].
    fn pull(&self) -> Option<Pull> {
        self.inner().pull()
    }

    /// As [`BlockDevice::space`].
    fn space(&self) -> Option<Space> {
        self.inner().space()
    }

    /// As [`BlockDevice::backing`].
    fn backing(&self) -> Option<String> {
        self.inner().backing()
    }

    /// As [`BlockDevice::lost_name`].
    fn lost_name(&self) -> Option<String> {
        self.inner().lost_name()
    }

    /// As [`BlockDevice::paths`].
    fn paths(&self) -> Vec<PathSample> {
        self.inner().paths()
    }

    /// As [`BlockDevice::caching`].
    fn caching(&self) -> Caching {
        self.inner().caching()
    }

    /// As [`BlockDevice::on_resize`].
    fn on_resize(&self, callback: ResizeCallback) {
        self.inner().on_resize(callback);
    }

    /// As [`BlockDevice::on_cache_news`].
    fn on_cache_news(&self, callback: CacheCallback) {
        self.inner().on_cache_news(callback);
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a method that is missing here would not reach what is inside"
)]
impl<L: Layer> BlockDevice for L {
    fn geometry(&self) -> Geometry {
        Layer::geometry(self)
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        Layer::read(self, offset, buf)
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        Layer::write(self, offset, data, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Layer::flush(self)
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        Layer::unmap(self, offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        Layer::write_zeroes(self, offset, len, zeroing)
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        Layer::extents(self, offset, len, count)
    }

    fn lend(&self, offset: u64, len: u64) -> Io<Result<Option<FileRange>, BlockError>> {
        Layer::lend(self, offset, len)
    }

    fn lend_memory(&self, offset: u64, len: usize) -> Option<Lent> {
        Layer::lend_memory(self, offset, len)
    }

    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        Layer::adopt(self, offset, from)
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        Layer::confirm(self)
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        Layer::resize(self, size, permit)
    }

    fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        Layer::snapshot(self, leaf, commit)
    }

    fn compact(&self, task: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        Layer::compact(self, task)
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        Layer::close(self)
    }

    fn identity(&self) -> Identity {
        Layer::identity(self)
    }

    fn pull(&self) -> Option<Pull> {
        Layer::pull(self)
    }

    fn space(&self) -> Option<Space> {
        Layer::space(self)
    }

    fn backing(&self) -> Option<String> {
        Layer::backing(self)
    }

    fn lost_name(&self) -> Option<String> {
        Layer::lost_name(self)
    }

    fn paths(&self) -> Vec<PathSample> {
        Layer::paths(self)
    }

    fn caching(&self) -> Caching {
        Layer::caching(self)
    }

    fn on_resize(&self, callback: ResizeCallback) {
        Layer::on_resize(self, callback);
    }

    fn on_cache_news(&self, callback: CacheCallback) {
        Layer::on_cache_news(self, callback);
    }
}
