//! A disk with a write cache that a power cut empties: what is not flushed is in this process's memory alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Zeroing};

use crate::region::BLOCK;

type Block = Box<[u8; BLOCK]>;

/// A file, and the blocks that were written since it was flushed. Everything is done inline: the file is in the page
/// cache.
pub(crate) struct VolatileDisk {
    file: File,
    size: u64,
    cache: Mutex<BTreeMap<u64, Block>>,
}

impl VolatileDisk {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { file, size, cache: Mutex::default() })
    }

    fn put(&self, offset: u64, data: &[u8], durability: Durability) -> Result<(), BlockError> {
        self.geometry().check(offset, data.len() as u64)?;
        let mut cache = self.cache.lock().unwrap();
        for (number, block) in (offset / BLOCK as u64..).zip(data.as_chunks::<BLOCK>().0) {
            match durability {
                Durability::Volatile => {
                    cache.insert(number, Box::new(*block));
                }
                Durability::Stable => {
                    self.file.write_all_at(block, number * BLOCK as u64)?;
                    cache.remove(&number);
                }
            }
        }
        Ok(())
    }
}

impl BlockDevice for VolatileDisk {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..Geometry::plain(self.size) }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        let read = || {
            self.geometry().check(offset, buf.len() as u64)?;
            let cache = self.cache.lock().unwrap();
            self.file.read_exact_at(&mut buf, offset)?;
            let first = offset / BLOCK as u64;
            let end = first + (buf.len() / BLOCK) as u64;
            for (number, block) in cache.range(first..end) {
                let at = (number - first) as usize * BLOCK;
                buf[at..at + BLOCK].copy_from_slice(&**block);
            }
            Ok(buf)
        };
        Io::Ready(read())
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        Io::Ready(self.put(offset, &data, durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        let flush = || {
            let mut cache = self.cache.lock().unwrap();
            for (number, block) in cache.iter() {
                self.file.write_all_at(&**block, number * BLOCK as u64)?;
            }
            cache.clear();
            Ok(())
        };
        Io::Ready(flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::Ready(self.put(offset, &vec![0; len as usize], Durability::Volatile))
    }
}
