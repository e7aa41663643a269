//! A folder of an object store: one prefix of keys.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use lunway_backup::{Folder, INCOMPLETE, Lock, Open, is_plain};
use lunway_object::Store;

use crate::lock::lock;
use crate::object_file::{ReadFile, Windows, WrittenFile};
use crate::pack::parse_pack_name;
use crate::segment::parse_segment_name;

/// Packs that are remembered while they are open: twice those that a reader keeps open.
const PACKS_MAX: usize = 64;

/// A folder of an object store.
///
/// | of a folder | here |
/// |---|---|
/// | a file under an incomplete name | in this process alone; what a kill leaves is nothing |
/// | its whole name | one upload: the object is there, durable, or not at all |
/// | a file that must not exist | an upload on the condition that there is none |
/// | a beat in such a file, or in one that got its whole name | an upload on the condition that it is what it was |
/// | locks | none: others wait for beats |
///
/// Before the first upload of a process the store has shown that it obeys conditions.
pub(crate) struct ObjectFolder {
    store: Arc<Store>,
    /// With a slash at its end, or empty.
    prefix: String,
    /// Prefix of names by which the store is tried.
    trial: String,
    windows: Arc<Windows>,
    unfinished: Mutex<HashMap<String, Arc<WrittenFile>>>,
    packs: Mutex<VecDeque<(u64, Slot)>>,
}

/// A pack that is open, or is about to be: the lock is held meanwhile.
type Slot = Arc<Mutex<Weak<ReadFile>>>;

impl ObjectFolder {
    /// Keys with a prefix. `trial`: prefix of the names by which the store is tried.
    pub(crate) fn new(store: Arc<Store>, prefix: String, trial: String) -> Self {
        Self {
            store,
            prefix,
            trial,
            windows: Arc::default(),
            unfinished: Mutex::default(),
            packs: Mutex::default(),
        }
    }

    fn unfinished(&self) -> MutexGuard<'_, HashMap<String, Arc<WrittenFile>>> {
        lock(&self.unfinished)
    }

    /// A pack, which is one open file however many threads open it: what they read of it lies together.
    fn pack(&self, pack: u64, key: &str) -> io::Result<Open> {
        let slot = {
            let mut packs = lock(&self.packs);
            let found = packs.iter().find(|(open, _)| *open == pack).map(|(_, slot)| Arc::clone(slot));
            found.unwrap_or_else(|| {
                let slot = Slot::default();
                packs.push_front((pack, Arc::clone(&slot)));
                packs.truncate(PACKS_MAX);
                slot
            })
        };
        let mut file = lock(&slot);
        if let Some(file) = file.upgrade() {
            return Ok(file);
        }
        let opened = Arc::new(ReadFile::open(&self.store, &self.windows, key)?);
        *file = Arc::downgrade(&opened);
        Ok(opened)
    }

    fn key(&self, name: &str) -> io::Result<String> {
        match is_plain(name) {
            true => Ok(format!("{}{name}", self.prefix)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file name")),
        }
    }

    fn prove(&self) -> io::Result<()> {
        Ok(self.store.prove_conditions(&self.trial)?)
    }
}

impl Folder for ObjectFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        self.names_with("")
    }

    fn names_with(&self, beginning: &str) -> io::Result<Vec<String>> {
        let keys = self.store.list(&format!("{}{beginning}", self.prefix))?.keys;
        // An object with the prefix itself as its key is how some programs make a folder.
        let names = keys.iter().filter(|key| !key.starts_with(&self.trial));
        let names = names.filter_map(|key| key.strip_prefix(&self.prefix));
        Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    fn create(&self, name: &str) -> io::Result<Open> {
        let key = self.key(name)?;
        if name.ends_with(INCOMPLETE) {
            let file = Arc::new(WrittenFile::unfinished(&self.store));
            let mut unfinished = self.unfinished();
            if unfinished.contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            unfinished.insert(name.to_owned(), Arc::clone(&file));
            return Ok(file);
        }
        self.prove()?;
        Ok(Arc::new(WrittenFile::exclusive(&self.store, key)?))
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Open> {
        let key = self.key(name)?;
        if let Some(file) = self.unfinished().get(name) {
            return Ok(Arc::clone(file) as Open);
        }
        if writable {
            let why = "an object is not changed in place";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        if let Some(pack) = parse_pack_name(name) {
            return self.pack(pack, &key);
        }
        let file = ReadFile::open(&self.store, &self.windows, &key)?;
        match parse_segment_name(name) {
            Some(_) => file.fetched(),
            None => Ok(Arc::new(file)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let key = self.key(to)?;
        let Some(file) = self.unfinished().get(from).cloned() else {
            let why = "an object keeps its name";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        self.prove()?;
        file.finish(key)?;
        if let Some(pack) = parse_pack_name(to) {
            lock(&self.packs).retain(|(open, _)| *open != pack);
        }
        self.unfinished().remove(from);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let key = self.key(name)?;
        if let Some(pack) = parse_pack_name(name) {
            lock(&self.packs).retain(|(open, _)| *open != pack);
        }
        if self.unfinished().remove(name).is_some() || name.ends_with(INCOMPLETE) {
            return Ok(());
        }
        Ok(self.store.remove(&key)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_read_only(&self, _name: &str, _read_only: bool) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Option<Lock>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn show(&self, name: &str) -> String {
        self.store.show(&format!("{}{name}", self.prefix)).trim_end_matches('/').to_owned()
    }
}
