//! Verification: whether a repository holds what was sent, and which points it concerns where it does not.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use lunway_backup::{
    BackupError, Damage, FoundDamage, Notes, PointId, Report, Result, RetryingFolder, UnreadablePoint,
    Verification, is_of_the_file, manifest_names,
};

use crate::codec::Id;
use crate::damage::{ENTRIES_MAX, KnownDamage};
use crate::dying::Dying;
use crate::ended::Ended;
use crate::index::{Index, of_file};
use crate::memory::MemoryFile;
use crate::pack::{FormatError, Location, pack_name, read_directory, read_whole};
use crate::point::RepositoryPoint;
use crate::points::Points;
use crate::repository::{NamedPoints, Repository};
use crate::segment::segment_name;
use crate::walk::Walk;

/// What a verification found of packs and indexes, beside the points.
#[derive(Debug, Default)]
pub struct RepositoryReport {
    /// As of a chain; damage is named by the first point that it concerns.
    pub report: Report,
    found: KnownDamage,
    /// Everything was read.
    is_complete: bool,
}

/// Damage of one pack.
struct PackDamage {
    what: String,
    entries: Vec<Id>,
}

/// Verifies what points need: of all series, or of some. Nothing is written. Of a sample whole packs are chosen.
///
/// # Errors
///
/// Where the folder, or a file that is there, cannot be read: that is no damage. What is damaged is in the report.
pub fn verify(
    repository: &Repository,
    series: &[NamedPoints],
    verification: Verification,
    is_cancelled: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepositoryReport> {
    // A copy in the cache says nothing of the repository.
    let repository = repository.uncached();
    let mut result = RepositoryReport::default();
    let all = repository.all_points()?;
    let is_all = verification.point.is_none() && all.len() == series.len();
    result.is_complete = is_all && verification.sample_permille.is_none();
    let points: Vec<&RepositoryPoint> = series
        .iter()
        // What is none of a series' own may lack anything, which is no damage of the series.
        .flat_map(|(_, points)| match verification.point {
            None => points.points().iter().collect::<Vec<_>>(),
            Some(wanted) => points.all().filter(|point| point.point == wanted).collect(),
        })
        .collect();
    manifests(&repository, series, &mut result.report)?;
    if is_all {
        let missing = repository.missing_series(&all)?;
        result.report.findings.extend(missing.iter().flat_map(|(_, points)| of_series(points)));
    }
    let mut index = repository.index()?.examined(None)?;
    result.report.remarks.extend(index.list_problem.clone());
    for (number, what) in &index.unusable {
        result.found.segments.insert(*number);
        let name = repository.folder.show(&segment_name(*number));
        result
            .report
            .remarks
            .push(format!("{name}: {what}; packs say the same, and the next run makes it again from them"));
    }
    let needed = if is_all { None } else { Some(needed(&repository, &points, is_cancelled)?) };
    // Of those that a prune has removed the index may know still.
    let (dying, problem) = Dying::examine(&*repository.folder)?;
    let dying = dying.unwrap_or_default();
    result.report.remarks.extend(problem);
    let missing: Vec<u64> = index.missing().iter().copied().filter(|pack| !dying.contains(pack)).collect();
    let mut packs: Vec<u64> = index.packs().iter().copied().collect();
    packs.retain(|pack| needed.as_ref().is_none_or(|needed| needed.contains(pack)));
    packs.sort_unstable();
    sample(&mut packs, &verification);
    packs.extend(&missing);
    let mut damaged: BTreeMap<u64, PackDamage> = BTreeMap::new();
    let total = packs.len() as u64;
    for (number, pack) in packs.iter().enumerate() {
        if is_cancelled() {
            return Err(BackupError::Refused("interrupted: nothing was found until then".into()));
        }
        progress(number as u64, total);
        if let Some(damage) = examine(&repository, &index, *pack, &verification, &mut result)? {
            damaged.insert(*pack, damage);
        }
    }
    progress(total, total);
    // What is not damaged any more, and what is known of packs that were not read.
    let read: HashSet<u64> = packs.into_iter().collect();
    let known = index.damage();
    let is_complete = result.is_complete;
    let is_known = |pack: &&u64| !is_complete || index.packs().contains(*pack);
    result.found.packs.extend(known.packs.difference(&read).filter(is_known));
    result.found.frames.extend(known.frames.difference(&read));
    result.found.entries.extend(known.entries.iter().filter(|(pack, _)| !read.contains(pack)));
    index.set_damage(result.found.clone());
    trees(&repository, index, &points, &damaged, is_cancelled, &mut result.report)?;
    result.report.points = points.len();
    if verification.sample_permille.is_none() {
        let concerned: HashSet<PointId> =
            result.report.findings.iter().flat_map(|found| found.concerned.iter().copied()).collect();
        let whole = points.iter().map(|point| point.point).filter(|point| !concerned.contains(point));
        result.report.whole = whole.collect();
    }
    Ok(result)
}

/// What is wrong with the marker and with manifests.
fn manifests(repository: &Repository, series: &[NamedPoints], report: &mut Report) -> Result<()> {
    report.remarks.extend(Ended::examine(&*repository.folder, &repository.codec)?.1);
    for (name, what) in repository.marker().problems(&*repository.folder) {
        report.remarks.push(format!("{name} {what}; the next run writes it again"));
    }
    for (name, points) in series {
        for (point, problem) in &points.copy_problems {
            report.remarks.push(format!(
                "point {point} of {name}: {problem}; the other copy is whole, the next run writes it again"
            ));
        }
        for point in &points.uncommitted {
            let [copy, first] = manifest_names(&point.stem());
            report.remarks.push(format!(
                "point {} of {name} has only its {copy}: a run was stopped before its end, or {first} was lost; the next \
                 run makes it a point again",
                point.point
            ));
        }
        report.remarks.extend(points.remarks());
        report.findings.extend(of_series(points));
        for UnreadablePoint { point, what, .. } in &points.unreadable {
            let what = format!("{what}; no run repairs that: put it back, or remove the point");
            let damage = Damage::Point { point: *point, what: what.clone() };
            report.findings.push(FoundDamage { damage, what, concerned: vec![*point] });
        }
    }
    Ok(())
}

/// What is wrong with a series as a whole.
fn of_series(points: &Points) -> impl Iterator<Item = FoundDamage> {
    let point = points.newest().map_or(PointId(0), |newest| newest.point);
    points.findings().map(move |what| {
        let damage = Damage::Point { point, what: what.clone() };
        FoundDamage { damage, what, concerned: Vec::new() }
    })
}

/// The packs that some points need.
fn needed(
    repository: &Repository,
    points: &[&RepositoryPoint],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<HashSet<u64>> {
    let reader = repository.reader(Arc::new(repository.index()?.examined(None)?));
    let mut walk = Walk::new(&reader, is_cancelled);
    for point in points {
        walk.point(point)?;
    }
    let mut packs = HashSet::new();
    for (segment, entries) in reader.index.segments().iter().enumerate() {
        for (number, entry) in entries.entries().enumerate() {
            let entry = of_file(&*repository.folder, "an index", entry)?;
            if walk.marks.has(segment, number as u64)
                && let Ok((_, location)) = entry
            {
                packs.insert(location.pack);
            }
        }
    }
    Ok(packs)
}

/// Leaves a sample of the packs: at least one.
fn sample(packs: &mut Vec<u64>, verification: &Verification) {
    let Some(permille) = verification.sample_permille else {
        return;
    };
    let mut random = verification.seed | 1;
    let first = packs.first().copied();
    packs.retain(|_| {
        // xorshift64, of which any sequence will do.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % 1000 < u64::from(permille)
    });
    if packs.is_empty() {
        packs.extend(first);
    }
}

/// Reads a pack whole, and every entry of it.
fn examine(
    repository: &Repository,
    index: &Index,
    pack: u64,
    verification: &Verification,
    result: &mut RepositoryReport,
) -> Result<Option<PackDamage>> {
    let name = pack_name(pack);
    let folder = RetryingFolder { inner: &*repository.folder, patience: verification.patience };
    let shown = repository.folder.show(&name);
    let read = match lunway_backup::Folder::open(&folder, &name, false) {
        Ok(file) => read_whole(&*file),
        Err(error) => Err(FormatError::Io(error)),
    };
    let (bytes, is_right) = match read {
        Ok(read) => read,
        Err(FormatError::Io(error)) if !is_of_the_file(error.kind()) => {
            return Err(BackupError::folder("reading", &shown)(error));
        }
        Err(error) => {
            result.found.packs.insert(pack);
            let entries = index.entries_of(pack)?.into_iter().map(|(id, _)| id).collect();
            return Ok(Some(PackDamage { what: format!("{shown}: {error}"), entries }));
        }
    };
    let directory = read_directory(&MemoryFile::of(bytes.clone()), pack);
    let entries: Vec<(Id, Location)> = match &directory {
        Ok(entries) => entries.clone(),
        Err(_) => index.entries_of(pack)?,
    };
    let mut wrong = Vec::new();
    let mut first = None;
    for (id, location) in &entries {
        let stored = bytes.get(location.offset as usize..location.end() as usize).unwrap_or_default();
        let decoded = repository.codec.decode(id, stored, location.raw, location.compressed);
        result.report.bytes += u64::from(location.raw);
        if let Err(what) = decoded {
            first.get_or_insert((location.offset, what));
            wrong.push(*id);
        }
    }
    let Some((offset, what)) = first else {
        if is_right && directory.is_ok() {
            return Ok(None);
        }
        let what = format!("{shown}: bytes outside its entries are not what was written");
        let mut is_alone = false;
        for (id, _) in &entries {
            is_alone = index.find_beside(id, pack)?.is_none();
            if is_alone {
                break;
            }
        }
        if !is_alone {
            // A run has written its entries into another one.
            result.found.packs.insert(pack);
            return Ok(Some(PackDamage { what, entries: Vec::new() }));
        }
        result.found.frames.insert(pack);
        let entries = entries.into_iter().map(|(id, _)| id).collect();
        return Ok(Some(PackDamage { what, entries }));
    };
    let what = match wrong.len() {
        1 => format!("{shown}: the entry at byte {offset}: {what}"),
        count => format!("{shown}: {count} entries, the first at byte {offset}: {what}"),
    };
    match wrong.len() <= ENTRIES_MAX {
        true => result.found.entries.extend(wrong.iter().map(|id| (pack, *id))),
        false => drop(result.found.packs.insert(pack)),
    }
    if !is_right && directory.is_err() {
        result.found.frames.insert(pack);
    }
    Ok(Some(PackDamage { what, entries: wrong }))
}

/// Walks the trees of points, and says of each damage which points it concerns.
fn trees(
    repository: &Repository,
    index: Index,
    points: &[&RepositoryPoint],
    damaged: &BTreeMap<u64, PackDamage>,
    is_cancelled: &dyn Fn() -> bool,
    report: &mut Report,
) -> Result<()> {
    let reader = repository.reader(Arc::new(index));
    let mut walk = Walk::new(&reader, is_cancelled);
    let mut concerned: BTreeMap<Id, Vec<PointId>> = BTreeMap::new();
    for point in points {
        for fault in walk.point(point)? {
            concerned.entry(fault).or_default().push(point.point);
        }
    }
    // Entries that can be read, in a pack that is damaged beside them.
    let framed: HashSet<Id> = damaged
        .iter()
        .filter(|(pack, _)| reader.index.damage().frames.contains(pack))
        .flat_map(|(_, damage)| damage.entries.iter().copied())
        .collect();
    if !framed.is_empty() {
        for point in points {
            let mut alone = Walk::new(&reader, is_cancelled);
            alone.point(point)?;
            for id in &framed {
                if let Some(found) = reader.index.find(id)?
                    && alone.marks.has(found.segment, found.number)
                    && damaged.contains_key(&found.location.pack)
                {
                    concerned.entry(*id).or_default().push(point.point);
                }
            }
        }
    }
    let mut named: HashSet<Id> = HashSet::new();
    for damage in damaged.values() {
        let points: BTreeSet<PointId> =
            damage.entries.iter().filter_map(|id| concerned.get(id)).flatten().copied().collect();
        named.extend(&damage.entries);
        match points.first() {
            None => report.remarks.push(format!("{}; no point needs it there", damage.what)),
            Some(first) => report.findings.push(FoundDamage {
                damage: Damage::Point { point: *first, what: damage.what.clone() },
                what: damage.what.clone(),
                concerned: points.into_iter().collect(),
            }),
        }
    }
    let mut missing: BTreeMap<Vec<PointId>, (usize, String)> = BTreeMap::new();
    for (id, points) in concerned.into_iter().filter(|(id, _)| !named.contains(id)) {
        let what = walk.faults.get(&id).cloned().unwrap_or_default();
        missing.entry(points).or_insert((0, what)).0 += 1;
    }
    for (concerned, (count, what)) in missing {
        let what = match count {
            1 => format!("point {}: {what}", concerned[0]),
            count => format!("point {}: {count} parts, of one of which: {what}", concerned[0]),
        };
        let damage = Damage::Point { point: concerned[0], what: what.clone() };
        report.findings.push(FoundDamage { damage, what, concerned });
    }
    Ok(())
}

impl RepositoryReport {
    /// Enters what was found into the notes of one of the series that were verified, whose lease the caller holds.
    ///
    /// # Errors
    ///
    /// Where they cannot be written.
    pub fn note_series(&self, repository: &Repository, name: &str, points: &Points) -> Result<()> {
        let opening = BackupError::folder("opening", name);
        let folder = repository.places().of_series(name).map_err(opening)?;
        let own = |point: &PointId| {
            points.get(*point).is_some()
                || points.unreadable.iter().any(|unreadable| unreadable.point == *point)
        };
        let mut notes = Notes::load(&*folder)?;
        let concerned: BTreeSet<PointId> = self
            .report
            .findings
            .iter()
            .flat_map(|found| found.concerned.iter().copied())
            .filter(own)
            .collect();
        notes.damage.retain(|damage| own(&damage.point()) && !self.report.whole.contains(&damage.point()));
        for found in &self.report.findings {
            let what = &found.what;
            let of = found.concerned.iter().filter(|point| own(point));
            notes.damage.extend(of.map(|point| Damage::Point { point: *point, what: what.clone() }));
        }
        notes.damage.sort();
        notes.damage.dedup();
        notes.verified.extend(self.report.whole.iter().filter(|point| own(point)));
        notes.verified.retain(|point| own(point) && !concerned.contains(point));
        notes.verified.sort_unstable();
        notes.verified.dedup();
        notes.store(&*folder)
    }

    /// Enters damage of packs and indexes into the notes of the repository: what is damaged is not referred to any
    /// more.
    ///
    /// # Errors
    ///
    /// Where they cannot be written.
    pub fn note_packs(&self, repository: &Repository) -> Result<()> {
        let mut found = self.found.clone();
        if !self.is_complete {
            let before = KnownDamage::load(&*repository.folder)?;
            found.segments.extend(before.segments);
        }
        found.store(&*repository.folder)
    }
}
