//! Packing: a file becomes as short as what it holds.
//!
//! ```text
//!   metadata   sector bitmap blocks and regions move into the lowest holes   (closed file: one transaction a step)
//!   payload    the highest blocks move into the lowest holes                 (open disk: copy, flush, table, flush)
//!   end        the file is cut behind the last block                         (Disk::close)
//! ```
//!
//! The disk's contents do not change, and neither does its DataWriteGuid if it is opened with the one that it has. At
//! every step the file is whole: a caller that stops in between has a file that is packed in part, and begins again
//! where it was.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::disk::{Disk, Need, Relocation, Stop};
use crate::error::DiskError;
use crate::format::MIB;
use crate::storage::Storage;

/// Maximum number of blocks remembered from one look at the table: 1 MiB of memory.
const REMEMBERED: usize = 1 << 16;

/// Bytes moved between two flushes: what an interruption loses, and has to be done again.
const BETWEEN_FLUSHES: u64 = 1 << 30;

/// Bytes copied at a time.
const PIECE: u64 = 4 << 20;

/// Zeroes of a block stay holes in units of this, bytes: what file systems of hosts allocate.
const HOLE_UNIT: usize = 4096;

/// Progress of packing: what is done, and what is left.
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

/// Outcome for a block that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Lies lower now: bytes.
    Moved(u64),
    /// There is no hole below it, or it has no data any more.
    Stays,
    /// Stays where it was, for now: a write waited for it, or the caller did not want to go on.
    Yielded,
}

/// Moves one payload block into the lowest hole while the disk is used. Reads go on; writes to the block wait, for as
/// long as the current piece takes (1 MiB): then the block stays where it was. `pace` is told how many bytes were just
/// copied, and says how long to rest before it is asked again; zero to go on, `None` to give up.
///
/// # Errors
///
/// Those of the storage. The block stays where it was.
pub fn move_block<S: Storage>(
    disk: &Disk<S>,
    block: u64,
    pace: &mut dyn FnMut(u64) -> Option<Duration>,
) -> Result<Step, DiskError> {
    let relocation = loop {
        match disk.begin_relocation(block) {
            Ok(Some(relocation)) => break relocation,
            Ok(None) => return Ok(Step::Stays),
            // Somebody writes to it for the first time: it is in use.
            Err(Stop::Needs(Need::Block(_))) => return Ok(Step::Yielded),
            Err(Stop::Needs(need)) => disk.provide(need)?,
            Err(Stop::Failed(error)) => return Err(error),
        }
    };
    let len = relocation.to.len;
    match copy_beside(disk, &relocation, pace) {
        Ok(true) => {
            disk.complete_relocation(relocation);
            Ok(Step::Moved(len))
        }
        Ok(false) => {
            disk.abort_relocation(relocation);
            Ok(Step::Yielded)
        }
        Err(error) => {
            disk.abort_relocation(relocation);
            Err(error)
        }
    }
}

/// Copies a block to its new place beside other work: whether all of it.
fn copy_beside<S: Storage>(
    disk: &Disk<S>,
    relocation: &Relocation,
    pace: &mut dyn FnMut(u64) -> Option<Duration>,
) -> Result<bool, DiskError> {
    /// Interval of checks whether earlier writes have ended: the time of a few writes.
    const SETTLING: Duration = Duration::from_micros(200);
    while !disk.is_settled(relocation) {
        if pace(0).is_none() || disk.rest(relocation, SETTLING) {
            return Ok(false);
        }
    }
    // The file has all of it: the first change has lengthened one that ended within its last block, behind the disk.
    let storage = &disk.storage;
    let (from, to) = (relocation.from, relocation.to);
    let moving = DiskError::storage("moving a block");
    if storage.share(from.offset, to.offset, from.len).map_err(moving)? {
        return Ok(true);
    }
    let mut buf = vec![0; MIB.min(from.len) as usize];
    let mut done = 0;
    while done < from.len {
        let piece = &mut buf[..MIB.min(from.len - done) as usize];
        storage.read_at(from.offset + done, piece).map_err(DiskError::storage("reading a block"))?;
        write(storage, to.offset + done, piece)?;
        done += piece.len() as u64;
        let mut copied = piece.len() as u64;
        loop {
            match pace(copied) {
                None => return Ok(false),
                // A look at who waits, at least.
                Some(time) if disk.rest(relocation, time) => return Ok(false),
                Some(Duration::ZERO) => break,
                Some(_) => copied = 0,
            }
        }
    }
    Ok(true)
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
    let storage = &disk.storage;
    let (from, to) = (relocation.from, relocation.to);
    let shared = storage.share(from.offset, to.offset, from.len);
    let mut done = if shared.map_err(DiskError::storage("moving a block"))? { from.len } else { 0 };
    while done < from.len {
        let now = PIECE.min(from.len - done);
        buf.resize(now as usize, 0);
        storage.read_at(from.offset + done, buf).map_err(DiskError::storage("reading a block"))?;
        write(storage, to.offset + done, buf)?;
        done += now;
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
