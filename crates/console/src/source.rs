//! Source of the configuration, and storage of its changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lunway_block::{Permit, small_file};
use lunway_occupancy::is_same_file;
use lunway_target::{Config, ConfigError, FileDiffers, IscsiName, LunConfig, Overrides, TargetConfig};

use crate::document;
use crate::replace::{self, Replacement, replace};

/// File and overrides that a daemon was started with.
///
/// | started with | changes |
/// |---|---|
/// | a file | are written to it: what did not change keeps its bytes and comments |
/// | overrides | last as long as the process |
/// | both | to what the overrides say last as long as the process, all others are written to the file |
/// | overrides, and a file to save to | are written there, all of the configuration, beginning with what the overrides say |
///
/// A device that the file names without its format is written as what it was opened as (`raw:disk.img`), so that it
/// stays that whatever its initiators write.
///
/// Keys that are read only at the start keep the values that the file says, which may be those of the next start.
///
/// A file that somebody edited after it was last read is never overwritten: it must be reloaded first.
#[derive(Debug)]
pub struct ConfigSource {
    file: Option<PathBuf>,
    overrides: Overrides,
    /// The target that the overrides describe.
    added_target: Option<IscsiName>,
    /// `file` as it was last read or written.
    known: Mutex<Known>,
}

/// Content of the file.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// `None`: it was not there.
    text: Option<String>,
    /// It names a device without its format.
    lacks_formats: bool,
}

/// Configuration that was read but is not served yet.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    known: Known,
    /// Targets that the file describes: those of the overrides follow.
    from_file: usize,
}

impl ConfigSource {
    /// Reads `file` and lays `overrides` over it.
    pub fn read(file: Option<&Path>, overrides: Overrides) -> Result<(Self, Config), ConfigError> {
        let mut source =
            Self { file: file.map(Path::to_owned), overrides, added_target: None, known: Mutex::default() };
        let Loaded { config, known, from_file } = source.load()?;
        source.added_target = config.targets.get(from_file).map(|target| target.name.clone());
        source.took(known);
        Ok((source, config))
    }

    /// Takes `overrides` alone, to be saved to `file`: [`save`](Self::save) does that first. A file that is there
    /// already must be a configuration, and is replaced only by `force`: whatever else it is, a disk or its parent, a
    /// secret, is never lost to a slip.
    pub fn saving_to(file: &Path, overrides: Overrides, force: bool) -> Result<(Self, Config), ConfigError> {
        let config = Config::default().overridden(&overrides);
        let refused = |why: &str| ConfigError::Save { file: file.display().to_string(), why: why.to_owned() };
        // A link to nothing is something: what is written would come into being where it points.
        match (fs::metadata(file), file.is_symlink()) {
            (Ok(metadata), _) if !metadata.is_file() => return Err(refused("it is not a regular file")),
            (Err(_), true) => return Err(refused("it is a symbolic link that leads nowhere")),
            (Ok(_), _) if !force => return Err(ConfigError::Exists { file: file.display().to_string() }),
            (Ok(_), _) if !may_be_configuration(file) => {
                return Err(refused(
                    "it is not a configuration, and nothing else is replaced: name another file",
                ));
            }
            _ => {}
        }
        for target in &config.targets {
            let is_it =
                |lun: &&LunConfig| lun.device.spec().path().is_some_and(|disk| is_same_file(disk, file));
            if let Some(lun) = target.luns.iter().find(is_it) {
                return Err(refused(&format!("it is the disk of lun {}: name another file", lun.id)));
            }
        }
        replace::check(file).map_err(|error| refused(&error.to_string()))?;
        // From now on the overrides' part is like any other.
        let (file, overrides) = (Some(file.to_owned()), Overrides::default());
        Ok((Self { file, overrides, added_target: None, known: Mutex::default() }, config))
    }

    /// Writes the file of [`saving_to`](Self::saving_to): all of `config`, as it is served.
    pub fn save(&self, config: &Config) -> Result<(), ConfigError> {
        let Some(path) = &self.file else { return Ok(()) };
        let text = self.text("", config)?;
        replace(path, &text).map_err(|error| ConfigError::Save {
            file: path.display().to_string(),
            why: error.to_string(),
        })?;
        self.took(Known::of(text, config));
        Ok(())
    }

    /// The file that changes are written to.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads it all again.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigError> {
        let Some(path) = &self.file else {
            let config = Config::default().overridden(&self.overrides);
            return Ok(Loaded { config, known: Known::default(), from_file: 0 });
        };
        let file = path.display().to_string();
        let text = read(path).map_err(|source| ConfigError::Read { file: file.clone(), source })?;
        let said = self.parse(&text, &file)?;
        for sentence in Config::outdated_keys(&text, &file) {
            tracing::warn!("{sentence}");
        }
        let (known, from_file) = (Known::of(text, &said), said.targets.len());
        Ok(Loaded { config: said.overridden(&self.overrides), known, from_file })
    }

    /// Reads a text of the file; relative paths in it are found from the file's folder.
    fn parse(&self, text: &str, origin: &str) -> Result<Config, ConfigError> {
        Ok(self.located(Config::from_toml(text, origin)?))
    }

    /// The same configuration with its relative paths found as those of the file; without a file, from the working
    /// folder.
    pub(crate) fn located(&self, config: Config) -> Config {
        config.in_folder_of(self.file.as_deref().unwrap_or(Path::new("overrides")))
    }

    /// A path, found as those in the configuration are.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        let folder = self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let path = folder.join(path);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Records that the loaded configuration is served now.
    pub(crate) fn took(&self, loaded: Known) {
        *self.known() = loaded;
    }

    /// Returns `true` if the change from `old` to `new` is permanent.
    pub(crate) fn keeps(&self, old: &Config, new: &Config) -> bool {
        self.file.is_some() && self.overridden_part(old) == self.overridden_part(new)
    }

    /// The part that overrides decide.
    fn overridden_part<'c>(&self, config: &'c Config) -> impl PartialEq + use<'c> {
        let target = self.added_target.as_ref().and_then(|name| find(config, name));
        let listen = (!self.overrides.listen.is_empty()).then_some(&config.listen);
        (target, listen, self.overrides.cores.and(config.cores))
    }

    /// Writes `config` to the file, if there is one: durably, and all of it or nothing. The file is as it was where
    /// `permit` was withdrawn, be it only while a file system took its time to replace it.
    ///
    /// # Errors
    ///
    /// The file is as it was, or the error is [`FileDiffers`].
    pub(crate) fn persist(&self, config: &Config, permit: &Permit) -> io::Result<()> {
        self.persist_with(config, permit, || {}, || {})
    }

    /// The same; `prepared` is called when the new file is complete under another name, `replaced` when it has its own.
    fn persist_with(
        &self,
        config: &Config,
        permit: &Permit,
        prepared: impl FnOnce(),
        replaced: impl FnOnce(),
    ) -> io::Result<()> {
        let given_up =
            || io::Error::new(io::ErrorKind::Interrupted, "nobody waits for the change any longer");
        let begun = || permit.begin().map_err(|_| given_up());
        let Some(path) = &self.file else { return begun() };
        let mut known = self.known();
        let present = unedited(path, known.text.as_deref())?;
        let text = self.text(present.as_deref().unwrap_or(""), config).map_err(io::Error::other)?;
        let new = Replacement::prepare(path, &text)?;
        prepared();
        // That took as long as a disk takes: an edit made meanwhile would be lost without a word.
        unedited(path, known.text.as_deref())?;
        // From here on it can only be put back.
        if permit.is_withdrawn() {
            return Err(given_up());
        }
        let committed = new.commit();
        replaced();
        if let Err(error) = committed.and_then(|()| begun()) {
            put_back(path, &text, present.as_deref()).map_err(|why| {
                io::Error::other(FileDiffers { file: path.display().to_string(), why: why.to_string() })
            })?;
            return Err(error);
        }
        *known = Known::of(text, config);
        Ok(())
    }

    /// Writes into the file which format its devices were opened as, where it does not say so and `config` is what it
    /// says.
    pub(crate) fn keep_formats(&self, config: &Config) -> io::Result<()> {
        let lacks_formats = self.known().lacks_formats;
        if lacks_formats { self.persist(config, &Permit::default()) } else { Ok(()) }
    }

    /// Returns the text that the file must hold instead of `present`.
    fn text(&self, present: &str, config: &Config) -> Result<String, ConfigError> {
        let before = self.parse(present, &config.origin)?;
        let mut after = config.clone();
        if !self.overrides.listen.is_empty() {
            after.listen.clone_from(&before.listen);
        }
        // The file may have other values of these for the next start. A new one has none yet.
        if !present.is_empty() {
            after.take_fixed(&before);
        } else if self.overrides.cores.is_some() {
            after.cores = before.cores;
        }
        if let Some(name) = &self.added_target {
            after.targets.retain(|target| target.name != *name);
        }
        let text = document::rewrite(present, &table(&before)?, &table(&after)?);
        // Whatever the present text looks like: the file must say what is served.
        match text {
            Ok(text) if self.parse(&text, &config.origin).is_ok_and(|read| read == after) => Ok(text),
            _ => after.to_toml(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// A text that says this.
    fn of(text: String, said: &Config) -> Self {
        Self { text: Some(text), lacks_formats: said.lacks_formats() }
    }
}

impl Loaded {
    /// The configuration, and the content of the file that it came from.
    pub(crate) fn into_parts(self) -> (Config, Known) {
        (self.config, self.known)
    }
}

/// Reads the text of a configuration file.
fn read(path: &Path) -> io::Result<String> {
    small_file::read_text(path, Config::FILE_LEN_MAX)
}

/// Reads a file, if it is as `known`; `None`: there is none.
fn unedited(path: &Path, known: Option<&str>) -> io::Result<Option<String>> {
    let present = match read(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if present.as_deref() == known {
        return Ok(present);
    }
    let sentence = format!(
        "{} has changed since the daemon read it: run `lunway reload` to apply the new file, then repeat",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::ResourceBusy, sentence))
}

/// Undoes a replacement of `old`, unless the file holds something else than `new` by now.
fn put_back(path: &Path, new: &str, old: Option<&str>) -> io::Result<()> {
    match (read(path), old) {
        (Ok(now), Some(old)) if now == new => replace(path, old),
        (Ok(now), None) if now == new => replace::remove(path),
        (Err(error), _) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns `true` if a file has what a configuration has: TOML, or nothing yet.
fn may_be_configuration(file: &Path) -> bool {
    read(file).is_ok_and(|text| text.parse::<toml::Table>().is_ok())
}

fn find<'c>(config: &'c Config, name: &IscsiName) -> Option<&'c TargetConfig> {
    config.targets.iter().find(|target| target.name == *name)
}

/// A configuration as the file would spell it, every default included.
fn table(config: &Config) -> Result<toml::Table, ConfigError> {
    // By way of the text: what it cannot say cannot be in the file either.
    let text = config.to_toml()?;
    text.parse().map_err(|error: toml::de::Error| ConfigError::Unwritable {
        origin: config.origin.clone(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use lunway_target::LunConfig;

    use super::*;

    const FILE: &str = "# ours\nlisten = [\"127.0.0.1:0\"]   # one\n[[target]]\nname = \"iqn.2026-11.com.example:a\"\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"  # zero\n";

    fn overrides(luns: &[(u16, &str)]) -> Overrides {
        let luns = luns.iter().map(|(id, device)| LunConfig::new(*id, device.parse().unwrap())).collect();
        let name = IscsiName::parse("iqn.2026-11.com.example:f").unwrap();
        Overrides {
            target: Some(TargetConfig { open: true, luns, ..TargetConfig::new(name) }),
            ..Overrides::default()
        }
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lunway.toml");
        fs::write(&path, FILE).unwrap();
        (folder, path)
    }

    #[test]
    fn a_change_is_written_to_the_file_and_read_back_from_there() {
        let (_folder, path) = folder();
        let (source, mut config) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        let old = config.clone();
        config.targets[0].alias = Some("A".to_owned());
        config.targets[0].luns[0].device = "ram:2M".parse().unwrap();
        source.persist(&config, &Permit::default()).unwrap();
        assert!(source.keeps(&old, &config));
        assert_eq!(source.load().unwrap().config, config);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("# ours") && text.contains("\"ram:2M\"  # zero"), "{text}");
    }

    #[test]
    fn a_secret_in_a_devices_address_stays_in_the_file() {
        let (_folder, path) = folder();
        let device = "iscsi://u%hunter2hunter2@h/iqn.2026-11.com.example:b/0";
        fs::write(&path, FILE.replace("ram:1M", device)).unwrap();
        let (source, mut config) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        config.targets[0].alias = Some("A".to_owned());
        source.persist(&config, &Permit::default()).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains(device));
    }

    #[test]
    fn what_overrides_say_is_never_written() {
        let (_folder, path) = folder();
        let overrides = Overrides {
            listen: vec!["127.0.0.1:1".parse().unwrap()],
            cores: Some(1),
            ..overrides(&[(0, "ram:1M")])
        };
        let (source, mut config) = ConfigSource::read(Some(&path), overrides).unwrap();
        let old = config.clone();
        source.persist(&config, &Permit::default()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), FILE);
        config.targets[1].alias = Some("flag".to_owned());
        assert!(!source.keeps(&old, &config));
        let old = config.clone();
        config.targets[0].alias = Some("file".to_owned());
        assert!(source.keeps(&old, &config));
        source.persist(&config, &Permit::default()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("alias = \"file\"") && !text.contains("example:f"), "{text}");
    }

    #[test]
    fn relative_paths_are_found_from_the_folder_of_the_file_and_stay_as_they_are_written() {
        let (folder, path) = folder();
        let text =
            FILE.replace("ram:1M", "disks/a.img").replace("listen =", "state_dir = \"state\"\nlisten =");
        fs::write(&path, &text).unwrap();
        let (source, mut config) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        let real = |name: &str| folder.path().join(name);
        assert_eq!(config.state_dir, Some(real("state")));
        assert_eq!(config.targets[0].luns[0].device.to_string(), real("disks/a.img").display().to_string());
        config.targets[0].alias = Some("A".to_owned());
        source.persist(&config.with_formats(), &Permit::default()).unwrap();
        let saved = fs::read_to_string(&path).unwrap();
        assert!(
            saved.contains("state_dir = \"state\"") && saved.contains("\"raw:disks/a.img\"  # zero"),
            "{saved}"
        );
        // What overrides say is found from the working folder, also when it is saved elsewhere.
        let here = std::env::current_dir().unwrap();
        let added = overrides(&[(0, here.join("b.img").to_str().unwrap())]);
        let (source, config) = ConfigSource::saving_to(&real("saved.toml"), added, false).unwrap();
        source.save(&config).unwrap();
        assert!(
            fs::read_to_string(real("saved.toml"))
                .unwrap()
                .contains(&here.join("b.img").display().to_string())
        );
    }

    #[test]
    fn the_format_that_a_device_was_opened_as_is_written_to_the_file_once() {
        let (_folder, path) = folder();
        fs::write(&path, FILE.replace("ram:1M", "disk.img")).unwrap();
        let (source, config) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        source.keep_formats(&config.with_formats()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, FILE.replace("ram:1M", "raw:disk.img"));
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
        let before = inode();
        source.keep_formats(&config.with_formats()).unwrap();
        assert_eq!(inode(), before);
    }

    #[test]
    fn an_edited_file_is_not_overwritten_until_it_was_reloaded() {
        let (_folder, path) = folder();
        let (source, config) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        let edited = FILE.replace("# ours", "# mine");
        fs::write(&path, &edited).unwrap();
        let error = source.persist(&config, &Permit::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(fs::read_to_string(&path).unwrap(), edited);
        source.took(source.load().unwrap().into_parts().1);
        source.persist(&config, &Permit::default()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), edited);
        // Also one that is edited while the new content is written.
        let edit = || fs::write(&path, FILE).unwrap();
        let error = source.persist_with(&config, &Permit::default(), edit, || panic!("it is replaced"));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(fs::read_to_string(&path).unwrap(), FILE);
    }

    /// Lost was: the data of a `ram:` LUN, whose removal was saved and made after it had been given up.
    #[test]
    fn a_change_that_is_given_up_while_the_file_is_replaced_is_put_back() {
        let (folder, path) = folder();
        let (source, mut changed) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        changed.targets[0].luns.clear();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let early = Permit::default();
        early.withdraw();
        let error =
            source.persist_with(&changed, &early, || {}, || panic!("it is not replaced")).unwrap_err();
        assert_eq!((error.kind(), names()), (io::ErrorKind::Interrupted, 1));
        let late = Permit::default();
        let withdraw = || {
            assert!(!fs::read_to_string(&path).unwrap().contains("ram:1M"), "it is replaced");
            late.withdraw();
        };
        assert!(source.persist_with(&changed, &late, || {}, withdraw).is_err());
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), (FILE.to_owned(), 1));
        // Somebody edits it at that moment: that is not undone, and told with the next change.
        let late = Permit::default();
        let edit = || {
            fs::write(&path, "# mine").unwrap();
            late.withdraw();
        };
        assert!(source.persist_with(&changed, &late, || {}, edit).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "# mine");
        fs::write(&path, FILE).unwrap();
        source.persist(&changed, &Permit::default()).unwrap();
        assert!(source.load().unwrap().config.targets[0].luns.is_empty());
        // A file that was not there before goes again.
        let saved = folder.path().join("saved.toml");
        let (source, config) = ConfigSource::saving_to(&saved, overrides(&[(0, "ram:1M")]), false).unwrap();
        let late = Permit::default();
        assert!(
            source
                .persist_with(
                    &config,
                    &late,
                    || {},
                    || {
                        late.withdraw();
                    }
                )
                .is_err()
        );
        assert!(!saved.exists());
    }

    #[test]
    fn overrides_alone_are_saved_where_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved.toml");
        let added = overrides(&[(0, "ram:1M")]);
        let (source, config) = ConfigSource::read(None, added.clone()).unwrap();
        source.persist(&config, &Permit::default()).unwrap();
        assert!(!source.keeps(&config, &config));
        let (source, mut config) = ConfigSource::saving_to(&path, added.clone(), false).unwrap();
        source.save(&config).unwrap();
        assert_eq!(source.load().unwrap().config.targets, config.targets);
        config.targets[0].alias = Some("A".to_owned());
        source.persist(&config, &Permit::default()).unwrap();
        assert!(source.keeps(&config, &config));
        let (_, read) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        assert_eq!(read.targets, config.targets);
        let refused = ConfigSource::saving_to(&path, added.clone(), false).unwrap_err().to_string();
        assert!(refused.contains("already exists"), "{refused}");
        let (source, config) = ConfigSource::saving_to(&path, added.clone(), true).unwrap();
        source.save(&config).unwrap();
        assert_eq!(ConfigSource::read(Some(&path), Overrides::default()).unwrap().1.targets, config.targets);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for taken in [&link, folder.path(), Path::new("/dev/null")] {
            assert!(ConfigSource::saving_to(taken, added.clone(), true).is_err(), "{taken:?}");
        }
    }

    /// `serve --lun 0=disk.img --save disk.img --force` replaced the disk that was served with the configuration.
    #[test]
    fn nothing_but_a_configuration_is_replaced_and_no_disk_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (disk, other, text, link) = (path("disk.img"), path("other.img"), path("disk.txt"), path("link"));
        fs::write(&disk, [7; 4096]).unwrap();
        fs::write(&other, [0; 4096]).unwrap();
        // A disk may hold anything, even this.
        fs::write(&text, "a = 1\n").unwrap();
        std::os::unix::fs::symlink("disk.txt", &link).unwrap();
        let added = overrides(&[(0, disk.to_str().unwrap()), (1, text.to_str().unwrap())]);
        let refused = |path: &Path| {
            let before = fs::read(path).ok();
            let refused = ConfigSource::saving_to(path, added.clone(), true).unwrap_err().to_string();
            assert_eq!(fs::read(path).ok(), before, "{path:?}");
            refused
        };
        for file in [&disk, &other] {
            assert!(refused(file).contains("it is not a configuration"), "{file:?}");
        }
        for file in [&text, &link] {
            assert!(refused(file).contains("it is the disk of lun 1"), "{file:?}");
        }
        // One that would be made for it.
        let added = overrides(&[(0, path("new").to_str().unwrap())]);
        assert!(ConfigSource::saving_to(&path("new"), added, false).is_err());
    }
}
