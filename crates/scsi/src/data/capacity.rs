//! Parameter data of READ CAPACITY (SBC-4).

use lunway_block::Geometry;

use crate::data::field::{put, u8_at, u16_at, u32_at, u64_at};

/// Capacity of a disk. From READ CAPACITY (10), only the first two fields are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCapacity {
    /// Address of the last block. READ CAPACITY (10) says `u32::MAX` where 32 bits do not reach.
    pub last_lba: u64,
    /// Bytes per logical block.
    pub block_len: u32,
    /// Logical blocks per physical block, as a power of two.
    pub physical_exponent: u8,
    /// First logical block that is aligned to a physical one.
    pub lowest_aligned: u16,
    /// LBPME: logical block provisioning management is there.
    pub provisioning_managed: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub unmapped_zeroes: bool,
    /// PROT_EN: protection information is there.
    pub protected: bool,
}

impl ReadCapacity {
    /// Returns the capacity of a device's geometry. A device of no blocks has no last one: it is reported as one block,
    /// and every access to it is out of range.
    pub fn of(geometry: &Geometry) -> Self {
        let per_physical = (geometry.physical_sector / geometry.logical_sector.max(1)).max(1);
        Self {
            last_lba: geometry.sectors().saturating_sub(1),
            block_len: geometry.logical_sector,
            physical_exponent: per_physical.ilog2().min(15) as u8,
            lowest_aligned: (geometry.first_aligned / geometry.logical_sector.max(1)).min(0x3FFF) as u16,
            provisioning_managed: geometry.unmap.is_thin(),
            unmapped_zeroes: geometry.unmap.is_thin() && geometry.unmap.zeroes(),
            protected: false,
        }
    }

    /// Parameter data of READ CAPACITY (10).
    pub fn build_10(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        put(&mut bytes, 0, u32::try_from(self.last_lba).unwrap_or(u32::MAX).to_be_bytes());
        put(&mut bytes, 4, self.block_len.to_be_bytes());
        bytes
    }

    /// Parameter data of READ CAPACITY (16).
    pub fn build_16(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        put(&mut bytes, 0, self.last_lba.to_be_bytes());
        put(&mut bytes, 8, self.block_len.to_be_bytes());
        bytes[12] = u8::from(self.protected);
        bytes[13] = self.physical_exponent & 0xF;
        put(&mut bytes, 14, (self.lowest_aligned & 0x3FFF).to_be_bytes());
        bytes[14] |= u8::from(self.provisioning_managed) << 7 | u8::from(self.unmapped_zeroes) << 6;
        bytes
    }

    /// Reads the answer to READ CAPACITY (10).
    pub fn parse_10(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            last_lba: u32_at(bytes, 0)?.into(),
            block_len: u32_at(bytes, 4)?,
            physical_exponent: 0,
            lowest_aligned: 0,
            provisioning_managed: false,
            unmapped_zeroes: false,
            protected: false,
        })
    }

    /// Reads the answer to READ CAPACITY (16). Flags that were cut off count as not set.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let flags = u8_at(bytes, 14).unwrap_or(0);
        Some(Self {
            last_lba: u64_at(bytes, 0)?,
            block_len: u32_at(bytes, 8)?,
            physical_exponent: u8_at(bytes, 13).unwrap_or(0) & 0xF,
            lowest_aligned: u16_at(bytes, 14).unwrap_or(0) & 0x3FFF,
            provisioning_managed: flags & 0x80 != 0,
            unmapped_zeroes: flags & 0x40 != 0,
            protected: u8_at(bytes, 12).unwrap_or(0) & 1 != 0,
        })
    }

    /// Capacity in bytes; `None` where a target claims more than 64 bits can count.
    pub fn size(&self) -> Option<u64> {
        self.last_lba.checked_add(1)?.checked_mul(self.block_len.into())
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::Unmap;

    use super::*;

    #[test]
    fn a_thin_512e_disk_comes_back() {
        let geometry = Geometry {
            physical_sector: 4096,
            unmap: Unmap::Zeroes { granularity: 4096 },
            ..Geometry::plain(1 << 20)
        };
        let capacity = ReadCapacity::of(&geometry);
        assert_eq!(ReadCapacity::parse(&capacity.build_16()), Some(capacity));
        assert_eq!((capacity.last_lba, capacity.physical_exponent), (2047, 3));
        assert_eq!(capacity.size(), Some(1 << 20));
    }

    #[test]
    fn ten_bytes_say_when_they_do_not_reach() {
        let capacity = ReadCapacity::of(&Geometry::plain(1 << 50));
        assert_eq!(ReadCapacity::parse_10(&capacity.build_10()).unwrap().last_lba, u64::from(u32::MAX));
    }

    #[test]
    fn a_target_that_claims_too_much_is_noticed() {
        let mut bytes = [0xFF; 32];
        assert_eq!(ReadCapacity::parse(&bytes).unwrap().size(), None);
        bytes[0] = 0;
        assert_eq!(ReadCapacity::parse(&bytes).unwrap().size(), None);
        assert_eq!(ReadCapacity::parse(&bytes[..7]), None);
    }
}
