//! Errors, and their exit codes.

use std::env;
use std::io;
use std::process::ExitCode;

use crate::secret::without_arguments_secrets;
use crate::served_file::ServedFile;
use crate::terminal;

/// Reason why a command did not do what it should: one sentence for a person, one exit code for a script.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line cannot be meant: exit code 2.
    Usage(String),
    /// Tried and did not work: exit code 1.
    Failed(anyhow::Error),
    /// Standard output could not be written.
    Output(io::Error),
    /// Done, and what came out has an exit code of its own. Nothing more is said.
    Found(u8),
}

impl Failure {
    /// Something that was tried and did not work.
    pub(crate) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }

    /// The reason in one sentence, without secrets.
    pub(crate) fn sentence(&self) -> String {
        let sentence = match self {
            Self::Usage(message) => message.clone(),
            Self::Failed(error) => sentence(error),
            Self::Output(error) => error.to_string(),
            Self::Found(code) => format!("exit code {code}"),
        };
        harmless(&without_arguments_secrets(&sentence))
    }

    /// Says it on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        self.report_with("lunway --help")
    }

    /// The same; `help` is the command that shows the help for wrong usage.
    pub(crate) fn report_with(&self, help: &str) -> ExitCode {
        match self {
            Self::Usage(message) => {
                eprintln!("lunway: {}; see {help}", harmless(&without_arguments_secrets(message)));
                ExitCode::from(2)
            }
            Self::Failed(error) => {
                let sentence = sentence(error);
                let user = daemon_of(&sentence);
                eprintln!("lunway: {}", harmless(&without_arguments_secrets(&(sentence + &user))));
                ExitCode::FAILURE
            }
            Self::Found(code) => ExitCode::from(*code),
            // The reader of our output has seen enough, as in `lunway inspect … | head -1`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Output(error) => {
                eprintln!("lunway: cannot write the result to standard output: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

/// A message without what controls terminals: it may repeat what another machine or a file said. Lines stay lines, as
/// the excerpt of a configuration file has some, but all after the first are indented: none looks like a message of its
/// own.
fn harmless(message: &str) -> String {
    message.lines().map(terminal::clean).collect::<Vec<_>>().join("\n    ")
}

/// The end of a sentence that says of a file in use which logical unit it is; empty where none of our daemons has it.
fn daemon_of(sentence: &str) -> String {
    let arguments = || env::args().skip(1);
    let found = sentence.contains(" in use ").then(|| ServedFile::named_in(sentence, arguments())).flatten();
    let Some(served) = found else { return String::new() };
    match arguments().take(2).eq(["backup", "run"]) {
        true => format!("; {served}: name {} as the source instead", served.source()),
        false => format!("; {served}"),
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
