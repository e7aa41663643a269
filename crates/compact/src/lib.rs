//! Compaction: a virtual disk's file becomes as small as what is alive in it.
//!
//! ```text
//!   tree of file systems ─┐
//!                         ├─▶  dead ranges, block by block  ──▶  drop  ──▶  pack  ──▶  cut
//!   zeroes in the data  ──┘    (`dead`)                          (here)     (lunway_vhdx::pack)
//! ```
//!
//! What is dead is proven: free by the file systems' own maps ([`lunway_filesystem`]), zero already, or what the parent
//! of a differencing disk has as well. Dropping a dead
//! block changes one entry of the block table; a dead part of a block that lives becomes a hole of the host's file.
//! Every step leaves a whole file: a caller that stops in between begins again where it was.
//!
//! | mode | free by file systems | zeroes | the parent's | parts of blocks | moves blocks | Optimize-VHD |
//! |---|---|---|---|---|---|---|
//! | [`Mode::Live`] | yes | yes | yes | holes | yes | – |
//! | [`Mode::Full`] | yes | yes | no | no | yes | Full |
//! | [`Mode::Quick`] | yes | no | no | no | yes | Quick |
//! | [`Mode::Retrim`] | yes | no | no | no | no | Retrim |
//! | [`Mode::Prezeroed`] | no | yes | no | no | yes | Prezeroed |
//! | [`Mode::Pretrimmed`] | no | no | no | no | yes | Pretrimmed |

mod dead;
mod estimate;
mod free_map;

use std::ops::{ControlFlow, Range};

use lunway_filesystem::source::{ByteSource, Unreadable};
use lunway_filesystem::tree;
use lunway_vhdx::{Chain, DiscardMode, DiskError, Storage};

pub use estimate::{Estimate, Share, estimate};
pub use free_map::FreeMap;

/// Compaction mode: what is dropped, and whether blocks move afterwards. The names are those of Optimize-VHD, and one
/// of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything that is dead, parts of blocks too.
    Live,
    /// Blocks that are free or zero.
    Full,
    /// Blocks that are free.
    Quick,
    /// Blocks that are free become holes; nothing moves.
    Retrim,
    /// Blocks that are zero.
    Prezeroed,
    /// Space that was given up before.
    Pretrimmed,
}

impl Mode {
    /// All of them, in the order of what they drop.
    pub const ALL: [Self; 6] =
        [Self::Live, Self::Full, Self::Quick, Self::Retrim, Self::Prezeroed, Self::Pretrimmed];

    /// Returns `true` if file systems are asked for their free space.
    pub fn asks_file_systems(self) -> bool {
        matches!(self, Self::Live | Self::Full | Self::Quick | Self::Retrim)
    }

    /// Returns `true` if data is read to find zeroes.
    pub fn looks_for_zeroes(self) -> bool {
        matches!(self, Self::Live | Self::Full | Self::Prezeroed)
    }

    /// Returns `true` if blocks are given up whose data the parent has.
    pub fn drops_duplicates(self) -> bool {
        self == Self::Live
    }

    /// Returns `true` if dead parts of living blocks become holes.
    pub fn punches(self) -> bool {
        self == Self::Live
    }

    /// Returns `true` if blocks move into holes.
    pub fn moves(self) -> bool {
        self != Self::Retrim
    }
}

/// Plan of a compaction.
pub struct Plan {
    /// Contents of the disk, as they are now.
    pub tree: tree::Disk,
    /// Ranges of the disk that stay as they are: partitions that somebody wants kept.
    pub keep: Vec<Range<u64>>,
}

impl Plan {
    /// Examines the disk.
    pub fn new<S: Storage>(chain: &Chain<S>) -> Self {
        let sector = chain.disks().first().map_or(512, |disk| disk.parameters().logical_sector);
        Self { tree: tree::Disk::examine(&Bytes(chain), sector), keep: Vec::new() }
    }
}

/// Reason why a disk could not be compacted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The virtual disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The disk's file systems do not say any more what they said when they were examined.
    #[error("the disk changed while it was compacted: {0}")]
    Changed(String),
}

/// Progress of dropping dead blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Blocks that were given up.
    pub blocks: u64,
    /// Bytes of parts of blocks that became holes.
    pub punched: u64,
    /// Length of the disk examined, bytes.
    pub done: u64,
}

/// Gives up what is dead, and makes that durable. The disk must be open for writing, and nothing else may change it.
/// `progress` is called now and then, and may end it.
///
/// # Errors
///
/// Those of the disk. What was dropped before is dropped.
pub fn drop_dead<S: Storage>(
    chain: &Chain<S>,
    plan: &Plan,
    mode: Mode,
    progress: &mut dyn FnMut(Dropped) -> ControlFlow<()>,
) -> Result<Dropped, Error> {
    let mut dropped = Dropped::default();
    if mode == Mode::Pretrimmed {
        return Ok(dropped);
    }
    dead::for_each_window(chain, plan, block_size(chain), mode.asks_file_systems(), &mut |window| {
        for block in window.blocks() {
            if window.is_dead(&block, mode.looks_for_zeroes())? {
                chain.discard(block.range.start, block.range.end - block.range.start, DiscardMode::Unmap)?;
                dropped.blocks += 1;
                continue;
            }
            if mode.drops_duplicates() && window.is_parents(&block)? {
                chain.discard(block.range.start, block.range.end - block.range.start, DiscardMode::Parent)?;
                dropped.blocks += 1;
                continue;
            }
            if mode.punches() {
                for range in window.free_sectors(&block) {
                    chain.discard(range.start, range.end - range.start, DiscardMode::Unmap)?;
                    dropped.punched += range.end - range.start;
                }
            }
        }
        dropped.done = window.end();
        Ok(progress(dropped))
    })?;
    chain.flush()?;
    Ok(dropped)
}

/// Bytes of a block.
pub(crate) fn block_size<S: Storage>(chain: &Chain<S>) -> u64 {
    chain.disks().first().map_or(u64::MAX, |disk| disk.parameters().block_size.into())
}

/// A chain as the source of bytes that readers of file systems ask for.
pub struct Bytes<'a, S>(pub &'a Chain<S>);

impl<S: Storage> ByteSource for Bytes<'_, S> {
    fn len(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        in_sectors(self.0, offset, buf, |at, buf| self.0.read_at(at, buf))
    }
}

/// The same of what the parent has.
pub(crate) struct ParentBytes<'a, S>(pub(crate) &'a Chain<S>);

impl<S: Storage> ByteSource for ParentBytes<'_, S> {
    fn len(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        in_sectors(self.0, offset, buf, |at, buf| self.0.read_parent_at(at, buf))
    }
}

/// Reads any bytes of a disk, which is read in whole sectors.
fn in_sectors<S: Storage>(
    chain: &Chain<S>,
    offset: u64,
    buf: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> Result<(), DiskError>,
) -> Result<(), Unreadable> {
    let sector = u64::from(chain.disks().first().map_or(512, |disk| disk.parameters().logical_sector));
    let end = offset
        .checked_add(buf.len() as u64)
        .filter(|end| *end <= chain.size())
        .ok_or_else(|| Unreadable::outside(offset, buf.len() as u64, chain.size()))?;
    let failed = |error: DiskError| Unreadable { what: error.to_string() };
    if offset.is_multiple_of(sector) && end.is_multiple_of(sector) {
        return read(offset, buf).map_err(failed);
    }
    let start = offset / sector * sector;
    let mut whole = vec![0; (end.next_multiple_of(sector) - start) as usize];
    read(start, &mut whole).map_err(failed)?;
    let within = (offset - start) as usize;
    buf.copy_from_slice(&whole[within..within + buf.len()]);
    Ok(())
}
