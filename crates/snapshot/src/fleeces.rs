//! The fleeces of a device, as its changes meet them.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use crate::fleece::Fleece;

/// The fleeces in the way of changes.
#[derive(Debug, Default)]
pub(crate) struct Fleeces {
    /// `true` if there are any.
    any: AtomicBool,
    list: RwLock<Arc<[Arc<Fleece>]>>,
}

impl Fleeces {
    /// Returns those that have not ended.
    pub(crate) fn list(&self) -> Arc<[Arc<Fleece>]> {
        match self.any.load(SeqCst) {
            false => Arc::default(),
            true => Arc::clone(&self.list.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Adds one, and takes out those that have ended.
    pub(crate) fn add(&self, fleece: &Arc<Fleece>) {
        self.change(|list| list.push(Arc::clone(fleece)));
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Vec<Arc<Fleece>>)) {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<_> = list.iter().filter(|fleece| !fleece.has_ended()).cloned().collect();
        change(&mut new);
        self.any.store(!new.is_empty(), SeqCst);
        *list = new.into();
    }
}
