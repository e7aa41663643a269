//! Relocation: payload blocks move to lower places of the file, so that its end becomes free.

use std::sync::PoisonError;
use std::time::Duration;

use super::write::{Change, Claimed};
use super::{Disk, Stop, WritePlan};
use crate::error::DiskError;
use crate::format::{BatEntry, BlockState, PAGE, PAGE_U64};
use crate::region::Span;
use crate::storage::Storage;

/// A relocation under way. The block is claimed: reads find it in its old place, writes wait.
#[derive(Debug)]
pub struct Relocation {
    plan: WritePlan,
    block: u64,
    /// Present place of the block.
    pub from: Span,
    /// New place of the block.
    pub to: Span,
    /// I/O that was resolved up to this generation may still write to the old place.
    since: u64,
}

/// A present payload block, and where in the file it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The block's number.
    pub block: u64,
}

impl<S: Storage> Disk<S> {
    /// Takes the lowest hole of the file for a block, if it lies below the block's own place. `None`: there is nothing
    /// to move. Then, in this order: [`is_settled`](Self::is_settled), the caller copies the bytes, and
    /// [`complete_relocation`](Self::complete_relocation); or [`abort_relocation`](Self::abort_relocation).
    ///
    /// A block without data that still holds space (UNMAPPED, UNDEFINED) gives it up instead.
    pub fn begin_relocation(&self, block: u64) -> Result<Option<Relocation>, Stop> {
        if self.read_only {
            return Err(DiskError::ReadOnly.into());
        }
        let mut state = self.state();
        let state = &mut *state;
        state.check_alive()?;
        state.may_change()?;
        let before = self.unclaimed(state, block)?;
        let from = Span { offset: before.offset(), len: self.geometry.block_size };
        let now = match before.state() {
            Some(now @ (BlockState::FullyPresent | BlockState::PartiallyPresent)) => now,
            Some(now @ (BlockState::Unmapped | BlockState::Undefined)) if from.offset != 0 => {
                state.pages.set_entry(self.payload_place(block), BatEntry::new(now, 0))?;
                state.freed.push(from);
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let Some((to, zero)) = state.space.allocate_block() else { return Ok(None) };
        let change = Change {
            block,
            before,
            after: BatEntry::new(now, to.offset),
            claimed: Some(Claimed { span: to, anchored: false }),
            mark: None,
        };
        let mut plan = WritePlan::default();
        if to.offset > from.offset {
            state.space.release(to, zero);
            return Ok(None);
        }
        if let Err(stop) = self.hold(state, &mut plan, change) {
            state.space.release(to, zero);
            return Err(stop);
        }
        state.claims.insert(block);
        Ok(Some(Relocation { plan, block, from, to, since: state.pins.now() }))
    }

    /// Returns `true` if all I/O has ended that was resolved before the block was claimed: only then does the old place
    /// hold what has to be copied.
    pub fn is_settled(&self, relocation: &Relocation) -> bool {
        self.state().pins.have_left(relocation.since)
    }

    /// Waits for as long as `time`, and no longer than until a write waits for the block: whether one does.
    pub fn rest(&self, relocation: &Relocation, time: Duration) -> bool {
        self.rest_on(relocation.block, time)
    }

    /// The same of any claimed block.
    pub(crate) fn rest_on(&self, block: u64, time: Duration) -> bool {
        let state = self.state();
        let waited =
            self.claim_awaited.wait_timeout_while(state, time, |state| !state.awaited.contains_key(&block));
        waited.unwrap_or_else(PoisonError::into_inner).0.awaited.contains_key(&block)
    }

    /// The bytes are in the new place: from now on the block is there. The old place is free when a
    /// [`flush`](Self::flush) has made that durable.
    pub fn complete_relocation(&self, mut relocation: Relocation) {
        self.complete(&mut relocation.plan);
    }

    /// The block stays where it was.
    pub fn abort_relocation(&self, mut relocation: Relocation) {
        self.abort(&mut relocation.plan);
    }

    /// The `most` highest present blocks that lie at `above` bytes of the file or behind it, the highest first. Reads
    /// the whole table.
    pub fn highest_blocks(&self, above: u64, most: usize) -> Result<Vec<Placed>, DiskError> {
        const ENTRY: u64 = size_of::<BatEntry>() as u64;
        // A heap whose least element goes first.
        let mut highest = std::collections::BinaryHeap::new();
        let ratio = self.geometry.chunk_ratio;
        let mut index = 0;
        while index < self.geometry.entries() {
            let (page, at) = crate::geometry::entry_place(self.regions.bat.offset, index);
            let count = ((PAGE_U64 - at as u64) / ENTRY).min(self.geometry.entries() - index);
            // A page that is not in memory is not brought there: what others use would have to leave. What is read may
            // be older than what has just left; a relocation looks again.
            let there = self.state().pages.get(page).copied();
            let bytes = match there {
                Ok(bytes) => bytes,
                Err(_) => {
                    let mut bytes = [0; PAGE];
                    self.view().read_at(page, &mut bytes).map_err(DiskError::storage("reading metadata"))?;
                    bytes
                }
            };
            let entries = bytes[at..at + (count * ENTRY) as usize].as_chunks::<8>().0;
            for (index, entry) in (index..).zip(entries) {
                let entry = BatEntry(u64::from_le_bytes(*entry));
                // Every entry behind those of a chunk is its bitmap block's.
                if entry.offset() < above || entry.offset() == 0 || index % (ratio + 1) == ratio {
                    continue;
                }
                let block = index - index / (ratio + 1);
                let holds = !matches!(entry.state(), None | Some(BlockState::NotPresent | BlockState::Zero));
                if holds && block < self.geometry.blocks {
                    highest.push(std::cmp::Reverse(Placed { offset: entry.offset(), block }));
                    if highest.len() > most {
                        highest.pop();
                    }
                }
            }
            index += count;
        }
        Ok(highest.into_sorted_vec().into_iter().map(|placed| placed.0).collect())
    }

    /// Bytes of the file that its structures and blocks take.
    pub fn taken(&self) -> u64 {
        self.state().space.taken()
    }

    /// Bytes of the file that the block table's region takes.
    pub fn table_len(&self) -> u64 {
        self.regions.bat.len
    }
}
