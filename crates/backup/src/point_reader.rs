//! A point that is read where it lies, and proven as it is read: each leaf is compared with its hash.

use std::sync::Arc;

use lunway_vhdx::Locator;

use crate::catalogue::Catalogue;
use crate::content::Content;
use crate::error::Result;
use crate::folder::Folder;
use crate::leaf::{LEAF, Leaf, UNIT};
use crate::manifest::Manifest;
use crate::point_id::PointId;

/// A point, open for reading.
pub struct PointReader(Arc<dyn Content>);

impl PointReader {
    /// Of a point of any kind of destination.
    pub fn of(content: Arc<dyn Content>) -> Self {
        Self(content)
    }

    /// Opens a point of a chain. Blocks.
    ///
    /// # Errors
    ///
    /// Where a file is missing, damaged, or was written to.
    pub fn open(folder: &dyn Folder, catalogue: &Catalogue, point: PointId) -> Result<Self> {
        catalogue.content(folder, point).map(Self)
    }

    /// The first place at `offset` or behind it where the point may have data. Blocks.
    ///
    /// # Errors
    ///
    /// [`Damaged`](crate::BackupError::Damaged).
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.0.size();
        if offset >= size {
            return Ok(None);
        }
        let next = self.0.next((offset / UNIT) as u32)?;
        Ok(next.map(|unit| (u64::from(unit) * UNIT).max(offset)).filter(|next| *next < size))
    }

    /// Fills `buf` with what the disk holds from `offset` on, the beginning of a unit ([`UNIT`]): whole units, but for
    /// the end of the disk. `false`: all of it is zeroes. Blocks.
    ///
    /// # Errors
    ///
    /// [`Damaged`](crate::BackupError::Damaged) where it is not what was backed up; what is in `buf` is not to be used
    /// then.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let mut has_data = false;
        for (number, piece) in buf.chunks_mut(UNIT as usize).enumerate() {
            has_data |= self.read_unit((offset / UNIT) as u32 + number as u32, piece)?;
        }
        Ok(has_data)
    }

    fn read_unit(&self, unit: u32, buf: &mut [u8]) -> Result<bool> {
        let states = self.0.unit(unit)?;
        if states.iter().all(|leaf| *leaf == Leaf::Zero) {
            buf.fill(0);
            return Ok(false);
        }
        // In a chain, leaves of zeroes are read and compared as the others.
        self.0.read(unit, 0..buf.len().div_ceil(LEAF as usize), &states, buf)?;
        Ok(true)
    }
}

impl Catalogue {
    /// The point that a differencing disk was made on.
    pub fn parent_of(&self, locator: &Locator) -> Option<&Manifest> {
        let is_it =
            |manifest: &&Manifest| manifest.data_write.parse().is_ok_and(|guid| locator.matches(guid));
        self.points().iter().map(|point| &point.manifest).find(is_it)
    }
}
