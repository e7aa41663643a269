//! A daemon with a configuration file.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{IQN, PATIENCE, finish, lunway, succeed};

/// A folder with a VHDX of 64 MiB in blocks of 1 MiB and a configuration that serves it as LUN 0, with these further
/// `keys`, beside a RAM disk as LUN 1.
pub(crate) fn folder_of_vhdx(keys: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    succeed(lunway(&["disk", "create", &path("disk.vhdx"), "--size", "64M", "--block-size", "1M"]));
    let text = format!(
        "# here\nlisten = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"disk.vhdx\"\n{keys}[[target.lun]]\nid = 1\ndevice = \"ram:1M\"\n"
    );
    fs::write(path("lunway.toml"), text).unwrap();
    folder
}

/// `lunway WORDS` beside the daemon of a folder.
pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = lunway(words);
    command.env("LUNWAY_SOCKET", folder.join("api.sock")).current_dir(folder);
    command.env("LUNWAY_RUNTIME_DIR", folder.join("run"));
    command
}

/// `lunway lun VERB …` beside it.
pub(crate) fn lun(folder: &Path, verb: &str, arguments: &[&str]) -> Command {
    command(folder, &[&["lun", verb], arguments].concat())
}

/// The one line in which a command refuses.
pub(crate) fn refused(command: Command) -> String {
    let output = finish(command, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    said
}

/// `lunway serve -c FILE`; killed when dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Daemon {
    /// Serves `lunway.toml` of a folder, managed on `api.sock` there.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[])
    }

    /// The same with these variables.
    pub(crate) fn start_with(folder: &Path, variables: &[(&str, &str)]) -> Self {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut command =
            lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock"), "--json"]);
        command.env("LUNWAY_RUNTIME_DIR", path("run")).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            let _ = child.kill();
            panic!("the daemon does not come back: {line}")
        });
        let address = ready["listening"][0].as_str().unwrap().to_owned();
        Self { child, address }
    }

    /// Kills it at once.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
