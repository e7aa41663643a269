//! The I_T_L nexuses of a logical unit. A nexus comes and goes in the same time however many others there are.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use crate::model::nexus::{ItlNexus, PortPair};

/// Nexuses that see a logical unit, by a hash of their ports: with thousands of sessions the ports themselves would
/// take more memory than the nexuses.
#[derive(Debug, Default)]
pub(crate) struct ItlNexuses {
    /// Initiators choose the names of their ports: none can know which of them have one hash.
    hasher: RandomState,
    /// In order of the hashes; those of one pair of ports beside each other.
    list: Vec<(u64, Weak<ItlNexus>)>,
}

impl ItlNexuses {
    pub(crate) fn all(&self) -> Vec<Arc<ItlNexus>> {
        self.list.iter().filter_map(|(_, itl)| itl.upgrade()).collect()
    }

    /// Those between these ports: one, and others that are still ending.
    pub(crate) fn of(&self, ports: &PortPair) -> impl Iterator<Item = Arc<ItlNexus>> {
        let hash = self.hasher.hash_one(ports);
        let same = self.list[self.first(hash)..].iter().take_while(move |(other, _)| *other == hash);
        same.filter_map(|(_, itl)| itl.upgrade()).filter(move |itl| itl.nexus().ports() == ports)
    }

    pub(crate) fn add(&mut self, itl: &Arc<ItlNexus>) {
        let hash = self.hasher.hash_one(itl.nexus().ports());
        self.list.insert(self.first(hash), (hash, Arc::downgrade(itl)));
    }

    pub(crate) fn remove(&mut self, itl: &ItlNexus) {
        let hash = self.hasher.hash_one(itl.nexus().ports());
        let first = self.first(hash);
        let mut same = self.list[first..].iter().take_while(|(other, _)| *other == hash);
        if let Some(at) = same.position(|(_, other)| std::ptr::eq(other.as_ptr(), itl)) {
            self.list.remove(first + at);
        }
    }

    fn first(&self, hash: u64) -> usize {
        self.list.partition_point(|(other, _)| *other < hash)
    }
}
