//! Blocks that have been emptied part by part: they give their space up as one that is unmapped at once does.

use super::write::{Change, Claimed};
use super::{Disk, DiskState, Stop, WritePlan};
use crate::bitmap;
use crate::format::{BatEntry, BlockState};
use crate::metadata::DiskKind;
use crate::region::Span;
use crate::storage::Storage;
use crate::transition;

/// A block that is about to give its space up. It is claimed: reads find it where it is, writes wait.
#[derive(Debug)]
pub(crate) struct Emptied {
    plan: WritePlan,
    pub(crate) block: u64,
    /// Place of the block's bytes, as far as the disk reaches.
    pub(crate) at: Span,
    /// I/O that was resolved up to this generation may still write there.
    pub(super) since: u64,
}

impl<S: Storage> Disk<S> {
    /// Returns the place of a block that may give its space up once all of it is zero; of the last one as far as the
    /// disk reaches. `None`: it holds no space, or not all of it is in this file.
    pub(crate) fn removable(&self, block: u64) -> Result<Option<Span>, Stop> {
        if self.read_only {
            return Ok(None);
        }
        let mut state = self.state();
        let entry = self.unclaimed(&mut state, block)?;
        Ok(self.emptied_state(&mut state, block, entry)?.map(|_| self.bytes_of(block, entry)))
    }

    /// Claims a block that may give its space up, which [`removable`](Self::removable) has told. Then, in this order:
    /// [`has_settled`](Self::has_settled), the caller reads its bytes, and [`complete_emptied`](Self::complete_emptied)
    /// if they are zero; or [`abort_emptied`](Self::abort_emptied).
    pub(crate) fn begin_emptied(&self, block: u64) -> Result<Option<Emptied>, Stop> {
        let mut state = self.state();
        let state = &mut *state;
        state.check_alive()?;
        state.may_change()?;
        let before = self.unclaimed(state, block)?;
        let Some(after) = self.emptied_state(state, block, before)? else { return Ok(None) };
        let whole = Span { offset: before.offset(), len: self.geometry.block_size };
        let change = Change {
            block,
            before,
            after: BatEntry::new(after, 0),
            claimed: Some(Claimed { span: whole, anchored: true }),
            mark: None,
        };
        let mut plan = WritePlan::default();
        self.hold(state, &mut plan, change)?;
        state.claims.insert(block);
        Ok(Some(Emptied { plan, block, at: self.bytes_of(block, before), since: state.pins.now() }))
    }

    /// Returns `true` if all I/O has ended that was resolved before the block was claimed: only then is its content
    /// final.
    pub(crate) fn has_settled(&self, emptied: &Emptied) -> bool {
        self.state().pins.have_left(emptied.since)
    }

    /// The bytes are zero: the block becomes ZERO. Its space is free when a [`flush`](Self::flush) has made that
    /// durable.
    pub(crate) fn complete_emptied(&self, mut emptied: Emptied) {
        self.complete(&mut emptied.plan);
    }

    /// The block stays as it is.
    pub(crate) fn abort_emptied(&self, mut emptied: Emptied) {
        self.abort(&mut emptied.plan);
    }

    fn bytes_of(&self, block: u64, entry: BatEntry) -> Span {
        Span { offset: entry.offset(), len: self.geometry.block_len(block) }
    }

    fn emptied_state(
        &self,
        state: &mut DiskState,
        block: u64,
        entry: BatEntry,
    ) -> Result<Option<BlockState>, Stop> {
        let (kind, Some(now)) = (self.geometry.kind, entry.state()) else { return Ok(None) };
        let here = match (kind, now) {
            (DiskKind::Differencing, BlockState::PartiallyPresent) => self.has_all_sectors(state, block)?,
            _ => true,
        };
        Ok(transition::emptied(kind, now, here).filter(|_| entry.offset() != 0))
    }

    /// Returns `true` if a partially present block has every sector of the disk in this file.
    fn has_all_sectors(&self, state: &mut DiskState, block: u64) -> Result<bool, Stop> {
        let bitmap = state.entry(self.bitmap_place(self.geometry.chunk_of(block)))?;
        let first = self.geometry.first_bit(block);
        let bits = first..first + self.geometry.block_len(block) / self.geometry.sector;
        for (page, bits) in bitmap::pages(bitmap.offset(), bits) {
            let len = bits.end - bits.start;
            if bitmap::run(state.pages.get(page)?, bits) != (true, len) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
