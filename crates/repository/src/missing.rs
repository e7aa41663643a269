//! Series and points of a repository that are gone, though no prune has removed them.

use std::collections::BTreeSet;

use lunway_backup::{BackupError, PointId, Result};

use crate::loss::Loss;
use crate::points::Points;
use crate::repository::{NamedPoints, Repository};
use crate::seen::SeenSeries;

impl Repository {
    /// Series that this user has made points in, or has listed, and whose folders are gone, beside those that are
    /// there: without points, and with a sentence about each. Those are left out of which a note says that they were
    /// removed.
    ///
    /// # Errors
    ///
    /// Where what the user has seen cannot be read.
    pub fn missing_series(&self, there: &[NamedPoints]) -> Result<Vec<NamedPoints>> {
        let Some(pins) = &self.kept.pins else { return Ok(Vec::new()) };
        let of = (self.marker(), self.master.as_ref());
        let mut seen = pins.all_series(of)?;
        seen.extend(pins.listed(of)?);
        let is_there = |name: &String, seen: &SeenSeries| {
            there.iter().any(|(other, points)| other == name || points.continues(name, seen))
        };
        seen.retain(|name, seen| !is_there(name, seen));
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        seen.retain(|name, seen| !self.has_ended(name, seen));
        // A run may have begun one meanwhile.
        let now = self.places.series().map_err(BackupError::folder("reading", &self.folder.show("")))?;
        seen.retain(|name, _| !now.contains(name));
        let mut missing = Vec::new();
        for (name, seen) in seen {
            let (shown, number) = (self.folder.show(&name), seen.generation);
            let what = format!(
                "{shown} is gone, a series that was at its point number {number} when this user last used it, or listed it: put it back, \
                 or if it was removed on purpose, `lunway backup prune {shown} --remove-series` forgets it"
            );
            let points = Points::of_missing(&name, what);
            missing.push((name, points));
        }
        Ok(missing)
    }

    /// Remembers these series, so that one whose folder is gone is told to this user from then on.
    ///
    /// # Errors
    ///
    /// Where they cannot be kept.
    pub fn remember_listed(&self, there: &[NamedPoints]) -> Result<()> {
        let Some(pins) = &self.kept.pins else { return Ok(()) };
        let listed: Vec<_> =
            there.iter().filter_map(|(name, points)| Some((name.as_str(), points.seen()?))).collect();
        pins.remember_listed((self.marker(), self.master.as_ref()), &listed)
    }

    /// Forgets a series whose folder is gone; `false`: it is there, or this user knows nothing of it.
    ///
    /// # Errors
    ///
    /// Where that cannot be kept.
    pub fn forget_missing(&self, name: &str) -> Result<bool> {
        let is_missing = self.missing_series(&self.all_points()?)?.iter().any(|(missing, _)| missing == name);
        if is_missing {
            self.forget_series(name)?;
        }
        Ok(is_missing)
    }

    /// Refuses to remove anything while points are gone, though no prune has removed them: they may be put back, and
    /// would lack what they need. Of series that are `ending` nothing is missed.
    pub(crate) fn refuse_losses(
        &self,
        all: &[NamedPoints],
        ending: &BTreeSet<String>,
        gone: &[PointId],
    ) -> Result<()> {
        // In a series that was renamed since.
        let is_elsewhere = |name: &String, loss: &Loss| {
            let had = |point| {
                all.iter()
                    .any(|(other, points)| other != name && points.was_called(name) && points.has_had(point))
            };
            loss.point.is_some_and(|(_, point)| had(point))
        };
        for (name, points) in all.iter().filter(|(name, _)| !ending.contains(name)) {
            let mut losses = points.losses.iter().chain(&points.missed);
            let is_removed = |loss: &Loss| loss.point.is_some_and(|(_, point)| gone.contains(&point));
            if let Some(loss) = losses.find(|loss| !is_removed(loss) && !is_elsewhere(name, loss)) {
                let what = &loss.what;
                return Err(BackupError::Refused(format!(
                    "points of the series {name} are gone, and would lack what is removed now when they come back: {what}; put \
                     them back, or give them up: --despite-damage in a prune of {name}"
                )));
            }
        }
        let missing = self.missing_series(all)?;
        let missing = missing.iter().filter(|(name, _)| !ending.contains(name));
        match missing.flat_map(|(_, points)| &points.losses).next() {
            None => Ok(()),
            Some(Loss { what, .. }) => {
                let how = "nothing is removed until then, unless --despite-damage says so";
                Err(BackupError::Refused(format!("{what}; {how}")))
            }
        }
    }

    /// Refuses to remove anything while there are folders that are no series: their points would lose what they need.
    pub(crate) fn refuse_strangers(&self) -> Result<()> {
        let strangers =
            self.places.strangers().map_err(BackupError::folder("reading", &self.folder.show("")))?;
        match strangers.first() {
            None => Ok(()),
            Some(name) => Err(BackupError::Refused(format!(
                "{} is no series, and may be one that was renamed: move it away, or give it its name again; until then \
                 nothing is removed",
                self.folder.show(name)
            ))),
        }
    }
}
