//! Sealing: an incomplete point becomes a point.
//!
//! ```text
//!   1  close      the disk's log is empty, the hashes have their end, both durable
//!   2  check      every entry of the disk's table; the hash of all that is no leaf
//!   3  names      STEM.vhdx, STEM.leaves; both copies of the manifest written beside that, without their names
//!   4  manifest   STEM.copy.json; the folder durable; then STEM.json: the commit; the folder durable
//!   5  clean up   files read-only, the journal removed
//! ```
//!
//! Before step 4 has ended the journal says that the point is incomplete, whatever its files are called; the next run
//! goes back to step 1. After it the next run repeats step 5.

use std::sync::Arc;

use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, Disk, VhdxOpenOptions};

use crate::access::checked;
use crate::draft::{Draft, Parts};
use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open, Unnamed};
use crate::manifest::{Manifest, disk_name, leaves_name, manifest_names, root};
use crate::point_files::{Names, clean_up, damaged, read_ahead, release};
use crate::point_id::PointId;
use crate::sidecar::Sidecar;
use crate::skeleton::skeleton;
use crate::threads::{both, each};
use crate::written::Written;

/// A draft that is complete, and its manifest as far as it is known.
pub(crate) struct Sealing {
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) draft: Draft,
    pub(crate) manifest: Manifest,
}

/// A draft whose files are closed and checked, and the manifest that makes them a point.
pub(crate) struct Closed {
    folder: Arc<dyn Folder>,
    names: Names,
    manifest: Manifest,
}

impl Sealing {
    /// Closes and checks its files. Blocks.
    pub(crate) fn close(self) -> Result<Closed> {
        let Self { folder: shared, draft, mut manifest } = self;
        let folder = &*shared;
        let Parts { disk, written, writer, names } = draft.into_parts()?;
        let (disk_file, leaves_file) = (names.disk(), names.leaves());
        let (finished, closed) = both(
            || writer.finish().map_err(BackupError::folder("writing", &folder.show(&leaves_file))),
            || disk.close().map_err(BackupError::disk(&folder.show(&disk_file))),
        );
        closed?;
        finished?;
        measure(folder, &mut manifest, &disk_file, &leaves_file, written.as_deref())?;
        Ok(Closed { folder: shared, names, manifest })
    }
}

impl Closed {
    /// Makes a point of it. Blocks.
    pub(crate) fn seal(self) -> Result<Manifest> {
        let Self { folder, names, manifest } = self;
        give_names(&*folder, &manifest, &names.disk(), &names.leaves())?;
        clean_up(&*folder, &names)?;
        Ok(manifest)
    }
}

/// Checks a disk and its hashes that are closed, and enters into the manifest what they are. `written`: what was ever
/// written to the disk's file, where that is known.
pub(crate) fn measure(
    folder: &dyn Folder,
    manifest: &mut Manifest,
    disk_file: &str,
    leaves_file: &str,
    written: Option<&Written>,
) -> Result<()> {
    let point = manifest.point;
    let (opened, looked_at) =
        both(|| open_leaves(folder, leaves_file, point), || measured_disk(folder, disk_file, manifest));
    let disk = looked_at?;
    let (sidecar, leaves_bytes) = opened?;
    manifest.leaves_bytes = leaves_bytes;
    manifest.root = root(sidecar.sum(), manifest.virtual_bytes);
    let hash = skeleton(folder, disk_file, &disk, &sidecar, point, written, &|| false)?;
    manifest.skeleton = hash.to_hex().to_string();
    Ok(())
}

/// Checks a disk that is closed, and enters into the manifest what it is.
fn measured_disk(folder: &dyn Folder, disk_file: &str, manifest: &mut Manifest) -> Result<Chain<Open>> {
    let disk_name = folder.show(disk_file);
    let storage = folder.open(disk_file, false).map_err(BackupError::folder("opening", &disk_name))?;
    read_ahead(&storage);
    let report = checked(&storage, &disk_name)?;
    if let Some(finding) = report.findings.first().filter(|_| report.is_damaged()) {
        let what = format!("{disk_name}: {} at byte {}", finding.problem, finding.offset);
        return Err(BackupError::Damaged { point: manifest.point, what });
    }
    manifest.file_bytes = storage.len().map_err(BackupError::folder("reading", &disk_name))?;
    let disk = Disk::open(storage, &VhdxOpenOptions::read_only(), Box::new(|| Guid::ZERO));
    let disk = disk.map_err(BackupError::open(&disk_name))?;
    manifest.data_write = disk.data_write_guid().to_string();
    Chain::upper(vec![disk]).map_err(BackupError::open(&disk_name))
}

/// Opens hashes that have their end: they, and their length.
fn open_leaves(folder: &dyn Folder, leaves_file: &str, point: PointId) -> Result<(Sidecar, u64)> {
    let leaves_name = folder.show(leaves_file);
    let leaves = folder.open(leaves_file, false).map_err(BackupError::folder("opening", &leaves_name))?;
    let len = leaves.len().map_err(BackupError::folder("reading", &leaves_name))?;
    Ok((Sidecar::open(leaves, point).map_err(|error| damaged(point, error))?, len))
}

/// Gives the files their names, and makes them a point.
fn give_names(folder: &dyn Folder, manifest: &Manifest, disk_file: &str, leaves_file: &str) -> Result<()> {
    let stem = manifest.stem();
    let files = [(disk_file, disk_name(&stem)), (leaves_file, leaves_name(&stem))];
    let rename = |(from, to): &(&str, String)| {
        folder.rename(from, to).map_err(BackupError::folder("renaming", &folder.show(disk_file)))
    };
    let (renamed, written) = both(
        || {
            release_manifests(folder, &stem);
            each(&files, rename).into_iter().collect::<Result<()>>()
        },
        || unnamed_manifests(folder, manifest),
    );
    renamed?;
    commit(folder, manifest, written?)
}

/// Writes both copies of a manifest in place of those that there are, durably.
pub(crate) fn write_manifest(folder: &dyn Folder, manifest: &Manifest) -> Result<()> {
    release_manifests(folder, &manifest.stem());
    commit(folder, manifest, unnamed_manifests(folder, manifest)?)
}

/// Copies of a manifest that are there may be replaced.
fn release_manifests(folder: &dyn Folder, stem: &str) {
    each(&manifest_names(stem), |name| {
        release(folder, name);
        Ok(())
    });
}

/// Both copies of a manifest, without their names.
fn unnamed_manifests(folder: &dyn Folder, manifest: &Manifest) -> Result<Vec<Unnamed>> {
    let bytes = manifest.to_bytes();
    each(&manifest_names(&manifest.stem()), |name| Unnamed::write(folder, name, &bytes)).into_iter().collect()
}

/// Gives the copies of a manifest their names, the first copy last: that rename is the commit. All names that were
/// given before it are durable before it.
fn commit(folder: &dyn Folder, manifest: &Manifest, copies: Vec<Unnamed>) -> Result<()> {
    for copy in copies {
        copy.give_name(folder)?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(&manifest.stem())))?;
    }
    Ok(())
}
