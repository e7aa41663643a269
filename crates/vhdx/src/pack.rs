//! Packing: a file becomes as short as what it holds.
//!
//! ```text
//!   metadata   sector bitmap blocks and regions move into the lowest holes   (closed file: one transaction a step)
//!   payload    the highest blocks move into the lowest holes                 (open disk: copy, flush, table, flush)
//!   end        the file is cut behind the last block                         (Disk::close)
//! ```
//!
//! The disk's contents do not change, and neither does its DataWriteGuid if it is opened with the one that it has. At
//! every step the file is whole: whoever stops in between has a file that is packed in part, and begins again where it
//! was.

use std::ops::ControlFlow;

use crate::disk::{Disk, Relocation, Stop};
use crate::error::DiskError;
use crate::format::MIB;
use crate::storage::Storage;

/// How many blocks of one look at the table are remembered: 1 MiB of memory.
const REMEMBERED: usize = 1 << 16;

/// How much is moved between two flushes, bytes: what an interruption loses, and has to be done again.
const BETWEEN_FLUSHES: u64 = 1 << 30;

/// How much is copied at a time, bytes.
const PIECE: u64 = 4 << 20;

/// Zeroes of a block stay holes in units of this, bytes: what file systems of hosts allocate.
const HOLE_UNIT: usize = 4096;

/// What packing has done, and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Bytes of blocks that were moved.
    pub moved: u64,
    /// Bytes of blocks that are still to be moved, at most.
    pub left: u64,
}

/// Moves payload blocks from the end of the file into its holes, and makes that durable; [`Disk::close`] cuts the file.
/// `progress` is called after each block, and may end it.
///
/// # Errors
///
/// Those of the storage. What was moved before stays moved.
pub fn pack<S: Storage>(
    disk: &Disk<S>,
    progress: &mut dyn FnMut(Packed) -> ControlFlow<()>,
) -> Result<Packed, DiskError> {
    // What was given up before becomes a hole.
    disk.flush()?;
    let mut packed = Packed::default();
    let mut since_flush = 0;
    let mut buf = Vec::new();
    let result = 'all: loop {
        // A packed file ends here: only what lies behind it has to move.
        let end = disk.taken();
        let highest = disk.highest_blocks(end.saturating_sub(disk.geometry.block_size - MIB), REMEMBERED)?;
        let mut moved = false;
        for (at, placed) in highest.iter().enumerate() {
            let Some(relocation) = begin(disk, placed.block)? else { continue };
            if let Err(error) = copy(disk, &relocation, &mut buf) {
                disk.abort_relocation(relocation);
                break 'all Err(error);
            }
            let len = relocation.to.len;
            disk.complete_relocation(relocation);
            moved = true;
            packed.moved += len;
            packed.left = (highest.len() - at - 1) as u64 * len;
            since_flush += len;
            if since_flush >= BETWEEN_FLUSHES {
                disk.flush()?;
                since_flush = 0;
            }
            if progress(packed).is_break() {
                break 'all Ok(());
            }
        }
        if !moved {
            break Ok(());
        }
        disk.flush()?;
    };
    disk.flush()?;
    result.map(|()| packed)
}

/// Claims a block, once nothing that was resolved before may still write to it.
fn begin<S: Storage>(disk: &Disk<S>, block: u64) -> Result<Option<Relocation>, DiskError> {
    loop {
        match disk.begin_relocation(block) {
            Ok(Some(relocation)) if !disk.is_settled(&relocation) => {
                disk.abort_relocation(relocation);
                return Ok(None);
            }
            Ok(relocation) => return Ok(relocation),
            Err(Stop::Needs(need)) => disk.provide(need)?,
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
}

fn copy<S: Storage>(disk: &Disk<S>, relocation: &Relocation, buf: &mut Vec<u8>) -> Result<(), DiskError> {
    let storage = disk.storage();
    let (from, to) = (relocation.from, relocation.to);
    // Others leave files that end within their last block.
    let len = storage.len().map_err(DiskError::storage("asking for the file's length"))?;
    let there = len.saturating_sub(from.offset).min(from.len);
    let mut done = 0;
    while done < there {
        let now = PIECE.min(there - done);
        buf.resize(now as usize, 0);
        storage.read_at(from.offset + done, buf).map_err(DiskError::storage("reading a block"))?;
        write(storage, to.offset + done, buf)?;
        done += now;
    }
    if there < to.len {
        let zeroed = storage.zero(to.offset + there, to.len - there);
        zeroed.map_err(DiskError::storage("writing zeroes"))?;
    }
    Ok(())
}

/// Writes a part of a block; what of it is zero becomes a hole, where the storage has such.
fn write(storage: &impl Storage, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
    let is_zero = |unit: &[u8]| unit.iter().all(|byte| *byte == 0);
    let mut start = 0;
    while start < bytes.len() {
        let mut units = bytes[start..].chunks(HOLE_UNIT);
        let zero = units.next().is_some_and(is_zero);
        let alike = 1 + units.take_while(|unit| is_zero(unit) == zero).count();
        let end = (start + alike * HOLE_UNIT).min(bytes.len());
        let (at, len) = (offset + start as u64, (end - start) as u64);
        let written = match zero {
            false => storage.write_at(at, &bytes[start..end]),
            true => match storage.punch(at, len) {
                Ok(false) => storage.zero(at, len),
                other => other.map(drop),
            },
        };
        written.map_err(DiskError::storage("writing a block"))?;
        start = end;
    }
    Ok(())
}
