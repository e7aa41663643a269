//! An image, read.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, ExtentKind, Geometry, Io, SharedBuf, Unmap,
    Zeroing,
};
use lunway_file::Workers;
use lunway_image::{Format, Image, LayerSource};

use crate::{ImageDeviceOpenError, meaning};

/// Extents told by one call; what follows is told as data, which is always true enough. As many as a file tells: it
/// bounds time and memory for hostile files.
const EXTENTS_MAX: usize = 65_536;

/// A VHD or qcow2 file with its parents, for reading alone. All files are locked so.
pub struct ImageDevice {
    image: Arc<Image<File>>,
    geometry: Geometry,
    workers: Workers,
}

impl ImageDevice {
    /// Opens and locks a file and its parents. Blocks.
    ///
    /// # Errors
    ///
    /// [`ImageDeviceOpenError`], which says what is wrong.
    pub fn open(path: &Path, format: Format) -> Result<Self, ImageDeviceOpenError> {
        let failed = |source| ImageDeviceOpenError { path: path.to_owned(), source };
        let image = Image::open_files(path, format).map_err(failed)?;
        // What is not there reads as zeroes: copies rely on it.
        let geometry = Geometry { read_only: true, unmap: Unmap::Holes, ..Geometry::plain(image.size()) };
        Ok(Self { image: Arc::new(image), geometry, workers: Workers::new() })
    }
}

impl BlockDevice for ImageDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        match self.geometry.check(offset, buf.len() as u64) {
            Ok(()) if !buf.is_empty() => {
                let image = Arc::clone(&self.image);
                self.workers.reads.io(move || {
                    image.read_at(offset, &mut buf).map_err(|error| meaning(error, offset))?;
                    Ok(buf)
                })
            }
            checked => Io::Ready(checked.map(|()| buf)),
        }
    }

    fn write(&self, _offset: u64, _data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn unmap(&self, _offset: u64, _len: u64) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        match self.geometry.check(offset, len) {
            Ok(()) if len > 0 => {
                let image = Arc::clone(&self.image);
                self.workers
                    .maps
                    .io(move || extents(&image, offset, len).map_err(|error| meaning(error, offset)))
            }
            checked => Io::Ready(checked.map(|()| Vec::new())),
        }
    }

    fn caching(&self) -> Caching {
        Caching::PageCache
    }
}

fn extents(image: &Image<File>, offset: u64, len: u64) -> std::io::Result<Vec<Extent>> {
    let mut list = Vec::new();
    image.map(offset, len, |segment| {
        let kind = match segment.source {
            LayerSource::Zero | LayerSource::Absent if list.len() < EXTENTS_MAX => ExtentKind::Unallocated,
            _ => ExtentKind::Data,
        };
        // A layer tells of sectors, and a raw parent of bytes: a border within a sector makes all of it data.
        let (from, to) = (segment.offset, segment.offset + segment.len);
        let (from, to) = match kind {
            ExtentKind::Data => (from / 512 * 512, to.next_multiple_of(512)),
            _ => (from.next_multiple_of(512), to / 512 * 512),
        };
        let from = from.max(list.last().map_or(offset, Extent::end));
        if from < to {
            Extent { offset: from, len: to - from, kind }.push_onto(&mut list);
        }
    })?;
    Ok(list)
}
