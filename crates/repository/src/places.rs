//! Places of a repository: one folder for packs and indexes, and one for each series of points.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lunway_backup::{Folder, HostFolder, is_plain, parse_stem};

/// The folders of a repository.
///
/// Files of [`packs`](Self::packs) are written whole under a name that is new, read in ranges, listed and removed,
/// which an object store can do as well; what must exist once (a lease) is created if it is absent.
pub trait Places: Send + Sync {
    /// The folder of packs, indexes and the marker.
    fn packs(&self) -> Arc<dyn Folder>;

    /// Names of all series.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn series(&self) -> io::Result<Vec<String>>;

    /// Folders with points, or links to such, that are no series: one that was renamed, as a rule.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn strangers(&self) -> io::Result<Vec<String>>;

    /// The folder of a series.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound), or what the host says.
    fn of_series(&self, name: &str) -> io::Result<Arc<dyn Folder>>;

    /// The same, made if it is not there.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn begin_series(&self, name: &str) -> io::Result<Arc<dyn Folder>>;

    /// Removes the folder of a series that has no file any more. One that has some stays.
    ///
    /// # Errors
    ///
    /// What the host says.
    fn end_series(&self, _name: &str) -> io::Result<()> {
        // Where a series is a part of its files' names there is nothing to remove.
        Ok(())
    }
}

/// A folder of the host: a local one, or a mounted share.
pub struct HostPlaces {
    path: PathBuf,
    packs: Arc<HostFolder>,
    mode: u32,
}

impl HostPlaces {
    /// A folder that exists, with new files of this mode, as far as the umask allows.
    ///
    /// # Errors
    ///
    /// Where it does not, or is no folder.
    pub fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let packs = HostFolder::open(path)?.with_mode(mode);
        Ok(Self { path: packs.path().to_owned(), packs: Arc::new(packs), mode })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn at(&self, name: &str) -> io::Result<PathBuf> {
        match is_series_name(name) {
            true => Ok(self.path.join(name)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a name that a series can have")),
        }
    }
}

/// Returns `true` if a series may have this name: a plain one, which no file of the repository has.
pub fn is_series_name(name: &str) -> bool {
    let ours =
        ["pack-", "index-", "lease-", "writer-", "sweeper-", "mount-", "repository.", "damage.", "dying."];
    // Behind an @ a device has its point, and behind a ? its keys.
    let is_device_name = !name.contains(['@', '?']) && !name.contains(char::is_control);
    is_plain(name) && is_device_name && !ours.iter().any(|prefix| name.starts_with(prefix))
}

impl Places for HostPlaces {
    fn packs(&self) -> Arc<dyn Folder> {
        self.packs.clone()
    }

    fn series(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir()
                && let Ok(name) = entry.file_name().into_string()
                && is_series_name(&name)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn strangers(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            let is_series = kind.is_dir() && name.to_str().is_some_and(is_series_name);
            // Servers of files have folders of their own; one with points in it was a series.
            let has_points = || {
                let inside = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
                let mut names = inside.filter_map(|file| file.file_name().into_string().ok());
                names.any(|name| parse_stem(name.split('.').next().unwrap_or_default()).is_some())
            };
            if !kind.is_file() && !is_series && has_points() {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn of_series(&self, name: &str) -> io::Result<Arc<dyn Folder>> {
        let path = self.at(name)?;
        // A prune would not find its points.
        if std::fs::symlink_metadata(&path)?.is_symlink() {
            let why = "a series is a folder in the repository, and this is a link";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Arc::new(HostFolder::open(&path)?.with_mode(self.mode)))
    }

    fn begin_series(&self, name: &str) -> io::Result<Arc<dyn Folder>> {
        self.at(name)?;
        match self.packs.create_folder(name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.packs.sync()?,
        }
        self.of_series(name)
    }

    fn end_series(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_dir(self.at(name)?) {
            // A run has begun it again.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.packs.sync(),
        }
    }
}
