//! Sealing: an incomplete point becomes a point.
//!
//! ```text
//!   1  close      the disk's log is empty, the hashes have their end, both durable; beside that the journal has its
//!                 last window and its name, and behind it the files have theirs, STEM.vhdx and STEM.leaves; the copies
//!                 of the manifest are still empty and without names
//!   2  check      of the files of these names: every entry of the disk's table; that it is the one that was written,
//!                 and no older copy of it: its GUID, its log, which is empty, and that it has every leaf; the hash of
//!                 all that is no leaf
//!   3  manifest   both copies written; STEM.copy.json; the folder durable; then STEM.json: the commit; the folder
//!                 durable
//!   4  clean up   files read-only, the journal removed
//! ```
//!
//! Before step 3 has ended the journal says that the point is incomplete, whatever its files are called; the next run
//! goes back to step 1. After it the next run repeats step 4.
//!
//! Over a network each step of each file is a round trip or two, so what need not follow something else is done beside
//! it. A client of FUSE does one thing at a time with the names of a folder, and others with its files meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, Disk, VhdxOpenOptions};

use crate::access::checked;
use crate::draft::{Draft, Parts, discard, undo_names};
use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open};
use crate::leaf::LEAF;
use crate::manifest::{Manifest, disk_name, leaves_name, root};
use crate::manifest_copies::{ManifestCopies, release_manifests};
use crate::point_files::{
    Names, clean_up, clean_up_new, damaged, read_ahead, read_ahead_of, read_ahead_whole,
};
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
    /// Copies of the manifest, empty.
    copies: ManifestCopies,
    /// The draft is of this run, and has no files of others.
    is_new: bool,
}

impl Sealing {
    /// Closes its files, gives them their names when `is_ours` says that no other writer has the folder, and checks
    /// them. Files that are not those that were written are removed ([`BackupError::DraftExchanged`]). Blocks.
    pub(crate) fn close(self, is_ours: mpsc::Receiver<()>) -> Result<Closed> {
        let Self { folder: shared, draft, mut manifest } = self;
        let folder = &*shared;
        let Parts { disk, written, writer, recording, copies, names } = draft.into_parts()?;
        let (given, stem) = (&names, &manifest.stem());
        let data_write = disk.disks()[0].data_write_guid_now();
        let finish =
            || writer.finish().map_err(BackupError::folder("writing", &folder.show(&names.leaves())));
        let close = || disk.close().map_err(BackupError::disk(&folder.show(&names.disk())));
        let name = move || {
            recording.record(folder)?;
            // Where it is not the caller says why.
            is_ours.recv().map_err(|_| BackupError::LeaseLost)?;
            let copies = copies.wait()?;
            give_names(folder, given)?;
            Ok(copies)
        };
        let (named, ended) = both(name, || Ok(both(finish, close)));
        let (finished, closed) = ended?;
        closed?;
        finished?;
        let files = [disk_name(stem), leaves_name(stem)];
        let checked = named.and_then(|copies| {
            let measured =
                measure(folder, &mut manifest, (&files[0], data_write), &files[1], written.as_deref());
            measured.map_err(BackupError::exchanged).map(|()| copies)
        });
        if let Err(BackupError::DraftExchanged { .. }) = checked {
            undo_names(folder, &names)?;
            discard(folder, &names)?;
        }
        let copies = checked?;
        Ok(Closed { folder: shared, names, manifest, copies, is_new: written.is_some() })
    }
}

impl Closed {
    /// Makes a point of it. Blocks.
    pub(crate) fn seal(self) -> Result<Manifest> {
        let Self { folder, names, manifest, copies, is_new } = self;
        if !is_new {
            // A run that was stopped may have given them.
            release_manifests(&*folder, &manifest.stem());
        }
        copies.fill(&*folder, &manifest)?;
        copies.commit(&*folder, &manifest)?;
        match is_new {
            true => clean_up_new(&*folder, &names)?,
            false => clean_up(&*folder, &names)?,
        }
        Ok(manifest)
    }
}

/// Checks a disk and its hashes that are closed, and enters into the manifest what they are. The disk's file must have
/// the GUID that it was given when it was written. `written`: what was ever written to it, where that is known.
pub(crate) fn measure(
    folder: &dyn Folder,
    manifest: &mut Manifest,
    (disk_file, data_write): (&str, Guid),
    leaves_file: &str,
    written: Option<&Written>,
) -> Result<()> {
    let point = manifest.point;
    let (opened, looked_at) = both(
        || open_leaves(folder, leaves_file, point),
        || measured_disk(folder, (disk_file, data_write), manifest, written),
    );
    let disk = looked_at?;
    let (sidecar, leaves_bytes) = opened?;
    manifest.leaves_bytes = leaves_bytes;
    manifest.root = root(sidecar.sum(), manifest.virtual_bytes);
    let hash = skeleton(folder, disk_file, &disk, &sidecar, point, written, &|| false)?;
    manifest.skeleton = hash.to_hex().to_string();
    Ok(())
}

/// Checks a disk that is closed, and enters into the manifest what it is.
fn measured_disk(
    folder: &dyn Folder,
    (disk_file, data_write): (&str, Guid),
    manifest: &mut Manifest,
    written: Option<&Written>,
) -> Result<Chain<Open>> {
    let disk_name = folder.show(disk_file);
    let storage = folder.open(disk_file, false).map_err(BackupError::folder("opening", &disk_name))?;
    match written {
        Some(written) => read_ahead_beginning(&storage, written),
        None => read_ahead(&storage),
    }
    let report = checked(&storage, &disk_name)?;
    if let Some(finding) = report.findings.first().filter(|_| report.is_damaged()) {
        let what = format!("{disk_name}: {} at byte {}", finding.problem, finding.offset);
        return Err(BackupError::Damaged { point: manifest.point, what });
    }
    manifest.file_bytes = storage.len().map_err(BackupError::folder("reading", &disk_name))?;
    let disk = Disk::open(storage, &VhdxOpenOptions::read_only(), Box::new(|| Guid::ZERO));
    let disk = disk.map_err(BackupError::open(&disk_name))?;
    check_closed(&disk, &disk_name, &data_write.to_string(), manifest.point)?;
    manifest.data_write = disk.data_write_guid().to_string();
    Chain::upper(vec![disk]).map_err(BackupError::open(&disk_name))
}

/// Asks at once for what was written to the first mebibytes of a new file, which hold its headers, its log, its
/// metadata and the beginning of its table, and are looked at and hashed.
fn read_ahead_beginning(storage: &Open, written: &Written) {
    const BEGINNING: u64 = 4 << 20;
    let ranges = written.ranges().into_iter().take_while(|(offset, _)| *offset < BEGINNING);
    let pieces =
        ranges.flat_map(|(offset, len)| (offset..(offset + len).min(BEGINNING)).step_by(LEAF as usize));
    let places: Vec<(u64, usize)> = pieces.map(|offset| (offset, LEAF as usize)).collect();
    read_ahead_of(storage, &places);
}

/// Opens hashes that have their end: they, and their length.
fn open_leaves(folder: &dyn Folder, leaves_file: &str, point: PointId) -> Result<(Sidecar, u64)> {
    let leaves_name = folder.show(leaves_file);
    let leaves = folder.open(leaves_file, false).map_err(BackupError::folder("opening", &leaves_name))?;
    let len = leaves.len().map_err(BackupError::folder("reading", &leaves_name))?;
    read_ahead_whole(&leaves, len);
    Ok((Sidecar::open(leaves, point).map_err(|error| damaged(point, error))?, len))
}

/// Gives the files of a draft their names as a point's.
fn give_names(folder: &dyn Folder, names: &Names) -> Result<()> {
    let files = [(names.disk(), disk_name(&names.stem)), (names.leaves(), leaves_name(&names.stem))];
    let rename = |(from, to): &(String, String)| match folder.rename(from, to) {
        // The answer to one that was carried out may have been lost, and the question repeated: a look at the file
        // tells.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.map_err(BackupError::folder("renaming", &folder.show(from))),
    };
    each(&files, rename).into_iter().collect()
}

/// Sees that a disk is the one that was written, and was closed.
fn check_closed(disk: &Disk<Open>, name: &str, data_write: &str, point: PointId) -> Result<()> {
    let damaged = |what: String| Err(BackupError::Damaged { point, what });
    if disk.data_write_guid().to_string() != data_write {
        return damaged(format!("{name} is another file than the one that was written"));
    }
    if disk.log_in_use() {
        // A copy of the file that was made while it was open has the file's name.
        return damaged(format!("{name} has entries in its log, which was emptied when it was closed"));
    }
    Ok(())
}
