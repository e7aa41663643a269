//! What was closed for a destination, as its list has it: epochs of change tracking, snapshots of images of Ceph.

use std::time::{Duration, Instant};

use lunway_backup::Epochs;

use super::store::{Made, Past, Store};
use super::{failed, failed_in};
use crate::failure::Failure;

/// Time after which the list is read again before it is changed: another writer takes half a minute to come, and may
/// have come if this process was stopped.
const FRESH: Duration = Duration::from_secs(5);
/// Names that are left to the next run to take out of the list.
const LEFT_MAX: usize = 16;

/// What becomes of the name of one that is not there. It was released, or never made; or it is about to be, if the run
/// that asked for it was killed a moment ago. That is over when another run has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Kept,
    /// Forgotten is what was noted before the newest point's: the run that made that has ended since.
    KeptSinceNewest,
    Forgotten,
}

/// The list of a destination, as it was read under the lease: on a share each look at the file is three round trips.
pub(super) struct ClosedEpochs<'a> {
    store: &'a Store,
    list: Epochs,
    read: Instant,
    /// Taken out of the list, and not of its file yet.
    released: Vec<String>,
    /// The newest point's, which stays.
    newest: Option<String>,
}

impl<'a> ClosedEpochs<'a> {
    /// Takes what was read of a destination a moment ago.
    pub(super) fn new(store: &'a Store, list: Epochs, past: &[Past]) -> Self {
        let newest = past.last().and_then(|newest| newest.epoch.clone());
        Self { store, list, read: Instant::now(), released: Vec::new(), newest }
    }

    /// Notes one before it is made, so that a run that is killed leaves none behind for good.
    pub(super) fn note(&mut self, epoch: &str) -> Result<(), Failure> {
        self.write(|closed| closed.push(epoch.to_owned()))
    }

    /// Gives what was noted the name that it has once it is made.
    pub(super) fn rename(&mut self, epoch: &str, made: &str) -> Result<(), Failure> {
        self.write(|closed| {
            closed.retain(|closed| closed != epoch);
            closed.push(made.to_owned());
        })
    }

    /// Releases what was closed for the destination, but for the newest point's. `release` says whether it was there;
    /// `None`: it is not of this source. The file is as it was until the next one is noted.
    pub(super) fn release_old(
        &mut self,
        missing: Missing,
        mut release: impl FnMut(&str) -> Result<Option<bool>, Failure>,
    ) -> Result<(), Failure> {
        let closed = self.list.closed.clone();
        let newest = closed.iter().position(|closed| Some(closed) == self.newest.as_ref());
        for (number, epoch) in closed.into_iter().enumerate().filter(|(number, _)| newest != Some(*number)) {
            let is_over = match release(&epoch)? {
                None => false,
                Some(true) => true,
                Some(false) => match missing {
                    Missing::Kept => false,
                    Missing::KeptSinceNewest => newest.is_some_and(|newest| number < newest),
                    Missing::Forgotten => true,
                },
            };
            if is_over {
                self.list.closed.retain(|closed| *closed != epoch);
                self.released.push(epoch);
            }
        }
        Ok(())
    }

    /// The run has ended: releases all that the newest point does not need, which is its point. Where it knows of none,
    /// it may have been stopped behind the step that makes one, so the folder is asked.
    pub(super) fn run_ended(
        &mut self,
        made: Option<&Made>,
        missing: Missing,
        release: impl FnMut(&str) -> Result<Option<bool>, Failure>,
    ) -> Result<(), Failure> {
        self.newest = match made {
            Some(made) => made.facts.epoch.clone(),
            None => self.store.past()?.0.pop().and_then(|newest| newest.epoch),
        };
        self.release_old(missing, release)?;
        // A run that fails each time may be the last one for long.
        if (made.is_none() && !self.released.is_empty()) || self.released.len() > LEFT_MAX {
            self.write(|_| ())?;
        }
        Ok(())
    }

    fn write(&mut self, change: impl FnOnce(&mut Vec<String>)) -> Result<(), Failure> {
        let folder = &**self.store.folder();
        if self.read.elapsed() > FRESH {
            self.list = Epochs::load(folder).map_err(failed)?;
            self.list.closed.retain(|closed| !self.released.contains(closed));
        }
        change(&mut self.list.closed);
        self.list.store(folder).map_err(|error| failed_in(folder, error))?;
        self.read = Instant::now();
        self.released.clear();
        Ok(())
    }
}
