//! Points of a series: a small manifest each, which is the only commit.
//!
//! ```text
//!   STEM.copy.json, STEM.json    the same bytes twice; the rename of the second one is the commit
//! ```
//!
//! Form and stem are those of a [chain's](lunway_backup::Manifest), the fields are a repository's.

use std::collections::HashSet;

use lunway_backup::{
    BackupError, DISK_MAX, Folder, Level, PointId, Result, SkippedBytes, find_point, is_of_the_file,
    manifest_names, parse_stem, read_small, seal, stem, unseal, write_whole,
};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Id};
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
        self.authenticated = codec.authenticate(&self.unauthenticated());
        self
    }

    fn unauthenticated(&self) -> Vec<u8> {
        seal(&Self { authenticated: Some(String::new()), ..self.clone() })
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
        } else if codec.authenticate(&point.unauthenticated()) != point.authenticated {
            "it was not written with the key of this repository"
        } else {
            return Ok(point);
        };
        Err(wrong(contradiction))
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
    points: Vec<RepositoryPoint>,
    /// Points whose manifest cannot be read in either copy, and why.
    pub unreadable: Vec<(PointId, String)>,
    /// Points of which one copy of the manifest is damaged or missing, and how.
    pub copy_problems: Vec<(PointId, String)>,
    /// Points of which only the copy of the manifest is there: a run was stopped before its commit, or the other one
    /// was lost.
    pub(crate) uncommitted: Vec<RepositoryPoint>,
    /// The highest generation in the name of any file.
    last_generation: u64,
}

impl Points {
    /// Reads the folder of a series. Nothing is written.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read. A manifest that cannot be is one of [`unreadable`](Self::unreadable).
    pub(crate) fn load(folder: &dyn Folder, codec: &Codec) -> Result<Self> {
        let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
        let known: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut points = Self::default();
        for name in &names {
            if let Some((generation, _)) = parse_stem(name.split('.').next().unwrap_or_default()) {
                points.last_generation = points.last_generation.max(generation);
            }
            // Without it there is no point: a run was stopped before its commit.
            let Some(stem) = name.strip_suffix(".json") else {
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
        for name in &names {
            let Some(stem) = name.strip_suffix(".copy.json") else { continue };
            let Some(point) = parse_stem(stem) else { continue };
            let [copy, first] = manifest_names(stem);
            if !known.contains(first.as_str())
                && let Some(Ok(point)) = read_manifest(folder, &copy, point, codec)?
            {
                points.uncommitted.push(point);
            }
        }
        points.points.sort_by_key(|point| (point.generation, point.point));
        Ok(points)
    }

    /// The points, the oldest first.
    pub fn points(&self) -> &[RepositoryPoint] {
        &self.points
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
    /// [`BackupError::NoPoint`] where none does, or several do.
    pub fn find(&self, text: &str) -> Result<&RepositoryPoint> {
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
