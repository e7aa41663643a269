//! The head of a series: its name, and its newest point, so that folders that were exchanged and points that no prune
//! has removed are noticed.
//!
//! A run writes it behind its manifest. Until then, and after a cut between, it is behind: manifests name the point
//! before them, so that newer points are traced back to the one that it names.

use std::io;

use lunway_backup::{BackupError, Folder, PointId, Result, read_small, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document};
use crate::marker::FORMAT;

const HEAD: &str = "head.json";
/// Most bytes of it: a series that was renamed a hundred times.
const HEAD_MAX: u64 = 64 << 10;

/// The head of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    format: u32,
    /// Name of the series.
    pub(crate) series: String,
    /// Names that it had before.
    pub(crate) was: Vec<String>,
    /// Its newest point.
    pub(crate) newest: Option<PointId>,
    /// The highest generation that a point of it has had.
    pub(crate) generation: u64,
    /// Of an encrypted repository: BLAKE3, keyed, of this with an empty string here.
    authenticated: Option<String>,
}

impl Head {
    pub(crate) fn new(series: &str, was: Vec<String>, newest: Option<PointId>, generation: u64) -> Self {
        Self { format: FORMAT, series: series.to_owned(), was, newest, generation, authenticated: None }
    }

    fn authentication(&self, codec: &Codec) -> Option<String> {
        let open = Self { authenticated: Some(String::new()), ..self.clone() };
        codec.authenticate(Document::Head, &seal(&open))
    }

    /// Reads it; `None` where there is none, what is wrong where it is damaged.
    pub(crate) fn load(
        folder: &dyn Folder,
        codec: &Codec,
    ) -> Result<std::result::Result<Option<Self>, String>> {
        let shown = folder.show(HEAD);
        let bytes = match read_small(folder, HEAD, HEAD_MAX) {
            Ok(bytes) => bytes,
            Err(BackupError::Folder { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Ok(None));
            }
            Err(BackupError::Folder { source, .. }) if lunway_backup::is_of_the_file(source.kind()) => {
                return Ok(Err(format!("{shown}: {source}")));
            }
            Err(error @ BackupError::Manifest { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        Ok(match unseal::<Self>(&bytes) {
            Err(what) => Err(format!("{shown}: {what}")),
            Ok(head) if head.format != FORMAT => {
                Err(format!("{shown} has a format that this version does not know"))
            }
            Ok(head) if head.authenticated != head.authentication(codec) => {
                Err(format!("{shown} was not written with the key of this repository"))
            }
            Ok(head) => Ok(Some(head)),
        })
    }

    /// Writes it, durably. The caller holds the lease of the series.
    pub(crate) fn store(mut self, folder: &dyn Folder, codec: &Codec) -> Result<()> {
        self.authenticated = self.authentication(codec);
        write_whole(folder, HEAD, &seal(&self))?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(HEAD)))
    }
}
