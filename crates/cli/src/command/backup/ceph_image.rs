//! An image of Ceph as the source of a backup, which may be in use.
//!
//! 1. The snapshot that is to be made gets its name, which the destination notes: a run that is killed leaves none
//!    behind for good.
//! 2. It is made, by the client that writes to the image if there is one. Its number is noted too: another one may get
//!    its name, but never its number.
//! 3. The cluster is asked what was written between the newest point's snapshot and this one (`rbd diff`).
//! 4. It is read.
//! 5. When the point is sealed, the older snapshots are removed.
//!
//! In any doubt everything is read and compared.

use std::io;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use lunway_backup::{Changed, CoarseMap, Since};
use lunway_bench::Cancel;
use lunway_block::spec::RbdName;
use lunway_block::{BlockDevice, BlockError};
use lunway_rbd::{RbdDevice, RbdOpenError, RbdOptions, RbdSnapshots};
use lunway_vhdx_device::random_guids;

use super::closed_epochs::{ClosedEpochs, Missing};
use super::store::{Made, Past};
use crate::device::BlockingRuntime;
use crate::failure::Failure;
use crate::{interrupt, terminal};

/// What stands before the image and the snapshot, where manifests have an epoch.
const PREFIX: &str = "rbd-snapshot:";
/// How the snapshots are called, with a random number behind it.
const SNAPSHOT: &str = "lunway-";

/// The moment of an image that a run reads.
pub(super) struct Moment<'a> {
    name: RbdName,
    epochs: ClosedEpochs<'a>,
    /// The image itself, whatever its name.
    image: String,
    epoch: String,
}

/// An image as it was at a moment.
pub(super) struct Frozen<'a> {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) changed: Changed,
    pub(super) moment: Moment<'a>,
}

/// What an epoch names: `rbd-snapshot:IMAGE@SNAPSHOT#NUMBER`.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    image: &'a str,
    snapshot: &'a str,
    /// `None`: it was not made yet when this was noted, or by a version that did not note it.
    number: Option<u64>,
}

fn parts(epoch: &str) -> Option<Parts<'_>> {
    let (image, rest) = epoch.strip_prefix(PREFIX)?.rsplit_once('@')?;
    let (snapshot, number) = match rest.split_once('#') {
        Some((snapshot, number)) => (snapshot, Some(number.parse().ok()?)),
        None => (rest, None),
    };
    // Nothing but a snapshot of ours is ever removed, whatever the list says.
    snapshot.starts_with(SNAPSHOT).then_some(Parts { image, snapshot, number })
}

impl<'a> Moment<'a> {
    /// Freezes an image, and says what was written to it since the newest point of the destination. The error inside
    /// is the reason why there is no snapshot: the image has to be read as it is.
    pub(super) fn make(
        name: &RbdName,
        (mut epochs, past): (ClosedEpochs<'a>, &[Past]),
        (runtime, cancel): (&BlockingRuntime, &Cancel),
    ) -> Result<Result<Frozen<'a>, String>, Failure> {
        // A cluster that does not answer is met here.
        let options = RbdOptions::default();
        let opening = RbdSnapshots::open(name, &options);
        let snapshots = match runtime.wait(interrupt::unless_asked(cancel, name, opening))? {
            Ok(snapshots) => snapshots,
            Err(error) if may_only_read(&error) => return Ok(Err(none(&error))),
            Err(error) => return Err(Failure::failed(error)),
        };
        let image = snapshots.identity().to_owned();
        let mut make = || {
            epochs
                .release_old(Missing::KeptSinceNewest, |epoch| remove(&snapshots, epoch, runtime, &|_| ()))?;
            let random = random_guids().context("asking for random numbers")?.next().to_digits();
            let snapshot = format!("{SNAPSHOT}{random:032x}");
            let epoch = format!("{PREFIX}{image}@{snapshot}");
            epochs.note(&epoch)?;
            Ok((epoch, runtime.wait(snapshots.create(&snapshot)).map(|()| snapshot)))
        };
        let made: Result<_, Failure> = make();
        close(snapshots, runtime);
        let (epoch, made) = made?;
        let snapshot = match made {
            Ok(snapshot) => snapshot,
            Err(error) if may_only_read(&error) => return Ok(Err(none(&error))),
            // It may pass, and a point of an image that is written meanwhile was not asked for.
            Err(error) => {
                let none = none(&error);
                return Err(Failure::failed(anyhow!(
                    "{none}; no point was made, as it would mix what the image held at different times: remove what is in \
                     the way, and give it again"
                )));
            }
        };
        let mut moment = Self { name: name.clone(), epochs, image, epoch };
        let at = RbdName { snapshot: Some(snapshot), ..name.clone() };
        let options = RbdOptions { read_only: true, ..RbdOptions::default() };
        let opened = runtime.wait(RbdDevice::open(&at, &options));
        let changed = match opened {
            Ok(device) => moment
                .has_number(device.snapshot())
                .and_then(|()| moment.changed(&device, past, runtime))
                .map(|changed| (device, changed)),
            Err(error) => Err(Failure::failed(error)),
        };
        match changed {
            Ok((device, changed)) => Ok(Ok(Frozen { device: Arc::new(device), changed, moment })),
            Err(failure) => {
                moment.end(None, runtime);
                Err(failure)
            }
        }
    }

    /// Name of the snapshot.
    pub(super) fn snapshot(&self) -> &str {
        parts(&self.epoch).map_or("", |parts| parts.snapshot)
    }

    /// Notes which snapshot it is that has the name, and is read.
    fn has_number(&mut self, number: Option<u64>) -> Result<(), Failure> {
        let number = number.context("librbd opens the image in place of its snapshot")?;
        let noted = std::mem::take(&mut self.epoch);
        self.epoch = format!("{noted}#{number}");
        self.epochs.rename(&noted, &self.epoch)
    }

    /// What the manifest has in place of an epoch.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Returns what was written between the newest point's snapshot and this one.
    fn changed(
        &self,
        device: &RbdDevice,
        past: &[Past],
        runtime: &BlockingRuntime,
    ) -> Result<Changed, Failure> {
        let unknown = |why: String| Ok(Changed::Unknown { why: terminal::clean(&why) });
        let Some(newest) = past.last() else { return unknown("there is no point yet".to_owned()) };
        let Some((epoch, since)) = newest.epoch.as_ref().and_then(|epoch| Some((epoch, parts(epoch)?)))
        else {
            return unknown(format!("point {} was not made of a snapshot of the image", newest.point));
        };
        if since.image != self.image {
            return unknown(format!("point {} was made of another image", newest.point));
        }
        let Some(number) = since.number else {
            let why =
                "was made by a version that noted its snapshot's name alone, which another may have by now";
            return unknown(format!("point {} {why}", newest.point));
        };
        let (mut map, mut at, size) = (CoarseMap::default(), 0, device.geometry().size);
        while at < size {
            match runtime.wait(device.changed_since(since.snapshot, number, at)) {
                Ok(part) if part.end > at => {
                    part.ranges.into_iter().for_each(|range| map.add(range));
                    at = part.end;
                }
                Ok(_) => return unknown("librbd's answers contradict each other".to_owned()),
                Err(BlockError::Io { message, .. }) => return unknown(message),
                Err(error) => return unknown(format!("librbd does not say what was written: {error}")),
            }
        }
        Ok(Changed::Known { since: Since::Epoch(epoch.clone()), ranges: Box::new(map) })
    }

    /// The run has ended, and has made this point: removes the snapshots that are of no use any more. What cannot be
    /// removed now, the next run removes.
    pub(super) fn end(mut self, made: Option<&Made>, runtime: &BlockingRuntime) {
        let mut release = || {
            let snapshots = runtime
                .wait(RbdSnapshots::open(&self.name, &RbdOptions::default()))
                .map_err(Failure::failed)?;
            let stays = |snapshot: &str| {
                terminal::say(&format!(
                    "the snapshot {snapshot} of the image stays, as it is protected or has clones; a run after `rbd snap unprotect` \
                     removes it"
                ));
            };
            let remove = |epoch: &str| remove(&snapshots, epoch, runtime, &stays);
            let released = self.epochs.run_ended(made, Missing::Forgotten, remove);
            close(snapshots, runtime);
            released
        };
        if let Err(error) = release() {
            error.report();
        }
    }
}

/// The image may only be read: the user has no other right, or another cluster has the image that is written.
fn may_only_read(error: &RbdOpenError) -> bool {
    let refused = |source: &io::Error| {
        matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    };
    match error {
        RbdOpenError::Failed { source, .. } => refused(source),
        RbdOpenError::NotPrimary { .. } => true,
        _ => false,
    }
}

/// The lock goes back, so that a daemon that starts now finds it free.
fn close(snapshots: RbdSnapshots, runtime: &BlockingRuntime) {
    if let Err(error) = runtime.wait(snapshots.close()) {
        Failure::failed(error).report();
    }
}

fn none(error: &RbdOpenError) -> String {
    terminal::clean(&format!("no snapshot of the image could be made: {error}"))
}

/// Removes the snapshot that an epoch names, and says whether it was there; `None`: it is of another image, or has to
/// stay, of which `stays` is told.
fn remove(
    snapshots: &RbdSnapshots,
    epoch: &str,
    runtime: &BlockingRuntime,
    stays: &dyn Fn(&str),
) -> Result<Option<bool>, Failure> {
    let Some(Parts { image, snapshot, number }) = parts(epoch) else { return Ok(None) };
    if image != snapshots.identity() {
        return Ok(None);
    }
    match runtime.wait(snapshots.remove(snapshot, number)) {
        // It stays noted until the image is primary here again.
        Err(RbdOpenError::NotPrimary { .. }) => Ok(None),
        Err(RbdOpenError::Failed { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {
            stays(snapshot);
            Ok(None)
        }
        removed => removed.map(Some).map_err(Failure::failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_names_an_image_and_a_snapshot_of_ours() {
        let image = "8d6e/3//10ab";
        let epoch = format!("{PREFIX}{image}@{SNAPSHOT}0f");
        let named = |number| Some(Parts { image, snapshot: "lunway-0f", number });
        assert_eq!(parts(&epoch), named(None));
        assert_eq!(parts(&format!("{epoch}#17")), named(Some(17)));
        for wrong in [
            "rbd-snapshot:8d6e/3//10ab@nightly",
            "rbd-snapshot:8d6e/3//10ab@lunway-0f#",
            "rbd-snapshot:8d6e/3//10ab@lunway-0f#x",
            "rbd-snapshot:lunway-0f",
            "qemu:dirty-bitmap:b@lunway-0f",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
