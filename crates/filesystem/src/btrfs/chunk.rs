//! Chunks: where logical addresses lie on the device.

use crate::fields::le64;
use crate::volume::Doubt;

use super::node::{CHECK, ChunkItem, Key, Pointer, Trees};

/// The chunk tree's object for chunks, and the types of items.
pub(super) const CHUNKS_OBJECT: u64 = 256;
pub(super) const CHUNK_ITEM: u8 = 228;
const DEV_EXTENT: u8 = 204;
const DEV_EXTENT_LEN: usize = 32;

/// Types of block groups: data, system, metadata …
const TYPES: u64 = 1 | 2 | 4;
/// … and that every block is there twice, on one device. All other bits are of several devices.
pub(super) const DUP: u64 = 1 << 5;

/// Chunks are a gigabyte each on large disks: so many are 56 MiB of memory, and a device of a petabyte.
const CHUNKS_MAX: usize = 1 << 20;

/// A chunk: a range of logical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) logical: u64,
    pub(super) len: u64,
    pub(super) flags: u64,
    /// Offset on the device, and that of the copy.
    first: u64,
    second: Option<u64>,
}

/// A chunk's place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stripe {
    pub(super) physical: u64,
    pub(super) logical: u64,
    pub(super) len: u64,
}

/// All chunks, in the order of their logical addresses.
#[derive(Default)]
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    /// Adds the next one; `device` is the number of the only device, and `size` its bytes.
    pub(super) fn push(&mut self, key: Key, item: &ChunkItem, device: u64, size: u64) -> Result<(), Doubt> {
        let logical = key.offset;
        let broken = |what: &str| Doubt::new(format!("its chunk at {logical} {what}"));
        if item.flags & !(TYPES | DUP) != 0 {
            return Err(broken("is spread over several devices"));
        }
        if item.stripes.len() != if item.flags & DUP != 0 { 2 } else { 1 } {
            return Err(broken("has not as many copies as it says").helped_by(CHECK));
        }
        let inside = |at: u64| at.checked_add(item.len).is_some_and(|end| end <= size);
        if item.stripes.iter().any(|(id, at)| *id != device || !inside(*at)) {
            return Err(broken("lies outside of the device").helped_by(CHECK));
        }
        let after = self.0.last().map_or(0, |last| last.logical + last.len);
        if item.len == 0 || logical < after || logical.checked_add(item.len).is_none() {
            return Err(broken("overlaps another").helped_by(CHECK));
        }
        if self.0.len() == CHUNKS_MAX {
            return Err(Doubt::new(format!("it has more than {CHUNKS_MAX} chunks")));
        }
        let mut at = item.stripes.iter().map(|(_, at)| *at);
        let (Some(first), second) = (at.next(), at.next()) else { return Err(broken("has no copy")) };
        self.0.push(Chunk { logical, len: item.len, flags: item.flags, first, second });
        Ok(())
    }

    pub(super) fn as_slice(&self) -> &[Chunk] {
        &self.0
    }

    /// The index of the chunk that has this logical address.
    pub(super) fn at(&self, logical: u64) -> Option<usize> {
        let at = self.0.partition_point(|chunk| chunk.logical <= logical).checked_sub(1)?;
        (logical - self.0[at].logical < self.0[at].len).then_some(at)
    }

    /// Returns the places of these bytes on the device: one or two. `None` where no chunk has them all.
    pub(super) fn places(&self, logical: u64, len: u64) -> Option<impl Iterator<Item = u64>> {
        let chunk = self.0[self.at(logical)?];
        let inside = logical - chunk.logical;
        (len <= chunk.len - inside)
            .then(|| [Some(chunk.first), chunk.second].into_iter().flatten().map(move |at| at + inside))
    }

    /// All places, in the order of the device; none may overlap another.
    pub(super) fn stripes(&self) -> Result<Vec<Stripe>, Doubt> {
        let mut stripes: Vec<_> = self
            .0
            .iter()
            .flat_map(|chunk| {
                let Chunk { logical, len, .. } = *chunk;
                let places = [Some(chunk.first), chunk.second].into_iter().flatten();
                places.map(move |physical| Stripe { physical, logical, len })
            })
            .collect();
        stripes.sort_unstable_by_key(|stripe| stripe.physical);
        for pair in stripes.windows(2) {
            if pair[0].physical + pair[0].len > pair[1].physical {
                return Err(Doubt::new(format!(
                    "its chunks at {} and {} are in the same place of the device",
                    pair[0].logical, pair[1].logical
                ))
                .helped_by(CHECK));
            }
        }
        Ok(stripes)
    }
}

/// An error where the device's extents are not exactly the places of the chunks.
pub(super) fn check_device(
    trees: &Trees<'_>,
    root: Pointer,
    device: u64,
    stripes: &[Stripe],
) -> Result<(), Doubt> {
    let differ = || Doubt::new("its chunks and the extents of its device differ").helped_by(CHECK);
    let mut expected = stripes.iter();
    let mut cursor = trees.seek_object(root, 0)?;
    while let Some((key, item)) = cursor.next()? {
        if key.kind != DEV_EXTENT {
            continue;
        }
        let item = item.get(..DEV_EXTENT_LEN).ok_or_else(differ)?;
        let found = Stripe { physical: key.offset, logical: le64(item, 16), len: le64(item, 24) };
        if key.object != device || expected.next() != Some(&found) {
            return Err(differ());
        }
    }
    if expected.next().is_some() { Err(differ()) } else { Ok(()) }
}
