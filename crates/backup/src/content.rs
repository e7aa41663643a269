//! The content of a point, whatever it lies in: what is restored, compared and mounted.

use std::ops::Range;

use lunway_vhdx::Chain;

use crate::error::{BackupError, Result};
use crate::folder::Open;
use crate::history::History;
use crate::leaf::{LEAVES, Leaf, leaf_range};
use crate::point_id::PointId;

/// Content of a point. Calls block and come from any thread.
pub trait Content: Send + Sync + 'static {
    /// Size of the disk, bytes.
    fn size(&self) -> u64;

    /// The first unit at or behind `unit` that may hold anything but zeroes.
    ///
    /// # Errors
    ///
    /// [`BackupError::Damaged`], or what the folder says.
    fn next(&self, unit: u32) -> Result<Option<u32>>;

    /// The leaves of a unit.
    ///
    /// # Errors
    ///
    /// As of [`next`](Self::next).
    fn unit(&self, unit: u32) -> Result<[Leaf; LEAVES]>;

    /// The leaf that these bytes are.
    fn leaf_of(&self, bytes: &[u8]) -> Leaf;

    /// Reads neighbouring leaves, and compares them with `states`, which is what [`unit`](Self::unit) says; of those
    /// that are zeroes a chain reads and compares the bytes as well. `data` has their bytes' length.
    ///
    /// # Errors
    ///
    /// As of [`next`](Self::next): also where a leaf is not what it should be.
    fn read(&self, unit: u32, leaves: Range<usize>, states: &[Leaf; LEAVES], data: &mut [u8]) -> Result<()>;
}

/// Content of a point in a chain of VHDX files.
pub(crate) struct ChainContent {
    pub(crate) chain: Chain<Open>,
    pub(crate) history: History,
    pub(crate) point: PointId,
}

impl ChainContent {
    /// The point whose file holds a leaf.
    fn holder(&self, unit: u32, leaf: usize) -> Result<PointId> {
        let (_, layer) = self.history.unit_with_layers(unit)?[leaf];
        let layer = layer.and_then(|layer| self.history.layers().get(layer));
        Ok(layer.map_or(self.point, |layer| layer.point))
    }
}

impl Content for ChainContent {
    fn size(&self) -> u64 {
        self.chain.size()
    }

    fn next(&self, unit: u32) -> Result<Option<u32>> {
        self.history.next(unit)
    }

    fn unit(&self, unit: u32) -> Result<[Leaf; LEAVES]> {
        self.history.unit(unit)
    }

    fn leaf_of(&self, bytes: &[u8]) -> Leaf {
        Leaf::of(bytes)
    }

    fn read(&self, unit: u32, leaves: Range<usize>, states: &[Leaf; LEAVES], data: &mut [u8]) -> Result<()> {
        let start = leaf_range(unit, leaves.start, self.size()).start;
        self.chain.read_at(start, data).map_err(BackupError::disk("the chain"))?;
        for leaf in leaves {
            let of = leaf_range(unit, leaf, self.size());
            let bytes = &data[(of.start - start) as usize..(of.end - start) as usize];
            if Leaf::of(bytes) != states[leaf] {
                return Err(BackupError::Damaged {
                    point: self.holder(unit, leaf)?,
                    what: format!("its data at offset {} are not what was sent", of.start),
                });
            }
        }
        Ok(())
    }
}
