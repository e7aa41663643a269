//! Dead blocks: a window of the disk at a time, its present blocks and the free ranges in them.

use std::ops::{ControlFlow, Range};

use lunway_vhdx::{Chain, SegmentSource, Storage};

use crate::{Bytes, Error, ParentBytes, Plan};

/// Length of a window of the disk, bytes: a bitmap of ext4 covers 128 MiB, and the free ranges of a window fit into 4
/// MiB at the worst.
const WINDOW: u64 = 1 << 30;

/// Length of a read that looks for zeroes, bytes.
const PIECE: u64 = 64 << 10;

/// A block that has data in the file itself, not in a parent.
pub(crate) struct Block {
    /// Bytes of the disk.
    pub(crate) range: Range<u64>,
    /// Offset in the file, bytes.
    pub(crate) offset: u64,
}

/// A range of one part of the tree.
struct Part {
    range: Range<u64>,
    /// Offset of its node on the disk.
    node: u64,
    free: bool,
}

/// A part of the disk.
pub(crate) struct Window<'a, S> {
    chain: &'a Chain<S>,
    keep: &'a [Range<u64>],
    range: Range<u64>,
    free: Vec<Range<u64>>,
    parts: Vec<Part>,
    blocks: Vec<Block>,
    /// Blocks of the file that have data, whatever the size is that the window counts in.
    held: u64,
}

/// Callback for each window; it returns whether to go on.
type Each<'a, S> = dyn FnMut(&mut Window<'_, S>) -> Result<ControlFlow<()>, Error> + 'a;

/// Calls `each` for all of the disk, part by part, in blocks of `block_size` bytes: those of the file, or smaller ones.
pub(crate) fn for_each_window<S: Storage>(
    chain: &Chain<S>,
    plan: &Plan,
    block_size: u64,
    free: bool,
    each: &mut Each<'_, S>,
) -> Result<(), Error> {
    // Whole blocks: those of 256 MiB fit four times.
    let mut start = 0;
    while start < chain.size() {
        let range = start..(start + WINDOW).min(chain.size());
        let mut window = Window {
            chain,
            keep: &plan.keep,
            range: range.clone(),
            free: Vec::new(),
            parts: Vec::new(),
            blocks: Vec::new(),
            held: 0,
        };
        window.find_blocks(block_size)?;
        if free && !window.blocks.is_empty() {
            let ended = plan.tree.for_each(&Bytes(chain), range, &mut |span| {
                let free = span.what == lunway_filesystem::Use::Free;
                window.parts.push(Part { range: span.range, node: span.node.offset, free });
            });
            ended.map_err(|doubt| Error::Changed(doubt.reason))?;
            let free = window.parts.iter().filter(|part| part.free).map(|part| part.range.clone()).collect();
            window.take_free(free);
        }
        if each(&mut window)?.is_break() {
            break;
        }
        start += WINDOW;
    }
    Ok(())
}

impl<S: Storage> Window<'_, S> {
    pub(crate) fn end(&self) -> u64 {
        self.range.end
    }

    /// Number of the file's blocks that have data.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// The blocks that have data in the file.
    pub(crate) fn blocks(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.blocks)
    }

    fn find_blocks(&mut self, block_size: u64) -> Result<(), Error> {
        let (blocks, size, whole) = (&mut self.blocks, self.chain.size(), crate::block_size(self.chain));
        let (held, mut last_held) = (&mut self.held, None);
        let range = self.range.clone();
        self.chain.map(range.start, range.end - range.start, |segment| {
            let SegmentSource::File(from) = segment.source else { return };
            if segment.level > 0 {
                return;
            }
            for block in segment.offset / whole..(segment.offset + segment.len).div_ceil(whole) {
                *held += u64::from(last_held.replace(block) != Some(block));
            }
            let mut at = segment.offset;
            while at < segment.offset + segment.len {
                let start = at / block_size * block_size;
                let end = (start + block_size).min(size);
                if blocks.last().is_none_or(|last: &Block| last.range.start != start) {
                    blocks.push(Block {
                        range: start..end,
                        offset: (from + (at - segment.offset)).saturating_sub(at - start),
                    });
                }
                at = end;
            }
        })?;
        Ok(())
    }

    /// Takes what is free, without what is to be kept.
    fn take_free(&mut self, list: Vec<Range<u64>>) {
        for range in list {
            // Ranges touch where one file system ends and another begins.
            let mut rest = vec![range];
            for keep in self.keep {
                rest = rest.into_iter().flat_map(|range| without(range, keep)).collect();
            }
            for range in rest {
                match self.free.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => self.free.push(range),
                }
            }
        }
    }

    /// Returns the free ranges of a block.
    fn free_in(&self, block: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_, S> {
        let (start, end) = (block.start, block.end);
        let first = self.free.partition_point(|range| range.end <= start);
        self.free[first..]
            .iter()
            .take_while(move |range| range.start < end)
            .map(move |range| range.start.max(start)..range.end.min(end))
    }

    /// The free parts of a block, in whole sectors.
    pub(crate) fn free_sectors(&self, block: &Block) -> Vec<Range<u64>> {
        let sector =
            u64::from(self.chain.disks().first().map_or(512, |disk| disk.parameters().logical_sector));
        self.free_in(&block.range)
            .map(|range| range.start.next_multiple_of(sector)..range.end / sector * sector)
            .filter(|range| range.start < range.end)
            .collect()
    }

    /// Bytes of a block that are free.
    pub(crate) fn free_bytes(&self, block: &Block) -> u64 {
        self.free_in(&block.range).map(|range| range.end - range.start).sum()
    }

    /// The parts of the tree that a block has bytes of: where each begins, how many bytes they are, how many of them
    /// are free and not kept.
    pub(crate) fn shares(&self, block: &Block) -> impl Iterator<Item = (u64, u64, u64)> + use<'_, S> {
        let (start, end) = (block.range.start, block.range.end);
        let first = self.parts.partition_point(|part| part.range.end <= start);
        self.parts[first..].iter().take_while(move |part| part.range.start < end).map(move |part| {
            let range = part.range.start.max(start)..part.range.end.min(end);
            let free =
                if part.free { self.free_in(&range).map(|free| free.end - free.start).sum() } else { 0 };
            (part.node, range.end - range.start, free)
        })
    }

    /// Returns `true` if all of a block is dead: its ranges that are not free are zero, if `zeroes` are looked for.
    pub(crate) fn is_dead(&self, block: &Block, zeroes: bool) -> Result<bool, Error> {
        let kept = |range: &Range<u64>| {
            self.keep.iter().any(|keep| keep.start < range.end && range.start < keep.end)
        };
        let mut at = block.range.start;
        let end = std::iter::once(block.range.end..block.range.end);
        for free in self.free_in(&block.range).chain(end) {
            let rest = at..free.start;
            if rest.start < rest.end && (!zeroes || kept(&rest) || !self.is_zero(rest)?) {
                return Ok(false);
            }
            at = free.end;
        }
        Ok(true)
    }

    /// Returns `true` if the parent has the same data in all ranges of a block that are not free.
    pub(crate) fn is_parents(&self, block: &Block) -> Result<bool, Error> {
        if self.chain.disks().len() < 2 {
            return Ok(false);
        }
        let (mut own, mut parents) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
        let mut at = block.range.start;
        let end = std::iter::once(block.range.end..block.range.end);
        for free in self.free_in(&block.range).chain(end) {
            while at < free.start {
                // The first look is a short one: most blocks that differ show it at once.
                let now = (free.start - at).min(if at == block.range.start { 4096 } else { PIECE }) as usize;
                let (own, parents) = (&mut own[..now], &mut parents[..now]);
                read(&Bytes(self.chain), at, own)?;
                read(&ParentBytes(self.chain), at, parents)?;
                if own != parents {
                    return Ok(false);
                }
                at += now as u64;
            }
            at = free.end;
        }
        Ok(true)
    }

    /// Returns `true` if a block is entirely zero, including its free ranges.
    pub(crate) fn is_zero_throughout(&self, block: &Block) -> Result<bool, Error> {
        self.is_zero(block.range.clone())
    }

    fn is_zero(&self, range: Range<u64>) -> Result<bool, Error> {
        let bytes = Bytes(self.chain);
        let mut buf = [0; PIECE as usize];
        let mut at = range.start;
        while at < range.end {
            // The first look is a short one: most blocks that live show it at once.
            let now = (range.end - at).min(if at == range.start { 4096 } else { PIECE });
            let piece = &mut buf[..now as usize];
            read(&bytes, at, piece)?;
            if piece.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += now;
        }
        Ok(true)
    }
}

fn read(bytes: &impl lunway_filesystem::ByteSource, at: u64, buf: &mut [u8]) -> Result<(), Error> {
    bytes.read(at, buf).map_err(|error| Error::Changed(error.what))
}

/// Returns the parts of `range` outside `hole`.
fn without(range: Range<u64>, hole: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let before = range.start..range.end.min(hole.start);
    let after = range.start.max(hole.end)..range.end;
    [before, after].into_iter().filter(|range| range.start < range.end)
}
