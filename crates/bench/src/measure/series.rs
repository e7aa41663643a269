//! Throughput over time.

use std::time::Duration;

/// First spacing of points.
const INTERVAL: Duration = Duration::from_millis(100);
/// More points than this are joined in pairs: a chart has no more pixels, and a week's run no more memory.
const POINTS_MAX: usize = 600;

/// Completions of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Reads completed.
    pub read_ios: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub write_ios: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Point {
    fn add(&mut self, other: Self) {
        self.read_ios += other.read_ios;
        self.read_bytes += other.read_bytes;
        self.write_ios += other.write_ios;
        self.write_bytes += other.write_bytes;
    }

    fn minus(self, earlier: Self) -> Self {
        Self {
            read_ios: self.read_ios - earlier.read_ios,
            read_bytes: self.read_bytes - earlier.read_bytes,
            write_ios: self.write_ios - earlier.write_ios,
            write_bytes: self.write_bytes - earlier.write_bytes,
        }
    }
}

/// Completions per interval, from the start of measuring.
///
/// Intervals are 100 ms and all of one length; past 600 points neighbours are joined and the interval doubles. A last
/// interval that did not come to its end is left out: it would look like a drop.
#[derive(Clone, Debug)]
pub struct Series {
    interval: Duration,
    points: Vec<Point>,
    /// Totals at the end of the last point.
    totals: Point,
    /// The first half of a joined point, while the second is not there yet.
    half: Option<Point>,
    halves: u32,
}

impl Default for Series {
    fn default() -> Self {
        Self { interval: INTERVAL, points: Vec::new(), totals: Point::default(), half: None, halves: 0 }
    }
}

impl Series {
    /// Length of each interval.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The intervals, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Interval at which [`push`](Self::push) must be called. It never changes; only the points grow longer.
    pub(crate) const STEP: Duration = INTERVAL;

    /// Adds the totals at the end of a [`STEP`](Self::STEP).
    pub(crate) fn push(&mut self, totals: Point) {
        let step = totals.minus(self.totals);
        self.totals = totals;
        let mut sum = self.half.take().unwrap_or_default();
        sum.add(step);
        self.halves += 1;
        if Self::STEP * self.halves < self.interval {
            self.half = Some(sum);
            return;
        }
        self.halves = 0;
        self.points.push(sum);
        if self.points.len() == POINTS_MAX {
            self.coarsen();
        }
    }

    /// Puts another's points on top, which began at the same time.
    pub(crate) fn join(&mut self, mut other: Self) {
        while self.interval < other.interval {
            self.coarsen();
        }
        while other.interval < self.interval {
            other.coarsen();
        }
        let len = self.points.len().max(other.points.len());
        self.points.resize(len, Point::default());
        self.points.iter_mut().zip(other.points).for_each(|(point, other)| point.add(other));
    }

    fn coarsen(&mut self) {
        let join = |pair: &[Point]| {
            let mut sum = pair[0];
            sum.add(pair[1]);
            sum
        };
        self.points = self.points.chunks_exact(2).map(join).collect();
        self.interval *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(ios: u64) -> Point {
        Point { read_ios: ios, read_bytes: ios * 10, ..Point::default() }
    }

    #[test]
    fn points_are_differences_of_totals() {
        let mut series = Series::default();
        series.push(totals(5));
        series.push(totals(12));
        let ios: Vec<u64> = series.points().iter().map(|point| point.read_ios).collect();
        assert_eq!(ios, [5, 7]);
        assert_eq!(series.interval(), Duration::from_millis(100));
    }

    #[test]
    fn a_long_run_keeps_every_io_in_few_points() {
        let mut series = Series::default();
        (1..=3000).for_each(|n| series.push(totals(n)));
        assert!(series.points().len() < POINTS_MAX);
        assert_eq!(series.interval(), Duration::from_millis(800));
        assert!(
            series.points().iter().all(|point| point.read_ios == 8),
            "one I/O per step, eight steps per point"
        );
    }

    #[test]
    fn series_of_different_lengths_join_at_the_coarser_interval() {
        let (mut long, mut short) = (Series::default(), Series::default());
        (1..=700).for_each(|n| long.push(totals(n)));
        (1..=4).for_each(|n| short.push(totals(10 * n)));
        short.join(long.clone());
        long.join(Series::default());
        assert_eq!((short.interval(), short.points().len()), (Duration::from_millis(200), 350));
        let ios: Vec<u64> = short.points()[..3].iter().map(|point| point.read_ios).collect();
        assert_eq!(ios, [22, 22, 2]);
        assert_eq!(long.points()[..3].iter().map(|point| point.read_ios).sum::<u64>(), 6);
    }
}
