//! Packs that are about to be removed: what a run that begins must not refer to.

use std::collections::HashSet;

use lunway_backup::{BackupError, Folder, Result, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::small::{Small, in_place_of_list, problem_of_list, small};

const DYING: &str = "dying.json";
/// Most bytes of it: a million packs, 32 TiB.
const DYING_BYTES_MAX: u64 = 32 << 20;

/// The list of the last prune.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dying {
    /// Ids of packs, 16 hexadecimal digits each.
    packs: Vec<String>,
}

impl Dying {
    pub(crate) fn of(packs: &[u64]) -> Self {
        Self { packs: packs.iter().map(|pack| format!("{pack:016x}")).collect() }
    }

    /// Reads it: empty where there is none, `None` where it is damaged; and what is wrong with it.
    pub(crate) fn examine(folder: &dyn Folder) -> Result<(Option<HashSet<u64>>, Option<String>)> {
        let found = small(folder, DYING, DYING_BYTES_MAX)?;
        let problem = problem_of_list(folder, DYING, &found);
        let packs =
            |dying: Self| dying.packs.iter().filter_map(|pack| u64::from_str_radix(pack, 16).ok()).collect();
        let listed = match found {
            Small::Whole(bytes) => unseal(&bytes).ok().map(packs),
            Small::Missing => Some(HashSet::new()),
            Small::Wrong(_) => None,
        };
        Ok((listed, problem))
    }

    pub(crate) fn store(&self, folder: &dyn Folder) -> Result<()> {
        write_whole(folder, DYING, &seal(self)).map_err(|error| in_place_of_list(folder, DYING, error))?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(DYING)))
    }

    pub(crate) fn remove(folder: &dyn Folder) -> Result<()> {
        let removing = || BackupError::folder("removing", &folder.show(DYING));
        let removed = folder.remove(DYING).map_err(removing());
        removed.map_err(|error| in_place_of_list(folder, DYING, error))?;
        folder.sync().map_err(removing())
    }
}
