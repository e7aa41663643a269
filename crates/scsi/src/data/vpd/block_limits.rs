//! Pages B0h, B1h and B2h: what SBC-4 says about a disk.

use lunway_block::Geometry;

use super::{body, page};
use crate::data::field::{put, u8_at, u16_at, u32_at, u64_at};
use crate::data::mode::THRESHOLD_EXPONENT;

/// Block limits, page B0h. Lengths are logical blocks; 0: not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME without a count is refused.
    pub write_same_needs_count: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH.
    pub compare_and_write_max: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub optimal_granularity: u16,
    /// MAXIMUM TRANSFER LENGTH.
    pub transfer_max: u32,
    /// OPTIMAL TRANSFER LENGTH.
    pub optimal_transfer: u32,
    /// MAXIMUM PREFETCH LENGTH.
    pub prefetch_max: u32,
    /// MAXIMUM UNMAP LBA COUNT; `u32::MAX`: no limit.
    pub unmap_blocks_max: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; `u32::MAX`: no limit.
    pub unmap_descriptors_max: u32,
    /// OPTIMAL UNMAP GRANULARITY.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, where UGAVALID is set.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH.
    pub write_same_max: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH.
    pub atomic_max: u32,
    /// ATOMIC ALIGNMENT.
    pub atomic_alignment: u32,
    /// ATOMIC TRANSFER LENGTH GRANULARITY.
    pub atomic_granularity: u32,
}

const UGAVALID: u32 = 1 << 31;

impl BlockLimits {
    pub(crate) fn build_body(&self) -> [u8; 60] {
        // Offsets are the standard's, which count the header of four bytes.
        let mut bytes = [0; 64];
        bytes[4] = u8::from(self.write_same_needs_count);
        bytes[5] = self.compare_and_write_max;
        put(&mut bytes, 6, self.optimal_granularity.to_be_bytes());
        put(&mut bytes, 8, self.transfer_max.to_be_bytes());
        put(&mut bytes, 12, self.optimal_transfer.to_be_bytes());
        put(&mut bytes, 16, self.prefetch_max.to_be_bytes());
        put(&mut bytes, 20, self.unmap_blocks_max.to_be_bytes());
        put(&mut bytes, 24, self.unmap_descriptors_max.to_be_bytes());
        put(&mut bytes, 28, self.unmap_granularity.to_be_bytes());
        put(&mut bytes, 32, self.unmap_alignment.map_or(0, |at| at | UGAVALID).to_be_bytes());
        put(&mut bytes, 36, self.write_same_max.to_be_bytes());
        put(&mut bytes, 44, self.atomic_max.to_be_bytes());
        put(&mut bytes, 48, self.atomic_alignment.to_be_bytes());
        put(&mut bytes, 52, self.atomic_granularity.to_be_bytes());
        let mut body = [0; 60];
        body.copy_from_slice(&bytes[4..]);
        body
    }

    /// Reads the page. Older targets end it early (SBC-2 at 12 bytes): what is missing is not said.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let body = body(bytes, page::BLOCK_LIMITS)?;
        let long = |at: usize| u32_at(body, at - 4).unwrap_or(0);
        let alignment = long(32);
        Some(Self {
            write_same_needs_count: u8_at(body, 0).unwrap_or(0) & 1 != 0,
            compare_and_write_max: u8_at(body, 1).unwrap_or(0),
            optimal_granularity: u16_at(body, 2).unwrap_or(0),
            transfer_max: long(8),
            optimal_transfer: long(12),
            prefetch_max: long(16),
            unmap_blocks_max: long(20),
            unmap_descriptors_max: long(24),
            unmap_granularity: long(28),
            unmap_alignment: (alignment & UGAVALID != 0).then_some(alignment & !UGAVALID),
            write_same_max: u64_at(body, 36 - 4).unwrap_or(0),
            atomic_max: long(44),
            atomic_alignment: long(48),
            atomic_granularity: long(52),
        })
    }
}

/// Block device characteristics, page B1h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockDeviceCharacteristics {
    /// MEDIUM ROTATION RATE: 0 not said, 1 no rotation, else revolutions per minute.
    pub rotation_rate: u16,
    /// NOMINAL FORM FACTOR: 0 not said.
    pub form_factor: u8,
    /// WABEREQ, what reads do after SANITIZE: BLOCK ERASE: 0 not said, 1 they succeed, 2 they fail, 3 they fail until
    /// written.
    pub after_block_erase: u8,
}

impl BlockDeviceCharacteristics {
    /// Returns the characteristics of a geometry: 7,200 stands for every rotating disk.
    pub fn of(geometry: &Geometry) -> Self {
        Self {
            rotation_rate: if geometry.rotational { 7200 } else { 1 },
            form_factor: 0,
            // Offered where space can be given back; what was erased reads as zeroes.
            after_block_erase: u8::from(geometry.unmap.is_thin()),
        }
    }

    pub(crate) fn build_body(&self) -> [u8; 60] {
        let mut body = [0; 60];
        put(&mut body, 0, self.rotation_rate.to_be_bytes());
        body[3] = self.after_block_erase << 6 | (self.form_factor & 0xF);
        body
    }

    /// Reads the page.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let body = body(bytes, page::BLOCK_DEVICE_CHARACTERISTICS)?;
        let flags = u8_at(body, 3).unwrap_or(0);
        Some(Self {
            rotation_rate: u16_at(body, 0)?,
            form_factor: flags & 0xF,
            after_block_erase: flags >> 6,
        })
    }
}

/// Logical block provisioning, page B2h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogicalBlockProvisioning {
    /// THRESHOLD EXPONENT: thresholds and resources are counted in 2 to the power of this many blocks; 0: there are
    /// none.
    pub threshold_exponent: u8,
    /// LBPU: UNMAP unmaps.
    pub unmap: bool,
    /// LBPWS: WRITE SAME (16) unmaps.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME (10) unmaps.
    pub write_same_10: bool,
    /// LBPRZ: 0 unmapped blocks read as anything, 1 as zeroes, 2 as the vendor's pattern.
    pub read_zeroes: u8,
    /// ANC_SUP: anchoring is there.
    pub anchor: bool,
    /// PROVISIONING TYPE: 0 not said or full, 1 resource, 2 thin.
    pub provisioning_type: u8,
}

impl LogicalBlockProvisioning {
    /// Returns the provisioning of a geometry, with or without thresholds.
    pub fn of(geometry: &Geometry, thresholds: bool) -> Self {
        let thin = geometry.unmap.is_thin();
        Self {
            threshold_exponent: if thin && thresholds { THRESHOLD_EXPONENT } else { 0 },
            unmap: thin,
            write_same_16: thin,
            write_same_10: thin,
            read_zeroes: u8::from(thin && geometry.unmap.zeroes()),
            anchor: false,
            provisioning_type: if thin { 2 } else { 0 },
        }
    }

    pub(crate) fn build_body(&self) -> [u8; 4] {
        let flags = u8::from(self.unmap) << 7
            | u8::from(self.write_same_16) << 6
            | u8::from(self.write_same_10) << 5
            | (self.read_zeroes & 7) << 2
            | u8::from(self.anchor) << 1;
        [self.threshold_exponent, flags, self.provisioning_type & 7, 0]
    }

    /// Reads the page.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let body = body(bytes, page::LOGICAL_BLOCK_PROVISIONING)?;
        let flags = u8_at(body, 1)?;
        Some(Self {
            threshold_exponent: u8_at(body, 0)?,
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            write_same_10: flags & 0x20 != 0,
            read_zeroes: flags >> 2 & 7,
            anchor: flags & 0x02 != 0,
            provisioning_type: u8_at(body, 2).unwrap_or(0) & 7,
        })
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::Unmap;

    use super::super::framed;
    use super::*;
    use crate::data::inquiry::PeripheralType;

    #[test]
    fn block_limits_come_back() {
        let limits = BlockLimits {
            write_same_needs_count: true,
            compare_and_write_max: 255,
            optimal_granularity: 8,
            transfer_max: 8192,
            optimal_transfer: 2048,
            prefetch_max: 1,
            unmap_blocks_max: 2,
            unmap_descriptors_max: 3,
            unmap_granularity: 8,
            unmap_alignment: Some(4),
            write_same_max: u64::MAX,
            atomic_max: 5,
            atomic_alignment: 6,
            atomic_granularity: 7,
        };
        let bytes = framed(PeripheralType::DISK, page::BLOCK_LIMITS, &limits.build_body());
        assert_eq!(bytes.len(), 64);
        assert_eq!(BlockLimits::parse(&bytes), Some(limits));
    }

    #[test]
    fn a_page_of_an_older_standard_leaves_the_rest_unsaid() {
        let body = BlockLimits { transfer_max: 100, unmap_blocks_max: 9, ..Default::default() }.build_body();
        let bytes = framed(PeripheralType::DISK, page::BLOCK_LIMITS, &body[..12]);
        let limits = BlockLimits::parse(&bytes).unwrap();
        assert_eq!((limits.transfer_max, limits.unmap_blocks_max), (100, 0));
    }

    #[test]
    fn a_thin_device_says_so() {
        let geometry = Geometry { unmap: Unmap::Zeroes { granularity: 512 }, ..Geometry::plain(1 << 20) };
        let page = LogicalBlockProvisioning::of(&geometry, true);
        let bytes = framed(PeripheralType::DISK, page::LOGICAL_BLOCK_PROVISIONING, &page.build_body());
        assert_eq!(bytes[4..], [11, 0xE4, 2, 0]);
        assert_eq!(LogicalBlockProvisioning::parse(&bytes), Some(page));
    }

    #[test]
    fn rotation_comes_back() {
        let page = BlockDeviceCharacteristics { rotation_rate: 7200, form_factor: 3, after_block_erase: 1 };
        let bytes = framed(PeripheralType::DISK, page::BLOCK_DEVICE_CHARACTERISTICS, &page.build_body());
        assert_eq!(BlockDeviceCharacteristics::parse(&bytes), Some(page));
    }
}
