//! Random numbers for addresses and data.

/// SplitMix64: one addition and three multiplications per number, no state to warm up. Good enough for addresses and
/// for data that no compressor shrinks; not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound`: the high half of a product instead of a division. The bias is below 2⁻⁴⁰ for any
    /// number of blocks that a device has.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in 0..1, 1 excluded.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A bijection of 64 bits in which each input bit changes half of the output bits.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence_for_seed_0_comes_out() {
        let mut random = Random::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn every_value_below_the_bound_comes_about_equally_often() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }
}
