//! What a decorator does not change.

/// Writes the methods of [`BlockDevice`](crate::BlockDevice) by which a device hands a call on, untouched, to the one in its field.
///
/// Stands in the device's `impl`, with the trait in scope. The field is named first; it holds anything with the methods: an
/// `Arc<dyn BlockDevice>`, or a device. The methods are listed, all that are meant: one of the trait's that has a default and stands
/// neither here nor beside this keeps the default, and what the device inside would have said is lost.
///
/// ```
/// use std::sync::Arc;
/// use lunway_block::{BlockDevice, BlockError, Durability, Io, SharedBuf, pass_on};
///
/// /// Loses what is written.
/// struct Forgetful {
///     inner: Arc<dyn BlockDevice>,
/// }
///
/// impl BlockDevice for Forgetful {
///     pass_on!(inner: geometry, read, flush, unmap, write_zeroes, extents, resize, space, paths, caching, on_resize, on_cache_news);
///
///     fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
///         Io::ok(())
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    (@ $inner:ident geometry) => {
        fn geometry(&self) -> $crate::Geometry {
            self.$inner.geometry()
        }
    };
    (@ $inner:ident read) => {
        fn read(&self, offset: u64, buf: $crate::Buf) -> $crate::Io<Result<$crate::Buf, $crate::BlockError>> {
            self.$inner.read(offset, buf)
        }
    };
    (@ $inner:ident write) => {
        fn write(
            &self,
            offset: u64,
            data: $crate::SharedBuf,
            durability: $crate::Durability,
        ) -> $crate::Io<Result<(), $crate::BlockError>> {
            self.$inner.write(offset, data, durability)
        }
    };
    (@ $inner:ident flush) => {
        fn flush(&self) -> $crate::Io<Result<(), $crate::BlockError>> {
            self.$inner.flush()
        }
    };
    (@ $inner:ident unmap) => {
        fn unmap(&self, offset: u64, len: u64) -> $crate::Io<Result<(), $crate::BlockError>> {
            self.$inner.unmap(offset, len)
        }
    };
    (@ $inner:ident write_zeroes) => {
        fn write_zeroes(
            &self,
            offset: u64,
            len: u64,
            zeroing: $crate::Zeroing,
        ) -> $crate::Io<Result<(), $crate::BlockError>> {
            self.$inner.write_zeroes(offset, len, zeroing)
        }
    };
    (@ $inner:ident extents) => {
        fn extents(
            &self,
            offset: u64,
            len: u64,
        ) -> $crate::Io<Result<Vec<$crate::Extent>, $crate::BlockError>> {
            self.$inner.extents(offset, len)
        }
    };
    (@ $inner:ident resize) => {
        fn resize(&self, size: u64) -> $crate::Io<Result<(), $crate::BlockError>> {
            self.$inner.resize(size)
        }
    };
    (@ $inner:ident space) => {
        fn space(&self) -> Option<$crate::Space> {
            self.$inner.space()
        }
    };
    (@ $inner:ident paths) => {
        fn paths(&self) -> Vec<$crate::PathSample> {
            self.$inner.paths()
        }
    };
    (@ $inner:ident caching) => {
        fn caching(&self) -> $crate::Caching {
            self.$inner.caching()
        }
    };
    (@ $inner:ident on_resize) => {
        fn on_resize(&self, callback: $crate::ResizeCallback) {
            self.$inner.on_resize(callback);
        }
    };
    (@ $inner:ident on_cache_news) => {
        fn on_cache_news(&self, callback: $crate::CacheCallback) {
            self.$inner.on_cache_news(callback);
        }
    };
    ($inner:ident: $($method:ident),+) => {
        $($crate::pass_on!(@ $inner $method);)+
    };
}
