//! Rates: what two snapshots of the same counters say about the time between them.

use std::time::Duration;

use super::{LunMetrics, OperationMetrics};

/// Average rates over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// READs per second.
    pub read_iops: f64,
    /// Bytes read per second.
    pub read_bytes: f64,
    /// WRITEs per second.
    pub write_iops: f64,
    /// Bytes written per second.
    pub write_bytes: f64,
    /// Other commands per second.
    pub other_iops: f64,
    /// Commands per second that the device could not carry out.
    pub errors: f64,
    /// Mean latency of reads and writes, microseconds; 0 without any.
    pub latency_us: f64,
    /// Commands at the device at the end of the interval.
    pub queue: u64,
}

impl Rates {
    /// From `before` to `now`. `before` is `None` for what was not there then: it began with nothing. So did a counter
    /// that is smaller than before.
    pub fn between(before: Option<&LunMetrics>, now: &LunMetrics, interval: Duration) -> Self {
        let seconds = interval.as_secs_f64();
        let more = |kinds: &[&str], count: fn(&OperationMetrics) -> u64| {
            let sum = |metrics: &LunMetrics| -> u64 {
                let chosen = metrics.operations.iter().filter(|of| kinds.contains(&&*of.operation));
                chosen.map(count).sum()
            };
            sum(now).saturating_sub(before.map_or(0, sum)) as f64
        };
        let (data, other) = (["read", "write"], ["unmap", "flush", "other"]);
        let count = more(&data, |of| of.operations);
        Self {
            read_iops: more(&["read"], |of| of.operations) / seconds,
            read_bytes: more(&["read"], |of| of.bytes) / seconds,
            write_iops: more(&["write"], |of| of.operations) / seconds,
            write_bytes: more(&["write"], |of| of.bytes) / seconds,
            other_iops: more(&other, |of| of.operations) / seconds,
            errors: more(&[data.as_slice(), other.as_slice()].concat(), |of| of.failed) / seconds,
            latency_us: if count > 0.0 { more(&data, |of| of.latency_us_total) / count } else { 0.0 },
            queue: now.queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(reads: u64, queue: u64) -> LunMetrics {
        let of = |operation: &'static str, operations, bytes, failed, latency_us_total| OperationMetrics {
            operation: operation.into(),
            operations,
            bytes,
            failed,
            latency_us_total,
            ..OperationMetrics::default()
        };
        let operations =
            vec![of("read", reads, reads * 4096, 0, reads * 50), of("flush", 2 * reads, 0, reads / 100, 7)];
        LunMetrics { operations, queue, ..LunMetrics::default() }
    }

    #[test]
    fn rates_are_differences_by_time() {
        let rates = Rates::between(Some(&metrics(100, 1)), &metrics(300, 5), Duration::from_secs(2));
        let expected = Rates {
            read_iops: 100.0,
            read_bytes: 409_600.0,
            other_iops: 200.0,
            errors: 1.0,
            latency_us: 50.0,
            queue: 5,
            ..Rates::default()
        };
        assert_eq!(rates, expected);
    }

    #[test]
    fn what_began_anew_has_no_negative_rate() {
        let second = Duration::from_secs(1);
        let rates = Rates::between(Some(&metrics(300, 1)), &metrics(100, 1), second);
        assert_eq!((rates.read_iops, rates.latency_us), (0.0, 0.0));
        assert_eq!(Rates::between(None, &metrics(100, 1), second).read_iops, 100.0);
    }
}
