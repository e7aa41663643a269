//! The logical unit that a file is, where a daemon of this user serves it.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunway_block::spec::DeviceSpec;
use lunway_console::{Client, Endpoint, Method, RunningDaemon};
use lunway_occupancy::{backing_files, is_same_file};
use serde_json::Value;

use crate::report_file::file_of;
use crate::{device, terminal};

/// Time limit for the answers of all daemons about what they serve: an error waits for them.
const ASK_TIME: Duration = Duration::from_secs(2);

/// A file that a daemon serves.
#[derive(Debug)]
pub(crate) struct ServedFile {
    file: PathBuf,
    target: String,
    lun: u64,
    socket: PathBuf,
}

impl ServedFile {
    /// The first of `arguments`, and of what loop devices among them lie on, that is a served file and is named in
    /// `error`.
    pub(crate) fn named_in(error: &str, arguments: impl Iterator<Item = String>) -> Option<Self> {
        let with_below = |file: PathBuf| {
            let below = backing_files(&file);
            std::iter::once(file).chain(below)
        };
        let files = arguments.filter_map(|argument| file_in(&argument)).flat_map(with_below);
        let is_named = |file: &PathBuf| {
            file.file_name().and_then(OsStr::to_str).is_some_and(|name| error.contains(name))
        };
        let named: Vec<PathBuf> = files.filter(is_named).collect();
        if named.is_empty() {
            return None;
        }
        let found = device::run(async {
            let all = RunningDaemon::all();
            let asked = async {
                for file in &named {
                    for daemon in &all {
                        if let Some(found) = Self::of(daemon, file).await {
                            return Some(found);
                        }
                    }
                }
                None
            };
            Ok(tokio::time::timeout(ASK_TIME, asked).await.ok().flatten())
        });
        found.ok().flatten()
    }

    /// The logical unit of a daemon that has this file.
    async fn of(daemon: &RunningDaemon, file: &Path) -> Option<Self> {
        let socket = daemon.socket.clone()?;
        let answer =
            Client::new(Endpoint::Unix(socket.clone())).call(Method::GET, "/v1/targets", None).await.ok()?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        // Relative names are the configuration file's; those of flags are the daemon's own.
        let folder = match daemon.config.as_deref().and_then(Path::parent) {
            Some(folder) => folder.to_owned(),
            None => std::fs::read_link(format!("/proc/{}/cwd", daemon.pid)).unwrap_or_default(),
        };
        for target in list(&answer["targets"]) {
            for lun in list(&target["config"]["lun"]) {
                let spec = DeviceSpec::parse(lun["device"].as_str().unwrap_or_default());
                let spec = spec.ok().map(|spec| spec.in_folder(&folder));
                let is_it = spec.as_ref().and_then(file_of).is_some_and(|served| is_same_file(served, file));
                if let (true, Some(target), Some(lun)) =
                    (is_it, target["config"]["name"].as_str(), lun["id"].as_u64())
                {
                    let (file, target) = (file.to_owned(), terminal::clean(target));
                    return Some(Self { file, target, lun, socket });
                }
            }
        }
        None
    }

    /// The logical unit as a source of backups: `lun:TARGET/LUN`.
    pub(crate) fn source(&self) -> String {
        format!("lun:{}/{}", self.target, self.lun)
    }
}

impl fmt::Display for ServedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, target, lun, socket } = self;
        write!(
            f,
            "{} is LUN {lun} of target {target}, which the daemon on {} serves",
            file.display(),
            socket.display()
        )
    }
}

/// The file that an argument names: a device, or one behind the `=` of an option or of `--lun 0=FILE,…`.
fn file_in(argument: &str) -> Option<PathBuf> {
    let value = argument.split_once('=').map(|(_, value)| value.split(',').next().unwrap_or(value));
    let exists = |text: &str| {
        let spec = DeviceSpec::parse(text).ok()?;
        file_of(&spec).filter(|file| file.exists()).map(Path::to_owned)
    };
    exists(argument).or_else(|| value.and_then(exists))
}
