//! The marker: what makes a folder a repository, and who may read it.

use lunway_backup::{BackupError, Folder, LEAF, Result, read_small, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::keys::WrappedKey;

/// Version of the repository's format.
pub const FORMAT: u32 = 1;
/// Name of the file, and of its copy: without it an encrypted repository has no key.
pub(crate) const MARKER: &str = "repository.json";
pub(crate) const MARKER_COPY: &str = "repository.copy.json";
/// Most bytes of it: 2,000 people.
const MARKER_MAX: u64 = 1 << 20;

/// The marker of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// [`FORMAT`].
    pub format: u32,
    /// Id of the repository, 16 hexadecimal digits.
    pub repository: String,
    /// Bytes of a leaf.
    pub leaf_bytes: u64,
    /// Entries are encrypted, and their ids keyed.
    pub encrypted: bool,
    /// The key for each person.
    pub keys: Vec<WrappedKey>,
}

impl Marker {
    /// Reads it: the copy where the file is not whole.
    pub(crate) fn load(folder: &dyn Folder) -> Result<Self> {
        let read = |name: &str| {
            let wrong = |what: String| BackupError::Manifest { name: folder.show(name), what };
            let bytes = read_small(folder, name, MARKER_MAX)?;
            let marker: Self = unseal(&bytes).map_err(wrong)?;
            if marker.format != FORMAT || marker.leaf_bytes != LEAF {
                return Err(wrong("it has a format that this version does not know".into()));
            }
            Ok(marker)
        };
        read(MARKER).or_else(|error| read(MARKER_COPY).map_err(|_| error))
    }

    /// Writes both, durably.
    pub(crate) fn store(&self, folder: &dyn Folder) -> Result<()> {
        for name in [MARKER_COPY, MARKER] {
            write_whole(folder, name, &seal(self))?;
            folder.sync().map_err(BackupError::folder("writing", &folder.show(name)))?;
        }
        Ok(())
    }

    /// Copies that are not whole, with what is wrong.
    pub(crate) fn problems(&self, folder: &dyn Folder) -> Vec<String> {
        let wrong = |name: &&str| {
            let bytes = read_small(folder, name, MARKER_MAX).ok();
            bytes.and_then(|bytes| unseal::<Self>(&bytes).ok()).as_ref() != Some(self)
        };
        [MARKER_COPY, MARKER].iter().filter(|name| wrong(name)).map(|name| folder.show(name)).collect()
    }
}
