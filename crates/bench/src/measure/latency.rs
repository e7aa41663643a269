//! Histogram of response times.

/// Below this many nanoseconds each has a counter of its own.
const EXACT: u64 = 2048;
/// Each octave above is divided into this many: a bucket is at most a thousandth of its value wide.
const PER_OCTAVE: u64 = EXACT / 2;
/// Up to 2⁴² ns, 73 minutes; longer ones count as this, their true maximum is kept.
const OCTAVES: u64 = 31;
const BUCKETS: usize = (EXACT + OCTAVES * PER_OCTAVE) as usize;

/// A distribution of times, nanoseconds.
///
/// Counters in steps of at most 0.1 % for the shape; minimum, maximum and mean are exact. Counting one is a shift, an
/// increment and a few comparisons; merging and forgetting touch only what was used.
#[derive(Debug)]
pub struct Latency {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let counts = vec![0; BUCKETS].into_boxed_slice();
        let counts = counts.try_into().expect("it was made with this length");
        Self { counts, count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Clone for Latency {
    fn clone(&self) -> Self {
        let mut clone = Self::default();
        clone.merge(self);
        clone
    }
}

impl Latency {
    /// Counts one.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts that many alike.
    #[inline]
    pub fn record_many(&mut self, ns: u64, count: u64) {
        self.counts[bucket(ns)] += count;
        self.count += count;
        self.sum += u128::from(ns) * u128::from(count);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Number of values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; 0 without any.
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The longest; 0 without any.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean; 0 without any.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The standard deviation; 0 without any.
    pub fn stddev(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let mean = self.mean();
        let squares = self.used().map(|(index, count)| {
            let middle = (first_of(index) + last_of(index)) as f64 / 2.0;
            count as f64 * (middle - mean).powi(2)
        });
        (squares.sum::<f64>() / self.count as f64).sqrt()
    }

    /// The time that `percent` % of the I/Os did not exceed; 0 without any. Never outside `min()..=max()`.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = (percent / 100.0 * self.count as f64).ceil().clamp(1.0, self.count.max(1) as f64);
        let mut below = 0;
        let found = self.used().find(|&(_, count)| {
            below += count;
            below as f64 >= wanted
        });
        found.map_or(0, |(index, _)| last_of(index).clamp(self.min, self.max))
    }

    /// Distinct recorded times (the end of their step) with how often each came, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.used().map(|(index, count)| (last_of(index), count))
    }

    /// Puts another's counts on top.
    pub fn merge(&mut self, other: &Self) {
        for (index, count) in other.used() {
            self.counts[index] += count;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        if self.count > 0 {
            self.counts[bucket(self.min)..=bucket(self.max)].fill(0);
        }
        (self.count, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
    }

    fn used(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let range = if self.count == 0 { 0..0 } else { bucket(self.min)..bucket(self.max) + 1 };
        let from = range.start;
        (from..)
            .zip(&self.counts[range])
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| (index, count))
    }
}

#[inline]
fn bucket(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    // The position of the highest bit says how far to shift so that ten bits are left below it.
    let shift = u64::from(ns.ilog2() - PER_OCTAVE.ilog2());
    let index = shift * PER_OCTAVE + (ns >> shift);
    (index as usize).min(BUCKETS - 1)
}

/// The shortest time that falls into a bucket.
fn first_of(index: usize) -> u64 {
    let index = index as u64;
    if index < EXACT {
        return index;
    }
    let shift = index / PER_OCTAVE - 1;
    (index - shift * PER_OCTAVE) << shift
}

/// The longest.
fn last_of(index: usize) -> u64 {
    first_of(index + 1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_distribution_are_right_to_a_thousandth() {
        let mut latency = Latency::default();
        (1..=10_000u64).for_each(|n| latency.record(n * 1000));
        assert_eq!(latency.count(), 10_000);
        assert_eq!((latency.min(), latency.max()), (1000, 10_000_000));
        assert_eq!(latency.mean(), 5_000_500.0);
        for (percent, exact) in [
            (0.0, 1000.0),
            (1.0, 100_000.0),
            (50.0, 5e6),
            (99.0, 9.9e6),
            (99.9, 9.99e6),
            (99.99, 9.999e6),
            (100.0, 1e7),
        ] {
            let found = latency.percentile(percent) as f64;
            assert!((found / exact - 1.0).abs() <= 0.001, "p{percent}: {found} for {exact}");
        }
        assert!((latency.stddev() / 2_886_751.3 - 1.0).abs() < 0.001);
    }

    #[test]
    fn every_time_falls_into_a_bucket_that_holds_it_and_is_narrow() {
        for exponent in 0..42 {
            for ns in [1u64 << exponent, (1 << exponent) + (1 << exponent) / 3, (2 << exponent) - 1] {
                let index = bucket(ns);
                let (first, last) = (first_of(index), last_of(index));
                assert!((first..=last).contains(&ns), "{ns}: {first} to {last}");
                assert!((last - first) as f64 <= ns as f64 / 1000.0, "{ns}: {first} to {last}");
            }
        }
        assert_eq!(bucket((1 << 42) - 1), BUCKETS - 1);
    }

    #[test]
    fn nothing_recorded_is_all_zero() {
        let latency = Latency::default();
        assert_eq!((latency.min(), latency.max(), latency.percentile(99.0)), (0, 0, 0));
        assert_eq!((latency.mean(), latency.stddev()), (0.0, 0.0));
    }

    #[test]
    fn beyond_an_hour_the_maximum_is_still_true() {
        let mut latency = Latency::default();
        latency.record(u64::MAX);
        assert_eq!(latency.max(), u64::MAX);
        assert_eq!(latency.count(), 1);
    }

    #[test]
    fn merging_counts_both_and_clearing_neither() {
        let (mut a, mut b) = (Latency::default(), Latency::default());
        a.record(10);
        b.record(30_000);
        a.merge(&b);
        assert_eq!((a.count(), a.min(), a.max(), a.mean()), (2, 10, 30_000, 15_005.0));
        a.clear();
        assert_eq!((a.count(), a.min(), a.max(), a.buckets().count()), (0, 0, 0, 0));
        a.merge(&b);
        assert_eq!((a.count(), a.percentile(50.0)), (1, 30_000));
    }
}
