//! The leaves of a point, through all points on which it lies.

use crate::error::Result;
use crate::folder::Folder;
use crate::leaf::{LEAVES, Leaf, UnitLeaves, leaf_range};
use crate::manifest::Manifest;
use crate::point_files::{damaged, open_sidecar};
use crate::point_id::PointId;
use crate::sidecar::Sidecar;
use crate::threads::each;

/// Leaves of one point.
pub struct Layer {
    pub(crate) point: PointId,
    pub(crate) size: u64,
    pub(crate) sidecar: Sidecar,
}

/// Known state of all leaves of a point. The newest point that holds a leaf decides; a leaf that no point holds is
/// zeroes.
#[derive(Default)]
pub struct History {
    /// The point's own first.
    layers: Vec<Layer>,
}

impl History {
    /// Opens the sidecars of a chain, the newest first.
    pub(crate) fn open(folder: &dyn Folder, chain: &[&Manifest]) -> Result<Self> {
        let layers = each(chain, |manifest| {
            let sidecar = open_sidecar(folder, manifest)?;
            Ok(Layer { point: manifest.point, size: manifest.virtual_bytes, sidecar })
        });
        Ok(Self { layers: layers.into_iter().collect::<Result<_>>()? })
    }

    /// Reads the beginning of the newest point's leaves, if there is any. Each read of a share is a round trip or two.
    pub(crate) fn read_ahead(&self) -> Result<()> {
        if let Some(layer) = self.layers.first().filter(|layer| !layer.sidecar.segments().is_empty()) {
            layer.sidecar.segment(0).map_err(|error| damaged(layer.point, error))?;
        }
        Ok(())
    }

    /// The layers, the point's own first.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the leaves of a unit.
    ///
    /// # Errors
    ///
    /// [`BackupError::Damaged`](crate::BackupError::Damaged).
    pub fn unit(&self, unit: u32) -> Result<[Leaf; LEAVES]> {
        Ok(self.unit_with_layers(unit)?.map(|(leaf, _)| leaf))
    }

    /// The same, and which layer says so: none where no layer does.
    pub(crate) fn unit_with_layers(&self, unit: u32) -> Result<[(Leaf, Option<usize>); LEAVES]> {
        let mut leaves = [(Leaf::Zero, None); LEAVES];
        let mut open = u16::MAX;
        for (number, layer) in self.layers.iter().enumerate() {
            // Behind the end of a smaller disk there were zeroes, whatever older points had there.
            for leaf in 0..LEAVES {
                if open >> leaf & 1 == 1 && leaf_range(unit, leaf, layer.size).is_empty() {
                    open &= !(1 << leaf);
                }
            }
            if open == 0 {
                break;
            }
            let found = layer.sidecar.unit(unit).map_err(|error| damaged(layer.point, error))?;
            let Some(found) = found else { continue };
            for leaf in (0..LEAVES).filter(|leaf| open >> leaf & 1 == 1) {
                if let Some(state) = found.get(leaf) {
                    leaves[leaf] = (state, Some(number));
                }
            }
            open &= !found.changed;
        }
        Ok(leaves)
    }

    /// The first unit at or behind `unit` of which a point holds something.
    ///
    /// # Errors
    ///
    /// [`BackupError::Damaged`](crate::BackupError::Damaged).
    pub fn next(&self, unit: u32) -> Result<Option<u32>> {
        let mut first = None;
        for layer in &self.layers {
            let next = layer.sidecar.next(unit).map_err(|error| damaged(layer.point, error))?;
            first = [first, next].into_iter().flatten().min();
            if first == Some(unit) {
                break;
            }
        }
        Ok(first)
    }

    /// A unit of which a point holds something, the one that `number` falls on.
    pub(crate) fn sample(&self, number: u64) -> Result<Option<u32>> {
        let total: u64 = self.layers.iter().map(|layer| layer.sidecar.segments().len() as u64).sum();
        let Some(mut at) = number.checked_rem(total) else { return Ok(None) };
        for layer in &self.layers {
            let count = layer.sidecar.segments().len() as u64;
            if at >= count {
                at -= count;
                continue;
            }
            let units = layer.sidecar.segment(at as usize).map_err(|error| damaged(layer.point, error))?;
            let within = (number / total).checked_rem(units.len() as u64).unwrap_or(0);
            return Ok(units.get(within as usize).map(|leaves: &UnitLeaves| leaves.unit));
        }
        Ok(None)
    }
}
