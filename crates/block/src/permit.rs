//! Leave to begin work that somebody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::{BlockError, Fate};

const OPEN: u8 = 0;
const BEGUN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Leave to make one change of a device, which the caller takes back when it waits no longer.
///
/// A device that hangs answers a queued operation hours later: a disk must not be made smaller then, when the caller
/// has long been told that it was not. So the device asks with [`begin`](Self::begin) right before the first thing that
/// cannot be undone, and the caller [withdraws](Self::withdraw) at its deadline. One of the two comes first, and both
/// know which. Clones are one permit. A caller that waits as long as it takes passes a new one, and keeps none.
#[derive(Clone, Debug, Default)]
pub struct Permit(Arc<AtomicU8>);

impl Permit {
    /// The device begins. More than once is the same as once: a layer may ask before the device inside does.
    ///
    /// # Errors
    ///
    /// [`BlockError::Aborted`] with [`Fate::NotDone`]: it was withdrawn, and nothing may be changed.
    pub fn begin(&self) -> Result<(), BlockError> {
        match self.0.compare_exchange(OPEN, BEGUN, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(BEGUN) => Ok(()),
            Err(_) => Err(BlockError::Aborted { fate: Fate::NotDone }),
        }
    }

    /// Takes it back. `true`: the change was not begun, and never will be; `false`: it has begun, and may yet be made.
    pub fn withdraw(&self) -> bool {
        let was = self.0.compare_exchange(OPEN, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
        was != Err(BEGUN)
    }

    /// Returns `true` once it was taken back: for work that can still be undone after it has begun, and is then better
    /// not begun.
    pub fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire) == WITHDRAWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_decides() {
        let permit = Permit::default();
        let device = permit.clone();
        assert_eq!([device.begin(), device.begin()], [Ok(()), Ok(())]);
        assert!(!permit.withdraw() && !permit.withdraw() && !permit.is_withdrawn());
        assert_eq!(device.begin(), Ok(()), "it goes on");

        let permit = Permit::default();
        let device = permit.clone();
        assert!(!permit.is_withdrawn());
        assert!(permit.withdraw() && permit.withdraw() && permit.is_withdrawn());
        assert_eq!(device.begin().map_err(|error| error.fate()), Err(Fate::NotDone));
    }
}
