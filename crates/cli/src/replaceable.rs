//! A file that gives way to a new one: what must be true of it, whatever the user allows.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use lunway_occupancy::user_of;
use lunway_vhdx::merge::children;
use lunway_vhdx::open_file;

/// Opens and locks a regular file or block device whose data are going to be lost; no other process begins to use it
/// while the file is open.
///
/// # Errors
///
/// It is the parent of other disks, its mode allows no writes, or another program has it: lunway, QEMU, a loop device,
/// the kernel.
pub(crate) fn open_replaceable(path: &Path) -> anyhow::Result<File> {
    no_parent(path)?;
    // What is mounted has no lock of anybody.
    if fs::metadata(path).is_ok_and(|file| file.file_type().is_block_device())
        && let Some(user) = user_of(path)?
    {
        return Err(anyhow!("{} is in use {user}: close it there first", path.display()));
    }
    let file = open_file(path, true)?;
    // None is made while it is locked.
    no_parent(path)?;
    Ok(file)
}

/// Refuses the parent of other disks. A file that is no VHDX has no children.
fn no_parent(path: &Path) -> anyhow::Result<()> {
    match children(path) {
        Ok(found) if !found.is_empty() => Err(anyhow!(
            "{} is the parent of {}, which could no longer be opened: merge them first, or choose another name",
            path.display(),
            child_names(path, &found)
        )),
        _ => Ok(()),
    }
}

/// The names of a disk's children, for a sentence: those beside it without their folder.
pub(crate) fn child_names(parent: &Path, children: &[PathBuf]) -> String {
    let folder = parent.canonicalize().ok().and_then(|parent| parent.parent().map(Path::to_owned));
    let name = |child: &PathBuf| {
        let beside = child.canonicalize().is_ok_and(|child| child.parent() == folder.as_deref());
        match child.file_name().filter(|_| beside) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => child.display().to_string(),
        }
    };
    children.iter().map(name).collect::<Vec<_>>().join(", ")
}
