//! The file that says that a merge is decided.

use serde::{Deserialize, Serialize};

use crate::error::{BackupError, Result};
use crate::folder::{Folder, read_small};
use crate::manifest::{MANIFEST_MAX, Manifest, unseal};
use crate::point_id::{PointId, parse_stem, stem};

/// End of the name of such a file.
pub(crate) const MERGE: &str = ".merge.json";

/// A merge that is decided.
#[derive(Serialize, Deserialize)]
pub(crate) struct Merge {
    /// The point that stays, as it is to be.
    pub(crate) manifest: Manifest,
    /// Names of the points that are given up.
    pub(crate) removed: Vec<String>,
}

/// A merge that is decided: the point that stays, as it is to be, and what is given up.
pub(crate) type Decided = Result<(Manifest, Vec<String>)>;

/// Merges that are decided and not finished, with the generations and ids of the points into which they go. To readers
/// they are finished.
pub(crate) fn decided(folder: &dyn Folder, names: &[String]) -> Vec<((u64, PointId), Decided)> {
    let stems = names.iter().filter_map(|name| name.strip_suffix(MERGE).and_then(parse_stem));
    stems
        .map(|(generation, point)| {
            let name = format!("{}{MERGE}", stem(generation, point));
            let merge = read(folder, &name)
                .map(|Merge { manifest, removed }| (Manifest { merging: true, ..manifest }, removed));
            ((generation, point), merge)
        })
        .collect()
}

pub(crate) fn is_merge(name: &str) -> bool {
    name.strip_suffix(MERGE).is_some_and(|stem| parse_stem(stem).is_some())
}

pub(crate) fn read(folder: &dyn Folder, name: &str) -> Result<Merge> {
    let bytes = read_small(folder, name, MANIFEST_MAX)?;
    unseal(&bytes).map_err(|what| BackupError::Manifest { name: folder.show(name), what })
}
