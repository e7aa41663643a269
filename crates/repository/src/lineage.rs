//! The lineage of a series: which points of its folder are its own.
//!
//! A person who can write to the share can put manifests into a folder that were written with the key: of another
//! series, of a state that was given up, of an earlier series of the same name. So the head says which points a series
//! has had. A point is its own if
//!
//! - the head names it: as the newest one, or in the trail, and not as one that a prune has removed;
//! - a run made it that was cut off before it wrote the head: the points before it lead to the one that the head names;
//! - it is older than the trail, or the head has none: nothing is known of it, and it is never the newest.
//!
//! All others are strays, which are told, and neither removed by a rule nor taken for the newest. Without a head, the
//! newest point that the user has seen stands in for it.

use std::collections::{BTreeSet, HashMap, HashSet};

use lunway_backup::PointId;

use crate::head::Head;
use crate::point::RepositoryPoint;
use crate::seen::SeenSeries;

/// Relation of a point to the series in whose folder it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is one of its points.
    Own,
    /// It was one: a prune has taken it out of the head, and has not removed it yet.
    Removed,
    /// It was put there.
    Stray,
}

/// Points by their ids.
pub(crate) type ById<'a> = HashMap<PointId, &'a RepositoryPoint>;

/// What a series has had.
pub(crate) struct Lineage {
    /// Names that its points may have; none: they tell nothing.
    names: HashSet<String>,
    known: Option<Known>,
}

struct Known {
    newest: Option<PointId>,
    /// Its generation, if that is known.
    newest_generation: Option<u64>,
    /// The highest one that a point has had.
    generation: u64,
    trail: HashMap<PointId, u64>,
    /// Generations of the points in it: no two points of a series have the same.
    numbers: HashSet<u64>,
    /// The generation from which on the trail has all points.
    since: Option<u64>,
    /// Points that a prune removes.
    removed: HashSet<PointId>,
    /// Generations of points that prunes have removed; none: that is not known.
    gone: Option<BTreeSet<u64>>,
}

impl Lineage {
    /// That of the series `name`, of which these points lie in the folder.
    pub(crate) fn of(name: &str, head: Option<&Head>, seen: Option<&SeenSeries>, all: &ById<'_>) -> Self {
        let generation_of = |point: &PointId| all.get(point).map(|point| point.generation);
        if let Some(head) = head {
            let trail: HashMap<PointId, u64> =
                head.trail().map(|(generation, point)| (point, generation)).collect();
            let newest_generation =
                head.newest.and_then(|newest| trail.get(&newest).copied().or_else(|| generation_of(&newest)));
            let names = head.was.iter().chain([&head.series]).cloned();
            return Self {
                names: names.chain([name.to_owned()]).collect(),
                known: Some(Known {
                    newest: head.newest,
                    newest_generation,
                    generation: head.generation,
                    numbers: trail.values().copied().collect(),
                    removed: trail
                        .iter()
                        .filter(|(_, generation)| head.going.contains(generation))
                        .map(|(point, _)| *point)
                        .chain(head.removed.iter().copied())
                        .collect(),
                    trail,
                    since: head.since,
                    gone: head.gone.clone(),
                }),
            };
        }
        if let Some(newest) = seen.and_then(|seen| all.get(&seen.newest?)) {
            let mut trail = HashMap::from([(newest.point, newest.generation)]);
            let mut at = *newest;
            while let Some(before) = at.before.and_then(|before| all.get(&before))
                && before.generation < at.generation
            {
                trail.insert(before.point, before.generation);
                at = before;
            }
            return Self {
                names: newest.series.iter().cloned().chain([name.to_owned()]).collect(),
                known: Some(Known {
                    newest: Some(newest.point),
                    newest_generation: Some(newest.generation),
                    generation: newest.generation,
                    numbers: trail.values().copied().collect(),
                    trail,
                    since: None,
                    removed: HashSet::new(),
                    gone: None,
                }),
            };
        }
        // A folder that was renamed has no point of the name.
        let is_named = all.values().any(|point| point.series.as_deref() == Some(name));
        let names = if is_named { HashSet::from([name.to_owned()]) } else { HashSet::new() };
        Self { names, known: None }
    }

    pub(crate) fn standing(&self, point: &RepositoryPoint, all: &ById<'_>) -> Standing {
        if self.other_series(point).is_some() {
            return Standing::Stray;
        }
        let Some(known) = &self.known else { return Standing::Own };
        if known.removed.contains(&point.point) {
            return Standing::Removed;
        }
        if known.newest == Some(point.point) {
            return Standing::Own;
        }
        if point.generation > known.generation {
            return if known.is_followed_by(point, all) { Standing::Own } else { Standing::Stray };
        }
        if self.has_given_up(point.generation, point.point) {
            return Standing::Stray;
        }
        let is_in_trail = known.trail.get(&point.point) == Some(&point.generation);
        // Where the newest one is gone, and no trail says when it was made, that is told as a loss.
        let is_older = match (known.newest, known.newest_generation) {
            (Some(_), Some(newest)) => point.generation < newest,
            (Some(_), None) => true,
            (None, _) => false,
        };
        match (is_in_trail, is_older) {
            (true, true) => Standing::Own,
            // It was missing when a later head was written.
            (true, false) if known.gone.is_some() => Standing::Stray,
            (true, false) => Standing::Removed,
            (false, true) if known.tells_nothing_of(point.generation) => Standing::Own,
            (false, _) => Standing::Stray,
        }
    }

    /// The series that a point was made for, if it is another one.
    pub(crate) fn other_series<'a>(&self, point: &'a RepositoryPoint) -> Option<&'a str> {
        let series = point.series.as_deref()?;
        (!self.names.is_empty() && !self.names.contains(series)).then_some(series)
    }

    /// Returns `true` if the series has never had a point of this generation and id.
    pub(crate) fn excludes(&self, generation: u64, point: PointId) -> bool {
        let Some(known) = &self.known else { return false };
        let is_covered = generation <= known.generation && !known.tells_nothing_of(generation);
        is_covered && known.newest != Some(point) && known.trail.get(&point) != Some(&generation)
    }

    /// Returns `true` if a prune has removed this point.
    pub(crate) fn has_given_up(&self, generation: u64, point: PointId) -> bool {
        let Some(known) = &self.known else { return false };
        let is_gone = known.gone.as_ref().is_some_and(|gone| gone.contains(&generation));
        is_gone && known.trail.get(&point) == Some(&generation)
    }

    /// Returns `true` if a prune that has not ended removes this point.
    pub(crate) fn removes(&self, point: PointId) -> bool {
        self.known.as_ref().is_some_and(|known| known.removed.contains(&point))
    }

    /// Returns `true` if the series has had this point.
    pub(crate) fn has_had(&self, point: PointId) -> bool {
        self.known
            .as_ref()
            .is_some_and(|known| known.newest == Some(point) || known.trail.contains_key(&point))
    }
}

impl Known {
    /// Returns `true` if a point that the trail has not may have had this generation.
    fn tells_nothing_of(&self, generation: u64) -> bool {
        self.since.is_none_or(|since| generation < since) && !self.numbers.contains(&generation)
    }

    /// Returns `true` if a prune has removed a point that was made behind the newest one there is.
    fn has_lost(&self, point: PointId) -> bool {
        let Some(generation) = self.trail.get(&point) else { return false };
        let is_gone = self.gone.as_ref().is_some_and(|gone| gone.contains(generation));
        (is_gone || self.removed.contains(&point))
            && self.newest_generation.is_none_or(|newest| newest < *generation)
    }

    /// Returns `true` if a point leads to the newest one by points that were made since. Prunes may have removed those.
    fn is_followed_by(&self, point: &RepositoryPoint, all: &ById<'_>) -> bool {
        let mut at = point;
        // What does not name its series names no point before it either.
        while at.series.is_some() {
            if at.before == self.newest || at.before.is_some_and(|before| self.has_lost(before)) {
                return true;
            }
            match at.before.and_then(|before| all.get(&before)) {
                Some(before)
                    if (self.generation.saturating_add(1)..at.generation).contains(&before.generation) =>
                {
                    at = before;
                }
                _ => return false,
            }
        }
        false
    }
}
