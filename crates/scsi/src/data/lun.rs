//! Logical unit numbers as eight bytes (SAM-5 §4.7), and the parameter data of REPORT LUNS.

use crate::data::field::{put, u32_at};

/// A logical unit number as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lun(pub [u8; 8]);

/// Address in a [`Lun`], on a target with a single level of logical units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LunAddress {
    /// A logical unit by its number.
    Unit(u16),
    /// The REPORT LUNS well-known logical unit (SPC-4 §8.2).
    ReportLuns,
    /// Another level, another bus, or a format that is not known.
    Other,
}

impl Lun {
    /// The REPORT LUNS well-known logical unit.
    pub const REPORT_LUNS: Self = Self([0xC1, 0x01, 0, 0, 0, 0, 0, 0]);

    /// Largest number with an encoding: 14 bits of flat space.
    pub const NUMBER_MAX: u16 = 0x3FFF;

    /// Number `number` in peripheral device addressing up to 255, in flat space addressing above (SAM-5 §4.7.7).
    pub const fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self([if number < 256 { 0 } else { 0x40 | (high & 0x3F) }, low, 0, 0, 0, 0, 0, 0])
    }

    /// Returns the address. Both single-level methods are understood for every number, because initiators differ.
    pub fn address(self) -> LunAddress {
        let [first, second, rest @ ..] = self.0;
        if self == Self::REPORT_LUNS {
            return LunAddress::ReportLuns;
        }
        match (first >> 6, rest) {
            (0b00, [0, 0, 0, 0, 0, 0]) if first == 0 => LunAddress::Unit(u16::from(second)),
            (0b01, [0, 0, 0, 0, 0, 0]) => LunAddress::Unit(u16::from_be_bytes([first & 0x3F, second])),
            _ => LunAddress::Other,
        }
    }
}

/// Parameter data of REPORT LUNS (SPC-4 §6.33).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunList {
    /// The logical units, in order.
    pub luns: Vec<Lun>,
    /// Number of LUNs of the target, which is more than `luns` holds where the answer was truncated.
    pub total: usize,
}

impl LunList {
    /// Encodes the whole list.
    pub fn build(luns: &[Lun]) -> Vec<u8> {
        let mut bytes = vec![0; 8 + 8 * luns.len()];
        put(&mut bytes, 0, (8 * luns.len() as u32).to_be_bytes());
        for (slot, lun) in bytes[8..].chunks_exact_mut(8).zip(luns) {
            slot.copy_from_slice(&lun.0);
        }
        bytes
    }

    /// Reads a list, as far as it goes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let total = u32_at(bytes, 0)? as usize / 8;
        let entries = bytes.get(8..).unwrap_or(&[]).chunks_exact(8).take(total);
        let luns = entries.filter_map(|entry| entry.try_into().ok().map(Lun)).collect();
        Some(Self { luns, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for number in 0..=Lun::NUMBER_MAX {
            assert_eq!(Lun::new(number).address(), LunAddress::Unit(number));
        }
        assert_eq!(Lun::new(1).0, [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun::new(256).0, [0x41, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn flat_space_addresses_small_numbers_too() {
        assert_eq!(Lun([0x40, 5, 0, 0, 0, 0, 0, 0]).address(), LunAddress::Unit(5));
    }

    #[test]
    fn other_levels_and_buses_are_not_ours() {
        for bytes in [[0, 0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0x80, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(Lun(bytes).address(), LunAddress::Other);
        }
        assert_eq!(Lun::REPORT_LUNS.address(), LunAddress::ReportLuns);
    }

    #[test]
    fn a_list_cut_short_still_says_how_many_there_are() {
        let bytes = LunList::build(&[Lun::new(0), Lun::new(3), Lun::new(300)]);
        assert_eq!(LunList::parse(&bytes).unwrap().luns, [Lun::new(0), Lun::new(3), Lun::new(300)]);
        let cut = LunList::parse(&bytes[..20]).unwrap();
        assert_eq!((cut.luns.len(), cut.total), (1, 3));
        assert_eq!(LunList::parse(&bytes[..3]), None);
    }
}
