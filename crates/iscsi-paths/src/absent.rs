//! Placeholder for a lane's device until it has been opened.

use std::sync::{Mutex, PoisonError};

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Geometry, Io, ResizeCallback, SharedBuf, Zeroing,
};

/// A device that is not there yet: it has the disk's shape, and refuses everything as not done, so that it goes down
/// another lane.
pub(crate) struct Absent {
    geometry: Geometry,
    callbacks: Mutex<Vec<ResizeCallback>>,
}

impl Absent {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, callbacks: Mutex::default() }
    }

    /// Of no size, where the disk's size is not known.
    pub(crate) fn shapeless() -> Self {
        Self::new(Geometry::plain(0))
    }

    /// Takes the callbacks for changes of size: for the device that takes its place.
    pub(crate) fn take_callbacks(&self) -> Vec<ResizeCallback> {
        std::mem::take(&mut self.callbacks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refuse<T: Send + 'static>() -> Io<Result<T, BlockError>> {
        Io::err(BlockError::gone("the lane has not been connected yet"))
    }
}

impl BlockDevice for Absent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, _offset: u64, _buf: Buf) -> Io<Result<Buf, BlockError>> {
        Self::refuse()
    }

    fn write(&self, _offset: u64, _data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        Self::refuse()
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Self::refuse()
    }

    fn unmap(&self, _offset: u64, _len: u64) -> Io<Result<(), BlockError>> {
        Self::refuse()
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        Self::refuse()
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }
}
