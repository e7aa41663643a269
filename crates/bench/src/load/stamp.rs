//! Sectors that say who they are.
//!
//! ```text
//!   0        8        16         24           32         40                        sector size
//!   ┌────────┬────────┬──────────┬────────────┬──────────┬────────────────────────┐
//!   │ magic  │ LBA    │ seed     │ generation │ checksum │ data made from the rest │   little-endian u64s
//!   └────────┴────────┴──────────┴────────────┴──────────┴────────────────────────┘
//! ```
//!
//! The data differs with LBA, seed and generation, so that a sector half old and half new fails its checksum. The
//! checksum covers everything but itself.

use crate::load::random::{Random, mix};

const MAGIC: u64 = u64::from_le_bytes(*b"lunwayst");
/// The header; a sector is at least 512 bytes.
const HEADER: usize = 40;
const CHECKSUM: std::ops::Range<usize> = 32..40;

/// Stamp of a sector: the identity that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) lba: u64,
    pub(crate) seed: u64,
    /// Counts the writes to its block in one run, from 1.
    pub(crate) generation: u64,
}

/// Result of reading a sector's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Intact, and says this.
    Stamp(Stamp),
    /// All zeroes.
    Zero,
    /// Neither: damaged, or never stamped.
    Damaged,
}

/// Filling of a sector behind its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// Made from LBA, seed and generation.
    Random,
    /// A single byte, repeated.
    Byte(u8),
}

impl Stamp {
    pub(crate) fn write(self, sector: &mut [u8]) {
        self.write_filled(sector, Filling::Random);
    }

    pub(crate) fn write_filled(self, sector: &mut [u8], filling: Filling) {
        let words = [MAGIC, self.lba, self.seed, self.generation, 0];
        for (field, word) in sector.chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        match filling {
            Filling::Random => {
                Random::new(mix(self.lba) ^ mix(self.seed ^ self.generation)).fill(&mut sector[HEADER..]);
            }
            Filling::Byte(byte) => sector[HEADER..].fill(byte),
        }
        let sum = checksum(sector);
        sector[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }

    pub(crate) fn find(sector: &[u8]) -> Found {
        let word =
            |index: usize| u64::from_le_bytes(sector[index * 8..][..8].try_into().expect("eight bytes"));
        if word(0) == MAGIC && word(4) == checksum(sector) {
            return Found::Stamp(Self { lba: word(1), seed: word(2), generation: word(3) });
        }
        if sector.iter().all(|&byte| byte == 0) { Found::Zero } else { Found::Damaged }
    }
}

/// Each step is a bijection of the state for a given word and of the word for a given state: one changed word always
/// changes the sum, several go unnoticed once in 2⁶⁴.
fn checksum(sector: &[u8]) -> u64 {
    let step = |sum: u64, word: &[u8]| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    let (head, tail) = (&sector[..CHECKSUM.start], &sector[CHECKSUM.end..]);
    mix(head.chunks_exact(8).chain(tail.chunks_exact(8)).fold(MAGIC, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { lba: 77, seed: 5, generation: 3 };

    #[test]
    fn a_stamp_written_is_found() {
        let mut sector = [0u8; 512];
        STAMP.write(&mut sector);
        assert_eq!(Stamp::find(&sector), Found::Stamp(STAMP));
    }

    #[test]
    fn a_stamp_is_found_before_any_filling() {
        for filling in [Filling::Random, Filling::Byte(0), Filling::Byte(0xff)] {
            let mut sector = [7u8; 512];
            STAMP.write_filled(&mut sector, filling);
            assert_eq!(Stamp::find(&sector), Found::Stamp(STAMP), "{filling:?}");
        }
    }

    #[test]
    fn any_single_flipped_bit_is_damage() {
        let mut sector = [0u8; 512];
        STAMP.write(&mut sector);
        for bit in 0..512 * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::find(&sector), Found::Damaged, "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn half_an_old_sector_is_damage_and_zeroes_are_zeroes() {
        let (mut new, mut old) = ([0u8; 512], [0u8; 512]);
        STAMP.write(&mut new);
        Stamp { generation: 2, ..STAMP }.write(&mut old);
        new[256..].copy_from_slice(&old[256..]);
        assert_eq!(Stamp::find(&new), Found::Damaged);
        assert_eq!(Stamp::find(&[0; 512]), Found::Zero);
    }
}
