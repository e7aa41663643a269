//! What goes wrong, and the exit code for it.

use std::io;
use std::process::ExitCode;

use crate::secret::without_arguments_secrets;

/// Why a command did not do what it should: one sentence for a person, one exit code for a script.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line cannot be meant: exit code 2.
    Usage(String),
    /// It was tried and did not work: exit code 1.
    Failed(anyhow::Error),
    /// Standard output could not be written.
    Output(io::Error),
}

impl Failure {
    /// Something that was tried and did not work.
    pub(crate) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }

    /// Says it on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                eprintln!("lunway: {}; see lunway --help", without_arguments_secrets(message));
                ExitCode::from(2)
            }
            Self::Failed(error) => {
                eprintln!("lunway: {}", without_arguments_secrets(&format!("{error:#}")));
                ExitCode::FAILURE
            }
            // Whoever read our output has seen enough, as in `lunway inspect … | head -1`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Output(error) => {
                eprintln!("lunway: cannot write the result to standard output: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}
