//! Proof that no file of a FAT volume leads into free clusters: each link of the table leads to a cluster that is in
//! use, and each file and directory begins with one. By induction every cluster of every file is in use, although only
//! directories are followed.

use super::{DIRECTORY_MAX, ENTRY, Geometry, Width, damaged};
use crate::fields::le16;
use crate::source::{ByteSource, LARGEST};
use crate::volume::Doubt;
use std::ops::Range;

/// Offsets in a directory's entry, and marks in its first byte ("FAT Directory Structure").
const ATTRIBUTES: usize = 11;
const FIRST_HIGH: usize = 20;
const FIRST_LOW: usize = 26;
const NO_MORE: u8 = 0;
const DELETED: u8 = 0xE5;
/// Names of the directory itself, and of the one above it.
const DOT: &[u8] = b".          ";
const DOT_DOT: &[u8] = b"..         ";

/// Attributes. A long name has both of the first two and more.
const VOLUME_LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;

/// Length of a read of a directory: most end in their first page.
const PIECE: u64 = 4096;

/// A bit for each cluster, 1 where it is free: 32 MiB for the largest FAT32, and only while the volume is examined.
pub(super) struct FreeClusters(Vec<u8>);

impl FreeClusters {
    pub(super) fn new(clusters: u64) -> Self {
        Self(vec![0; clusters.div_ceil(8) as usize])
    }

    /// Cluster 0 is the first, entry 2 of the table.
    pub(super) fn insert(&mut self, clusters: Range<u64>) {
        for cluster in clusters {
            if let Some(byte) = self.0.get_mut((cluster / 8) as usize) {
                *byte |= 1 << (cluster % 8);
            }
        }
    }

    fn has(&self, entry: u64) -> bool {
        let cluster = entry.wrapping_sub(2);
        self.0.get((cluster / 8) as usize).is_some_and(|byte| byte >> (cluster % 8) & 1 == 1)
    }
}

/// Checks all links of all tables, and all directories from the root on: `root` is its first cluster on FAT32.
pub(super) fn check(
    source: &dyn ByteSource,
    geometry: &Geometry,
    free: &FreeClusters,
    root: Option<u64>,
) -> Result<(), Doubt> {
    for table in &geometry.tables {
        links(source, geometry, free, *table)?;
    }
    let mut walk = Walk { source, geometry, free, left: geometry.clusters, directories: Vec::new() };
    match root {
        Some(first) => walk.directories.push(first),
        None => {
            walk.entries(geometry.root.clone())?;
        }
    }
    while let Some(first) = walk.directories.pop() {
        walk.directory(first)?;
    }
    Ok(())
}

/// Checks that every link of one table leads to a cluster in use.
fn links(source: &dyn ByteSource, geometry: &Geometry, free: &FreeClusters, table: u64) -> Result<(), Doubt> {
    // Entries that fill at most LARGEST bytes in any width, and an even number of them.
    const STEP: u64 = LARGEST as u64 / 4;
    let end = geometry.clusters + 2;
    for start in (2..end).step_by(STEP as usize) {
        let count = STEP.min(end - start);
        let offset = geometry.width.offset(start);
        let part = source.bytes(table + offset, geometry.width.bytes(count) as usize)?;
        for at in 0..count {
            let next = u64::from(geometry.width.entry(&part, at));
            if next == 0 || next >= u64::from(geometry.width.bad_cluster()) {
                continue;
            }
            if next == 1 || next >= end {
                return Err(damaged(format!(
                    "cluster {} leads to cluster {next}, which it does not have",
                    start + at
                )));
            }
            if free.has(next) {
                return Err(damaged(format!(
                    "cluster {} leads to cluster {next}, which is free",
                    start + at
                )));
            }
        }
    }
    Ok(())
}

struct Walk<'a> {
    source: &'a dyn ByteSource,
    geometry: &'a Geometry,
    free: &'a FreeClusters,
    /// Clusters that no directory has had yet: directories are disjoint, so that one that leads back ends the walk.
    left: u64,
    /// The first clusters of directories that are still to be read.
    directories: Vec<u64>,
}

impl Walk<'_> {
    fn directory(&mut self, first: u64) -> Result<(), Doubt> {
        let Geometry { heap, cluster, .. } = *self.geometry;
        let mut at = first;
        for _ in 0..=DIRECTORY_MAX / cluster {
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                damaged("its directories have more clusters than there are: they go in circles")
            })?;
            let place = heap + (at - 2) * cluster;
            if !self.entries(place..place + cluster)? {
                return Ok(());
            }
            let next = self.geometry.entry(self.source, at)?;
            if next > self.geometry.width.bad_cluster() {
                return Ok(());
            }
            at = u64::from(next);
            self.in_use(at)?;
        }
        Err(damaged(format!(
            "the directory at cluster {first} is longer than a directory can be, or goes in circles"
        )))
    }

    /// Checks that a file or directory may begin, or go on, with this cluster.
    fn in_use(&self, cluster: u64) -> Result<(), Doubt> {
        if !(2..self.geometry.clusters + 2).contains(&cluster) {
            return Err(damaged(format!("a file begins at cluster {cluster}, which it does not have")));
        }
        if self.free.has(cluster) {
            return Err(damaged(format!("a file begins at cluster {cluster}, which is free")));
        }
        Ok(())
    }

    /// Reads the entries of a part of a directory; whether the directory may go on behind it.
    fn entries(&mut self, part: Range<u64>) -> Result<bool, Doubt> {
        for start in part.clone().step_by(PIECE as usize) {
            let piece = self.source.bytes(start, PIECE.min(part.end - start) as usize)?;
            for entry in piece.chunks_exact(ENTRY as usize) {
                let attributes = entry[ATTRIBUTES];
                match entry[0] {
                    NO_MORE => return Ok(false),
                    DELETED => continue,
                    _ if [DOT, DOT_DOT].iter().any(|name| entry.starts_with(name)) => continue,
                    _ if attributes & VOLUME_LABEL != 0 => continue,
                    _ => {}
                }
                let high = if self.geometry.width == Width::Fat32 { le16(entry, FIRST_HIGH) } else { 0 };
                let first = (u32::from(high) << 16 | u32::from(le16(entry, FIRST_LOW))) & 0x0FFF_FFFF;
                // An empty file has no cluster.
                if first == 0 {
                    continue;
                }
                self.in_use(u64::from(first))?;
                if attributes & DIRECTORY != 0 {
                    self.directories.push(u64::from(first));
                }
            }
        }
        Ok(true)
    }
}
