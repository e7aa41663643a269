//! `point:FOLDER[@POINT][?writes=discard]`: a point of a backup.

use std::fmt;
use std::path::{Path, PathBuf};

use super::SpecError;

/// The newest point of a folder.
const LATEST: &str = "latest";
/// Separator between a point and what becomes of writes.
const WRITES_KEY: &str = "?writes=";

/// A point of a backup, as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointName {
    /// Folder of the backup.
    pub folder: PathBuf,
    /// Beginning of the point's id, a time, or `latest`.
    pub point: String,
    /// Writes are taken, and discarded when the device is closed. Without it the device is read-only.
    pub discards_writes: bool,
}

impl PointName {
    /// Reads what stands behind `point:`. A folder with an `@` in its last name is written with `@latest` behind it.
    ///
    /// # Errors
    ///
    /// [`SpecError::PointForm`], [`SpecError::PointWrites`].
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let (text, discards_writes) = match text.rsplit_once(WRITES_KEY) {
            None => (text, false),
            Some((text, "discard")) => (text, true),
            Some((_, other)) => return Err(SpecError::PointWrites { value: other.to_owned() }),
        };
        let (folder, point) = match text.rsplit_once('@') {
            Some((folder, point)) if !point.contains('/') => (folder, point),
            _ => (text, LATEST),
        };
        if folder.is_empty() || point.is_empty() {
            return Err(SpecError::PointForm);
        }
        Ok(Self { folder: folder.into(), point: point.to_owned(), discards_writes })
    }

    pub(super) fn in_folder(&mut self, folder: &Path) {
        self.folder = folder.join(&self.folder);
    }
}

impl fmt::Display for PointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writes = if self.discards_writes { "?writes=discard" } else { "" };
        write!(f, "point:{}@{}{writes}", self.folder.display(), self.point)
    }
}
