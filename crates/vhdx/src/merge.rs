//! Merging: what the upper files of a chain hold goes into the one below them.
//!
//! # Order of writes
//!
//! Level by level from the top; of each:
//!
//! ```text
//!   1  child           parent_linkage2: the DataWriteGuid that the base is going to have        (one transaction)
//!   2  base            grown to the top's size, where that is larger                             (one transaction)
//!   3  base            the upper files' data and zeroes; its DataWriteGuid changes with the first write, if any
//!   4  base            flushed, closed; cut to the top's size, where that is smaller             (one transaction)
//!   5  child           parent_linkage: the base's DataWriteGuid                                  (one transaction)
//! ```
//!
//! The chain shows the same disk at every moment: what step 3 writes into the base is what the upper files show there.
//! So a merge that was interrupted is simply done again, and nothing is removed before step 5 is durable. Other
//! children of the base are lost by any merge: [`children`] finds those in its folder and above.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lunway_occupancy::FileId;

use crate::chain::Chain;
use crate::disk::{Disk, SegmentSource};
use crate::edit::{Resize, resize, set_linkage2, set_parent};
use crate::error::{DiskError, EditError, VhdxOpenError};
use crate::format::{Guid, GuidSource};
use crate::locator::Locator;
use crate::open::{self, VhdxOpenOptions};
use crate::storage::{Storage, open_file, open_unlocked};
use crate::transition::DiscardMode;

/// The end of the name of a new child until the disk that it continues has been switched to it: a device that is
/// snapshotted while it is used ([`children`] leaves such files out).
pub const PENDING: &str = ".pending-snapshot";

/// Bytes copied at a time.
const STEP: u64 = 4 << 20;

/// Progress of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the disk that were looked at.
    pub done: u64,
    /// Bytes of the disk.
    pub total: u64,
    /// Bytes that were written into the base.
    pub written: u64,
}

/// Decision after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Go on.
    On,
    /// Stop: what was written is durable, and the merge can be done again.
    Stop,
}

/// Outcome of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The base shows what the chain has shown. These files, the top first, were needed no longer.
    Merged(Vec<PathBuf>),
    /// Stopped on request.
    Stopped,
}

/// Copies what `upper` holds into `base`, whose first disk is writable. Does neither flush nor close.
///
/// # Errors
///
/// The first failed read or write; what was written before stays, and changes nothing that the chain shows.
pub fn copy<U: Storage, B: Storage>(
    upper: &Chain<U>,
    base: &Chain<B>,
    each: &mut dyn FnMut(Progress) -> Go,
) -> Result<Go, DiskError> {
    let total = upper.size().min(base.size());
    let mut progress = Progress { done: 0, total, written: 0 };
    let mut buf = vec![0; STEP as usize];
    while progress.done < total {
        // A part of the map at a time: it bounds its memory.
        let window = (256 * STEP).min(total - progress.done);
        let mut segments = Vec::new();
        upper.map(progress.done, window, |segment| segments.push(segment))?;
        for segment in segments {
            let mut at = segment.offset;
            let end = segment.offset + segment.len;
            match segment.source {
                SegmentSource::Parent => at = end,
                SegmentSource::Zero | SegmentSource::Unmapped | SegmentSource::NeverWritten => {
                    base.discard(at, segment.len, DiscardMode::Zero)?;
                    at = end;
                }
                SegmentSource::File(_) => {}
            }
            while at < end {
                let now = (end - at).min(STEP) as usize;
                upper.read_at(at, &mut buf[..now])?;
                base.write_at(at, &buf[..now])?;
                at += now as u64;
                progress.done = at;
                progress.written += now as u64;
                if each(progress) == Go::Stop {
                    return Ok(Go::Stop);
                }
            }
            progress.done = end;
        }
        if each(progress) == Go::Stop {
            return Ok(Go::Stop);
        }
    }
    Ok(Go::On)
}

/// Merges the file at `top`, and all between, into `base`, one of its parents, one level after another: a file that is
/// done shows what the top shows, so that none is ever left that shows something else. Removes the files that are
/// needed no longer, unless they are to be kept. All of them are locked until then.
///
/// Parents are looked for in `root` and below. `may` is asked about the files, the top first, once they are locked, so
/// that none gets a child meanwhile.
///
/// # Errors
///
/// Why nothing was changed, or why the merge must be done again.
pub fn merge_files(
    top: &Path,
    base: &Path,
    root: &Path,
    keep: bool,
    may: impl FnOnce(&[PathBuf]) -> Result<(), EditError>,
    mut guids: impl FnMut() -> Box<dyn GuidSource>,
    each: &mut dyn FnMut(Progress) -> Go,
) -> Result<Outcome, EditError> {
    let canonical = |path: &Path| path.canonicalize().map_err(VhdxOpenError::access("looking for the file"));
    let (top, base) = (canonical(top)?, canonical(base)?);
    let chain = Chain::open_files(&top, root, &VhdxOpenOptions::read_only(), &mut guids)?;
    let level = chain.paths().iter().position(|path| *path == base);
    let level = level
        .filter(|level| *level > 0)
        .ok_or_else(|| EditError::Refused(format!("{} is no parent of {}", base.display(), top.display())))?;
    let paths = chain.paths()[..=level].to_vec();
    drop(chain);
    let files = paths.iter().map(|path| open_file(path, true)).collect::<Result<Vec<_>, _>>()?;
    may(&paths)?;
    for child in 0..level {
        if merge_one(&files[child..], &paths[child..], root, &mut guids, each)? == Go::Stop {
            return Ok(Outcome::Stopped);
        }
    }
    if !keep {
        for (path, file) in paths.iter().zip(&files).take(level) {
            remove(path, file)?;
        }
    }
    Ok(Outcome::Merged(paths[..level].to_vec()))
}

/// Removes a file that is open and locked, unless another one has its name by now.
fn remove(path: &Path, file: &File) -> Result<(), EditError> {
    let is_it = || Ok(FileId::of(&fs::symlink_metadata(path)?) == FileId::of(&file.metadata()?));
    let removed = is_it().and_then(|it| match it {
        true => fs::remove_file(path),
        false => Err(std::io::Error::other("another file has that name now")),
    });
    removed.map_err(|error| {
        EditError::Refused(format!(
            "everything is merged, but {} cannot be removed ({error}): remove it",
            path.display()
        ))
    })
}

/// Another handle of an open file, which shares its lock.
fn clone(file: &File) -> Result<File, VhdxOpenError> {
    file.try_clone().map_err(VhdxOpenError::access("opening the file"))
}

/// The chain of files that are open and locked already, the first one with `options`, and of the parents below them.
fn stack(
    files: &[File],
    paths: &[PathBuf],
    root: &Path,
    options: &VhdxOpenOptions,
    guids: &mut impl FnMut() -> Box<dyn GuidSource>,
) -> Result<Chain<File>, VhdxOpenError> {
    let reading = VhdxOpenOptions::read_only();
    let mut disks = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let options = if number == 0 { options } else { &reading };
        disks.push(Disk::open(clone(file)?, options, guids())?);
    }
    Chain::with_parents(disks, paths, root, options, guids)
}

/// Merges the first file into the second one; all are locked.
fn merge_one(
    files: &[File],
    paths: &[PathBuf],
    root: &Path,
    guids: &mut impl FnMut() -> Box<dyn GuidSource>,
    each: &mut dyn FnMut(Progress) -> Go,
) -> Result<Go, EditError> {
    let reading = VhdxOpenOptions::read_only();
    let chain = stack(files, paths, root, &reading, guids)?;
    let parameters = |level: usize| chain.disks().get(level).map(Disk::parameters);
    let size = chain.size();
    let base_size = parameters(1).map_or(0, |base| base.disk_size);
    let below = parameters(2).map(|below| below.disk_size);
    let locator = parameters(0).and_then(|child| child.locator.clone());
    let mut locator = locator.ok_or_else(|| EditError::Refused("the chain ends above the base".into()))?;
    let now = chain.disks().get(1).map_or(Guid::ZERO, Disk::data_write_guid);
    drop(chain);

    // A merge that was interrupted has told the child already.
    let next = if locator.linkage() == now { guids().next() } else { now };
    if next != now {
        set_linkage2(&files[0], next, guids().as_mut())?;
    }
    let resized = |size| Resize { size, parent_size: below, data_write: Some(next) };
    if size > base_size {
        resize(&files[1], &resized(size), guids().as_mut())?;
    }
    let upper = Chain::upper(vec![Disk::open(clone(&files[0])?, &reading, guids())?])?;
    let writing = VhdxOpenOptions { data_write: Some(next), ..VhdxOpenOptions::writable() };
    let base = stack(&files[1..], &paths[1..], root, &writing, guids)?;
    let go = copy(&upper, &base, each)?;
    base.flush()?;
    base.close()?;
    if go == Go::Stop {
        return Ok(Go::Stop);
    }
    if size < base_size {
        resize(&files[1], &resized(size), guids().as_mut())?;
    }
    // Where nothing was written into the base, it is what it was.
    let merged = open::read(&files[1])?.headers.current.data_write;
    locator.set(Locator::LINKAGE, &format!("{{{merged}}}"));
    locator.set(Locator::LINKAGE2, &format!("{{{}}}", Guid::ZERO));
    set_parent(&files[0], &locator, guids().as_mut())?;
    Ok(Go::On)
}

/// Returns `true` if the locator of a file leads to a parent that is not `parent`: the one that `parent` is a copy of.
///
/// That other one may be `parent` itself, which is `own`, by another name (a hard link).
fn has_another_parent(path: &Path, locator: &Locator, parent: &Path, own: FileId) -> bool {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let Ok(folder) = folder.canonicalize() else { return false };
    let found = locator.find(&folder, &folder).ok();
    let is_it =
        |found: &Path| found == parent || found.metadata().is_ok_and(|found| FileId::of(&found) == own);
    found.filter(|found| !is_it(found)).is_some_and(|found| {
        let opened = File::open(found).ok().and_then(|file| open::read(&file).ok());
        opened.is_some_and(|opened| locator.matches(opened.headers.current.data_write))
    })
}

/// Files with other names that are looked into in a parent's own folder: each costs an open and a read of 8 bytes.
const OTHERS_MAX: usize = 1024;

/// Returns `true` if a file has an extension that Windows and this program give to VHDX files.
fn has_vhdx_name(path: &Path) -> bool {
    let end = path.extension().unwrap_or_default();
    ["vhdx", "avhdx"].iter().any(|usual| end.eq_ignore_ascii_case(usual))
}

/// The files that were made on `parent`, as their locators say: in its folder and those above, since parents are looked
/// for in the folder of a child and below. All files called `*.vhdx` or `*.avhdx` are looked at, and in the parent's
/// folder 1024 others. Files and folders that cannot be read are left out.
///
/// # Errors
///
/// Where `parent` or its folder cannot be read.
pub fn children(parent: &Path) -> Result<Vec<PathBuf>, VhdxOpenError> {
    let looking = || VhdxOpenError::access("looking for the file");
    let parent = parent.canonicalize().map_err(looking())?;
    let file = open_unlocked(&parent, false)?;
    let own = file.metadata().map(|own| FileId::of(&own)).map_err(looking())?;
    let data_write = open::read(&file)?.headers.current.data_write;
    let mut found = Vec::new();
    for (above, folder) in parent.ancestors().skip(1).enumerate() {
        let entries = match fs::read_dir(folder) {
            Err(error) if above == 0 => return Err(looking()(error)),
            entries => entries.into_iter().flatten().flatten(),
        };
        let mut others = if above == 0 { OTHERS_MAX } else { 0 };
        for entry in entries {
            let path = entry.path();
            // No child yet: its parent is written until it has its name.
            if path.as_os_str().as_encoded_bytes().ends_with(PENDING.as_bytes()) {
                continue;
            }
            // Pipes and devices wait or act when they are opened.
            if path == parent || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            if !has_vhdx_name(&path) {
                let Some(left) = others.checked_sub(1) else { continue };
                others = left;
            }
            let Ok(file) = File::open(&path) else { continue };
            let Ok(opened) = open::read(&file) else { continue };
            let Some(locator) = opened.parameters.locator else { continue };
            if locator.matches(data_write) && !has_another_parent(&path, &locator, &parent, own) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
