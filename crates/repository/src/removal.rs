//! Removal of points from their series: what of them goes, in which order, and its end.

use lunway_backup::{BackupError, Folder, Lease, Notes, PointId, Result, UnreadablePoint, manifest_names};

use crate::head::Head;
use crate::next_head::{Change, Going};
use crate::point::{RepositoryPoint, remove_manifests};
use crate::points::Points;
use crate::series::Series;

/// Result of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Points that were removed, the oldest first.
    pub removed: Vec<PointId>,
    /// Packs that were removed.
    pub packs: usize,
    /// Bytes of entries in them.
    pub freed_bytes: u64,
    /// Bytes of those that were written again before.
    pub rewritten_bytes: u64,
    /// Why room is freed by the next prune only.
    pub deferred: Option<String>,
}

/// Points of a series that are to be removed.
pub struct Unwanted<'a> {
    /// The series.
    pub series: &'a Series,
    /// Its lease.
    pub lease: &'a Lease<'a>,
    /// Ids of the points.
    pub points: Vec<PointId>,
    /// The series ends with them: what is gone of it already is not missed.
    pub is_whole: bool,
    /// The words that have named them; none: rules have chosen them. The head says so until a run makes a point, by
    /// which the same words remove no other point when they are given again.
    pub words: Vec<String>,
}

/// Points that were removed. In the heads of their series they still stand as such that are being removed.
#[must_use = "it has not ended"]
pub struct Removal<'a> {
    /// What was done.
    pub pruned: Pruned,
    pub(crate) heads: Vec<(&'a Series, Head)>,
}

impl Removal<'_> {
    /// Ends it, when the user knows what was removed. The leases are held until this has returned.
    ///
    /// # Errors
    ///
    /// What the folder of a series says.
    pub fn end(self) -> Result<Pruned> {
        for (series, head) in self.heads {
            match head.ended().store(&*series.folder, &series.repository.codec) {
                // The next one does it.
                Ok(()) | Err(BackupError::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.pruned)
    }
}

impl Unwanted<'_> {
    /// Removes the manifests, of the points that there are in the series, and those that another prune has left: the
    /// head that says so until this one has ended. `gives_up`: what is gone of the series without a prune is not missed
    /// any more.
    pub(crate) fn remove(
        &self,
        points: &Points,
        gives_up: bool,
        gone: &mut Vec<PointId>,
    ) -> Result<Option<Head>> {
        let folder = &*self.series.folder;
        let is_unwanted = |point: &&RepositoryPoint| self.points.contains(&point.point);
        let newest = points.points().iter().rfind(|point| !is_unwanted(point));
        let unreadable: Vec<&UnreadablePoint> =
            points.unreadable.iter().filter(|unreadable| self.points.contains(&unreadable.point)).collect();
        let readable = points.points().iter().filter(is_unwanted).map(|point| point.point);
        let unwanted: Vec<PointId> =
            readable.chain(unreadable.iter().map(|unreadable| unreadable.point)).collect();
        let mut head = points.unended_head();
        let is_named = !self.words.is_empty();
        let forgoes = gives_up && points.loss_sentences().next().is_some();
        if points.is_head_behind() || !unwanted.is_empty() || forgoes {
            let (by_rules, named) = unwanted.split_at(if is_named { 0 } else { unwanted.len() });
            let going = Going { unwanted: by_rules, named, words: &self.words, gives_up };
            let new = points.head_with(newest, &Change::Prune(going));
            // Without it the newest point would be missed, and other points removed by the same words.
            let is_needed =
                newest != points.newest() || !unwanted.is_empty() && (is_named || points.is_head_behind());
            let is_needed = is_needed || !unreadable.is_empty();
            match self.store(&new, points) {
                // It is written at the end, when there is room.
                Err(BackupError::Full { .. }) if !is_needed => {}
                stored => stored?,
            }
            head = Some(new);
        }
        let is_removed = |point: &&RepositoryPoint| {
            is_unwanted(point) || points.removed().iter().any(|removed| removed.point == point.point)
        };
        for point in points.all().filter(is_removed) {
            self.lease.check()?;
            point.remove(folder)?;
            gone.push(point.point);
        }
        let unreadable: Vec<_> = unreadable.into_iter().chain(&points.removed_unreadable).collect();
        for unreadable in &unreadable {
            self.lease.check()?;
            remove_manifests(folder, &unreadable.stem())?;
            gone.push(unreadable.point);
        }
        if !unreadable.is_empty() {
            forget_damage(folder, gone)?;
        }
        Ok(head.filter(Head::is_of_prune))
    }

    /// Writes the head, before anything is removed. Where there is no room for it, copies of manifests that are removed
    /// anyway make some.
    fn store(&self, head: &Head, points: &Points) -> Result<()> {
        let (folder, codec) = (&*self.series.folder, &self.series.repository.codec);
        let written = head.clone().store(folder, codec);
        let Err(BackupError::Full { .. }) = written else { return written };
        let has_both =
            |point: &&RepositoryPoint| !points.copy_problems.iter().any(|(of, _)| *of == point.point);
        let unwanted = points.points().iter().filter(|point| self.points.contains(&point.point));
        for point in unwanted.filter(has_both) {
            let [copy, _] = manifest_names(&point.stem());
            self.lease.check()?;
            folder.remove(&copy).map_err(BackupError::folder("removing", &folder.show(&copy)))?;
        }
        folder.sync().map_err(BackupError::folder("removing", &folder.show("")))?;
        head.clone().store(folder, codec)
    }
}

/// Takes points that are gone out of what is known to be damaged.
fn forget_damage(folder: &dyn Folder, gone: &[PointId]) -> Result<()> {
    let mut notes = Notes::load(folder)?;
    notes.damage.retain(|damage| !gone.contains(&damage.point()));
    match notes.store(folder) {
        // The next verification does it.
        Ok(()) | Err(BackupError::Full { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
