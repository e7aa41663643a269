//! Block groups: how much of each is used, which ranges are free, by the extent tree or by the free space tree.

use std::ops::Range;

use crate::fields::le64;
use crate::map::{Joiner, zero_bits};
use crate::volume::Doubt;

use super::chunk::Chunk;
use super::node::{CHECK, Key, Pointer, Trees};

/// Types of items: in the extent tree …
const EXTENT_ITEM: u8 = 168;
const METADATA_ITEM: u8 = 169;
const BLOCK_GROUP_ITEM: u8 = 192;
/// … and in the free space tree.
const FREE_SPACE_EXTENT: u8 = 199;
const FREE_SPACE_BITMAP: u8 = 200;

/// Location of the file system's free-space information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) extents: Pointer,
    /// Tree of the block groups: the extent tree, or a tree of their own.
    pub(super) groups: Pointer,
    /// If there is one, and it is valid.
    pub(super) free: Option<Pointer>,
}

/// At least so many block groups are compared in both trees, spread over all …
const COMPARED_LEAST: usize = 16;
/// … and of many, every 64th.
const COMPARED_EVERY: usize = 64;

/// An error unless all sums agree: of each block group, of the file system, and of both trees where there are two.
pub(super) fn prove(trees: &Trees<'_>, space: &Space, bytes_used: u64) -> Result<(), Doubt> {
    let groups = trees.chunks.as_slice();
    let used = used_by_groups(trees, space.groups)?;
    let total = used.iter().try_fold(0u64, |sum, used| sum.checked_add(*used));
    if total != Some(bytes_used) {
        return Err(Doubt::new(format!(
            "its superblock counts {bytes_used} bytes as used, and its block groups do not"
        ))
        .helped_by(CHECK));
    }
    let Some(free) = space.free else {
        let found = sums(trees, false, |sink| extents(trees, space.extents, 0..u64::MAX, sink))?;
        return compare(groups, &found, &used, |_, used| used);
    };
    // mkfs.btrfs leaves entries of its first, temporary block group behind.
    let found = sums(trees, true, |sink| free_space(trees, free, 0..u64::MAX, sink))?;
    compare(groups, &found, &used, |group, used| group.len.saturating_sub(used))?;
    let every = (groups.len() / COMPARED_LEAST).clamp(1, COMPARED_EVERY);
    for group in groups.iter().step_by(every) {
        let range = group.logical..group.logical + group.len;
        // The places at which free begins or ends, from either tree: each of one has to meet the same of the other.
        let mut by_extents = Digest::default();
        gaps(trees, space.extents, range.clone(), &mut |gap| by_extents.add(gap))?;
        let mut by_free = Digest::default();
        let mut joined = |range| by_free.add(range);
        let mut joiner = Joiner::new(&mut joined);
        free_space(trees, free, range, &mut |range| joiner.push(range))?;
        joiner.finish();
        if by_extents != by_free {
            return Err(Doubt::new(format!(
                "its free space tree and its extents differ in the block group at {}",
                group.logical
            ))
            .helped_by("run btrfs check, and btrfs check --clear-space-cache v2"));
        }
    }
    Ok(())
}

/// A summary of ranges that tells two lists apart without keeping either: the trees have checksums, what differs does
/// so by mistake.
#[derive(Debug, Default, PartialEq, Eq)]
struct Digest {
    count: u64,
    mixed: u64,
}

impl Digest {
    fn add(&mut self, range: Range<u64>) {
        self.count += 1;
        for edge in [range.start, range.end] {
            // FNV-1a over words: each edge at its place in the order changes the sum.
            self.mixed = (self.mixed ^ edge).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(29);
        }
    }
}

/// Returns the used bytes that each block group states. There is one for each chunk.
fn used_by_groups(trees: &Trees<'_>, root: Pointer) -> Result<Vec<u64>, Doubt> {
    let chunks = trees.chunks.as_slice();
    let differ = || Doubt::new("its chunks and its block groups differ").helped_by(CHECK);
    let (mut used, mut expected) = (Vec::with_capacity(chunks.len()), chunks.iter());
    let mut cursor = trees.seek_object(root, 0)?;
    while let Some((key, item)) = cursor.next()? {
        if key.kind != BLOCK_GROUP_ITEM {
            continue;
        }
        let item = item.get(..24).ok_or_else(differ)?;
        let chunk = expected.next().ok_or_else(differ)?;
        if (chunk.logical, chunk.len, chunk.flags) != (key.object, key.offset, le64(item, 16)) {
            return Err(differ());
        }
        used.push(le64(item, 0));
    }
    if expected.next().is_some() { Err(differ()) } else { Ok(used) }
}

/// Adds ranges up for each chunk, after checking that they are in order, disjoint, and inside of one each, or, where
/// `others` may be, of none.
fn sums(
    trees: &Trees<'_>,
    others: bool,
    walk: impl FnOnce(&mut dyn FnMut(Range<u64>)) -> Result<(), Doubt>,
) -> Result<Vec<u64>, Doubt> {
    let chunks = trees.chunks.as_slice();
    let (mut sums, mut after, mut wrong) = (vec![0u64; chunks.len()], 0, None);
    walk(&mut |range| {
        let first = trees.chunks.at(range.start);
        match first {
            _ if range.start < after => wrong = wrong.or(Some(range.start)),
            Some(at) if range.end - chunks[at].logical <= chunks[at].len => {
                sums[at] += range.end - range.start;
            }
            None if others && trees.chunks.at(range.end - 1).is_none() => {}
            _ => wrong = wrong.or(Some(range.start)),
        }
        after = range.end;
    })?;
    match wrong {
        None => Ok(sums),
        Some(at) => Err(Doubt::new(format!("the extent at {at} overlaps another, or is in no block group"))
            .helped_by(CHECK)),
    }
}

fn compare(
    groups: &[Chunk],
    found: &[u64],
    used: &[u64],
    expected: impl Fn(&Chunk, u64) -> u64,
) -> Result<(), Doubt> {
    for ((group, found), used) in groups.iter().zip(found).zip(used) {
        if *used > group.len || *found != expected(group, *used) {
            return Err(Doubt::new(format!(
                "its block group at {} says that {used} bytes are used, and its extents say something else",
                group.logical
            ))
            .helped_by(CHECK));
        }
    }
    Ok(())
}

/// Gives the extents that touch `range` of logical addresses, in order.
fn extents(
    trees: &Trees<'_>,
    root: Pointer,
    range: Range<u64>,
    sink: &mut dyn FnMut(Range<u64>),
) -> Result<(), Doubt> {
    let mut cursor = trees.seek_object(root, range.start)?;
    while let Some((key, _)) = cursor.next()? {
        if key.object >= range.end {
            break;
        }
        let len = match key.kind {
            EXTENT_ITEM => key.offset,
            METADATA_ITEM => u64::from(trees.format.node),
            _ => continue,
        };
        sink(checked(key, len)?);
    }
    Ok(())
}

/// Gives what no extent covers in `range` of logical addresses, in order.
fn gaps(
    trees: &Trees<'_>,
    root: Pointer,
    range: Range<u64>,
    sink: &mut dyn FnMut(Range<u64>),
) -> Result<(), Doubt> {
    let mut at = range.start;
    extents(trees, root, range.clone(), &mut |extent| {
        if extent.start > at {
            sink(at..extent.start.min(range.end));
        }
        at = at.max(extent.end);
    })?;
    if at < range.end {
        sink(at..range.end);
    }
    Ok(())
}

/// Gives what the free space tree has in `range` of logical addresses, in order; the first and the last may reach out
/// of it.
fn free_space(
    trees: &Trees<'_>,
    root: Pointer,
    range: Range<u64>,
    sink: &mut dyn FnMut(Range<u64>),
) -> Result<(), Doubt> {
    let sector = u64::from(trees.format.sector);
    let mut cursor = trees.seek_object(root, range.start)?;
    while let Some((key, item)) = cursor.next()? {
        if key.object >= range.end {
            break;
        }
        let whole = checked(key, key.offset)?;
        if whole.end <= range.start {
            continue;
        }
        match key.kind {
            FREE_SPACE_EXTENT => sink(whole),
            FREE_SPACE_BITMAP => {
                let bits = key.offset / sector;
                if item.len() as u64 != bits.div_ceil(8) || key.offset % sector != 0 {
                    return Err(Doubt::new(format!(
                        "a bitmap of its free space tree at {} is too short",
                        key.object
                    ))
                    .helped_by(CHECK));
                }
                // A bit that is set is a free sector.
                let inverted: Vec<u8> = item.iter().map(|byte| !byte).collect();
                zero_bits(&inverted, bits, |run| {
                    sink(key.object + run.start * sector..key.object + run.end * sector);
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// The range of an item.
fn checked(key: Key, len: u64) -> Result<Range<u64>, Doubt> {
    let end = key.object.checked_add(len).filter(|_| len > 0);
    let end = end.ok_or_else(|| {
        Doubt::new(format!("the extent at {} has no length that can be", key.object)).helped_by(CHECK)
    })?;
    Ok(key.object..end)
}

/// Gives what is free in `range` of logical addresses, in order; the first and the last may reach out of it.
pub(super) fn free_in(
    trees: &Trees<'_>,
    space: &Space,
    range: Range<u64>,
    sink: &mut dyn FnMut(Range<u64>),
) -> Result<(), Doubt> {
    match space.free {
        Some(free) => free_space(trees, free, range, sink),
        None => gaps(trees, space.extents, range, sink),
    }
}
