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

use crate::disk::{Disk, Need, Placed, Relocation, Stop};
use crate::error::DiskError;
use crate::format::MIB;
use crate::storage::Storage;

/// Maximum number of blocks remembered from one look at the table: 1 MiB of memory.
const REMEMBERED: usize = 1 << 16;

/// Bytes copied between two flushes: what an interruption loses, and has to be done again. What the storage shares is
/// not counted: it is shared again in no time.
const BETWEEN_FLUSHES: u64 = 1 << 30;

/// Bytes of blocks that are moved in the order in which they lie, so that neighbours stay neighbours. An interruption
/// leaves the file with an end behind those that are left.
const BATCH: u64 = 1 << 30;

/// Bytes of neighbours that move together. Sharing takes about the same time for any length (XFS on a loop device: 25
/// to 40 µs for 1 MiB, 30 µs for 1 GiB); copying a run takes a second on a slow disk, and the caller hears nothing
/// meanwhile.
const RUN: u64 = 128 << 20;

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
/// `progress` is called after each run of neighbours, and may end it.
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
    let mut packing = Packing { disk, progress, packed: Packed::default(), since_flush: 0, buf: Vec::new() };
    let result = packing.all();
    let packed = packing.packed;
    disk.flush()?;
    result.map(|_| packed)
}

/// Packing under way.
struct Packing<'a, S> {
    disk: &'a Disk<S>,
    progress: &'a mut dyn FnMut(Packed) -> ControlFlow<()>,
    packed: Packed,
    /// Bytes copied since the last flush.
    since_flush: u64,
    buf: Vec<u8>,
}

/// Blocks that are neighbours before and after.
#[derive(Default)]
struct Run {
    relocations: Vec<Relocation>,
}

impl Run {
    fn len(&self) -> u64 {
        self.relocations.iter().map(|relocation| relocation.from.len).sum()
    }

    fn is_continued_by(&self, next: &Relocation) -> bool {
        self.relocations.last().is_none_or(|last| {
            last.from.end() == next.from.offset && last.to.end() == next.to.offset && self.len() < RUN
        })
    }
}

impl<S: Storage> Packing<'_, S> {
    fn all(&mut self) -> Result<ControlFlow<()>, DiskError> {
        let block_size = self.disk.geometry.block_size;
        loop {
            // A packed file ends here: only what lies behind it has to move.
            let end = self.disk.taken();
            let mut highest = self.disk.highest_blocks(end.saturating_sub(block_size - MIB), REMEMBERED)?;
            let moved_before = self.packed.moved;
            let mut left = highest.len();
            for batch in highest.chunks_mut((BATCH / block_size).max(1) as usize) {
                left -= batch.len();
                batch.sort_unstable();
                if self.batch(batch, left as u64 * block_size)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if self.packed.moved == moved_before {
                return Ok(ControlFlow::Continue(()));
            }
            self.flush()?;
        }
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        self.since_flush = 0;
        self.disk.flush()
    }

    /// Moves blocks in this order; `behind` is what is left after them, bytes.
    fn batch(&mut self, batch: &[Placed], behind: u64) -> Result<ControlFlow<()>, DiskError> {
        let mut run = Run::default();
        for (at, placed) in batch.iter().enumerate() {
            let left = behind + (batch.len() - at) as u64 * self.disk.geometry.block_size;
            let relocation = loop {
                match self.disk.begin_relocation(placed.block) {
                    // Something that was resolved before may still write to it.
                    Ok(Some(relocation)) if !self.disk.is_settled(&relocation) => {
                        self.disk.abort_relocation(relocation);
                        break None;
                    }
                    Ok(relocation) => break relocation,
                    Err(stop) => {
                        // With no block claimed: what is needed may be a commit, or room for another page.
                        if self.finish(&mut run, left)?.is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                        match stop {
                            Stop::Needs(need) => self.disk.provide(need)?,
                            Stop::Failed(error) => return Err(error),
                        }
                    }
                }
            };
            let Some(relocation) = relocation else { continue };
            if !run.is_continued_by(&relocation) && self.finish(&mut run, left)?.is_break() {
                self.disk.abort_relocation(relocation);
                return Ok(ControlFlow::Break(()));
            }
            run.relocations.push(relocation);
        }
        self.finish(&mut run, behind)
    }

    /// Copies a run to its new place, after which its blocks are there.
    fn finish(&mut self, run: &mut Run, left: u64) -> Result<ControlFlow<()>, DiskError> {
        let len = run.len();
        let Some((from, to)) = run.relocations.first().map(|first| (first.from.offset, first.to.offset))
        else {
            return Ok(ControlFlow::Continue(()));
        };
        let copied = self.copy(from, to, len);
        for relocation in run.relocations.drain(..) {
            match copied {
                Ok(_) => self.disk.complete_relocation(relocation),
                Err(_) => self.disk.abort_relocation(relocation),
            }
        }
        self.since_flush += copied?;
        self.packed.moved += len;
        self.packed.left = left;
        if self.since_flush >= BETWEEN_FLUSHES {
            self.flush()?;
        }
        Ok((self.progress)(self.packed))
    }

    /// Copies bytes to another place of the file, or has the storage share them: the bytes copied.
    fn copy(&mut self, from: u64, to: u64, len: u64) -> Result<u64, DiskError> {
        let storage = &self.disk.storage;
        if storage.share(from, to, len).map_err(DiskError::storage("moving a block"))? {
            return Ok(0);
        }
        let mut done = 0;
        while done < len {
            let now = PIECE.min(len - done);
            self.buf.resize(now as usize, 0);
            storage.read_at(from + done, &mut self.buf).map_err(DiskError::storage("reading a block"))?;
            write(storage, to + done, &self.buf)?;
            done += now;
        }
        Ok(len)
    }
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
