//! Volatile cache of the target: loss of unflushed writes by a power-on of the target.

use lunway_block::{BlockError, CacheCallback, CacheNews};
use lunway_scsi::AdditionalSense;

use crate::session::slots::{Effect, Slots};

/// 29/00 power on, reset or bus device reset, 29/01 power on, 29/04 device internal reset: a cache may have been lost.
/// Not 29/02, 29/03 (resets that keep the cache) and 29/07 (I_T nexus loss).
pub(crate) fn is_power_on(code: AdditionalSense) -> bool {
    matches!(code.0, 0x2900 | 0x2901 | 0x2904)
}

/// Knowledge of the target's volatile cache.
///
/// A write that was acknowledged and not flushed is gone if the target lost its power. No error would tell: the target
/// comes back, the session comes back, reads give old data. So where a power-on is reported while acknowledged writes
/// are unflushed, each flush that waits then, or else the next one, fails once and says so.
///
/// Some targets report a power-on over every new session. With them, a lost connection alone makes a flush fail that
/// had no reason to: the price of not being silent about the other case. Others (LIO) report none, whatever has
/// happened to them.
///
/// With a listener, which has the writes and can write them again, both are made good: it is told of every new session
/// that begins while acknowledged writes are unflushed, since nothing that a target says in one proves that it kept its
/// cache; and only flushes that wait then fail.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) volatile: bool,
    pub(crate) trusted: bool,
    /// Writes acknowledged so far.
    pub(crate) written: u64,
    /// Of these, how many a flush has made durable.
    pub(crate) flushed: u64,
    /// Error that the next flush must report.
    pub(crate) unreported: Option<BlockError>,
    /// Told of losses, under the session's lock.
    pub(crate) listener: Option<CacheCallback>,
}

impl Cache {
    /// The target reports a power-on.
    pub(crate) fn power_on(&mut self, slots: &mut Slots) {
        self.lose(true, slots);
    }

    /// A session follows one that was lost.
    pub(crate) fn new_session(&mut self, slots: &mut Slots) {
        if self.listener.is_some() {
            self.lose(false, slots);
        }
    }

    fn lose(&mut self, reported: bool, slots: &mut Slots) {
        if !self.volatile || self.trusted || self.written <= self.flushed {
            return;
        }
        self.flushed = self.written;
        let error = BlockError::UnflushedLost { reported };
        match &self.listener {
            Some(listener) => {
                spoil_flushes(&error, slots);
                listener(CacheNews::Lost { reported });
            }
            None => {
                tracing::error!("{error}");
                self.spoil(error, slots);
            }
        }
    }

    pub(crate) fn spoil(&mut self, error: BlockError, slots: &mut Slots) {
        if !spoil_flushes(&error, slots) {
            self.unreported.get_or_insert(error);
        }
    }
}

/// Has the flushes fail that wait. Says whether there are any.
fn spoil_flushes(error: &BlockError, slots: &mut Slots) -> bool {
    let mut heard = false;
    for (_, entry) in slots.iter_unanswered().filter(|(_, entry)| entry.effect == Effect::Flush) {
        entry.spoiled.get_or_insert_with(|| error.clone());
        heard = true;
    }
    heard
}
