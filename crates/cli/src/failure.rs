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
                eprintln!("lunway: {}", without_arguments_secrets(&sentence(error)));
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

/// An error and its causes, as one sentence. Many errors already end with what caused them: that is not said twice.
fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if sentence.is_empty() {
            sentence = cause;
        } else if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open x: {source}")]
        struct Open {
            source: io::Error,
        }
        let error = anyhow::Error::from(Open { source: io::Error::other("no such file") });
        assert_eq!(sentence(&error.context("copying x to y")), "copying x to y: cannot open x: no such file");
    }
}
