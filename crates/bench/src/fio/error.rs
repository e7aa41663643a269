//! Errors in a job file.

use std::io;
use std::path::PathBuf;

use super::ini::SourceLine;
use crate::JobError;

/// Reason why a job file cannot be run as it stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobFileError {
    /// Cannot be read.
    #[error("cannot read the job file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// Something in it is wrong, or cannot be done here.
    #[error("{place}: {problem}")]
    Line {
        /// Place of the error.
        place: SourceLine,
        /// Kind of error.
        problem: Problem,
    },
    /// A job that makes no sense on this device.
    #[error("{place}: [{name}]: {source}")]
    Job {
        /// Place where the section begins.
        place: SourceLine,
        /// The section.
        name: String,
        /// Fault in the job.
        source: JobError,
    },
    /// There is nothing to run in it.
    #[error("the job file {} has no section but [global], so there is nothing to run", path.display())]
    NoJobs {
        /// The file.
        path: PathBuf,
    },
}

/// Kind of error in a line of a job file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A header that is none.
    #[error("a section is written [name]")]
    Header,
    /// A setting above the first section.
    #[error("there is a setting before the first [section]")]
    NoSection,
    /// fio does not allow that either.
    #[error("an included file cannot have sections")]
    SectionInInclude,
    /// Includes that go round, or nearly.
    #[error("more than {most} includes, or {deepest} inside each other")]
    Includes {
        /// In all.
        most: usize,
        /// Inside each other.
        deepest: usize,
    },
    /// Too many settings.
    #[error("a job file can have at most {most} settings")]
    Settings {
        /// The limit.
        most: usize,
    },
    /// Too many sections.
    #[error("a job file can have at most {most} sections")]
    Sections {
        /// The limit.
        most: usize,
    },
    /// A value that variables made huge.
    #[error("the value is longer than {most} bytes")]
    Long {
        /// The limit.
        most: usize,
    },
    /// A variable that is not there.
    #[error("the environment variable {name} is not set")]
    Unset {
        /// Its name.
        name: String,
    },
    /// Not a key of fio's.
    #[error("`{key}` is not a known fio option")]
    UnknownKey {
        /// Text found in place of the key.
        key: String,
    },
    /// A key whose meaning cannot be honoured.
    #[error("{setting} cannot be honoured: {why}; take it out if the job makes sense without")]
    Refused {
        /// Key and value.
        setting: String,
        /// Reason.
        why: &'static str,
    },
    /// A value that the key cannot have.
    #[error("{setting}: {wanted}")]
    Value {
        /// Key and value.
        setting: String,
        /// Description of the values allowed.
        wanted: &'static str,
    },
    /// Settings of a section that exclude each other.
    #[error("[{section}]: {why}")]
    Section {
        /// The section.
        section: String,
        /// Description of the conflict.
        why: &'static str,
    },
}
