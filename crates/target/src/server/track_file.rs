//! Track file of a logical unit that a change opens: what the folder holds stays as it is until the change is made.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, access};

use super::tracking::{TrackError, locked};

/// Work on the track file of a logical unit that is left for the commit of the change that opened it.
///
/// A trial, or a change that is refused, would otherwise discard what the file knows of a disk that is still served, or
/// is to be served again: each backup would have to read everything.
pub(super) enum TrackFile {
    /// None: the file is in its place, or there is none and none is written.
    Settled,
    /// The logical unit is written without being tracked: its file is removed, as after a crash nothing else would show
    /// that it is not of this state of the disk.
    Unwanted(PathBuf),
    /// The file is a copy that takes the place of the present one.
    Staged(Arc<StagedTrack>),
}

/// Copy of a track file, beside it. It is removed when this is dropped, unless it [has taken its place](Self::settle).
pub(super) struct StagedTrack {
    copy: PathBuf,
    path: PathBuf,
    settled: AtomicBool,
    /// Locked: no other logical unit writes it.
    _present: Option<File>,
}

impl TrackFile {
    /// The file at `path` of a logical unit that will not be tracked.
    ///
    /// # Errors
    ///
    /// It is there, and cannot be removed.
    pub(super) fn unwanted(path: PathBuf) -> Result<Self, TrackError> {
        match std::fs::symlink_metadata(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Settled),
            Err(source) => return Err(TrackError::File { path, source }),
        }
        match access(folder_of(&path), Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => Ok(Self::Unwanted(path)),
            Err(error) => Err(TrackError::File { path, source: error.into() }),
        }
    }

    /// Does the work, durably, just before the logical unit is served. Blocks.
    pub(super) fn settle(&self) -> Result<(), TrackError> {
        match self {
            Self::Settled => Ok(()),
            Self::Unwanted(path) => forget(path),
            Self::Staged(staged) => staged.settle(),
        }
    }
}

impl StagedTrack {
    /// Makes the copy of the file at `path`, if there is one; otherwise an empty one. Waits for a logical unit that is
    /// being closed. Blocks.
    pub(super) fn of(path: &Path) -> io::Result<(Self, File)> {
        let present = match File::options().read(true).write(true).open(path) {
            Ok(file) => Some(locked(file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // The name of unfinished files, which the next start removes.
        let copy = path.with_extension("track.new");
        let options =
            File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&copy);
        let staged = Self { copy, path: path.to_owned(), settled: AtomicBool::new(false), _present: present };
        let mut file = locked(options?)?;
        if let Some(mut present) = staged._present.as_ref() {
            io::copy(&mut present, &mut file)?;
        }
        Ok((staged, file))
    }

    fn settle(&self) -> Result<(), TrackError> {
        let settled = std::fs::rename(&self.copy, &self.path);
        let settled = settled.inspect(|()| self.settled.store(true, Ordering::Relaxed));
        let settled = settled.and_then(|()| sync_folder(&self.path));
        settled.map_err(|source| TrackError::File { path: self.path.clone(), source })
    }
}

impl Drop for StagedTrack {
    fn drop(&mut self) {
        if !*self.settled.get_mut()
            && let Err(error) = std::fs::remove_file(&self.copy)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{} is of no use, and cannot be removed: {error}", self.copy.display());
        }
    }
}

/// Removes the file of a logical unit that is written without being tracked, durably.
pub(super) fn forget(path: &Path) -> Result<(), TrackError> {
    let removed = match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed,
    };
    let removed = removed.and_then(|()| sync_folder(path));
    removed.map_err(|source| TrackError::File { path: path.to_owned(), source })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}
