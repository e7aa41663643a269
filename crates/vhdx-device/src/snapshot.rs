//! Snapshots of a device that is used: writes go to a new file from then on.
//!
//! ```text
//!   1  base       flushed, closed, its lock shared: nothing is written to it any more
//!   2  LEAF.pending-snapshot   a differencing disk on the base, durable
//!   3  commit     whoever names the device names LEAF from now on
//!   4  rename     LEAF.pending-snapshot ──▶ LEAF
//! ```
//!
//! A kill before step 3 leaves the base as the device, and a file that no one looks at: the base is written again, so
//! that it could not become its child any more. A kill after it leaves LEAF as the device, and opening that makes up
//! for step 4.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lunway_block::{BlockError, SnapshotCommit};
use lunway_occupancy::announce;
use lunway_vhdx::format::{Guid, GuidSource};
use lunway_vhdx::merge::PENDING;
use lunway_vhdx::{
    CHAIN_FILES_MAX, Chain, CreateOptions, Disk, OpenError, OpenOptions, create, open_file, relative_path,
    rename_new,
};

use crate::backing::Backing;
use crate::device::{folder, meaning};
use crate::random_guids;

/// A chain whose first disk is closed.
struct Closed {
    /// The first disk's file, with its lock.
    file: File,
    /// The files, the first one's first.
    paths: Vec<PathBuf>,
    parents: Vec<Disk<Backing>>,
}

/// Continues a chain in the file `leaf`. With an error comes the chain as it was, unless it could not be opened again.
pub(crate) fn snapshot(
    chain: Chain<Backing>,
    leaf: &Path,
    commit: SnapshotCommit,
) -> (Option<Chain<Backing>>, Result<(), BlockError>) {
    let (file, relative) = match begin(&chain, leaf) {
        Ok(begun) => begun,
        Err(error) => return (Some(chain), Err(error)),
    };
    let paths = chain.paths().to_vec();
    let mut disks = chain.into_disks().into_iter();
    let closed = disks.next().map_or(Ok(()), Disk::close).map_err(meaning);
    let base = Closed { file, paths, parents: disks.collect() };
    let pending = pending(leaf);
    let switched = match closed {
        Ok(()) => base.continued(&pending, &relative),
        Err(error) => Err((base, error)),
    };
    let (base, error) = match switched {
        Err(failed) => failed,
        Ok((mut chain, file)) => match commit() {
            Ok(()) => {
                let named = rename_new(&pending, leaf);
                chain.renamed(if named.is_ok() { leaf.to_owned() } else { pending.clone() });
                let named = named.map_err(|error| BlockError::Snapshot {
                    why: format!(
                        "the disk continues in {}, which cannot be renamed to {}: {error}; rename it before the \
                         next start",
                        pending.display(),
                        leaf.display()
                    ),
                });
                return (Some(chain), named);
            }
            Err(error) => (Closed::of(chain, file), error),
        },
    };
    let _ = fs::remove_file(&pending);
    match base.reopen() {
        Ok(chain) => (Some(chain), Err(error)),
        Err(reopening) => {
            (None, Err(BlockError::gone(format!("after a snapshot that failed ({error}): {reopening}"))))
        }
    }
}

/// Checks all that can be checked before the disk is closed, and makes what was written durable.
fn begin(chain: &Chain<Backing>, leaf: &Path) -> Result<(File, String), BlockError> {
    let refused = |why: String| BlockError::Snapshot { why };
    let (Some(path), Backing::File(file)) = (chain.paths().first(), chain.disks()[0].storage()) else {
        return Err(refused("the VHDX is stored on a device, which cannot hold a second file".to_owned()));
    };
    if chain.disks().len() >= CHAIN_FILES_MAX {
        return Err(refused(format!(
            "the chain has {CHAIN_FILES_MAX} files, as many as it may: merge some of them first, with lunway disk merge"
        )));
    }
    if leaf.symlink_metadata().is_ok() {
        return Err(refused(format!("{} already exists: choose another name", leaf.display())));
    }
    let relative = relative_path(leaf, path).map_err(|error| refused(error.to_string()))?;
    // What cannot be made durable leaves the disk open as it is.
    chain.flush().map_err(meaning)?;
    // Another handle of the same open file: the lock is not given up.
    Ok((file.try_clone()?, relative))
}

impl Closed {
    /// Takes a chain apart that was continued in another file.
    fn of(chain: Chain<Backing>, file: File) -> Self {
        let paths = chain.paths().iter().skip(1).cloned().collect();
        Self { file, paths, parents: chain.into_disks().into_iter().skip(2).collect() }
    }

    /// A chain with a new file on top, and the base's file.
    fn continued(self, pending: &Path, relative: &str) -> Result<(Chain<Backing>, File), (Self, BlockError)> {
        match self.leaf(pending, relative) {
            Ok((leaf, base, file)) => {
                let paths = [vec![pending.to_owned()], self.paths].concat();
                let disks = [leaf, base].into_iter().chain(self.parents).collect();
                match Chain::of_disks(disks, &paths, folder(&paths[0]), &OpenOptions::read_only(), none) {
                    Ok(chain) => Ok((chain, file)),
                    // The parents are found again by their locators.
                    Err(error) => {
                        let paths = paths.into_iter().skip(1).take(1).collect();
                        Err((Self { file, paths, parents: Vec::new() }, told(error)))
                    }
                }
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Makes the new file: it, the base for reading alone, and the base's file.
    fn leaf(
        &self,
        pending: &Path,
        relative: &str,
    ) -> Result<(Disk<Backing>, Disk<Backing>, File), BlockError> {
        let file = self.file.try_clone()?;
        // Whoever slips in between the two locks has changed the base, or holds it: both are seen below.
        lock(&self.file, false)?;
        let base = Disk::open(Backing::File(self.file.try_clone()?), &OpenOptions::read_only(), none());
        let base = base.map_err(told)?;
        if pending.symlink_metadata().is_ok_and(|found| found.is_file()) {
            fs::remove_file(pending)?;
        }
        let new = File::options().read(true).write(true).create_new(true).open(pending)?;
        new.set_permissions(self.file.metadata()?.permissions())?;
        let random = |error: getrandom::Error| BlockError::Snapshot { why: error.to_string() };
        let options = CreateOptions::child_of(&base, relative).with_items_of(&base).map_err(told)?;
        let made = create(&new, &options, random_guids().map_err(random)?.as_mut());
        made.map_err(|error| BlockError::Snapshot { why: format!("making {}: {error}", pending.display()) })?;
        File::open(folder(pending))?.sync_all()?;
        drop(new);
        let new = open_file(pending, true).map_err(told)?;
        let leaf = Disk::open(Backing::File(new), &OpenOptions::writable(), random_guids().map_err(random)?);
        Ok((leaf.map_err(told)?, base, file))
    }

    /// The chain as it was.
    fn reopen(self) -> Result<Chain<Backing>, BlockError> {
        lock(&self.file, true)?;
        let random = |error: getrandom::Error| BlockError::Snapshot { why: error.to_string() };
        let guids = random_guids().map_err(random)?;
        let options = OpenOptions::writable();
        let disk = Disk::open(Backing::File(self.file), &options, guids).map_err(told)?;
        let disks = [disk].into_iter().chain(self.parents).collect();
        Chain::of_disks(disks, &self.paths, folder(&self.paths[0]), &options, none).map_err(told)
    }
}

/// Finishes a snapshot that a kill has stopped after its commit: the new file gets its name. Nothing happens where
/// there is nothing to finish.
pub(crate) fn finish(leaf: &Path) -> Result<(), OpenError> {
    let pending = pending(leaf);
    if leaf.symlink_metadata().is_ok() || !pending.is_file() {
        return Ok(());
    }
    // A file that the base has outlived stays what it is.
    Chain::open_files(&pending, folder(&pending), &OpenOptions::read_only(), none)?;
    let named = rename_new(&pending, leaf);
    named.map_err(|source| OpenError::Access { what: "renaming the new file of a snapshot", source })?;
    tracing::info!(leaf = %leaf.display(), "finished a snapshot that was stopped after its commit");
    Ok(())
}

/// The name of a new file until its commit.
fn pending(leaf: &Path) -> PathBuf {
    let mut name: OsString = leaf.into();
    name.push(PENDING);
    name.into()
}

/// Exchanges the lock of an open file, with an instant between in which another may take the file. File systems without
/// locks: as much as they allow.
fn lock(file: &File, writable: bool) -> Result<(), BlockError> {
    match if writable { file.try_lock() } else { file.try_lock_shared() } {
        Ok(()) => {
            announce(file, writable);
            Ok(())
        }
        Err(fs::TryLockError::WouldBlock) => {
            Err(told(OpenError::InUse { by: lunway_occupancy::lock_holder(file) }))
        }
        Err(fs::TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => Ok(()),
        Err(fs::TryLockError::Error(error)) => Err(error.into()),
    }
}

/// What the engine's refusals are to a device.
fn told(error: OpenError) -> BlockError {
    BlockError::Snapshot { why: error.to_string() }
}

/// For disks that are only read, which take none.
fn none() -> Box<dyn GuidSource> {
    Box::new(|| Guid::ZERO)
}
