//! State of a track file: closed epochs, the open one, hot regions; and the effect of each log entry on it.

use std::collections::BTreeSet;

use crate::changes::EpochId;
use crate::format::{Damage, EPOCHS_MAX, RecordEntry};
use crate::grain::{GRAIN, HOT_MAX, WORD_GRAINS, WRITTEN};
use crate::map::Map;

/// A closed epoch that is still referred to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) id: EpochId,
    /// The one before; zeroes: the first of its chain.
    pub(crate) parent: EpochId,
    /// The least size that the disk had in it, bytes.
    pub(crate) low: u64,
    /// Changes in the epoch; of the oldest none, because nothing older can be asked for.
    pub(crate) map: Map,
}

/// The state of a chain of epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrackState {
    pub(crate) size: u64,
    /// The least size in the open epoch, bytes.
    pub(crate) low: u64,
    pub(crate) region_grains: u64,
    /// Everything was left in order.
    pub(crate) clean: bool,
    /// See [`Backing`](crate::Backing).
    pub(crate) lasting: Vec<u8>,
    /// See [`Backing`](crate::Backing).
    pub(crate) exact: Vec<u8>,
    /// Reason why the chain does not go further back; empty: tracking began then.
    pub(crate) reason: String,
    pub(crate) hot: BTreeSet<u64>,
    /// Oldest first.
    pub(crate) epochs: Vec<Epoch>,
    /// Changes since the last epoch was closed.
    pub(crate) live: Map,
}

/// Outcome for an epoch's map when it is released.
pub(crate) enum Released {
    /// Something older or nothing needs it: done.
    Done,
    /// Belongs below the open epoch's.
    BelowLive(Map),
}

impl TrackState {
    /// A chain that begins.
    pub(crate) fn new(size: u64, region_grains: u64, reason: String) -> Self {
        Self {
            size,
            low: size,
            region_grains,
            clean: false,
            lasting: Vec::new(),
            exact: Vec::new(),
            reason,
            hot: BTreeSet::new(),
            epochs: Vec::new(),
            live: Map::default(),
        }
    }

    /// Applies an entry, when the log is read.
    pub(crate) fn apply(&mut self, entry: &RecordEntry) -> Result<(), Damage> {
        match entry {
            RecordEntry::Hot(region) => {
                self.hot.insert(*region);
                if self.hot.len() > HOT_MAX {
                    return Err(Damage("its log has more hot regions than there may be"));
                }
            }
            RecordEntry::Region { region, cold, states } => {
                self.live.set_words(region * self.region_grains / WORD_GRAINS, states);
                if *cold {
                    self.hot.remove(region);
                }
            }
            RecordEntry::Range { first, count, state } => self.live.set(*first, first + count, *state),
            RecordEntry::Size(size) => self.resize(*size),
            RecordEntry::Close(id) => {
                if !self.hot.is_empty() {
                    return Err(Damage("its log closes an epoch that has hot regions"));
                }
                let live = std::mem::take(&mut self.live);
                self.close(*id, live).map_err(|_| Damage("its log closes an epoch that cannot be closed"))?;
            }
            RecordEntry::Release(id) => match self.release(*id) {
                Some(Released::Done) => {}
                Some(Released::BelowLive(mut map)) => {
                    map.overlay(&self.live);
                    self.live = map;
                }
                None => return Err(Damage("its log releases an epoch that is not there")),
            },
        }
        Ok(())
    }

    /// The disk may have another size from now on.
    pub(crate) fn resize(&mut self, size: u64) {
        self.low = self.low.min(self.size).min(size);
        self.size = size;
    }

    /// Closes the open epoch, whose map is `live`. `Err` gives it back: the name is taken, or there are too many.
    pub(crate) fn close(&mut self, id: EpochId, live: Map) -> Result<(), Map> {
        let taken = id == EpochId([0; 16]) || self.epochs.iter().any(|epoch| epoch.id == id);
        if taken || self.epochs.len() >= EPOCHS_MAX {
            return Err(live);
        }
        let parent = self.epochs.last().map_or(EpochId([0; 16]), |epoch| epoch.id);
        let map = if self.epochs.is_empty() { Map::default() } else { live };
        self.epochs.push(Epoch { id, parent, low: self.low, map });
        self.low = self.size;
        Ok(())
    }

    /// Forgets a closed epoch: what changed in it is merged into the next one. `None`: there is no such epoch.
    pub(crate) fn release(&mut self, id: EpochId) -> Option<Released> {
        let index = self.epochs.iter().position(|epoch| epoch.id == id)?;
        let Epoch { parent, low, mut map, .. } = self.epochs.remove(index);
        if let Some(next) = self.epochs.get_mut(index) {
            next.parent = parent;
            if index == 0 {
                next.map = Map::default();
            } else {
                map.overlay(&next.map);
                next.map = map;
                next.low = next.low.min(low);
            }
            return Some(Released::Done);
        }
        if index == 0 {
            return Some(Released::Done);
        }
        self.low = self.low.min(low);
        Some(Released::BelowLive(map))
    }

    /// After a crash: what was hot may be written.
    pub(crate) fn settle(&mut self) {
        for region in std::mem::take(&mut self.hot) {
            self.live.set(region * self.region_grains, (region + 1) * self.region_grains, WRITTEN);
        }
    }
}

/// Grains that a disk of `size` bytes has, the last one counted whole.
pub(crate) fn grains(size: u64) -> u64 {
    size.div_ceil(GRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grain::UNMAPPED;

    #[test]
    fn a_released_epoch_is_merged_into_the_next_one() {
        let mut state = TrackState::new(1 << 30, 64, String::new());
        let id = |n| EpochId([n; 16]);
        let write = |grain| RecordEntry::Range { first: grain, count: 1, state: WRITTEN };
        for n in 1..=3 {
            state.apply(&write(n.into())).unwrap();
            state.apply(&RecordEntry::Close(id(n))).unwrap();
        }
        state.apply(&RecordEntry::Range { first: 3, count: 1, state: UNMAPPED }).unwrap();
        assert_eq!(state.epochs[0].map, Map::default(), "nothing is older than the oldest");
        assert!(state.clone().apply(&RecordEntry::Close(id(3))).is_err());
        state.apply(&RecordEntry::Release(id(2))).unwrap();
        assert_eq!((state.epochs[1].parent, state.epochs[1].map.touched()), (id(1), 2));
        state.apply(&RecordEntry::Release(id(3))).unwrap();
        assert_eq!(state.live.touched(), 2);
        assert_eq!(state.live.pages[&0][0], 0b01_10_00_00);
        assert!(state.apply(&RecordEntry::Release(id(3))).is_err());
    }
}
