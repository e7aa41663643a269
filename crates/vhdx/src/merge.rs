//! Merging: what the upper files of a chain hold goes into the one below them.
//!
//! # Order of writes
//!
//! ```text
//!   1  lowest child    parent_linkage2: the DataWriteGuid that the base is going to have        (one transaction)
//!   2  base            grown to the top's size, where that is larger                             (one transaction)
//!   3  base            the upper files' data and zeroes; its DataWriteGuid changes with the first write
//!   4  base            flushed, closed; cut to the top's size, where that is smaller             (one transaction)
//!   5  lowest child    parent_linkage: the base's new DataWriteGuid                              (one transaction)
//! ```
//!
//! The chain shows the same disk at every moment: what step 3 writes into the base is what the upper files show there. So a merge that
//! was interrupted is simply done again, and nothing is removed before step 5 is durable. Other children of the base are lost by any
//! merge: [`children`] finds those in its folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::chain::Chain;
use crate::disk::{Disk, Source};
use crate::edit::{Resize, resize, set_linkage2, set_parent};
use crate::error::{DiskError, EditError, OpenError};
use crate::format::{Guid, GuidSource};
use crate::locator::Locator;
use crate::open::{self, OpenOptions};
use crate::storage::{Storage, open_file};
use crate::transition::DiscardMode;

/// How much is copied at a time, bytes.
const STEP: u64 = 4 << 20;

/// How far a merge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the disk that were looked at.
    pub done: u64,
    /// Bytes of the disk.
    pub total: u64,
    /// Bytes that were written into the base.
    pub written: u64,
}

/// What to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Go on.
    On,
    /// Stop: what was written is durable, and the merge can be done again.
    Stop,
}

/// How a merge ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The base shows what the chain has shown. These files, the top first, are needed no longer.
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
                Source::Parent => at = end,
                Source::Zero | Source::Unmapped | Source::NeverWritten => {
                    base.discard(at, segment.len, DiscardMode::Zero)?;
                    at = end;
                }
                Source::File(_) => {}
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

/// Merges the file at `top`, and all between, into `base`, one of its parents. The files stay: which may be removed, the answer says.
///
/// Parents are looked for in `root` and below.
///
/// # Errors
///
/// Why nothing was changed, or why the merge must be done again.
pub fn merge_files(
    top: &Path,
    base: &Path,
    root: &Path,
    mut guids: impl FnMut() -> Box<dyn GuidSource>,
    each: &mut dyn FnMut(Progress) -> Go,
) -> Result<Outcome, EditError> {
    let canonical = |path: &Path| path.canonicalize().map_err(OpenError::access("looking for the file"));
    let (top, base) = (canonical(top)?, canonical(base)?);
    let reading = OpenOptions::read_only();
    let chain = Chain::open_files(&top, root, &reading, &mut guids)?;
    let level = chain.paths().iter().position(|path| *path == base);
    let level = level
        .filter(|level| *level > 0)
        .ok_or_else(|| EditError::Refused(format!("{} is no parent of {}", base.display(), top.display())))?;
    let merged = chain.paths()[..level].to_vec();
    let lowest = merged[level - 1].clone();
    let (size, base_size) = (chain.size(), chain.disks()[level].parameters().disk_size);
    let below = chain.disks().get(level + 1).map(|disk| disk.parameters().disk_size);
    let now = chain.disks()[level].data_write_guid();
    let locator = chain.disks()[level - 1].parameters().locator.clone();
    let mut locator = locator.ok_or_else(|| EditError::Refused("the chain ends above the base".into()))?;
    drop(chain);

    // A merge that was interrupted has told the child already.
    let next = if locator.linkage() == now { guids().next() } else { now };
    if next != now {
        let file = open_file(&lowest, true)?;
        set_linkage2(&file, next, guids().as_mut())?;
    }
    let resized = |size| Resize { size, parent_size: below, data_write: Some(next) };
    if size > base_size {
        resize(&open_file(&base, true)?, &resized(size), guids().as_mut())?;
    }
    let go = {
        let disks = merged.iter().map(|path| Disk::open(open_file(path, false)?, &reading, guids()));
        let upper = Chain::upper(disks.collect::<Result<Vec<_>, _>>()?)?;
        let writing = OpenOptions { data_write: Some(next), ..OpenOptions::writable() };
        let below = Chain::open_files(&base, root, &writing, &mut guids)?;
        let go = copy(&upper, &below, each)?;
        below.flush()?;
        below.close()?;
        go
    };
    if go == Go::Stop {
        return Ok(Outcome::Stopped);
    }
    if size < base_size {
        resize(&open_file(&base, true)?, &resized(size), guids().as_mut())?;
    }
    locator.set(Locator::LINKAGE, &format!("{{{next}}}"));
    locator.set(Locator::LINKAGE2, &format!("{{{}}}", Guid::ZERO));
    set_parent(&open_file(&lowest, true)?, &locator, guids().as_mut())?;
    Ok(Outcome::Merged(merged))
}

/// The files in the folder of `parent` that were made on it, as their locators say. Files that cannot be read are left out.
///
/// # Errors
///
/// Where `parent` or its folder cannot be read.
pub fn children(parent: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let looking = || OpenError::access("looking for the file");
    let parent = parent.canonicalize().map_err(looking())?;
    let file = File::open(&parent).map_err(OpenError::access("opening the file"))?;
    let data_write = open::read(&file)?.headers.current.data_write;
    let folder = parent.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(looking())?.flatten() {
        let path = entry.path();
        if path == parent || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        let Ok(opened) = open::read(&file) else { continue };
        if opened.parameters.locator.is_some_and(|locator| locator.matches(data_write)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
