//! The skeleton of a VHDX file: all of its bytes beside leaves, as one hash.
//!
//! The file is looked at in pieces of 64 KiB. Bytes of leaves that the point holds count as zeroes, since their own
//! hashes cover them; a piece that is zeroes then is left out, so that holes need not be read; of each other piece its
//! number (8 bytes, little-endian) and its bytes are hashed, in the order of the file. So every byte of a file is in a
//! leaf's hash or in this one, and a flipped bit in a header, a table or a gap is found as one in data is.

use std::collections::HashMap;
use std::ops::Range;

use lunway_vhdx::{Chain, Source};

use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open};
use crate::history::damaged;
use crate::leaf::{LEAF, LEAVES, UNIT, is_zero, leaf_range};
use crate::manifest::PointId;
use crate::sidecar::Sidecar;

/// The hash of all bytes of a file that are not leaves of `sidecar`. Blocks.
///
/// Memory: a mask of leaves for each mebibyte of the file that holds some.
pub(crate) fn skeleton(
    folder: &dyn Folder,
    file: &str,
    disk: &Chain<Open>,
    sidecar: &Sidecar,
    point: PointId,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<blake3::Hash> {
    let name = folder.show(file);
    let leaves = leaves(disk, &name, sidecar, point)?;
    let storage = disk.disks()[0].storage();
    let reading = || BackupError::folder("reading", &name);
    let mut hasher = blake3::Hasher::new();
    let mut buf = vec![0; UNIT as usize];
    let mut done = 0;
    for (offset, len) in folder.data(file).map_err(reading())? {
        // Whole pieces, however the host's ranges lie.
        let end = (offset + len).div_ceil(LEAF) * LEAF;
        let mut at = done.max(offset / LEAF * LEAF);
        let file_len = storage.len().map_err(reading())?;
        while at < end.min(file_len) {
            if is_cancelled() {
                return Err(BackupError::Cancelled);
            }
            let now = (UNIT - at % UNIT).min(end - at).min(file_len - at);
            let masked = leaves.get(&(at / UNIT)).map_or(&[][..], Vec::as_slice);
            // What is all leaves is not read.
            if !covers(masked, at % UNIT..at % UNIT + now) {
                let bytes = &mut buf[..now as usize];
                storage.read_at(at, bytes).map_err(reading())?;
                for leaf in masked {
                    let from = leaf.start.clamp(at % UNIT, at % UNIT + now) - at % UNIT;
                    let to = leaf.end.clamp(at % UNIT, at % UNIT + now) - at % UNIT;
                    bytes[from as usize..to as usize].fill(0);
                }
                for (number, piece) in bytes.chunks(LEAF as usize).enumerate() {
                    if !is_zero(piece) {
                        hasher.update(&(at / LEAF + number as u64).to_le_bytes()).update(piece);
                    }
                }
            }
            at += now;
        }
        done = done.max(end);
    }
    Ok(hasher.finalize())
}

/// Bytes of leaves in the file, by the mebibyte, in order and joined.
fn leaves(
    disk: &Chain<Open>,
    name: &str,
    sidecar: &Sidecar,
    point: PointId,
) -> Result<HashMap<u64, Vec<Range<u64>>>> {
    let mut leaves: HashMap<u64, Vec<Range<u64>>> = HashMap::new();
    for index in 0..sidecar.segments().len() {
        let segment = sidecar.segment(index).map_err(|error| damaged(point, &error))?;
        for unit in segment.iter() {
            for leaf in (0..LEAVES).filter(|leaf| unit.changed >> leaf & 1 == 1) {
                let range = leaf_range(unit.unit, leaf, disk.size());
                if range.is_empty() {
                    continue;
                }
                let mapped = disk.map(range.start, range.end - range.start, |segment| {
                    let Source::File(at) = segment.source else { return };
                    let list = leaves.entry(at / UNIT).or_default();
                    let new = at % UNIT..at % UNIT + segment.len;
                    match list.last_mut() {
                        Some(last) if last.end == new.start => last.end = new.end,
                        _ => list.push(new),
                    }
                });
                mapped.map_err(BackupError::disk(name))?;
            }
        }
    }
    Ok(leaves)
}

/// Whether ranges in order and joined hold all of another.
fn covers(list: &[Range<u64>], range: Range<u64>) -> bool {
    list.iter().any(|held| held.start <= range.start && range.end <= held.end)
}
