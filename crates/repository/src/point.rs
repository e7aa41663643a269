//! Points of a series: a small manifest each, which is the only commit.
//!
//! ```text
//!   STEM.copy.json, STEM.json    the same bytes twice; the rename of the second one is the commit
//!   head.json                    which ones the series has had, and which one is the newest
//! ```
//!
//! Form and stem are those of a [chain's](lunway_backup::Manifest), the fields are a repository's.

use lunway_backup::{
    BackupError, DISK_MAX, Folder, Level, PointFacts, PointId, PointKind, Result, SkippedBytes,
    is_of_the_file, manifest_names, read_small, seal, stem, unseal, write_whole,
};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document, Id};
use crate::marker::FORMAT;

/// Most bytes of a manifest: a thousand times what one has.
const MANIFEST_MAX: u64 = 1 << 20;

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
    /// What a schedule calls the due time that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
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

    /// Removes it. Durable when this returns.
    pub(crate) fn remove(&self, folder: &dyn Folder) -> Result<()> {
        remove_manifests(folder, &self.stem())
    }
}

/// Removes the manifests of a point, the copy first: what a cut leaves is a point that is removed again. Durable when
/// this returns.
pub(crate) fn remove_manifests(folder: &dyn Folder, stem: &str) -> Result<()> {
    for name in manifest_names(stem) {
        let removing = || BackupError::folder("removing", &folder.show(&name));
        folder.remove(&name).map_err(removing())?;
        folder.sync().map_err(removing())?;
    }
    Ok(())
}

/// Reads one copy of a manifest: what is wrong with it where it is damaged; `None` where it is missing.
pub(crate) fn read_manifest(
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
