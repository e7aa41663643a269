//! Verification: whether a destination holds what was sent, and whom it concerns where it does not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use lunway_vhdx::Chain;

use crate::access::{RetryingFolder, checked};
use crate::catalogue::Catalogue;
use crate::error::{BackupError, Result, is_of_the_file};
use crate::folder::{Folder, Open};
use crate::leaf::{LEAVES, UnitLeaves, leaf_range};
use crate::manifest::Manifest;
use crate::notes::{Damage, LEAVES_NOTED_MAX, Notes};
use crate::point_files::{is_as_written, open_disk, open_sidecar};
use crate::point_id::PointId;
use crate::sidecar::{Sidecar, SidecarError};
use crate::skeleton::skeleton;

/// Scope of a verification.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verification {
    /// A point and those on which it lies; `None`: all.
    pub point: Option<PointId>,
    /// Of the leaves, so many of a thousand, chosen by `seed`; `None`: all of them, and all other bytes too.
    pub sample_permille: Option<u16>,
    /// Chooses the sample.
    pub seed: u64,
    /// For how long what cannot be read is tried again before the verification ends with that error.
    pub patience: Duration,
}

/// Damage that a verification found, and the points that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDamage {
    /// The damage, as recorded in the notes.
    pub damage: Damage,
    /// Description and location of the fault.
    pub what: String,
    /// Points that show it.
    pub concerned: Vec<PointId>,
}

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Points that were looked at.
    pub points: usize,
    /// Bytes of leaves that were compared with their hashes.
    pub bytes: u64,
    /// Damage found.
    pub findings: Vec<FoundDamage>,
    /// Irregularities that harm no point.
    pub remarks: Vec<String>,
    /// Points that are whole: everything was read.
    pub whole: Vec<PointId>,
}

struct Verifier<'a> {
    folder: &'a dyn Folder,
    catalogue: &'a Catalogue,
    verification: Verification,
    report: Report,
    sidecars: HashMap<PointId, Option<Sidecar>>,
    is_cancelled: &'a dyn Fn() -> bool,
}

/// Verifies a destination. Nothing is written. `progress` hears bytes that were dealt with, and all of them.
///
/// # Errors
///
/// Where the folder, or a file that is there, cannot be read: that is no damage, and nothing is known of what follows.
/// What is damaged is in the report.
pub fn verify(
    folder: &dyn Folder,
    catalogue: &Catalogue,
    verification: Verification,
    is_cancelled: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    let retrying = RetryingFolder { inner: folder, patience: verification.patience };
    let mut verifier = Verifier {
        folder: &retrying,
        catalogue,
        verification,
        report: Report::default(),
        sidecars: HashMap::new(),
        is_cancelled,
    };
    let points: Vec<&Manifest> = match verification.point {
        Some(point) => catalogue.chain(point)?,
        None => catalogue.points().iter().map(|point| &point.manifest).collect(),
    };
    if verification.point.is_none() {
        verifier.manifests()?;
    }
    let total: u64 = points.iter().map(|manifest| manifest.file_bytes).sum();
    let mut done = 0;
    for manifest in &points {
        verifier.point(manifest, &mut |within| progress(done + within.min(manifest.file_bytes), total))?;
        done += manifest.file_bytes;
        progress(done, total);
    }
    verifier.report.points = points.len();
    if verification.sample_permille.is_none() {
        let damaged: Vec<PointId> =
            verifier.report.findings.iter().flat_map(|found| found.concerned.clone()).collect();
        let whole = points.iter().map(|manifest| manifest.point).filter(|point| !damaged.contains(point));
        verifier.report.whole = whole.collect();
    }
    Ok(verifier.report)
}

impl Report {
    /// Enters what was found into the notes. The caller holds the lease.
    ///
    /// # Errors
    ///
    /// Where they cannot be written.
    pub fn note(&self, folder: &dyn Folder, verification: &Verification) -> Result<()> {
        let mut notes = Notes::load(folder)?;
        if verification.sample_permille.is_none() && verification.point.is_none() {
            notes = Notes::default();
        }
        notes.verified.extend(&self.whole);
        notes.verified.retain(|point| !self.findings.iter().any(|found| found.concerned.contains(point)));
        notes.verified.sort_unstable();
        notes.verified.dedup();
        notes.damage.retain(|damage| !self.whole.contains(&damage.point()));
        notes.damage.extend(self.findings.iter().map(|found| found.damage.clone()));
        notes.damage.sort();
        notes.damage.dedup();
        notes.store(folder)
    }
}

impl Verifier<'_> {
    fn manifests(&mut self) -> Result<()> {
        for (manifest, problem) in self.catalogue.copy_problems(self.folder)? {
            self.report.remarks.push(format!(
                "point {}: {problem}; the other copy is whole, the next run writes it again",
                manifest.point
            ));
        }
        self.report.remarks.extend(self.catalogue.misnamed().iter().cloned());
        for unreadable in self.catalogue.unreadable() {
            let what = format!("{}; no run repairs that: put it back, or remove the point", unreadable.what);
            self.add(unreadable.point, what);
        }
        Ok(())
    }

    /// Something of a point is damaged that concerns all that lie on it.
    fn add(&mut self, point: PointId, what: String) {
        let damage = Damage::Point { point, what: what.clone() };
        let concerned = self.catalogue.concerned(point);
        self.report.findings.push(FoundDamage { damage, what, concerned });
    }

    fn point(&mut self, manifest: &Manifest, progress: &mut dyn FnMut(u64)) -> Result<()> {
        match self.try_point(manifest, progress) {
            Err(BackupError::Damaged { point, what }) => {
                self.add(point, what);
                Ok(())
            }
            // A file that became shorter, or has gone, while it was read.
            Err(BackupError::Folder { what, name, source }) if is_of_the_file(source.kind()) => {
                self.add(manifest.point, format!("{what} {name}: {source}"));
                Ok(())
            }
            other => other,
        }
    }

    fn try_point(&mut self, manifest: &Manifest, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let file = manifest.disk_name();
        let name = self.folder.show(&file);
        let damaged = |what: String| BackupError::Damaged { point: manifest.point, what };
        let disk = open_disk(self.folder, manifest)?;
        let checked = checked(disk.storage(), &name)?;
        if let Some(finding) = checked.findings.first().filter(|_| checked.is_damaged()) {
            return Err(damaged(format!("{name}: {} at byte {}", finding.problem, finding.offset)));
        }
        if disk.data_write_guid().to_string() != manifest.data_write {
            return Err(damaged(format!(
                "{name} was written to after it was sealed: a disk that was mounted read-write no longer \
                 belongs to the chain"
            )));
        }
        if let Some(parent) = manifest.parent.and_then(|parent| self.catalogue.get(parent)) {
            let fits = disk
                .parameters()
                .locator
                .as_ref()
                .is_some_and(|locator| parent.data_write.parse().is_ok_and(|guid| locator.matches(guid)));
            if !fits {
                return Err(damaged(format!("{name} is not a child of the file of point {}", parent.point)));
            }
        } else if let Some(parent) = manifest.parent {
            return Err(damaged(format!("its parent, point {parent}, is missing or cannot be read")));
        }
        let sidecar = open_sidecar(self.folder, manifest)?;
        let disk = Chain::upper(vec![disk]).map_err(BackupError::open(&name))?;
        if manifest.merging {
            self.report.remarks.push(format!(
                "point {}: a merge is not finished; the next run or prune finishes it",
                manifest.point
            ));
        } else if self.verification.sample_permille.is_none() {
            let len = disk.disks()[0].storage().len().map_err(BackupError::folder("reading", &name))?;
            let hash = match len == manifest.file_bytes {
                true => Some(skeleton(
                    self.folder,
                    &file,
                    &disk,
                    &sidecar,
                    manifest.point,
                    None,
                    self.is_cancelled,
                )?),
                false => None,
            };
            if hash.is_none_or(|hash| *hash.to_hex() != *manifest.skeleton) {
                return Err(damaged(format!("{name}: bytes outside its data differ from what was written")));
            }
        }
        self.leaves(manifest, &disk, &sidecar, progress)?;
        self.sidecars.insert(manifest.point, Some(sidecar));
        Ok(())
    }

    fn leaves(
        &mut self,
        manifest: &Manifest,
        disk: &Chain<Open>,
        sidecar: &Sidecar,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut found = Vec::new();
        let mut done = 0;
        let mut passed = None;
        let mut random = self.verification.seed | 1;
        for index in 0..sidecar.segments().len() {
            let units =
                sidecar.segment(index).map_err(|error| crate::point_files::damaged(manifest.point, error))?;
            for unit in units.iter() {
                if (self.is_cancelled)() {
                    return Err(BackupError::Refused("interrupted: nothing was found until then".into()));
                }
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if self.verification.sample_permille.is_some_and(|share| random % 1000 >= u64::from(share)) {
                    passed = Some(unit.clone());
                    continue;
                }
                done += self.unit(manifest, disk, unit, &mut found)?;
                progress(done);
            }
        }
        // A sample of a point that holds anything is never empty.
        if let Some(unit) = passed.filter(|_| done == 0) {
            done = self.unit(manifest, disk, &unit, &mut found)?;
        }
        self.report.bytes += done;
        if found.len() > LEAVES_NOTED_MAX {
            let what = format!("{} of its leaves are not what was sent", found.len());
            return Err(BackupError::Damaged { point: manifest.point, what });
        }
        for (unit, leaf) in found {
            let offset = leaf_range(unit, usize::from(leaf), manifest.virtual_bytes).start;
            let concerned = self.showing(manifest.point, unit, usize::from(leaf))?;
            let what = format!("point {}: its data at offset {offset} are not what was sent", manifest.point);
            let damage = Damage::Leaf { point: manifest.point, unit, leaf };
            self.report.findings.push(FoundDamage { damage, what, concerned });
        }
        Ok(())
    }

    /// Compares the leaves of a unit: how many bytes.
    fn unit(
        &self,
        manifest: &Manifest,
        disk: &Chain<Open>,
        unit: &UnitLeaves,
        found: &mut Vec<(u32, u8)>,
    ) -> Result<u64> {
        let name = self.folder.show(&manifest.disk_name());
        let mut done = 0;
        for leaf in 0..LEAVES {
            let Some(state) = unit.get(leaf) else { continue };
            let range = leaf_range(unit.unit, leaf, manifest.virtual_bytes);
            if !is_as_written(disk, &name, range.clone(), state)? {
                found.push((unit.unit, leaf as u8));
            }
            done += range.end - range.start;
        }
        Ok(done)
    }

    /// Points that show the leaf of a point: itself, and those on it down to where another holds that leaf.
    fn showing(&mut self, point: PointId, unit: u32, leaf: usize) -> Result<Vec<PointId>> {
        let mut showing = vec![point];
        let catalogue = self.catalogue;
        for above in catalogue.points().iter().map(|point| &point.manifest) {
            if !above.parent.is_some_and(|parent| showing.contains(&parent)) {
                continue;
            }
            let sidecar = match self.sidecars.entry(above.point) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(match open_sidecar(self.folder, above) {
                    Ok(sidecar) => Some(sidecar),
                    Err(BackupError::Damaged { .. }) => None,
                    Err(error) => return Err(error),
                }),
            };
            let held = match sidecar.as_ref().map(|sidecar| sidecar.unit(unit)) {
                Some(Err(SidecarError::Io(error))) if !is_of_the_file(error.kind()) => {
                    return Err(crate::point_files::damaged(above.point, SidecarError::Io(error)));
                }
                held => held.and_then(std::result::Result::ok).flatten(),
            };
            if held.and_then(|held| held.get(leaf)).is_none() {
                showing.push(above.point);
            }
        }
        Ok(showing)
    }
}
