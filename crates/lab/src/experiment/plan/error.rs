//! Reason why a file is no experiment.

use std::io;

use crate::timeline::TimelineError;
use crate::topology::TopologyError;

use crate::experiment::plan::expression::ExpressionError;

/// Reason why a file is no experiment: a sentence that names the file, the table and the key.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// Neither shipped nor a file.
    #[error("there is no experiment `{name}`: shipped are {shipped}; a file's name ends with .toml")]
    Unknown {
        /// The name requested.
        name: String,
        /// The experiments shipped.
        shipped: String,
    },
    /// The file could not be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// Longer than any experiment.
    #[error("{file} has more than {limit} bytes: that is not an experiment")]
    TooLong {
        /// The file.
        file: String,
        /// The limit, bytes.
        limit: usize,
    },
    /// Not TOML, a key that is not known, a value of another kind.
    #[error("{file}, line {line}{table}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// Line number of the error.
        line: usize,
        /// `, in [[run]]`, or nothing above the first table.
        table: String,
        /// The parser's message.
        message: String,
    },
    /// The network cannot be built.
    #[error("{file}: {source}")]
    Topology {
        /// The file.
        file: String,
        /// Underlying error.
        source: TopologyError,
    },
    /// Something in it cannot be meant.
    #[error("{file}, {table}, key `{key}`: {problem}")]
    Meaning {
        /// The file.
        file: String,
        /// The table: `[[run]] D`.
        table: String,
        /// The key in that table.
        key: &'static str,
        /// The problem with the key.
        problem: Box<Problem>,
    },
}

/// Kind of problem with a key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// Must be there.
    #[error("it is missing: {0}")]
    Missing(&'static str),
    /// Must not be there.
    #[error("it belongs to runs with measure = \"{0}\"")]
    Foreign(&'static str),
    /// No such thing.
    #[error("there is no {what} `{name}`: {known}")]
    NoSuch {
        /// A host, a cable …
        what: &'static str,
        /// The name as written.
        name: String,
        /// The known names.
        known: String,
    },
    /// Used before.
    #[error("`{0}` is used twice")]
    Twice(String),
    /// A name that figures could not write.
    #[error("`{0}` cannot be a name: use letters, digits, `-` and `_`, at most 40")]
    Name(String),
    /// Not between its limits.
    #[error("{value} is out of range: {limits}")]
    Range {
        /// The value as written.
        value: String,
        /// The limits allowed.
        limits: String,
    },
    /// A path that does not lead there.
    #[error("the path `{path}` does not lead from {from} to {to}: {why}")]
    Path {
        /// The path.
        path: String,
        /// Start that the path should have.
        from: String,
        /// End that the path should have.
        to: String,
        /// Reason why the path does not lead there.
        why: &'static str,
    },
    /// Something behind a path that is no option.
    #[error("`{0}` is not an option of a path; options are reserve, weight=N and throughput=N")]
    PathOption(String),
    /// No one thing happens.
    #[error(
        "an event is one of pull, plug, black_hole, clear, slow, delay, loss, flap, stop, start; this one is {0}"
    )]
    Event(&'static str),
    /// An event that is not possible on its cable.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// Two controls.
    #[error("`{0}` is the control already")]
    TwoControls(String),
    /// An expression that cannot be read.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// A name in an expression that nothing has.
    #[error("unknown name `{name}`: {known}")]
    NoValue {
        /// The name as written.
        name: String,
        /// Some that there are.
        known: String,
    },
    /// A mixture of what goes only one way.
    #[error("{0}")]
    Not(&'static str),
}
