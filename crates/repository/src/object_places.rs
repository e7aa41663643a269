//! Places of a repository in an object store.
//!
//! ```text
//!   s3://BUCKET/PATH/pack-…            packs, indexes, the marker
//!   s3://BUCKET/PATH/SERIES/….json     points: a series is there as long as an object is
//! ```

use std::io;
use std::sync::Arc;

use lunway_backup::{Folder, parse_stem};
use lunway_object::{Address, Settings, Store};

use crate::object_folder::ObjectFolder;
use crate::places::{Places, is_series_name};

/// Prefix of the names by which a store is tried.
const TRIAL: &str = "trial-";

/// A folder in a bucket.
pub struct ObjectPlaces {
    store: Arc<Store>,
    address: Address,
    packs: Arc<ObjectFolder>,
}

impl ObjectPlaces {
    /// The folder of an address. Nothing is asked yet.
    ///
    /// # Errors
    ///
    /// Where the store cannot be used: see [`Store::open`].
    pub fn open(address: &Address, settings: &Settings) -> io::Result<Self> {
        let store = Arc::new(Store::open(address, settings)?);
        let packs = Arc::new(ObjectFolder::new(Arc::clone(&store), address.prefix(), trial(address)));
        Ok(Self { store, address: address.clone(), packs })
    }

    /// Endpoint and address: one place of all.
    pub(crate) fn whole_name(&self) -> String {
        format!("{} {}", self.store.place(), self.store.show(self.address.path()))
    }

    fn folder(&self, address: &Address) -> ObjectFolder {
        ObjectFolder::new(Arc::clone(&self.store), address.prefix(), trial(&self.address))
    }

    /// Names of the folders in it.
    fn folders(&self) -> io::Result<Vec<String>> {
        let prefix = self.address.prefix();
        let folders = self.store.list(&prefix)?.folders;
        let names = folders.iter().filter_map(|folder| folder.strip_prefix(&prefix)?.strip_suffix('/'));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn at(&self, name: &str) -> io::Result<Address> {
        match is_series_name(name) {
            true => Ok(self.address.child(name)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a name that a series can have")),
        }
    }
}

fn trial(address: &Address) -> String {
    format!("{}{TRIAL}", address.prefix())
}

impl Places for ObjectPlaces {
    fn packs(&self) -> Arc<dyn Folder> {
        Arc::clone(&self.packs) as Arc<dyn Folder>
    }

    fn series(&self) -> io::Result<Vec<String>> {
        Ok(self.folders()?.into_iter().filter(|name| is_series_name(name)).collect())
    }

    fn strangers(&self) -> io::Result<Vec<String>> {
        let mut strangers = Vec::new();
        for name in self.folders()?.into_iter().filter(|name| !is_series_name(name)) {
            let keys = self.store.list(&format!("{}{name}/", self.address.prefix()))?.keys;
            let is_point = |key: &String| {
                let file = key.rsplit('/').next().unwrap_or_default();
                parse_stem(file.split('.').next().unwrap_or_default()).is_some()
            };
            if keys.iter().any(is_point) {
                strangers.push(name);
            }
        }
        Ok(strangers)
    }

    fn of_series(&self, name: &str) -> io::Result<Arc<dyn Folder>> {
        let folder = self.folder(&self.at(name)?);
        match folder.names()?.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "no such series")),
            false => Ok(Arc::new(folder)),
        }
    }

    fn begin_series(&self, name: &str) -> io::Result<Arc<dyn Folder>> {
        Ok(Arc::new(self.folder(&self.at(name)?)))
    }
}
