//! A VHD that is being filled.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use lunway_block::{BlockDevice, BlockError, Buf, Caching, Durability, Geometry, Io, SharedBuf, Zeroing};
use lunway_file::{ThreadPool, Workers};
use lunway_image::vhd::Writer;

use crate::{ImageDeviceOpenError, meaning};

/// A fixed or dynamic VHD that a copy fills: see [`Writer`]. Locked for writing. It is whole after a flush.
pub struct NewVhd {
    writer: Arc<Writer<File>>,
    geometry: Geometry,
    workers: Workers,
}

impl NewVhd {
    /// Opens and locks a file that [`Writer::create`] has made. Blocks.
    ///
    /// # Errors
    ///
    /// [`ImageDeviceOpenError`], which says what is wrong.
    pub fn open(path: &Path) -> Result<Self, ImageDeviceOpenError> {
        let failed = |source| ImageDeviceOpenError { path: path.to_owned(), source };
        let writer = Writer::open_file(path).map_err(failed)?;
        let geometry = Geometry { volatile_cache: true, ..Geometry::plain(writer.size()) };
        Ok(Self { writer: Arc::new(writer), geometry, workers: Workers::new() })
    }

    fn on<T: Send + Unpin + 'static>(
        &self,
        pool: &ThreadPool,
        offset: u64,
        job: impl FnOnce(&Writer<File>) -> std::io::Result<T> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        let writer = Arc::clone(&self.writer);
        pool.io(move || job(&writer).map_err(|error| meaning(error, offset)))
    }
}

impl BlockDevice for NewVhd {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        match self.geometry.check(offset, buf.len() as u64) {
            Ok(()) if !buf.is_empty() => self.on(&self.workers.reads, offset, move |writer| {
                writer.read_at(offset, &mut buf)?;
                Ok(buf)
            }),
            checked => Io::Ready(checked.map(|()| buf)),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        match self.geometry.check_write(offset, data.len() as u64) {
            Ok(()) if !data.is_empty() => self.on(&self.workers.writes, offset, move |writer| {
                writer.write_at(offset, &data)?;
                match durability {
                    Durability::Volatile => Ok(()),
                    Durability::Stable => writer.flush(),
                }
            }),
            checked => Io::Ready(checked),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.on(&self.workers.flushes, 0, Writer::flush)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        match self.geometry.check_write(offset, len) {
            Ok(()) if len > 0 => {
                self.on(&self.workers.writes, offset, move |writer| writer.write_zeroes(offset, len))
            }
            checked => Io::Ready(checked),
        }
    }

    fn caching(&self) -> Caching {
        Caching::PageCache
    }
}
