//! The skeleton of a VHDX file: all of its bytes beside leaves, as one hash.
//!
//! The file is looked at in pieces of 64 KiB. Bytes of leaves that the point holds count as zeroes, since their own
//! hashes cover them; a piece that is zeroes then is left out, so that holes need not be read; of each other piece its
//! number (8 bytes, little-endian) and its bytes are hashed, in the order of the file. So every byte of a file is in a
//! leaf's hash or in this one, and a flipped bit in a header, a table or a gap is found as one in data is.

use std::ops::Range;

use lunway_vhdx::{Chain, SegmentSource};

use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open};
use crate::leaf::{LEAF, LEAVES, UNIT, is_zero, leaf_range};
use crate::manifest::FILE_MAX;
use crate::point_files::damaged;
use crate::point_id::PointId;
use crate::sidecar::Sidecar;
use crate::threads::each;
use crate::written::Written;

/// Pieces that are read at a time, of a mebibyte at most.
const READ_AT_ONCE: usize = 8;

/// The hash of all bytes of a file that are not leaves of `sidecar`. Blocks.
///
/// `written` is what was written to a file since it was made: what else it has is zeroes, and is not read. On a share
/// that tells no holes that is 5 of the 6 MiB of a small increment.
///
/// Several pieces are read at a time: over a share each is a round trip.
///
/// Memory: two bytes for each mebibyte of the file, and [`READ_AT_ONCE`] pieces of a mebibyte.
pub(crate) fn skeleton(
    folder: &dyn Folder,
    file: &str,
    disk: &Chain<Open>,
    sidecar: &Sidecar,
    point: PointId,
    written: Option<&Written>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<blake3::Hash> {
    let name = folder.show(file);
    let storage = disk.disks()[0].storage();
    let reading = || BackupError::folder("reading", &name);
    let file_len = storage.len().map_err(reading())?;
    if file_len > FILE_MAX {
        let what = format!("{name} has {file_len} bytes, which no file of a point has");
        return Err(BackupError::Damaged { point, what });
    }
    let places = places(disk, &name, file_len, sidecar, point)?;
    let mut hasher = blake3::Hasher::new();
    let mut hash = |pieces: &mut Vec<(u64, u64)>| {
        if is_cancelled() {
            return Err(BackupError::Cancelled);
        }
        let read = each(pieces, |(at, len)| {
            let mut bytes = vec![0; *len as usize];
            storage.read_at(*at, &mut bytes).map_err(reading())?;
            Ok(bytes)
        });
        for ((at, _), bytes) in pieces.drain(..).zip(read) {
            let mut bytes = bytes?;
            places.mask(at, &mut bytes);
            for (number, piece) in bytes.chunks(LEAF as usize).enumerate() {
                if !is_zero(piece) {
                    hasher.update(&(at / LEAF + number as u64).to_le_bytes()).update(piece);
                }
            }
        }
        Ok(())
    };
    let mut pieces = Vec::with_capacity(READ_AT_ONCE);
    let mut done = 0;
    let data = match written {
        Some(written) => written.ranges(),
        None => folder.data(file).map_err(reading())?,
    };
    for (offset, len) in data {
        // Whole pieces, however the host's ranges lie.
        let end = (offset + len).div_ceil(LEAF) * LEAF;
        let mut at = done.max(offset / LEAF * LEAF);
        while at < end.min(file_len) {
            let now = (UNIT - at % UNIT).min(end - at).min(file_len - at);
            // What is all leaves is not read.
            if !places.covers(&(at..at + now)) {
                pieces.push((at, now));
                if pieces.len() == READ_AT_ONCE {
                    hash(&mut pieces)?;
                }
            }
            at += now;
        }
        done = done.max(end);
    }
    hash(&mut pieces)?;
    Ok(hasher.finalize())
}

/// Places of leaves in a file: a bit for each of its pieces of 64 KiB, so that a file of 64 TiB takes 128 MiB.
///
/// Blocks of these files are units, which lie at multiples of 1 MiB, so that a leaf is one whole piece of the file. The
/// last leaf of a disk may be shorter, and what is damaged may lie anywhere: such ranges are listed, up to
/// [`ODD_MAX`].
struct Places {
    /// By the mebibyte of the file.
    pieces: Vec<u16>,
    /// Others, in no order.
    odd: Vec<Range<u64>>,
}

/// Most ranges that are not whole pieces: a sound file has one.
const ODD_MAX: usize = 1024;

impl Places {
    fn of_file(len: u64) -> Self {
        Self { pieces: vec![0; len.div_ceil(UNIT) as usize], odd: Vec::new() }
    }

    /// `false`: there are too many, or this one is behind the end.
    fn add(&mut self, range: Range<u64>) -> bool {
        let is_whole = range.start.is_multiple_of(LEAF) && range.end - range.start == LEAF;
        match self.pieces.get_mut((range.start / UNIT) as usize) {
            None => false,
            Some(pieces) if is_whole => {
                *pieces |= 1 << (range.start % UNIT / LEAF);
                true
            }
            Some(_) => {
                self.odd.push(range);
                self.odd.len() <= ODD_MAX
            }
        }
    }

    /// Returns `true` if a range within one mebibyte consists entirely of leaves in whole pieces, so that none of it is
    /// hashed.
    fn covers(&self, range: &Range<u64>) -> bool {
        let pieces = self.pieces.get((range.start / UNIT) as usize).copied().unwrap_or(0);
        let within = range.start % UNIT / LEAF..(range.end - range.start / UNIT * UNIT).div_ceil(LEAF);
        within.into_iter().all(|piece| pieces >> piece & 1 == 1)
    }

    /// Makes zeroes of what is leaves in `bytes`, which lie at `at` and within one mebibyte.
    fn mask(&self, at: u64, bytes: &mut [u8]) {
        let end = at + bytes.len() as u64;
        let base = at / UNIT * UNIT;
        let pieces = self.pieces.get((at / UNIT) as usize).copied().unwrap_or(0);
        let whole = (0..LEAVES as u64).filter(|piece| pieces >> piece & 1 == 1);
        let whole = whole.map(|piece| base + piece * LEAF..base + (piece + 1) * LEAF);
        for leaf in whole.chain(self.odd.iter().cloned()) {
            let (from, to) = (leaf.start.clamp(at, end), leaf.end.clamp(at, end));
            bytes[(from - at) as usize..(to - at) as usize].fill(0);
        }
    }
}

/// The places of all leaves that a point holds in its file, which must hold all that are not zeroes.
fn places(disk: &Chain<Open>, name: &str, len: u64, sidecar: &Sidecar, point: PointId) -> Result<Places> {
    let mut places = Places::of_file(len);
    let (mut fits, mut lacks) = (true, None);
    for index in 0..sidecar.segments().len() {
        let segment = sidecar.segment(index).map_err(|error| damaged(point, error))?;
        for unit in segment.iter() {
            for leaf in (0..LEAVES).filter(|leaf| unit.changed >> leaf & 1 == 1) {
                let range = leaf_range(unit.unit, leaf, disk.size());
                if range.is_empty() {
                    continue;
                }
                let is_data = unit.zero >> leaf & 1 == 0;
                let mapped = disk.map(range.start, range.end - range.start, |segment| match segment.source {
                    SegmentSource::File(at) => fits &= places.add(at..at + segment.len),
                    _ if is_data => lacks = Some(range.start),
                    _ => {}
                });
                mapped.map_err(BackupError::disk(name))?;
                let what = match lacks {
                    Some(offset) => format!("{name} does not have the data of the disk at offset {offset}"),
                    None if fits => continue,
                    None => format!("{name}: its data do not lie where they were written"),
                };
                return Err(BackupError::Damaged { point, what });
            }
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_take_two_bytes_for_a_mebibyte_and_mask_what_they_were_given() {
        let mut places = Places::of_file(100 * UNIT);
        assert!((3..90 * LEAVES as u64).all(|piece| places.add(piece * LEAF..(piece + 1) * LEAF)));
        assert!(places.add(95 * UNIT + 512..95 * UNIT + 1024));
        let held = places.pieces.capacity() * size_of::<u16>() + places.odd.len() * size_of::<Range<u64>>();
        assert!(held <= 2 * 100 + 16, "{held} bytes");
        assert!(places.covers(&(5 * UNIT..6 * UNIT)) && places.covers(&(3 * LEAF..UNIT)));
        assert!(!places.covers(&(2 * LEAF..UNIT)) && !places.covers(&(95 * UNIT..96 * UNIT)));
        let mut bytes = vec![1; UNIT as usize];
        places.mask(95 * UNIT, &mut bytes);
        let zeroes: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == 0).collect();
        assert_eq!((zeroes.first(), zeroes.len()), (Some(&512), 512));
        let mut bytes = vec![1; UNIT as usize];
        places.mask(0, &mut bytes);
        assert_eq!(bytes.iter().position(|byte| *byte == 0), Some(3 * LEAF as usize));
        assert!(!places.add(100 * UNIT..100 * UNIT + LEAF), "behind the end");
        assert!((0..ODD_MAX as u64 - 1).all(|number| places.add(number * 512..number * 512 + 512)));
        assert!(!places.add(0..512), "too many");
    }
}
