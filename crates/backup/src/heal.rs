//! Healing: what verification found damaged, and the source still has, is written again.
//!
//! The bytes of a leaf are put back where they lay in the sealed file: nothing else of it changes, so that children
//! still know it. Copies of a manifest are made of each other.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use lunway_block::{BlockDevice, Buf};
use lunway_vhdx::{Chain, SegmentSource};

use crate::catalogue::Catalogue;
use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open};
use crate::leaf::{Leaf, Lost, leaf_range};
use crate::manifest::Manifest;
use crate::manifest_copies::write_manifest;
use crate::notes::{Damage, Notes};
use crate::point_files::{damaged, open_disk, open_sidecar, protect};
use crate::point_id::PointId;
use crate::threads::both;

/// Result of healing.
#[derive(Default)]
pub(crate) struct Healed {
    /// For people.
    pub(crate) notes: Vec<String>,
    /// Ranges that the next point must look at.
    pub(crate) forced: Vec<Range<u64>>,
    /// What verification has found, as it stands now.
    pub(crate) checks: Notes,
    /// Leaves that stay damaged: the next point holds what the source has there, also where its hash is the same.
    pub(crate) lost: Lost,
}

/// Result for one damaged leaf.
enum Mended {
    /// Put back.
    PutBack,
    /// The source has other data there.
    Changed,
    /// The table of the point's file leads elsewhere, so that there is no place to put it.
    NoPlace,
}

/// What is to be healed.
pub(crate) struct Ailing {
    /// Points with a copy of the manifest that is missing or damaged.
    copies: Vec<PointId>,
    notes: Notes,
}

impl Ailing {
    /// Reads it. Blocks.
    pub(crate) fn look(folder: &dyn Folder, catalogue: &Catalogue) -> Result<Self> {
        let load = || if catalogue.has_notes { Notes::load(folder) } else { Ok(Notes::default()) };
        let (problems, notes) = both(|| catalogue.copy_problems(folder), load);
        let copies = problems?.into_iter().map(|(manifest, _)| manifest.point).collect();
        Ok(Self { copies, notes: notes? })
    }
}

/// Heals what it can.
pub(crate) async fn heal(
    folder: &dyn Folder,
    catalogue: &Catalogue,
    source: &dyn BlockDevice,
    Ailing { copies, mut notes }: Ailing,
) -> Result<Healed> {
    let mut healed = Healed::default();
    for manifest in copies.into_iter().filter_map(|point| catalogue.get(point)) {
        write_manifest(folder, manifest)?;
        protect(folder, &manifest.stem())?;
        healed.notes.push(format!("the manifest of point {} was written again", manifest.point));
    }
    if notes.damage.is_empty() {
        healed.checks = notes;
        return Ok(healed);
    }
    let mut by_point: BTreeMap<PointId, Vec<(u32, u8)>> = BTreeMap::new();
    for damage in &notes.damage {
        if let Damage::Leaf { point, unit, leaf } = damage {
            by_point.entry(*point).or_default().push((*unit, *leaf));
        }
    }
    // Of points that are gone nothing is left to heal.
    notes.damage.retain(|damage| catalogue.get(damage.point()).is_some());
    for (point, leaves) in by_point {
        let Some(manifest) = catalogue.get(point) else { continue };
        let count = leaves.len();
        let mut put_back = HashSet::new();
        let (mut changed, mut without_place) = (0, 0);
        for (unit, leaf) in leaves {
            let range = leaf_range(unit, usize::from(leaf) % 16, manifest.virtual_bytes);
            healed.forced.push(range.clone());
            match put_back_leaf(folder, manifest, source, unit, leaf, range).await? {
                Mended::PutBack => {
                    put_back.insert((unit, leaf));
                    continue;
                }
                Mended::Changed => changed += 1,
                Mended::NoPlace => without_place += 1,
            }
            healed.lost.insert((point, unit, leaf));
        }
        notes.damage.retain(|damage| match damage {
            Damage::Leaf { point: of, unit, leaf } => *of != point || !put_back.contains(&(*unit, *leaf)),
            Damage::Point { .. } => true,
        });
        let mut lost = Vec::new();
        if changed > 0 {
            lost.push(format!("the source does not have {changed} any more"));
        }
        if without_place > 0 {
            lost.push(format!("{without_place} have no place any more in its damaged file"));
        }
        healed.notes.push(match lost.is_empty() {
            true => format!("point {point} was repaired: the source still had {count} damaged leaves"),
            false => format!(
                "point {point} stays damaged: of {count} damaged leaves {}; this backup does not depend on them",
                lost.join(" and ")
            ),
        });
    }
    notes.store(folder)?;
    healed.checks = notes;
    Ok(healed)
}

/// Writes a leaf again where the source has the same.
async fn put_back_leaf(
    folder: &dyn Folder,
    manifest: &Manifest,
    source: &dyn BlockDevice,
    unit: u32,
    leaf: u8,
    range: Range<u64>,
) -> Result<Mended> {
    if range.is_empty() || range.end > source.geometry().size {
        return Ok(Mended::Changed);
    }
    let (state, disk) = match open(folder, manifest, unit, leaf) {
        Ok(Some(opened)) => opened,
        // A point of which a whole file is damaged has no place for a leaf.
        Ok(None) | Err(BackupError::Damaged { .. }) => return Ok(Mended::NoPlace),
        Err(error) => return Err(error),
    };
    let buf = Buf::for_overwrite((range.end - range.start) as usize);
    let read = source.read(range.start, buf).await;
    let data = read.map_err(|error| BackupError::Source { offset: range.start, error })?;
    if Leaf::of(&data) != state {
        return Ok(Mended::Changed);
    }
    let name = folder.show(&manifest.disk_name());
    let mut places = Vec::new();
    let mapped = disk.map(range.start, range.end - range.start, |segment| places.push(segment));
    mapped.map_err(BackupError::disk(&name))?;
    if places.iter().any(|place| !matches!(place.source, SegmentSource::File(_))) {
        return Ok(Mended::NoPlace);
    }
    let writing = || BackupError::folder("writing", &name);
    folder.set_read_only(&manifest.disk_name(), false).map_err(writing())?;
    let storage = folder.open(&manifest.disk_name(), true).map_err(writing())?;
    for place in places {
        let SegmentSource::File(at) = place.source else { continue };
        let from = (place.offset - range.start) as usize;
        storage.write_at(at, &data[from..from + place.len as usize]).map_err(writing())?;
    }
    storage.flush().map_err(writing())?;
    protect(folder, &manifest.stem())?;
    Ok(Mended::PutBack)
}

/// Returns a leaf's recorded state and the file that holds it; `None` if the point does not hold it.
fn open(
    folder: &dyn Folder,
    manifest: &Manifest,
    unit: u32,
    leaf: u8,
) -> Result<Option<(Leaf, Chain<Open>)>> {
    let sidecar = open_sidecar(folder, manifest)?;
    let held = sidecar.unit(unit).map_err(|error| damaged(manifest.point, error))?;
    let Some(state) = held.and_then(|held| held.get(usize::from(leaf) % 16)) else { return Ok(None) };
    let disk = open_disk(folder, manifest)?;
    let name = folder.show(&manifest.disk_name());
    Ok(Some((state, Chain::upper(vec![disk]).map_err(BackupError::open(&name))?)))
}
