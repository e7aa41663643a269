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
    /// Of an encrypted repository: BLAKE3, keyed, of this marker with an empty string here. One that was written before
    /// there was this field has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authenticated: Option<String>,
}

impl Marker {
    /// One of a new repository, which has yet to be [sealed](Self::sealed).
    pub(crate) fn new(repository: String, keys: Vec<WrappedKey>) -> Self {
        let encrypted = !keys.is_empty();
        Self { format: FORMAT, repository, leaf_bytes: LEAF, encrypted, keys, authenticated: None }
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

    /// Reads it: the copy where the file is not whole, or is not accepted.
    pub(crate) fn load<T>(folder: &dyn Folder, accept: &dyn Fn(&Self) -> Result<T>) -> Result<(Self, T)> {
        let attempt = |name: &str| {
            let marker = Self::read(folder, name)?;
            let accepted = accept(&marker)?;
            Ok((marker, accepted))
        };
        attempt(MARKER).or_else(|error| attempt(MARKER_COPY).map_err(|_| error))
    }

    fn read(folder: &dyn Folder, name: &str) -> Result<Self> {
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

    /// Names of copies that are not whole, or say something else.
    pub(crate) fn problems(&self, folder: &dyn Folder) -> Vec<String> {
        let wrong = |name: &&str| Self::read(folder, name).ok().as_ref() != Some(self);
        [MARKER_COPY, MARKER].iter().filter(|name| wrong(name)).map(|name| folder.show(name)).collect()
    }
}
