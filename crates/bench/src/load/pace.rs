//! Due times of I/Os.

use crate::load::job::{Arrivals, Job, Rate};
use crate::load::random::Random;

/// An open-loop schedule, which the device cannot slow down: response times counted from when an I/O is due have no
/// coordinated omission, as a stall is charged to all that had to wait for it.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Rate,
    /// I/Os or bytes that were due before the next I/O.
    passed: u64,
    /// I/Os so far.
    count: u64,
    /// Due times at random: the time of the next, in nanoseconds, and where the distances come from.
    random: Option<(f64, Random)>,
}

impl Pace {
    pub(crate) fn new(job: &Job) -> Option<Self> {
        let random = (job.arrivals == Arrivals::Poisson).then(|| (0.0, Random::new(job.seed ^ 0x7061_6365)));
        Some(Self { rate: job.rate?, passed: 0, count: 0, random })
    }

    /// Due time of the next I/O, nanoseconds since the start. Even arrivals are exact at any count: no error
    /// accumulates.
    #[inline]
    pub(crate) fn due(&self) -> u64 {
        match (&self.random, self.rate) {
            (Some((due, _)), _) => *due as u64,
            (None, Rate::Iops(rate) | Rate::BytesPerSecond(rate)) => {
                (u128::from(self.passed) * 1_000_000_000 / u128::from(rate)) as u64
            }
        }
    }

    /// Number of I/Os that will have been due before `time`, counted from the next; an average where they arrive at
    /// random. A rate in bytes assumes that all I/Os are as long as those so far.
    pub(crate) fn overdue(&self, time: u64) -> u64 {
        let late = u128::from(time.saturating_sub(self.due()));
        let (Rate::Iops(rate) | Rate::BytesPerSecond(rate)) = self.rate;
        let units = u128::from(self.passed / self.count.max(1)).max(1);
        (late * u128::from(rate)).div_ceil(1_000_000_000 * units) as u64
    }

    /// The due one, of `bytes`, was issued.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) {
        let (units, rate) = match self.rate {
            Rate::Iops(rate) => (1, rate),
            Rate::BytesPerSecond(rate) => (bytes, rate),
        };
        self.passed += units;
        self.count += 1;
        if let Some((due, random)) = &mut self.random {
            // Distances between independent arrivals are distributed exponentially.
            *due -= (1.0 - random.unit()).ln() * units as f64 / rate as f64 * 1e9;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(job: &Job, count: usize, bytes: u64) -> Vec<u64> {
        let mut pace = Pace::new(job).unwrap();
        let next = |_| {
            let due = pace.due();
            pace.advance(bytes);
            due
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn a_byte_rate_spaces_blocks_evenly_and_exactly() {
        let mut job = Job::new("x");
        job.rate = Some(Rate::BytesPerSecond(4096 * 3));
        assert_eq!(due(&job, 4, 4096), [0, 333_333_333, 666_666_666, 1_000_000_000]);
        assert_eq!(due(&job, 3, 8192), [0, 666_666_666, 1_333_333_333]);
    }

    #[test]
    fn random_arrivals_keep_the_rate_and_their_distances_are_exponential() {
        let mut job = Job::new("x");
        job.rate = Some(Rate::Iops(1000));
        job.arrivals = Arrivals::Poisson;
        let due = due(&job, 20_001, 4096);
        let distances: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        let longer = |than| distances.iter().filter(|&&ms| ms > than).count() as f64 / distances.len() as f64;
        assert!((longer(1.0) - (-1.0f64).exp()).abs() < 0.015, "{}", longer(1.0));
        assert!((longer(3.0) - (-3.0f64).exp()).abs() < 0.007, "{}", longer(3.0));
    }
}
