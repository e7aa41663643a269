//! `ip` and `tc`, which do what this program asks for.

use std::env;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::error::LabError;
use crate::namespace::Namespace;

/// A program of iproute2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Devices, addresses, routes.
    Ip,
    /// Shapers.
    Tc,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Tc => "tc",
        })
    }
}

impl Tool {
    /// Finds the tool. Ordinary users often have no `/usr/sbin` in their path, where these tools are.
    fn command(self) -> Result<Command, LabError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut command =
            Command::new(self.find(env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]))?);
        // What it says is for this program to read.
        command.env("LC_ALL", "C").stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    fn find(self, mut folders: impl Iterator<Item = PathBuf>) -> Result<PathBuf, LabError> {
        let name = self.to_string();
        let found = folders.find_map(|folder| Some(folder.join(&name)).filter(|file| file.is_file()));
        found.ok_or(LabError::Missing { program: name })
    }

    /// Does what the lines say, in their order, until one fails.
    pub(crate) fn batch(self, namespace: &Namespace, place: &str, lines: &[String]) -> Result<(), LabError> {
        let mut command = self.command()?;
        command.args(["-batch", "-"]).stdin(Stdio::piped());
        let mut child = namespace.spawn(command).map_err(|source| self.did_not_start(source))?;
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        if let Some(mut input) = child.stdin.take() {
            // One that ends early closes its end; what it says about that is below.
            let _ = input.write_all(text.as_bytes());
        }
        let output = child.wait_with_output().map_err(|source| self.did_not_start(source))?;
        self.judge(place, &output, |said| {
            // "Command failed -:3"
            let line = said.rsplit_once("-:").and_then(|(_, number)| number.trim().parse::<usize>().ok());
            line.and_then(|number| lines.get(number.wrapping_sub(1)))
                .cloned()
                .unwrap_or_else(|| lines.join("; "))
        })
    }

    /// Does one thing that concerns another namespace too, which the line calls `/proc/self/fd/0`.
    pub(crate) fn across(
        self,
        namespace: &Namespace,
        place: &str,
        line: &str,
        other: OwnedFd,
    ) -> Result<(), LabError> {
        let mut command = self.command()?;
        command.args(line.split(' ')).stdin(Stdio::from(other));
        let child = namespace.spawn(command).map_err(|source| self.did_not_start(source))?;
        let output = child.wait_with_output().map_err(|source| self.did_not_start(source))?;
        self.judge(place, &output, |_| line.to_owned())
    }

    fn judge(self, place: &str, output: &Output, line: impl FnOnce(&str) -> String) -> Result<(), LabError> {
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("no reason given").to_owned();
        Err(LabError::Refused {
            command: format!("{self} {}", line(&said)),
            place: place.to_owned(),
            said: first,
        })
    }

    fn did_not_start(self, source: io::Error) -> LabError {
        LabError::Kernel { doing: format!("start {self}"), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_one_sentence_with_its_package() {
        let empty = tempfile::tempdir().unwrap();
        let sentence = Tool::Tc.find([empty.path().to_owned()].into_iter()).unwrap_err().to_string();
        assert_eq!(
            sentence,
            "`tc` is not installed: it is in the package iproute2 (iproute on some systems)"
        );
    }
}
