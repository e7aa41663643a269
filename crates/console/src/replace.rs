//! A file's content replaced, all or nothing.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of a file that was not there before: who may manage the daemon may read what it serves, others need not.
const MODE_NEW: u32 = 0o640;

/// Paths that [`replace`] uses.
struct Places {
    /// The file, behind symbolic links.
    path: PathBuf,
    folder: PathBuf,
    /// In the same folder, because a rename is atomic only within a file system. What a kill left there is overwritten.
    temporary: PathBuf,
}

impl Places {
    fn of(path: &Path) -> io::Result<Self> {
        let path = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(".new");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.to_owned();
        Ok(Self { temporary: folder.join(temporary), folder, path })
    }
}

/// Checks whether [`replace`] can make a file at `path`. Permission bits alone do not reveal a read-only file system.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let temporary = Places::of(path)?.temporary;
    new_file(&temporary, MODE_NEW)?;
    fs::remove_file(temporary)
}

/// Makes a file in the place of what a kill has left. A link that somebody has put there is not followed.
fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(mode).open(path)
}

/// Replaces what `path` holds. A reader, also after a kill or a power cut at any moment, finds the old content
/// or the new; when this returns without an error it is the new. Mode and a symbolic link in the way are
/// kept, and the owner where this process may.
pub(crate) fn replace(path: &Path, content: &str) -> io::Result<()> {
    Replacement::prepare(path, content)?.commit()
}

/// New content of a file, on stable storage under another name: [`commit`](Self::commit) gives it the file's. Dropped
/// before that, nothing has changed.
pub(crate) struct Replacement {
    places: Places,
    committed: bool,
}

impl Replacement {
    /// Does all that can be undone.
    pub(crate) fn prepare(path: &Path, content: &str) -> io::Result<Self> {
        let places = Places::of(path)?;
        let old = fs::metadata(&places.path).ok();
        let mode = old.as_ref().map_or(MODE_NEW, |old| old.permissions().mode() & 0o7777);
        let mut file = new_file(&places.temporary, mode)?;
        let new = Self { places, committed: false };
        file.set_permissions(Permissions::from_mode(mode))?;
        if let Some(old) = &old {
            let new = file.metadata()?;
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                let kept = std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()));
                match kept {
                    // Not ours to give away: the user who may replace the file in its folder owns the new one.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    kept => kept?,
                }
            }
        }
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        Ok(new)
    }

    /// Has the file hold it. After an error it holds the old content or the new.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        let Places { path, folder, temporary } = &self.places;
        fs::rename(temporary, path)?;
        self.committed = true;
        // The rename itself is on stable storage only with its folder.
        File::open(folder)?.sync_all()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.places.temporary);
        }
    }
}

/// Removes a file, durably.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    File::open(Places::of(path)?.folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_new_content_keeps_mode_and_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.toml"), folder.path().join("link.toml"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, Permissions::from_mode(0o604)).unwrap();
        std::os::unix::fs::symlink("real.toml", &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(mode(&real), 0o604);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left over");
    }

    #[test]
    fn a_file_that_was_not_there_is_made_and_what_a_kill_left_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lunway.toml");
        fs::write(folder.path().join(".lunway.toml.new"), "half of a much longer cont").unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_in_the_place_of_the_temporary_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("lunway.toml"), folder.path().join("precious"));
        fs::write(&precious, "precious").unwrap();
        let plant =
            || std::os::unix::fs::symlink("precious", folder.path().join(".lunway.toml.new")).unwrap();
        plant();
        check(&path).unwrap();
        plant();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(!path.is_symlink());
    }

    #[test]
    fn where_nothing_can_be_written_the_old_content_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lunway.toml");
        fs::write(&path, "old").unwrap();
        fs::create_dir(folder.path().join(".lunway.toml.new")).unwrap();
        assert!(replace(&path, "new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert!(replace(&folder.path().join("none/lunway.toml"), "new").is_err());
    }
}
