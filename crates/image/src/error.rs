//! Reason why a file was not opened.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// Reason why an image was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageOpenError {
    /// The file, or its lock, could not be had.
    #[error(transparent)]
    File(#[from] lunway_vhdx::VhdxOpenError),
    /// Another program may be writing to it.
    #[error(
        "{path} is in use {by}: a part of what was written to it may be in that program's memory alone; end that program \
         first, or read the disk through it"
    )]
    Written {
        /// The file, or its parent.
        path: String,
        /// The other user, as of a sentence: `by …`, `as …`.
        by: String,
    },
    /// Could not be read.
    #[error("{what}: {source}")]
    Read {
        /// Structure that was read.
        what: &'static str,
        /// Error from the operating system.
        source: io::Error,
    },
    /// Something else than a file of this format.
    #[error("not a {format} file: {why}")]
    NotThis {
        /// The format.
        format: &'static str,
        /// Description of what is missing.
        why: &'static str,
    },
    /// The file contradicts its format.
    #[error("{place}: {problem}")]
    Corrupt {
        /// Name of the structure.
        place: &'static str,
        /// Description of the problem.
        problem: String,
    },
    /// Nothing is wrong with the file, but it is not read here.
    #[error("{0}")]
    Unsupported(String),
    /// A parent was not found.
    #[error("the parent was not found; looked for {0}: put it there")]
    NoParent(String),
    /// A parent that is not to be opened.
    #[error("the parent {name:?} is not opened: {why}")]
    ParentRefused {
        /// The parent as the file names it.
        name: String,
        /// Reason.
        why: String,
    },
    /// A parent is another one than the child was made on.
    #[error(
        "the parent {path} is another disk than the child was made on: its identity is {found}, the child expects {expected}"
    )]
    OtherParent {
        /// The parent's file.
        path: String,
        /// Identity that the child expects.
        expected: lunway_vhdx::format::Guid,
        /// Identity of the parent.
        found: lunway_vhdx::format::Guid,
    },
    /// A chain that leads back to itself, or is longer than any that was made on purpose.
    #[error("the chain of parents {0}")]
    Chain(String),
}

impl ImageOpenError {
    /// Returns the reason why a file that must not change was not opened.
    pub(crate) fn of_writer(path: &Path, error: lunway_vhdx::VhdxOpenError) -> Self {
        match error {
            lunway_vhdx::VhdxOpenError::InUseElsewhere { by } => {
                Self::Written { path: path.display().to_string(), by: by.to_string() }
            }
            other => other.into(),
        }
    }

    pub(crate) fn read(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { what, source }
    }

    pub(crate) fn corrupt(place: &'static str, problem: impl Display) -> Self {
        Self::Corrupt { place, problem: problem.to_string() }
    }
}

/// A table that says nonsense about a range, found while the range is used.
pub(crate) fn nonsense(problem: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}
