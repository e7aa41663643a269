//! Merging: points that are given up go into the one above them, which stays.
//!
//! ```text
//!   1  STEM.merged.vhdx.incomplete, STEM.merged.leaves.incomplete   what both hold, the upper one's word counting
//!   2  verified: every leaf read back, the table checked
//!   3  STEM.merge.json                                              the commit
//!   4  both files take the names of the upper point's, its manifest is written again
//!   5  the files of the points that are given up are removed; then STEM.merge.json
//! ```
//!
//! The new file has the name and the DataWriteGuid of the one that it replaces, so that its children know it and are
//! not touched. The folder shows the same disks at every moment; a kill after step 3 is finished by the next writer.

use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, CreateOptions, DiscardMode, Disk, DiskKind, VhdxOpenOptions, create};

use crate::catalogue::Catalogue;
use crate::error::{BackupError, Result};
use crate::folder::{Folder, create_anew, write_whole};
use crate::guids::Guids;
use crate::history::History;
use crate::leaf::{LEAVES, Leaf, UNIT, UnitLeaves, leaf_range, units};
use crate::lease::Lease;
use crate::manifest::{Manifest, PointKind, disk_name, leaves_name, manifest_names, seal};
use crate::manifest_copies::write_manifest;
use crate::merge_record::{MERGE, Merge, is_merge, read};
use crate::point_files::{child_of, damaged, is_as_written, merged_names, open_disk, protect, release};
use crate::point_id::{PointId, parse_stem};
use crate::seal::measure;
use crate::sidecar::{Sidecar, Writer};

/// Finishes merges that a kill has interrupted after they were decided. The caller holds the lease.
pub(crate) fn finish(folder: &dyn Folder) -> Result<()> {
    let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
    for name in names.iter().filter(|name| is_merge(name)) {
        carry_out(folder, &read(folder, name)?)?;
    }
    Ok(())
}

/// Steps 4 and 5, as far as they are not done yet.
fn carry_out(folder: &dyn Folder, merge: &Merge) -> Result<()> {
    let stem = merge.manifest.stem();
    let renaming = || BackupError::folder("renaming", &folder.show(&stem));
    let there = folder.names().map_err(renaming())?;
    let [disk, leaves] = merged_names(&stem);
    for (from, to) in [(disk, disk_name(&stem)), (leaves, leaves_name(&stem))] {
        if there.contains(&from) {
            release(folder, &to);
            folder.rename(&from, &to).map_err(renaming())?;
        }
    }
    folder.sync().map_err(renaming())?;
    write_manifest(folder, &merge.manifest)?;
    protect(folder, &stem)?;
    for removed in merge.removed.iter().filter(|removed| parse_stem(removed).is_some()) {
        remove_point(folder, removed)?;
    }
    let name = format!("{stem}{MERGE}");
    folder.remove(&name).map_err(renaming())?;
    folder.sync().map_err(renaming())
}

/// Removes a point that no other lies on: first what makes it one.
pub(crate) fn remove_point(folder: &dyn Folder, stem: &str) -> Result<()> {
    let removing = || BackupError::folder("removing", &folder.show(stem));
    let [copy, first] = manifest_names(stem);
    [&first, &copy, &disk_name(stem), &leaves_name(stem)].iter().for_each(|name| release(folder, name));
    folder.remove(&first).map_err(removing())?;
    folder.remove(&copy).map_err(removing())?;
    folder.sync().map_err(removing())?;
    for name in [disk_name(stem), leaves_name(stem)] {
        folder.remove(&name).map_err(removing())?;
    }
    folder.sync().map_err(removing())
}

/// Merges points that follow each other, the lowest first, into the one that lies on the last of them: what that is
/// then.
///
/// # Errors
///
/// Why nothing was changed: a damaged leaf, a full destination.
pub(crate) fn merge(
    folder: &dyn Folder,
    lease: &Lease<'_>,
    guids: &Guids,
    catalogue: &Catalogue,
    given_up: &[PointId],
    into: PointId,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Manifest> {
    let upper = upper(catalogue, given_up, into)?;
    let (Some(top), Some(lowest)) = (upper.first(), upper.last()) else { return Err(BackupError::Lost) };
    let mut manifest = (*top).clone();
    manifest.parent = lowest.parent;
    manifest.kind = lowest.kind;
    manifest.merged = [manifest.merged, given_up.to_vec()].concat();
    // What a point that is given up left out is left out of this one, too: of each reason the most.
    for skipped in upper[1..].iter().flat_map(|lower| &lower.skipped) {
        match manifest.skipped.iter_mut().find(|known| known.why == skipped.why) {
            Some(known) => known.bytes = known.bytes.max(skipped.bytes),
            None => manifest.skipped.push(skipped.clone()),
        }
    }
    let removed = upper[1..].iter().map(|manifest| manifest.stem()).collect();
    let made = make(folder, lease, guids, catalogue, &upper, &mut manifest, progress);
    made.inspect_err(|error| abandon(folder, &manifest.stem(), error))?;
    let merge = Merge { manifest, removed };
    let stem = merge.manifest.stem();
    let decided = write_whole(folder, &format!("{stem}{MERGE}"), &seal(&merge));
    decided.inspect_err(|error| abandon(folder, &stem, error))?;
    folder.sync().map_err(BackupError::folder("making", &folder.show(&stem)))?;
    carry_out(folder, &merge)?;
    Ok(merge.manifest)
}

/// The points that a merge is about, the one that stays first, as they lie on each other.
fn upper<'a>(catalogue: &'a Catalogue, given_up: &[PointId], into: PointId) -> Result<Vec<&'a Manifest>> {
    let chain = catalogue.chain(into)?;
    let upper: Vec<&Manifest> = chain.iter().copied().take(given_up.len() + 1).collect();
    let Some(top) = upper.first() else { return Err(BackupError::Lost) };
    let is_run = upper[1..].iter().rev().map(|manifest| manifest.point).eq(given_up.iter().copied());
    if !is_run || upper.iter().any(|manifest| manifest.virtual_bytes != top.virtual_bytes) {
        return Err(BackupError::Refused(format!("point {into} cannot take up the points below it")));
    }
    Ok(upper)
}

/// Bytes that a merge takes at most, beside the points that there are.
pub(crate) fn needed(catalogue: &Catalogue, given_up: &[PointId], into: PointId) -> u64 {
    let points = given_up.iter().chain([&into]).filter_map(|point| catalogue.get(*point));
    points.map(|manifest| manifest.file_bytes + manifest.leaves_bytes).sum()
}

/// Reads what a merge would keep, and compares it with its hashes, as the merge does.
///
/// # Errors
///
/// A damaged leaf.
pub(crate) fn examine(
    folder: &dyn Folder,
    catalogue: &Catalogue,
    given_up: &[PointId],
    into: PointId,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let upper = upper(catalogue, given_up, into)?;
    let Some(top) = upper.first() else { return Err(BackupError::Lost) };
    let (whole, history) = (catalogue.open(folder, into)?, History::open(folder, &upper)?);
    fill(top, &history, &whole, None, &folder.show(&top.disk_name()), progress)
}

/// Steps 1 and 2: the files of the point as it is to be.
fn make(
    folder: &dyn Folder,
    lease: &Lease<'_>,
    guids: &Guids,
    catalogue: &Catalogue,
    upper: &[&Manifest],
    manifest: &mut Manifest,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let [disk_file, leaves_file] = merged_names(&manifest.stem());
    let making = || BackupError::folder("making", &folder.show(&disk_file));
    let disk = new_disk(folder, guids, catalogue, manifest, &disk_file)?;
    let leaves = create_anew(folder, &leaves_file).map_err(making())?;
    let mut writer = Writer::create(leaves, manifest.point).map_err(making())?;
    let whole = catalogue.open(folder, manifest.point)?;
    let history = History::open(folder, upper)?;
    let new = Some((&disk, &mut writer));
    fill(manifest, &history, &whole, new, &folder.show(&disk_file), progress)?;
    disk.flush().map_err(BackupError::disk(&folder.show(&disk_file)))?;
    let data_write = disk.disks()[0].data_write_guid_now();
    disk.close().map_err(BackupError::disk(&folder.show(&disk_file)))?;
    writer.finish().map_err(making())?;
    let before = manifest.data_write.clone();
    measure(folder, manifest, (&disk_file, data_write), &leaves_file, None)
        .map_err(BackupError::exchanged)?;
    if manifest.data_write != before {
        return Err(BackupError::Lost);
    }
    read_back(folder, manifest, &disk_file, &leaves_file).map_err(BackupError::exchanged)?;
    folder.sync().map_err(making())?;
    lease.check()
}

/// Removes the files of a merge that was not decided: a folder without room has none for them either. Those of another
/// writer, which has taken the folder meanwhile, stay, and so do those of a merge that is decided all the same.
fn abandon(folder: &dyn Folder, stem: &str, error: &BackupError) {
    let is_ours = !matches!(error, BackupError::LeaseLost | BackupError::LeaseGone);
    let decision = format!("{stem}{MERGE}");
    if !is_ours || !folder.names().is_ok_and(|names| !names.contains(&decision)) {
        return;
    }
    for name in merged_names(stem) {
        // The next merge removes what is left.
        let _ = folder.remove(&name);
    }
}

/// An empty disk with the identity of the one that it is to replace.
fn new_disk(
    folder: &dyn Folder,
    guids: &Guids,
    catalogue: &Catalogue,
    manifest: &Manifest,
    file: &str,
) -> Result<Chain<crate::folder::Open>> {
    let name = folder.show(file);
    let old = open_disk(folder, manifest)?;
    let disk_id = old.parameters().disk_id;
    let data_write = old.data_write_guid();
    let mut options = match manifest.parent.map(|parent| catalogue.get(parent)) {
        None => CreateOptions::new(DiskKind::Dynamic, manifest.virtual_bytes, disk_id),
        Some(None) => return Err(BackupError::Lost),
        Some(Some(parent)) => child_of(folder, parent, manifest.virtual_bytes)?,
    };
    options.parameters = lunway_vhdx::Parameters {
        disk_size: manifest.virtual_bytes,
        block_size: UNIT as u32,
        disk_id,
        logical_sector: old.parameters().logical_sector,
        physical_sector: old.parameters().physical_sector,
        ..options.parameters
    };
    let storage = create_anew(folder, file).map_err(BackupError::folder("making", &name))?;
    // A new file takes two: its own, and the one by which children know it.
    let mut random = guids();
    let mut given = vec![data_write, random.next()];
    let mut next = move || given.pop().unwrap_or_else(|| random.next());
    create(&storage, &options, &mut next).map_err(|source| match source {
        lunway_vhdx::CreateError::Storage(error) => BackupError::folder("making", &name)(error),
        source => BackupError::Create { name: name.clone(), source },
    })?;
    let options = VhdxOpenOptions { data_write: Some(data_write), ..VhdxOpenOptions::writable() };
    let disk = Disk::open(storage, &options, guids()).map_err(BackupError::open(&name))?;
    Chain::upper(vec![disk]).map_err(BackupError::open(&name))
}

/// Reads what the points hold, and writes it to a new file, if there is one. What is read is compared with its hash:
/// damage is never carried on.
fn fill(
    manifest: &Manifest,
    history: &History,
    whole: &Chain<crate::folder::Open>,
    mut new: Option<(&Chain<crate::folder::Open>, &mut Writer)>,
    name: &str,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let size = manifest.virtual_bytes;
    let mut at = 0;
    let mut buf = vec![0; UNIT as usize];
    while let Some(unit) = history.next(at)?.filter(|unit| *unit < units(size)) {
        if !progress(u64::from(unit) * UNIT, size) {
            return Err(BackupError::Cancelled);
        }
        let mut held = UnitLeaves::none(unit);
        for (leaf, (state, layer)) in history.unit_with_layers(unit)?.into_iter().enumerate() {
            let range = leaf_range(unit, leaf, size);
            if layer.is_none() || range.is_empty() {
                continue;
            }
            match state {
                Leaf::Zero if manifest.kind == PointKind::Full => continue,
                Leaf::Zero => {
                    if let Some((disk, _)) = &new {
                        let zeroed = disk.discard(range.start, range.end - range.start, DiscardMode::Zero);
                        zeroed.map_err(BackupError::disk(name))?;
                    }
                }
                Leaf::Data(_) => {
                    let bytes = &mut buf[..(range.end - range.start) as usize];
                    whole.read_at(range.start, bytes).map_err(BackupError::disk(name))?;
                    if Leaf::of(bytes) != state {
                        let point = layer.and_then(|layer| history.layers().get(layer));
                        let what = format!("its data at offset {} are not what was sent", range.start);
                        return Err(BackupError::Damaged {
                            point: point.map_or(manifest.point, |layer| layer.point),
                            what,
                        });
                    }
                    if let Some((disk, _)) = &new {
                        disk.write_at(range.start, bytes).map_err(BackupError::disk(name))?;
                    }
                }
            }
            held.set(leaf, state);
        }
        if let Some((_, writer)) = &mut new {
            writer.push(held).map_err(BackupError::folder("writing", name))?;
        }
        at = unit + 1;
    }
    Ok(())
}

/// Reads every leaf of a new file again.
fn read_back(folder: &dyn Folder, manifest: &Manifest, disk_file: &str, leaves_file: &str) -> Result<()> {
    let name = folder.show(disk_file);
    let opening = || BackupError::folder("opening", &name);
    let storage = folder.open(disk_file, false).map_err(opening())?;
    let disk = Disk::open(storage, &VhdxOpenOptions::read_only(), Box::new(|| Guid::ZERO));
    let disk =
        Chain::upper(vec![disk.map_err(BackupError::open(&name))?]).map_err(BackupError::open(&name))?;
    let leaves = folder.open(leaves_file, false).map_err(opening())?;
    let sidecar = Sidecar::open(leaves, manifest.point).map_err(|error| damaged(manifest.point, error))?;
    for index in 0..sidecar.segments().len() {
        let units = sidecar.segment(index).map_err(|error| damaged(manifest.point, error))?;
        for unit in units.iter() {
            for leaf in 0..LEAVES {
                let Some(state) = unit.get(leaf) else { continue };
                let range = leaf_range(unit.unit, leaf, manifest.virtual_bytes);
                if !is_as_written(&disk, &name, range.clone(), state)? {
                    let what =
                        format!("{name} does not hold at offset {} what was just written", range.start);
                    return Err(BackupError::Damaged { point: manifest.point, what });
                }
            }
        }
    }
    Ok(())
}
