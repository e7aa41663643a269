//! Leftovers: incomplete points of runs that were stopped. The next run goes on with one; who needs their room gives
//! them up.

use crate::catalogue::Catalogue;
use crate::draft::{discard, sweep};
use crate::error::{BackupError, Result};
use crate::folder::Folder;
use crate::journal;
use crate::leaf::UNIT;
use crate::lease::Lease;
use crate::manifest::PointKind;
use crate::point_files::Names;
use crate::point_id::{PointId, stem};

/// An incomplete point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The id that it was to have.
    pub point: PointId,
    /// Bytes that its files take.
    pub bytes: u64,
}

/// The incomplete points of a folder.
///
/// # Errors
///
/// Where the folder cannot be read.
pub fn leftovers(folder: &dyn Folder, catalogue: &Catalogue) -> Result<Vec<Leftover>> {
    let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
    let mut left = Vec::new();
    for name in &catalogue.journals {
        let Some(read) = journal::read(folder, name)? else { continue };
        let point = read.plan.point;
        // Of one that is sealed nothing but the journal is left.
        if catalogue.get(point).is_some() {
            continue;
        }
        let stem = stem(read.plan.generation, point);
        let mut bytes = 0;
        for file in names.iter().filter(|file| file.starts_with(&stem)) {
            let data = folder.data(file).map_err(BackupError::folder("reading", &folder.show(file)))?;
            bytes += data.iter().map(|(_, len)| len).sum::<u64>();
        }
        left.push(Leftover { point, bytes });
    }
    Ok(left)
}

/// Removes the incomplete points of a folder. The caller has its lease: no other run goes on with them.
///
/// # Errors
///
/// Where the folder cannot be read or written; where the lease is another's by now.
pub fn remove_leftovers(folder: &dyn Folder, lease: &Lease<'_>) -> Result<Vec<Leftover>> {
    lease.check()?;
    let catalogue = Catalogue::load(folder)?;
    let left = leftovers(folder, &catalogue)?;
    for name in &catalogue.journals {
        match journal::read(folder, name)? {
            Some(read) if catalogue.get(read.plan.point).is_none() => {
                discard(folder, &Names::of(&read.plan))?;
            }
            _ => {}
        }
    }
    sweep(folder, None)?;
    Ok(left)
}

/// Most bytes that a new point takes of which so many units hold data, on a disk of so many units.
pub(crate) fn room_needed(kind: PointKind, data_units: u64, units: u64) -> u64 {
    /// Headers, log, metadata and regions of a VHDX file, the manifest twice, the journal.
    const FIXED: u64 = 8 << 20;
    /// Hashes of a unit, 16 of 32 bytes, with its part of a segment and of the journal.
    const HASHES: u64 = 1 << 10;
    /// Entries of the block table, for a unit and its part of a sector bitmap block.
    const ENTRIES: u64 = 16;
    /// A sector bitmap block covers 4 GiB of a disk with sectors of 512 bytes, and more of another one.
    const BITMAP: u64 = 4096;
    let bitmaps = match kind {
        PointKind::Full => 0,
        PointKind::Increment => units.div_ceil(BITMAP) * UNIT,
    };
    data_units * (UNIT + HASHES) + units * ENTRIES + bitmaps + FIXED
}
