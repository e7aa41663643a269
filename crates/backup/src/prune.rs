//! Retention: which points are kept, and what becomes of the others.

use std::collections::{BTreeSet, HashMap};

use crate::broken::Broken;
use crate::catalogue::Catalogue;
use crate::error::{BackupError, Result};
use crate::folder::Folder;
use crate::guids::Guids;
use crate::lease::Lease;
use crate::leftover::{Leftover, remove_leftovers};
use crate::manifest::Manifest;
use crate::merge::{self, merge, remove_point};
use crate::mount::refuse_mounts;
use crate::notes::Notes;
use crate::point_id::PointId;
use crate::time::Moment;
use crate::unreadable::UnreadablePoint;

/// Retention policy: the number of points to keep. These are the newest points, and the newest point of each of a
/// number of hours, days and so on that have one, by the clock of the machine that made them (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest points.
    pub last: usize,
    /// Hours.
    pub hourly: usize,
    /// Days.
    pub daily: usize,
    /// Weeks, from Monday.
    pub weekly: usize,
    /// Months.
    pub monthly: usize,
    /// Years.
    pub yearly: usize,
    /// Merge points only where at least so many are given up into one at once, since a merge writes all that they and
    /// it hold again: a nightly prune with 7 rewrites a full each week. 0 is 1.
    pub merge_after: usize,
    /// Remove points although damage is known: of points that no source can heal any more. Those that cannot be read
    /// go, whatever is kept, unless a kept point may lie on their files.
    pub despite_damage: bool,
}

/// A step of a prune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Points, the lowest first, go into the one that lies on them.
    Merge {
        /// They are gone afterwards.
        given_up: Vec<PointId>,
        /// Stays.
        into: PointId,
    },
    /// A point on which none lies is removed, or one that cannot be read.
    Remove(PointId),
    /// What a run that was stopped has left is removed, since a merge had no room.
    GiveUp(Leftover),
}

impl Retention {
    /// Points that are kept. Always: the newest, the newest that was verified, and incomplete ones' parents, which are
    /// the newest.
    pub fn keeps(&self, catalogue: &Catalogue, notes: &Notes) -> BTreeSet<PointId> {
        let points = catalogue.points().iter().rev().map(|point| (point.manifest.point, point.manifest.time));
        self.keeps_of(&points.collect::<Vec<_>>(), notes)
    }

    /// The same of points by their ids and times, the newest first.
    pub fn keeps_of(&self, newest: &[(PointId, Option<u64>)], notes: &Notes) -> BTreeSet<PointId> {
        let ids = || newest.iter().map(|(point, _)| *point);
        let mut kept: BTreeSet<PointId> = ids().take(self.last.max(1)).collect();
        kept.extend(ids().find(|point| notes.verified.contains(point)));
        let week = |moment: Moment| (moment.0 / 86_400 + 3) / 7;
        let month = |moment: Moment| moment.date().0 * 12 + moment.date().1;
        let rules: [(usize, &dyn Fn(Moment) -> u64); 5] = [
            (self.hourly, &|moment| moment.0 / 3600),
            (self.daily, &|moment| moment.0 / 86_400),
            (self.weekly, &week),
            (self.monthly, &month),
            (self.yearly, &|moment| moment.date().0),
        ];
        for (count, period) in rules {
            let mut seen = BTreeSet::new();
            for (point, time) in newest {
                let Some(time) = time else { continue };
                if seen.len() < count && seen.insert(period(Moment(*time))) {
                    kept.insert(*point);
                }
            }
        }
        kept
    }

    /// Returns the steps that a prune would take, in order. Points before and after a change of the disk's size are not
    /// merged, so some remain that need not be kept; nor are fewer points than [`merge_after`](Self::merge_after).
    /// Merges come first: they read what they keep, and any damage found ends the prune before a removal.
    pub fn steps(&self, catalogue: &Catalogue, notes: &Notes) -> Vec<Step> {
        self.plan(catalogue, notes).0
    }

    /// Points that need not be kept and that no prune removes, the oldest first: they are of another size of the disk
    /// than a point that lies on them and is kept. They can be removed when enough points lie on a newer full.
    pub fn not_merged(&self, catalogue: &Catalogue, notes: &Notes) -> Vec<PointId> {
        self.plan(catalogue, notes).1
    }

    /// Points that cannot be read and stay, each with a kept point that may lie on its file.
    pub fn needed_unreadable(&self, catalogue: &Catalogue, notes: &Notes) -> Vec<(PointId, PointId)> {
        let kept = self.keeps(catalogue, notes);
        let broken = Broken::of(catalogue, &|point| kept.contains(&point));
        let needed = |of: &UnreadablePoint| Some((of.point, broken.needs(of.generation)?));
        catalogue.unreadable().iter().filter_map(needed).collect()
    }

    /// Steps, and points that stay because of their size.
    fn plan(&self, catalogue: &Catalogue, notes: &Notes) -> (Vec<Step>, Vec<PointId>) {
        let kept = self.keeps(catalogue, notes);
        let (mut steps, mut removals, mut not_merged) = (Vec::new(), Vec::new(), Vec::new());
        let mut on: HashMap<PointId, Vec<&Manifest>> = HashMap::new();
        for manifest in catalogue.points().iter().map(|point| &point.manifest) {
            if let Some(parent) = manifest.parent {
                on.entry(parent).or_default().push(manifest);
            }
        }
        for full in
            catalogue.points().iter().map(|point| &point.manifest).filter(|point| point.parent.is_none())
        {
            let mut pending: Vec<&Manifest> = Vec::new();
            let mut at = Some(full);
            while let Some(point) = at {
                let above = on.get(&point.point).map_or(&[][..], Vec::as_slice);
                if !kept.contains(&point.point) && above.len() <= 1 {
                    pending.push(point);
                } else {
                    let alike =
                        pending.iter().rev().take_while(|lower| lower.virtual_bytes == point.virtual_bytes);
                    let given_up: Vec<PointId> = alike.map(|lower| lower.point).collect();
                    not_merged
                        .extend(pending[..pending.len() - given_up.len()].iter().map(|lower| lower.point));
                    if given_up.len() >= self.merge_after.max(1) {
                        let given_up = given_up.into_iter().rev().collect();
                        steps.push(Step::Merge { given_up, into: point.point });
                    }
                    pending.clear();
                }
                at = match above {
                    [only] => Some(only),
                    _ => None,
                };
            }
            removals.extend(pending.iter().rev().map(|point| Step::Remove(point.point)));
        }
        if self.despite_damage {
            let broken = Broken::of(catalogue, &|point| kept.contains(&point));
            let is_needed = |point: &PointId| {
                catalogue.get(*point).is_some_and(|point| broken.needs(point.generation).is_some())
            };
            let changes_needed = |step: &Step| match step {
                Step::Merge { given_up, into } => given_up.iter().chain([into]).any(is_needed),
                Step::Remove(point) => is_needed(point),
                Step::GiveUp(_) => false,
            };
            steps.retain(|step| !changes_needed(step));
            removals.retain(|step| !changes_needed(step));
            steps.extend(broken.gone.into_iter().map(Step::Remove));
        }
        steps.extend(removals);
        (steps, not_merged)
    }
}

/// Removes what is not kept. `progress` hears of each step, and how far it is; `false` ends the prune.
///
/// A merge for which there is no room is tried again after all other steps, and without what a run that was stopped has
/// left.
///
/// # Errors
///
/// [`BackupError::InUse`] while a point is mounted. Where a verification has found damage: what is damaged may be all
/// that is left of something.
pub fn prune(
    folder: &dyn Folder,
    lease: &Lease<'_>,
    guids: &Guids,
    retention: &Retention,
    progress: &mut dyn FnMut(&Step, u64, u64) -> bool,
) -> Result<Vec<Step>> {
    refuse_mounts(folder, lease.holder(), &|| false)?;
    merge::finish(folder)?;
    let mut catalogue = Catalogue::load(folder)?;
    let lacking = if retention.despite_damage { None } else { catalogue.lacking(folder)? };
    if let Some((point, what)) = lacking {
        return Err(BackupError::Refused(format!(
            "point {point} is damaged: {what}; nothing is removed, as other points may be all that is left, unless \
             --despite-damage says so"
        )));
    }
    let notes = Notes::load(folder)?;
    if let Some(unreadable) = catalogue.unreadable().first().filter(|_| !retention.despite_damage) {
        let (shown, point) = (folder.show(""), unreadable.point);
        return Err(BackupError::Refused(format!(
            "{unreadable}; nothing is removed while it is there: put its manifest back, or give the point up: `lunway backup \
             prune {shown} --remove {point}`, or --despite-damage"
        )));
    }
    // Of points that are gone nothing is left to repair.
    let damaged = notes.damage.iter().any(|damage| catalogue.get(damage.point()).is_some());
    if damaged && !retention.despite_damage {
        return Err(BackupError::Refused(
            "the last verification found damage: nothing is removed until `lunway backup run` has repaired it and \
             `lunway backup verify` finds none, or --despite-damage says so"
                .into(),
        ));
    }
    // No step changes what another one is: a merge takes a chain's given up points, a removal a chain's end.
    let steps = retention.steps(&catalogue, &notes);
    let mut taken = steps.clone();
    // Merges for which there was no room. What they keep was read all the same, before anything is removed.
    let mut put_off = Vec::new();
    for step in &steps {
        refuse_mounts(folder, lease.holder(), &|| false)?;
        lease.check()?;
        match step {
            Step::Remove(point) => {
                let readable = catalogue.get(*point).map(Manifest::stem);
                let unreadable = || catalogue.unreadable_point(*point).map(UnreadablePoint::stem);
                let stem = readable.or_else(unreadable).ok_or(BackupError::Lost)?;
                remove_point(folder, &stem)?;
                catalogue.replace(&[*point], None);
            }
            // None is planned.
            Step::GiveUp(_) => {}
            Step::Merge { given_up, into } => {
                let mut told = |done, total| progress(step, done, total);
                match merge(folder, lease, guids, &catalogue, given_up, *into, &mut told) {
                    Ok(merged) => catalogue.replace(given_up, Some(merged)),
                    Err(BackupError::Full { .. }) => {
                        merge::examine(folder, &catalogue, given_up, *into, &mut told)?;
                        put_off.push((step, given_up, *into));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    // The other steps have freed room. A run that was stopped goes on with what it has left; but points are more.
    if !put_off.is_empty() {
        taken.extend(remove_leftovers(folder, lease)?.into_iter().map(Step::GiveUp));
    }
    let mut left = put_off.len();
    for (step, given_up, into) in put_off {
        refuse_mounts(folder, lease.holder(), &|| false)?;
        lease.check()?;
        let mut told = |done, total| progress(step, done, total);
        let merged = merge(folder, lease, guids, &catalogue, given_up, into, &mut told);
        let merged = merged.map_err(|error| match error {
            BackupError::Full { .. } => BackupError::NoRoomToMerge {
                given_up: given_up.clone(),
                into,
                needed: merge::needed(&catalogue, given_up, into),
                folder: folder.show(""),
                removed: steps.len() - left,
            },
            error => error,
        })?;
        catalogue.replace(given_up, Some(merged));
        left -= 1;
    }
    Ok(taken)
}

/// Removes points that cannot be read, with their files, by their ids.
///
/// # Errors
///
/// [`BackupError::InUse`] while a point is mounted; where one is no such point, or another point may lie on its file:
/// then nothing is removed.
pub fn remove_unreadable(folder: &dyn Folder, lease: &Lease<'_>, points: &[PointId]) -> Result<Vec<Step>> {
    refuse_mounts(folder, lease.holder(), &|| false)?;
    merge::finish(folder)?;
    let catalogue = Catalogue::load(folder)?;
    let broken = Broken::of(&catalogue, &|_| true);
    let mut unwanted = Vec::new();
    for point in points {
        let found = catalogue.unreadable_point(*point);
        let Some(unreadable) = found.filter(|_| catalogue.get(*point).is_none()) else {
            return Err(BackupError::NoPoint(format!("there is no point {point} that cannot be read")));
        };
        if let Some(above) = broken.needs(unreadable.generation) {
            return Err(BackupError::Refused(format!(
                "point {above} is there and may lie on the file of point {point}, which stays for that: put its manifest back, \
                 or prune with --despite-damage, which takes both when no rule keeps {above}"
            )));
        }
        unwanted.push(unreadable);
    }
    for unreadable in &unwanted {
        lease.check()?;
        remove_point(folder, &unreadable.stem())?;
    }
    Ok(unwanted.into_iter().map(|unreadable| Step::Remove(unreadable.point)).collect())
}
