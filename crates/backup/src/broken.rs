//! Points whose chain is not whole, as the manifest of one below cannot be read: what of them a prune may remove.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::catalogue::Catalogue;
use crate::point_id::PointId;
use crate::unreadable::UnreadablePoint;

/// What becomes of such points, and of those that cannot be read.
pub(crate) struct Broken {
    /// They may go, the newest first.
    pub(crate) gone: Vec<PointId>,
    /// A point that is kept and whose chain is not whole, and the generation up to which points may hold what it lies
    /// on: their files stay.
    pub(crate) stays: Option<(u64, PointId)>,
}

impl Broken {
    /// Of these points, some of which are kept.
    pub(crate) fn of(catalogue: &Catalogue, is_kept: &dyn Fn(PointId) -> bool) -> Self {
        let points = catalogue.points().iter().map(|point| &point.manifest);
        let broken: Vec<_> = points
            .filter_map(|point| {
                let (there, missing) = catalogue.end_of_broken(point.point)?;
                Some((point, there, missing))
            })
            .collect();
        let kept = || broken.iter().filter(|(point, ..)| is_kept(point.point));
        let stays = kept().map(|(point, _, missing)| (*missing, point.point)).max();
        let needed: HashSet<PointId> = kept().flat_map(|(_, there, _)| there.iter().copied()).collect();
        let is_free = |generation: u64| stays.is_none_or(|(until, _)| generation > until);
        let unneeded = broken
            .iter()
            .map(|(point, ..)| (point.generation, point.point))
            .filter(|(_, point)| !needed.contains(point));
        // What a merge could not be read for has its point.
        let unreadable = catalogue
            .unreadable()
            .iter()
            .map(|UnreadablePoint { generation, point, .. }| (*generation, *point))
            .filter(|(_, point)| catalogue.get(*point).is_none());
        let all = unneeded.chain(unreadable).filter(|(generation, _)| is_free(*generation));
        let mut gone: Vec<(u64, PointId)> = all.collect();
        gone.sort_unstable_by_key(|point| Reverse(*point));
        Self { gone: gone.into_iter().map(|(_, point)| point).collect(), stays }
    }

    /// The kept point that may lie on the file of a point of this generation.
    pub(crate) fn needs(&self, generation: u64) -> Option<PointId> {
        self.stays.filter(|(until, _)| generation <= *until).map(|(_, point)| point)
    }
}
