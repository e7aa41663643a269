//! What a user has seen at an address, as the file says it.

use std::collections::BTreeMap;

use lunway_backup::PointId;
use serde::{Deserialize, Serialize};

use crate::codec::MasterKey;
use crate::marker::Marker;

/// Repositories that are known at one address: more disks than are changed by turns.
const REPOSITORIES_MAX: usize = 64;

/// Series that were listed of which one repository is remembered to have them: as many as such a file has room for.
const LISTED_MAX: usize = 10_000;

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) address: String,
    /// The address that it led to when it was last used, if it is a name of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leads_to: Option<String>,
    /// The one that was made or found last comes last.
    pub(crate) repositories: Vec<Pin>,
}

/// A repository that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// Its id.
    pub(crate) repository: String,
    /// Of an encrypted one: a hash of its key.
    pub(crate) key: Option<String>,
    /// Its marker was authenticated with that key.
    pub(crate) sealed: bool,
    /// The newest generation of each series.
    #[serde(default)]
    pub(crate) series: BTreeMap<String, u64>,
    /// The point of each that had it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) newest: BTreeMap<String, PointId>,
    /// The first point of each, where it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) begun: BTreeMap<String, PointId>,
    /// Series that a command of this user has listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) listed: BTreeMap<String, SeenSeries>,
}

/// What a user has seen of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenSeries {
    /// The newest generation.
    pub(crate) generation: u64,
    /// The point that had it.
    pub(crate) newest: Option<PointId>,
    /// Its first point.
    pub(crate) begun: Option<PointId>,
}

impl Pin {
    pub(crate) fn of(marker: &Marker, master: Option<&MasterKey>) -> Self {
        let hash = |master: &MasterKey| blake3::derive_key("lunway 2026 repository pin", &**master);
        Self {
            repository: marker.repository.clone(),
            key: master.map(|master| blake3::Hash::from_bytes(hash(master)).to_hex().to_string()),
            sealed: marker.is_sealed(),
            series: BTreeMap::new(),
            newest: BTreeMap::new(),
            begun: BTreeMap::new(),
            listed: BTreeMap::new(),
        }
    }

    pub(crate) fn forget(&mut self, series: &str) -> bool {
        let was = (self.series.remove(series), self.newest.remove(series), self.begun.remove(series));
        self.listed.remove(series).is_some() || was != (None, None, None)
    }

    /// Remembers series that were listed, the last state of each, while there is room for more.
    pub(crate) fn list<'a>(&mut self, listed: impl Iterator<Item = (&'a str, SeenSeries)>) {
        for (series, seen) in listed {
            let is_left = match self.listed.get(series) {
                Some(known) => known.generation > seen.generation && known.begun == seen.begun,
                None => self.listed.len() >= LISTED_MAX,
            };
            if !is_left {
                self.listed.insert(series.to_owned(), seen);
            }
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.repository, &self.key) == (&other.repository, &other.key)
    }

    /// The same without what is known of its series.
    pub(crate) fn bare(&self) -> Self {
        let mut bare = self.clone();
        for map in [&mut bare.newest, &mut bare.begun] {
            map.clear();
        }
        bare.series.clear();
        bare.listed.clear();
        bare
    }

    /// Takes over what was seen of the same repository elsewhere: of each series what was seen last.
    pub(crate) fn take_over(&mut self, other: &Self) {
        self.sealed |= other.sealed;
        for (series, generation) in &other.series {
            if self.series.get(series).is_some_and(|known| known >= generation) {
                continue;
            }
            self.forget(series);
            self.series.insert(series.clone(), *generation);
            self.newest.extend(other.newest.get(series).map(|newest| (series.clone(), *newest)));
            self.begun.extend(other.begun.get(series).map(|begun| (series.clone(), *begun)));
        }
        self.list(other.listed.iter().map(|(series, seen)| (series.as_str(), *seen)));
    }
}

impl Seen {
    pub(crate) fn find(&self, wanted: &Pin) -> Option<&Pin> {
        self.repositories.iter().find(|pin| pin.is_same(wanted))
    }

    /// Adds a repository, or what is new of one that is known.
    pub(crate) fn add(&mut self, found: Pin) {
        if let Some(known) = self.repositories.iter_mut().find(|pin| pin.is_same(&found)) {
            return known.take_over(&found);
        }
        self.repositories.push(found);
        let excess = self.repositories.len().saturating_sub(REPOSITORIES_MAX);
        self.repositories.drain(..excess);
    }
}
