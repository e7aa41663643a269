//! Points of a series: a small manifest each, which is the only commit.
//!
//! ```text
//!   STEM.copy.json, STEM.json    the same bytes twice; the rename of the second one is the commit
//!   head.json                    which one is the newest
//! ```
//!
//! Form and stem are those of a [chain's](lunway_backup::Manifest), the fields are a repository's.

use std::collections::{BTreeSet, HashSet};

use lunway_backup::{
    BackupError, DISK_MAX, Folder, Level, PointFacts, PointId, PointKind, Result, SkippedBytes, find_point,
    is_of_the_file, manifest_names, parse_stem, read_small, seal, stem, unseal, write_whole,
};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document, Id};
use crate::head::Head;
use crate::marker::FORMAT;

/// Most bytes of a manifest: a thousand times what one has.
const MANIFEST_MAX: u64 = 1 << 20;
/// Points of a series: one each quarter of an hour for three years.
const POINTS_MAX: usize = 100_000;

/// Manifest of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryPoint {
    /// [`FORMAT`].
    pub format: u32,
    /// The point's id.
    pub point: PointId,
    /// Counts the points of the series. Decisions rest on it, never on a clock.
    pub generation: u64,
    /// The point that it was compared with; none: everything was read.
    pub base: Option<PointId>,
    /// Reason for that.
    pub why: String,
    /// Name given to the source.
    pub source: String,
    /// Identity of the source's content, where it has one.
    pub source_id: Option<String>,
    /// The epoch of change tracking that ended with this point.
    pub epoch: Option<String>,
    /// Consistency level of the state shown.
    pub level: Level,
    /// Seconds since 1970 by the clock of the machine that ran the backup. Information only.
    pub time: Option<u64>,
    /// Size of the disk, bytes.
    pub virtual_bytes: u64,
    /// Logical sector, bytes.
    pub sector_bytes: u32,
    /// Id of the root of its tree, 64 hexadecimal digits.
    pub(crate) root: String,
    /// Data that was left out.
    pub skipped: Vec<SkippedBytes>,
    /// This point, or one that it was compared with, has left something out.
    pub left_out: bool,
    /// Bytes that differ from the point that it was compared with.
    pub changed_bytes: u64,
    /// Bytes that were read from the source.
    pub read_bytes: u64,
    /// Bytes of leaves that the repository did not have.
    pub sent_bytes: u64,
    /// Bytes that the run has added to the repository.
    pub stored_bytes: u64,
    /// The series that it was made for. Manifests that were written before there was this field have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) series: Option<String>,
    /// The newest point of the series before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<PointId>,
    /// Of an encrypted repository: BLAKE3, keyed, of this manifest with an empty string here.
    pub authenticated: Option<String>,
}

impl RepositoryPoint {
    /// Id of the root of its tree.
    pub(crate) fn root(&self) -> Id {
        blake3::Hash::from_hex(self.root.as_bytes()).map_or([0; 32], |id| *id.as_bytes())
    }

    /// The same with this root, as only a reader of the repository can make it.
    pub(crate) fn sealed(mut self, root: &Id, codec: &Codec) -> Self {
        self.root = blake3::Hash::from_bytes(*root).to_hex().to_string();
        self.authenticated = codec.authenticate(Document::Point, &self.unauthenticated());
        self
    }

    fn unauthenticated(&self) -> Vec<u8> {
        seal(&Self { authenticated: Some(String::new()), ..self.clone() })
    }

    /// What people are told of it.
    pub fn facts(&self) -> PointFacts {
        PointFacts {
            point: self.point,
            generation: self.generation,
            time: self.time,
            kind: if self.base.is_none() { PointKind::Full } else { PointKind::Increment },
            why: self.why.clone(),
            parent: self.base,
            source: self.source.clone(),
            level: self.level,
            epoch: self.epoch.clone(),
            virtual_bytes: self.virtual_bytes,
            changed_bytes: self.changed_bytes,
            read_bytes: self.read_bytes,
            sent_bytes: self.sent_bytes,
            stored_bytes: self.stored_bytes,
            skipped_bytes: self.skipped.iter().map(|skipped| skipped.bytes).sum(),
        }
    }

    /// The name that its files have in common.
    pub fn stem(&self) -> String {
        stem(self.generation, self.point)
    }

    /// Reads a manifest, and checks what can be checked of it alone.
    fn parse(name: &str, bytes: &[u8], codec: &Codec) -> Result<Self> {
        let wrong = |what: &str| BackupError::Manifest { name: name.to_owned(), what: what.to_owned() };
        let point: Self = unseal(bytes).map_err(|what| wrong(&what))?;
        let contradiction = if point.format != FORMAT {
            "it has a format that this version does not know"
        } else if point.virtual_bytes == 0 || point.virtual_bytes > DISK_MAX {
            "the size of the disk is not possible"
        } else if ![512, 4096].contains(&point.sector_bytes) {
            "the sector is neither 512 nor 4096 bytes"
        } else if !point.virtual_bytes.is_multiple_of(u64::from(point.sector_bytes)) {
            "the disk has a part of a sector"
        } else if blake3::Hash::from_hex(point.root.as_bytes()).is_err() {
            "a hash has not 64 hexadecimal digits"
        } else if codec.authenticate(Document::Point, &point.unauthenticated()) != point.authenticated {
            "it was not written with the key of this repository"
        } else {
            return Ok(point);
        };
        Err(wrong(contradiction))
    }

    /// Gives the copy, which is there alone, its other name as well: the point is one from then on.
    pub(crate) fn promote(&self, folder: &dyn Folder) -> Result<()> {
        let [_, first] = manifest_names(&self.stem());
        write_whole(folder, &first, &seal(self))?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(&first)))
    }

    /// Writes both copies, durably; the second rename is the commit.
    pub(crate) fn store(&self, folder: &dyn Folder) -> Result<()> {
        for name in manifest_names(&self.stem()) {
            write_whole(folder, &name, &seal(self))?;
            folder.sync().map_err(BackupError::folder("writing", &folder.show(&name)))?;
        }
        Ok(())
    }

    /// Removes it, the copy first: what a cut leaves is a point that is removed again. Durable when this returns.
    pub(crate) fn remove(&self, folder: &dyn Folder) -> Result<()> {
        for name in manifest_names(&self.stem()) {
            let removing = || BackupError::folder("removing", &folder.show(&name));
            folder.remove(&name).map_err(removing())?;
            folder.sync().map_err(removing())?;
        }
        Ok(())
    }
}

/// All points of a series, the oldest first.
#[derive(Debug, Default)]
pub struct Points {
    /// Name of the series.
    name: String,
    points: Vec<RepositoryPoint>,
    /// Points whose manifest cannot be read in either copy, and why.
    pub unreadable: Vec<(PointId, String)>,
    /// Points of which one copy of the manifest is damaged or missing, and how.
    pub copy_problems: Vec<(PointId, String)>,
    /// Points of which only the copy of the manifest is there: a run was stopped before its commit, or the other one
    /// was lost.
    pub(crate) uncommitted: Vec<RepositoryPoint>,
    /// The highest generation in the name of any file, or that the head knows of.
    last_generation: u64,
    head: Option<Head>,
    /// What is wrong with the head.
    pub(crate) head_problem: Option<String>,
    /// Points that are gone, though no prune has removed them: a sentence each.
    pub(crate) losses: Vec<String>,
    /// Other series that points here were made for.
    foreign: BTreeSet<String>,
}

impl Points {
    /// Reads the folder of the series `name`, of which the user has seen the generation `seen`. Nothing is written.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read. A manifest that cannot be is one of [`unreadable`](Self::unreadable).
    pub(crate) fn load(folder: &dyn Folder, name: &str, codec: &Codec, seen: Option<u64>) -> Result<Self> {
        // Before the manifests: a run that ends meanwhile adds a point that it does not know, which is no loss.
        let head = Head::load(folder, codec)?;
        let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
        let known: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut points = Self { name: name.to_owned(), ..Self::default() };
        for file in &names {
            if let Some((generation, _)) = parse_stem(file.split('.').next().unwrap_or_default()) {
                points.last_generation = points.last_generation.max(generation);
            }
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
                (Some(Ok(one)), _) => {
                    points.copy_problems.push((id, format!("{} is not whole", folder.show(&copy))));
                    points.points.push(one);
                }
                (Some(Err(what)), Some(Ok(other))) => {
                    points.copy_problems.push((id, what));
                    points.points.push(other);
                }
                (Some(Err(what)), _) => points.unreadable.push((id, what)),
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
        points.points.sort_by_key(|point| (point.generation, point.point));
        points.compare(head.clone(), seen, &folder.show(""));
        if !points.losses.is_empty() && Head::load(folder, codec)? != head {
            // A run and a prune have ended meanwhile.
            return Self::load(folder, name, codec, seen);
        }
        Ok(points)
    }

    /// Compares what is there with the head, and with what was seen.
    fn compare(&mut self, head: std::result::Result<Option<Head>, String>, seen: Option<u64>, shown: &str) {
        // The first one that names its series may have been cut off from its head.
        let named = self.points.iter().filter(|point| point.series.is_some()).count();
        match head {
            Err(what) => self.head_problem = Some(what),
            Ok(None) if named > 1 => self.head_problem = Some(format!("{shown} has no head.json")),
            Ok(head) => self.head = head,
        }
        let was =
            self.head.as_ref().filter(|head| head.series == self.name).map_or(&[][..], |head| &head.was[..]);
        let is_own = |series: &&String| **series == self.name || was.contains(*series);
        let series = self.points.iter().filter_map(|point| point.series.as_ref());
        let series = series.chain(self.head.as_ref().map(|head| &head.series));
        self.foreign = series.filter(|series| !is_own(series)).cloned().collect();
        if let Some(head) = self.head.as_ref() {
            self.last_generation = self.last_generation.max(head.generation);
            if let Some(point) = self.gap(head) {
                self.losses.push(format!(
                    "point {point}, the newest of {shown} when it was made, is gone, and no prune has removed it"
                ));
            }
        }
        let there = self.last_generation;
        if self.losses.is_empty()
            && let Some(seen) = seen.filter(|seen| *seen > there)
        {
            self.losses.push(format!(
                "{shown} has had {seen} points when this user last used it, and {there} now: newer ones were removed, or an \
                 older state of it is shown"
            ));
        }
    }

    /// The point that has to be there by the head, or by a newer point that was made on it, and is not.
    fn gap(&self, head: &Head) -> Option<PointId> {
        let is_there = |id: &PointId| {
            let others = self.unreadable.iter().map(|(point, _)| *point);
            let others = others.chain(self.uncommitted.iter().map(|point| point.point));
            self.get(*id).is_some() || others.collect::<Vec<_>>().contains(id)
        };
        if let Some(newest) = head.newest.filter(|newest| !is_there(newest)) {
            return Some(newest);
        }
        // Runs that were cut off before they wrote the head.
        let mut at = self.newest();
        while let Some(point) = at.filter(|point| point.generation > head.generation) {
            let before = point.before.filter(|before| Some(*before) != head.newest)?;
            if !is_there(&before) {
                return Some(before);
            }
            at = self.get(before).filter(|before| before.generation < point.generation);
        }
        None
    }

    /// The head of the series with this point as its newest.
    pub(crate) fn head_with(&self, newest: Option<&RepositoryPoint>) -> Head {
        let generation = newest.map_or(0, |newest| newest.generation).max(self.last_generation);
        Head::new(&self.name, self.names_before(), newest.map(|newest| newest.point), generation)
    }

    /// Returns `true` if a run was cut off between its point and the head: the points that lead to the newest one must
    /// not be removed before the head names it.
    pub(crate) fn is_head_behind(&self) -> bool {
        let newest = self.newest().map(|newest| newest.point);
        let is_another = self.head.as_ref().is_some_and(|head| head.newest != newest);
        is_another && self.losses.is_empty() && self.foreign.is_empty()
    }

    /// Names that the series had before: those of its head, and of points that become its own.
    fn names_before(&self) -> Vec<String> {
        let mut names = self.foreign.clone();
        names.extend(self.head.iter().flat_map(|head| head.was.clone()));
        names.remove(&self.name);
        names.into_iter().collect()
    }

    /// Refuses points that were made for another series.
    pub(crate) fn refuse_foreign(&self) -> Result<()> {
        match self.foreign_sentence() {
            None => Ok(()),
            Some(what) => Err(BackupError::Refused(what)),
        }
    }

    fn foreign_sentence(&self) -> Option<String> {
        let (name, other) = (&self.name, self.foreign.first()?);
        Some(format!(
            "the folder of the series {name} holds points of the series {other}: it was renamed, or exchanged for another; \
             give it the name {other} again, or run a backup into it with --rename-source if its disk is to be called {name}"
        ))
    }

    /// What is to be told of the series as a whole: points of another one, points that are gone.
    pub fn warnings(&self) -> Vec<String> {
        self.foreign_sentence().into_iter().chain(self.losses.iter().cloned()).collect()
    }

    /// The points, the oldest first.
    pub fn points(&self) -> &[RepositoryPoint] {
        &self.points
    }

    /// Returns `true` if there is no point, readable or not.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.unreadable.is_empty()
    }

    /// The newest point.
    pub fn newest(&self) -> Option<&RepositoryPoint> {
        self.points.last()
    }

    /// A point.
    pub fn get(&self, id: PointId) -> Option<&RepositoryPoint> {
        self.points.iter().find(|point| point.point == id)
    }

    /// The point that a text means: `latest`, the beginning of an id, or a time.
    ///
    /// # Errors
    ///
    /// [`BackupError::NoPoint`] where none does, or several do. Where the folder holds points of another series.
    pub fn find(&self, text: &str) -> Result<&RepositoryPoint> {
        self.refuse_foreign()?;
        let all: Vec<_> = self.points.iter().map(|point| (point.point, point.time)).collect();
        let id = find_point(&all, text)?;
        self.get(id).ok_or(BackupError::Lost)
    }

    /// The generation of the next point: behind those of all files, readable or not.
    pub(crate) fn next_generation(&self) -> Result<u64> {
        self.last_generation.checked_add(1).ok_or_else(|| {
            BackupError::Refused("a file of the series has a number that no point can have: remove it".into())
        })
    }
}

/// Reads one copy of a manifest: what is wrong with it where it is damaged; `None` where it is missing.
fn read_manifest(
    folder: &dyn Folder,
    name: &str,
    (generation, point): (u64, PointId),
    codec: &Codec,
) -> Result<Option<std::result::Result<RepositoryPoint, String>>> {
    let read = read_small(folder, name, MANIFEST_MAX)
        .and_then(|bytes| RepositoryPoint::parse(&folder.show(name), &bytes, codec));
    match read {
        Ok(read) if (read.generation, read.point) == (generation, point) => Ok(Some(Ok(read))),
        Ok(_) => Ok(Some(Err(format!("{} is the manifest of another point", folder.show(name))))),
        Err(BackupError::Folder { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(BackupError::Folder { what, name, source }) if !is_of_the_file(source.kind()) => {
            Err(BackupError::Folder { what, name, source })
        }
        Err(error) => Ok(Some(Err(error.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::MasterKey;

    /// As a version made it that knew neither series nor the points before them.
    const OLDER: &str = r#"{
  "format": 1,
  "point": "0000000000000007",
  "generation": 3,
  "base": null,
  "why": "it is the first",
  "source": "disk.img",
  "source_id": null,
  "epoch": null,
  "level": "crash",
  "time": 5,
  "virtual_bytes": 1048576,
  "sector_bytes": 512,
  "root": "1111111111111111111111111111111111111111111111111111111111111111",
  "skipped": [],
  "left_out": false,
  "changed_bytes": 1,
  "read_bytes": 2,
  "sent_bytes": 3,
  "stored_bytes": 4,
  "authenticated": ""
}"#;

    #[test]
    fn a_manifest_of_before_series_were_named_is_authentic_and_one_with_a_series_added_is_not() {
        let codec = Codec::encrypted(&MasterKey::new([3; 32]));
        let sealed = |text: &str| {
            let body = format!("\"manifest\":{text}}}\n");
            format!("{{\"blake3\":\"{}\",\n{body}", blake3::hash(body.as_bytes()).to_hex()).into_bytes()
        };
        let tag = codec.authenticate(Document::Point, &sealed(OLDER)).unwrap();
        let older = OLDER.replace("\"authenticated\": \"\"", &format!("\"authenticated\": \"{tag}\""));
        let point = RepositoryPoint::parse("m", &sealed(&older), &codec).unwrap();
        assert_eq!((point.series.as_ref(), point.before), (None, None));
        let named = older.replace("\"left_out\"", "\"series\": \"other\",\n  \"left_out\"");
        assert!(RepositoryPoint::parse("m", &sealed(&named), &codec).is_err());
    }
}
