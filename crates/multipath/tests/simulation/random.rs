//! Random numbers that a seed repeats.

use std::time::Duration;

/// SplitMix64: a few instructions, and good enough to choose what breaks.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Up to `micros`.
    pub(crate) fn micros(&mut self, micros: u64) -> Duration {
        Duration::from_micros(self.below(micros + 1))
    }

    /// Mostly short, now and then as long as `millis`.
    pub(crate) fn long_tail(&mut self, millis: u64) -> Duration {
        let most = if self.percent(20) { millis * 1000 } else { millis * 1000 / 20 };
        self.micros(most)
    }

    /// Another source that depends on this one.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
