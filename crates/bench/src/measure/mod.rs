//! Measurement: counters of a run, and the figures that they become.
//!
//! | file | room of |
//! |---|---|
//! | `cpu.rs` | CPU time and page faults of the process |
//! | `interval.rs` | completions of an interval of time |
//! | `latency.rs` | histogram of response times |
//! | `meter.rs` | counters of a worker |
//! | `outcome.rs` | outcome of a job |
//! | `series.rs` | throughput over time |

pub(crate) mod cpu;
pub(crate) mod interval;
pub(crate) mod latency;
pub(crate) mod meter;
pub(crate) mod outcome;
pub(crate) mod series;
