//! Series that were removed with all of their points: a user who has made points in one, or has seen it, is not told
//! that its folder is gone.

use lunway_backup::{BackupError, Folder, PointId, Result, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document};
use crate::marker::FORMAT;
use crate::seen::SeenSeries;
use crate::small::{Small, problem_of_list, small};

const ENDED: &str = "repository.ended.json";
/// Most bytes of it: the last [`SERIES_MAX`], with names of 255 bytes that are all escaped.
const ENDED_BYTES_MAX: u64 = 256 << 10;
/// Series that are remembered: one that is removed each week for five years.
const SERIES_MAX: usize = 256;

/// The list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    format: u32,
    /// The last ones, the oldest first.
    series: Vec<EndedSeries>,
    /// Of an encrypted repository: BLAKE3, keyed, of this with an empty string here.
    authenticated: Option<String>,
}

/// A series that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndedSeries {
    pub(crate) series: String,
    /// Its first point, if that was known.
    pub(crate) begun: Option<PointId>,
    /// The last one that it has had.
    pub(crate) last: Option<PointId>,
}

impl Ended {
    fn authentication(&self, codec: &Codec) -> Option<String> {
        let open = Self { authenticated: Some(String::new()), ..self.clone() };
        codec.authenticate(Document::Ended, &seal(&open))
    }

    /// Reads it, and says what is wrong with it: a list that is not what was written is empty.
    pub(crate) fn examine(folder: &dyn Folder, codec: &Codec) -> Result<(Self, Option<String>)> {
        let empty = Self { format: FORMAT, series: Vec::new(), authenticated: None };
        let found = small(folder, ENDED, ENDED_BYTES_MAX)?;
        let problem = problem_of_list(folder, ENDED, &found);
        let Small::Whole(bytes) = found else { return Ok((empty, problem)) };
        Ok(match unseal::<Self>(&bytes) {
            Ok(list) if list.format == FORMAT && list.authenticated == list.authentication(codec) => {
                (list, problem)
            }
            _ => {
                let shown = folder.show(ENDED);
                let what = "was not written with the key of this repository, and is not used: remove it";
                (empty, problem.or_else(|| Some(format!("{shown} {what}"))))
            }
        })
    }

    /// Returns `true` if it was this series of the name that was removed.
    pub(crate) fn covers(&self, name: &str, seen: &SeenSeries) -> bool {
        self.series.iter().filter(|ended| ended.series == name).any(|ended| match (ended.begun, seen.begun) {
            (Some(ended), Some(seen)) => ended == seen,
            _ => seen.newest.is_some() && ended.last == seen.newest,
        })
    }

    /// Adds a series, and writes the list, durably. The caller holds the lease of the packs.
    pub(crate) fn add(mut self, ended: EndedSeries, folder: &dyn Folder, codec: &Codec) -> Result<()> {
        self.series.retain(|other| *other != ended);
        self.series.push(ended);
        let excess = self.series.len().saturating_sub(SERIES_MAX);
        self.series.drain(..excess);
        self.authenticated = self.authentication(codec);
        write_whole(folder, ENDED, &seal(&self))?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(ENDED)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_of_long_names_is_as_small_as_it_may_be() {
        let ended = EndedSeries {
            series: "\"".repeat(255),
            begun: Some(PointId(u64::MAX)),
            last: Some(PointId(u64::MAX)),
        };
        let authenticated = Some("a".repeat(64));
        let list = Ended { format: FORMAT, series: vec![ended; SERIES_MAX], authenticated };
        assert!((seal(&list).len() as u64) < ENDED_BYTES_MAX, "{}", seal(&list).len());
    }
}
