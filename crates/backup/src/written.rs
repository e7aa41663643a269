//! Which pieces of a new file were ever written: the others are zeroes, and need not be read to be known.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    /// Returns `true` if anything was written to a piece that a range touches.
    fn has_any(&self, offset: u64, len: u64) -> bool {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut touched = offset / LEAF..offset.saturating_add(len).div_ceil(LEAF);
        touched.any(|piece| {
            let unit = pieces.get((piece * LEAF / UNIT) as usize).copied().unwrap_or(0);
            unit >> (piece % LEAVES as u64) & 1 == 1
        })
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

/// What was written, and where.
type Piece = (u64, Vec<u8>);

/// A file that was just made, and notes what is written to it. What was never written is not read, and nothing is until
/// [`begun`](Self::begun): on a share that is a round trip each.
pub(crate) struct Noted {
    file: Open,
    written: Arc<Written>,
    /// Length that it was given.
    len: AtomicU64,
    /// Everything that was written, in order, until its beginning is complete.
    beginning: Mutex<Option<Vec<Piece>>>,
}

impl Noted {
    /// Takes an empty file.
    pub(crate) fn new(file: Open) -> Self {
        let beginning = Mutex::new(Some(Vec::new()));
        Self { file, written: Arc::default(), len: AtomicU64::new(0), beginning }
    }

    /// Its beginning is complete: what is written from now on is not kept in memory. Returns what is noted.
    pub(crate) fn begun(&self) -> Arc<Written> {
        self.beginning().take();
        Arc::clone(&self.written)
    }

    /// Fills `buf` with what was written so far; `false`: that is not kept any more.
    fn read_beginning(&self, offset: u64, buf: &mut [u8]) -> bool {
        let beginning = self.beginning();
        let Some(writes) = &*beginning else { return false };
        let end = offset + buf.len() as u64;
        buf.fill(0);
        for (at, bytes) in writes {
            let (from, to) = ((*at).max(offset), (at + bytes.len() as u64).min(end));
            if from < to {
                let source = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        true
    }

    fn beginning(&self) -> MutexGuard<'_, Option<Vec<Piece>>> {
        self.beginning.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for Noted {
    fn len(&self) -> io::Result<u64> {
        // Not asked with the lock held: on a share others would wait for the answer.
        let is_beginning = self.beginning().is_some();
        if is_beginning { Ok(self.len.load(Ordering::SeqCst)) } else { self.file.len() }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.len.load(Ordering::SeqCst) {
            return self.file.read_at(offset, buf);
        }
        if !self.written.has_any(offset, buf.len() as u64) {
            buf.fill(0);
            return Ok(());
        }
        match self.read_beginning(offset, buf) {
            true => Ok(()),
            false => self.file.read_at(offset, buf),
        }
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.file.read_now(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // Before: a write that fails may have left anything.
        self.written.add(offset, data.len() as u64);
        if let Some(writes) = &mut *self.beginning() {
            writes.push((offset, data.to_vec()));
        }
        self.file.write_at(offset, data)?;
        self.len.fetch_max(offset + data.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len.store(len, Ordering::SeqCst);
        Ok(())
    }

    fn lengthen(&self, len: u64) -> io::Result<()> {
        self.file.lengthen(len)?;
        self.len.store(len, Ordering::SeqCst);
        Ok(())
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
        let file = Noted::new(Arc::new(MemoryStorage::default()));
        let written = file.begun();
        file.set_len(40 * UNIT).unwrap();
        assert_eq!(written.ranges(), []);
        file.write_at(3 * LEAF - 1, &[1; 2]).unwrap();
        file.write_at(37 * UNIT, &[1; 512]).unwrap();
        file.write_at(4 * LEAF, &[1; LEAF as usize]).unwrap();
        file.zero(20 * UNIT, UNIT).unwrap();
        let mut read = [7; 3];
        file.read_at(3 * LEAF - 2, &mut read).unwrap();
        assert_eq!(read, [0, 1, 1]);
        file.read_at(30 * UNIT, &mut read).unwrap();
        assert_eq!(read, [0; 3]);
        assert!(file.read_at(40 * UNIT - 2, &mut read).is_err(), "behind the end");
        assert_eq!(written.ranges(), [(2 * LEAF, 3 * LEAF), (37 * UNIT, LEAF)]);
    }

    #[test]
    fn the_beginning_of_a_file_is_read_from_what_was_written() {
        let memory = Arc::new(MemoryStorage::default());
        let file = Noted::new(memory.clone());
        file.set_len(UNIT).unwrap();
        file.write_at(10, &[1; 10]).unwrap();
        file.write_at(15, &[2; 10]).unwrap();
        memory.write_at(0, &[9; 64]).unwrap();
        let mut read = [7; 12];
        file.read_at(8, &mut read).unwrap();
        assert_eq!(read, [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert_eq!(file.len().unwrap(), UNIT);
        file.begun();
        file.read_at(8, &mut read).unwrap();
        assert_eq!(read, [9; 12]);
    }
}
