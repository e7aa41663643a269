//! Snapshots of a device that is used: writes go to a new file from then on.
//!
//! ```text
//!   1  base       flushed, its name leads to it, closed, its lock shared: nothing is written to it any more
//!   2  LEAF.pending-snapshot   a differencing disk on the base, durable
//!   3  commit     if all names still lead to their files: the name of the device is that of LEAF from now on
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
use lunway_vhdx::merge::PENDING;
use lunway_vhdx::{
    CHAIN_FILES_MAX, Chain, CreateOptions, Disk, VhdxOpenError, VhdxOpenOptions, create, open_file,
    relative_path, rename_new,
};

use crate::backing::{Backing, Locked};
use crate::chain_state::{ChainState, closed};
use crate::device::{Inner, folder, meaning, no_guids};
use crate::names;
use crate::random_guids;
use crate::unopened::Unopened;

impl Inner {
    /// Goes on in the file `leaf`. With an error the device is as it was.
    pub(crate) fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Result<(), BlockError> {
        self.refuse_pulled().map_err(|why| BlockError::Snapshot { why })?;
        // Waits for operations under way, and holds back those that come.
        let mut state = self.alone();
        let (base, relative) = begin(state.chain()?, leaf)?;
        let Some(chain) = state.take() else { return Err(closed()) };
        let pending = pending(leaf);
        let (now, made) = match continued(chain, base, &pending, &relative) {
            (base, Err(error)) => back(base, &pending, error),
            (base, Ok(mut chain)) => match check_names(&chain).and_then(|()| commit()) {
                Err(error) => {
                    drop(chain);
                    back(base, &pending, error)
                }
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
                    (ChainState::Open(chain), named)
                }
            },
        };
        *state = now;
        self.go_on(state);
        made
    }
}

/// Goes on with the base, after `error`.
fn back(base: Unopened, pending: &Path, error: BlockError) -> (ChainState, Result<(), BlockError>) {
    let _ = fs::remove_file(pending);
    let state = base.open();
    let error = match &state {
        ChainState::Unopened(base) => BlockError::Snapshot {
            why: format!(
                "{error}, and the file cannot be opened again: {}; its disk fails as a medium until it can",
                base.why()
            ),
        },
        ChainState::Open(_) | ChainState::Closed => error,
    };
    (state, Err(error))
}

/// Checks all that can be checked before the disk is closed, and makes what was written durable. Gives what it can be
/// opened with again, and how the leaf names it.
fn begin(chain: &Chain<Backing>, leaf: &Path) -> Result<(Unopened, String), BlockError> {
    let refused = |why: String| BlockError::Snapshot { why };
    let (Some(path), Backing::File(_)) = (chain.paths().first(), chain.disks()[0].storage()) else {
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
    let base = Unopened::of(chain)?;
    // What cannot be made durable leaves the disk open as it is.
    chain.flush().map_err(meaning)?;
    check_names(chain)?;
    let relative = relative_path(leaf, path).map_err(|error| refused(error.to_string()))?;
    Ok((base, relative))
}

/// The leaf finds the base by its name, and nothing else would tell it from a copy.
fn check_names(chain: &Chain<Backing>) -> Result<(), BlockError> {
    names::check(chain).map_err(|why| BlockError::Snapshot { why })
}

/// Closes a chain's first disk, the base, and puts a new file on top of it: what the base can be opened with again, and
/// the chain from there on.
fn continued(
    chain: Chain<Backing>,
    base: Unopened,
    pending: &Path,
    relative: &str,
) -> (Unopened, Result<Chain<Backing>, BlockError>) {
    let paths = [&[pending.to_owned()], chain.paths()].concat();
    let mut disks = chain.into_disks().into_iter();
    let closed = disks.next().map_or(Ok(()), Disk::close).map_err(meaning);
    let leaf = closed.and_then(|()| new_leaf(base.file(), pending, relative)).and_then(|[leaf, base]| {
        let disks = [leaf, base].into_iter().chain(disks).collect();
        Chain::of_disks(disks, &paths, folder(pending), &VhdxOpenOptions::read_only(), no_guids).map_err(told)
    });
    (base, leaf)
}

/// Makes the new file: it, and the base for reading alone.
fn new_leaf(file: &Locked, pending: &Path, relative: &str) -> Result<[Disk<Backing>; 2], BlockError> {
    // A process that slips in between the two locks has changed the base, or holds it: both are seen below.
    lock(file, false).map_err(told)?;
    let base = Disk::open(Backing::File(file.try_clone()?), &VhdxOpenOptions::read_only(), no_guids());
    let base = base.map_err(told)?;
    if pending.symlink_metadata().is_ok_and(|found| found.is_file()) {
        fs::remove_file(pending)?;
    }
    let new = File::options().read(true).write(true).create_new(true).open(pending)?;
    new.set_permissions(file.metadata()?.permissions())?;
    let random = |error: getrandom::Error| BlockError::Snapshot { why: error.to_string() };
    let options = CreateOptions::child_of(&base, relative).with_items_of(&base).map_err(told)?;
    let made = create(&file.with(new), &options, random_guids().map_err(random)?.as_mut());
    made.map_err(|error| BlockError::Snapshot { why: format!("making {}: {error}", pending.display()) })?;
    File::open(folder(pending))?.sync_all()?;
    let new = file.with(open_file(pending, true).map_err(told)?);
    let leaf = Disk::open(Backing::File(new), &VhdxOpenOptions::writable(), random_guids().map_err(random)?);
    Ok([leaf.map_err(told)?, base])
}

/// Finishes a snapshot that a kill has stopped after its commit: the new file gets its name. Nothing happens where
/// there is nothing to finish.
pub(crate) fn finish(leaf: &Path) -> Result<(), VhdxOpenError> {
    let pending = pending(leaf);
    if leaf.symlink_metadata().is_ok() || !pending.is_file() {
        return Ok(());
    }
    // A file that the base has outlived stays what it is.
    Chain::open_files(&pending, folder(&pending), &VhdxOpenOptions::read_only(), no_guids)?;
    let named = rename_new(&pending, leaf);
    named.map_err(|source| VhdxOpenError::Access { what: "renaming the new file of a snapshot", source })?;
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
pub(crate) fn lock(file: &File, writable: bool) -> Result<(), VhdxOpenError> {
    match if writable { file.try_lock() } else { file.try_lock_shared() } {
        Ok(()) => {
            announce(file, writable);
            Ok(())
        }
        Err(fs::TryLockError::WouldBlock) => {
            Err(VhdxOpenError::InUse { by: lunway_occupancy::lock_holder(file) })
        }
        Err(fs::TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => Ok(()),
        Err(fs::TryLockError::Error(source)) => {
            Err(VhdxOpenError::Access { what: "locking the file", source })
        }
    }
}

/// Converts a refusal of the engine to an error of a device.
fn told(error: VhdxOpenError) -> BlockError {
    BlockError::Snapshot { why: error.to_string() }
}
