//! Errors of this crate, as meanings and sentences.

use std::io::{self, ErrorKind};

use lunway_block::BlockError;
use lunway_block::size::HumanSize;
use lunway_vhdx::{CreateError, DiskError, VhdxOpenError};

use crate::point_id::PointId;

/// Reason why an operation on a destination failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The operating system refused an operation on a file of the destination.
    #[error("{what} {name}: {source}")]
    Folder {
        /// The operation attempted: "reading" …
        what: &'static str,
        /// The file.
        name: String,
        /// Error from the operating system.
        source: io::Error,
    },
    /// There is no room at the destination.
    #[error(
        "the destination is full: free space there and run the backup again; it continues where it stopped (no room is \
         left for {name})"
    )]
    Full {
        /// The file that was being written.
        name: String,
    },
    /// There is no room at the destination for what a prune has to write.
    #[error(
        "the destination is full: merging {} into {into} takes up to {}, which {folder} does not have; free as much there, \
         or keep fewer points{}",
        points(given_up), HumanSize(*needed), if *removed == 0 { String::new() } else { format!(" ({removed} removed)") }
    )]
    NoRoomToMerge {
        /// Points that would have been given up.
        given_up: Vec<PointId>,
        /// The point that they would have gone into.
        into: PointId,
        /// Bytes of all of them together: the merged point has no more.
        needed: u64,
        /// The destination.
        folder: String,
        /// Points that were removed or merged before.
        removed: usize,
    },
    /// A prune of a repository ended before its end.
    #[error("{}{}", in_prune(error), removed(points, *packs))]
    PruneEnded {
        /// Points that were removed before.
        points: Vec<PointId>,
        /// Packs that were.
        packs: usize,
        /// Why.
        error: Box<Self>,
    },
    /// A repository is encrypted, and no key was given, or another one.
    #[error("{0}")]
    Locked(String),
    /// A file of the destination is not what it was written as.
    #[error("point {point} is damaged: {what}; `lunway backup verify` says which points are concerned")]
    Damaged {
        /// The point that the file belongs to.
        point: PointId,
        /// Description and location of the damage.
        what: String,
    },
    /// The files of a draft are not those that were written.
    #[error(
        "{what}: another program has exchanged a file that was being written, or its disk has lost writes; nothing was made of it: \
         keep other programs out of the destination, and give the command again"
    )]
    DraftExchanged {
        /// Description and location of the difference.
        what: String,
    },
    /// A manifest that cannot be meant.
    #[error("{name} is not a manifest of this program: {what}")]
    Manifest {
        /// The file.
        name: String,
        /// Description of the fault.
        what: String,
    },
    /// Another run, prune or verification writes to the destination.
    #[error(
        "the destination is in use by {holder}: wait until it has ended (a holder that was killed is noticed within 30 s)"
    )]
    InUse {
        /// Holder of the lease.
        holder: String,
    },
    /// A disk elsewhere is still being completed from a point.
    #[error(
        "{disk} on {host} is still being completed from a point of the destination: wait until it stands alone \
         (`lunway lun list` there says how far it is); if that disk is no more, remove {hold}"
    )]
    Held {
        /// The disk, as "the disk /srv/vm.vhdx".
        disk: String,
        /// The machine that has it.
        host: String,
        /// The file that says so.
        hold: String,
    },
    /// Another writer took the destination while this one was suspended.
    #[error(
        "another command has taken the destination over, as this one had not been heard of: this one has ended without \
         its result; see what is there when the other has ended (`lunway backup list`), and give it again if needed"
    )]
    LeaseLost,
    /// The lease is not there any more, and no other one is.
    #[error(
        "the lease of this backup is gone from the destination, which was unmounted or replaced, or used by another \
         command that has ended: this one has ended without its result; check the destination, and give it again"
    )]
    LeaseGone,
    /// The folder holds points of another source.
    #[error(
        "the destination holds points of {there}, not of {source_name}: give each source a folder of its own, or say \
         --rename-source if it is the same disk under another name"
    )]
    OtherSource {
        /// The source of the newest point.
        there: String,
        /// The source of this run.
        source_name: String,
    },
    /// No point fits what was asked for.
    #[error("{0}")]
    NoPoint(String),
    /// Refused, with what to do.
    #[error("{0}")]
    Refused(String),
    /// The source failed.
    #[error("reading the source at offset {offset}: {error}")]
    Source {
        /// Bytes.
        offset: u64,
        /// Error from the source.
        error: BlockError,
    },
    /// The source was taken away while it was read.
    #[error("no point is made of what was read: {0}")]
    SourceLost(BlockError),
    /// The device that a point is restored to did not keep it.
    #[error("the device failed to make durable what was restored: {error}")]
    Flush {
        /// Error from the device.
        error: BlockError,
    },
    /// The device that a point is restored to failed.
    #[error("writing to the device at offset {offset}: {error}")]
    Target {
        /// Bytes.
        offset: u64,
        /// Error from the device.
        error: BlockError,
    },
    /// A VHDX file could not be made.
    #[error("{name}: {source}")]
    Create {
        /// The file.
        name: String,
        /// Underlying error.
        source: CreateError,
    },
    /// A VHDX file could not be opened.
    #[error("cannot open {name}: {source}")]
    Open {
        /// The file.
        name: String,
        /// Underlying error.
        source: VhdxOpenError,
    },
    /// A VHDX file could not be read or written.
    #[error("{name}: {source}")]
    Disk {
        /// The file.
        name: String,
        /// Underlying error.
        source: DiskError,
    },
    /// A thread of the engine ended without an answer.
    #[error("a thread ended without an answer: this is a mistake in the program")]
    Lost,
    /// The caller asked for the end.
    #[error("interrupted: the data that was sent is kept, and the next run continues")]
    Cancelled,
}

/// Points that a sentence names: one line of a terminal and a half.
const NAMED_MAX: usize = 8;

fn points(points: &[PointId]) -> String {
    points.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn in_prune(error: &BackupError) -> String {
    match error {
        BackupError::Full { name } => format!(
            "the destination is full, and a prune has to write {name}: free some mebibytes there, and prune again"
        ),
        error => error.to_string(),
    }
}

fn removed(gone: &[PointId], packs: usize) -> String {
    if gone.is_empty() && packs == 0 {
        return String::new();
    }
    let named = match gone.len() {
        0 => String::new(),
        count if count <= NAMED_MAX => format!(", {}", points(gone)),
        count => format!(", {} and {} more", points(&gone[..NAMED_MAX]), count - NAMED_MAX),
    };
    format!(" (points removed before: {}{named}; packs: {packs})", gone.len())
}

/// Result of an operation on a destination.
pub type Result<T> = std::result::Result<T, BackupError>;

impl BackupError {
    /// Damage of a file that has just been written, or its absence: that is no damage of a point.
    pub(crate) fn exchanged(self) -> Self {
        match self {
            Self::Damaged { what, .. } => Self::DraftExchanged { what },
            Self::Folder { name, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Self::DraftExchanged { what: format!("{name} is not there any more") }
            }
            other => other,
        }
    }

    /// For an operation on a file of the destination.
    pub fn folder(what: &'static str, name: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let name = name.to_owned();
        move |source| match source.kind() {
            _ if is_for_lack_of_inodes(&source) => Self::Full { name: format!("{name}: {source}") },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { name }
            }
            _ => Self::Folder { what, name, source },
        }
    }

    /// For an operation on an open VHDX file.
    pub(crate) fn disk(name: &str) -> impl FnOnce(DiskError) -> Self + use<> {
        let name = name.to_owned();
        move |source| match source {
            DiskError::NoSpace | DiskError::Short { .. } => Self::Full { name },
            source => Self::Disk { name, source },
        }
    }

    /// For opening a VHDX file.
    pub(crate) fn open(name: &str) -> impl FnOnce(VhdxOpenError) -> Self + use<> {
        let name = name.to_owned();
        move |source| match source {
            VhdxOpenError::Storage { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Self::Full { name }
            }
            source => Self::Open { name, source },
        }
    }
}

/// A file system has room, and no inode for another file.
#[derive(Debug, thiserror::Error)]
#[error("its file system has free space and no free inode: remove files there")]
pub(crate) struct NoInodes;

fn is_for_lack_of_inodes(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<NoInodes>)
}

/// Returns `true` if an error concerns the file itself: it is missing, truncated, or not a file.
pub fn is_of_the_file(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidInput)
}
