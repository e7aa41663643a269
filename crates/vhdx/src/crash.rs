//! The crash kit as a [`Storage`]: for tests, of this crate and of those above it.

use std::io;

pub use lunway_crash::{Crash, MemoryStorage, Op, Recorder};

use crate::storage::Storage;

impl Storage for MemoryStorage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read(offset, buf)
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.read(offset, buf).is_ok()
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.resize(len);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.clear(offset, len);
        Ok(true)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.clear(offset, len);
        Ok(())
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        Ok(self.allocated_in(offset, len).is_empty())
    }
}

impl Storage for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.now().size())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.now().read(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.sync();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.resize(len);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        if !self.makes_holes() {
            return Ok(false);
        }
        self.clear(offset, len);
        Ok(true)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.clear(offset, len);
        Ok(())
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.now().is_hole(offset, len)
    }
}
