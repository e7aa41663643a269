//! Completions of an interval of time.

use crate::measure::latency::Latency;

/// Completions in one direction between two moments. [`merge`](Self::merge) makes longer intervals of shorter ones,
/// with percentiles that are those of all their I/Os.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// I/Os completed without error.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their response times.
    pub response: Latency,
}

impl Interval {
    /// Puts another's on top.
    pub fn merge(&mut self, other: &Self) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.response.merge(&other.response);
    }

    /// Starts a new one.
    pub fn clear(&mut self) {
        self.ios = 0;
        self.bytes = 0;
        self.response.clear();
    }
}
