//! Another size of a device that is used.
//!
//! ```text
//!   1  flush     what was accepted is durable, and the names lead to the files; an error leaves the disk open as it is
//!   2  close
//!   3  resize    one transaction on the closed file: `lunway_vhdx::resize`
//!   4  open      whatever became of 2 and 3
//! ```
//!
//! Operations that come meanwhile wait. The file stays locked.

use lunway_block::{BlockError, Permit};
use lunway_vhdx::merge::children;
use lunway_vhdx::{DiskError, EditError, Resize};

use crate::chain_state::ChainState;
use crate::device::{Inner, meaning};
use crate::names;
use crate::random_guids;
use crate::unopened::Unopened;

impl Inner {
    /// Gives the disk another size. An error leaves it as it was, or, where the change was already durable, as it was
    /// asked to be.
    pub(crate) fn resize(&self, size: u64, permit: &Permit) -> Result<(), BlockError> {
        let refused = |why: String| BlockError::Size { why };
        self.refuse_pulled().map_err(refused)?;
        // Waits for operations under way, and holds back those that come.
        let mut state = self.alone();
        let chain = state.chain()?;
        let unopened = Unopened::of(chain)?;
        // Children are looked for by the name.
        names::check(chain).map_err(refused)?;
        let path = chain.paths().first().cloned().unwrap_or_default();
        match children(&path).as_deref() {
            Ok([]) => {}
            Ok([child, ..]) => {
                return Err(refused(format!(
                    "it is the parent of {}, which could not be opened any more: merge it first",
                    child.display()
                )));
            }
            Err(error) => return Err(refused(error.to_string())),
        }
        let mut guids = random_guids().map_err(|error| refused(error.to_string()))?;
        let parent_size = chain.disks().get(1).map(|parent| parent.parameters().disk_size);
        chain.flush().map_err(meaning)?;
        // The search and the flush may have taken long.
        names::check(chain).map_err(refused)?;
        permit.begin()?;
        let closed = state.take().map_or(Ok(()), |chain| chain.close().map_err(EditError::Disk));
        let to = Resize { size, parent_size, data_write: None };
        let resized = closed.and_then(|()| lunway_vhdx::resize(unopened.file(), &to, guids.as_mut()));
        *state = unopened.open();
        let failed = match &*state {
            ChainState::Unopened(unopened) => Some(unopened.why().to_owned()),
            ChainState::Open(_) | ChainState::Closed => None,
        };
        // Also after an error: it may have come when the new size was durable, and users must know that.
        self.go_on(state);
        match (resized, failed) {
            (Ok(()), None) => Ok(()),
            // With its figures, which no error of a device has.
            (Err(EditError::Disk(error @ DiskError::Short { .. })), None) => Err(refused(error.to_string())),
            (Err(EditError::Disk(error)), None) => Err(meaning(error)),
            (Err(error), None) => Err(refused(error.to_string())),
            (resized, Some(why)) => Err(refused(format!(
                "{}, and the file cannot be opened again: {why}; its disk fails as a medium until it can",
                resized.map_or_else(|error| error.to_string(), |()| "the size has changed".to_owned())
            ))),
        }
    }
}
