//! Directories of exFAT, walked to prove that the allocation bitmap has the clusters of every file (§6, §7).
//!
//! Time and memory are bounded: files are disjoint, so that all of them together have at most as many clusters as the
//! volume; a directory that leads back to one above it exceeds that soon.

use super::{
    ALLOCATION_BITMAP, END_OF_CHAIN, END_OF_DIRECTORY, ENTRY, Geometry, UP_CASE_TABLE, VOLUME_LABEL, damaged,
};
use crate::cluster_bitmap::{Claim, Claims, ClusterBitmap};
use crate::fields::{le16, le32, le64};
use crate::source::{ByteSource, Segment};
use crate::volume::Doubt;

/// Types of entries (§7.4, §7.5, §7.6, §7.7).
const FILE: u8 = 0x85;
const VOLUME_GUID: u8 = 0xA0;
const STREAM_EXTENSION: u8 = 0xC0;
const FILE_NAME: u8 = 0xC1;
/// Bits of a type (§6.2.1): in use, secondary, benign.
const IN_USE: u8 = 0x80;
const SECONDARY: u8 = 0x40;
const BENIGN: u8 = 0x20;

/// GeneralSecondaryFlags and GeneralPrimaryFlags (§6.3.4, §6.4.2).
const ALLOCATION_POSSIBLE: u8 = 1;
const NO_FAT_CHAIN: u8 = 2;
/// FileAttributes (§7.4.4).
const DIRECTORY: u16 = 0x10;

/// Length of a read of the table and of directories: a page, so that random places cost little.
const PIECE: u64 = 4096;
/// The most runs that one file may be in, 16 MiB of memory: a file of 4 GiB whose clusters of 4 KiB all lie apart.
const MOST_RUNS: usize = 1 << 20;

/// The most directories that are known and not yet read, 24 MiB of memory: siblings of those on one way down.
const MOST_DIRECTORIES: usize = 1 << 20;

/// Location of a file or directory.
#[derive(Clone, Copy)]
struct Extent {
    first: u32,
    len: u64,
    /// `true` if its clusters are consecutive, without a chain in the table.
    contiguous: bool,
}

struct Walk<'a> {
    source: &'a dyn ByteSource,
    geometry: &'a Geometry,
    claims: Claims<'a>,
    /// A piece of the active table, and the byte at which it begins.
    piece: (u64, Vec<u8>),
    /// Clusters that no file has had yet.
    left: u64,
    /// Directories that are still to be read.
    directories: Vec<Extent>,
}

/// Checks that every cluster of every file and directory below the root is allocated in `bitmap`.
pub(super) fn check(
    source: &dyn ByteSource,
    geometry: &Geometry,
    bitmap: &ClusterBitmap,
    root: &[Segment],
) -> Result<(), Doubt> {
    let mut walk = Walk {
        source,
        geometry,
        claims: Claims::new(bitmap, source),
        piece: (u64::MAX, Vec::new()),
        left: geometry.clusters,
        directories: Vec::new(),
    };
    walk.directory(root)?;
    while let Some(extent) = walk.directories.pop() {
        let runs = walk.runs(extent)?;
        walk.directory(&runs)?;
    }
    walk.claims.check(false_claim)
}

/// Makes the doubt that the bitmap lacks a run of a file.
fn false_claim(claim: &Claim) -> Doubt {
    // Clusters count from 2.
    let (first, last) = (claim.first + 2, claim.end + 1);
    damaged(format!("its allocation bitmap has clusters of a file as free, from {first} to {last}"))
}

impl Walk<'_> {
    /// The entry of a cluster in the active table.
    fn next(&mut self, cluster: u32) -> Result<u32, Doubt> {
        let at = self.geometry.tables[0] + u64::from(cluster) * 4;
        let start = at - at % PIECE;
        if self.piece.0 != start {
            let len = PIECE.min(self.source.len().saturating_sub(start));
            self.piece = (start, self.source.bytes(start, len as usize)?);
        }
        Ok(le32(&self.piece.1, (at - start) as usize))
    }

    /// Returns the segments of a file's clusters.
    fn runs(&mut self, extent: Extent) -> Result<Vec<Segment>, Doubt> {
        let cluster = self.geometry.cluster;
        let clusters = extent.len.div_ceil(cluster);
        let start = self.geometry.place(extent.first)?;
        if extent.contiguous {
            let end = u64::from(extent.first).checked_add(clusters);
            if end.is_none_or(|end| end > self.geometry.clusters + 2) {
                return Err(damaged(format!(
                    "the file that begins at cluster {} reaches behind the last one",
                    extent.first
                )));
            }
            return Ok(vec![Segment { at: start, len: clusters * cluster }]);
        }
        let mut runs = vec![Segment { at: start, len: cluster }];
        let mut at = extent.first;
        for _ in 1..clusters {
            at = self.next(at)?;
            if at >= END_OF_CHAIN {
                return Err(damaged(format!(
                    "the chain that begins at cluster {} is too short for {} bytes",
                    extent.first, extent.len
                )));
            }
            let place = self.geometry.place(at)?;
            match runs.last_mut() {
                Some(last) if last.at + last.len == place => last.len += cluster,
                _ => runs.push(Segment { at: place, len: cluster }),
            }
            if runs.len() > MOST_RUNS {
                return Err(Doubt::new(format!(
                    "the file that begins at cluster {} is in too many pieces",
                    extent.first
                )));
            }
        }
        Ok(runs)
    }

    /// Checks the clusters of a file.
    fn file(&mut self, extent: Extent, is_directory: bool) -> Result<(), Doubt> {
        // An empty file has no cluster.
        if extent.len == 0 {
            return Ok(());
        }
        let clusters = extent.len.div_ceil(self.geometry.cluster);
        self.left = self.left.checked_sub(clusters).ok_or_else(|| {
            damaged(
                "its files have more clusters than there are: some share clusters, or folders go in circles",
            )
        })?;
        for run in self.runs(extent)? {
            let first = (run.at - self.geometry.heap) / self.geometry.cluster;
            let end = first + run.len / self.geometry.cluster;
            self.claims.push(Claim { first, end, owner: 0 }, false_claim)?;
        }
        if is_directory {
            if self.directories.len() == MOST_DIRECTORIES {
                return Err(Doubt::new("it has too many directories"));
            }
            self.directories.push(extent);
        }
        Ok(())
    }

    /// Reads a directory up to its end.
    fn directory(&mut self, runs: &[Segment]) -> Result<(), Doubt> {
        let mut attributes = 0;
        for run in runs {
            for start in (0..run.len).step_by(PIECE as usize) {
                let len = PIECE.min(run.len - start) as usize;
                let piece = self.source.bytes(run.at + start, len)?;
                for entry in piece.chunks_exact(ENTRY) {
                    if entry[0] == END_OF_DIRECTORY {
                        return Ok(());
                    }
                    self.entry(entry, &mut attributes)?;
                }
            }
        }
        Ok(())
    }

    /// Checks what an entry has allocated. `attributes` are those of the last file's entry, whose stream comes next.
    fn entry(&mut self, entry: &[u8], attributes: &mut u16) -> Result<(), Doubt> {
        let kind = entry[0];
        let extent = |flags: u8| Extent {
            first: le32(entry, 20),
            len: le64(entry, 24),
            contiguous: flags & NO_FAT_CHAIN != 0,
        };
        match kind {
            _ if kind & IN_USE == 0 => Ok(()),
            FILE => {
                *attributes = le16(entry, 4);
                Ok(())
            }
            STREAM_EXTENSION => self.file(extent(entry[1]), std::mem::take(attributes) & DIRECTORY != 0),
            // The bitmap and the up-case table are checked with the volume's own structures.
            ALLOCATION_BITMAP | UP_CASE_TABLE | VOLUME_LABEL | VOLUME_GUID | FILE_NAME => Ok(()),
            _ if kind & SECONDARY != 0 && entry[1] & ALLOCATION_POSSIBLE != 0 => {
                self.file(extent(entry[1]), false)
            }
            _ if kind & SECONDARY != 0 => Ok(()),
            _ if kind & BENIGN != 0 && entry[4] & ALLOCATION_POSSIBLE != 0 => {
                self.file(extent(entry[4]), false)
            }
            _ if kind & BENIGN != 0 => Ok(()),
            _ => Err(Doubt::new(format!("a directory has an entry of unknown type {kind:X}h"))),
        }
    }
}
