//! The ring of the log as bytes.

use std::io;

use crate::region::Span;
use crate::storage::Storage;

/// The log's place in the file. Positions are offsets in the ring, multiples of 4 KiB; ranges may wrap around its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) span: Span,
}

impl Ring {
    pub(crate) fn len(&self) -> u64 {
        self.span.len
    }

    /// The position that is reached `count` bytes behind the start, around the end.
    pub(crate) fn place(&self, count: u64) -> u64 {
        count % self.span.len
    }

    /// `position` moved on by `by`, around the end.
    pub(crate) fn advance(&self, position: u64, by: u64) -> u64 {
        self.place(position + by)
    }

    /// Reads `buf` from `position`, around the end; `buf` is at most as long as the ring.
    pub(crate) fn read(&self, storage: &impl Storage, position: u64, buf: &mut [u8]) -> io::Result<()> {
        let first = (self.span.len - position).min(buf.len() as u64);
        let (head, rest) = buf.split_at_mut(first as usize);
        storage.read_at(self.span.offset + position, head)?;
        match rest {
            [] => Ok(()),
            rest => storage.read_at(self.span.offset, rest),
        }
    }

    /// Writes `data` at `position`, around the end.
    pub(crate) fn write(&self, storage: &impl Storage, position: u64, data: &[u8]) -> io::Result<()> {
        let first = (self.span.len - position).min(data.len() as u64);
        let (head, rest) = data.split_at(first as usize);
        storage.write_at(self.span.offset + position, head)?;
        match rest {
            [] => Ok(()),
            rest => storage.write_at(self.span.offset, rest),
        }
    }
}
