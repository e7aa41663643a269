//! Store for state that must outlive the process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use lunway_block::Io;

/// Reason why kept state cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// There and not what was written, or not of a version that is known. It is never taken for absent: a reservation
    /// that is lost silently lets two hosts write one file system.
    #[error("the {item} kept for {owner:?} are damaged: {why}; {}", remedy(.item))]
    Damaged {
        /// Owner of the item.
        owner: String,
        /// Name of the item.
        item: String,
        /// Description of the damage.
        why: String,
    },
    /// The store could not be read or written.
    #[error("the {item} of {owner:?} cannot be kept: {why}")]
    Unavailable {
        /// Owner of the item.
        owner: String,
        /// Name of the item.
        item: String,
        /// Message of the system.
        why: String,
    },
}

/// Remedy of an item that is damaged. The sentence before it names the item.
fn remedy(item: &str) -> &'static str {
    match item {
        item::RESERVATIONS => {
            "restore it from a backup; or make sure that no two hosts use the disk, and move it away: the persistent \
             reservations are then gone, and hosts have to register again"
        }
        item::SANITIZE => {
            "restore it from a backup; or move it away, and sanitize the disk again: data that were to be erased may be there still"
        }
        item::MODE_PAGES => {
            "restore it from a backup, or move it away: the mode parameters are then the defaults, the write protection \
             of initiators among them"
        }
        item::PORT_GROUPS => {
            "restore it from a backup, or move it away: the access states are then those of the configuration"
        }
        _ => "restore it from a backup, or move it away",
    }
}

/// Store for state that must outlive the process: small blobs by owner and item.
///
/// Owners are identities of logical units (`LogicalUnitOptions::identity`) and names of targets; items are those of
/// [`item`](crate::state_item). The device server decides what is in a blob; a store keeps bytes.
///
/// # Contract
///
/// - `save` is durable and atomic when it answers: after a crash at any moment `load` gives either the bytes of this
///   call or those before it, never a mixture and never nothing where there was something.
/// - Saves of one owner and item take effect in the order of the calls. One that waits for another thing may be left
///   out
///   where a later one follows: then both answer when the later one is durable.
/// - `load` tells damage from absence. It may block: it is called only when units and targets are made.
/// - `save` does not block: where it takes time it answers later. Who drops the answer abandons that, not the save. An
///   empty blob removes the item.
pub trait StateStore: fmt::Debug + Send + Sync {
    /// Loads the bytes that were saved last; `None`: nothing was.
    fn load(&self, owner: &str, item: &str) -> Result<Option<Vec<u8>>, StateError>;

    /// Keeps `bytes` in place of what was saved before.
    fn save(&self, owner: &str, item: &str, bytes: Vec<u8>) -> Io<Result<(), StateError>>;
}

/// Items of a [`StateStore`].
pub mod item {
    /// Registrations and the persistent reservation of a logical unit that were made with APTPL.
    pub const RESERVATIONS: &str = "reservations";
    /// A sanitize operation of a logical unit that has not ended, or has failed.
    pub const SANITIZE: &str = "sanitize";
    /// Mode pages of a logical unit saved by MODE SELECT with SP.
    pub const MODE_PAGES: &str = "mode-pages";
    /// Asymmetric access states of a target that SET TARGET PORT GROUPS chose.
    pub const PORT_GROUPS: &str = "port-groups";
    /// All that are a logical unit's.
    pub(crate) const OF_UNITS: [&str; 3] = [RESERVATIONS, SANITIZE, MODE_PAGES];
}

/// A store in memory: outlives logical units, not the process. For tests, and for targets that need no more.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<BTreeMap<(String, String), Vec<u8>>>);

impl StateStore for MemoryStore {
    fn load(&self, owner: &str, item: &str) -> Result<Option<Vec<u8>>, StateError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.get(&(owner.to_owned(), item.to_owned())).cloned())
    }

    fn save(&self, owner: &str, item: &str, bytes: Vec<u8>) -> Io<Result<(), StateError>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (owner.to_owned(), item.to_owned());
        if bytes.is_empty() {
            kept.remove(&key)
        } else {
            kept.insert(key, bytes)
        };
        Io::Ready(Ok(()))
    }
}
