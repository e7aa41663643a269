//! Causes of commands that a device has failed.

use std::time::{Duration, Instant};

use lunway_scsi::{AdditionalSense, Response, SenseKey};

/// Interval at which one session asks whether the failures of one cause are to be logged: the answer takes a lock that
/// all sessions share.
const ASK_PERIOD: Duration = Duration::from_secs(1);

/// Reason why a device failed a command, as the sense data says that its initiator gets. A command that is itself
/// wrong, or that writes where writing is not allowed, is no failure of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub(crate) enum Cause {
    /// Its backing store has no space left.
    Full,
    /// The medium, or the operating system for it, could not read or write.
    Medium,
    /// Not there any longer.
    Gone,
    /// Has not answered in time.
    Timeout,
    /// Something else in the target failed.
    Internal,
}

impl Cause {
    pub(super) const ALL: [Self; 5] = [Self::Full, Self::Medium, Self::Gone, Self::Timeout, Self::Internal];

    /// `None`: the command succeeded, or the device is not to blame.
    pub(super) fn of(response: &Response) -> Option<Self> {
        let sense = response.sense.as_ref()?;
        match (sense.key, sense.code) {
            (_, AdditionalSense::SPACE_ALLOCATION_FAILED) => Some(Self::Full),
            (SenseKey::MEDIUM_ERROR, _) => Some(Self::Medium),
            (SenseKey::NOT_READY, AdditionalSense::NOT_READY_MANUAL_INTERVENTION) => Some(Self::Gone),
            (SenseKey::ABORTED_COMMAND, AdditionalSense::LOGICAL_UNIT_COMMUNICATION_TIMEOUT) => {
                Some(Self::Timeout)
            }
            (SenseKey::HARDWARE_ERROR, _) => Some(Self::Internal),
            _ => None,
        }
    }

    /// Its name in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Medium => "medium",
            Self::Gone => "gone",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
        }
    }

    /// Returns the failure and its remedy, for the log.
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::Full => "its backing store is full: free space there, or make it larger",
            Self::Medium => "its device cannot read or write: look at the disk and at the kernel's log",
            Self::Gone => {
                "its device is gone, and its warning says why: bring it back; if it is not opened again by itself then, remove \
                 the LUN and add it again, or restart the daemon"
            }
            Self::Timeout => {
                "its device does not answer in time: look at the disk or at the storage behind it"
            }
            Self::Internal => "the target could not carry it out",
        }
    }
}

/// Failures of one session that are not logged yet.
#[derive(Debug)]
pub(super) struct Unlogged {
    pub(super) lun: u16,
    pub(super) cause: Cause,
    count: u64,
    asked: Option<Instant>,
}

impl Unlogged {
    pub(super) fn new(lun: u16, cause: Cause) -> Self {
        Self { lun, cause, count: 0, asked: None }
    }

    /// Counts one more. `Some`: it is time to ask whether this many are to be logged.
    pub(super) fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASK_PERIOD) {
            return None;
        }
        self.asked = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_asks_once_a_second_and_none_is_lost() {
        let (mut failures, start) = (Unlogged::new(0, Cause::Full), Instant::now());
        assert_eq!(failures.add(start), Some(1));
        assert!((0..999).all(|_| failures.add(start).is_none()));
        assert_eq!(failures.add(start + ASK_PERIOD), Some(1000));
    }
}
