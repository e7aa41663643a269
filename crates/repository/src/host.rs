//! Repositories on this host: what a path means, the user's key, and copies of indexes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lunway_backup::{BackupError, Folder, HostFolder, Result};
use lunway_block::small_file;

use crate::keys::Identity;
use crate::places::{HostPlaces, is_series_name};
use crate::point::Points;
use crate::repository::{Repository, is_repository};

/// Most bytes of a file with a key: one line, and comments.
const KEY_FILE_MAX: u64 = 64 << 10;
/// Permissions of files beside the owner's: the points of all disks lie in the same packs, so that none may be read by
/// those who may read one disk alone.
const MODE: u32 = 0;

/// What a path means to which points are backed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// No repository, and nothing in one: a folder of its own.
    Elsewhere,
    /// A repository.
    Repository(PathBuf),
    /// A series of a repository, which need not be there yet.
    Series {
        /// Path of the repository.
        repository: PathBuf,
        /// Name of the series.
        name: String,
    },
}

/// Says what a path means. A folder that cannot be opened is none of ours: those who need it say why.
///
/// # Errors
///
/// Where a marker can neither be read nor is known not to be there, or a folder in a repository has a name that no
/// series can have.
pub fn locate(path: &Path) -> Result<Located> {
    if holds_repository(path)? {
        return Ok(Located::Repository(path.to_owned()));
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(Located::Elsewhere),
    };
    if !holds_repository(parent)? {
        return Ok(Located::Elsewhere);
    }
    match path.file_name().and_then(|name| name.to_str()).filter(|name| is_series_name(name)) {
        Some(name) => Ok(Located::Series { repository: parent.to_owned(), name: name.to_owned() }),
        None => Err(BackupError::Refused(format!(
            "{} cannot be the name of a series in a repository: choose another",
            path.display()
        ))),
    }
}

fn holds_repository(path: &Path) -> Result<bool> {
    let Ok(folder) = HostFolder::open(path) else { return Ok(false) };
    is_repository(&folder).map_err(BackupError::folder("reading", &path.display().to_string()))
}

/// A series of a repository, open.
pub struct Series {
    /// The repository.
    pub repository: Repository,
    /// Its name.
    pub name: String,
    /// The folder of its points: leases, notes and epochs are there.
    pub folder: Arc<dyn Folder>,
}

impl Series {
    /// Opens a series; `is_begun`: one that is not there is made.
    ///
    /// # Errors
    ///
    /// Where it is not there, or its repository cannot be opened with this key.
    pub fn open(path: &Path, name: &str, key_file: Option<&Path>, is_begun: bool) -> Result<Self> {
        let repository = open_repository(path, key_file)?;
        let places = repository.places();
        let folder = if is_begun { places.begin_series(name) } else { places.of_series(name) };
        let folder = folder.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let there = places.series().unwrap_or_default();
                let there = if there.is_empty() {
                    "none yet".to_owned()
                } else {
                    format!("only {}", there.join(", "))
                };
                BackupError::Refused(format!(
                    "the repository {} has no series {name}, {there}",
                    path.display()
                ))
            }
            _ => BackupError::folder("opening", &path.join(name).display().to_string())(error),
        })?;
        Ok(Self { repository, name: name.to_owned(), folder })
    }

    /// Its points.
    ///
    /// # Errors
    ///
    /// Where its folder cannot be read.
    pub fn points(&self) -> Result<Points> {
        self.repository.points(&*self.folder)
    }

    /// Display name.
    pub fn show(&self) -> String {
        self.folder.show("")
    }
}

/// Opens a repository of this host, with the user's key if it is encrypted.
///
/// # Errors
///
/// Where it is none, the key cannot be read, or is none of its recipients'.
pub fn open_repository(path: &Path, key_file: Option<&Path>) -> Result<Repository> {
    let opening = BackupError::folder("opening", &path.display().to_string());
    let places = HostPlaces::open(path, MODE).map_err(opening)?;
    let identities: Vec<Identity> = key_file.map(read_identity).transpose()?.into_iter().collect();
    let cache = cache_of(places.path());
    let repository = Repository::open(Arc::new(places), cache, &identities)?;
    // Somebody may have put another marker in its place.
    if key_file.is_some() && !repository.marker().encrypted {
        return Err(BackupError::Refused(format!(
            "{} is not encrypted, and a key was given: leave that away, or see whether its repository.json was replaced",
            path.display()
        )));
    }
    Ok(repository)
}

/// Reads the secret key of a file.
///
/// # Errors
///
/// Where it cannot be read, or holds none.
pub fn read_identity(file: &Path) -> Result<Identity> {
    let shown = file.display();
    let reading = BackupError::folder("reading the key file", &shown.to_string());
    let text = zeroize::Zeroizing::new(small_file::read_text(file, KEY_FILE_MAX).map_err(reading)?);
    Identity::parse(&text).map_err(|what| BackupError::Refused(format!("the key file {shown}: {what}")))
}

/// A folder of this user for copies of a repository's indexes; `None` where there is no place for it.
fn cache_of(repository: &Path) -> Option<Arc<dyn Folder>> {
    // systemd gives a service its own; otherwise the XDG base directories.
    let own = env::var_os("CACHE_DIRECTORY").or_else(|| env::var_os("XDG_CACHE_HOME")).map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let place = own.or_else(home).filter(|place| place.is_absolute())?;
    // One name for a path, of any length and with any characters.
    let name = blake3::hash(repository.as_os_str().as_encoded_bytes()).to_hex();
    let place = place.join("lunway").join("repository").join(&name[..16]);
    fs::create_dir_all(&place).ok()?;
    Some(Arc::new(HostFolder::open(&place).ok()?.with_mode(MODE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Places;

    #[test]
    fn a_path_is_a_folder_a_repository_or_a_series_of_one() {
        let place = tempfile::tempdir().unwrap();
        let (repository, chain) = (place.path().join("repo"), place.path().join("chain"));
        fs::create_dir(&repository).unwrap();
        fs::create_dir(&chain).unwrap();
        let places = HostPlaces::open(&repository, MODE).unwrap();
        Repository::create(&places, &[]).unwrap();
        assert_eq!(locate(&chain).unwrap(), Located::Elsewhere);
        assert_eq!(locate(&place.path().join("none/there")).unwrap(), Located::Elsewhere);
        assert_eq!(locate(&repository).unwrap(), Located::Repository(repository.clone()));
        let series = |name: &str| Located::Series { repository: repository.clone(), name: name.to_owned() };
        assert_eq!(locate(&repository.join("disk")).unwrap(), series("disk"));
        assert!(locate(&repository.join("pack-1")).is_err(), "files of ours");
        // One marker is enough to be known by.
        fs::remove_file(repository.join("repository.json")).unwrap();
        assert_eq!(locate(&repository.join("disk")).unwrap(), series("disk"));
        let absent = Series::open(&repository, "disk", None, false).map(drop).unwrap_err().to_string();
        assert!(absent.contains("has no series disk, none yet"), "{absent}");
        Series::open(&repository, "disk", None, true).unwrap();
        assert_eq!(places.series().unwrap(), ["disk"]);
    }

    #[test]
    fn a_key_file_is_named_in_what_is_said_of_it() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("key");
        let said = |file: &Path| read_identity(file).map(drop).unwrap_err().to_string();
        assert!(said(&file).contains("key file"), "{}", said(&file));
        fs::write(&file, "no key\n").unwrap();
        assert!(said(&file).contains("LUNWAY-SECRET-KEY-"), "{}", said(&file));
        let identity = Identity::generate().unwrap();
        fs::write(&file, format!("# mine\n{}\n", *identity.to_text())).unwrap();
        assert_eq!(read_identity(&file).unwrap().recipient(), identity.recipient());
    }
}
