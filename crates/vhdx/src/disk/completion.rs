//! Completion: blocks that a differencing disk does not have whole get the rest of their bytes from its parent, so that
//! the parent is not needed any more.

use std::ops::Range;
use std::time::Duration;

use super::write::{Change, Claimed, Part};
use super::{Disk, Fill, Stop, WritePlan};
use crate::bitmap;
use crate::error::DiskError;
use crate::format::{BatEntry, BlockState};
use crate::metadata::DiskKind;
use crate::region::Span;
use crate::storage::Storage;

/// Number of waits, and length of each, for writes into a block that began before it was claimed: a disk's slowest
/// ordinary answer.
const SETTLE_TRIES: u32 = 50;
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// Result of [`Disk::complete_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The block was given so many bytes, and is all in this file.
    Written(u64),
    /// It lacked nothing.
    Nothing,
    /// A write waits for the block, or does not end: it is as it was, and can be tried again.
    Yielded,
}

/// A block that is about to get what it lacks. It is claimed: reads go on, writes wait.
struct Completion {
    plan: WritePlan,
    /// Pieces of the file to write, and the bytes of the block that belong there.
    pieces: Vec<Piece>,
    /// Pieces of the file that become zero.
    zeroes: Vec<Span>,
    /// Of a block that was there in part: writes that were resolved up to this generation may still go into it. Its
    /// pieces are known when they have ended.
    since: Option<u64>,
}

/// Offset in the file, and the bytes of the block that belong there.
type Piece = (u64, Range<u64>);

impl<S: Storage> Disk<S> {
    /// Returns the first block from `block` on of which the parent may have bytes; `None`: there is none.
    ///
    /// # Errors
    ///
    /// Those of the storage.
    pub fn next_incomplete(&self, block: u64) -> Result<Option<u64>, DiskError> {
        self.next_block(block, lacks)
    }

    /// Returns the first block from `block` on that is in this file in part; `None`: there is none.
    ///
    /// # Errors
    ///
    /// Those of the storage.
    pub fn next_partial(&self, block: u64) -> Result<Option<u64>, DiskError> {
        self.next_block(block, |entry| entry.state() == Some(BlockState::PartiallyPresent))
    }

    fn next_block(&self, block: u64, is_it: impl Fn(BatEntry) -> bool) -> Result<Option<u64>, DiskError> {
        if self.geometry.kind != DiskKind::Differencing {
            return Ok(None);
        }
        let mut block = block;
        while block < self.geometry.blocks {
            let in_chunk = self.geometry.chunk_ratio - block % self.geometry.chunk_ratio;
            let most = in_chunk.min(self.geometry.blocks - block);
            // Runs of blocks alike are taken at once.
            let found =
                self.state().pages.entries(self.payload_place(block), most, |entry| match entry.state() {
                    Some(BlockState::FullyPresent) => Some(self.geometry.block_size),
                    Some(BlockState::PartiallyPresent) => None,
                    _ => Some(0),
                });
            match found {
                Ok((entry, _)) if is_it(entry) => return Ok(Some(block)),
                Ok((_, alike)) => block += alike.max(1),
                Err(miss) => self.load(miss.0)?,
            }
        }
        Ok(None)
    }

    /// Gives a block what it lacks of `data`, which is all that the parent has there; what the file has of it stays.
    /// From then on the block does not need the parent. It is durable after [`flush`](Self::flush). `None`: the parent
    /// has zeroes there, and a block that is not in this file at all stays so.
    ///
    /// Writes into the block wait meanwhile, for as long as it takes to write it.
    ///
    /// # Errors
    ///
    /// Those of the storage: the block is as it was.
    pub fn complete_block(&self, block: u64, data: Option<&[u8]>) -> Result<Completed, DiskError> {
        let len = self.geometry.block_len(block);
        if let Some(data) = data.filter(|data| data.len() as u64 != len) {
            let (offset, size) = (block * self.geometry.block_size, self.geometry.disk_size);
            return Err(DiskError::OutOfRange { offset, len: data.len() as u64, size });
        }
        let Some(mut completion) = self.resolved(|| self.begin_completion(block, data.is_none()))? else {
            return Ok(Completed::Nothing);
        };
        if let Some(since) = completion.since {
            if !self.settles(block, since) {
                self.abort_completion(completion);
                return Ok(Completed::Yielded);
            }
            match self.resolved(|| self.missing(block)) {
                Ok(Some(pieces)) => completion.pieces = pieces,
                Ok(None) => {
                    self.abort_completion(completion);
                    return Ok(Completed::Nothing);
                }
                Err(error) => {
                    self.abort_completion(completion);
                    return Err(error);
                }
            }
        }
        let mut written = 0;
        let result = completion.pieces.iter().try_for_each(|(offset, part)| {
            let len = part.end - part.start;
            written += len;
            match data {
                Some(data) => self.storage.write_at(*offset, &data[part.start as usize..part.end as usize]),
                None => self.storage.zero(*offset, len),
            }
        });
        let result = result.and_then(|()| {
            completion.zeroes.iter().try_for_each(|span| self.storage.zero(span.offset, span.len))
        });
        match result {
            Ok(()) => {
                let mut plan = completion.plan;
                self.complete(&mut plan);
                Ok(Completed::Written(written))
            }
            Err(error) => {
                self.abort_completion(completion);
                Err(DiskError::storage("writing")(error))
            }
        }
    }

    fn abort_completion(&self, mut completion: Completion) {
        self.abort(&mut completion.plan);
    }

    /// Waits until no write goes into a claimed block that was resolved up to a generation. `false`: a write waits for
    /// the block, or one does not end.
    fn settles(&self, block: u64, since: u64) -> bool {
        for _ in 0..SETTLE_TRIES {
            if self.state().pins.have_left(since) {
                return true;
            }
            if self.rest_on(block, SETTLE_PAUSE) {
                return false;
            }
        }
        self.state().pins.have_left(since)
    }

    /// Claims a block that lacks something.
    fn begin_completion(&self, block: u64, is_zero: bool) -> Result<Option<Completion>, Stop> {
        if self.read_only {
            return Err(DiskError::ReadOnly.into());
        }
        let mut state = self.state();
        let state = &mut *state;
        state.check_alive()?;
        state.may_change()?;
        let before = self.unclaimed(state, block)?;
        if self.geometry.kind != DiskKind::Differencing || !lacks(before) {
            return Ok(None);
        }
        let (mut plan, mut pieces, mut zeroes) = (WritePlan::default(), Vec::new(), Vec::new());
        if before.state() == Some(BlockState::NotPresent) {
            if is_zero {
                return Ok(None);
            }
            let len = self.geometry.block_len(block);
            let part = Part { block, within: 0, len, at: 0, whole: true };
            self.allocate(state, part, before, BlockState::FullyPresent, Some(Fill::Data(0)), &mut plan)?;
            for segment in plan.segments() {
                match segment.fill {
                    Fill::Data(from) => pieces.push((segment.offset, from..from + segment.len)),
                    Fill::Zeroes | Fill::Hole => {
                        zeroes.push(Span { offset: segment.offset, len: segment.len });
                    }
                }
            }
            // What writes to a block that is not there is known by its claim.
            return Ok(Some(Completion { plan, pieces, zeroes, since: None }));
        }
        let change = Change {
            block,
            before,
            after: BatEntry::new(BlockState::FullyPresent, before.offset()),
            claimed: Some(Claimed {
                span: Span { offset: before.offset(), len: self.geometry.block_size },
                anchored: true,
            }),
            mark: None,
        };
        self.hold(state, &mut plan, change)?;
        state.claims.insert(block);
        let since = Some(state.pins.now());
        Ok(Some(Completion { plan, pieces, zeroes, since }))
    }

    /// The sectors that a partially present block does not have: where they belong in the file, and in the block.
    /// `None`: it has come to have all. What is asked before the writes into it have ended is not right: those have yet
    /// to mark what they write.
    fn missing(&self, block: u64) -> Result<Option<Vec<Piece>>, Stop> {
        let mut state = self.state();
        let state = &mut *state;
        let entry = state.entry(self.payload_place(block))?;
        if entry.state() != Some(BlockState::PartiallyPresent) {
            return Ok(None);
        }
        let bitmap = state.entry(self.bitmap_place(self.geometry.chunk_of(block)))?;
        let sector = self.geometry.sector;
        let first = self.geometry.first_bit(block);
        let mut missing: Vec<Piece> = Vec::new();
        let mut at = 0;
        for (page, mut bits) in
            bitmap::pages(bitmap.offset(), first..first + self.geometry.block_len(block) / sector)
        {
            let bytes = state.pages.get(page)?;
            while !bits.is_empty() {
                let (present, count) = bitmap::run(bytes, bits.clone());
                let len = count * sector;
                match missing.last_mut() {
                    _ if present => {}
                    Some((_, last)) if last.end == at => last.end += len,
                    _ => missing.push((entry.offset() + at, at..at + len)),
                }
                bits.start += count;
                at += len;
            }
        }
        Ok(Some(missing))
    }
}

/// Returns `true` if the parent may have bytes of the block.
fn lacks(entry: BatEntry) -> bool {
    matches!(entry.state(), Some(BlockState::NotPresent | BlockState::PartiallyPresent))
}
