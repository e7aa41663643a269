//! Pins: which repositories this user has seen at an address, as ssh knows hosts.
//!
//! A person who can write to a share can put another repository in the place of one, or none: the next run would write
//! for other people, or in the clear. So what was seen first is kept in the user's state, and what is something else
//! later is refused until the user removes that file. Several repositories are known at an address where this user has
//! made several, as on disks that are changed by turns.
//!
//! ```text
//!   repositories/ADDRESS.json             what was seen at an address, by a hash of it
//!   repositories/ADDRESS-REPOSITORY.json  the marker of a repository as it was written with its key: the way back
//!                                         where somebody has changed it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lunway_backup::{BackupError, Folder, HostFolder, PointId, Result, seal, unseal};
use lunway_block::small_file;
use serde::{Deserialize, Serialize};

use crate::codec::MasterKey;
use crate::marker::{MARKER_MAX, Marker};

/// Most bytes of such a file: 64 repositories with 10,000 series each.
const PINS_MAX: u64 = 32 << 20;
/// Repositories that are known at one address: more disks than are changed by turns.
const REPOSITORIES_MAX: usize = 64;

/// Permissions of what is kept: others are not told what this user backs up, and where.
const PRIVATE_FOLDER: u32 = 0o700;

/// What one user has seen at an address.
#[derive(Clone, Debug)]
pub struct Pins {
    /// The user's own folder of this program, if that is not a service's, whose manager says who may read it.
    own: Option<PathBuf>,
    file: PathBuf,
    address: String,
}

/// The file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Seen {
    address: String,
    /// The one that was made or found last comes last.
    repositories: Vec<Pin>,
}

/// A repository that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pin {
    /// Its id.
    repository: String,
    /// Of an encrypted one: a hash of its key.
    key: Option<String>,
    /// Its marker was authenticated with that key.
    sealed: bool,
    /// The newest generation of each series.
    #[serde(default)]
    series: BTreeMap<String, u64>,
    /// The point of each that had it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    newest: BTreeMap<String, PointId>,
    /// The first point of each, where it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    begun: BTreeMap<String, PointId>,
}

/// What a user has seen of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenSeries {
    /// The newest generation.
    pub(crate) generation: u64,
    /// The point that had it.
    pub(crate) newest: Option<PointId>,
    /// Its first point.
    pub(crate) begun: Option<PointId>,
}

impl Pin {
    fn of(marker: &Marker, master: Option<&MasterKey>) -> Self {
        let hash = |master: &MasterKey| blake3::derive_key("lunway 2026 repository pin", &**master);
        Self {
            repository: marker.repository.clone(),
            key: master.map(|master| blake3::Hash::from_bytes(hash(master)).to_hex().to_string()),
            sealed: marker.is_sealed(),
            series: BTreeMap::new(),
            newest: BTreeMap::new(),
            begun: BTreeMap::new(),
        }
    }

    fn forget(&mut self, series: &str) -> bool {
        let was = (self.series.remove(series), self.newest.remove(series), self.begun.remove(series));
        was != (None, None, None)
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.repository, &self.key) == (&other.repository, &other.key)
    }
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
        Self { own: None, file, address: address.to_owned() }
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
        if self.load()?.repositories.is_empty() {
            return Ok(());
        }
        let (address, file) = (&self.address, self.file.display());
        Err(BackupError::Refused(format!(
            "{address} was a repository when this user last used it, and has no repository.json now{}: see that its share \
             is mounted; if it is to be something else, remove {file}",
            self.way_back()
        )))
    }

    /// Refuses another repository than those that were seen.
    pub(crate) fn check(&self, marker: &Marker, master: Option<&MasterKey>) -> Result<()> {
        let (seen, found) = (self.load()?.repositories, Pin::of(marker, master));
        let known = seen.iter().find(|pin| pin.is_same(&found));
        let (address, file) = (&self.address, self.file.display());
        let refused = |what: String| {
            let advice = format!(
                "if it was made anew, remove {file}; otherwise somebody has replaced its repository.json{}",
                self.way_back()
            );
            Err(BackupError::Refused(format!("{address} {what}: {advice}")))
        };
        match known {
            None if seen.is_empty() => Ok(()),
            Some(known) if !known.sealed || found.sealed => Ok(()),
            Some(_) => {
                refused("has a repository.json that was not written with its key, as it was before".into())
            }
            None if found.key.is_none() && seen.iter().all(|pin| pin.key.is_some()) => {
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
        let mut found = Pin::of(marker, master);
        let mut seen = self.load()?;
        let known = seen.repositories.iter().find(|pin| pin.is_same(&found));
        if known.is_none_or(|known| !known.sealed && found.sealed) {
            if let Some(known) = known {
                found.series.clone_from(&known.series);
                found.newest.clone_from(&known.newest);
                found.begun.clone_from(&known.begun);
            }
            seen.repositories.retain(|pin| !pin.is_same(&found));
            seen.repositories.push(found);
            let excess = seen.repositories.len().saturating_sub(REPOSITORIES_MAX);
            seen.repositories.drain(..excess);
            self.store(&seen)?;
        }
        match self.kept_file(&marker.repository).filter(|_| marker.is_sealed() || !marker.encrypted) {
            Some(file) if read_marker(&file).as_ref() != Some(marker) => self.replace(&file, &seal(marker)),
            _ => Ok(()),
        }
    }

    /// The file with the marker of a repository.
    fn kept_file(&self, repository: &str) -> Option<PathBuf> {
        let is_id = repository.len() == 16 && repository.bytes().all(|byte| byte.is_ascii_hexdigit());
        let stem = self.file.file_stem()?.to_str()?;
        is_id.then(|| self.file.with_file_name(format!("{stem}-{repository}.json")))
    }

    /// Markers that are kept, of the repository that was found last first, with their files.
    pub(crate) fn markers(&self) -> Result<Vec<(PathBuf, Marker)>> {
        let pins = self.load()?.repositories;
        let files = pins.iter().rev().filter_map(|pin| self.kept_file(&pin.repository));
        Ok(files.filter_map(|file| read_marker(&file).map(|marker| (file, marker))).collect())
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

    /// What was seen of a series of a repository.
    pub(crate) fn series(
        &self,
        of: (&Marker, Option<&MasterKey>),
        series: &str,
    ) -> Result<Option<SeenSeries>> {
        let found = Pin::of(of.0, of.1);
        let seen = self.load()?;
        let known = seen.repositories.iter().find(|pin| pin.is_same(&found));
        Ok(known.and_then(|pin| {
            Some(SeenSeries {
                generation: *pin.series.get(series)?,
                newest: pin.newest.get(series).copied(),
                begun: pin.begun.get(series).copied(),
            })
        }))
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
        let mut seen = self.load()?;
        let known = seen.repositories.iter_mut().find(|pin| pin.is_same(&found));
        match known.is_some_and(change) {
            true => self.store(&seen),
            false => Ok(()),
        }
    }

    fn store(&self, seen: &Seen) -> Result<()> {
        let seen = Seen { address: self.address.clone(), ..seen.clone() };
        let shown = self.file.display().to_string();
        let text = serde_json::to_vec_pretty(&seen).map_err(io::Error::other);
        self.replace(&self.file, &text.map_err(BackupError::folder("writing", &shown))?)
    }

    /// Replaces a file whole. What is kept is the user's alone.
    fn replace(&self, file: &Path, bytes: &[u8]) -> Result<()> {
        let shown = file.display().to_string();
        let writing = || BackupError::folder("writing", &shown);
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
