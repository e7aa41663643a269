//! The points of a series as its folder shows them: its own, and what else lies there.

use std::collections::{BTreeSet, HashSet};

use lunway_backup::{
    BackupError, Folder, Moment, NameablePoint, PointId, Result, UnreadablePoint, find_point, manifest_names,
    parse_stem,
};

use crate::codec::Codec;
use crate::ended::EndedSeries;
use crate::head::Head;
use crate::lineage::{ById, Lineage, Standing};
use crate::loss::Loss;
use crate::point::{RepositoryPoint, read_manifest};
use crate::seen::SeenSeries;

/// Points of a series: one each quarter of an hour for three years.
const POINTS_MAX: usize = 100_000;

/// Generation that no series comes to, with a point each nanosecond for a century: the name of a file that has a higher
/// one is not a run's, and must not keep runs from counting on.
const GENERATION_MAX: u64 = u64::MAX / 4;

/// All points of a series, the oldest first.
#[derive(Debug, Default)]
pub struct Points {
    /// Name of the series.
    pub(crate) name: String,
    points: Vec<RepositoryPoint>,
    /// Points whose manifest cannot be read in either copy.
    pub unreadable: Vec<UnreadablePoint>,
    /// Points of which one copy of the manifest is damaged or missing, and how.
    pub copy_problems: Vec<(PointId, String)>,
    /// Points of which only the copy of the manifest is there, and that the head does not know: a run was stopped
    /// before its commit.
    pub(crate) uncommitted: Vec<RepositoryPoint>,
    /// Points that lie in the folder and are none of the series' own.
    strays: Vec<RepositoryPoint>,
    /// A sentence about each of those, and about manifests that cannot be read and are none of the series' own.
    stray_sentences: Vec<String>,
    /// Points that a prune has taken out of the head and has not removed yet.
    pub(crate) removed: Vec<RepositoryPoint>,
    /// Unreadable ones that a prune has taken out of the head and has not removed yet.
    pub(crate) removed_unreadable: Vec<UnreadablePoint>,
    /// The highest generation in the name of a file of its own, or that the head or the user knows of, without points
    /// that a run has not committed, which are none yet.
    pub(crate) last_committed: u64,
    pub(crate) head: Option<Head>,
    /// What is wrong with the head.
    pub(crate) head_problem: Option<String>,
    /// Points that are gone, though no prune has removed them.
    pub(crate) losses: Vec<Loss>,
    /// Such points before the newest one, and those that runs have gone on without.
    pub(crate) missed: Vec<Loss>,
    /// Other series that points here were made for: the folder was renamed or exchanged.
    pub(crate) foreign: BTreeSet<String>,
    /// A sentence, if this is an old copy of a series that was renamed.
    copy_of: Option<String>,
}

impl Points {
    /// Reads the folder of the series `name`, of which the user has seen `seen`. Nothing is written.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read. A manifest that cannot be is one of [`unreadable`](Self::unreadable).
    pub(crate) fn load(
        folder: &dyn Folder,
        name: &str,
        codec: &Codec,
        seen: Option<&SeenSeries>,
    ) -> Result<Self> {
        // Before the manifests: a run that ends meanwhile adds a point that it does not know, which is no loss.
        let head = Head::load(folder, codec)?;
        let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
        let known: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut points = Self { name: name.to_owned(), ..Self::default() };
        let mut unreadable = Vec::new();
        for file in &names {
            // Without it there is no point: a run was stopped before its commit.
            let Some(stem) = file.strip_suffix(".json") else {
                continue;
            };
            let Some((generation, id)) = parse_stem(stem) else {
                continue;
            };
            if points.points.len() >= POINTS_MAX {
                let there = folder.show("");
                return Err(BackupError::Refused(format!("{there} has more than {POINTS_MAX} points")));
            }
            let [copy, first] = manifest_names(stem);
            let read = |name: &str| read_manifest(folder, name, (generation, id), codec);
            let (one, other) =
                (read(&first)?, if known.contains(copy.as_str()) { read(&copy)? } else { None });
            match (one, other) {
                (Some(Ok(one)), Some(Ok(other))) if one == other => points.points.push(one),
                (Some(Ok(one)), Some(Ok(_))) => {
                    points.copy_problems.push((id, format!("{} is not the same", folder.show(&copy))));
                    points.points.push(one);
                }
                (Some(Ok(one)), _) => {
                    points.copy_problems.push((id, format!("{} is not whole", folder.show(&copy))));
                    points.points.push(one);
                }
                (Some(Err(what)), Some(Ok(other))) => {
                    points.copy_problems.push((id, what));
                    points.points.push(other);
                }
                (Some(Err(what)), _) => unreadable.push(UnreadablePoint { generation, point: id, what }),
                // A prune has just removed it.
                (None, _) => {}
            }
        }
        for file in &names {
            let Some(stem) = file.strip_suffix(".copy.json") else { continue };
            let Some(point) = parse_stem(stem) else { continue };
            let [copy, first] = manifest_names(stem);
            if !known.contains(first.as_str())
                && let Some(Ok(point)) = read_manifest(folder, &copy, point, codec)?
            {
                points.uncommitted.push(point);
            }
        }
        let lineage = points.part(head.clone(), seen, unreadable, folder);
        let strays: HashSet<PointId> = points.strays.iter().map(|point| point.point).collect();
        let stems = names.iter().filter_map(|name| parse_stem(name.split('.').next()?));
        let is_own = |(generation, id): &(u64, PointId)| {
            *generation <= GENERATION_MAX && !strays.contains(id) && !lineage.excludes(*generation, *id)
        };
        let uncommitted: HashSet<PointId> = points.uncommitted.iter().map(|point| point.point).collect();
        let committed = stems.filter(|stem| is_own(stem) && !uncommitted.contains(&stem.1));
        let last = committed.map(|(generation, _)| generation).max().unwrap_or(0);
        points.last_committed = points.points.last().map_or(last, |newest| newest.generation.max(last));
        points.compare(&lineage, seen, &folder.show(""));
        let is_sound = points.losses.is_empty() && points.missed.is_empty() && points.strays.is_empty();
        if !is_sound && Head::load(folder, codec)? != head {
            // A run and a prune have ended meanwhile.
            return Self::load(folder, name, codec, seen);
        }
        Ok(points)
    }

    /// Those of a series whose folder is gone: none, and a sentence about that.
    pub(crate) fn of_missing(name: &str, what: String) -> Self {
        Self { name: name.to_owned(), losses: vec![Loss::unknown(what)], ..Self::default() }
    }

    /// Returns `true` if this is the series that the user has seen under another name, which it had before.
    pub(crate) fn continues(&self, name: &str, seen: &SeenSeries) -> bool {
        match seen.newest {
            _ if seen.begun.is_some() && seen.begun == self.begun() => true,
            Some(newest) => self.has_had(newest),
            None => self.was_called(name),
        }
    }

    /// Parts the points of the series from what else lies in its folder.
    fn part(
        &mut self,
        head: std::result::Result<Option<Head>, String>,
        seen: Option<&SeenSeries>,
        unreadable: Vec<UnreadablePoint>,
        folder: &dyn Folder,
    ) -> Lineage {
        // The first one that names its series may have been cut off from its head.
        let named = self.points.iter().filter(|point| point.series.is_some()).count();
        match head {
            Err(what) => self.head_problem = Some(what),
            Ok(None) if named > 1 => {
                self.head_problem = Some(format!("{} has no head.json", folder.show("")));
            }
            Ok(head) => self.head = head,
        }
        let committed = std::mem::take(&mut self.points);
        let uncommitted = std::mem::take(&mut self.uncommitted);
        let all: ById<'_> = committed.iter().chain(&uncommitted).map(|point| (point.point, point)).collect();
        let lineage = Lineage::of(&self.name, self.head.as_ref(), seen, &all);
        self.foreign = match &self.head {
            Some(head) => BTreeSet::from([head.series.clone()]),
            None => {
                let own = all.values().filter(|point| lineage.standing(point, &all) == Standing::Own);
                own.filter_map(|point| point.series.clone()).collect()
            }
        };
        if self.foreign.contains(&self.name) {
            self.foreign.clear();
        }
        for (point, is_committed) in
            committed.iter().map(|point| (point, true)).chain(uncommitted.iter().map(|point| (point, false)))
        {
            match lineage.standing(point, &all) {
                Standing::Own if is_committed => self.points.push(point.clone()),
                // A run writes the head behind both of them.
                Standing::Own if lineage.has_had(point.point) => {
                    let [_, first] = manifest_names(&point.stem());
                    self.copy_problems.push((point.point, format!("{} is gone", folder.show(&first))));
                    self.points.push(point.clone());
                }
                Standing::Own => self.uncommitted.push(point.clone()),
                Standing::Removed => self.removed.push(point.clone()),
                Standing::Stray => {
                    let [copy, first] = manifest_names(&point.stem());
                    let file = folder.show(if is_committed { &first } else { &copy });
                    let whose = lineage.other_series(point);
                    self.stray_sentences.push(self.stray_sentence(&file, whose, point.point));
                    self.strays.push(point.clone());
                }
            }
        }
        for unreadable in unreadable {
            let UnreadablePoint { generation, point, what } = &unreadable;
            let is_excluded = *generation > GENERATION_MAX || lineage.excludes(*generation, *point);
            // Another point's name on a file of this one's.
            let is_misnamed = all.get(point).is_some_and(|known| known.generation != *generation);
            match is_excluded || is_misnamed || lineage.has_given_up(*generation, *point) {
                false if lineage.removes(*point) => self.removed_unreadable.push(unreadable),
                true => {
                    let name = &self.name;
                    self.stray_sentences.push(format!(
                        "{what}; it is none of the points of the series {name}, and blocks nothing: remove it"
                    ));
                }
                false => self.unreadable.push(unreadable),
            }
        }
        for points in [&mut self.points, &mut self.strays, &mut self.removed] {
            points.sort_by_key(|point| (point.generation, point.point));
        }
        let own: HashSet<PointId> = self.points.iter().map(|point| point.point).collect();
        self.copy_problems.retain(|(point, _)| own.contains(point));
        lineage
    }

    fn stray_sentence(&self, file: &str, whose: Option<&str>, point: PointId) -> String {
        let name = &self.name;
        let what = match whose {
            Some(other) => format!("it was made for the series {other}"),
            None => "it is of an older state, was removed, or was put there".to_owned(),
        };
        format!(
            "{file} is none of the points of the series {name}: {what}; it is never the latest one, and no rule removes it: \
             restore or prune it by its id, {point}"
        )
    }

    /// Compares what is there with the head, and with what was seen.
    fn compare(&mut self, lineage: &Lineage, seen: Option<&SeenSeries>, shown: &str) {
        let known = self.head.as_ref().map_or(0, |head| head.generation);
        let there = self.points.last().map_or(0, |newest| newest.generation).max(known);
        // Of a manifest that cannot be read nothing tells whose it is: it counts where there is no head to ask.
        let there = if self.head.is_some() { there } else { there.max(self.last_generation()) };
        self.last_committed = self.last_committed.max(known);
        let missed = self.head.iter().flat_map(Head::missed);
        let missed: Vec<_> = missed.filter(|(_, point)| !self.lies_there(*point)).collect();
        for (number, point) in missed {
            let what = format!(
                "point number {number} of {shown}, {point}, was gone when a run went on without it, and no prune has removed it"
            );
            self.missed.push(Loss { what, point: Some((number, point)) });
        }
        let lost: Vec<_> = self.head.iter().flat_map(Head::kept).collect();
        for (number, point) in lost {
            let is_told = self.missed.iter().any(|loss| loss.point == Some((number, point)));
            if !is_told && !self.lies_there(point) {
                let what = format!(
                    "point number {number} of {shown}, {point}, is gone, and no prune has noted that it removed it"
                );
                self.missed.push(Loss { what, point: Some((number, point)) });
            }
        }
        let head = self.head.as_ref();
        if let Some(newest) = head.and_then(|head| head.newest).filter(|id| !self.is_there(*id)) {
            let number = head.and_then(|head| head.trail().find(|(_, point)| *point == newest));
            let what = format!(
                "point {newest}, the newest of {shown} when it was made, is gone, and no prune has removed it"
            );
            self.losses.push(Loss { what, point: Some(number.unwrap_or((known, newest))) });
        }
        let Some(seen) = seen else { return };
        // No number is used twice, also behind a state that was put back.
        self.last_committed = self.last_committed.max(seen.generation);
        let has_had = |newest: PointId| {
            let mut forgone = self.head.iter().flat_map(Head::forgone);
            self.is_there(newest) || lineage.has_had(newest) || forgone.any(|(_, point)| point == newest)
        };
        if seen.newest.is_some_and(has_had) {
            return;
        }
        let number = seen.generation;
        let point = seen.newest.map(|newest| (number, newest));
        if number > there {
            if self.losses.is_empty() {
                let now = if there == 0 { "has none".to_owned() } else { format!("is at number {there}") };
                let what = format!(
                    "{shown} was at its point number {number} when this user last used it, and {now} now: newer ones were \
                     removed, or an older state of it is shown"
                );
                self.losses.push(Loss { what, point });
            }
            return;
        }
        let Some(newest) = seen.newest else { return };
        let is_another = lineage.excludes(number, newest)
            || self.points.iter().any(|point| point.generation == number)
            || self.head.is_none()
            || self.begun().zip(seen.begun).is_some_and(|(there, seen)| there != seen);
        if is_another {
            let what = format!(
                "{shown} is not what this user has seen there: its point number {number} was {newest}, which it has not had; \
                 an older state has gone on, the series was begun anew, or an earlier one of its name was put there"
            );
            self.losses.push(Loss { what, point });
        }
    }

    /// Takes the folder for what it is where it is an old copy of a series that was renamed since: none of its points
    /// is one of a series here. `renamed`: names and heads of series that had other names before.
    pub(crate) fn set_aside_copy<'a>(
        &mut self,
        shown: &str,
        renamed: impl IntoIterator<Item = (&'a str, &'a Head)>,
    ) {
        let newest = self.newest().map(|newest| newest.point);
        let Some(newest) = newest.or_else(|| self.head.as_ref().and_then(|head| head.newest)) else { return };
        let generation = self.head.as_ref().map_or(0, |head| head.generation);
        let is_original = |(name, head): &(&str, &Head)| {
            let had_name = *name != self.name && head.was.contains(&self.name);
            // What was renamed has gone on: a copy of it is behind.
            had_name && head.generation > generation && head.trail().any(|(_, point)| point == newest)
        };
        if !self.foreign.is_empty() {
            return;
        }
        let Some((original, _)) = renamed.into_iter().find(is_original) else { return };
        self.copy_of = Some(format!(
            "{shown} is an older copy of the series {original}, which had this name before: it is no series of its own, and its \
             points are given out by their ids alone; move it away, or remove it: `lunway backup prune {shown} --remove-series`"
        ));
        self.strays.append(&mut self.points);
        self.strays.sort_by_key(|point| (point.generation, point.point));
        for told in [&mut self.losses, &mut self.missed] {
            told.clear();
        }
        (self.head_problem, self.unreadable, self.stray_sentences) = (None, Vec::new(), Vec::new());
        self.removed_unreadable.clear();
        self.copy_problems.clear();
    }

    /// What its user remembers of it; `None`: it is not what it should be, or has no points.
    pub(crate) fn seen(&self) -> Option<SeenSeries> {
        let is_known = self.losses.is_empty() && self.foreign.is_empty();
        let newest = self.newest().filter(|_| is_known && self.newer_unreadable().next().is_none())?;
        Some(SeenSeries { generation: newest.generation, newest: Some(newest.point), begun: self.begun() })
    }

    /// What is noted of it when it is removed, if anything tells it from others of its name.
    pub(crate) fn ended(&self) -> Option<EndedSeries> {
        let head = self.head.as_ref().filter(|_| !self.is_copy())?;
        let last = head.trail().last().map(|(_, point)| point);
        Some(EndedSeries { series: self.name.clone(), begun: head.begun, last })
    }

    /// Its name and head, if it had other names before.
    pub(crate) fn renamed(&self) -> Option<(String, Head)> {
        let head = self.head.as_ref().filter(|head| !head.was.is_empty() && head.series == self.name);
        head.map(|head| (self.name.clone(), head.clone()))
    }

    /// Returns `true` if this is an old copy of a series that was renamed.
    pub fn is_copy(&self) -> bool {
        self.copy_of.is_some()
    }

    /// Refuses an old copy of a series that was renamed.
    pub(crate) fn refuse_copy(&self) -> Result<()> {
        self.copy_of.as_ref().map_or(Ok(()), |what| Err(BackupError::Refused(what.clone())))
    }

    /// Sentences about points that are gone.
    pub(crate) fn loss_sentences(&self) -> impl Iterator<Item = &str> {
        self.losses.iter().chain(&self.missed).map(|loss| loss.what.as_str())
    }

    /// Returns `true` if the series had this name before.
    pub(crate) fn was_called(&self, name: &str) -> bool {
        self.head.iter().any(|head| head.was.iter().any(|was| was == name))
    }

    /// Returns `true` if a point of the series is there, readable or not.
    fn is_there(&self, id: PointId) -> bool {
        let committed = self.points.iter().chain(&self.uncommitted);
        committed
            .map(|point| point.point)
            .chain(self.unreadable.iter().map(|unreadable| unreadable.point))
            .any(|point| point == id)
    }

    /// Returns `true` if a point lies in the folder, whatever it is there.
    pub(crate) fn lies_there(&self, id: PointId) -> bool {
        let removed = self.removed_unreadable.iter().map(|unreadable| unreadable.point);
        self.is_there(id) || self.others().map(|point| point.point).chain(removed).any(|point| point == id)
    }

    /// Returns `true` if the series has had this point.
    pub(crate) fn has_had(&self, id: PointId) -> bool {
        let mut trail = self.head.iter().flat_map(Head::trail);
        self.is_there(id) || trail.any(|(_, point)| point == id)
    }

    /// Refuses points that were made for another series.
    pub(crate) fn refuse_foreign(&self) -> Result<()> {
        match self.foreign_sentence() {
            None => Ok(()),
            Some(what) => Err(BackupError::Refused(what)),
        }
    }

    /// Other series whose points these are: the folder was renamed or exchanged.
    pub(crate) fn foreign(&self) -> &BTreeSet<String> {
        &self.foreign
    }

    fn foreign_sentence(&self) -> Option<String> {
        let (name, other) = (&self.name, self.foreign.first()?);
        Some(format!(
            "the folder of the series {name} holds points of the series {other}: it was renamed, or exchanged for another; \
             give it the name {other} again, or run a backup into it with --rename-source if its disk is to be called {name}"
        ))
    }

    /// What a verification finds wrong with the series as a whole: points of another one, points that are gone, points
    /// that were put there.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let gone = self.loss_sentences().map(str::to_owned);
        let whole = self.foreign_sentence().into_iter().chain(self.copy_of.clone());
        whole.chain(gone).chain(self.stray_sentences.iter().cloned())
    }

    /// Sentences about points that were put there.
    pub(crate) fn stray_sentences(&self) -> &[String] {
        &self.stray_sentences
    }

    /// What the next run or prune sees to, a sentence each.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = String> {
        let name = &self.name;
        let head = self.head_problem.iter().map(move |what| {
            format!("{what}: whether the newest points of {name} are there is not known; the next run writes it again")
        });
        let unreadable = self.removed_unreadable.iter().map(|unreadable| unreadable.point);
        let removed = self.removed.iter().map(|point| point.point).chain(unreadable);
        head.chain(removed.map(move |point| {
            format!(
                "a prune of {name} that has not ended has given up point {point}: the next one removes it"
            )
        }))
    }

    /// What a user of the points is to be told, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.findings().chain(self.remarks()).collect()
    }

    /// The points, the oldest first.
    pub fn points(&self) -> &[RepositoryPoint] {
        &self.points
    }

    /// What a list shows: the points, or what lies in a folder that is an old copy of a series.
    pub fn listed(&self) -> &[RepositoryPoint] {
        if self.is_copy() { &self.strays } else { &self.points }
    }

    /// Everything that lies in the folder and can be read: the points, those that a prune has not removed yet, and
    /// those that are none of the series' own.
    pub fn all(&self) -> impl Iterator<Item = &RepositoryPoint> {
        self.points.iter().chain(self.others())
    }

    /// What of that is no point of the series.
    pub(crate) fn others(&self) -> impl Iterator<Item = &RepositoryPoint> {
        self.removed.iter().chain(&self.strays)
    }

    /// Points that a prune has given up, and has not removed yet.
    pub(crate) fn removed(&self) -> &[RepositoryPoint] {
        &self.removed
    }

    /// Returns `true` if there is no point, readable or not.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.unreadable.is_empty()
    }

    /// Returns `true` if there is a manifest of any kind.
    pub(crate) fn has_any(&self) -> bool {
        let is_empty = self.is_empty() && self.uncommitted.is_empty() && self.removed_unreadable.is_empty();
        !is_empty || self.all().next().is_some()
    }

    /// The newest point.
    pub fn newest(&self) -> Option<&RepositoryPoint> {
        self.points.last()
    }

    /// Points that cannot be read and are newer than all that can.
    pub(crate) fn newer_unreadable(&self) -> impl Iterator<Item = &UnreadablePoint> {
        UnreadablePoint::newer_than(&self.unreadable, self.newest().map(|newest| newest.generation))
    }

    /// A point.
    pub fn get(&self, id: PointId) -> Option<&RepositoryPoint> {
        self.points.iter().find(|point| point.point == id)
    }

    /// A point, or what else lies in the folder, by its id.
    pub fn get_any(&self, id: PointId) -> Option<&RepositoryPoint> {
        self.all().find(|point| point.point == id)
    }

    /// The point that a text means: `latest`, the beginning of an id, or a time. The whole id means anything in the
    /// folder, also what is none of the series' own.
    ///
    /// # Errors
    ///
    /// [`BackupError::NoPoint`] where none does, or several do; where newest points are gone, or are not known, or one
    /// that cannot be read may be meant, and the text is no id. Where the folder holds points of another series.
    pub fn find(&self, text: &str) -> Result<&RepositoryPoint> {
        if let Some(named) = self.all().find(|point| point.point.to_string() == text) {
            return Ok(named);
        }
        self.refuse_foreign()?;
        self.refuse_copy()?;
        let nameable = |point: &RepositoryPoint| NameablePoint {
            generation: point.generation,
            point: point.point,
            time: point.time,
        };
        let own: Vec<_> = self.points.iter().map(nameable).collect();
        if own.is_empty()
            && let Some(what) = self.loss_sentences().next()
        {
            return Err(BackupError::NoPoint(format!("the series holds no point that can be read: {what}")));
        }
        let found = find_point(&own, &self.unreadable, text);
        let unknown = self.head_problem.as_ref().filter(|_| !self.strays.is_empty());
        let doubt = self.losses.first().map(|loss| &loss.what).or(unknown);
        let is_meant = |id: PointId| id.to_string().starts_with(text);
        match (found, doubt) {
            (Ok(id), Some(what)) if !is_meant(id) => Err(BackupError::NoPoint(format!(
                "{what}: {text} may be another point than is meant; give the id of one of `lunway backup list`"
            ))),
            (found, _) => self.get(found?).ok_or(BackupError::Lost),
        }
    }

    /// Everything that goes with the series.
    pub fn all_ids(&self) -> impl Iterator<Item = PointId> {
        let unreadable = self.unreadable.iter().map(|unreadable| unreadable.point);
        self.all().map(|point| point.point).chain(unreadable)
    }

    /// The point that is to be removed by a text as of [`find`](Self::find), or by the whole id of one that cannot be
    /// read; `None`: a prune has removed it, and the
    /// text says the same again. Until a run has made a point, a text removes one point: where a command was killed
    /// when it had ended, it can be given again.
    ///
    /// # Errors
    ///
    /// As of [`find`](Self::find).
    pub fn find_unwanted(&self, text: &str) -> Result<Option<PointId>> {
        let is_given_up = |id: &PointId| self.head.as_ref().is_some_and(|head| head.removed.contains(id));
        // A point that was removed and is put back goes again.
        if let Some(named) = self.all().find(|point| point.point.to_string() == text)
            && !is_given_up(&named.point)
        {
            return Ok(Some(named.point));
        }
        let mut unreadable = self.unreadable.iter().map(|unreadable| unreadable.point);
        if let Some(named) = unreadable.find(|point| point.to_string() == text) {
            return Ok(Some(named));
        }
        if self.head.as_ref().is_some_and(|head| head.words.iter().any(|word| word == text)) {
            return Ok(None);
        }
        let newest = self.newest().map_or(0, |newest| newest.generation);
        let is_again = |(generation, id): &(u64, PointId)| match text {
            "latest" => *generation > newest,
            _ if Moment::last_of(text).is_some() => true,
            _ => !text.is_empty() && id.to_string().starts_with(text),
        };
        let mut given_up =
            self.head.iter().flat_map(|head| head.trail().filter(|(_, point)| is_given_up(point)));
        match given_up.any(|point| is_again(&point)) {
            true => Ok(None),
            false => self.find(text).map(|point| Some(point.point)),
        }
    }

    /// The highest generation that a point has had, or may get: of one that a run has not committed as well.
    pub(crate) fn last_generation(&self) -> u64 {
        let uncommitted = self.uncommitted.iter().map(|point| point.generation);
        uncommitted.filter(|generation| *generation <= GENERATION_MAX).fold(self.last_committed, u64::max)
    }

    /// The generation of the next point: behind those of all files of its own, readable or not.
    pub(crate) fn next_generation(&self) -> Result<u64> {
        self.last_generation().checked_add(1).ok_or_else(|| {
            BackupError::Refused("a file of the series has a number that no point can have: remove it".into())
        })
    }
}
