//! What a power-on of the target costs.

use std::io;

use lunway_block::BlockError;
use lunway_scsi::AdditionalSense;

use crate::slots::{Effect, Slots};

/// 29/00 power on, reset or bus device reset, 29/01 power on, 29/04 device internal reset: a cache may have been lost.
/// Not 29/02, 29/03 (resets that keep the cache) and 29/07 (I_T nexus loss).
pub(crate) fn is_power_on(code: AdditionalSense) -> bool {
    matches!(code.0, 0x2900 | 0x2901 | 0x2904)
}

/// What is known about the target's volatile cache.
///
/// A write that was acknowledged and not flushed is gone if the target lost its power. Nobody would notice: the target
/// comes back, the session comes back, reads give old data. So where a power-on is reported while acknowledged writes
/// are unflushed, each flush that waits then, or else the next one, fails once and says so.
///
/// Some targets report a power-on over every new session. With them, a lost connection alone makes a flush fail that
/// had no reason to: the price of not being silent about the other case.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) volatile: bool,
    pub(crate) trusted: bool,
    /// Writes acknowledged so far.
    pub(crate) written: u64,
    /// Of these, how many a flush has made durable.
    pub(crate) flushed: u64,
    /// What the next flush must report.
    pub(crate) unreported: Option<BlockError>,
}

impl Cache {
    pub(crate) fn power_on(&mut self, slots: &mut Slots) {
        if self.volatile && !self.trusted && self.written > self.flushed {
            let message =
                "the target reported a power-on while acknowledged writes were not flushed: they may be lost";
            tracing::error!("{message}");
            self.spoil(BlockError::Io { kind: io::ErrorKind::Other, message: message.to_owned() }, slots);
            self.flushed = self.written;
        }
    }

    pub(crate) fn spoil(&mut self, error: BlockError, slots: &mut Slots) {
        let mut heard = false;
        for (_, entry) in slots.iter_unanswered().filter(|(_, entry)| entry.effect == Effect::Flush) {
            entry.spoiled.get_or_insert_with(|| error.clone());
            heard = true;
        }
        if !heard {
            self.unreported.get_or_insert(error);
        }
    }
}
