//! ext2, ext3, ext4: free blocks by the block bitmaps (Documentation/filesystems/ext4 of the Linux kernel).
//!
//! # The proof
//!
//! - Superblock, group descriptors and bitmaps have right checksums, where the feature is on.
//! - The zeros of each bitmap are as many as its descriptor says, and the bits behind a group's end are ones.
//! - What is free after the metadata of geometry was raised is as much as all descriptors say, and, on a volume without
//!   a log to be replayed, as the superblock says: so that no bitmap contradicts geometry.
//! - Without checksums (`metadata_csum`), the blocks of every file are used by the bitmaps: all inodes are read, of up
//!   to 4 Mi. Where there are more, a note says that a bitmap with right sums was believed.
//! - Every feature that changes what is free is one that is known here.
//! - The volume was unmounted, or its [journal](self) can be replayed to the letter; the replay is in memory, and all
//!   of the above is asked of the volume as it is after it.
//!
//! A group whose bitmap was never written (`BLOCK_UNINIT`) is free except for metadata. Metadata by geometry is: all
//! below the first data block, the superblock's copies with the descriptor tables and their reserves behind them, both
//! bitmaps and the inode table of every group (which `FLEX_BG` puts into other groups), the MMP block, the journal.

mod checksum;
mod files;
mod groups;
mod inode;
mod journal;
mod superblock;

use std::ops::Range;

use crate::map::Ranges;
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Examined, Volume, VolumeIdentity, count_free};
use groups::Groups;
use journal::{Overlay, Replayed};
use superblock::Superblock;

/// Returns `true` if a superblock of ext lies at byte 1024.
pub fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    Superblock::recognised(source)
}

/// Examines the volume.
pub fn examine(source: &dyn ByteSource) -> Result<Examined, Doubt> {
    let superblock = Superblock::read(source)?;
    let identity = VolumeIdentity {
        kind: superblock.kind(),
        label: superblock.label(),
        uuid: superblock.uuid(),
        size: superblock.size(),
    };
    let mut notes = Vec::new();
    let verdict = prove(source, &superblock, &mut notes).map(|map| Box::new(map) as Box<dyn Volume>);
    Ok(Examined { identity, notes, mounted: superblock.mounted(), verdict })
}

/// Remedy for a volume that contradicts itself.
const FSCK: &str = "run e2fsck -f on it";

/// The proven map: geometry, and where the journal has newer blocks.
struct Map {
    groups: Groups,
    overlay: Overlay,
    metadata: Ranges,
    free: u64,
}

fn prove(source: &dyn ByteSource, superblock: &Superblock, notes: &mut Vec<String>) -> Result<Map, Doubt> {
    superblock.known()?;
    if superblock.size() > source.len() {
        return Err(Doubt::new(format!(
            "the file system has {} bytes, its partition only {}",
            superblock.size(),
            source.len()
        )));
    }
    let log = journal::read(source, superblock)?;
    if log.overlay.blocks() > 0 {
        notes.push(format!(
            "not unmounted: the journal's {} blocks were replayed in memory",
            log.overlay.blocks()
        ));
    }
    let replayed = Replayed::new(source, &log.overlay);
    // The log may have a newer superblock.
    let superblock = Superblock::read(&replayed)?;
    superblock.known()?;
    superblock.settled(&replayed, log.replayed)?;
    let groups = Groups::new(&superblock)?;
    let (metadata, promised) = groups.metadata(&replayed, log.runs)?;
    let mut map = Map { groups, overlay: log.overlay, metadata, free: 0 };
    let free = count_free(&map, source)?;
    map.free = free;
    // The counters of a mounted volume are in the kernel's memory; each group's is in the log with its bitmap.
    let counted = if log.replayed { promised } else { superblock.free_bytes() };
    for (who, says) in [("the group descriptors", promised), ("the superblock", counted)] {
        if says != free {
            return Err(
                Doubt::new(format!("the bitmaps have {free} free bytes, {who} say {says}")).helped_by(FSCK)
            );
        }
    }
    let replayed = Replayed::new(source, &map.overlay);
    if superblock.seed().is_none() && !files::check(&replayed, &superblock, &map.groups, &map.metadata)? {
        notes.push(
            "its bitmaps have no checksums, and it has too many inodes to compare them with its files".into(),
        );
    }
    Ok(map)
}

impl Volume for Map {
    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn size(&self) -> u64 {
        self.groups.size()
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
        self.groups.claimed_free(&Replayed::new(source, &self.overlay), window, sink)
    }
}
