//! Every number once, in random order, without a list of them.

use crate::load::random::mix;

/// Rounds of [`Permutation::scramble`]. With three, neighbours still end up a recognisable distance apart.
const ROUNDS: usize = 4;

/// A bijection of `0..len` that looks random, chosen by a seed.
///
/// A number is scrambled within the smallest power of two that holds `len` by steps that can each be undone: adding,
/// multiplying by an odd number, folding the upper half of the bits onto the lower. Where that leaves the range it is
/// scrambled on until it comes back in, which it must, since it is on a cycle; as more than half of the power of two is
/// inside, that takes two turns at most on average. No memory, some ten nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    len: u64,
    mask: u64,
    shift: u32,
    /// Addends and multipliers, a pair for each round.
    keys: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// Of `0..len`, which must not be empty.
    pub(crate) fn new(len: u64, seed: u64) -> Self {
        let mask = len.next_power_of_two() - 1;
        let bits = mask.count_ones();
        let mut keys = [(0, 0); ROUNDS];
        for (round, (add, multiply)) in (0u64..).zip(&mut keys) {
            *add = mix(seed ^ (2 * round + 1).rotate_right(8));
            *multiply = mix(seed ^ (2 * round + 2).rotate_right(8)) | 1;
        }
        Self { len, mask, shift: bits.div_ceil(2).max(1), keys }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the image of `index`, which must be below [`len`](Self::len).
    #[inline]
    pub(crate) fn at(&self, index: u64) -> u64 {
        let mut value = index;
        loop {
            value = self.scramble(value);
            if value < self.len {
                return value;
            }
        }
    }

    #[inline]
    fn scramble(&self, mut value: u64) -> u64 {
        for (add, multiply) in self.keys {
            value = value.wrapping_add(add).wrapping_mul(multiply) & self.mask;
            value ^= value >> self.shift;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_whatever_the_length() {
        for len in (1..70).chain([255, 256, 257, 1000, 4097]) {
            let permutation = Permutation::new(len, len ^ 99);
            let mut seen: Vec<u64> = (0..len).map(|index| permutation.at(index)).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..len), "{len}");
        }
    }

    #[test]
    fn another_seed_is_another_order() {
        let order = |seed| (0..100).map(|index| Permutation::new(100, seed).at(index)).collect::<Vec<_>>();
        let same = order(1).iter().zip(order(2)).filter(|&(&a, b)| a == b).count();
        assert!(same < 10, "{same} of 100 in the same place");
    }

    #[test]
    fn neighbours_end_up_at_all_distances_alike() {
        let len = 1 << 16;
        let permutation = Permutation::new(len, 5);
        let mut counts = [0u32; 16];
        for index in 0..len - 1 {
            let distance = permutation.at(index + 1).wrapping_sub(permutation.at(index)) % len;
            counts[(distance * 16 / len) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (3800..4400).contains(&count)), "{counts:?}");
    }
}
