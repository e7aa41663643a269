//! Pins: which repositories this user has seen at an address, as ssh knows hosts.
//!
//! A person who can write to a share can put another repository in the place of one, or none: the next run would write
//! for other people, or in the clear. So what was seen first is kept in the user's state, and what is something else
//! later is refused until the user removes that file. Several repositories are known at an address where this user has
//! made several, as on disks that are changed by turns.
//!
//! A path is known by all of its names: as it was given, and as its links lead on. Through each of them only what was
//! seen there is used; what is known of series is kept under the name that the links lead to.
//!
//! ```text
//!   repositories/ADDRESS.json             what was seen at an address, by a hash of it
//!   repositories/ADDRESS-REPOSITORY.json  the marker of a repository as it was written with its key: the way back
//!                                         where somebody has changed it
//!   repositories/lock                     held while one of these files is replaced
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lunway_backup::{BackupError, Folder, HostFolder, PointId, Result, seal, unseal};
use lunway_block::small_file;

use crate::codec::MasterKey;
use crate::marker::{MARKER_MAX, Marker};
use crate::seen::{Pin, Seen, SeenSeries};

/// Most bytes of such a file: 64 repositories with 10,000 series each.
const PINS_MAX: u64 = 32 << 20;
/// Permissions of what is kept: others are not told what this user backs up, and where.
const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// The file that a process locks while it replaces another one.
const LOCK: &str = "lock";

/// What one user has seen at an address.
#[derive(Clone, Debug)]
pub struct Pins {
    /// The user's own folder of this program, if that is not a service's, whose manager says who may read it.
    own: Option<PathBuf>,
    file: PathBuf,
    address: String,
    /// The same under other names that lead to the address.
    names: Vec<Self>,
}

/// The folder for what a user's programs keep: that of a systemd service (`STATE_DIRECTORY`, systemd.exec(5)), else as
/// the XDG Base Directory Specification says; and whether it is the user's own.
fn state_folder() -> Option<(PathBuf, bool)> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    // Several are separated by colons; the units that are shipped ask for one.
    let given = env::var_os("STATE_DIRECTORY").and_then(|folders| env::split_paths(&folders).next());
    let own = || folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    let given = given.filter(|folder| folder.is_absolute()).map(|folder| (folder, false));
    given.or_else(|| Some((own()?.join("lunway"), true)))
}

impl Pins {
    /// What this user has seen at an address; `None`: there is no place where it could be kept.
    pub fn of(address: &str) -> Option<Self> {
        let (state, is_own) = state_folder()?;
        let pins = Self::within(&state, address);
        Some(Self { own: is_own.then_some(state), ..pins })
    }

    /// The same in a folder for state.
    pub fn within(state: &Path, address: &str) -> Self {
        // One name for an address, of any length and with any characters.
        let name = blake3::hash(address.as_bytes()).to_hex();
        let file = state.join("repositories").join(format!("{}.json", &name[..16]));
        Self { own: None, file, address: address.to_owned(), names: Vec::new() }
    }

    /// The same of an address that other names lead to: what is found through them must have been seen there as well.
    pub fn found_through(self, names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().filter(|name| *name != self.address);
        let names = names.map(|name| self.beside(&name)).collect();
        Self { names, ..self }
    }

    /// What was seen at another address.
    fn beside(&self, address: &str) -> Self {
        let state = self.file.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        Self { own: self.own.clone(), ..Self::within(state, address) }
    }

    /// Under each name.
    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.names)
    }

    fn load(&self) -> Result<Seen> {
        let shown = self.file.display();
        let wrong = |what: String| {
            BackupError::Refused(format!("{shown} says which repositories were seen, and {what}"))
        };
        match small_file::read_text(&self.file, PINS_MAX) {
            Ok(text) => {
                serde_json::from_str(&text).map_err(|_| wrong("is not what was written: remove it".into()))
            }
            // Nothing can be kept there either, which `remember` says.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Ok(Seen::default())
            }
            Err(error) => Err(wrong(format!("cannot be read: {error}"))),
        }
    }

    /// Refuses an address at which a repository was seen, and none is now.
    pub(crate) fn refuse_without(&self) -> Result<()> {
        for pins in self.all() {
            if pins.load()?.repositories.is_empty() {
                continue;
            }
            let (address, file) = (&pins.address, pins.file.display());
            return Err(BackupError::Refused(format!(
                "{address} was a repository when this user last used it, and has no repository.json now{}: see that its \
                 share is mounted; if it is to be something else, remove {file}",
                self.way_back()
            )));
        }
        Ok(())
    }

    /// Refuses another repository than those that were seen.
    pub(crate) fn check(&self, marker: &Marker, master: Option<&MasterKey>) -> Result<()> {
        let found = Pin::of(marker, master);
        self.all().try_for_each(|pins| self.check_under(pins, &found))
    }

    /// The same under one name.
    fn check_under(&self, pins: &Self, found: &Pin) -> Result<()> {
        let seen = pins.load()?;
        let (address, file) = (&pins.address, pins.file.display());
        let leads = match *address == self.address {
            true => String::new(),
            false => format!(" (it leads to {}: give that path if it is meant)", self.address),
        };
        let refused = |what: String| {
            let advice = format!(
                "if it was made anew, remove {file}; otherwise somebody has replaced its repository.json{}",
                self.way_back()
            );
            Err(BackupError::Refused(format!("{address} {what}{leads}: {advice}")))
        };
        match seen.find(found) {
            None if seen.repositories.is_empty() => Ok(()),
            Some(known) if !known.sealed || found.sealed => Ok(()),
            Some(_) => {
                refused("has a repository.json that was not written with its key, as it was before".into())
            }
            None if found.key.is_none() && seen.repositories.iter().all(|pin| pin.key.is_some()) => {
                refused("is not encrypted, and was when this user last used it".into())
            }
            None => refused("is another repository than this user has used there".into()),
        }
    }

    /// Remembers a repository, and keeps its marker, which only its key can have made.
    ///
    /// # Errors
    ///
    /// Where it cannot be kept.
    pub(crate) fn remember(&self, marker: &Marker, master: Option<&MasterKey>) -> Result<()> {
        let found = Pin::of(marker, master);
        if !self.unknown(&found)?.is_empty() {
            let _lock = self.lock()?;
            for (pins, seen) in self.unknown(&found)? {
                pins.store(&seen)?;
            }
        }
        match self.kept_file(&marker.repository).filter(|_| marker.is_sealed() || !marker.encrypted) {
            Some(file) if read_marker(&file).as_ref() != Some(marker) => {
                let _lock = self.lock()?;
                self.replace(&file, &seal(marker))
            }
            _ => Ok(()),
        }
    }

    /// Files that do not know this yet, and what they are to have. Where a name has come to lead here, what was known
    /// of series through it is known here from then on, which is written first.
    fn unknown(&self, found: &Pin) -> Result<Vec<(&Self, Seen)>> {
        let mut here = found.clone();
        let mut files = Vec::new();
        for pins in self.all() {
            let seen = pins.load()?;
            if let Some(other) = seen.leads_to.as_ref().filter(|other| **other != self.address)
                && let Some(pin) = self.beside(other).load()?.find(found)
            {
                here.take_over(pin);
            }
            if let Some(pin) = seen.find(found) {
                here.take_over(pin);
            }
            files.push((pins, seen));
        }
        let changed = files.into_iter().enumerate().filter_map(|(number, (pins, seen))| {
            let mut now = seen.clone();
            if number == 0 {
                now.leads_to = None;
                now.add(here.clone());
            } else {
                now.leads_to = Some(self.address.clone());
                now.repositories
                    .iter_mut()
                    .filter(|pin| pin.is_same(found))
                    .for_each(|pin| *pin = pin.bare());
                now.add(here.bare());
            }
            (now != seen).then_some((pins, now))
        });
        Ok(changed.collect())
    }

    /// Keeps other processes of the user from replacing these files.
    fn lock(&self) -> Result<File> {
        let place = self.file.parent().unwrap_or(Path::new("/"));
        let path = place.join(LOCK);
        let shown = path.display().to_string();
        let writing = || keeping(&shown);
        make_private(place).map_err(writing())?;
        let mut options = File::options();
        options.create(true).truncate(false).write(true).mode(PRIVATE_FILE);
        let file = options.open(&path).map_err(writing())?;
        // A file system without locks is one on which runs at the same time may forget each other's points.
        while file.lock().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
        Ok(file)
    }

    /// The file with the marker of a repository.
    pub(crate) fn kept_file(&self, repository: &str) -> Option<PathBuf> {
        let is_id = repository.len() == 16 && repository.bytes().all(|byte| byte.is_ascii_hexdigit());
        let stem = self.file.file_stem()?.to_str()?;
        is_id.then(|| self.file.with_file_name(format!("{stem}-{repository}.json")))
    }

    /// Markers that are kept, of the repository that was found last first, with their files; of each the newest.
    pub(crate) fn markers(&self) -> Result<Vec<(PathBuf, Marker)>> {
        let mut markers: Vec<(PathBuf, Marker)> = Vec::new();
        for pins in self.all() {
            let seen = pins.load()?;
            let other = seen.leads_to.as_ref().filter(|other| **other != self.address);
            let other = other.map(|other| self.beside(other));
            for pin in seen.repositories.iter().rev() {
                let files = other.iter().chain([pins]).filter_map(|pins| pins.kept_file(&pin.repository));
                for (file, marker) in files.filter_map(|file| read_marker(&file).map(|marker| (file, marker)))
                {
                    match markers.iter_mut().find(|(_, known)| known.repository == marker.repository) {
                        None => markers.push((file, marker)),
                        Some(known) if known.1.revision < marker.revision => *known = (file, marker),
                        Some(_) => {}
                    }
                }
            }
        }
        Ok(markers)
    }

    /// The end of a sentence about a marker that is gone or was replaced.
    pub(crate) fn way_back(&self) -> String {
        let files = self.markers().unwrap_or_default();
        let files: Vec<String> = files.iter().map(|(file, _)| file.display().to_string()).collect();
        match files.is_empty() {
            true => String::new(),
            false => format!(" (as this user knows it, it is in {})", files.join(", ")),
        }
    }

    /// What was seen of each series of a repository.
    pub(crate) fn all_series(
        &self,
        of: (&Marker, Option<&MasterKey>),
    ) -> Result<BTreeMap<String, SeenSeries>> {
        let seen = self.load()?;
        let all = seen.find(&Pin::of(of.0, of.1)).map(|pin| {
            pin.series.iter().map(|(series, generation)| {
                let (newest, begun) = (pin.newest.get(series).copied(), pin.begun.get(series).copied());
                (series.clone(), SeenSeries { generation: *generation, newest, begun })
            })
        });
        Ok(all.into_iter().flatten().collect())
    }

    /// What was seen of each series of a repository when it was listed, beside those that this user has made points in.
    pub(crate) fn listed(&self, of: (&Marker, Option<&MasterKey>)) -> Result<BTreeMap<String, SeenSeries>> {
        let seen = self.load()?;
        let pin = seen.find(&Pin::of(of.0, of.1));
        let listed = pin
            .iter()
            .flat_map(|pin| pin.listed.iter().filter(move |(series, _)| !pin.series.contains_key(*series)));
        Ok(listed.map(|(series, seen)| (series.clone(), *seen)).collect())
    }

    /// Remembers series that were listed.
    ///
    /// # Errors
    ///
    /// Where they cannot be kept.
    pub(crate) fn remember_listed(
        &self,
        of: (&Marker, Option<&MasterKey>),
        listed: &[(&str, SeenSeries)],
    ) -> Result<()> {
        self.change(of, &|pin| {
            let was = pin.listed.clone();
            pin.list(listed.iter().copied());
            pin.listed != was
        })
    }

    /// What was seen of one.
    pub(crate) fn series(
        &self,
        of: (&Marker, Option<&MasterKey>),
        series: &str,
    ) -> Result<Option<SeenSeries>> {
        Ok(self.all_series(of)?.remove(series))
    }

    /// Remembers the newest point of a series. Of names that it had before, what was seen is forgotten where `is_own`
    /// says that it was this series.
    ///
    /// # Errors
    ///
    /// Where it cannot be kept.
    pub(crate) fn remember_series(
        &self,
        of: (&Marker, Option<&MasterKey>),
        series: &str,
        now: SeenSeries,
        before: (&BTreeSet<String>, &dyn Fn(PointId) -> bool),
    ) -> Result<()> {
        let (names, is_own) = before;
        self.change(of, &|pin| {
            let was = pin.clone();
            for name in names {
                if pin.newest.get(name).is_none_or(|newest| is_own(*newest)) {
                    pin.forget(name);
                }
            }
            pin.forget(series);
            pin.series.insert(series.to_owned(), now.generation);
            pin.newest.extend(now.newest.map(|newest| (series.to_owned(), newest)));
            pin.begun.extend(now.begun.map(|begun| (series.to_owned(), begun)));
            *pin != was
        })
    }

    /// Forgets a series that this user has removed.
    ///
    /// # Errors
    ///
    /// Where that cannot be kept.
    pub(crate) fn forget_series(&self, of: (&Marker, Option<&MasterKey>), series: &str) -> Result<()> {
        self.change(of, &|pin| pin.forget(series))
    }

    /// Changes what is known of a repository; `change` returns `true` if it did.
    fn change(&self, of: (&Marker, Option<&MasterKey>), change: &dyn Fn(&mut Pin) -> bool) -> Result<()> {
        let found = Pin::of(of.0, of.1);
        let changed = || {
            let mut seen = self.load()?;
            let known = seen.repositories.iter_mut().find(|pin| pin.is_same(&found));
            Ok(known.is_some_and(change).then_some(seen))
        };
        if changed()?.is_none() {
            return Ok(());
        }
        let _lock = self.lock()?;
        changed()?.map_or(Ok(()), |seen| self.store(&seen))
    }

    fn store(&self, seen: &Seen) -> Result<()> {
        let seen = Seen { address: self.address.clone(), ..seen.clone() };
        let shown = self.file.display().to_string();
        let text = serde_json::to_vec_pretty(&seen).map_err(io::Error::other);
        self.replace(&self.file, &text.map_err(keeping(&shown))?)
    }

    /// Replaces a file whole. What is kept is the user's alone.
    fn replace(&self, file: &Path, bytes: &[u8]) -> Result<()> {
        let shown = file.display().to_string();
        let writing = || keeping(&shown);
        let (Some(place), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str()))
        else {
            return Err(BackupError::Lost);
        };
        make_private(place).map_err(writing())?;
        if let Some(own) = &self.own {
            make_private(own).map_err(writing())?;
        }
        let folder = HostFolder::open(place).map_err(writing())?.with_mode(0);
        // Other processes of the user may do the same.
        let unfinished = format!("{name}.{}", std::process::id());
        folder.remove(&unfinished).map_err(writing())?;
        let file = folder.create(&unfinished).map_err(writing())?;
        file.write_at(0, bytes).map_err(writing())?;
        file.flush().map_err(writing())?;
        folder.rename(&unfinished, name).map_err(writing())?;
        folder.sync().map_err(writing())
    }
}

/// For a file of what is kept: a full home is not a full destination.
fn keeping(file: &str) -> impl FnOnce(io::Error) -> BackupError + use<> {
    let writing = BackupError::folder("writing", file);
    move |error| match writing(error) {
        BackupError::Full { name } => BackupError::Refused(format!(
            "no room is left for {name}, by which this user knows the repository again: free space there"
        )),
        error => error,
    }
}

/// Makes a folder for its owner alone, also one that is there already and is the user's.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(folder, fs::Permissions::from_mode(mode & !0o077)) {
        // It is somebody else's, or its file system has no modes.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        set => set,
    }
}

fn read_marker(file: &Path) -> Option<Marker> {
    let text = small_file::read_text(file, MARKER_MAX).ok()?;
    unseal(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::keys::{Identity, WrappedKey};

    fn made(id: u8, master: Option<&MasterKey>) -> Marker {
        let recipient = Identity::generate().unwrap().recipient();
        let keys = master.map(|master| WrappedKey::wrap(master, &recipient).unwrap()).into_iter().collect();
        let marker = Marker::new(format!("{id:016x}"), keys);
        master.map_or(marker.clone(), |master| marker.sealed(&Codec::encrypted(master)))
    }

    #[test]
    fn what_was_seen_is_known_again_and_what_is_put_in_its_place_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let pins = Pins::within(place.path(), "/mnt/share/repo");
        let other = Pins::within(place.path(), "/mnt/share/other");
        let (master, foreign) = (MasterKey::new([1; 32]), MasterKey::new([2; 32]));
        let marker = made(1, Some(&master));
        pins.refuse_without().unwrap();
        pins.check(&marker, Some(&master)).unwrap();
        pins.remember(&marker, Some(&master)).unwrap();
        pins.check(&marker, Some(&master)).unwrap();
        // Another recipient: the same repository.
        pins.check(&made(1, Some(&master)), Some(&master)).unwrap();
        let stripped = Marker::new(marker.repository.clone(), marker.keys.clone());
        for (marker, master, expected) in [
            (made(1, Some(&foreign)), Some(&foreign), "is another repository"),
            (made(9, Some(&master)), Some(&master), "is another repository"),
            (made(1, None), None, "is not encrypted, and was"),
            (stripped, Some(&master), "was not written with its key"),
        ] {
            let said = pins.check(&marker, master).unwrap_err().to_string();
            assert!(
                said.contains(expected) && said.contains(".json") && said.contains("/mnt/share/repo"),
                "{said}"
            );
            other.check(&marker, master).unwrap();
        }
        let said = pins.refuse_without().unwrap_err().to_string();
        assert!(said.contains("was a repository") && said.contains(place.path().to_str().unwrap()), "{said}");
        // A second disk that is changed by turns with the first one.
        let second = made(2, None);
        pins.remember(&second, None).unwrap();
        pins.check(&second, None).unwrap();
        pins.check(&marker, Some(&master)).unwrap();
        pins.check(&made(3, None), None).unwrap_err();
    }

    #[test]
    fn a_marker_that_is_authenticated_once_has_to_be_from_then_on_and_series_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let pins = Pins::within(place.path(), "a");
        let master = MasterKey::new([1; 32]);
        let sealed = made(1, Some(&master));
        let old = Marker::new(sealed.repository.clone(), sealed.keys.clone());
        let of = |marker| (marker, Some(&master));
        pins.remember(&old, Some(&master)).unwrap();
        pins.check(&old, Some(&master)).unwrap();
        let none = BTreeSet::new();
        let seen = |generation, point| SeenSeries {
            generation,
            newest: Some(PointId(point)),
            begun: Some(PointId(1)),
        };
        let note = |marker, name: &str, seen, before: &BTreeSet<String>| {
            pins.remember_series(of(marker), name, seen, (before, &|point| point == PointId(60))).unwrap();
        };
        assert_eq!(pins.series(of(&old), "one").unwrap(), None);
        note(&old, "one", seen(7, 70), &none);
        pins.check(&sealed, Some(&master)).unwrap();
        pins.remember(&sealed, Some(&master)).unwrap();
        pins.check(&old, Some(&master)).unwrap_err();
        assert_eq!(pins.series(of(&sealed), "one").unwrap(), Some(seen(7, 70)));
        note(&sealed, "one", seen(6, 60), &none);
        assert_eq!(pins.series(of(&sealed), "one").unwrap(), Some(seen(6, 60)));
        // Renamed: what was seen under the old name was this series.
        note(&sealed, "other", seen(3, 30), &none);
        note(&sealed, "new", seen(8, 80), &BTreeSet::from(["one".to_owned(), "other".to_owned()]));
        assert_eq!(pins.series(of(&sealed), "one").unwrap(), None);
        assert_eq!(pins.series(of(&sealed), "other").unwrap(), Some(seen(3, 30)), "another one");
        pins.forget_series(of(&sealed), "new").unwrap();
        assert_eq!(pins.series(of(&sealed), "new").unwrap(), None);
    }

    #[test]
    fn what_a_name_leads_to_must_have_been_seen_there_and_what_is_known_of_series_goes_along() {
        let place = tempfile::tempdir().unwrap();
        let pins = |address: &str| Pins::within(place.path(), address);
        let through = |address: &str| pins(address).found_through(["/link".to_owned()]);
        let (master, foreign) = (MasterKey::new([1; 32]), MasterKey::new([2; 32]));
        let (marker, other) = (made(1, Some(&master)), made(1, Some(&foreign)));
        let (of, none) = ((&marker, Some(&master)), BTreeSet::new());
        let seen = |number| SeenSeries { generation: number, newest: Some(PointId(number)), begun: None };
        let note = |pins: &Pins, number| {
            pins.remember(of.0, of.1).unwrap();
            pins.remember_series(of, "one", seen(number), (&none, &|_| false)).unwrap();
        };
        // The folder itself, and a link in its place.
        note(&pins("/link"), 5);
        let said = through("/enemy").check(&other, Some(&foreign)).unwrap_err().to_string();
        assert!(said.contains("/link is another repository") && said.contains("leads to /enemy"), "{said}");
        through("/enemy").check(&made(1, None), None).unwrap_err();
        assert!(through("/plain").refuse_without().unwrap_err().to_string().contains("/link was a"));
        // The repository was moved, and the link leads there.
        through("/moved").check(of.0, of.1).unwrap();
        through("/moved").remember(of.0, of.1).unwrap();
        assert_eq!(pins("/moved").series(of, "one").unwrap(), Some(seen(5)));
        assert_eq!(through("/moved").markers().unwrap().len(), 1);
        // What is done without the link is known through it.
        note(&pins("/moved"), 7);
        through("/moved").remember(of.0, of.1).unwrap();
        assert_eq!(through("/moved").series(of, "one").unwrap(), Some(seen(7)));
        pins("/moved").forget_series(of, "one").unwrap();
        through("/moved").remember(of.0, of.1).unwrap();
        assert_eq!(through("/moved").series(of, "one").unwrap(), None);
        // An older state elsewhere, and in the place of the link.
        note(&through("/moved"), 9);
        for pins in [through("/older"), pins("/link")] {
            pins.remember(of.0, of.1).unwrap();
            assert_eq!(pins.series(of, "one").unwrap(), Some(seen(9)));
        }
    }

    #[test]
    fn processes_that_remember_at_the_same_time_forget_nothing() {
        const EACH: u64 = 40;
        let place = tempfile::tempdir().unwrap();
        let pins = Pins::within(place.path(), "a");
        let marker = made(1, None);
        pins.remember(&marker, None).unwrap();
        std::thread::scope(|scope| {
            for name in ["one", "two", "three", "four"] {
                let (pins, marker) = (&pins, &marker);
                scope.spawn(move || {
                    for generation in 1..=EACH {
                        let now = SeenSeries { generation, newest: None, begun: None };
                        let before = BTreeSet::new();
                        pins.remember_series((marker, None), name, now, (&before, &|_| false)).unwrap();
                    }
                });
            }
        });
        for name in ["one", "two", "three", "four"] {
            let seen = pins.series((&marker, None), name).unwrap();
            assert_eq!(seen.map(|seen| seen.generation), Some(EACH), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_damaged_refuses_everything_and_names_itself() {
        let place = tempfile::tempdir().unwrap();
        let pins = Pins::within(place.path(), "a");
        pins.remember(&made(1, None), None).unwrap();
        fs::write(&pins.file, "{").unwrap();
        for said in [pins.refuse_without(), pins.check(&made(1, None), None)] {
            assert!(said.unwrap_err().to_string().contains("remove it"));
        }
    }
}
