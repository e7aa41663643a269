//! XFS, versions 4 and 5: free blocks by each allocation group's B+tree of free extents (xfs_format.h of the kernel).
//!
//! # The proof
//!
//! - The log is clean: its last record says that the volume was unmounted. A dirty one is not replayed; `fsfreeze`
//!   makes one on purpose.
//! - All of superblock, AGF, AGFL and tree blocks have right checksums (version 5), magics and places.
//! - In each group the tree by block number is sorted and disjoint, and its sum and its longest extent are those of the
//!   AGF; the tree by length has the same number and sum.
//! - What is free, with the blocks of the free lists and of the trees, is what the superblock says.
//! - What is free after the metadata of geometry was raised is as much as the AGFs say: no tree contradicts geometry.
//!
//! Metadata by geometry: the headers of each group, the blocks of its free list, the roots of its trees, the log.

mod group;
mod log;
mod superblock;
mod tree;

use std::ops::Range;

use crate::map::Ranges;
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Examined, Mounted, Volume, VolumeIdentity, count_free};
use group::Group;
use superblock::Superblock;

/// Remedy for a volume that contradicts itself.
const REPAIR: &str = "run xfs_repair on it";

/// Returns `true` if the volume begins with a superblock of XFS.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    Superblock::recognised(source)
}

/// Examines the volume.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let superblock = Superblock::read(source)?;
    let identity = VolumeIdentity {
        kind: "XFS",
        label: superblock.label(),
        uuid: superblock.uuid(),
        size: superblock.size(),
    };
    let verdict = prove(source, superblock).map(|map| Box::new(map) as Box<dyn Volume>);
    // Mounted, it looks unmounted until its first log record is written, which may be half a minute after the data.
    Ok(Examined { identity, notes: Vec::new(), mounted: Mounted::Untold, verdict })
}

struct Map {
    superblock: Superblock,
    metadata: Ranges,
    free: u64,
}

fn prove(source: &dyn ByteSource, superblock: Superblock) -> Result<Map, Doubt> {
    superblock.known()?;
    if superblock.size() > source.len() {
        return Err(Doubt::new(format!(
            "the file system has {} bytes, its partition only {}",
            superblock.size(),
            source.len()
        )));
    }
    log::clean(source, &superblock)?;
    let (mut metadata, mut free, mut available) = (vec![superblock.log()], 0u64, 0u64);
    for number in 0..superblock.groups {
        let group = Group::read(source, &superblock, number)?;
        group.prove(source, &superblock)?;
        group.metadata(source, &superblock, &mut metadata)?;
        free += u64::from(group.free);
        available += group.available();
        if metadata.len() > MOST_RANGES {
            return Err(Doubt::new("it has more allocation groups than lunway reads"));
        }
    }
    if available != superblock.free_blocks() {
        let says = superblock.free_blocks();
        let what = format!("its groups have {available} blocks to give, the superblock says {says}");
        return Err(Doubt::new(what).helped_by(REPAIR));
    }
    let mut map = Map { superblock, metadata: Ranges::union(metadata), free: 0 };
    map.free = count_free(&map, source)?;
    if map.free != free * map.superblock.block {
        return Err(
            Doubt::new("blocks of its own structures are in its trees of free extents").helped_by(REPAIR)
        );
    }
    Ok(map)
}

/// The most ranges of metadata: 64 MiB. A group has a dozen.
const MOST_RANGES: usize = 4 << 20;

impl Volume for Map {
    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn size(&self) -> u64 {
        self.superblock.size()
    }

    fn metadata(&self) -> &Ranges {
        &self.metadata
    }

    fn claimed_free(
        &self,
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt> {
        let (block, per_group) = (self.superblock.block, self.superblock.group_blocks);
        let blocks = window.start / block..window.end.div_ceil(block);
        let groups =
            blocks.start / per_group..blocks.end.div_ceil(per_group).min(self.superblock.groups.into());
        for number in groups {
            let start = number * per_group;
            let group = Group::read(source, &self.superblock, number as u32)?;
            let inside = blocks.start.saturating_sub(start)..blocks.end - start;
            group.free_in(source, &self.superblock, inside, &mut |range| {
                sink((start + range.start) * block..(start + range.end) * block);
            })?;
        }
        Ok(())
    }
}
