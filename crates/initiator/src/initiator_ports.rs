//! Choice of the initiator ports that sessions have, and the directory in which they are recorded.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Choice of the ISIDs of sessions, which with the initiator's name make its ports (RFC 7143 §4.4.2).
///
/// A login under the name of a session that is there takes its place, and ends it with all its tasks (session
/// reinstatement, RFC 7143 §6.3.5). So a process that was killed can be cleaned up after by the next one, if that one
/// uses the same ports. [`Host`](Self::Host) makes it so: an ISID is a hash of this machine's id, the target, the
/// logical unit, the lane and a slot. A file for each says, by a lock that the kernel drops with the process, whether a
/// process has it now, and by its content which portal groups its session may live in. A second process takes the next
/// slot, and so ends no other session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InitiatorPorts {
    /// Another one for each device. What a killed process leaves is not found.
    #[default]
    Random,
    /// Recorded for all processes of this user on this host: in `$LUNWAY_RUNTIME_DIR`, else, for root, in
    /// `/run/lunway`, else in `$XDG_RUNTIME_DIR/lunway`, else in a private directory among the temporary files.
    Host,
    /// Recorded in this directory.
    In(PathBuf),
}

impl InitiatorPorts {
    /// Returns the directory in which ports are recorded.
    pub(crate) fn directory(&self) -> io::Result<Option<PathBuf>> {
        match self {
            Self::Random => Ok(None),
            Self::In(path) => private_directory(path).map(|()| Some(path.clone())),
            Self::Host => {
                let named =
                    env::var_os("LUNWAY_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
                if let Some(path) = named {
                    return Self::In(path).directory();
                }
                for path in candidates() {
                    match private_directory(&path) {
                        Ok(()) => return Ok(Some(path)),
                        Err(error) => {
                            tracing::debug!(path = %path.display(), %error, "sessions cannot be recorded there");
                        }
                    }
                }
                // The lesser evil: the sockets of a killed process are reset all the same.
                tracing::warn!(
                    "there is no directory to record this host's iSCSI sessions in: what a killed process leaves at a target \
                     would not be found; LUNWAY_RUNTIME_DIR names one"
                );
                Ok(None)
            }
        }
    }
}

/// The first of these that can be used is used.
fn candidates() -> Vec<PathBuf> {
    let user = rustix::process::geteuid();
    let mut paths = Vec::new();
    if user.is_root() {
        paths.push(PathBuf::from("/run/lunway"));
    }
    if let Some(path) = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        paths.push(Path::new(&path).join("lunway"));
    }
    paths.push(env::temp_dir().join(format!("lunway-{}", user.as_raw())));
    paths
}

/// Folders in which processes of this user may have recorded their sessions, as far as they are there.
pub(crate) fn record_folders() -> Vec<PathBuf> {
    let named = env::var_os("LUNWAY_RUNTIME_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut folders = named.map_or_else(candidates, |path| vec![path]);
    folders.retain(|path| is_private(path).is_ok());
    folders
}

/// Makes the directory where it is not there. Another user must not be able to write in it.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    is_private(path)
}

/// An error where another user may write in the directory.
fn is_private(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let user = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is no directory that only this user may write in"));
    }
    Ok(())
}
