//! What was closed for a destination, as its list has it: epochs of change tracking, snapshots of images of Ceph.

use lunway_backup::Epochs;

use super::store::Store;
use super::{failed, failed_in};
use crate::failure::Failure;

/// What becomes of the name of one that is not there. It was released, or never made; or it is about to be, if the run
/// that asked for it was killed a moment ago. That is over when another run has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Kept,
    Forgotten,
}

/// Notes one before it is made, so that a run that is killed leaves none behind for good.
pub(super) fn note(store: &Store, epoch: &str) -> Result<(), Failure> {
    change(store, |closed| closed.push(epoch.to_owned()))
}

/// Gives what was noted the name that it has once it is made.
pub(super) fn rename(store: &Store, epoch: &str, made: &str) -> Result<(), Failure> {
    change(store, |closed| {
        closed.retain(|closed| closed != epoch);
        closed.push(made.to_owned());
    })
}

fn change(store: &Store, change: impl FnOnce(&mut Vec<String>)) -> Result<(), Failure> {
    let folder = &**store.folder();
    let mut epochs = Epochs::load(folder).map_err(failed)?;
    change(&mut epochs.closed);
    epochs.store(folder).map_err(|error| failed_in(folder, error))
}

/// Releases what was closed for the destination, but for the newest point's. `release` says whether it was there;
/// `None`: it is not of this source.
pub(super) fn release_old(
    store: &Store,
    missing: Missing,
    mut release: impl FnMut(&str) -> Result<Option<bool>, Failure>,
) -> Result<(), Failure> {
    let newest = store.past()?.0.pop().and_then(|newest| newest.epoch);
    let folder = &**store.folder();
    let mut epochs = Epochs::load(folder).map_err(failed)?;
    let before = epochs.clone();
    for epoch in before.closed.iter().filter(|epoch| Some(*epoch) != newest.as_ref()) {
        let Some(was_there) = release(epoch)? else { continue };
        if was_there || missing == Missing::Forgotten {
            epochs.closed.retain(|closed| closed != epoch);
        }
    }
    if epochs != before {
        epochs.store(folder).map_err(failed)?;
    }
    Ok(())
}
