//! How long I/Os took.

use hdrhistogram::Histogram;

/// Longest latency told apart, nanoseconds: one hour. Longer ones count as this, their true maximum is kept.
const LONGEST: u64 = 3_600_000_000_000;
/// Significant decimal digits kept: an error of at most 0.1 %.
const DIGITS: u8 = 3;

/// The distribution of response times, nanoseconds.
///
/// An HDR histogram of 3 digits for the shape; minimum, maximum and mean are exact.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("constant bounds are valid");
        Self { histogram, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Latency {
    /// Counts one.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum += u128::from(ns);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The shortest; 0 without any.
    pub fn min(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min }
    }

    /// The longest; 0 without any.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean; 0 without any.
    pub fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// The standard deviation; 0 without any.
    pub fn stddev(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.histogram.stdev() }
    }

    /// The time that `percent` % of the I/Os did not exceed; 0 without any. Never outside `min()..=max()`.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        self.histogram.value_at_percentile(percent).clamp(self.min, self.max)
    }

    /// Distinct recorded times with how often each came, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }

    /// Puts another's counts on top.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
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
        for (percent, exact) in
            [(1.0, 100_000.0), (50.0, 5e6), (99.0, 9.9e6), (99.9, 9.99e6), (99.99, 9.999e6)]
        {
            let found = latency.percentile(percent) as f64;
            assert!((found / exact - 1.0).abs() <= 0.001, "p{percent}: {found} for {exact}");
        }
        assert!((latency.stddev() / 2_886_751.3 - 1.0).abs() < 0.001);
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
    fn merging_counts_both() {
        let (mut a, mut b) = (Latency::default(), Latency::default());
        a.record(10);
        b.record(30);
        a.merge(&b);
        assert_eq!((a.count(), a.min(), a.max(), a.mean()), (2, 10, 30, 20.0));
    }
}
