//! Known damage of a repository: entries of packs that verification found wrong, until no pack has them any more.

use std::collections::HashSet;

use lunway_backup::{BackupError, Folder, Result, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::codec::Id;
use crate::pack::Location;
use crate::segment::segment_name;
use crate::small::{Small, in_place_of_list, problem_of_list, small};

const DAMAGE: &str = "damage.json";
/// Most bytes of it: 100,000 entries.
const DAMAGE_BYTES_MAX: u64 = 16 << 20;
/// Damaged entries of one pack that are listed; a pack with more is damaged as a whole.
pub(crate) const ENTRIES_MAX: usize = 1000;

/// What is not read any more, and sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownDamage {
    /// Packs of which nothing can be read.
    pub(crate) packs: HashSet<u64>,
    /// Entries in packs.
    pub(crate) entries: HashSet<(u64, Id)>,
    /// Packs that are damaged beside their entries, which can be read by an index: the next run writes them again.
    pub(crate) frames: HashSet<u64>,
    /// Segments of the index: the next run makes them again.
    pub(crate) segments: HashSet<u64>,
}

/// The same in JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Listed {
    Pack(String),
    Frame(String),
    Index(String),
    Entry(String, String),
}

impl KnownDamage {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Tells whether an entry is damaged in the place where an index says that it lies.
    pub(crate) fn concerns(&self, id: &Id, location: &Location) -> bool {
        self.packs.contains(&location.pack) || self.entries.contains(&(location.pack, *id))
    }

    /// Reads it. A list that is missing is empty, and so is one that is damaged: the next verification makes it again.
    pub(crate) fn load(folder: &dyn Folder) -> Result<Self> {
        Ok(Self::examine(folder)?.0)
    }

    /// The same, and what is wrong with the list.
    pub(crate) fn examine(folder: &dyn Folder) -> Result<(Self, Option<String>)> {
        let found = small(folder, DAMAGE, DAMAGE_BYTES_MAX)?;
        let problem = problem_of_list(folder, DAMAGE, &found);
        let Small::Whole(bytes) = found else { return Ok((Self::default(), problem)) };
        let mut known = Self::default();
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        for listed in unseal::<Vec<Listed>>(&bytes).unwrap_or_default() {
            match listed {
                Listed::Pack(pack) => known.packs.extend(number(&pack)),
                Listed::Frame(pack) => known.frames.extend(number(&pack)),
                Listed::Index(segment) => known.segments.extend(number(&segment)),
                Listed::Entry(pack, id) => {
                    let id = blake3::Hash::from_hex(id.as_bytes()).ok();
                    known.entries.extend(number(&pack).zip(id.map(|id| *id.as_bytes())));
                }
            }
        }
        if !known.segments.is_empty() {
            // One that is gone was made again from the packs, or with others into one.
            let names = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
            known.segments.retain(|segment| names.contains(&segment_name(*segment)));
        }
        Ok((known, problem))
    }

    /// Writes it, durably; where nothing is damaged there is no list.
    pub(crate) fn store(&self, folder: &dyn Folder) -> Result<()> {
        self.replace(folder).map_err(|error| in_place_of_list(folder, DAMAGE, error))
    }

    fn replace(&self, folder: &dyn Folder) -> Result<()> {
        if self.is_empty() {
            let removing = || BackupError::folder("removing", &folder.show(DAMAGE));
            folder.remove(DAMAGE).map_err(removing())?;
            return folder.sync().map_err(removing());
        }
        let sorted =
            |numbers: &HashSet<u64>| numbers.iter().copied().collect::<std::collections::BTreeSet<u64>>();
        let name = |number: u64| format!("{number:016x}");
        let mut listed: Vec<Listed> = Vec::new();
        listed.extend(sorted(&self.packs).into_iter().map(|pack| Listed::Pack(name(pack))));
        listed.extend(sorted(&self.frames).into_iter().map(|pack| Listed::Frame(name(pack))));
        listed.extend(sorted(&self.segments).into_iter().map(|segment| Listed::Index(name(segment))));
        let mut entries: Vec<&(u64, Id)> = self.entries.iter().collect();
        entries.sort_unstable();
        let hex = |id: &Id| blake3::Hash::from_bytes(*id).to_hex().to_string();
        listed.extend(entries.into_iter().map(|(pack, id)| Listed::Entry(name(*pack), hex(id))));
        write_whole(folder, DAMAGE, &seal(&listed))?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(DAMAGE)))
    }
}
