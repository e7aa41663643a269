//! Errors as meanings, one enum for each phase: opening, creating, using.

use std::fmt;
use std::io;

use lunway_occupancy::{LockHolder, OtherUser};

use crate::format::Guid;

/// Structure of a VHDX file, to say where something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// The file as a whole.
    File,
    /// The file type identifier.
    Identifier,
    /// The headers.
    Header,
    /// The region table.
    RegionTable,
    /// The log.
    Log,
    /// The metadata region: table and items.
    Metadata,
    /// The parent locator.
    Locator,
    /// The block allocation table.
    Bat,
    /// A payload block, by number.
    Block(u64),
    /// A sector bitmap block, by the number of its chunk.
    Bitmap(u64),
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("file"),
            Self::Identifier => f.write_str("file type identifier"),
            Self::Header => f.write_str("header"),
            Self::RegionTable => f.write_str("region table"),
            Self::Log => f.write_str("log"),
            Self::Metadata => f.write_str("metadata region"),
            Self::Locator => f.write_str("parent locator"),
            Self::Bat => f.write_str("block allocation table"),
            Self::Block(number) => write!(f, "payload block {number}"),
            Self::Bitmap(chunk) => write!(f, "sector bitmap block {chunk}"),
        }
    }
}

/// Reason why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VhdxOpenError {
    /// Something else than a VHDX file.
    #[error("not a VHDX file: it does not begin with \"vhdxfile\"")]
    NotVhdx,
    /// The file contradicts the standard.
    #[error("{place} at byte {offset}: {problem}")]
    Corrupt {
        /// Structure that is damaged.
        place: Structure,
        /// Offset in the file, bytes.
        offset: u64,
        /// Description of the damage.
        problem: String,
    },
    /// The file was cut: bytes are gone that its structures lead to.
    #[error("{place} at byte {offset}: {problem}")]
    Lost {
        /// Which structure leads there, or is gone itself.
        place: Structure,
        /// Offset of that structure in the file, bytes.
        offset: u64,
        /// Loss, and its remedy.
        problem: String,
    },
    /// Nothing is wrong with the file, but this code does not know what it needs.
    #[error("{place} at byte {offset}: {problem}, which this program does not support")]
    Unsupported {
        /// Structure that it concerns.
        place: Structure,
        /// Offset in the file, bytes.
        offset: u64,
        /// Feature that is needed.
        problem: String,
    },
    /// The log changes payload, which the standard forbids, and which a replay in memory cannot show.
    #[error(
        "the log changes data at byte {offset}: it must be replayed onto the file first, as lunway disk repair does"
    )]
    PayloadInLog {
        /// Offset in the file, bytes.
        offset: u64,
    },
    /// The file is another's parent, and was to be written.
    #[error(
        "it is the parent of {0}, which could not be opened any more: write to that one, or open this one for reading alone"
    )]
    IsParent(String),
    /// The writer of the file has marked it as incomplete.
    #[error("the file is marked as incomplete: the command that filled it has not finished")]
    Incomplete,
    /// A parent is another one than the child was made on.
    #[error(
        "the parent has changed since the child was made: its data GUID is {found}, the child expects {expected}"
    )]
    ParentChanged {
        /// `parent_linkage`.
        expected: Guid,
        /// The parent's.
        found: Guid,
    },
    /// Child and parent do not fit each other.
    #[error("child and parent do not fit: {0}")]
    ParentUnfit(String),
    /// A differencing disk whose parent was not found.
    #[error("the parent was not found; looked for {0}: put it there, or give its path")]
    NoParent(String),
    /// Two files whose names differ in their case alone, and neither is the parent's name.
    #[error(
        "the parent may be {first} or {second}, whose names differ in their case alone: rename one of them"
    )]
    ParentAmbiguous {
        /// One of the candidates.
        first: String,
        /// The other one.
        second: String,
    },
    /// A chain that leads back to itself, or is longer than any that was made on purpose.
    #[error("the chain of parents {0}")]
    Chain(String),
    /// The file could not be reached.
    #[error("{what}: {source}")]
    Access {
        /// Operation that was in progress.
        what: &'static str,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// The mode of the file allows no writes.
    #[error(
        "the file is write-protected (mode {mode:04o}): `chmod u+w` it first, if it may be changed, and is no file of a backup"
    )]
    WriteProtected {
        /// Its permission bits.
        mode: u32,
    },
    /// A block device that takes no writes.
    #[error("the device is read-only: `blockdev` changes that, where it may be")]
    ReadOnlyDevice,
    /// Another process has the file open.
    #[error("the file is in use by {}", by.as_ref().map_or_else(|| "another process".to_owned(), LockHolder::to_string))]
    InUse {
        /// The process; `None`: it cannot be told.
        by: Option<LockHolder>,
    },
    /// Another program has the file, and does not use `flock`.
    #[error("the file is in use {by}")]
    InUseElsewhere {
        /// The other user.
        by: OtherUser,
    },
    /// The storage failed.
    #[error("{what} at byte {offset}: {source}")]
    Storage {
        /// Operation that was in progress.
        what: &'static str,
        /// Offset in the file, bytes.
        offset: u64,
        /// Error that the storage returned.
        source: io::Error,
    },
}

impl VhdxOpenError {
    pub(crate) fn corrupt(place: Structure, offset: u64, problem: impl Into<String>) -> Self {
        Self::Corrupt { place, offset, problem: problem.into() }
    }

    pub(crate) fn lost(place: Structure, offset: u64, problem: impl Into<String>) -> Self {
        Self::Lost { place, offset, problem: problem.into() }
    }

    pub(crate) fn unsupported(place: Structure, offset: u64, problem: impl Into<String>) -> Self {
        Self::Unsupported { place, offset, problem: problem.into() }
    }

    pub(crate) fn access(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Access { what, source }
    }

    pub(crate) fn storage(what: &'static str, offset: u64) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Storage { what, offset, source }
    }
}

/// Reason why a file was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Request that cannot be fulfilled.
    #[error("{0}")]
    Invalid(String),
    /// The storage failed.
    #[error("writing a new VHDX file: {0}")]
    Storage(#[from] io::Error),
}

/// Reason why an operation on an open disk failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The disk was opened for reading.
    #[error("the disk is open for reading only")]
    ReadOnly,
    /// The range leaves the disk.
    #[error("{len} bytes at offset {offset} leave the disk, which has {size} bytes")]
    OutOfRange {
        /// Start of the range, bytes.
        offset: u64,
        /// Length of the range, bytes.
        len: u64,
        /// Size of the disk, bytes.
        size: u64,
    },
    /// The range does not consist of whole sectors.
    #[error("{len} bytes at offset {offset} are not whole sectors of {sector} bytes")]
    Misaligned {
        /// Start of the range, bytes.
        offset: u64,
        /// Length of the range, bytes.
        len: u64,
        /// The logical sector, bytes.
        sector: u32,
    },
    /// The host has no space left. Nothing was changed; the operation succeeds when there is space again.
    #[error("no space left where the file lies")]
    NoSpace,
    /// The host has less space than a change of the file needs, which was therefore not begun.
    #[error("no space left where the file lies: {} MiB are needed, and {} MiB are free", needed >> 20, free >> 20)]
    Short {
        /// Bytes that the change needs, whole mebibytes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A differencing disk was read alone where its parent has the data.
    #[error("the data at offset {0} is in the parent, which is not open")]
    NoParent(u64),
    /// The file is shorter than the disk's structures say, or than it was when it was opened.
    #[error("the data at offset {0} is lost: the file was cut before the place where it was")]
    Lost(u64),
    /// The storage failed.
    #[error("{what}: {message}")]
    Storage {
        /// Operation that was in progress.
        what: &'static str,
        /// The kind of the storage's error.
        kind: io::ErrorKind,
        /// Message of the storage.
        message: String,
    },
    /// A flush or an update failed earlier, so that what is on the storage is not known: the file must be opened anew.
    #[error("an earlier failure left the file in need of recovery ({0}): open it again")]
    Failed(String),
}

impl DiskError {
    pub(crate) fn storage(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::NoSpace
            }
            kind => Self::Storage { what, kind, message: error.to_string() },
        }
    }

    /// The same of an operation on the disk at `offset`: what the storage has not, the disk has lost.
    pub(crate) fn at(self, offset: u64) -> Self {
        match self {
            Self::Storage { kind: io::ErrorKind::UnexpectedEof, .. } => Self::Lost(offset),
            other => other,
        }
    }
}

/// Reason why a closed file was not changed. It is as it was, or, where the change was already durable, as it was asked
/// to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] VhdxOpenError),
    /// The change is not possible, or would lose data.
    #[error("{0}")]
    Refused(String),
    /// An operation on one of the disks failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
