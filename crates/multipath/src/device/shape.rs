//! Geometry of the disk, agreed from its lanes.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use lunway_block::{Geometry, ResizeCallback};

use crate::LaneId;

/// Geometry of the disk, agreed from its lanes.
///
/// After a resize the lanes do not notice at the same time: each one hears of it with its next answer. Until all that
/// are connected agree, the disk has the **smallest** size that one of them tells: a smaller disk has lost its end
/// already, whichever lane says so, and a larger one could not be reached over a lane that has not noticed. Lanes that
/// are not connected have no say; they look again before they are up. A lane whose sectors have another size is
/// refused: it leads to another disk, or to one that was formatted anew.
pub(super) struct Shape {
    /// Of the disk.
    agreed: RwLock<Geometry>,
    told: Mutex<Told>,
}

struct Told {
    lanes: Vec<(Geometry, bool)>,
    callbacks: Vec<Arc<ResizeCallback>>,
}

impl Shape {
    /// By the first lane's geometry.
    pub(super) fn new(lanes: &[Geometry]) -> Self {
        let told =
            Told { lanes: lanes.iter().map(|&geometry| (geometry, false)).collect(), callbacks: Vec::new() };
        let first = lanes.first().copied().unwrap_or_else(|| Geometry::plain(0));
        let alike = lanes.iter().filter(|lane| lane.logical_sector == first.logical_sector);
        let agreed = RwLock::new(alike.fold(first, |all, lane| join(all, *lane)));
        Self { agreed, told: Mutex::new(told) }
    }

    /// A panic elsewhere leaves both whole: they are replaced, never edited in steps.
    pub(super) fn agreed(&self) -> Geometry {
        *self.agreed.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn on_resize(&self, callback: ResizeCallback) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).callbacks.push(Arc::new(callback));
    }

    /// A lane tells its geometry, or that it is connected or not. The callbacks have been called when this returns. An
    /// error says why the lane must not be used.
    pub(super) fn tell(&self, lane: LaneId, geometry: Geometry, connected: bool) -> Result<(), String> {
        // Held through the callbacks: changes are told one after another.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.agreed();
        if geometry.logical_sector != before.logical_sector {
            let (other, ours) = (geometry.logical_sector, before.logical_sector);
            return Err(format!(
                "its sectors have {other} bytes, the disk's have {ours}: it leads to another disk"
            ));
        }
        told.lanes[lane] = (geometry, connected);
        let connected = told.lanes.iter().filter(|(_, connected)| *connected).map(|(geometry, _)| *geometry);
        let Some(now) = connected.reduce(join) else { return Ok(()) };
        if now != before {
            *self.agreed.write().unwrap_or_else(PoisonError::into_inner) = now;
            told.callbacks.iter().for_each(|callback| callback(now));
        }
        Ok(())
    }

    /// The connected lanes, while they do not agree: who is behind depends on whether the disk has grown or shrunk, so
    /// all are asked.
    pub(super) fn behind(&self) -> Vec<LaneId> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let sizes =
            || told.lanes.iter().filter(|(_, connected)| *connected).map(|(geometry, _)| geometry.size);
        match (sizes().min(), sizes().max()) {
            (Some(least), Some(most)) if least != most => told
                .lanes
                .iter()
                .enumerate()
                .filter(|(_, (_, connected))| *connected)
                .map(|(id, _)| id)
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// The common geometry of two lanes to one disk.
fn join(one: Geometry, other: Geometry) -> Geometry {
    let limit = |one: u32, other: u32| match (one, other) {
        (0, limit) | (limit, 0) => limit,
        (one, other) => one.min(other),
    };
    Geometry {
        size: one.size.min(other.size),
        logical_sector: one.logical_sector,
        physical_sector: one.physical_sector.max(other.physical_sector),
        optimal_transfer: one.optimal_transfer.max(other.optimal_transfer),
        transfer_granularity: one.transfer_granularity.max(other.transfer_granularity),
        first_aligned: one.first_aligned.max(other.first_aligned),
        max_transfer: limit(one.max_transfer, other.max_transfer),
        unmap: one.unmap.both(other.unmap),
        read_only: one.read_only || other.read_only,
        volatile_cache: one.volatile_cache || other.volatile_cache,
        rotational: one.rotational || other.rotational,
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::Unmap;

    use super::*;
    use std::sync::mpsc::channel;

    const MIB: u64 = 1 << 20;

    fn shape(lanes: usize) -> Shape {
        let shape = Shape::new(&vec![Geometry::plain(MIB); lanes]);
        (0..lanes).for_each(|lane| shape.tell(lane, Geometry::plain(MIB), true).unwrap());
        shape
    }

    #[test]
    fn a_larger_disk_is_larger_when_every_connected_lane_has_noticed() {
        let (shape, (send, heard)) = (shape(3), channel());
        shape.on_resize(Box::new(move |geometry| send.send(geometry.size).unwrap()));
        shape.tell(2, Geometry::plain(MIB), false).unwrap();
        shape.tell(0, Geometry::plain(2 * MIB), true).unwrap();
        assert_eq!((shape.agreed().size, shape.behind()), (MIB, vec![0, 1]));
        shape.tell(1, Geometry::plain(2 * MIB), true).unwrap();
        assert_eq!((shape.agreed().size, shape.behind()), (2 * MIB, vec![]));
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [2 * MIB], "told once");
    }

    #[test]
    fn a_smaller_disk_is_smaller_as_soon_as_one_lane_has_noticed() {
        let (shape, (send, heard)) = (shape(2), channel());
        shape.on_resize(Box::new(move |geometry| send.send(geometry.size).unwrap()));
        shape.tell(1, Geometry::plain(MIB / 2), true).unwrap();
        assert_eq!(shape.agreed().size, MIB / 2);
        shape.tell(0, Geometry::plain(MIB / 2), true).unwrap();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [MIB / 2], "told once");
    }

    #[test]
    fn without_a_connected_lane_the_disk_stays_as_it_was() {
        let shape = shape(1);
        shape.tell(0, Geometry::plain(4 * MIB), false).unwrap();
        assert_eq!(shape.agreed().size, MIB);
    }

    #[test]
    fn other_sectors_are_another_disk() {
        let shape = shape(2);
        let why = shape.tell(1, Geometry::plain(MIB).with_sector(4096), true).unwrap_err();
        assert_eq!(why, "its sectors have 4096 bytes, the disk's have 512: it leads to another disk");
        assert_eq!(shape.agreed(), Geometry::plain(MIB));
    }

    #[test]
    fn the_disk_can_do_what_every_lane_can() {
        let zeroes = |granularity| Unmap::Zeroes { granularity };
        let one = Geometry { unmap: zeroes(4096), ..Geometry::plain(MIB) };
        let other = Geometry { max_transfer: MIB as u32, volatile_cache: true, unmap: zeroes(8192), ..one };
        let both = join(one, other);
        assert_eq!((both.max_transfer, both.volatile_cache, both.unmap), (MIB as u32, true, zeroes(8192)));
        let plain = join(both, Geometry { unmap: Unmap::Never, ..one });
        assert_eq!(plain.unmap, Unmap::Frees { granularity: 8192 });
    }
}
