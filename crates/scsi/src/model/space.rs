//! Thin provisioning as initiators see it: what is left of the backing store, and who is told when it gets little
//! (SBC-4 §4.7.3).

use std::sync::atomic::Ordering;

use crate::data::mode::THRESHOLD_EXPONENT;
use crate::model::logical_unit::LogicalUnit;
use crate::model::unit_attention::UnitAttention;

/// Resources in units of 2 to the power of [`THRESHOLD_EXPONENT`] blocks, as far as 32 bits reach.
fn units(bytes: u64, sector: u32) -> u32 {
    let unit = u64::from(sector.max(1)) << THRESHOLD_EXPONENT;
    u32::try_from(bytes / unit).unwrap_or(u32::MAX)
}

impl LogicalUnit {
    /// Used and available LBA mapping resources; `None` where the device is not thin, or cannot tell.
    pub(crate) fn mapping_resources(&self) -> Option<(u32, u32)> {
        let geometry = self.geometry();
        let space = self.device().space().filter(|_| geometry.unmap.is_thin())?;
        let sector = geometry.logical_sector;
        Some((units(space.allocated, sector), units(space.available, sector)))
    }

    /// The soft threshold as what is then left, where there is one.
    pub(crate) fn threshold(&self) -> Option<u32> {
        let percent = u64::from(self.threshold_percent()?.min(100));
        let geometry = self.geometry();
        let space = self.device().space().filter(|_| geometry.unmap.is_thin())?;
        let total = u128::from(space.used) + u128::from(space.available);
        let left = total * u128::from(100 - percent) / 100;
        Some(units(u64::try_from(left).unwrap_or(u64::MAX), geometry.logical_sector))
    }

    /// Looks whether the backing store is fuller than
    /// [`threshold_percent`](crate::LogicalUnitOptions::threshold_percent), and tells every nexus once when it has
    /// become so. The server of the unit calls it every few seconds; the device answers what it knows and waits for
    /// nothing.
    pub fn check_space(&self) {
        let Some(percent) = self.threshold_percent() else { return };
        let Some(space) = self.device().space().filter(|_| self.geometry().unmap.is_thin()) else { return };
        let total = u128::from(space.used) + u128::from(space.available);
        let reached = u128::from(space.used) * 100 >= total * u128::from(percent) && total != 0;
        if reached && !self.threshold_told().swap(true, Ordering::AcqRel) {
            self.establish(UnitAttention::SoftThresholdReached, None);
        } else if !reached {
            self.threshold_told().store(false, Ordering::Release);
        }
    }
}
