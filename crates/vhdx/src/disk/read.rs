//! Reads: where the bytes of a range are.

use super::{Disk, DiskState, Stop};
use crate::bitmap;
use crate::error::DiskError;
use crate::format::{BatEntry, BlockState};
use crate::metadata::DiskKind;
use crate::pins::Pin;
use crate::storage::Storage;

/// Source of the bytes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentSource {
    /// From this offset of the file.
    File(u64),
    /// Zeroes that were written.
    Zero,
    /// Given up by UNMAP: zeroes.
    Unmapped,
    /// Never written, in no file of a chain: zeroes.
    NeverWritten,
    /// The parent has it, at the same offset of the disk.
    Parent,
}

/// A piece of a range, in order, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSegment {
    /// Length, bytes.
    pub len: u64,
    /// Source of its bytes.
    pub source: SegmentSource,
}

/// A read under way. Reuse it for the next one: it keeps its memory.
#[derive(Debug, Default)]
pub struct ReadPlan {
    segments: Vec<ReadSegment>,
    pin: Option<Pin>,
}

impl ReadPlan {
    /// The pieces of the range.
    pub fn segments(&self) -> &[ReadSegment] {
        &self.segments
    }

    fn push(&mut self, len: u64, source: SegmentSource) {
        if let Some(last) = self.segments.last_mut() {
            let continues = match (last.source, source) {
                (SegmentSource::File(before), SegmentSource::File(offset)) => before + last.len == offset,
                (before, after) => before == after,
            };
            if continues {
                last.len += len;
                return;
            }
        }
        self.segments.push(ReadSegment { len, source });
    }
}

impl<S: Storage> Disk<S> {
    /// Says where the bytes of a range are. [`end_read`](Self::end_read) must be called when they were read, or will
    /// not be.
    ///
    /// It is the extent map too: never written, zero, unmapped and data are told apart, down to sectors.
    pub fn resolve_read(&self, offset: u64, len: u64, plan: &mut ReadPlan) -> Result<(), Stop> {
        self.check_range(offset, len)?;
        let mut state = self.state();
        plan.segments.clear();
        if let Some(pin) = plan.pin.take() {
            state.pins.leave(pin);
        }
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let block = at / self.geometry.block_size;
            let within = at % self.geometry.block_size;
            // Of a large range, runs of blocks alike are taken at once: a map of 64 TiB has 67 million entries.
            let most = (end - at + within).div_ceil(self.geometry.block_size);
            let in_chunk = self.geometry.chunk_ratio - block % self.geometry.chunk_ratio;
            let (entry, alike) =
                state.pages.entries(self.payload_place(block), most.min(in_chunk), |entry| {
                    match entry.state() {
                        // Its sector bitmap is looked at block by block.
                        Some(BlockState::PartiallyPresent) => None,
                        Some(BlockState::FullyPresent) => Some(self.geometry.block_size),
                        _ => Some(0),
                    }
                })?;
            let piece = (end - at).min(alike * self.geometry.block_size - within);
            self.resolve_in_block(&mut state, block, within, piece, entry, plan)?;
            at += piece;
        }
        if plan.segments.iter().any(|segment| matches!(segment.source, SegmentSource::File(_))) {
            plan.pin = Some(state.pins.enter());
        }
        Ok(())
    }

    /// Ends a read: the space that it was resolved to may serve others.
    pub fn end_read(&self, plan: &mut ReadPlan) {
        if let Some(pin) = plan.pin.take() {
            self.state().pins.leave(pin);
        }
    }

    fn resolve_in_block(
        &self,
        state: &mut DiskState,
        block: u64,
        within: u64,
        len: u64,
        entry: BatEntry,
        plan: &mut ReadPlan,
    ) -> Result<(), Stop> {
        let differencing = self.geometry.kind == DiskKind::Differencing;
        let source = match entry.state() {
            Some(BlockState::NotPresent) if differencing => SegmentSource::Parent,
            Some(BlockState::PartiallyPresent) if differencing => {
                return self.resolve_partial(state, block, within, len, entry.offset(), plan);
            }
            Some(BlockState::NotPresent | BlockState::Undefined) => SegmentSource::NeverWritten,
            Some(BlockState::Zero) => SegmentSource::Zero,
            Some(BlockState::Unmapped) => SegmentSource::Unmapped,
            Some(BlockState::FullyPresent | BlockState::PartiallyPresent) => {
                self.push_file(entry.offset() + within, len, plan);
                return Ok(());
            }
            None => return Err(changed(block).into()),
        };
        plan.push(len, source);
        Ok(())
    }

    fn resolve_partial(
        &self,
        state: &mut DiskState,
        block: u64,
        within: u64,
        len: u64,
        offset: u64,
        plan: &mut ReadPlan,
    ) -> Result<(), Stop> {
        let bitmap = state.entry(self.bitmap_place(self.geometry.chunk_of(block)))?;
        if bitmap.state() != Some(BlockState::FullyPresent) {
            return Err(changed(block).into());
        }
        let sector = self.geometry.sector;
        let first = self.geometry.first_bit(block) + within / sector;
        let mut at = offset + within;
        for (page, mut bits) in bitmap::pages(bitmap.offset(), first..first + len / sector) {
            let bytes = state.pages.get(page)?;
            while !bits.is_empty() {
                let (present, count) = bitmap::run(bytes, bits.clone());
                match present {
                    true => self.push_file(at, count * sector, plan),
                    false => plan.push(count * sector, SegmentSource::Parent),
                }
                bits.start += count;
                at += count * sector;
            }
        }
        Ok(())
    }

    /// A piece of the file. What a replay in memory has added to its end reads as zeroes; what is behind that was cut
    /// off, and is lost: reading it fails.
    fn push_file(&self, offset: u64, len: u64, plan: &mut ReadPlan) {
        let end = offset + len;
        let (from, to) = (self.added.start.clamp(offset, end), self.added.end.clamp(offset, end));
        for (start, stop, source) in [
            (offset, from, SegmentSource::File(offset)),
            (from, to, SegmentSource::Zero),
            (to, end, SegmentSource::File(to)),
        ] {
            if start < stop {
                plan.push(stop - start, source);
            }
        }
    }
}

fn changed(block: u64) -> DiskError {
    DiskError::Failed(format!(
        "the table's entry of payload block {block} has changed since the file was opened"
    ))
}
