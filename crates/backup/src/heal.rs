//! Healing: what verification found damaged, and the source still has, is written again.
//!
//! The bytes of a leaf are put back where they lay in the sealed file: nothing else of it changes, so that children
//! still know it. Copies of a manifest are made of each other.

use std::collections::BTreeMap;
use std::ops::Range;

use lunway_block::{BlockDevice, Buf};
use lunway_vhdx::{Chain, Source};

use crate::catalogue::{Catalogue, open_disk};
use crate::error::{BackupError, Result};
use crate::folder::Folder;
use crate::history::{damaged, open_sidecar};
use crate::leaf::{Leaf, leaf_range};
use crate::manifest::{Manifest, PointId};
use crate::notes::{Damage, Notes};
use crate::seal::{protect, write_manifest};

/// What healing did.
#[derive(Default)]
pub(crate) struct Healed {
    /// For people.
    pub(crate) notes: Vec<String>,
    /// Ranges that the next point must look at.
    pub(crate) forced: Vec<Range<u64>>,
}

/// Heals what it can.
pub(crate) async fn heal(
    folder: &dyn Folder,
    catalogue: &Catalogue,
    source: &dyn BlockDevice,
) -> Result<Healed> {
    let mut healed = Healed::default();
    for point in catalogue.points().iter().filter(|point| point.copy_problem.is_some()) {
        write_manifest(folder, &point.manifest)?;
        protect(folder, &point.manifest.stem())?;
        healed.notes.push(format!("the manifest of point {} was written again", point.manifest.point));
    }
    let mut notes = Notes::load(folder);
    if notes.damage.is_empty() {
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
        let mut put_back = 0;
        let count = leaves.len();
        for (unit, leaf) in leaves {
            let range = leaf_range(unit, usize::from(leaf) % 16, manifest.virtual_bytes);
            healed.forced.push(range.clone());
            if put_back_leaf(folder, manifest, source, unit, leaf, range).await? {
                put_back += 1;
                notes.damage.retain(|damage| *damage != Damage::Leaf { point, unit, leaf });
            }
        }
        healed.notes.push(match count - put_back {
            0 => format!("point {point} was repaired: the source still had {put_back} damaged leaves"),
            lost => format!(
                "point {point} stays damaged: of {count} damaged leaves the source does not have {lost} any more"
            ),
        });
    }
    notes.store(folder)?;
    Ok(healed)
}

/// Writes a leaf again where the source has the same; `false`: it does not.
async fn put_back_leaf(
    folder: &dyn Folder,
    manifest: &Manifest,
    source: &dyn BlockDevice,
    unit: u32,
    leaf: u8,
    range: Range<u64>,
) -> Result<bool> {
    if range.is_empty() || range.end > source.geometry().size {
        return Ok(false);
    }
    let Ok(sidecar) = open_sidecar(folder, manifest) else { return Ok(false) };
    let held = sidecar.unit(unit).map_err(|error| damaged(manifest.point, &error))?;
    let Some(state) = held.and_then(|held| held.get(usize::from(leaf) % 16)) else { return Ok(false) };
    let buf = Buf::for_overwrite((range.end - range.start) as usize);
    let read = source.read(range.start, buf).await;
    let data = read.map_err(|error| BackupError::Source { offset: range.start, error })?;
    if Leaf::of(&data) != state {
        return Ok(false);
    }
    let name = folder.show(&manifest.disk_name());
    let disk = open_disk(folder, manifest)?;
    let disk = Chain::upper(vec![disk]).map_err(BackupError::open(&name))?;
    let mut places = Vec::new();
    let mapped = disk.map(range.start, range.end - range.start, |segment| places.push(segment));
    mapped.map_err(BackupError::disk(&name))?;
    if places.iter().any(|place| !matches!(place.source, Source::File(_))) {
        return Ok(false);
    }
    let writing = || BackupError::folder("writing", &name);
    folder.set_read_only(&manifest.disk_name(), false).map_err(writing())?;
    let storage = folder.open(&manifest.disk_name(), true).map_err(writing())?;
    for place in places {
        let Source::File(at) = place.source else { continue };
        let from = (place.offset - range.start) as usize;
        storage.write_at(at, &data[from..from + place.len as usize]).map_err(writing())?;
    }
    storage.flush().map_err(writing())?;
    protect(folder, &manifest.stem())?;
    Ok(true)
}
