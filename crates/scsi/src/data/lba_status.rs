//! Parameter data of GET LBA STATUS (SBC-4).

use lunway_block::ExtentKind;

use crate::data::field::{put, u8_at, u32_at, u64_at};

/// PROVISIONING STATUS of blocks. Open: unknown values survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioning(pub u8);

impl Provisioning {
    /// Mapped, or the device cannot tell.
    pub const MAPPED: Self = Self(0);
    /// Deallocated: no space behind.
    pub const DEALLOCATED: Self = Self(1);
    /// Anchored: space without content.
    pub const ANCHORED: Self = Self(2);

    /// Returns the provisioning status of an extent. Known zeroes with space behind them are mapped: they can be
    /// written in place.
    pub fn of(kind: ExtentKind) -> Self {
        match kind {
            ExtentKind::Data | ExtentKind::Zero => Self::MAPPED,
            ExtentKind::Unallocated => Self::DEALLOCATED,
        }
    }
}

/// Blocks that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatusDescriptor {
    /// First block.
    pub lba: u64,
    /// Number of blocks; not 0.
    pub blocks: u32,
    /// Provisioning status of the blocks.
    pub provisioning: Provisioning,
}

/// The provisioning of a run of blocks, in order and without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbaStatus {
    /// The pieces.
    pub descriptors: Vec<LbaStatusDescriptor>,
}

impl LbaStatus {
    pub(crate) const HEADER: usize = 8;
    pub(crate) const DESCRIPTOR: usize = 16;

    /// Appends blocks, joining them with the last ones where both are alike, and splitting what 32 bits cannot count.
    pub fn push(&mut self, mut lba: u64, mut blocks: u64, provisioning: Provisioning) {
        if let Some(last) = self.descriptors.last_mut()
            && last.provisioning == provisioning
            && last.lba.checked_add(last.blocks.into()) == Some(lba)
        {
            let joined = blocks.min(u64::from(u32::MAX - last.blocks));
            last.blocks += joined as u32;
            lba += joined;
            blocks -= joined;
        }
        while blocks > 0 {
            let piece = blocks.min(u32::MAX.into());
            self.descriptors.push(LbaStatusDescriptor { lba, blocks: piece as u32, provisioning });
            lba += piece;
            blocks -= piece;
        }
    }

    /// Holds `max` descriptors that can no longer grow.
    pub(crate) fn is_full(&self, max: usize) -> bool {
        self.descriptors.len() > max
    }

    /// Encodes the first `max` descriptors.
    pub fn build(&self, max: usize) -> Vec<u8> {
        let descriptors = &self.descriptors[..self.descriptors.len().min(max)];
        let len = Self::HEADER + Self::DESCRIPTOR * descriptors.len();
        let mut bytes = vec![0; len];
        put(&mut bytes, 0, (len as u32 - 4).to_be_bytes());
        for (slot, descriptor) in bytes[Self::HEADER..].chunks_exact_mut(Self::DESCRIPTOR).zip(descriptors) {
            put(slot, 0, descriptor.lba.to_be_bytes());
            put(slot, 8, descriptor.blocks.to_be_bytes());
            slot[12] = descriptor.provisioning.0 & 0xF;
        }
        bytes
    }

    /// Reads as many descriptors as are there.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = (u32_at(bytes, 0)? as usize).saturating_add(4).min(bytes.len());
        let list = bytes.get(Self::HEADER..end).unwrap_or(&[]);
        let descriptors = list.chunks_exact(Self::DESCRIPTOR).filter_map(|slot| {
            Some(LbaStatusDescriptor {
                lba: u64_at(slot, 0)?,
                blocks: u32_at(slot, 8)?,
                provisioning: Provisioning(u8_at(slot, 12)? & 0xF),
            })
        });
        Some(Self { descriptors: descriptors.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_split_and_come_back() {
        let mut status = LbaStatus::default();
        status.push(10, 5, Provisioning::MAPPED);
        status.push(15, 5, Provisioning::MAPPED);
        status.push(20, u64::from(u32::MAX) + 3, Provisioning::DEALLOCATED);
        let counts: Vec<_> = status.descriptors.iter().map(|piece| (piece.lba, piece.blocks)).collect();
        assert_eq!(counts, [(10, 10), (20, u32::MAX), (20 + u64::from(u32::MAX), 3)]);
        assert_eq!(LbaStatus::parse(&status.build(9)), Some(status.clone()));
        assert_eq!(LbaStatus::parse(&status.build(1)).unwrap().descriptors, status.descriptors[..1]);
    }

    #[test]
    fn a_length_that_lies_is_bounded_by_what_is_there() {
        let bytes = [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 1, 2, 3];
        assert_eq!(LbaStatus::parse(&bytes), Some(LbaStatus::default()));
        assert_eq!(LbaStatus::parse(&[0, 0]), None);
    }
}
