//! The catalogue: which points a folder holds, as its names and manifests say.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, Disk};

use crate::content::{ChainContent, Content};
use crate::error::{BackupError, Result, is_of_the_file};
use crate::folder::{Folder, Open, read_small};
use crate::history::History;
use crate::manifest::{MANIFEST_MAX, Manifest, manifest_names};
use crate::merge_record;
use crate::notes::NOTES;
use crate::point_files::{is_journal, is_ours, journal_name, lacks, open_disk};
use crate::point_id::{PointId, parse_stem};
use crate::point_name::find_point;
use crate::threads::each;
use crate::unreadable::UnreadablePoint;

/// Points that lie on each other, the full included. A chain of more is slow to open on a share, and Windows knows
/// no more than some dozens in practice; the engine of `vhdx` opens 256.
pub const LINKS_MAX: usize = 64;
/// Points of a folder: one each quarter of an hour for three years.
const POINTS_MAX: usize = 100_000;

/// A point, and what is wrong with its manifest's copies.
#[derive(Clone, Debug)]
pub struct Point {
    /// The point's manifest.
    pub manifest: Manifest,
    /// Damaged or missing copy of the manifest, with the reason. A copy that was not needed was not read:
    /// [`Catalogue::copy_problems`].
    pub copy_problem: Option<String>,
}

/// All points of a folder, the oldest first.
#[derive(Debug, Default)]
pub struct Catalogue {
    points: Vec<Point>,
    by_id: HashMap<PointId, usize>,
    unreadable: Vec<UnreadablePoint>,
    /// A sentence about each file that has another point's number.
    misnamed: Vec<String>,
    /// Journals of incomplete points.
    pub(crate) journals: Vec<String>,
    /// Unfinished files of this program.
    pub(crate) unfinished: Vec<String>,
    /// A merge is decided and not finished.
    pub(crate) has_merges: bool,
    /// There is what verification has noted.
    pub(crate) has_notes: bool,
    /// The highest generation in the name of any file: also of one that is damaged, incomplete or left over.
    last_generation: u64,
}

impl Catalogue {
    /// Reads a folder. Nothing is written.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read. A manifest that cannot be is one of [`unreadable`](Self::unreadable).
    pub fn load(folder: &dyn Folder) -> Result<Self> {
        let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
        let known: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut catalogue = Self::default();
        let mut stems: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(".json")).collect();
        stems.iter_mut().for_each(|stem| *stem = stem.strip_suffix(".copy").unwrap_or(stem));
        stems.sort_unstable();
        stems.dedup();
        let has = |name: &String| known.contains(name.as_str());
        // The rename of the first copy is the commit.
        let is_point = |stem: &&str| {
            let [_, first] = manifest_names(stem);
            has(&first) || !has(&journal_name(stem))
        };
        let stems: Vec<_> = stems
            .into_iter()
            .filter(is_point)
            .filter_map(|stem| parse_stem(stem).map(|parsed| (stem, parsed)))
            .collect();
        if stems.len() > POINTS_MAX {
            let what = format!("{} has more than {POINTS_MAX} points", folder.show(""));
            return Err(BackupError::Refused(what));
        }
        let read = each(&stems, |(stem, parsed)| {
            let [copy, first] = manifest_names(stem);
            // The second copy is for where the first one is not whole: a folder of many points is read twice as fast.
            Ok(match read_manifest(folder, &first, *parsed)? {
                Ok(manifest) => {
                    let is_missing = !has(&copy);
                    Ok((manifest, is_missing.then(|| format!("{} is missing", folder.show(&copy)))))
                }
                Err(problem) => match read_manifest(folder, &copy, *parsed)? {
                    Ok(manifest) => Ok((manifest, Some(problem))),
                    Err(_) => Err(problem),
                },
            })
        });
        for ((_, (generation, point)), read) in stems.into_iter().zip(read) {
            match read? {
                Ok((manifest, copy_problem)) => catalogue.points.push(Point { manifest, copy_problem }),
                Err(what) => catalogue.unreadable.push(UnreadablePoint { generation, point, what }),
            }
        }
        if !catalogue.unreadable.is_empty() {
            let known: HashSet<PointId> = catalogue.points.iter().map(|point| point.manifest.point).collect();
            let misnamed =
                catalogue.unreadable.extract_if(.., |unreadable| known.contains(&unreadable.point));
            let sentence = |UnreadablePoint { what, .. }| {
                format!("{what}; its point has another number: it blocks nothing, remove it")
            };
            catalogue.misnamed = misnamed.map(sentence).collect();
        }
        catalogue.has_merges = names.iter().any(|name| merge_record::is_merge(name));
        catalogue.has_notes = names.iter().any(|name| name == NOTES);
        catalogue.unfinished = names.iter().filter(|name| is_ours(name)).cloned().collect();
        for ((generation, point), merge) in merge_record::decided(folder, &names) {
            let (manifest, removed) = match merge {
                Ok(merge) => merge,
                Err(BackupError::Folder { what, name, source }) if !is_of_the_file(source.kind()) => {
                    return Err(BackupError::Folder { what, name, source });
                }
                Err(error) => {
                    let what = error.to_string();
                    catalogue.unreadable.push(UnreadablePoint { generation, point, what });
                    continue;
                }
            };
            catalogue.points.retain(|point| {
                let stem = point.manifest.stem();
                stem != manifest.stem() && !removed.contains(&stem)
            });
            catalogue.points.push(Point { manifest, copy_problem: None });
        }
        catalogue.journals = names.iter().filter(|name| is_journal(name)).cloned().collect();
        let stem = |name: &String| parse_stem(name.split('.').next().unwrap_or_default());
        catalogue.last_generation =
            names.iter().filter_map(stem).map(|(generation, _)| generation).max().unwrap_or(0);
        catalogue.order();
        Ok(catalogue)
    }

    fn order(&mut self) {
        self.points.sort_by_key(|point| (point.manifest.generation, point.manifest.point));
        self.by_id = self.points.iter().enumerate().map(|(at, point)| (point.manifest.point, at)).collect();
    }

    /// Points that are gone, and one that is another now, as a merge leaves them: not read again.
    pub(crate) fn replace(&mut self, gone: &[PointId], now: Option<Manifest>) {
        let is_gone = |id: PointId| gone.contains(&id) || now.as_ref().is_some_and(|now| now.point == id);
        self.points.retain(|point| !is_gone(point.manifest.point));
        self.points.extend(now.map(|manifest| Point { manifest, copy_problem: None }));
        self.order();
    }

    /// The generation of the next point: behind those of all files, readable or not.
    pub(crate) fn next_generation(&self) -> Result<u64> {
        self.last_generation.checked_add(1).ok_or_else(|| {
            BackupError::Refused(
                "a file of the destination has a number that no point can have: remove it".into(),
            )
        })
    }

    /// Points of which one copy of the manifest is damaged or missing while the other is whole, and how. Reads all
    /// copies.
    ///
    /// # Errors
    ///
    /// Where one cannot be read now.
    pub fn copy_problems(&self, folder: &dyn Folder) -> Result<Vec<(&Manifest, String)>> {
        let looked_at = each(&self.points, |Point { manifest, copy_problem }| {
            if copy_problem.is_some() || manifest.merging {
                return Ok(copy_problem.clone());
            }
            let [copy, first] = manifest_names(&manifest.stem());
            Ok(match read_manifest(folder, &copy, (manifest.generation, manifest.point))? {
                Ok(same) if same == *manifest => None,
                Ok(_) => Some(format!("{} differs from {first}", folder.show(&copy))),
                Err(problem) => Some(problem),
            })
        });
        let mut problems = Vec::new();
        for (point, problem) in self.points.iter().zip(looked_at) {
            problems.extend(problem?.map(|problem| (&point.manifest, problem)));
        }
        Ok(problems)
    }

    /// The points, the oldest first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Points whose manifest cannot be read in either copy.
    pub fn unreadable(&self) -> &[UnreadablePoint] {
        &self.unreadable
    }

    /// A sentence about each file that is named as a manifest of a point that is there under another number.
    pub fn misnamed(&self) -> &[String] {
        &self.misnamed
    }

    /// Incomplete points: a run that was stopped.
    pub fn incomplete(&self) -> usize {
        self.journals.len()
    }

    /// Returns `true` if a run that was stopped has left files: of an incomplete point, or of one that had not recorded
    /// anything.
    pub fn has_leftovers(&self) -> bool {
        !self.journals.is_empty() || !self.unfinished.is_empty()
    }

    /// The newest point.
    pub fn newest(&self) -> Option<&Manifest> {
        self.points.last().map(|point| &point.manifest)
    }

    /// Points that cannot be read and are newer than all that can.
    pub(crate) fn newer_unreadable(&self) -> impl Iterator<Item = &UnreadablePoint> {
        UnreadablePoint::newer_than(&self.unreadable, self.newest().map(|newest| newest.generation))
    }

    /// The point of this id that cannot be read.
    pub(crate) fn unreadable_point(&self, id: PointId) -> Option<&UnreadablePoint> {
        self.unreadable.iter().find(|unreadable| unreadable.point == id)
    }

    /// A point.
    pub fn get(&self, id: PointId) -> Option<&Manifest> {
        self.by_id.get(&id).map(|at| &self.points[*at].manifest)
    }

    /// The point that a text means: `latest`, the beginning of an id, or a time (the newest point of then or before:
    /// of that day where there is only a date).
    ///
    /// # Errors
    ///
    /// [`BackupError::NoPoint`] where none does, or several do; where one that cannot be read may be meant.
    pub fn find(&self, text: &str) -> Result<&Manifest> {
        let all: Vec<_> = self.points.iter().map(|point| point.manifest.nameable()).collect();
        self.get(find_point(&all, &self.unreadable, text)?).ok_or(BackupError::Lost)
    }

    /// Of a point whose chain is not whole: those of it that are there, itself first, and the generation of what is
    /// missing below, or one that is not lower.
    pub(crate) fn end_of_broken(&self, id: PointId) -> Option<(Vec<PointId>, u64)> {
        self.chain(id).err()?;
        let mut there: Vec<PointId> = Vec::new();
        let mut at = self.get(id);
        let mut lowest = 0;
        while let Some(manifest) =
            at.filter(|manifest| !there.contains(&manifest.point) && there.len() <= LINKS_MAX * 4)
        {
            there.push(manifest.point);
            lowest = manifest.generation;
            at = manifest.parent.and_then(|parent| self.get(parent));
        }
        let missing = there.last().and_then(|last| self.get(*last)).and_then(|last| last.parent);
        let missing = missing.and_then(|missing| self.unreadable_point(missing));
        Some((there, missing.map_or(lowest.saturating_sub(1), |missing| missing.generation)))
    }

    /// The points on which a point lies, itself first, the full last.
    ///
    /// # Errors
    ///
    /// Where one is missing, or the chain contradicts itself.
    pub fn chain(&self, id: PointId) -> Result<Vec<&Manifest>> {
        let broken = |what: String| BackupError::Damaged { point: id, what };
        let mut chain: Vec<&Manifest> = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let Some(manifest) = self.get(id) else {
                return Err(broken(format!("its parent, point {id}, is missing or cannot be read")));
            };
            let above = chain.last();
            if above.is_some_and(|above| {
                above.generation <= manifest.generation || above.sector_bytes != manifest.sector_bytes
            }) {
                return Err(broken(format!("it does not fit point {id}, on which it says that it lies")));
            }
            chain.push(manifest);
            if chain.len() > 4 * LINKS_MAX {
                return Err(broken(format!("it depends on more than {} points", 4 * LINKS_MAX)));
            }
            next = manifest.parent;
        }
        Ok(chain)
    }

    /// The first point whose files are not there as they were sealed, by their names and lengths alone, and what is
    /// wrong.
    pub(crate) fn lacking(&self, folder: &dyn Folder) -> Result<Option<(PointId, String)>> {
        let looked_at = each(&self.points, |point| lacks(folder, &point.manifest));
        for (point, lacking) in self.points.iter().zip(looked_at) {
            if let Some(what) = lacking? {
                return Ok(Some((point.manifest.point, what)));
            }
        }
        Ok(None)
    }

    /// Points that show what `id` holds: itself, and all that lie on it.
    pub fn concerned(&self, id: PointId) -> Vec<PointId> {
        let mut concerned = vec![id];
        // A point is older than those that lie on it.
        for point in &self.points {
            if point.manifest.parent.is_some_and(|parent| concerned.contains(&parent)) {
                concerned.push(point.manifest.point);
            }
        }
        concerned
    }

    /// The leaves of a point.
    ///
    /// # Errors
    ///
    /// [`BackupError::Damaged`] where a sidecar is not what its manifest says.
    pub fn history(&self, folder: &dyn Folder, id: PointId) -> Result<History> {
        History::open(folder, &self.chain(id)?)
    }

    /// The content of a point.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open) and [`history`](Self::history).
    pub fn content(&self, folder: &dyn Folder, id: PointId) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(self.chain_content(folder, id)?))
    }

    pub(crate) fn chain_content(&self, folder: &dyn Folder, id: PointId) -> Result<ChainContent> {
        let (chain, history) = (self.open(folder, id)?, self.history(folder, id)?);
        Ok(ChainContent { chain, history, point: id })
    }

    /// Opens the VHDX files of a point for reading, its own first. Parents are those that the catalogue names, in this
    /// folder: no path in a file is followed.
    ///
    /// # Errors
    ///
    /// Where a file is missing, damaged, or was written to.
    pub fn open(&self, folder: &dyn Folder, id: PointId) -> Result<Chain<Open>> {
        let mut disks: Vec<Disk<Open>> = Vec::new();
        let chain = self.chain(id)?;
        for manifest in &chain {
            let name = folder.show(&manifest.disk_name());
            // A merge that was interrupted has left the manifest of a point that is no longer below.
            let needed = match disks.last().map(|disk| &disk.parameters().locator) {
                None => true,
                Some(Some(locator)) => {
                    manifest.data_write.parse().is_ok_and(|guid: Guid| locator.matches(guid))
                }
                Some(None) => break,
            };
            if !needed {
                continue;
            }
            let disk = open_disk(folder, manifest)?;
            if disk.data_write_guid().to_string() != manifest.data_write {
                let what = format!("{name} was written to after it was sealed");
                return Err(BackupError::Damaged { point: manifest.point, what });
            }
            disks.push(disk);
        }
        let name = chain.first().map(|manifest| folder.show(&manifest.disk_name())).unwrap_or_default();
        Chain::new(disks).map_err(BackupError::open(&name))
    }
}

/// Reads one copy of a manifest: what is wrong with it where it is missing or damaged.
fn read_manifest(
    folder: &dyn Folder,
    name: &str,
    (generation, point): (u64, PointId),
) -> Result<std::result::Result<Manifest, String>> {
    let manifest =
        read_small(folder, name, MANIFEST_MAX).and_then(|bytes| Manifest::parse(&folder.show(name), &bytes));
    match manifest {
        Ok(manifest) if (manifest.generation, manifest.point) == (generation, point) => Ok(Ok(manifest)),
        Ok(_) => {
            let what = "it is the manifest of another point".to_owned();
            Ok(Err(BackupError::Manifest { name: folder.show(name), what }.to_string()))
        }
        Err(BackupError::Folder { what, name, source }) if !is_of_the_file(source.kind()) => {
            Err(BackupError::Folder { what, name, source })
        }
        Err(error) => Ok(Err(error.to_string())),
    }
}
