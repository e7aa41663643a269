//! The head that a run or a prune writes next.

use std::collections::BTreeSet;

use lunway_backup::PointId;

use crate::head::Head;
use crate::point::RepositoryPoint;
use crate::points::Points;

/// What becomes of a series.
pub(crate) enum Change<'a> {
    /// A run has made a point. What is gone stays known as missed, unless it is in a series that has had this one's
    /// name.
    Run {
        /// Returns `true` for a point of such a series.
        is_elsewhere: &'a dyn Fn(PointId) -> bool,
    },
    /// A prune removes points.
    Prune(Going<'a>),
}

/// Points that a prune removes.
#[derive(Default)]
pub(crate) struct Going<'a> {
    /// By its rules.
    pub(crate) unwanted: &'a [PointId],
    /// Because they were named.
    pub(crate) named: &'a [PointId],
    /// The words that named them.
    pub(crate) words: &'a [String],
    /// Its user gives up what is gone.
    pub(crate) gives_up: bool,
}

impl Points {
    /// The head of the series with this point as its newest.
    pub(crate) fn head_with(&self, newest: Option<&RepositoryPoint>, change: &Change<'_>) -> Head {
        let nothing = Going::default();
        let going = match change {
            Change::Run { .. } => &nothing,
            Change::Prune(going) => going,
        };
        let number = |point: &RepositoryPoint| (point.generation, point.point);
        let mut trail: BTreeSet<_> = self.head.iter().flat_map(Head::trail).collect();
        trail.extend(self.points().iter().chain(newest).map(number));
        let is_new = self.head.is_none() && self.head_problem.is_none() && !self.has_any();
        let since = match self.head.as_ref().and_then(|head| head.since) {
            Some(since) => since,
            None if is_new => 0,
            // What was there before is known as far as it is there.
            None => self.newest().map_or_else(|| self.last_generation(), |newest| newest.generation),
        };
        let begun = if is_new { newest.map(|newest| newest.point) } else { self.begun() };
        let mut head = Head::new(&self.name, self.names_before());
        head.newest = newest.map(|newest| newest.point);
        head.generation = newest.map_or(0, |newest| newest.generation).max(self.last_committed);
        head.begun = begun;
        // Of a prune that has not ended.
        let removed = self.removed.iter().map(|point| (point.generation, point.point));
        let removed_unreadable = self.removed_unreadable.iter().map(|of| (of.generation, of.point));
        let removed: Vec<(u64, PointId)> = removed.chain(removed_unreadable).collect();
        let there: BTreeSet<u64> = removed.iter().map(|(generation, _)| *generation).collect();
        let was_named = |point: &PointId| self.head.as_ref().is_some_and(|head| head.removed.contains(point));
        let (still_named, still_going): (Vec<_>, Vec<_>) =
            removed.iter().partition(|(_, point)| was_named(point));
        head.removed =
            going.named.iter().chain(still_named.iter().map(|(_, point)| point)).copied().collect();
        let unreadable = self.unreadable.iter().map(|unreadable| (unreadable.generation, unreadable.point));
        let all = self.points().iter().map(number).chain(unreadable);
        let unwanted = all.filter(|(_, point)| going.unwanted.contains(point));
        head.going = unwanted.chain(still_going).map(|(generation, _)| generation).collect();
        let mut gone = self.head.as_ref().map(|head| head.gone_but(&there)).unwrap_or_default();
        if self.head.as_ref().is_some_and(|head| head.gone.is_none()) {
            // A version wrote it that marked none: of what is gone now nothing else is known.
            let absent = trail.iter().filter(|(_, point)| !self.lies_there(*point));
            gone.extend(absent.map(|(generation, _)| *generation));
        }
        let lost = self.missed.iter().chain(&self.losses).filter_map(|loss| loss.point);
        let forgone = self.head.iter().flat_map(Head::forgone);
        match change {
            Change::Run { is_elsewhere } => {
                head.set_missed(lost.filter(|(_, point)| !is_elsewhere(*point)));
                head.set_forgone(forgone);
            }
            Change::Prune(going) if going.gives_up => {
                let absent =
                    trail.iter().filter(|(_, point)| Some(*point) != head.newest && !self.lies_there(*point));
                gone.extend(absent.map(|(generation, _)| *generation));
                head.set_forgone(forgone.chain(lost));
            }
            Change::Prune(_) => {
                head.set_missed(lost);
                head.set_forgone(forgone);
            }
        }
        if let Change::Prune(going) = change {
            head.set_words(self.head.iter().flat_map(|head| &head.words).chain(going.words));
        }
        head.gone = Some(gone);
        head.with_trail(&trail.into_iter().collect::<Vec<_>>(), since)
    }

    /// The first point of the series, by which it is told from others that have had its name.
    pub(crate) fn begun(&self) -> Option<PointId> {
        self.head.as_ref().and_then(|head| head.begun)
    }

    /// The head, if the prune that wrote it has not ended.
    pub(crate) fn unended_head(&self) -> Option<Head> {
        self.head.clone().filter(Head::is_of_prune)
    }

    /// Returns `true` if a run was cut off between its point and the head: the points that lead to the newest one must
    /// not be removed before the head names it.
    pub(crate) fn is_head_behind(&self) -> bool {
        let newest = self.newest().map(|newest| newest.point);
        let is_another = match &self.head {
            Some(head) => head.newest != newest,
            None => self.head_problem.is_none() && self.points().iter().any(|point| point.series.is_some()),
        };
        is_another && self.losses.is_empty() && self.foreign.is_empty() && !self.is_copy()
    }

    /// Names that the series had before: those of its head, and of points that become its own.
    fn names_before(&self) -> Vec<String> {
        let mut names = self.foreign.clone();
        names.extend(self.head.iter().flat_map(|head| head.was.clone()));
        names.remove(&self.name);
        names.into_iter().collect()
    }
}
