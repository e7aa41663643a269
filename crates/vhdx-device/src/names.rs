//! Names of the files of an open disk: whether each of them still leads to the file that is open.
//!
//! A disk is used through open files, and found again by names: a child names its parent, the configuration names the
//! device. Where a name was given to another file meanwhile, a change that relies on it would continue in a file that
//! lacks what was written since. A copy of the file even has its GUIDs, so that nothing else would tell.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lunway_file::NamedFile;
use lunway_occupancy::FileId;
use lunway_vhdx::Chain;

use crate::backing::Backing;

/// Checks that the names of a disk's file and of its parents lead to the files that are open. Blocks.
///
/// # Errors
///
/// A sentence: which name does not, and what to do.
pub(crate) fn check(chain: &Chain<Backing>) -> Result<(), String> {
    for (disk, path) in chain.disks().iter().zip(chain.paths()) {
        if let Backing::File(file) = disk.storage() {
            check_one(file, path)?;
        }
    }
    Ok(())
}

/// The files of a disk with their names, for a watch. Blocks.
pub(crate) fn named(chain: &Chain<Backing>) -> Vec<NamedFile> {
    let files = chain.disks().iter().zip(chain.paths());
    files
        .filter_map(|(disk, path)| match disk.storage() {
            Backing::File(file) => NamedFile::of(path, &**file),
            Backing::Device(_) => None,
        })
        .collect()
}

fn check_one(file: &File, path: &Path) -> Result<(), String> {
    let name = path.display();
    let failed = |error: io::Error| format!("{name} cannot be looked at: {error}");
    let open = file.metadata().map_err(failed)?;
    let found = match fs::metadata(path) {
        Ok(found) if FileId::of(&found) == FileId::of(&open) => return Ok(()),
        Ok(_) => "leads to another file than the one that is served",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "is gone, which the file that is served had",
        Err(error) => return Err(failed(error)),
    };
    let pid = std::process::id();
    Err(match open.nlink() {
        // The end of the daemon frees the file.
        0 => format!(
            "the name {name} {found}; that file was deleted and is lost when the daemon ends: log the initiators out and \
             copy it from /proc/{pid}/fd, where ls -l shows it, before you stop the daemon"
        ),
        _ => format!(
            "the name {name} {found}: rename that file, which ls -l /proc/{pid}/fd shows, back to it, or stop the daemon \
             and change the file that is meant"
        ),
    })
}

/// Returns `true` if both are one file. `false` also where one of them cannot be asked.
pub(crate) fn is_same(one: &File, other: &File) -> bool {
    matches!((one.metadata(), other.metadata()), (Ok(one), Ok(other)) if FileId::of(&one) == FileId::of(&other))
}
