//! The daemon's own files, which are no disks: an initiator would read a secret there, or write what the daemon reads
//! at its next start.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lunway_block::file_place;
use rustix::fs::{FileType, major, minor};

use crate::config::Config;
use crate::state::is_state_file;

/// Files that the daemon reads and writes for itself: its configuration, secrets, token, socket and state.
///
/// They are compared with what a device was opened as, so that links make no difference, and so that no path of a
/// device is looked at a second time: its file system may not answer by then. [`of_place`](Self::of_place) waits for
/// the file systems of the daemon's own files.
#[derive(Debug, Default)]
pub(super) struct OwnFiles(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// As the newest configuration names them.
    named: Vec<(PathBuf, &'static str)>,
    /// The file that the configuration is saved to.
    saved: Option<PathBuf>,
    /// The folder of state.
    state: Option<PathBuf>,
}

impl OwnFiles {
    /// Those of a configuration, and of the folder for state.
    pub(super) fn of(config: &Config, state: Option<&Path>) -> Self {
        let state = state.map(Path::to_owned);
        Self(Mutex::new(Known { named: named(config), saved: None, state }))
    }

    /// Takes what configurations name in place of what those before named.
    pub(super) fn know<'c>(&self, configs: impl IntoIterator<Item = &'c Config>) {
        self.known().named = configs.into_iter().flat_map(named).collect();
    }

    /// Adds the file that the configuration is saved to.
    pub(super) fn save_to(&self, file: &Path) {
        self.known().saved = Some(file.to_owned());
    }

    /// File of the daemon that a device is, by its place ([`Identity::place`](lunway_block::Identity)), as a sentence;
    /// `None`: nothing.
    pub(super) fn of_place(&self, place: &str) -> Option<String> {
        let (mut own, saved, state) = {
            let known = self.known();
            (known.named.clone(), known.saved.clone(), known.state.clone())
        };
        own.extend(saved.map(|file| (file, CONFIGURATION)));
        let kept = state.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let kept = kept.filter(|entry| entry.file_name().to_str().is_some_and(is_state_file));
        own.extend(kept.map(|entry| (entry.path(), "a file of its state")));
        let (path, what) = own.into_iter().find(|(path, _)| is_at(path, place))?;
        Some(format!(
            "{} belongs to this daemon itself: it is {what}, which initiators must not read or write; name another file",
            path.display()
        ))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Each field is replaced whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const CONFIGURATION: &str = "its configuration";

/// The files that a configuration names, and the one that it stands in.
fn named(config: &Config) -> Vec<(PathBuf, &'static str)> {
    let mut own = vec![(PathBuf::from(&config.origin), CONFIGURATION)];
    if let Some(api) = &config.api {
        own.extend(api.token_file.clone().map(|file| (file, "the token of its management interface")));
    }
    let discovery = config.discovery.chap.iter().chain(&config.discovery.mutual_chap);
    let targets = config.targets.iter().flat_map(|target| target.chap.iter().chain(&target.mutual_chap));
    own.extend(discovery.chain(targets).map(|user| (user.secret_file.clone(), "a CHAP secret")));
    own
}

/// Returns `true` if a regular file lies at a place.
fn is_at(path: &Path, place: &str) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && file_place(stat.st_ino, major(stat.st_dev), minor(stat.st_dev)) == place
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &Path) -> String {
        lunway_file::place(fs::File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn each_file_of_the_daemon_is_known_through_links_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("state")).unwrap();
        let own = [
            "lunway.toml",
            "token",
            "secret",
            "mutual",
            "discovery",
            "saved.toml",
            "state/iqn.a:b%2F0.reservations",
            "state/.lock",
            "state/snapshot-1.area",
        ];
        for file in own.iter().chain(&["disk.img", "state/disk.img"]) {
            fs::write(path(file), file).unwrap();
        }
        fs::hard_link(path("token"), path("link.img")).unwrap();
        let text = r#"
            [api]
            listen = "127.0.0.1:0"
            token_file = "token"
            [[discovery.chap]]
            user = "d"
            secret_file = "discovery"
            [[target]]
            name = "iqn.2026-11.com.example:a"
            chap = [{ user = "u", secret_file = "secret" }]
            mutual_chap = { user = "m", secret_file = "mutual" }
        "#;
        let file = path("lunway.toml");
        let config = Config::from_toml(text, file.to_str().unwrap()).unwrap().in_folder_of(&file);
        let files = OwnFiles::of(&config, Some(&path("state")));
        files.save_to(&path("saved.toml"));
        for file in own.iter().chain(&["link.img"]) {
            let said = files.of_place(&place(&path(file)));
            assert!(said.is_some_and(|said| said.contains("belongs to this daemon itself")), "{file}");
        }
        for file in ["disk.img", "state/disk.img"] {
            assert_eq!(files.of_place(&place(&path(file))), None, "{file}");
        }
        // Secrets of another configuration take the place of those before.
        files.know([&Config::default()]);
        assert_eq!(files.of_place(&place(&path("secret"))), None);
    }
}
