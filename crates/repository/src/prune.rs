//! Retention: points that are not kept are removed, and the room is freed that none needs any more.
//!
//! ```text
//!   1  points    the head of the series says which ones go; then manifests. From here on every step may be repeated
//!   2  mark      every entry that a point of any series needs
//!   3  rewrite   what is needed of packs that are mostly not, into new ones
//!   4  dying     the list of packs to be removed: no run that begins from now on refers to them
//!   5  alone     no run that began before is alive, and none begins: otherwise the next prune goes on
//!   6  index     one segment in the place of all, without the dying
//!   7  sweep     packs, then the list
//!   8  end       when its user knows: the head says that the points are gone
//! ```
//!
//! While another process writes, or reads a point, it ends behind step 1. A run that began before step 4 may have made
//! a point since step 2: then it is marked again.
//!
//! Where there is no room for what steps 3 and 6 write, packs of which nothing is needed are listed and removed first,
//! while the index still names them: what the list has is not missed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use lunway_backup::{
    BackupError, Holder, INCOMPLETE, Lease, Notes, PointId, Presence, Result, Retention, refuse,
    refuse_mounts,
};

use crate::codec::Id;
use crate::damage::KnownDamage;
use crate::dying::Dying;
use crate::frames;
use crate::index::{Index, of_file, unusable_index, write_segment};
use crate::pack::{FormatError, Location, pack_name, read_directory};
use crate::packer::{Kind, Packer};
use crate::point::RepositoryPoint;
use crate::points::Points;
use crate::reader::Reader;
use crate::refusal::{Checked, check, refused_for_damage, refused_for_unreadable};
use crate::removal::{Pruned, Removal, Unwanted};
use crate::repository::{NamedPoints, Repository, SWEEPER, WRITER};
use crate::segment::{Segment, merged, segment_name};
use crate::series::Series;
use crate::walk::{Marks, Walk};

/// Entries that one prune writes again at most: what a run holds as well, 32 GiB of leaves. The next one goes on.
const REWRITTEN_MAX: usize = 1 << 19;
/// Attempts to mark what runs that end meanwhile have added.
const ATTEMPTS: usize = 3;

/// The points of a series that a prune would remove, the oldest first; despite damage also those that cannot be read.
pub fn given_up(points: &Points, notes: &Notes, retention: &Retention) -> Vec<PointId> {
    let newest: Vec<_> = points.points().iter().rev().map(|point| (point.point, point.time)).collect();
    let kept = retention.keeps_of(&newest, notes);
    let unkept = points.points().iter().map(|point| point.point).filter(|point| !kept.contains(point));
    let unreadable = points.unreadable.iter().filter(|_| retention.despite_damage);
    unkept.chain(unreadable.map(|unreadable| unreadable.point)).collect()
}

/// Removes what is not kept of a series, whose lease the caller holds, and frees room, as [`remove_points`] does.
///
/// # Errors
///
/// As of [`remove_points`].
pub fn prune(
    series: &Series,
    lease: &Lease<'_>,
    retention: &Retention,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Pruned> {
    let points = given_up(&series.points()?, &Notes::load(&*series.folder)?, retention);
    let unwanted = Unwanted { series, lease, points, is_whole: false, words: Vec::new() };
    remove_points(&series.repository, &[unwanted], retention.despite_damage, progress)?.end()
}

/// Removes points of some series, and frees the room that no point of any series needs. `progress` hears of packs that
/// were dealt with, and all of them; `false` ends it.
///
/// # Errors
///
/// [`BackupError::InUse`] while a point of one of these series is mounted. Where damage is known: what is damaged may
/// be all that is left of something. Where points of any series are known to be gone, though no prune has removed them:
/// they may come back. [`BackupError::PruneEnded`] where it fails behind that.
pub fn remove_points<'a>(
    repository: &Repository,
    all: &[Unwanted<'a>],
    despite_damage: bool,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Removal<'a>> {
    let Some(Unwanted { lease: first, .. }) = all.first() else {
        return Ok(Removal { pruned: Pruned::default(), heads: Vec::new() });
    };
    let holder = first.holder();
    let ending = ending(all);
    let series: Vec<&Series> = all.iter().map(|of| of.series).collect();
    let removed: Vec<PointId> = all.iter().flat_map(|of| of.points.clone()).collect();
    let Checked { points: there, is_damage_known } =
        check(repository, &series, &ending, &removed, despite_damage)?;
    for series in series {
        refuse_mounts(&*series.folder, holder, &|| false)?;
    }
    match repository.heal_marker(holder) {
        // What is removed makes room, for the next one.
        Ok(_) | Err(BackupError::Full { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut pruned = Pruned { removed, ..Pruned::default() };
    // Damage that no run has repaired: a part of a point is nowhere else.
    let marked = match is_damage_known && !despite_damage {
        false => None,
        true => Some(mark(repository, despite_damage, &ending, &pruned.removed, &[])?),
    };
    let (mut gone, mut heads) = (Vec::new(), Vec::new());
    for (of, points) in all.iter().zip(&there) {
        match of.remove(points, despite_damage, &mut gone) {
            Ok(head) => heads.push(head),
            Err(error) => {
                return Err(BackupError::PruneEnded { points: gone, packs: 0, error: Box::new(error) });
            }
        }
    }
    // A folder without room must not be kept from having some.
    let swept = Lease::take_without_room(&*repository.folder, holder.clone(), &|| false).and_then(|lease| {
        let gone = gone.as_slice();
        let sweep = Sweep { repository, lease: &lease, holder, despite_damage, ending: &ending, gone };
        sweep.run(marked, &mut pruned, progress)
    });
    let deferred = match swept {
        Ok(()) => None,
        Err(BackupError::InUse { holder }) => Some(holder),
        // From a point of another series: packs are all series'.
        Err(BackupError::Held { disk, host, .. }) => {
            Some(format!("{disk} on {host}, which is still being completed from a point"))
        }
        Err(BackupError::Cancelled) => return Err(BackupError::Cancelled),
        Err(error) => {
            return Err(BackupError::PruneEnded {
                points: gone,
                packs: pruned.packs,
                error: Box::new(error),
            });
        }
    };
    let heads = all.iter().zip(heads).filter_map(|(of, head)| Some((of.series, head?))).collect();
    Ok(Removal { pruned: Pruned { deferred, ..pruned }, heads })
}

/// Says why [`remove_points`] would remove nothing of these series, which end if `is_whole`. Nothing is written, and no
/// lease is asked for.
///
/// # Errors
///
/// [`BackupError::Refused`] where it would be refused; what a folder says.
pub fn check_removal(
    repository: &Repository,
    series: &[&Series],
    points: &[PointId],
    is_whole: bool,
    despite_damage: bool,
) -> Result<()> {
    let names = series.iter().filter(|_| is_whole).map(|series| series.name.clone());
    let ending: BTreeSet<String> = names.collect();
    let checked = check(repository, series, &ending, points, despite_damage)?;
    if checked.is_damage_known && !despite_damage {
        mark(repository, despite_damage, &ending, points, &[])?;
    }
    Ok(())
}

/// Series that end.
fn ending(all: &[Unwanted<'_>]) -> BTreeSet<String> {
    all.iter().filter(|of| of.is_whole).map(|of| of.series.name.clone()).collect()
}

/// Marks what all points need but those that are about to be removed. Those that are `gone` were removed before. Damage
/// of any point is refused, and points that are gone otherwise, unless it is to be lost.
fn mark(
    repository: &Repository,
    despite_damage: bool,
    ending: &BTreeSet<String>,
    removed: &[PointId],
    gone: &[PointId],
) -> Result<Marked> {
    let all = repository.all_points()?;
    if !despite_damage {
        repository.refuse_losses(&all, ending, gone)?;
    }
    let unreadable = all.iter().flat_map(|(name, points)| points.unreadable.iter().map(move |of| (name, of)));
    let mut unreadable = unreadable.filter(|(_, of)| !despite_damage && !removed.contains(&of.point));
    if let Some((name, of)) = unreadable.next() {
        return Err(refused_for_unreadable(&repository.folder.show(name), of));
    }
    drop(unreadable);
    let reader = repository.reader(Arc::new(repository.index()?));
    let mut walk = Walk::new(&reader, &|| false);
    let mut is_whole = true;
    let kept = |point: &&RepositoryPoint| !removed.contains(&point.point);
    let points = || all.iter().flat_map(|(_, points)| points.points());
    for point in points().filter(kept) {
        is_whole &= walk.point(point)?.is_empty();
    }
    // What those need that may be points whose manifest was lost, which the next run of their series makes such; and
    // what lies in the folders and is no point of a series. What those lack is no damage.
    let others = all.iter().flat_map(|(_, points)| points.uncommitted.iter().chain(points.others()));
    for point in others.filter(kept) {
        walk.point(point)?;
    }
    let marks = walk.marks.clone();
    for point in points().filter(|point| !kept(point)) {
        is_whole &= walk.point(point)?.is_empty();
    }
    drop(walk);
    if !is_whole && !despite_damage {
        return Err(refused_for_damage());
    }
    let ids = ids(&all).filter(|point| !removed.contains(point)).collect();
    Ok(Marked { points: ids, reader, marks, is_whole })
}

/// Everything that there is, and the points that a run is about to make.
fn ids(all: &[NamedPoints]) -> impl Iterator<Item = PointId> {
    all.iter().flat_map(|(_, of)| of.all().chain(&of.uncommitted)).map(|point| point.point)
}

struct Sweep<'a> {
    repository: &'a Repository,
    /// Of the packs.
    lease: &'a Lease<'a>,
    holder: &'a Holder,
    despite_damage: bool,
    /// Series that end.
    ending: &'a BTreeSet<String>,
    /// Points that were removed before: in a folder that was full no head says so.
    gone: &'a [PointId],
}

/// What there is, and what of it is needed.
struct Marked {
    points: BTreeSet<PointId>,
    reader: Reader,
    marks: Marks,
    /// Everything that a point needs can be read.
    is_whole: bool,
}

/// An entry and its new place.
type Placed = (Id, Location);

/// Bytes of a pack's entries.
#[derive(Clone, Copy, Default)]
struct Use {
    needed: u64,
    all: u64,
}

impl Sweep<'_> {
    /// Frees room, and says in `pruned` what was removed, also where it fails.
    fn run(
        &self,
        marked: Option<Marked>,
        pruned: &mut Pruned,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        // Of one that was killed.
        refuse(&*self.repository.folder, SWEEPER, self.holder, "removes packs of it", &|| false)?;
        let names = self.repository.names()?;
        // What is written again now could not be removed where it lies, night after night.
        self.refuse_others()?;
        // Of processes that have ended: those that began since have files of other names.
        self.repository.sweep_incomplete(&names)?;
        // Small files are written under the lease that this prune has, or by writers.
        let small = names.iter().filter(|name| name.ends_with(&format!(".json{INCOMPLETE}")));
        for name in small {
            let folder = &self.repository.folder;
            folder.remove(name).map_err(BackupError::folder("removing", &folder.show(name)))?;
        }
        // What is whole in a damaged pack may be all that is left of something.
        let is_mended = !KnownDamage::load(&*self.repository.folder)?.is_empty()
            && frames::mend(self.repository, &self.repository.index()?, &mut Vec::new())?;
        let mut marked = match marked.filter(|_| !is_mended) {
            Some(marked) => marked,
            None => self.mark()?,
        };
        let mut has_freed = false;
        for _ in 0..ATTEMPTS {
            let uses = self.uses(&marked)?;
            let swept = match self.sweep(&marked, &uses, pruned, progress) {
                Err(BackupError::Full { .. }) if !has_freed => {
                    has_freed = true;
                    self.remove_dead(&marked, &uses, pruned)?;
                    false
                }
                swept => swept?,
            };
            if swept {
                return Ok(());
            }
            // Of runs that began before the list was there and have ended.
            marked = self.mark()?;
        }
        Err(BackupError::InUse { holder: "backups, which have ended one after another meanwhile".into() })
    }

    /// Writes what is needed of packs that are mostly not into new ones, and removes them; `false`: there are other
    /// points than were marked.
    fn sweep(
        &self,
        marked: &Marked,
        uses: &HashMap<u64, Use>,
        pruned: &mut Pruned,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool> {
        let victims = victims(uses);
        if victims.is_empty() && marked.reader.index.missing().is_empty() {
            Dying::remove(&*self.repository.folder)?;
            self.forget_damage(marked, None)?;
            return Ok(true);
        }
        let (rewritten, victims) = self.rewrite(marked, uses, victims, progress)?;
        self.list(&marked.reader.index, &victims)?;
        let alone = self.alone()?;
        if self.point_ids()? != marked.points {
            return Ok(false);
        }
        self.remove(marked, uses, &victims, &rewritten, &alone, pruned)?;
        Ok(true)
    }

    /// Lists packs that are about to be removed, beside those that are gone already while the index names them.
    fn list(&self, index: &Index, victims: &[u64]) -> Result<()> {
        let gone: Vec<u64> = index.missing().iter().chain(victims).copied().collect();
        Dying::of(&gone).store(&*self.repository.folder)
    }

    /// Removes packs of which nothing is needed, without writing more than their list: as many at a time as that has
    /// room for.
    fn remove_dead(&self, marked: &Marked, uses: &HashMap<u64, Use>, pruned: &mut Pruned) -> Result<()> {
        let folder = &*self.repository.folder;
        let mut dead: Vec<u64> =
            uses.iter().filter(|(_, of)| of.needed == 0).map(|(pack, _)| *pack).collect();
        dead.sort_unstable();
        let (mut done, mut count) = (0, dead.len());
        let mut spare = self.spare_segments(&marked.reader.index)?;
        while done < dead.len() {
            count = count.min(dead.len() - done);
            // All of them are named by the index until it is written again.
            let listed = self.list(&marked.reader.index, &dead[..done + count]).and_then(|()| self.alone());
            let alone = match listed {
                Err(BackupError::Full { .. }) if count > 1 => {
                    count /= 2;
                    continue;
                }
                Err(BackupError::Full { name }) => {
                    let segment = spare.pop().ok_or(BackupError::Full { name })?;
                    let name = segment_name(segment);
                    folder.remove(&name).map_err(BackupError::folder("removing", &folder.show(&name)))?;
                    continue;
                }
                alone => alone?,
            };
            if self.point_ids()? != marked.points {
                return Ok(());
            }
            for pack in &dead[done..done + count] {
                self.remove_pack(*pack, uses, &alone, pruned)?;
            }
            folder.sync().map_err(BackupError::folder("removing", &folder.show("")))?;
            done += count;
        }
        Ok(())
    }

    /// Segments that may be removed for the room of a list, the smallest one last: packs say the same, unless one of
    /// them is damaged, and at the end of the prune one segment is written in the place of all.
    fn spare_segments(&self, index: &Index) -> Result<Vec<u64>> {
        if !KnownDamage::load(&*self.repository.folder)?.is_empty() || !index.unreadable.is_empty() {
            return Ok(Vec::new());
        }
        let mut stored: Vec<_> = index.stored().iter().copied().zip(index.segments()).collect();
        stored.sort_unstable_by_key(|(_, segment)| std::cmp::Reverse(segment.count()));
        Ok(stored.into_iter().map(|(number, _)| number).collect())
    }

    fn remove_pack(
        &self,
        pack: u64,
        uses: &HashMap<u64, Use>,
        alone: &Presence,
        pruned: &mut Pruned,
    ) -> Result<()> {
        let folder = &*self.repository.folder;
        self.lease.check()?;
        alone.check()?;
        let name = pack_name(pack);
        folder.remove(&name).map_err(BackupError::folder("removing", &folder.show(&name)))?;
        let of = uses.get(&pack).copied().unwrap_or_default();
        pruned.packs += 1;
        pruned.freed_bytes += of.all - of.needed;
        pruned.rewritten_bytes += of.needed;
        Ok(())
    }

    fn point_ids(&self) -> Result<BTreeSet<PointId>> {
        Ok(ids(&self.repository.all_points()?).collect())
    }

    fn mark(&self) -> Result<Marked> {
        mark(self.repository, self.despite_damage, self.ending, &[], self.gone)
    }

    /// What is needed of each pack.
    fn uses(&self, marked: &Marked) -> Result<HashMap<u64, Use>> {
        let index = &marked.reader.index;
        let mut uses: HashMap<u64, Use> = index.packs().iter().map(|pack| (*pack, Use::default())).collect();
        for (segment, entries) in index.segments().iter().enumerate() {
            let name = index.stored().get(segment).map(|number| segment_name(*number));
            for (number, entry) in entries.entries().enumerate() {
                let (_, location) = self.entry(name.as_deref(), entry)?;
                let Some(of) = uses.get_mut(&location.pack) else {
                    continue;
                };
                of.all += u64::from(location.stored);
                if marked.marks.has(segment, number as u64) {
                    of.needed += u64::from(location.stored);
                }
            }
        }
        // An index that is damaged, or a directory: nothing is known of such a pack.
        for (pack, _) in &index.unreadable {
            uses.remove(pack);
        }
        Ok(uses)
    }

    /// An entry of a segment, if that is a stored one with this name.
    fn entry(
        &self,
        name: Option<&str>,
        entry: std::result::Result<(Id, Location), FormatError>,
    ) -> Result<(Id, Location)> {
        let folder = &*self.repository.folder;
        let name = name.map_or_else(|| "an index".to_owned(), |name| folder.show(name));
        of_file(folder, &name, entry)?.map_err(|what| unusable_index(&name, &what))
    }

    /// Writes again what is needed of packs that are to be removed: entries with their new places, and those packs that
    /// can be removed now.
    fn rewrite(
        &self,
        marked: &Marked,
        uses: &HashMap<u64, Use>,
        victims: Vec<u64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Vec<Placed>, Vec<u64>)> {
        let repository = self.repository;
        let folder = &*repository.folder;
        let mut packer = Packer::begin(Arc::clone(&repository.folder), None, &|| false)?;
        let (mut rewritten, mut done) = (Vec::new(), Vec::new());
        let total = victims.len() as u64;
        for (number, pack) in victims.into_iter().enumerate() {
            if !progress(number as u64, total) {
                return Err(BackupError::Cancelled);
            }
            if uses.get(&pack).is_none_or(|of| of.needed == 0) {
                done.push(pack);
                continue;
            }
            let name = pack_name(pack);
            let reading = || BackupError::folder("reading", &folder.show(&name));
            let file = folder.open(&name, false).map_err(reading())?;
            let Ok(entries) = of_file(folder, &name, read_directory(&*file, pack))? else {
                continue;
            };
            if rewritten.len() + entries.len() > REWRITTEN_MAX {
                break;
            }
            for (id, location) in entries {
                let found = marked.reader.index.find(&id)?;
                let is_needed = found.is_some_and(|found| {
                    found.location == location && marked.marks.has(found.segment, found.number)
                });
                if !is_needed {
                    continue;
                }
                let Ok(bytes) = marked.reader.read(&id) else {
                    return Err(refused_for_damage());
                };
                let kind =
                    if u64::from(location.raw) < lunway_backup::LEAF { Kind::Tree } else { Kind::Data };
                let encoded = repository.codec.encode(&id, &bytes);
                rewritten.push((id, packer.add(kind, id, &encoded)?));
            }
            done.push(pack);
        }
        packer.flush()?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show("")))?;
        rewritten.sort_unstable_by_key(|(id, _)| *id);
        Ok((rewritten, done))
    }

    /// Sees to it that no process reads or writes what is removed; none begins to until this is dropped.
    fn alone(&self) -> Result<Presence> {
        let folder = &self.repository.folder;
        refuse(&**folder, SWEEPER, self.holder, "removes packs of it", &|| false)?;
        let alone = Presence::begin(Arc::clone(folder), SWEEPER, self.holder)?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(alone.name())))?;
        self.refuse_others()?;
        self.repository.sweep_incomplete(&self.repository.names()?)?;
        Ok(alone)
    }

    /// Refuses to go on while a process writes, or reads a point.
    fn refuse_others(&self) -> Result<()> {
        let folder = &self.repository.folder;
        refuse(&**folder, WRITER, self.holder, "writes to it", &|| false)?;
        for name in
            self.repository.places().series().map_err(BackupError::folder("reading", &folder.show("")))?
        {
            let opening = BackupError::folder("opening", &name);
            let series = self.repository.places().of_series(&name).map_err(opening)?;
            refuse_mounts(&*series, self.holder, &|| false)?;
        }
        Ok(())
    }

    /// Replaces the index, and removes the packs.
    fn remove(
        &self,
        marked: &Marked,
        uses: &HashMap<u64, Use>,
        victims: &[u64],
        rewritten: &[(Id, Location)],
        alone: &Presence,
        pruned: &mut Pruned,
    ) -> Result<()> {
        let folder = &*self.repository.folder;
        let index = &marked.reader.index;
        let dying: HashSet<u64> = victims.iter().copied().collect();
        self.lease.check()?;
        self.write_index(index, &dying, rewritten)?;
        let removing = || BackupError::folder("removing", &folder.show(""));
        for segment in index.stored().iter().chain(index.unusable.iter().map(|(number, _)| number)) {
            folder.remove(&segment_name(*segment)).map_err(removing())?;
        }
        folder.sync().map_err(removing())?;
        for pack in victims {
            self.remove_pack(*pack, uses, alone, pruned)?;
        }
        folder.sync().map_err(removing())?;
        Dying::remove(folder)?;
        self.forget_damage(marked, Some(&dying))
    }

    /// Writes one segment of all entries that lie in packs that stay.
    fn write_index(&self, index: &Index, dying: &HashSet<u64>, rewritten: &[(Id, Location)]) -> Result<()> {
        let folder = &*self.repository.folder;
        write_segment(folder, &mut |writer| {
            let writing = || BackupError::folder("writing", &folder.show("index"));
            let stays = |pack: &u64| !dying.contains(pack) && index.packs().contains(pack);
            for pack in index.segments().iter().flat_map(Segment::packs).filter(|pack| stays(pack)) {
                writer.cover(*pack);
            }
            let mut moved = rewritten.iter().peekable();
            let mut push = |id: &Id, location: &Location| writer.push(id, location).map_err(writing());
            for entry in merged(index.segments().iter()) {
                let (id, location) = self.entry(None, entry)?;
                while let Some((moved, place)) = moved.next_if(|(moved, _)| *moved <= id) {
                    push(moved, place)?;
                }
                if stays(&location.pack) && index.is_usable(&id, &location) {
                    push(&id, &location)?;
                }
            }
            moved.try_for_each(|(id, place)| push(id, place))
        })?;
        Ok(())
    }

    /// Takes packs that are gone out of what is known to be damaged, and segments that were replaced with them; packs
    /// that are missing where no point needs them.
    fn forget_damage(&self, marked: &Marked, gone: Option<&HashSet<u64>>) -> Result<()> {
        let folder = &*self.repository.folder;
        let known = KnownDamage::load(folder)?;
        let mut left = known.clone();
        left.packs.retain(|pack| !marked.is_whole || marked.reader.index.packs().contains(pack));
        if let Some(gone) = gone {
            left.packs.retain(|pack| !gone.contains(pack));
            left.frames.retain(|pack| !gone.contains(pack));
            left.entries.retain(|(pack, _)| !gone.contains(pack));
            left.segments.clear();
        }
        if left == known { Ok(()) } else { left.store(folder) }
    }
}

/// The packs of which nothing is needed, and those of which less than half is; the emptiest first.
fn victims(uses: &HashMap<u64, Use>) -> Vec<u64> {
    let mut victims: Vec<(u64, u64)> = uses
        .iter()
        .filter(|(_, of)| of.needed * 2 < of.all || of.all == 0)
        .map(|(pack, of)| (of.needed * 1000 / of.all.max(1), *pack))
        .collect();
    victims.sort_unstable();
    victims.into_iter().map(|(_, pack)| pack).collect()
}
