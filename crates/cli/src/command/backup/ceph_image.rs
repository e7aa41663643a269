//! An image of Ceph as the source of a backup, which may be in use.
//!
//! 1. The snapshot that is to be made gets its name, which the destination notes: a run that is killed leaves none
//!    behind for good.
//! 2. It is made, by the client that writes to the image if there is one.
//! 3. The cluster is asked what was written between the newest point's snapshot and this one (`rbd diff`).
//! 4. It is read.
//! 5. When the point is sealed, the older snapshots are removed.
//!
//! In any doubt everything is read and compared.

use std::io;
use std::sync::Arc;

use anyhow::Context;
use lunway_backup::{Changed, CoarseMap, Since};
use lunway_block::spec::RbdName;
use lunway_block::{BlockDevice, BlockError};
use lunway_rbd::{RbdDevice, RbdOpenError, RbdOptions, RbdSnapshots};
use lunway_vhdx_device::random_guids;

use super::closed_epochs::{self, Missing};
use super::store::{Past, Store};
use crate::device::BlockingRuntime;
use crate::failure::Failure;
use crate::terminal;

/// What stands before the image and the snapshot, where manifests have an epoch.
const PREFIX: &str = "rbd-snapshot:";
/// How the snapshots are called, with a random number behind it.
const SNAPSHOT: &str = "lunway-";

/// The moment of an image that a run reads.
pub(super) struct Moment {
    name: RbdName,
    /// The image itself, whatever its name.
    image: String,
    epoch: String,
}

/// An image as it was at a moment.
pub(super) struct Frozen {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) changed: Changed,
    pub(super) moment: Moment,
}

/// The image and the snapshot that an epoch names.
fn parts(epoch: &str) -> Option<(&str, &str)> {
    let (image, snapshot) = epoch.strip_prefix(PREFIX)?.rsplit_once('@')?;
    // Nothing but a snapshot of ours is ever removed, whatever the list says.
    snapshot.starts_with(SNAPSHOT).then_some((image, snapshot))
}

impl Moment {
    /// Freezes an image, and says what was written to it since the newest point of the destination. The error inside
    /// is the reason why there is no snapshot: the image has to be read as it is.
    pub(super) fn make(
        name: &RbdName,
        (store, past): (&Store, &[Past]),
        runtime: &BlockingRuntime,
    ) -> Result<Result<Frozen, String>, Failure> {
        let snapshots = match runtime.wait(RbdSnapshots::open(name, &RbdOptions::default())) {
            Ok(snapshots) => snapshots,
            Err(error) if may_only_read(&error) => return Ok(Err(none(&error))),
            Err(error) => return Err(Failure::failed(error)),
        };
        let image = snapshots.identity().to_owned();
        remove_old(&snapshots, store, runtime, Missing::Kept)?;
        let random = random_guids().context("asking for random numbers")?.next().to_digits();
        let snapshot = format!("{SNAPSHOT}{random:032x}");
        let epoch = format!("{PREFIX}{image}@{snapshot}");
        closed_epochs::note(store, &epoch)?;
        let made = runtime.wait(snapshots.create(&snapshot));
        close(snapshots, runtime);
        if let Err(error) = made {
            return Ok(Err(none(&error)));
        }
        let moment = Self { name: name.clone(), image, epoch };
        let at = RbdName { snapshot: Some(snapshot), ..name.clone() };
        let options = RbdOptions { read_only: true, ..RbdOptions::default() };
        let opened = runtime.wait(RbdDevice::open(&at, &options));
        let changed = match opened {
            Ok(device) => moment.changed(&device, past, runtime).map(|changed| (device, changed)),
            Err(error) => Err(Failure::failed(error)),
        };
        match changed {
            Ok((device, changed)) => Ok(Ok(Frozen { device: Arc::new(device), changed, moment })),
            Err(failure) => {
                moment.end(store, runtime);
                Err(failure)
            }
        }
    }

    /// Name of the snapshot.
    pub(super) fn snapshot(&self) -> &str {
        parts(&self.epoch).map_or("", |(_, snapshot)| snapshot)
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
        let Some((epoch, (image, since))) =
            newest.epoch.as_ref().and_then(|epoch| Some((epoch, parts(epoch)?)))
        else {
            return unknown(format!("point {} was not made of a snapshot of the image", newest.point));
        };
        if image != self.image {
            return unknown(format!("point {} was made of another image", newest.point));
        }
        let (mut map, mut at, size) = (CoarseMap::default(), 0, device.geometry().size);
        while at < size {
            match runtime.wait(device.changed_since(since, at)) {
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

    /// The run has ended: removes the snapshots that are of no use any more. What cannot be removed now, the next run
    /// removes.
    pub(super) fn end(self, store: &Store, runtime: &BlockingRuntime) {
        let removed = runtime
            .wait(RbdSnapshots::open(&self.name, &RbdOptions::default()))
            .map_err(Failure::failed)
            .and_then(|snapshots| {
                let removed = remove_old(&snapshots, store, runtime, Missing::Forgotten);
                close(snapshots, runtime);
                removed
            });
        if let Err(error) = removed {
            error.report();
        }
    }
}

/// The user has the right to read the image alone.
fn may_only_read(error: &RbdOpenError) -> bool {
    let refused = |source: &io::Error| {
        matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    };
    matches!(error, RbdOpenError::Failed { source, .. } if refused(source))
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

/// Removes the snapshots that were made of an image for the destination, but for the newest point's.
fn remove_old(
    snapshots: &RbdSnapshots,
    store: &Store,
    runtime: &BlockingRuntime,
    missing: Missing,
) -> Result<(), Failure> {
    closed_epochs::release_old(store, missing, |epoch| match parts(epoch) {
        Some((image, snapshot)) if image == snapshots.identity() => {
            runtime.wait(snapshots.remove(snapshot)).map(Some).map_err(Failure::failed)
        }
        _ => Ok(None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_names_an_image_and_a_snapshot_of_ours() {
        let image = "8d6e/3//10ab";
        let epoch = format!("{PREFIX}{image}@{SNAPSHOT}0f");
        assert_eq!(parts(&epoch), Some((image, "lunway-0f")));
        for wrong in
            ["rbd-snapshot:8d6e/3//10ab@nightly", "rbd-snapshot:lunway-0f", "qemu:dirty-bitmap:b@lunway-0f"]
        {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
