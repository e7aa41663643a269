//! Repositories as this host sees them: what a path or an address means, the user's key, and copies of indexes.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lunway_backup::{BackupError, Folder, Holder, HostFolder, Result, both};
use lunway_block::small_file;
use lunway_block::spec::is_store_address;
use lunway_object::{Address, Settings};
use zeroize::Zeroizing;

use crate::keys::{Identity, Recipient};
use crate::marker::{MARKER, MARKER_COPY, Marker};
use crate::object_places::ObjectPlaces;
use crate::pin::{Pins, make_private};
use crate::places::{HostPlaces, Places, is_series_name};
use crate::random::new_number;
use crate::repository::{Kept, Repository, is_repository};
use crate::series::Series;

/// Most bytes of a file with a key: one line, and comments.
const KEY_FILE_MAX: u64 = 64 << 10;
/// Permissions of files: the points of all disks lie in the same packs, so that none may be read by those who may read
/// one disk alone.
const PRIVATE: u32 = 0o600;
/// The same where a group shares the repository.
const SHARED: u32 = 0o660;
const GROUP_READS: u32 = 0o040;
/// Permission of a folder in which only the owner of a file removes it.
const STICKY: u32 = 0o1000;
/// Permissions of others than the owner, with which ssh refuses a key.
const OTHERS: u32 = 0o077;

/// What a path, or an address of an object store, means to which points are backed up.
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

/// The address that a path is; `None`: it is one of this host.
fn address_of(path: &Path) -> Result<Option<Address>> {
    if !is_store_address(path) {
        return Ok(None);
    }
    let address = Address::parse(&path.to_string_lossy());
    address.map(Some).map_err(|error| BackupError::Refused(error.to_string()))
}

fn object_places(address: &Address) -> Result<ObjectPlaces> {
    let opened = Settings::of_environment().map_err(io::Error::from);
    let opened = opened.and_then(|settings| ObjectPlaces::open(address, &settings));
    opened.map_err(BackupError::folder("opening", &address.to_string()))
}

/// Path or address of a series, for people and for what takes one.
pub fn series_path(repository: &Path, name: &str) -> PathBuf {
    match address_of(repository) {
        Ok(Some(address)) => address.child(name).to_string().into(),
        _ => repository.join(name),
    }
}

/// Opens the folder of a series in an object store, or a folder of this host with points, without a look at what it
/// holds.
///
/// # Errors
///
/// Where the folder is not there, or the store cannot be used.
pub fn open_points_folder(path: &Path) -> Result<Arc<dyn Folder>> {
    let opening = || BackupError::folder("opening", &path.display().to_string());
    match address_of(path)?.as_ref().and_then(Address::parent) {
        Some((repository, name)) => object_places(&repository)?.begin_series(name).map_err(opening()),
        None => Ok(Arc::new(HostFolder::open(path).map_err(opening())?)),
    }
}

/// Says what an address means.
fn locate_address(address: &Address) -> Result<Located> {
    let holds = |address: &Address| {
        let places = object_places(address)?;
        let reading = BackupError::folder("reading", &address.to_string());
        let holds = is_repository(&*places.packs()).map_err(reading)?;
        let pins = if holds { None } else { Pins::of(&places.whole_name()) };
        pins.map_or(Ok(holds), |pins| pins.refuse_without().map(|()| holds))
    };
    if holds(address)? {
        return Ok(Located::Repository(address.to_string().into()));
    }
    match address.parent() {
        Some((repository, name)) if is_series_name(name) && holds(&repository)? => {
            Ok(Located::Series { repository: repository.to_string().into(), name: name.to_owned() })
        }
        _ => Err(BackupError::Refused(format!(
            "{address} is neither a repository nor a series of one: `lunway backup init` makes a repository; an object \
             store holds no folders of VHDX files"
        ))),
    }
}

/// Says what a path or an address means. A folder of this host that cannot be opened is none of ours: those who need it
/// say why.
///
/// # Errors
///
/// Where a marker can neither be read nor is known not to be there, a folder in a repository has a name that no series
/// can have, this user has seen a repository where there is none now, or an address is no repository's.
pub fn locate(path: &Path) -> Result<Located> {
    if let Some(address) = address_of(path)? {
        return locate_address(&address);
    }
    let parent =
        path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    // At once: on a share each look is some round trips.
    let (above, here) = both(|| parent.map_or(Ok(false), holds_repository), || holds_repository(path));
    if here? {
        return Ok(Located::Repository(path.to_owned()));
    }
    refuse_without(path)?;
    let Some(parent) = parent else { return Ok(Located::Elsewhere) };
    if !above? {
        refuse_without(parent)?;
        return Ok(Located::Elsewhere);
    }
    match path.file_name().and_then(|name| name.to_str()).filter(|name| is_series_name(name)) {
        Some(name) => Ok(Located::Series { repository: parent.to_owned(), name: name.to_owned() }),
        None => Err(BackupError::Refused(format!(
            "{} cannot be the name of a series in a repository: choose another, without @, ? and control characters",
            path.display()
        ))),
    }
}

/// Refuses the place of a repository that is gone: what comes there must not be written in the clear.
fn refuse_without(path: &Path) -> Result<()> {
    let whole = path.canonicalize().or_else(|_| std::path::absolute(path));
    let pins = whole.ok().and_then(|whole| pins_of(path, &whole));
    pins.map_or(Ok(()), |pins| pins.refuse_without())
}

/// What this user has seen at a path, which leads to `whole`: there, and under the names that lead there, as somebody
/// could put a link in the place of a folder.
fn pins_of(path: &Path, whole: &Path) -> Option<Pins> {
    let given: Option<PathBuf> = std::path::absolute(path).ok().map(|path| path.components().collect());
    // Given with .., or from a working folder with links, it is another name for the same link.
    let beside = given.as_ref().and_then(|given| {
        let folder = given.parent()?.canonicalize().ok()?;
        Some(folder.join(given.file_name()?))
    });
    let names: BTreeSet<String> =
        given.iter().chain(&beside).map(|name| name.display().to_string()).collect();
    Some(Pins::of(&whole.display().to_string())?.found_through(names))
}

fn holds_repository(path: &Path) -> Result<bool> {
    let Ok(folder) = HostFolder::open(path) else { return Ok(false) };
    is_repository(&folder).map_err(BackupError::folder("reading", &path.display().to_string()))
}

/// Makes a repository in an empty folder of this host or of an object store, as [`Repository::create`] says.
///
/// # Errors
///
/// Where the folder does not exist, or holds something; where another process makes one there; where the store cannot
/// be used.
pub fn create_repository(path: &Path, recipients: &[Recipient]) -> Result<Marker> {
    let us = Holder::this_process(new_number()?);
    if let Some(address) = address_of(path)? {
        let places = object_places(&address)?;
        return Repository::create(&places, Pins::of(&places.whole_name()).as_ref(), recipients, &us);
    }
    let places = places_of(path)?;
    let pins = pins_of(path, places.path());
    Repository::create(&places, pins.as_ref(), recipients, &us)
}

/// Opens a series of a repository; `is_begun`: one that is not there is made.
///
/// # Errors
///
/// Where it is not there, or its repository cannot be opened with this key.
pub fn open_series(path: &Path, name: &str, key_file: Option<&Path>, is_begun: bool) -> Result<Series> {
    Series::of(open_repository(path, key_file)?, name, is_begun)
}

/// Opens a repository of this host or of an object store, with the user's key if it is encrypted.
///
/// # Errors
///
/// Where it is none, the key cannot be read, is none of its recipients', or is not needed; where it is another one than
/// this user has seen there.
pub fn open_repository(path: &Path, key_file: Option<&Path>) -> Result<Repository> {
    if let Some(address) = address_of(path)? {
        let places = object_places(&address)?;
        let name = places.whole_name();
        return open_places(Arc::new(places), &name, key_file);
    }
    let places = places_of(path)?;
    let (address, pins) = (places.path().display().to_string(), pins_of(path, places.path()));
    let sticky = sticky(places.path());
    let mut repository = open_kept(Arc::new(places), Kept { cache: cache_of(&address), pins }, key_file)?;
    repository.warnings.extend(sticky);
    Ok(repository)
}

/// The folders of a repository of this host. New files may be read and written by those who may read its marker, as far
/// as the umask allows; in a folder that a group shares, by all of its members.
fn places_of(path: &Path) -> Result<HostPlaces> {
    let opening = || BackupError::folder("opening", &path.display().to_string());
    let mode = |name: &str| Some(fs::metadata(path.join(name)).ok()?.permissions().mode());
    let marker = mode(MARKER).or_else(|| mode(MARKER_COPY)).unwrap_or(PRIVATE);
    // Members of a group write beside each other: leases of processes that were killed are locked by others.
    let is_shared = HostFolder::open(path).map_err(opening())?.is_shared() || marker & GROUP_READS != 0;
    HostPlaces::open(path, if is_shared { SHARED } else { PRIVATE }).map_err(opening())
}

/// The same of one anywhere, which this machine knows by its address.
///
/// # Errors
///
/// As of [`open_repository`].
pub fn open_places(places: Arc<dyn Places>, address: &str, key_file: Option<&Path>) -> Result<Repository> {
    open_kept(places, Kept { cache: cache_of(address), pins: Pins::of(address) }, key_file)
}

fn open_kept(places: Arc<dyn Places>, kept: Kept, key_file: Option<&Path>) -> Result<Repository> {
    let identities: Vec<Identity> = key_file.map(read_identity).transpose()?.into_iter().collect();
    let has_pins = kept.pins.is_some();
    let mut repository = Repository::open(places, kept, &identities)?;
    if let Some(file) = key_file.filter(|_| !repository.marker().encrypted) {
        return Err(BackupError::Refused(format!(
            "{} is not encrypted, and the key {} was given: leave that away, or see whether its repository.json was replaced",
            repository.show(),
            file.display()
        )));
    }
    if !has_pins {
        repository.warnings.push(format!(
            "another repository in the place of {} would not be noticed: there is no folder for state (XDG_STATE_HOME, \
             HOME)",
            repository.show()
        ));
    }
    repository.warnings.extend(key_file.and_then(warning_of));
    Ok(repository)
}

/// Reads the secret key of a file.
///
/// # Errors
///
/// Where it cannot be read, or holds none.
pub fn read_identity(file: &Path) -> Result<Identity> {
    let shown = file.display();
    let wrong = |what: String| BackupError::Refused(format!("the key file {shown}: {what}"));
    let text = small_file::read_text(file, KEY_FILE_MAX).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => {
            wrong(format!("{error}, and a key is one line: name the file of the key"))
        }
        _ => wrong(error.to_string()),
    })?;
    Identity::parse(&Zeroizing::new(text)).map_err(wrong)
}

/// A sentence about a folder that a group shares and in which its members cannot replace each other's files.
fn sticky(path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    let shown = path.display();
    let is_shared = HostFolder::open(path).ok()?.is_shared();
    (is_shared && mode & STICKY != 0).then(|| {
        format!(
            "{shown} is shared by a group and has the sticky bit: runs and prunes of its members cannot replace or remove \
             each other's files (\"Operation not permitted\"): `chmod -R -t {shown}`"
        )
    })
}

/// A sentence about a key file that others may read.
fn warning_of(file: &Path) -> Option<String> {
    let mode = fs::metadata(file).ok()?.permissions().mode();
    let shown = file.display();
    (mode & OTHERS != 0)
        .then(|| format!("other users of this machine may use the key file {shown}: `chmod 600 {shown}`"))
}

/// A folder of this user for copies of a repository's indexes; `None` where there is no place for it.
fn cache_of(address: &str) -> Option<Arc<dyn Folder>> {
    // systemd gives a service its own; otherwise the XDG base directories.
    let own = env::var_os("CACHE_DIRECTORY").or_else(|| env::var_os("XDG_CACHE_HOME")).map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let place = own.or_else(home).filter(|place| place.is_absolute())?;
    // One name for an address, of any length and with any characters.
    let name = blake3::hash(address.as_bytes()).to_hex();
    let own = place.join("lunway");
    let place = own.join("repository").join(&name[..16]);
    for folder in [&place, &own.join("repository"), &own] {
        make_private(folder).ok()?;
    }
    Some(Arc::new(HostFolder::open(&place).ok()?.with_mode(PRIVATE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_folder_a_repository_or_a_series_of_one() {
        let place = tempfile::tempdir().unwrap();
        let (repository, chain) = (place.path().join("repo"), place.path().join("chain"));
        fs::create_dir(&repository).unwrap();
        fs::create_dir(&chain).unwrap();
        create_repository(&repository, &[]).unwrap();
        assert_eq!(locate(&chain).unwrap(), Located::Elsewhere);
        assert_eq!(locate(&place.path().join("none/there")).unwrap(), Located::Elsewhere);
        assert_eq!(locate(&repository).unwrap(), Located::Repository(repository.clone()));
        let series = |name: &str| Located::Series { repository: repository.clone(), name: name.to_owned() };
        assert_eq!(locate(&repository.join("disk")).unwrap(), series("disk"));
        for wrong in ["pack-1", "a@b", "a?b", "a\nb"] {
            assert!(locate(&repository.join(wrong)).is_err(), "{wrong:?}");
        }
        // One marker is enough to be known by.
        fs::remove_file(repository.join("repository.json")).unwrap();
        assert_eq!(locate(&repository.join("disk")).unwrap(), series("disk"));
        let absent = open_series(&repository, "disk", None, false).map(drop).unwrap_err().to_string();
        assert!(absent.contains("has no series disk, none yet"), "{absent}");
        let opened = open_series(&repository, "disk", None, true).unwrap();
        assert_eq!(opened.repository.places().series().unwrap(), ["disk"]);
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
    #[test]
    fn a_key_file_that_is_too_large_or_that_others_may_read_is_told_in_its_own_words() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("key");
        fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
        let said = read_identity(&file).map(drop).unwrap_err().to_string();
        assert!(said.contains("more than 64 KiB") && !said.contains("full"), "{said}");
        for (mode, is_told) in [(0o600, false), (0o400, false), (0o644, true), (0o640, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(warning_of(&file).is_some(), is_told, "{mode:o}");
        }
    }

    #[test]
    fn a_shared_folder_in_which_members_cannot_replace_files_of_others_is_told() {
        let place = tempfile::tempdir().unwrap();
        for (mode, is_told) in [(0o2770, false), (0o3770, true), (0o1700, false)] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            let said = sticky(place.path());
            assert_eq!(said.is_some(), is_told, "{mode:o}: {said:?}");
        }
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn files_of_a_repository_are_for_those_who_may_read_its_marker() {
        let place = tempfile::tempdir().unwrap();
        create_repository(place.path(), &[]).unwrap();
        for (mode, expected) in [(0o600, 0o600), (0o640, 0o660), (0o660, 0o660)] {
            let marker = place.path().join(MARKER);
            fs::set_permissions(&marker, fs::Permissions::from_mode(mode)).unwrap();
            let places = places_of(place.path()).unwrap();
            places.packs().create("pack-test").unwrap();
            let made = place.path().join("pack-test");
            let found = fs::metadata(&made).unwrap().permissions().mode() & 0o777;
            // The umask takes the writing of others away.
            assert!([expected, expected & !0o022].contains(&found), "{mode:o}: {found:o}");
            fs::remove_file(&made).unwrap();
        }
    }
}
