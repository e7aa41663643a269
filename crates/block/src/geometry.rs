//! Size, sectors and limits of a device.

use crate::BlockError;

/// Treatment of the space behind a range that is unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmap {
    /// All space is the device's from the beginning, and stays: `unmap` does nothing.
    Never,
    /// The same, and what has no space behind it reads as zeroes: a sparse file that is only read.
    Holes,
    /// Space is allocated when written, and stays: `unmap` does nothing.
    Ignored,
    /// Space is allocated when written; `unmap` gives whole units of `granularity` bytes back. What was unmapped reads
    /// as anything.
    Frees {
        /// Not 0.
        granularity: u32,
    },
    /// The same, and all of the range that was unmapped reads as zeroes.
    Zeroes {
        /// Not 0.
        granularity: u32,
    },
}

impl Unmap {
    /// Space is allocated when written.
    pub fn is_thin(self) -> bool {
        !matches!(self, Self::Never | Self::Holes)
    }

    /// Returns `true` if `unmap` frees space.
    pub fn frees(self) -> bool {
        matches!(self, Self::Frees { .. } | Self::Zeroes { .. })
    }

    /// Returns `true` if ranges without space behind them, because they were unmapped or never written, read as zeroes.
    pub fn zeroes(self) -> bool {
        matches!(self, Self::Zeroes { .. } | Self::Holes)
    }

    /// The unit in which space is given back, bytes; 0 where none is.
    pub fn granularity(self) -> u32 {
        match self {
            Self::Frees { granularity } | Self::Zeroes { granularity } => granularity,
            Self::Never | Self::Holes | Self::Ignored => 0,
        }
    }

    /// Returns the behaviour that holds for both: for two paths to one disk that do not report the same.
    pub fn both(self, other: Self) -> Self {
        let granularity = self.granularity().max(other.granularity());
        match (self, other) {
            (Self::Zeroes { .. }, Self::Zeroes { .. }) => Self::Zeroes { granularity },
            _ if self.frees() || other.frees() => Self::Frees { granularity },
            _ if self.zeroes() && other.zeroes() => Self::Holes,
            _ if !self.is_thin() && !other.is_thin() => Self::Never,
            _ => Self::Ignored,
        }
    }
}

/// Geometry of a device. All figures are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity; a multiple of `logical_sector`.
    pub size: u64,
    /// The unit of addressing: 512 or 4096.
    pub logical_sector: u32,
    /// The unit that the device writes without reading first; a multiple of `logical_sector`.
    pub physical_sector: u32,
    /// Transfers of this length, so aligned, go best; 0: no preference.
    pub optimal_transfer: u32,
    /// Transfers that begin and end at multiples of this, counted from `first_aligned`, need no work beside their own;
    /// 0: no more than `physical_sector` says.
    pub transfer_granularity: u32,
    /// Offset of the first whole physical sector: not 0 for a disk that was partitioned by its emulation.
    pub first_aligned: u32,
    /// Callers should not exceed this in one operation; 0: no limit.
    pub max_transfer: u32,
    /// Thin provisioning: whether space is allocated when written, and what `unmap` does.
    pub unmap: Unmap,
    /// Writes are refused.
    pub read_only: bool,
    /// Completed writes may be lost in a power cut until flushed.
    pub volatile_cache: bool,
    /// Made of moving parts, so that neighbouring addresses are cheaper.
    pub rotational: bool,
}

impl Geometry {
    /// A plain volume of `size` bytes: 512-byte sectors, no limits, not thin. `size` is rounded down to whole sectors.
    pub fn plain(size: u64) -> Self {
        Self {
            size: size / 512 * 512,
            logical_sector: 512,
            physical_sector: 512,
            optimal_transfer: 0,
            transfer_granularity: 0,
            first_aligned: 0,
            max_transfer: 0,
            unmap: Unmap::Never,
            read_only: false,
            volatile_cache: false,
            rotational: false,
        }
    }

    /// The same with another logical sector; the physical one grows with it, the size is rounded down to whole sectors.
    pub fn with_sector(mut self, logical_sector: u32) -> Self {
        self.logical_sector = logical_sector;
        self.physical_sector = self.physical_sector.max(logical_sector);
        self.size = self.size / u64::from(logical_sector) * u64::from(logical_sector);
        self
    }

    /// Number of logical sectors.
    pub fn sectors(&self) -> u64 {
        self.size / u64::from(self.logical_sector)
    }

    /// Refuses a range that is misaligned or leaves the device.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        // Sectors are powers of two, which the constructors of devices check: a mask is one instruction.
        let mask = u64::from(self.logical_sector) - 1;
        if (offset | len) & mask != 0 {
            return Err(BlockError::Misaligned { offset, len, sector: self.logical_sector });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, len, size: self.size }),
        }
    }

    /// [`check`](Self::check), and refuses any change to a read-only device.
    pub fn check_write(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        if self.read_only { Err(BlockError::ReadOnly) } else { self.check(offset, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_down_to_whole_sectors() {
        assert_eq!(Geometry::plain(1023).size, 512);
        let geometry = Geometry::plain(8192 + 512).with_sector(4096);
        assert_eq!((geometry.size, geometry.physical_sector, geometry.sectors()), (8192, 4096, 2));
    }

    #[test]
    fn ranges_are_whole_sectors_within_the_device() {
        let geometry = Geometry::plain(8192).with_sector(4096);
        for (offset, len) in [(0, 0), (0, 8192), (4096, 4096), (8192, 0)] {
            assert_eq!(geometry.check(offset, len), Ok(()), "{offset}+{len}");
        }
        for (offset, len) in [(0, 512), (512, 4096), (1, 0)] {
            assert_eq!(
                geometry.check(offset, len),
                Err(BlockError::Misaligned { offset, len, sector: 4096 })
            );
        }
        for (offset, len) in [(8192, 4096), (0, 12288), (u64::MAX - 4095, 4096), (12288, 0)] {
            assert_eq!(geometry.check(offset, len), Err(BlockError::OutOfRange { offset, len, size: 8192 }));
        }
    }

    #[test]
    fn a_read_only_device_refuses_even_a_wrong_write_as_read_only() {
        let geometry = Geometry { read_only: true, ..Geometry::plain(512) };
        assert_eq!(geometry.check_write(1, 1), Err(BlockError::ReadOnly));
        assert_eq!(geometry.check(0, 512), Ok(()));
    }
}
