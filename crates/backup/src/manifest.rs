//! The manifest: what a point is, beside its files, in JSON.
//!
//! ```text
//!   {"blake3":"<64 hexadecimal digits: the hash of all bytes behind the next newline>",
//!   "manifest":{…}}
//! ```

use serde::{Deserialize, Serialize};

use crate::error::{BackupError, Result};
use crate::leaf::DISK_MAX;
use crate::point_id::{PointId, stem};
use crate::point_name::NameablePoint;

/// Version of the folder's format.
pub const FORMAT: u32 = 1;
/// Most bytes of a file of a point: a disk of the greatest size, with room for what a VHDX file has beside it. Those of
/// all points together are below 2^64.
pub(crate) const FILE_MAX: u64 = DISK_MAX + (1 << 40);
/// Most bytes of a manifest: a thousand times what one has.
pub(crate) const MANIFEST_MAX: u64 = 1 << 20;

/// Kind of a point's VHDX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PointKind {
    /// A dynamic disk: all of the source.
    Full,
    /// A differencing disk on the parent's file.
    Increment,
}

impl PointKind {
    /// As JSON and people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Increment => "increment",
        }
    }
}

/// Consistency level: what the users of the source had done when the point was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing: as after a power cut.
    #[default]
    Crash,
    /// File systems were frozen.
    Fs,
    /// Applications had written everything.
    Application,
}

/// Data of the source that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedBytes {
    /// Number of bytes.
    pub bytes: u64,
    /// Reason.
    pub why: String,
}

/// Manifest of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The point's id.
    pub point: PointId,
    /// Counts the points of the folder: a later one has a larger number. Decisions rest on it, never on a clock.
    pub generation: u64,
    /// Full or increment.
    pub kind: PointKind,
    /// Reason why it is that.
    pub why: String,
    /// The point below, of an increment.
    pub parent: Option<PointId>,
    /// Name given to the source.
    pub source: String,
    /// What tells the source from another one of the same name: [`SourceId`](crate::SourceId).
    pub source_id: Option<String>,
    /// The epoch of change tracking that ended with this point.
    pub epoch: Option<String>,
    /// What a schedule calls the due time that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// Consistency level of the state shown.
    pub level: Level,
    /// Seconds since 1970 by the clock of the machine that ran the backup. Information only.
    pub time: Option<u64>,
    /// Size of the disk, bytes.
    pub virtual_bytes: u64,
    /// Logical sector, bytes.
    pub sector_bytes: u32,
    /// DataWriteGuid of the VHDX file: another one means that somebody has written to it.
    pub data_write: String,
    /// Length of the VHDX file, bytes.
    pub file_bytes: u64,
    /// Length of the sidecar, bytes.
    pub leaves_bytes: u64,
    /// BLAKE3 over the sum of the sidecar and the size: it stands for all that the point holds. Not over the parent's:
    /// a merge gives a point another parent, and its children are not written again for that.
    pub root: String,
    /// BLAKE3 of what is in the VHDX file beside leaves.
    pub skeleton: String,
    /// Data that was left out.
    pub skipped: Vec<SkippedBytes>,
    /// Bytes that differ from the parent.
    pub changed_bytes: u64,
    /// Bytes that were read from the source.
    pub read_bytes: u64,
    /// Bytes of leaves that were sent.
    pub sent_bytes: u64,
    /// Points that were merged into this one.
    #[serde(default)]
    pub merged: Vec<PointId>,
    /// A merge into this point is decided, and its files may have their names of before still.
    #[serde(skip)]
    pub(crate) merging: bool,
}

const HEAD: &str = "{\"blake3\":\"";
const MIDDLE: &str = "\",\n";

impl Manifest {
    /// The name that its files have in common.
    pub fn stem(&self) -> String {
        stem(self.generation, self.point)
    }

    /// What it may be named by.
    pub(crate) fn nameable(&self) -> NameablePoint {
        NameablePoint { generation: self.generation, point: self.point, time: self.time }
    }

    /// Name of the VHDX file.
    pub fn disk_name(&self) -> String {
        disk_name(&self.stem())
    }

    /// Name of the sidecar.
    pub fn leaves_name(&self) -> String {
        leaves_name(&self.stem())
    }

    /// The file's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        seal(self)
    }

    /// Reads a manifest, and checks what can be checked of it alone.
    pub(crate) fn parse(name: &str, bytes: &[u8]) -> Result<Self> {
        let wrong = |what: String| BackupError::Manifest { name: name.to_owned(), what };
        let manifest: Self = unseal(bytes).map_err(wrong)?;
        let hashes = [&manifest.root, &manifest.skeleton];
        let contradiction = if manifest.format != FORMAT {
            Some("it has a format that this version does not know")
        } else if (manifest.kind == PointKind::Full) == manifest.parent.is_some() {
            Some("a full has no parent, an increment has one")
        } else if manifest.file_bytes.max(manifest.leaves_bytes) > FILE_MAX {
            Some("the size of a file is not possible")
        } else if manifest.virtual_bytes == 0 || manifest.virtual_bytes > DISK_MAX {
            Some("the size of the disk is not possible")
        } else if ![512, 4096].contains(&manifest.sector_bytes) {
            Some("the sector is neither 512 nor 4096 bytes")
        } else if hashes.iter().any(|hash| blake3::Hash::from_hex(hash.as_bytes()).is_err()) {
            Some("a hash has not 64 hexadecimal digits")
        } else {
            None
        };
        match contradiction {
            Some(what) => Err(wrong(what.to_owned())),
            None => Ok(manifest),
        }
    }
}

/// A document with the hash of itself.
pub fn seal<T: Serialize>(document: &T) -> Vec<u8> {
    // Of our own types, which have no maps with keys that JSON cannot have.
    let body = serde_json::to_string_pretty(document).unwrap_or_default();
    let body = format!("\"manifest\":{body}}}\n");
    let sum = blake3::hash(body.as_bytes()).to_hex();
    format!("{HEAD}{sum}{MIDDLE}{body}").into_bytes()
}

/// The document, if its hash is right.
///
/// # Errors
///
/// What is wrong with it.
pub fn unseal<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> std::result::Result<T, String> {
    #[derive(Deserialize)]
    struct Envelope<T> {
        manifest: T,
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let parts = text.strip_prefix(HEAD).and_then(|rest| rest.split_once(MIDDLE));
    let (sum, body) = parts.ok_or("it does not begin with its hash")?;
    if *blake3::hash(body.as_bytes()).to_hex() != *sum {
        return Err("its hash is wrong: a byte of it has changed".into());
    }
    let envelope: Envelope<T> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(envelope.manifest)
}

pub(crate) fn disk_name(stem: &str) -> String {
    format!("{stem}.vhdx")
}

pub(crate) fn leaves_name(stem: &str) -> String {
    format!("{stem}.leaves")
}

/// The two copies of a manifest: the second one first, whose rename is no commit.
pub fn manifest_names(stem: &str) -> [String; 2] {
    [format!("{stem}.copy.json"), format!("{stem}.json")]
}

/// The root of a point.
pub(crate) fn root(leaves: blake3::Hash, virtual_bytes: u64) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("lunway 2026 backup point root");
    hasher.update(leaves.as_bytes());
    hasher.update(&virtual_bytes.to_le_bytes());
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            point: PointId(7),
            generation: 1,
            kind: PointKind::Full,
            why: "it is the first".into(),
            parent: None,
            source: "disk.img".into(),
            source_id: None,
            epoch: None,
            due: None,
            level: Level::Crash,
            time: Some(0),
            virtual_bytes: 1 << 20,
            sector_bytes: 512,
            data_write: "2dc27766-f623-4200-9d64-115e9bfd4a08".into(),
            file_bytes: 4 << 20,
            leaves_bytes: 96,
            root: "0".repeat(64),
            skeleton: "1".repeat(64),
            skipped: Vec::new(),
            changed_bytes: 0,
            read_bytes: 0,
            sent_bytes: 0,
            merged: vec![PointId(3)],
            merging: false,
        }
    }

    #[test]
    fn a_manifest_reads_back_and_any_flipped_or_missing_byte_is_noticed() {
        let bytes = manifest().to_bytes();
        assert_eq!(Manifest::parse("m", &bytes).unwrap(), manifest());
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["manifest"]["point"], "0000000000000007");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(Manifest::parse("m", &flipped).is_err(), "byte {at}");
            assert!(Manifest::parse("m", &bytes[..at]).is_err(), "{at} bytes");
        }
    }
}
