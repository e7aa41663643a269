//! Counters of one session and logical unit.

use std::borrow::Cow;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::failure::Cause;

/// Upper bounds of the latency buckets: powers of two of microseconds, 1 µs to 16.8 s; beyond is one bucket more.
const BUCKETS: usize = 25;

/// Kind of a command, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Kind {
    /// READ of any length.
    Read,
    /// WRITE of any length, with or without verification.
    Write,
    /// UNMAP and WRITE SAME.
    Unmap,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// Everything else.
    Other,
}

impl Kind {
    pub(super) const COUNT: usize = Self::ALL.len();
    const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Unmap, Self::Flush, Self::Other];

    /// By operation code.
    pub(crate) fn of(opcode: u8) -> Self {
        match opcode {
            0x08 | 0x28 | 0x88 | 0xA8 => Self::Read,
            0x0A | 0x2A | 0x2E | 0x8A | 0x8E | 0x9C | 0xAA | 0xAE => Self::Write,
            0x41 | 0x42 | 0x93 => Self::Unmap,
            0x35 | 0x91 => Self::Flush,
            _ => Self::Other,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Unmap => "unmap",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// Outcome of a command, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// GOOD.
    Good,
    /// The device failed, or the medium is full or protected: MEDIUM ERROR, HARDWARE ERROR, ABORTED COMMAND, DATA
    /// PROTECT.
    Failed,
    /// The command was not carried out for another reason: a mistake, a unit attention, a reservation.
    Refused,
}

/// Counters of one kind of command.
#[derive(Debug, Default)]
struct KindCounters {
    operations: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    latency_us_total: AtomicU64,
    latency: [AtomicU64; BUCKETS + 1],
}

/// Counts the commands of one session on one logical unit.
///
/// Only the session's own core writes, so an addition is a load and a store without a lock on the bus; a reader that
/// sees each number whole, and the numbers within a moment of each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    kinds: [KindCounters; Kind::ALL.len()],
    failures: [AtomicU64; Cause::ALL.len()],
    /// Commands that the device has.
    queue: AtomicI64,
}

/// Adds to a counter that has no other writer.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Counters {
    /// A command has ended; its latency comes later, for many at a time.
    pub(crate) fn ended(&self, kind: Kind, ending: Ending, bytes: u64) {
        let counters = &self.kinds[kind as usize];
        add(&counters.operations, 1);
        match ending {
            Ending::Good => add(&counters.bytes, bytes),
            Ending::Failed => add(&counters.failed, 1),
            Ending::Refused => add(&counters.refused, 1),
        }
    }

    /// `count` commands took this long.
    pub(crate) fn took(&self, kind: Kind, count: u64, latency: Duration) {
        let counters = &self.kinds[kind as usize];
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        // The first bucket is for up to 1 µs, each further one for up to twice as long.
        let bucket = micros.max(1).next_power_of_two().trailing_zeros() as usize;
        add(&counters.latency[bucket.min(BUCKETS)], count);
        add(&counters.latency_us_total, micros.saturating_mul(count));
    }

    /// The device has failed a command.
    pub(crate) fn failed(&self, cause: Cause) {
        add(&self.failures[cause as usize], 1);
    }

    /// The device got a command, or ended one.
    pub(crate) fn queued(&self, change: i64) {
        self.queue.store(self.queue.load(Ordering::Relaxed) + change, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> LunMetrics {
        let of = |kind: Kind| {
            let counters = &self.kinds[kind as usize];
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            OperationMetrics {
                operation: kind.name().into(),
                operations: load(&counters.operations),
                bytes: load(&counters.bytes),
                failed: load(&counters.failed),
                refused: load(&counters.refused),
                latency_us_total: load(&counters.latency_us_total),
                latency_us_log2: counters.latency.iter().map(load).collect(),
            }
        };
        let failures = |cause: Cause| FailureMetrics {
            cause: cause.name().into(),
            count: self.failures[cause as usize].load(Ordering::Relaxed),
        };
        LunMetrics {
            operations: Kind::ALL.map(of).into(),
            failures: Cause::ALL.map(failures).into(),
            queue: self.queue.load(Ordering::Relaxed).unsigned_abs(),
        }
    }
}

/// Counters of a logical unit, a session or a portal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LunMetrics {
    /// By kind of operation: `read`, `write`, `unmap` (with WRITE SAME), `flush`, `other`.
    pub operations: Vec<OperationMetrics>,
    /// By cause: commands that the device could not carry out. Writes to a write-protected LUN do not count.
    pub failures: Vec<FailureMetrics>,
    /// Commands that the device has now.
    pub queue: u64,
}

/// Commands that a device has failed for one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureMetrics {
    /// `full`: its backing store has no space left; `medium`: reading or writing failed; `gone`: the device no
    /// longer exists; `timeout`: it has not answered in time; `internal`: something else.
    pub cause: Cow<'static, str>,
    /// Number of failed commands.
    pub count: u64,
}

/// Counters of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationMetrics {
    /// Its name.
    pub operation: Cow<'static, str>,
    /// Commands that have ended.
    pub operations: u64,
    /// Bytes of successful commands.
    pub bytes: u64,
    /// Commands that the device could not carry out.
    pub failed: u64,
    /// Commands that were refused: invalid requests, unit attentions, reservations.
    pub refused: u64,
    /// Sum of the microseconds from arrival to answer.
    pub latency_us_total: u64,
    /// Latency histogram: commands that took up to 1, 2, 4 … 2^24 microseconds, and longer; not cumulated.
    pub latency_us_log2: Vec<u64>,
}

impl LunMetrics {
    /// Adds what was counted elsewhere.
    pub(crate) fn add(&mut self, other: &Self) {
        self.queue += other.queue;
        if self.operations.is_empty() {
            self.operations.clone_from(&other.operations);
            self.failures.clone_from(&other.failures);
            return;
        }
        for (own, other) in self.failures.iter_mut().zip(&other.failures) {
            own.count += other.count;
        }
        for (sum, more) in self.operations.iter_mut().zip(&other.operations) {
            sum.operations += more.operations;
            sum.bytes += more.bytes;
            sum.failed += more.failed;
            sum.refused += more.refused;
            sum.latency_us_total = sum.latency_us_total.saturating_add(more.latency_us_total);
            for (sum, more) in sum.latency_us_log2.iter_mut().zip(&more.latency_us_log2) {
                *sum += more;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_bucket_whose_bound_it_does_not_exceed() {
        let counters = Counters::default();
        for micros in [0, 1, 2, 3, 4, 5, 1 << 24, (1 << 24) + 1, 1 << 40] {
            counters.took(Kind::Read, 1, Duration::from_micros(micros));
        }
        let read = counters.snapshot().operations[Kind::Read as usize].clone();
        let filled: Vec<_> = read
            .latency_us_log2
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(at, n)| (at, *n))
            .collect();
        assert_eq!(filled, [(0, 2), (1, 1), (2, 2), (3, 1), (24, 1), (25, 2)]);
    }

    #[test]
    fn only_what_succeeded_counts_its_bytes() {
        let counters = Counters::default();
        counters.ended(Kind::Write, Ending::Good, 4096);
        counters.ended(Kind::Write, Ending::Failed, 4096);
        counters.ended(Kind::of(0x8A), Ending::Refused, 4096);
        let write = &counters.snapshot().operations[Kind::Write as usize];
        assert_eq!((write.operations, write.bytes, write.failed, write.refused), (3, 4096, 1, 1));
    }
}
