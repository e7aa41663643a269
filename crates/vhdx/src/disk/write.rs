//! Writes and discards: where bytes go, and what becomes visible when they are there.

use std::ops::Range;

use super::{Disk, DiskState, Need, Stop};
use crate::bitmap;
use crate::error::DiskError;
use crate::format::{BatEntry, BlockState, MIB, PAGE, PAGE_U64};
use crate::geometry::Geometry;
use crate::metadata::DiskKind;
use crate::pins::Pin;
use crate::region::Span;
use crate::storage::Storage;
use crate::transition::{self, Discard, DiscardMode, Write};

/// Content to write to a piece of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The bytes of the request from here on.
    Data(u64),
    /// Zeroes, and what is behind them must stay allocated.
    Zeroes,
    /// Zeroes, for which a hole will do.
    Hole,
}

/// A piece of the file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSegment {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Content to write.
    pub fill: Fill,
}

/// A write or discard under way. Reuse it for the next one: it keeps its memory.
#[derive(Debug, Default)]
pub struct WritePlan {
    segments: Vec<WriteSegment>,
    changes: Vec<Change>,
    pin: Option<Pin>,
}

impl WritePlan {
    /// Segments to write, in any order.
    pub fn segments(&self) -> &[WriteSegment] {
        &self.segments
    }
}

/// Change of a block when its data is written.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) block: u64,
    /// The entry as it was: if a discard has come in between, the write was before it, and nothing is left to do.
    pub(super) before: BatEntry,
    pub(super) after: BatEntry,
    /// Space that the write has taken.
    pub(super) claimed: Option<Claimed>,
    /// Sectors to mark: the pages of the bitmap, and their bits.
    pub(super) mark: Option<Mark>,
}

#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) span: Span,
    /// The block's own space from before, which an UNMAPPED or UNDEFINED entry has kept.
    pub(super) anchored: bool,
}

#[derive(Debug)]
pub(super) struct Mark {
    /// Offset of the bitmap block in the file.
    bitmap: u64,
    /// Bits of the sectors.
    bits: Range<u64>,
    /// Bits of the whole block, to be cleared before.
    clear: Option<Range<u64>>,
}

impl Mark {
    fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        bitmap::pages(self.bitmap, self.clear.clone().unwrap_or(self.bits.clone())).map(|(page, _)| page)
    }
}

/// One block's part of a request.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) block: u64,
    pub(super) within: u64,
    pub(super) len: u64,
    /// Offset in the request.
    pub(super) at: u64,
    pub(super) whole: bool,
}

fn parts(geometry: Geometry, offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (block, within) = (at / geometry.block_size, at % geometry.block_size);
            let len = (end - at).min(geometry.block_size - within);
            let part = Part { block, within, len, at: at - offset, whole: len == geometry.block_len(block) };
            at += len;
            part
        })
    })
}

impl<S: Storage> Disk<S> {
    /// Says where the bytes of a write go. [`complete`](Self::complete) or [`abort`](Self::abort) must follow.
    pub fn begin_write(&self, offset: u64, len: u64, plan: &mut WritePlan) -> Result<(), Stop> {
        self.begin(offset, len, plan, Self::write_part)
    }

    /// Gives a range up. What concerns whole blocks has happened when this returns; what is to be zeroed in the file is
    /// in `plan`, and [`complete`](Self::complete) or [`abort`](Self::abort) must follow.
    ///
    /// The lock on the disk's state is held for all blocks of the range, and all pages of the table that lead to them
    /// change at once: a caller takes long ranges a part at a time ([`Chain::discard`](crate::Chain::discard)).
    pub fn begin_discard(
        &self,
        offset: u64,
        len: u64,
        mode: DiscardMode,
        plan: &mut WritePlan,
    ) -> Result<(), Stop> {
        self.begin(offset, len, plan, |disk, state, part, plan| disk.discard_part(state, part, mode, plan))
    }

    /// The pieces of a plan are written: what they allocated becomes visible. It is durable after
    /// [`flush`](Self::flush).
    pub fn complete(&self, plan: &mut WritePlan) {
        let mut state = self.state();
        for change in plan.changes.drain(..) {
            let place = self.payload_place(change.block);
            self.finish(&mut state, &change);
            // The pages were held since the write began, so none of this can miss.
            if state.entry(place).ok() != Some(change.before) {
                // Of a claimed block that was a write of all of it, which began before: the block is where it was.
                if let Some(Claimed { span, anchored: false }) = change.claimed {
                    state.space.release(span, false);
                }
                continue;
            }
            if let Some(mark) = &change.mark {
                let cleared = mark.clear.clone().into_iter().map(|bits| (bits, false));
                for (bits, value) in cleared.chain([(mark.bits.clone(), true)]) {
                    for (page, bits) in bitmap::pages(mark.bitmap, bits) {
                        if let Ok(bytes) = state.pages.get_mut(page) {
                            bitmap::fill(bytes, bits, value);
                        }
                    }
                }
            }
            if change.after != change.before {
                let _ = state.pages.set_entry(place, change.after);
                // Only a relocation gives a block that has data another place.
                if has_data(change.before) && change.before.offset() != change.after.offset() {
                    state.freed.push(Span { offset: change.before.offset(), len: self.geometry.block_size });
                }
            }
        }
        self.end(&mut state, plan);
    }

    /// The pieces of a plan were not written, or not all of them: what was allocated for them is free again. Sectors
    /// that were in the file before may have old or new contents.
    pub fn abort(&self, plan: &mut WritePlan) {
        self.undo(&mut self.state(), plan);
    }

    fn begin(
        &self,
        offset: u64,
        len: u64,
        plan: &mut WritePlan,
        mut each: impl FnMut(&Self, &mut DiskState, Part, &mut WritePlan) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if self.read_only {
            return Err(DiskError::ReadOnly.into());
        }
        self.check_range(offset, len)?;
        let mut state = self.state();
        state.check_alive()?;
        self.undo(&mut state, plan);
        state.may_change()?;
        for part in parts(self.geometry, offset, len) {
            if let Err(stop) = each(self, &mut state, part, plan) {
                self.undo(&mut state, plan);
                return Err(stop);
            }
        }
        plan.pin = Some(state.pins.enter());
        Ok(())
    }

    fn write_part(&self, state: &mut DiskState, part: Part, plan: &mut WritePlan) -> Result<(), Stop> {
        let entry = self.unclaimed(state, part.block)?;
        let old =
            entry.state().ok_or_else(|| DiskError::Failed(format!("block {} has no state", part.block)))?;
        let data = Fill::Data(part.at);
        match transition::write(self.geometry.kind, old, part.whole) {
            Write::InPlace => self.in_place(part, entry, data, plan),
            Write::InPlaceMark => return self.mark(state, part, entry, data, plan),
            Write::InPlaceFill => {
                let after = BatEntry::new(BlockState::FullyPresent, entry.offset());
                self.hold(
                    state,
                    plan,
                    Change { block: part.block, before: entry, after, claimed: None, mark: None },
                )?;
                self.in_place(part, entry, data, plan);
            }
            Write::Allocate => {
                return self.allocate(state, part, entry, BlockState::FullyPresent, Some(data), plan);
            }
            Write::AllocatePart => {
                return self.allocate(state, part, entry, BlockState::PartiallyPresent, Some(data), plan);
            }
        }
        Ok(())
    }

    fn discard_part(
        &self,
        state: &mut DiskState,
        part: Part,
        mode: DiscardMode,
        plan: &mut WritePlan,
    ) -> Result<(), Stop> {
        let entry = self.unclaimed(state, part.block)?;
        let old =
            entry.state().ok_or_else(|| DiskError::Failed(format!("block {} has no state", part.block)))?;
        let keep = mode == DiscardMode::ZeroKeepSpace || self.geometry.kind == DiskKind::Fixed;
        let fill = if keep { Fill::Zeroes } else { Fill::Hole };
        match transition::discard(self.geometry.kind, old, mode, part.whole) {
            Discard::Nothing => {}
            Discard::Become(new) => {
                state.pages.set_entry(self.payload_place(part.block), BatEntry::new(new, 0))?;
                let held = match old {
                    BlockState::NotPresent | BlockState::Zero => false,
                    _ => entry.offset() != 0,
                };
                if held {
                    state.freed.push(Span { offset: entry.offset(), len: self.geometry.block_size });
                }
            }
            Discard::ZeroInPlace => self.in_place(part, entry, fill, plan),
            Discard::ZeroInPlaceMark => return self.mark(state, part, entry, fill, plan),
            Discard::AllocatePart => {
                return self.allocate(state, part, entry, BlockState::PartiallyPresent, None, plan);
            }
        }
        Ok(())
    }

    /// The block's entry, once no other write allocates it.
    pub(super) fn unclaimed(&self, state: &mut DiskState, block: u64) -> Result<BatEntry, Stop> {
        if state.claims.contains(&block) {
            return Err(Stop::Needs(Need::Block(block)));
        }
        Ok(state.entry(self.payload_place(block))?)
    }

    fn in_place(&self, part: Part, entry: BatEntry, fill: Fill, plan: &mut WritePlan) {
        plan.segments.push(WriteSegment { offset: entry.offset() + part.within, len: part.len, fill });
    }

    fn mark(
        &self,
        state: &mut DiskState,
        part: Part,
        entry: BatEntry,
        fill: Fill,
        plan: &mut WritePlan,
    ) -> Result<(), Stop> {
        let bitmap = state.entry(self.bitmap_place(self.geometry.chunk_of(part.block)))?;
        let mark = Mark { bitmap: bitmap.offset(), bits: self.bits(part), clear: None };
        // In a block that is written over and over the sectors are there already: no metadata changes.
        let mut present = true;
        for (page, bits) in bitmap::pages(mark.bitmap, mark.bits.clone()) {
            let len = bits.end - bits.start;
            present &= bitmap::run(state.pages.get(page)?, bits) == (true, len);
        }
        if !present {
            let change =
                Change { block: part.block, before: entry, after: entry, claimed: None, mark: Some(mark) };
            self.hold(state, plan, change)?;
        }
        self.in_place(part, entry, fill, plan);
        Ok(())
    }

    /// Takes space for a block. `data` is what is written to the part; without it, zeroes are.
    pub(super) fn allocate(
        &self,
        state: &mut DiskState,
        part: Part,
        entry: BatEntry,
        to: BlockState,
        data: Option<Fill>,
        plan: &mut WritePlan,
    ) -> Result<(), Stop> {
        let mark = match to {
            BlockState::PartiallyPresent => Some(self.bitmap_for(state, part)?),
            _ => None,
        };
        let kept = matches!(entry.state(), Some(BlockState::Undefined | BlockState::Unmapped))
            && entry.offset() != 0;
        let (span, zero) = match kept {
            true => (Span { offset: entry.offset(), len: self.geometry.block_size }, false),
            false => state.space.allocate_block().ok_or(Stop::Needs(Need::Space(state.file_len)))?,
        };
        let change = Change {
            block: part.block,
            before: entry,
            after: BatEntry::new(to, span.offset),
            claimed: Some(Claimed { span, anchored: kept }),
            mark,
        };
        if let Err(miss) = self.hold_pages(state, &change) {
            if !kept {
                state.space.release(span, zero);
            }
            return Err(miss);
        }
        state.claims.insert(part.block);
        plan.changes.push(change);
        let mut push = |from: u64, to: u64, fill| {
            if from < to {
                plan.segments.push(WriteSegment { offset: span.offset + from, len: to - from, fill });
            }
        };
        let (from, until) = (part.within, part.within + part.len);
        // What is not written must not show what the space held before: all of it becomes zero, also behind the end of
        // the disk, which may grow. Of a partially present block the bitmap hides it.
        let all = !zero && to != BlockState::PartiallyPresent;
        if all {
            push(0, from, Fill::Zeroes);
        }
        match data {
            Some(fill) => push(from, until, fill),
            None if !zero => push(from, until, Fill::Zeroes),
            None => {}
        }
        if all {
            push(until, self.geometry.block_size, Fill::Zeroes);
        }
        Ok(())
    }

    /// The sector bitmap block of a part's chunk, allocated if there is none yet.
    fn bitmap_for(&self, state: &mut DiskState, part: Part) -> Result<Mark, Stop> {
        let place = self.bitmap_place(self.geometry.chunk_of(part.block));
        let entry = state.entry(place)?;
        let bitmap = match entry.state() {
            Some(BlockState::FullyPresent) => entry.offset(),
            _ => {
                let span = state.space.allocate_bitmap().ok_or(Stop::Needs(Need::Space(state.file_len)))?;
                state.pages.set_entry(place, BatEntry::new(BlockState::FullyPresent, span.offset))?;
                state.fresh_bitmaps.insert(span.offset);
                state.new_bitmaps.push(span.offset);
                span.offset
            }
        };
        let first = self.geometry.first_bit(part.block);
        let clear = Some(first..first + self.geometry.bits_per_block());
        let mark = Mark { bitmap, bits: self.bits(part), clear };
        for page in mark.pages() {
            if state.is_fresh(page) {
                state.pages.insert(page, Box::new([0; PAGE]));
            }
            state.pages.get(page)?;
        }
        Ok(mark)
    }

    fn bits(&self, part: Part) -> Range<u64> {
        let first = self.geometry.first_bit(part.block) + part.within / self.geometry.sector;
        first..first + part.len / self.geometry.sector
    }

    pub(super) fn hold(
        &self,
        state: &mut DiskState,
        plan: &mut WritePlan,
        change: Change,
    ) -> Result<(), Stop> {
        self.hold_pages(state, &change)?;
        plan.changes.push(change);
        Ok(())
    }

    fn changed_pages(&self, change: &Change) -> impl Iterator<Item = u64> + use<S> {
        let entry = self.payload_place(change.block).0;
        change.mark.as_ref().map(Mark::pages).into_iter().flatten().chain([entry])
    }

    fn hold_pages(&self, state: &mut DiskState, change: &Change) -> Result<(), Stop> {
        for (held, page) in self.changed_pages(change).enumerate() {
            if let Err(miss) = state.pages.hold(page) {
                self.changed_pages(change).take(held).for_each(|page| state.pages.unhold(page));
                return Err(miss.into());
            }
        }
        Ok(())
    }

    /// Gives the pages and the claim of a change back.
    fn finish(&self, state: &mut DiskState, change: &Change) {
        self.changed_pages(change).for_each(|page| state.pages.unhold(page));
        if change.claimed.is_some() {
            state.claims.remove(&change.block);
        }
    }

    fn undo(&self, state: &mut DiskState, plan: &mut WritePlan) {
        for change in plan.changes.drain(..) {
            self.finish(state, &change);
            if let Some(Claimed { span, anchored: false }) = change.claimed {
                state.space.release(span, false);
            }
        }
        self.end(state, plan);
    }

    fn end(&self, state: &mut DiskState, plan: &mut WritePlan) {
        plan.segments.clear();
        if let Some(pin) = plan.pin.take() {
            state.pins.leave(pin);
        }
        // A system call, also without a waiter: each write would pay for two of them.
        if !state.awaited.is_empty() {
            self.claim_ended.notify_all();
        }
    }
}

fn has_data(entry: BatEntry) -> bool {
    matches!(entry.state(), Some(BlockState::FullyPresent | BlockState::PartiallyPresent))
}

const _: () = assert!(MIB.is_multiple_of(PAGE_U64));
