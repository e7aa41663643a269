//! When I/Os are due.

use crate::job::{Job, Rate};

/// An open-loop schedule: I/O number `n` is due at `n / rate`, whatever became of the others. Latency counted from
/// there has no coordinated omission: a stall is charged to all that had to wait for it.
#[derive(Debug)]
pub(crate) struct Pace {
    /// One I/O every `units × 10⁹ / rate` nanoseconds.
    units: u64,
    rate: u64,
    count: u64,
}

impl Pace {
    pub(crate) fn new(job: &Job) -> Option<Self> {
        let (units, rate) = match job.rate? {
            Rate::Iops(rate) => (1, rate),
            Rate::BytesPerSecond(rate) => (u64::from(job.block_size), rate),
        };
        Some(Self { units, rate, count: 0 })
    }

    /// When the next I/O is due, nanoseconds since the start. Exact at any count: no error accumulates.
    pub(crate) fn due(&self) -> u64 {
        (u128::from(self.count) * u128::from(self.units) * 1_000_000_000 / u128::from(self.rate)) as u64
    }

    /// The due one was issued.
    pub(crate) fn advance(&mut self) {
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_rate_spaces_blocks_evenly_and_exactly() {
        let mut job = Job::new("x");
        job.rate = Some(Rate::BytesPerSecond(4096 * 3));
        let mut pace = Pace::new(&job).unwrap();
        let due: Vec<u64> = (0..4)
            .map(|_| {
                let due = pace.due();
                pace.advance();
                due
            })
            .collect();
        assert_eq!(due, [0, 333_333_333, 666_666_666, 1_000_000_000]);
    }
}
