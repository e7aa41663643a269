//! Which pieces of a new file were ever written: the others are zeroes, and need not be read to be known.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lunway_vhdx::Storage;

use crate::folder::Open;
use crate::leaf::{LEAF, LEAVES, UNIT};

/// Pieces of 64 KiB of one file that were written since it was made empty.
///
/// Memory: two bytes for each mebibyte of the file.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// A bit for each piece, by the mebibyte of the file.
    pieces: Mutex<Vec<u16>>,
}

impl Written {
    fn add(&self, offset: u64, len: u64) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in offset / LEAF..offset.saturating_add(len).div_ceil(LEAF) {
            let unit = (piece * LEAF / UNIT) as usize;
            if pieces.len() <= unit {
                pieces.resize(unit + 1, 0);
            }
            pieces[unit] |= 1 << (piece % LEAVES as u64);
        }
    }

    /// What was written, in whole pieces, as offset and length, in order.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let all =
            (0..pieces.len() * LEAVES).filter(|piece| pieces[piece / LEAVES] >> (piece % LEAVES) & 1 == 1);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for at in all.map(|piece| piece as u64 * LEAF) {
            match ranges.last_mut() {
                Some((offset, len)) if *offset + *len == at => *len += LEAF,
                _ => ranges.push((at, LEAF)),
            }
        }
        ranges
    }
}

/// A file that was just made, and notes what is written to it.
pub(crate) struct Noted {
    pub(crate) file: Open,
    pub(crate) written: Arc<Written>,
}

impl Storage for Noted {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.file.read_now(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // Before: a write that fails may have left anything.
        self.written.add(offset, data.len() as u64);
        self.file.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn free(&self) -> io::Result<Option<u64>> {
        self.file.free()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.file.punch(offset, len)
    }

    fn share(&self, from: u64, to: u64, len: u64) -> io::Result<bool> {
        self.written.add(to, len);
        self.file.share(from, to, len)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.zero(offset, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn is_hole(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.file.is_hole(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use lunway_vhdx::crash::MemoryStorage;

    use super::*;

    #[test]
    fn all_that_is_not_zero_lies_in_what_was_written() {
        let written = Arc::new(Written::default());
        let file = Noted { file: Arc::new(MemoryStorage::default()), written: Arc::clone(&written) };
        file.set_len(40 * UNIT).unwrap();
        assert_eq!(written.ranges(), []);
        file.write_at(3 * LEAF - 1, &[1; 2]).unwrap();
        file.write_at(37 * UNIT, &[1; 512]).unwrap();
        file.write_at(4 * LEAF, &[1; LEAF as usize]).unwrap();
        file.zero(20 * UNIT, UNIT).unwrap();
        assert_eq!(written.ranges(), [(2 * LEAF, 3 * LEAF), (37 * UNIT, LEAF)]);
    }
}
