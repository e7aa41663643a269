//! Reasons for which a prune removes nothing.

use std::collections::BTreeSet;

use lunway_backup::{BackupError, Notes, PointId, Result, UnreadablePoint};

use crate::damage::KnownDamage;
use crate::points::Points;
use crate::repository::Repository;
use crate::series::Series;

/// What a prune finds before it removes anything.
pub(crate) struct Checked {
    /// The points of each series, as these are now.
    pub(crate) points: Vec<Points>,
    /// Damage of packs is known: what all points need has to be marked before anything is removed.
    pub(crate) is_damage_known: bool,
}

pub(crate) fn refused_for_damage() -> BackupError {
    BackupError::Refused(
        "damage is known: nothing is removed until `lunway backup run` has repaired it and `lunway backup verify` finds \
         none, or --despite-damage says so"
            .into(),
    )
}

/// Refuses to go on beside a point that cannot be read, of the series that is shown as this.
pub(crate) fn refused_for_unreadable(shown: &str, unreadable: &UnreadablePoint) -> BackupError {
    let point = unreadable.point;
    BackupError::Refused(format!(
        "{unreadable}; nothing says what it needs, so that nothing is removed and no room is freed: put its manifest back, or \
         give the point up: `lunway backup prune {shown} --remove {point}`, or --despite-damage"
    ))
}

/// Refuses to remove these points of these series, of which some are `ending`, where what is gone or damaged would be
/// lost.
pub(crate) fn check(
    repository: &Repository,
    series: &[&Series],
    ending: &BTreeSet<String>,
    removed: &[PointId],
    despite_damage: bool,
) -> Result<Checked> {
    repository.refuse_apart()?;
    repository.refuse_strangers()?;
    if !despite_damage {
        repository.refuse_losses(&repository.all_points()?, ending, &[])?;
    }
    let known = KnownDamage::load(&*repository.folder)?;
    let mut is_open = !known.frames.is_empty() || !known.segments.is_empty();
    let mut there = Vec::new();
    for series in series {
        let points = series.points()?;
        points.refuse_foreign()?;
        // What a copy lacks is no damage.
        let mut unreadable = points.unreadable.iter();
        let is_removed = |unreadable: &&UnreadablePoint| removed.contains(&unreadable.point);
        if let Some(unreadable) = unreadable.find(|unreadable| !is_removed(unreadable) && !despite_damage) {
            return Err(refused_for_unreadable(&series.show(), unreadable));
        }
        // Of points that are gone nothing is left to repair.
        let is_readable = |point: PointId| points.all().any(|of| of.point == point);
        let is_damaged =
            Notes::load(&*series.folder)?.damage.iter().any(|damage| is_readable(damage.point()));
        is_open |= is_damaged && !points.is_copy();
        there.push(points);
    }
    match is_open && !despite_damage {
        true => Err(refused_for_damage()),
        false => Ok(Checked { points: there, is_damage_known: !known.is_empty() }),
    }
}
