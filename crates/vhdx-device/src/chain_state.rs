//! State of a device's chain of files: open, given up for a change, or closed.

use std::ops::{Deref, DerefMut};
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use lunway_block::BlockError;
use lunway_vhdx::Chain;

use crate::backing::Backing;
use crate::unopened::Unopened;

/// State of the chain behind a device.
pub(crate) enum ChainState {
    /// Open: operations share it.
    Open(Chain<Backing>),
    /// A change of the device gave it up, and it could not be opened again yet.
    Unopened(Unopened),
    /// Closed for good.
    Closed,
}

impl ChainState {
    /// The chain, for what is not tried again.
    pub(crate) fn chain(&self) -> Result<&Chain<Backing>, BlockError> {
        match self {
            Self::Open(chain) => Ok(chain),
            Self::Unopened(unopened) => Err(unopened.error(0)),
            Self::Closed => Err(closed()),
        }
    }

    /// The chain, taken out; the state is closed.
    pub(crate) fn take(&mut self) -> Option<Chain<Backing>> {
        match std::mem::replace(self, Self::Closed) {
            Self::Open(chain) => Some(chain),
            Self::Unopened(_) | Self::Closed => None,
        }
    }
}

/// Error of operations on a closed device.
pub(crate) fn closed() -> BlockError {
    BlockError::gone("the VHDX file was closed")
}

/// The state, held by one.
pub(crate) struct Alone<'a> {
    state: RwLockWriteGuard<'a, ChainState>,
    wanting: &'a AtomicUsize,
}

impl<'a> Alone<'a> {
    /// `wanting` counts those that hold the state, or wait for it.
    pub(crate) fn new(
        wanting: &'a AtomicUsize,
        lock: impl FnOnce() -> RwLockWriteGuard<'a, ChainState>,
    ) -> Self {
        wanting.fetch_add(1, Ordering::AcqRel);
        Self { state: lock(), wanting }
    }
}

impl Deref for Alone<'_> {
    type Target = ChainState;

    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl DerefMut for Alone<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.state
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.wanting.fetch_sub(1, Ordering::AcqRel);
    }
}
