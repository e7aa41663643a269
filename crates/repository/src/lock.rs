//! Locks of which no holder leaves anything half done: one that panicked hands over what there is.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
