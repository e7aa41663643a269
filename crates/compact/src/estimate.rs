//! Estimate of each mode's effect, without changing anything.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lunway_vhdx::{Chain, Parameters, Storage};

use crate::{Error, Mode, Plan, dead};

/// Estimate of the result of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The mode.
    pub mode: Mode,
    /// Length of the file afterwards, bytes. Blocks that fit into no hole may keep it longer by less than one block.
    pub after: u64,
    /// Blocks that would be given up.
    pub blocks: u64,
    /// Bytes of living blocks that would become holes.
    pub punched: u64,
    /// The shares of the parts of the disk, by where each begins ([`Node::offset`](lunway_filesystem::tree::Node)). A
    /// mode that asks no file systems has none.
    pub shares: BTreeMap<u64, Share>,
}

/// Share of one part of the disk: the bytes that the file holds of it, and those that a mode would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Bytes of it in blocks of the file.
    pub held: u64,
    /// Of these, in blocks that would be given up.
    pub dropped: u64,
    /// Of these, bytes of living blocks that would become holes.
    pub punched: u64,
}

/// Counts of a mode so far.
#[derive(Clone, Default)]
struct Count {
    blocks: u64,
    punched: u64,
    shares: BTreeMap<u64, Share>,
    /// Blocks that live.
    living: u64,
    /// End of the last of them in the file.
    end: u64,
}

/// Looks at the whole disk, and says what each mode would leave, in blocks of `block_size` bytes: those of the file, or
/// smaller ones that it would be divided into. `progress` gets the bytes that were looked at, and may end it: then
/// there is no estimate.
///
/// # Errors
///
/// Those of the disk.
pub fn estimate<S: Storage>(
    chain: &Chain<S>,
    plan: &Plan,
    block_size: u32,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<Vec<Estimate>>, Error> {
    let Some(disk) = chain.disks().first() else { return Ok(None) };
    let divided = Parameters { block_size, ..disk.parameters().clone() };
    let block_size = u64::from(block_size);
    let mut counts = Mode::ALL.map(|_| Count::default());
    let mut held = 0;
    let mut ended = ControlFlow::Continue(());
    dead::for_each_window(chain, plan, block_size, true, &mut |window| {
        held += window.held();
        for block in window.blocks() {
            let len = block.range.end - block.range.start;
            let free = window.free_bytes(&block);
            let is_free = free == len;
            let is_dead = is_free || window.is_dead(&block, true)?;
            let is_needed = !is_dead && !window.is_parents(&block)?;
            // Without file systems a block is zero as a whole or not at all.
            let is_zero = is_dead && window.is_zero_throughout(&block)?;
            for (mode, count) in Mode::ALL.into_iter().zip(&mut counts) {
                let drops = match mode {
                    Mode::Live => !is_needed,
                    Mode::Full => is_dead,
                    Mode::Quick | Mode::Retrim => is_free,
                    Mode::Prezeroed => is_zero,
                    Mode::Pretrimmed => false,
                };
                if mode.asks_file_systems() {
                    for (node, held, free) in window.shares(&block) {
                        let share = count.shares.entry(node).or_default();
                        share.held += held;
                        share.dropped += if drops { held } else { 0 };
                        share.punched += if !drops && mode.punches() { free } else { 0 };
                    }
                }
                match drops {
                    true => count.blocks += 1,
                    false => {
                        count.living += 1;
                        count.end = count.end.max(block.offset + block_size);
                        count.punched += if mode.punches() { free } else { 0 };
                    }
                }
            }
        }
        ended = progress(window.end());
        Ok(ended)
    })?;
    if ended.is_break() {
        return Ok(None);
    }
    let mut metadata = disk.taken().saturating_sub(held * crate::block_size(chain));
    if divided != *disk.parameters() {
        metadata = metadata.saturating_sub(disk.table_len()) + divided.table_len();
    }
    let estimates = Mode::ALL.into_iter().zip(counts).map(|(mode, count)| {
        let packed = metadata + count.living * block_size;
        Estimate {
            mode,
            after: if mode.moves() { packed } else { count.end.max(packed) },
            blocks: count.blocks,
            punched: count.punched,
            shares: count.shares,
        }
    });
    Ok(Some(estimates.collect()))
}
