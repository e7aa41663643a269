//! Order: ranks with ties, and the k-th of numbers too many to write down.

use crate::summary::sorted;

/// By how much one thing lies above another, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Hodges–Lehmann estimate: the median of all averages (paired) or differences (unpaired).
    pub estimate: f64,
    /// Confidence interval; `None` where so few values cannot give the requested confidence.
    pub interval: Option<Interval>,
    /// Probability of ranks at least as lopsided as these (either way) if there were no shift.
    pub p: f64,
}

/// A confidence interval, ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Actual confidence: at least the requested one, since exact distributions have steps.
    pub confidence: f64,
}

impl Interval {
    /// Half of its length.
    pub fn half_width(&self) -> f64 {
        0.5 * (self.high - self.low)
    }

    /// Returns `true` if `value` is in it.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Twice the rank of each value, equal values sharing the mean of their places (midranks): twice, so that they are
/// whole.
pub(crate) fn double_ranks(values: &[f64]) -> Vec<usize> {
    let order = sorted(values);
    values
        .iter()
        .map(|value| {
            let below = order.partition_point(|other| other < value);
            let up_to = order.partition_point(|other| other <= value);
            below + 1 + up_to
        })
        .collect()
}

/// Sizes of the groups of equal values, those of one included.
pub(crate) fn tie_groups(values: &[f64]) -> Vec<usize> {
    sorted(values).chunk_by(|a, b| a == b).map(<[f64]>::len).collect()
}

/// The smallest number `x` with `count(x) >= k`, where `count` says how many of a set of numbers are at most `x`: the
/// k-th of the set, from 1, without the set. Halves the floating-point numbers between `low` and `high`, in at most 64
/// steps.
pub(crate) fn select(low: f64, high: f64, k: usize, count: impl Fn(f64) -> usize) -> f64 {
    let (mut low, mut high) = (key(low), key(high));
    while low < high {
        let middle = low + (high - low) / 2;
        if count(value(middle)) >= k {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    value(low)
}

/// The mean of the two middle ones of `n` numbers, or the middle one.
pub(crate) fn select_median(low: f64, high: f64, n: usize, count: impl Fn(f64) -> usize) -> f64 {
    let upper = select(low, high, n / 2 + 1, &count);
    if n % 2 == 1 {
        return upper;
    }
    0.5 * (select(low, high, n / 2, &count) + upper)
}

/// A number's place among all floating-point numbers.
fn key(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The number at a place.
fn value(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key & !(1 << 63) } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_the_mean_of_their_places() {
        assert_eq!(double_ranks(&[10.0, 30.0, 20.0, 20.0]), [2, 8, 5, 5]);
        assert_eq!(double_ranks(&[7.0, 7.0, 7.0]), [4, 4, 4]);
    }

    #[test]
    fn tie_groups_count_single_values_too() {
        assert_eq!(tie_groups(&[2.0, 1.0, 2.0, 3.0]), [1, 2, 1]);
    }

    #[test]
    fn places_are_in_the_order_of_numbers() {
        let numbers = [f64::NEG_INFINITY, -1e300, -1.0, -1e-300, -0.0, 0.0, 1e-300, 1.0, 1e300];
        for pair in numbers.windows(2) {
            assert!(key(pair[0]) < key(pair[1]));
        }
        for number in numbers {
            assert_eq!(value(key(number)).to_bits(), number.to_bits());
        }
    }

    #[test]
    fn the_kth_is_found_without_the_list() {
        let list = [-3.0, -0.5, 0.0, 0.25, 8.0];
        let count = |x: f64| list.iter().filter(|&&value| value <= x).count();
        for (k, expected) in list.iter().enumerate() {
            assert_eq!(select(-3.0, 8.0, k + 1, count), *expected);
        }
        assert_eq!(select_median(-3.0, 8.0, 5, count), 0.0);
    }
}
