//! The marker: what makes a folder a repository, and who may read it.

use lunway_backup::{BackupError, Folder, LEAF, Result, read_small, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document};
use crate::keys::WrappedKey;

/// Version of the repository's format.
pub const FORMAT: u32 = 1;
/// Name of the file, and of its copy: without it an encrypted repository has no key.
pub(crate) const MARKER: &str = "repository.json";
pub(crate) const MARKER_COPY: &str = "repository.copy.json";
/// Most bytes of it: 2,000 people.
pub(crate) const MARKER_MAX: u64 = 1 << 20;

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
    /// Counts changes of the keys: of two copies the higher one is newer. None: there were no changes, or they were
    /// made before there was this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    /// Of an encrypted repository: BLAKE3, keyed, of this marker with an empty string here. One that was written before
    /// there was this field has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authenticated: Option<String>,
}

impl Marker {
    /// One of a new repository, which has yet to be [sealed](Self::sealed).
    pub(crate) fn new(repository: String, keys: Vec<WrappedKey>) -> Self {
        let encrypted = !keys.is_empty();
        Self {
            format: FORMAT,
            repository,
            leaf_bytes: LEAF,
            encrypted,
            keys,
            revision: None,
            authenticated: None,
        }
    }

    /// The same as only a reader of the repository can make it.
    pub(crate) fn sealed(mut self, codec: &Codec) -> Self {
        self.authenticated = self.authentication(codec);
        self
    }

    fn authentication(&self, codec: &Codec) -> Option<String> {
        let open = Self { authenticated: Some(String::new()), ..self.clone() };
        codec.authenticate(Document::Marker, &seal(&open))
    }

    /// Returns `true` unless it was changed without the repository's key.
    pub(crate) fn is_authentic(&self, codec: &Codec) -> bool {
        self.authenticated.is_none() || self.authenticated == self.authentication(codec)
    }

    /// Returns `true` if it says that it was written with the repository's key.
    pub(crate) fn is_sealed(&self) -> bool {
        self.authenticated.is_some()
    }

    /// Reads it: of the file and its copy the one that is whole and accepted, the newer one where both are. A change of
    /// keys that was cut off between them stays.
    pub(crate) fn load<T>(folder: &dyn Folder, accept: &dyn Fn(&Self) -> Result<T>) -> Result<(Self, T)> {
        let attempt = |name: &str| {
            let marker = Self::read(folder, name)?;
            let accepted = accept(&marker)?;
            Ok((marker, accepted))
        };
        match (attempt(MARKER), attempt(MARKER_COPY)) {
            (Ok(first), Ok(copy)) if copy.0.revision > first.0.revision => Ok(copy),
            (Ok(first), _) => Ok(first),
            (Err(_), Ok(copy)) => Ok(copy),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Reads one of the two.
    pub(crate) fn read(folder: &dyn Folder, name: &str) -> Result<Self> {
        let wrong = |what: String| BackupError::Manifest { name: folder.show(name), what };
        let bytes = read_small(folder, name, MARKER_MAX)?;
        let marker: Self = unseal(&bytes).map_err(wrong)?;
        match marker.format == FORMAT && marker.leaf_bytes == LEAF {
            true => Ok(marker),
            false => Err(wrong("it has a format that this version does not know".into())),
        }
    }

    /// Writes both, durably. The caller holds the lease of the packs.
    pub(crate) fn store(&self, folder: &dyn Folder) -> Result<()> {
        for name in [MARKER_COPY, MARKER] {
            write_whole(folder, name, &seal(self))?;
            folder.sync().map_err(BackupError::folder("writing", &folder.show(name)))?;
        }
        Ok(())
    }

    /// Names of the file and its copy where they are not this, and what they are instead.
    pub(crate) fn problems(&self, folder: &dyn Folder) -> Vec<(String, &'static str)> {
        let problem = |name: &str| match Self::read(folder, name) {
            Ok(found) if found == *self => None,
            Ok(_) => Some((folder.show(name), "is of another state than its copy")),
            Err(_) => Some((folder.show(name), "is not whole, and its copy is")),
        };
        [MARKER_COPY, MARKER].iter().filter_map(|name| problem(name)).collect()
    }
}
