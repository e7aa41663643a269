//! A file in memory: an index of packs that no stored index has.

use std::io;

use lunway_vhdx::Storage;

/// Bytes that are only read.
#[derive(Debug, Default)]
pub(crate) struct MemoryFile(Vec<u8>);

impl MemoryFile {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Storage for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(buf.len());
        let bytes = end.and_then(|end| self.0.get(start..end)).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
