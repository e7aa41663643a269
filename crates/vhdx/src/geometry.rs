//! Arithmetic of blocks, chunks and the table that interleaves them (2.4, 2.5).

use crate::format::{BatEntry, CHUNK_SECTORS, MIB, PAGE_U64};
use crate::metadata::{DiskKind, Parameters};

impl Parameters {
    /// Bytes of a region for the block table of such a disk.
    pub fn table_len(&self) -> u64 {
        Geometry::new(self).bat_region_len()
    }
}

/// Sizes and counts that follow from a file's parameters. Block and sector sizes are powers of two: all divisions are
/// shifts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) disk_size: u64,
    pub(crate) block_size: u64,
    pub(crate) sector: u64,
    pub(crate) blocks: u64,
    /// Payload blocks of one sector bitmap block.
    pub(crate) chunk_ratio: u64,
    pub(crate) kind: DiskKind,
}

impl Geometry {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let (block_size, sector) = (u64::from(parameters.block_size), u64::from(parameters.logical_sector));
        Self {
            disk_size: parameters.disk_size,
            block_size,
            sector,
            blocks: parameters.disk_size.div_ceil(block_size),
            chunk_ratio: CHUNK_SECTORS * sector / block_size,
            kind: parameters.kind,
        }
    }

    /// Entries of the table: a differencing disk's ends with a sector bitmap entry, others' with the last payload
    /// block.
    pub(crate) fn entries(&self) -> u64 {
        match self.kind {
            DiskKind::Differencing => self.chunks() * (self.chunk_ratio + 1),
            DiskKind::Dynamic | DiskKind::Fixed => self.blocks + (self.blocks - 1) / self.chunk_ratio,
        }
    }

    /// Bytes of a table region that holds the disk whatever its kind becomes.
    pub(crate) fn bat_region_len(&self) -> u64 {
        (self.chunks() * (self.chunk_ratio + 1) * size_of::<BatEntry>() as u64).next_multiple_of(MIB)
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.blocks.div_ceil(self.chunk_ratio)
    }

    pub(crate) fn chunk_of(&self, block: u64) -> u64 {
        block / self.chunk_ratio
    }

    /// Returns `true` if the table has an entry for a chunk's sector bitmap block.
    pub(crate) fn has_bitmap(&self, chunk: u64) -> bool {
        self.bitmap_index(chunk) < self.entries()
    }

    /// Index of a payload block's entry.
    pub(crate) fn payload_index(&self, block: u64) -> u64 {
        block + block / self.chunk_ratio
    }

    /// Index of a sector bitmap block's entry.
    pub(crate) fn bitmap_index(&self, chunk: u64) -> u64 {
        chunk * (self.chunk_ratio + 1) + self.chunk_ratio
    }

    /// Index of the first entry that no block of the disk has.
    pub(crate) fn first_behind(&self) -> u64 {
        self.entries().min(self.payload_index(self.blocks))
    }

    /// Returns the slot that an index of the table stands for.
    pub(crate) fn slot(&self, index: u64) -> Slot {
        let (chunk, within) = (index / (self.chunk_ratio + 1), index % (self.chunk_ratio + 1));
        match within == self.chunk_ratio {
            true => Slot::Bitmap(chunk),
            false => Slot::Payload(chunk * self.chunk_ratio + within),
        }
    }

    /// Bytes of the disk that a block holds: the last one may be cut.
    pub(crate) fn block_len(&self, block: u64) -> u64 {
        (self.disk_size - block * self.block_size).min(self.block_size)
    }

    /// Bits of one block in the sector bitmap.
    pub(crate) fn bits_per_block(&self) -> u64 {
        self.block_size / self.sector
    }

    /// The first bit of a block, counted in its bitmap block.
    pub(crate) fn first_bit(&self, block: u64) -> u64 {
        block % self.chunk_ratio * self.bits_per_block()
    }
}

/// Block that an entry of the table describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Payload(u64),
    Bitmap(u64),
}

/// The page of the file that holds entry `index` of a table at `bat`, and the entry's place in it.
pub(crate) fn entry_place(bat: u64, index: u64) -> (u64, usize) {
    let byte = index * size_of::<BatEntry>() as u64;
    (bat + byte / PAGE_U64 * PAGE_U64, (byte % PAGE_U64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Guid;

    fn geometry(kind: DiskKind, disk_size: u64, block_size: u32, logical_sector: u32) -> Geometry {
        let disk_id = Guid::ZERO;
        Geometry::new(&Parameters {
            kind,
            disk_size,
            block_size,
            logical_sector,
            physical_sector: 4096,
            disk_id,
            locator: None,
        })
    }

    #[test]
    fn chunk_ratios_are_those_of_the_standard() {
        let ratio =
            |sector, block: u32| geometry(DiskKind::Dynamic, 1 << 40, block << 20, sector).chunk_ratio;
        assert_eq!([ratio(512, 1), ratio(512, 2), ratio(512, 32), ratio(512, 256)], [4096, 2048, 128, 16]);
        assert_eq!(
            [ratio(4096, 1), ratio(4096, 2), ratio(4096, 32), ratio(4096, 256)],
            [32768, 16384, 1024, 128]
        );
    }

    #[test]
    fn payload_entries_step_over_bitmap_entries() {
        let geometry = geometry(DiskKind::Differencing, 64 << 40, 1 << 20, 512);
        assert_eq!((geometry.blocks, geometry.entries()), (1 << 26, (1 << 26) + (1 << 14)));
        assert_eq!(geometry.bat_region_len(), 513 << 20, "the largest table there is");
        for block in [0, 4095, 4096, 8191, 8192, (1 << 26) - 1] {
            assert_eq!(geometry.slot(geometry.payload_index(block)), Slot::Payload(block));
        }
        assert_eq!(geometry.slot(4096), Slot::Bitmap(0));
        assert_eq!(geometry.slot(geometry.bitmap_index(7)), Slot::Bitmap(7));
    }

    #[test]
    fn a_table_without_a_parent_ends_with_the_last_payload_block() {
        let entries = |kind, blocks: u64| geometry(kind, blocks << 25, 32 << 20, 512).entries();
        assert_eq!([entries(DiskKind::Dynamic, 128), entries(DiskKind::Dynamic, 129)], [128, 130]);
        assert_eq!([entries(DiskKind::Differencing, 1), entries(DiskKind::Differencing, 129)], [129, 258]);
    }
}
