//! Pins: which repositories this user has seen at an address, as ssh knows hosts.
//!
//! A person who can write to a share can put another repository in the place of one, or none: the next run would write
//! for other people, or in the clear. So what was seen first is kept in the user's state, and what is something else
//! later is refused until the user removes that file. Several repositories are known at an address where this user has
//! made several, as on disks that are changed by turns.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lunway_backup::{BackupError, Folder, HostFolder, Result};
use lunway_block::small_file;
use serde::{Deserialize, Serialize};

use crate::codec::MasterKey;
use crate::marker::Marker;

/// Most bytes of such a file: 64 repositories with 10,000 series each.
const PINS_MAX: u64 = 32 << 20;
/// Repositories that are known at one address: more disks than are changed by turns.
const REPOSITORIES_MAX: usize = 64;

/// What one user has seen at an address.
#[derive(Clone, Debug)]
pub struct Pins {
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
}

impl Pin {
    fn of(marker: &Marker, master: Option<&MasterKey>) -> Self {
        let hash = |master: &MasterKey| blake3::derive_key("lunway 2026 repository pin", &**master);
        Self {
            repository: marker.repository.clone(),
            key: master.map(|master| blake3::Hash::from_bytes(hash(master)).to_hex().to_string()),
            sealed: marker.is_sealed(),
            series: BTreeMap::new(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.repository, &self.key) == (&other.repository, &other.key)
    }
}

/// The folder for what a user's programs keep: that of a systemd service (`STATE_DIRECTORY`, systemd.exec(5)), else as
/// the XDG Base Directory Specification says.
fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    // Several are separated by colons; the units that are shipped ask for one.
    let given = env::var_os("STATE_DIRECTORY").and_then(|folders| env::split_paths(&folders).next());
    let own = || folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    given.filter(|folder| folder.is_absolute()).or_else(|| Some(own()?.join("lunway")))
}

impl Pins {
    /// What this user has seen at an address; `None`: there is no place where it could be kept.
    pub fn of(address: &str) -> Option<Self> {
        Some(Self::within(&state_folder()?, address))
    }

    /// The same in a folder for state.
    pub fn within(state: &Path, address: &str) -> Self {
        // One name for an address, of any length and with any characters.
        let name = blake3::hash(address.as_bytes()).to_hex();
        let file = state.join("repositories").join(format!("{}.json", &name[..16]));
        Self { file, address: address.to_owned() }
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
            "{address} was a repository when this user last used it, and has no repository.json now: see that its share is \
             mounted; if it is to be something else, remove {file}"
        )))
    }

    /// Refuses another repository than those that were seen.
    pub(crate) fn check(&self, marker: &Marker, master: Option<&MasterKey>) -> Result<()> {
        let (seen, found) = (self.load()?.repositories, Pin::of(marker, master));
        let known = seen.iter().find(|pin| pin.is_same(&found));
        let (address, file) = (&self.address, self.file.display());
        let refused = |what: String| {
            let advice = format!(
                "if it was made anew, remove {file}; otherwise somebody has replaced its repository.json"
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

    /// Remembers a repository.
    ///
    /// # Errors
    ///
    /// Where it cannot be kept.
    pub(crate) fn remember(&self, marker: &Marker, master: Option<&MasterKey>) -> Result<()> {
        let mut found = Pin::of(marker, master);
        let mut seen = self.load()?;
        if let Some(known) = seen.repositories.iter().find(|pin| pin.is_same(&found)) {
            if known.sealed || !found.sealed {
                return Ok(());
            }
            found.series.clone_from(&known.series);
        }
        seen.repositories.retain(|pin| !pin.is_same(&found));
        seen.repositories.push(found);
        let excess = seen.repositories.len().saturating_sub(REPOSITORIES_MAX);
        seen.repositories.drain(..excess);
        self.store(&seen)
    }

    /// The newest generation of a series of a repository that was seen.
    pub(crate) fn generation(&self, of: (&Marker, Option<&MasterKey>), series: &str) -> Result<Option<u64>> {
        let found = Pin::of(of.0, of.1);
        let seen = self.load()?;
        let known = seen.repositories.iter().find(|pin| pin.is_same(&found));
        Ok(known.and_then(|pin| pin.series.get(series).copied()))
    }

    /// Remembers the newest generation of a series.
    ///
    /// # Errors
    ///
    /// Where it cannot be kept.
    pub(crate) fn remember_generation(
        &self,
        of: (&Marker, Option<&MasterKey>),
        series: &str,
        generation: u64,
    ) -> Result<()> {
        let found = Pin::of(of.0, of.1);
        let mut seen = self.load()?;
        let Some(known) = seen.repositories.iter_mut().find(|pin| pin.is_same(&found)) else {
            return Ok(());
        };
        match known.series.insert(series.to_owned(), generation) == Some(generation) {
            true => Ok(()),
            false => self.store(&seen),
        }
    }

    /// Replaces the file whole.
    fn store(&self, seen: &Seen) -> Result<()> {
        let shown = self.file.display().to_string();
        let writing = || BackupError::folder("writing", &shown);
        let (Some(place), Some(name)) =
            (self.file.parent(), self.file.file_name().and_then(|name| name.to_str()))
        else {
            return Err(BackupError::Lost);
        };
        fs::create_dir_all(place).map_err(writing())?;
        let folder = HostFolder::open(place).map_err(writing())?.with_mode(0);
        // Other processes of the user may do the same.
        let unfinished = format!("{name}.{}", std::process::id());
        let seen = Seen { address: self.address.clone(), ..seen.clone() };
        let text = serde_json::to_vec_pretty(&seen).map_err(io::Error::other).map_err(writing())?;
        folder.remove(&unfinished).map_err(writing())?;
        let file = folder.create(&unfinished).map_err(writing())?;
        file.write_at(0, &text).map_err(writing())?;
        file.flush().map_err(writing())?;
        folder.rename(&unfinished, name).map_err(writing())?;
        folder.sync().map_err(writing())
    }
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
        assert_eq!(pins.generation(of(&old), "one").unwrap(), None);
        pins.remember_generation(of(&old), "one", 7).unwrap();
        pins.check(&sealed, Some(&master)).unwrap();
        pins.remember(&sealed, Some(&master)).unwrap();
        pins.check(&old, Some(&master)).unwrap_err();
        assert_eq!(pins.generation(of(&sealed), "one").unwrap(), Some(7));
        pins.remember_generation(of(&sealed), "one", 6).unwrap();
        assert_eq!(pins.generation(of(&sealed), "one").unwrap(), Some(6));
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
