//! A disk in memory whose power can be cut.

use std::sync::{Mutex, PoisonError};

use lunway_crash::{MemoryStorage, Recorder};

use crate::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Geometry, Identity, Io, Permit,
    ResizeCallback, SharedBuf, Space, Unmap, Zeroing,
};

/// A disk in memory with a volatile cache: the [`Recorder`] of the crash kit as a [`BlockDevice`].
///
/// Thin, with zeroes behind what was unmapped, resizable, and always ready. Everything that is done to it is recorded,
/// so that [`Recorder::each_crash`] gives every disk that a power cut could leave; [`Disk::of`] opens one of them.
pub struct Disk {
    recorder: Recorder,
    sector: u32,
    callbacks: Mutex<Vec<ResizeCallback>>,
}

impl Disk {
    /// `size` bytes of zeroes in sectors of 512.
    pub fn new(size: u64) -> Self {
        Self::of(MemoryStorage::of_len(size))
    }

    /// A disk that begins with what is durable in `start`.
    pub fn of(start: MemoryStorage) -> Self {
        Self { recorder: Recorder::new(start), sector: 512, callbacks: Mutex::default() }
    }

    /// The same with other sectors.
    pub fn with_sector(self, sector: u32) -> Self {
        Self { sector, ..self }
    }

    /// Recorder of the operations on the disk.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn changed(
        &self,
        offset: u64,
        len: u64,
        change: impl FnOnce(&Recorder) -> std::io::Result<()>,
    ) -> Io<Result<(), BlockError>> {
        Io::Ready(self.geometry().check_write(offset, len).and_then(|()| match len {
            0 => Ok(()),
            _ => change(&self.recorder).map_err(BlockError::from),
        }))
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            unmap: Unmap::Zeroes { granularity: 4096 },
            volatile_cache: true,
            ..Geometry::plain(self.recorder.now().size()).with_sector(self.sector)
        }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        Io::Ready(self.geometry().check(offset, buf.len() as u64).and_then(|()| {
            self.recorder.now().read(offset, &mut buf)?;
            Ok(buf)
        }))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.changed(offset, data.len() as u64, |recorder| match durability {
            Durability::Volatile => recorder.write(offset, &data),
            Durability::Stable => recorder.write_stable(offset, &data),
        })
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.recorder.sync();
        Io::ok(())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.write_zeroes(offset, len, Zeroing::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        self.changed(offset, len, |recorder| {
            recorder.clear(offset, len);
            Ok(())
        })
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        Io::Ready(self.geometry().check(offset, len).map(|()| {
            let (mut list, mut at) = (Vec::new(), offset);
            for (start, len) in self.recorder.now().allocated_in(offset, len) {
                Extent { offset: at, len: start - at, kind: ExtentKind::Unallocated }.push_onto(&mut list);
                Extent { offset: start, len, kind: ExtentKind::Data }.push_onto(&mut list);
                at = start + len;
            }
            Extent { offset: at, len: offset + len - at, kind: ExtentKind::Unallocated }.push_onto(&mut list);
            list
        }))
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        if size == 0 || !size.is_multiple_of(u64::from(self.sector)) {
            return Io::err(BlockError::Size { why: format!("{size} bytes are not whole sectors") });
        }
        if let Err(error) = permit.begin() {
            return Io::err(error);
        }
        self.recorder.resize(size);
        self.recorder.sync();
        for callback in self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            callback(self.geometry());
        }
        Io::ok(())
    }

    fn identity(&self) -> Identity {
        Identity::of_place(format!("test disk at {:p}", &raw const self.recorder))
    }

    fn space(&self) -> Option<Space> {
        let allocated = self.recorder.now().allocated();
        Some(Space { allocated, used: allocated, available: self.geometry().size.saturating_sub(allocated) })
    }

    fn caching(&self) -> Caching {
        Caching::WriteBack
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }
}
