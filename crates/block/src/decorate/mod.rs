//! Devices around devices: the test kit of storage, and the limits of a shared one.
//!
//! | decorator | does |
//! |---|---|
//! | [`Fault`] | fails operations or corrupts reads, by rate, by range, or while a file exists |
//! | [`Deadline`] | fails reads that are not answered in time |
//! | [`Delay`] | adds a fixed time to each answer |
//! | [`Part`] | is some ranges of a device: a partition, a logical volume |
//! | [`Rate`] | limits bytes per second |
//! | [`ReadOnly`] | refuses changes |
//! | [`Openers`], [`Opener`] | a failed flush is heard by each user of a device, once |
//! | [`Stats`] | counts operations, bytes, errors and time |
//!
//! Each is a [`Layer`](crate::Layer) around an `Arc<dyn BlockDevice>` and passes on what it does not change. None needs
//! a runtime: what waits, waits on one timer thread of the process, started at the first wait. A thread rather than a
//! timer trait that callers implement, because a device must work the same under every front end and in a test without
//! a runtime, and a decorator that waits is never on the fast path.

mod deadline;
mod delay;
mod fault;
mod opener;
mod part;
mod rate;
mod read_only;
mod stats;
mod timer;

pub use deadline::Deadline;
pub use delay::Delay;
pub use fault::Fault;
pub use opener::{Opener, Openers};
pub use part::Part;
pub use rate::Rate;
pub use read_only::ReadOnly;
pub use stats::{OpStats, Stats, StatsSnapshot};
#[cfg(any(test, feature = "conformance"))]
pub(crate) use timer::sleep_until;

#[cfg(test)]
mod test_device;
