//! A compaction under way: what is asked of the device, and how far it is.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Phase of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionPhase {
    /// Reading what the file systems say is free. They must not change meanwhile.
    Mapping,
    /// Releasing blocks that were free and have not been written since.
    Dropping,
    /// Moving blocks into holes, and truncating the file.
    Moving,
    /// Ended.
    Ended,
}

/// Progress of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Current phase.
    pub phase: CompactionPhase,
    /// Bytes that were released because the file systems do not use them.
    pub dropped: u64,
    /// Bytes of blocks that were moved.
    pub moved: u64,
    /// Bytes of blocks that are still to be moved, at most.
    pub left: u64,
    /// Bytes by which the file was truncated.
    pub cut: u64,
}

/// A compaction of a device that is used: the orders for [`BlockDevice::compact`](crate::BlockDevice::compact), its
/// progress, and its end before its time. Shared by the caller and the device; nothing here waits.
#[derive(Debug)]
pub struct Compaction {
    rate: u64,
    frozen: bool,
    idle: Option<Duration>,
    cancelled: AtomicBool,
    phase: AtomicU8,
    dropped: AtomicU64,
    moved: AtomicU64,
    left: AtomicU64,
    cut: AtomicU64,
}

impl Compaction {
    /// Moves blocks, at most `rate` bytes in a second.
    pub fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            frozen: false,
            idle: None,
            cancelled: AtomicBool::new(false),
            phase: AtomicU8::new(CompactionPhase::Moving as u8),
            dropped: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            left: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        }
    }

    /// Gives up before what the disk's file systems say is free. The caller has seen to it that they write nothing,
    /// and have nothing to write, until the phase is no longer [`Mapping`](CompactionPhase::Mapping): frozen, not only
    /// flushed.
    #[must_use]
    pub fn of_frozen(self) -> Self {
        Self { frozen: true, phase: AtomicU8::new(CompactionPhase::Mapping as u8), ..self }
    }

    /// Moves only while no other user has used the device for `time`.
    #[must_use]
    pub fn when_idle(self, time: Duration) -> Self {
        Self { idle: Some(time), ..self }
    }

    /// Time for which no other user must have used the device before anything moves.
    pub fn idle(&self) -> Option<Duration> {
        self.idle
    }

    /// Bytes in a second, at most.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Tells whether the file systems are frozen, and asked what is free.
    pub fn is_of_frozen(&self) -> bool {
        self.frozen
    }

    /// Has it end soon. What was done stays done.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Tells whether the compaction was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Progress of the compaction.
    pub fn progress(&self) -> CompactionProgress {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompactionProgress {
            phase: match self.phase.load(Ordering::Acquire) {
                0 => CompactionPhase::Mapping,
                1 => CompactionPhase::Dropping,
                2 => CompactionPhase::Moving,
                _ => CompactionPhase::Ended,
            },
            dropped: count(&self.dropped),
            moved: count(&self.moved),
            left: count(&self.left),
            cut: count(&self.cut),
        }
    }

    /// For the device: what it does from now on.
    pub fn enter(&self, phase: CompactionPhase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// For the device: so many bytes more were given up.
    pub fn add_dropped(&self, bytes: u64) {
        self.dropped.fetch_add(bytes, Ordering::Relaxed);
    }

    /// For the device: so many bytes more were moved, and so many are left.
    pub fn add_moved(&self, bytes: u64, left: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
    }

    /// For the device: so many bytes more were cut off.
    pub fn add_cut(&self, bytes: u64) {
        self.cut.fetch_add(bytes, Ordering::Relaxed);
    }
}
