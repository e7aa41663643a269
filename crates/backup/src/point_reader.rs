//! A point that is read where it lies, and proven as it is read: each leaf is compared with its hash.

use lunway_vhdx::{Chain, Locator};

use crate::catalogue::Catalogue;
use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open};
use crate::history::History;
use crate::leaf::{Leaf, UNIT, leaf_range};
use crate::manifest::Manifest;
use crate::point_id::PointId;

/// A point, open for reading.
pub struct PointReader {
    chain: Chain<Open>,
    history: History,
    point: PointId,
}

impl PointReader {
    /// Opens a point. Blocks.
    ///
    /// # Errors
    ///
    /// Where a file is missing, damaged, or was written to.
    pub fn open(folder: &dyn Folder, catalogue: &Catalogue, point: PointId) -> Result<Self> {
        let chain = catalogue.open(folder, point)?;
        Ok(Self { chain, history: catalogue.history(folder, point)?, point })
    }

    /// The files, the point's own first.
    pub fn chain(&self) -> &Chain<Open> {
        &self.chain
    }

    /// The first place at `offset` or behind it where the point may have data. Blocks.
    ///
    /// # Errors
    ///
    /// [`BackupError::Damaged`].
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        if offset >= self.chain.size() {
            return Ok(None);
        }
        let next = self.history.next((offset / UNIT) as u32)?;
        Ok(next.map(|unit| (u64::from(unit) * UNIT).max(offset)).filter(|next| *next < self.chain.size()))
    }

    /// Fills `buf` with what the disk holds from `offset` on, the beginning of a unit ([`UNIT`]): whole units, but for
    /// the end of the disk. `false`: all of it is zeroes. Blocks.
    ///
    /// # Errors
    ///
    /// [`BackupError::Damaged`] where it is not what was backed up; what is in `buf` is not to be used then.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let mut has_data = false;
        for (number, piece) in buf.chunks_mut(UNIT as usize).enumerate() {
            has_data |= self.read_unit((offset / UNIT) as u32 + number as u32, piece)?;
        }
        Ok(has_data)
    }

    fn read_unit(&self, unit: u32, buf: &mut [u8]) -> Result<bool> {
        let size = self.chain.size();
        let states = self.history.unit_with_layers(unit)?;
        if states.iter().all(|(leaf, _)| *leaf == Leaf::Zero) {
            buf.fill(0);
            return Ok(false);
        }
        let start = u64::from(unit) * UNIT;
        self.chain.read_at(start, buf).map_err(BackupError::disk("the chain"))?;
        for (leaf, (state, layer)) in states.iter().enumerate() {
            let range = leaf_range(unit, leaf, size);
            let bytes = &buf[(range.start - start) as usize..(range.end - start) as usize];
            if !bytes.is_empty() && Leaf::of(bytes) != *state {
                let layer = layer.and_then(|layer| self.history.layers().get(layer));
                return Err(BackupError::Damaged {
                    point: layer.map_or(self.point, |layer| layer.point),
                    what: format!("its data at offset {} are not what was sent", range.start),
                });
            }
        }
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
