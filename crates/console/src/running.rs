//! The daemons of this user that run on this machine.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::killed::KilledProcess;

/// The folder of the records, within the runtime folder, which others may use for theirs.
const FOLDER: &str = "lunway-daemons";
/// Records that are looked at: more than a machine has daemons.
const DAEMONS_MAX: usize = 1000;
/// Longest record, bytes: two paths.
const RECORD_MAX: u64 = 16 << 10;

/// A daemon that runs, as it has recorded itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningDaemon {
    /// Its process.
    pub pid: u32,
    /// The Unix socket that it is managed on; `None`: it is not managed on one.
    pub socket: Option<PathBuf>,
    /// Its configuration file; `None`: it has flags alone.
    pub config: Option<PathBuf>,
}

/// The record of this process: others see it as long as this is not dropped, however the process ends.
#[derive(Debug)]
pub struct Registration {
    path: PathBuf,
    /// Its lock says that the process lives.
    _file: File,
}

impl RunningDaemon {
    /// Records this process.
    pub fn register(socket: Option<&Path>, config: Option<&Path>) -> io::Result<Registration> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (socket, config) = (socket.map(absolute), config.map(absolute));
        Self { pid: std::process::id(), socket, config }.register_in(&runtime_folder())
    }

    /// All that run.
    pub fn all() -> Vec<Self> {
        Self::all_in(&runtime_folder())
    }

    /// The daemon on this socket, where it was killed and has not ended.
    pub(crate) fn killed_on(socket: &Path) -> Option<KilledProcess> {
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
        let there = Self::all().into_iter().filter(|daemon| daemon.socket.as_ref() == Some(&socket));
        there.into_iter().find_map(|daemon| KilledProcess::find(daemon.pid))
    }

    fn register_in(&self, runtime: &Path) -> io::Result<Registration> {
        let folder = runtime.join(FOLDER);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let path = folder.join(self.pid.to_string());
        // Locked before it has its name, so that it is never taken for that of a process that has ended.
        let unnamed = folder.join(format!(".{}", self.pid));
        let mut file = File::create(&unnamed)?;
        flock(&file, FlockOperation::LockExclusive)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&unnamed, &path)?;
        Ok(Registration { path, _file: file })
    }

    fn all_in(runtime: &Path) -> Vec<Self> {
        let entries = fs::read_dir(runtime.join(FOLDER)).into_iter().flatten().flatten().take(DAEMONS_MAX);
        let named = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        let mut all: Vec<_> = named.filter_map(|entry| Self::recorded(&entry.path())).collect();
        all.sort_by_key(|daemon| daemon.pid);
        all
    }

    /// Reads a record if its process is alive, and removes it if not.
    fn recorded(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = fs::remove_file(path);
            return None;
        }
        let mut record = Vec::new();
        file.take(RECORD_MAX).read_to_end(&mut record).ok()?;
        serde_json::from_slice(&record).ok()
    }
}

impl std::fmt::Display for RunningDaemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)?;
        if let Some(config) = &self.config {
            write!(f, " (-c {})", config.display())?;
        }
        match &self.socket {
            Some(socket) => write!(f, " on {}", socket.display()),
            None => f.write_str(", not managed"),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Folder of this user's running daemons: `$LUNWAY_RUNTIME_DIR`, else, for root, `/run/lunway`, else
/// `$XDG_RUNTIME_DIR`.
pub(crate) fn runtime_folder() -> PathBuf {
    let named = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let of_user = || named("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    named("LUNWAY_RUNTIME_DIR").or_else(of_user).unwrap_or_else(|| PathBuf::from("/run/lunway"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_that_run_are_found_and_those_that_ended_are_not() {
        let runtime = tempfile::tempdir().unwrap();
        let daemon = |pid: u32, socket: Option<&str>| RunningDaemon {
            pid,
            socket: socket.map(PathBuf::from),
            config: Some("/etc/lunway/lunway.toml".into()),
        };
        assert_eq!(RunningDaemon::all_in(runtime.path()), []);
        let (one, other) = (daemon(7, Some("/run/a.sock")), daemon(8, None));
        let held = one.register_in(runtime.path()).unwrap();
        let gone = other.register_in(runtime.path()).unwrap();
        assert_eq!(RunningDaemon::all_in(runtime.path()), [one.clone(), other.clone()]);
        // A killed process leaves its record, and no lock.
        let left = fs::read(&gone.path).unwrap();
        let path = gone.path.clone();
        drop(gone);
        fs::write(&path, left).unwrap();
        assert_eq!(RunningDaemon::all_in(runtime.path()), std::slice::from_ref(&one));
        assert!(!path.exists());
        drop(held);
        assert_eq!(RunningDaemon::all_in(runtime.path()), []);
        assert_eq!(one.to_string(), "process 7 (-c /etc/lunway/lunway.toml) on /run/a.sock");
        assert!(other.to_string().ends_with(", not managed"));
    }
}
