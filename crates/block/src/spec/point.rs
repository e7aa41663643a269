//! `point:FOLDER[@POINT][?…]`: a point of a backup.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SpecError;
use crate::duration::{ExactDuration, parse_duration};

/// The newest point of a folder.
const LATEST: &str = "latest";
/// The keys: `?` and one of them end the name.
const KEYS: [&str; 4] = ["writes=", "into=", "timeout=", "key-file="];

/// What becomes of writes to a point, which itself never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PointWrites {
    /// Refused: the device is read-only.
    #[default]
    Refused,
    /// `writes=discard`: taken, and discarded when the device is closed.
    Discarded,
    /// `into=FILE`: kept in this VHDX file, which the rest of the point is copied into, until it stands alone.
    Kept(PathBuf),
}

/// A point of a backup, as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointName {
    /// Folder of the backup, or a series of a repository.
    pub folder: PathBuf,
    /// Beginning of the point's id, a time, or `latest`.
    pub point: String,
    /// What becomes of writes.
    pub writes: PointWrites,
    /// `timeout=TIME`: limit of a read of what is not in the file of [`PointWrites::Kept`] yet.
    pub timeout: Option<Duration>,
    /// `key-file=FILE`: the file with a secret key, for a series of an encrypted repository. Its path has no `&`.
    pub key_file: Option<PathBuf>,
}

impl PointName {
    /// Reads what stands behind `point:`. A folder with an `@` in its last name is written with `@latest` behind it.
    ///
    /// # Errors
    ///
    /// [`SpecError::PointForm`], [`SpecError::PointWrites`], [`SpecError::PointTime`].
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        // The first: a file behind `into=` may have any name.
        let options = text.match_indices('?').find(|(at, _)| is_key(&text[at + 1..]));
        let (name, options) = match options {
            Some((at, _)) => (&text[..at], &text[at + 1..]),
            None => (text, ""),
        };
        let (folder, point) = match name.rsplit_once('@') {
            Some((folder, point)) if !point.contains('/') => (folder, point),
            _ => (name, LATEST),
        };
        if folder.is_empty() || point.is_empty() {
            return Err(SpecError::PointForm);
        }
        let mut read = Self {
            folder: folder.into(),
            point: point.to_owned(),
            writes: PointWrites::Refused,
            timeout: None,
            key_file: None,
        };
        // `into` is the last one: a file may have any name.
        let mut rest = options;
        while !rest.is_empty() {
            if let Some(file) = rest.strip_prefix("into=").filter(|file| !file.is_empty()) {
                if read.writes == PointWrites::Discarded {
                    return Err(SpecError::PointForm);
                }
                read.writes = PointWrites::Kept(file.into());
                break;
            }
            let (option, behind) = rest.split_once('&').unwrap_or((rest, ""));
            match option.split_once('=') {
                Some(("writes", "discard")) => read.writes = PointWrites::Discarded,
                Some(("writes", other)) => return Err(SpecError::PointWrites { value: other.to_owned() }),
                Some(("timeout", time)) => {
                    read.timeout = Some(parse_duration(time).map_err(SpecError::PointTime)?);
                }
                Some(("key-file", file)) if !file.is_empty() => read.key_file = Some(file.into()),
                _ => return Err(SpecError::PointForm),
            }
            rest = behind;
        }
        if read.timeout.is_some() && !matches!(read.writes, PointWrites::Kept(_)) {
            return Err(SpecError::PointForm);
        }
        Ok(read)
    }

    /// The file that takes writes for good.
    pub fn kept_in(&self) -> Option<&Path> {
        match &self.writes {
            PointWrites::Kept(file) => Some(file),
            PointWrites::Refused | PointWrites::Discarded => None,
        }
    }

    pub(super) fn in_folder(&mut self, folder: &Path) {
        self.folder = place_in_folder(folder, &self.folder);
        if let PointWrites::Kept(file) = &mut self.writes {
            *file = folder.join(&*file);
        }
        if let Some(file) = &mut self.key_file {
            *file = folder.join(&*file);
        }
    }

    /// The files that it names beside the folder.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.kept_in().into_iter().chain(self.key_file.as_deref())
    }
}

/// Returns `true` if the place of points is an address, `s3://BUCKET/PATH`, and no path of this machine.
pub fn is_store_address(place: &Path) -> bool {
    place.as_os_str().as_encoded_bytes().starts_with(b"s3://")
}

/// A place of points that is meant from a folder: a relative path begins there, an address does not.
#[must_use]
pub fn place_in_folder(folder: &Path, place: &Path) -> PathBuf {
    if is_store_address(place) { place.to_owned() } else { folder.join(place) }
}

fn is_key(text: &str) -> bool {
    KEYS.iter().any(|key| text.starts_with(key))
}

impl fmt::Display for PointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "point:{}@{}", self.folder.display(), self.point)?;
        let time = self.timeout.map(|time| format!("timeout={}", ExactDuration(time)));
        let key = self.key_file.as_ref().map(|file| format!("key-file={}", file.display()));
        let writes = match &self.writes {
            PointWrites::Refused => None,
            PointWrites::Discarded => Some("writes=discard".to_owned()),
            PointWrites::Kept(file) => Some(format!("into={}", file.display())),
        };
        for (number, option) in [time, key, writes].into_iter().flatten().enumerate() {
            write!(f, "{}{option}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}
