//! A daemon with a configuration file.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::lunway;

/// `lunway serve -c FILE`; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Daemon {
    /// Serves `lunway.toml` of a folder, managed on `api.sock` there.
    pub(crate) fn start(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut command =
            lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock"), "--json"]);
        command.env("LUNWAY_RUNTIME_DIR", path("run"));
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
