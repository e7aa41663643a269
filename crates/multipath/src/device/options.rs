//! Options of a multipath device.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lunway_block::duration::{ExactDuration, parse_duration};

use crate::{Failback, Flap, Policy};

/// Default time for which an operation waits for a lane: as long as an initiator with one path waits for its
/// session.
pub const QUEUE_TIME: Duration = Duration::from_secs(30);

/// Time for which an operation waits that shall never fail: as long as any machine runs. It can be added to any
/// other.
pub const QUEUE_FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Default time for which an operation is tried on a disk that is busy: as long as one command may take
/// over a single path.
pub const BUSY_TIME: Duration = Duration::from_secs(30);

/// Default limit of the bytes that wait: two seconds of a gigabit link.
pub const QUEUE_BYTES: u64 = 256 << 20;

/// Default time in which a lost session has to be proven dead. A segment lives on a storage network for
/// milliseconds, and what waits for a neighbour's address for three seconds; a target that has not read its sockets for
/// so long is dead for all purposes.
pub const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Options of a multipath device. The defaults suit a disk that a file system is on.
#[derive(Clone, Debug)]
pub struct Options {
    /// Policy that chooses the lane of an operation.
    pub policy: Policy,
    /// Treatment of operations when no lane is left.
    pub when_none: WhenNone,
    /// Minimum time for which an operation is retried on a busy disk, over whichever lanes.
    pub busy: Duration,
    /// Time that a change of unknown outcome waits for the proof that its lost session is dead, counted from the loss.
    pub settle: Duration,
    /// Treatment of such a change when no proof has come by then.
    pub unproven: Unproven,
    /// Return to a better lane.
    pub failback: Failback,
    /// Patience with lanes that come and go.
    pub flap: Flap,
    /// `true` if the storage is trusted to keep what it acknowledged without a flush when it reports a power-on.
    /// Normally `false`: see [`MultipathDevice`](crate::MultipathDevice).
    pub cache_survives_power_on: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Adaptive,
            when_none: WhenNone::default(),
            busy: BUSY_TIME,
            settle: SETTLE_TIME,
            unproven: Unproven::default(),
            failback: Failback::default(),
            flap: Flap::default(),
            cache_survives_power_on: false,
        }
    }
}

/// Treatment of operations when no lane is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNone {
    /// They fail at once.
    Fail,
    /// They wait for a lane.
    Queue {
        /// Each at most for so long.
        time: Duration,
        /// All together at most so many; more fail at once.
        bytes: u64,
    },
}

impl Default for WhenNone {
    fn default() -> Self {
        Self::Queue { time: QUEUE_TIME, bytes: QUEUE_BYTES }
    }
}

/// Treatment of a change of unknown outcome when nothing has proved in time that its lost session is dead: its
/// portal is gone, and no other path leads to that portal group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unproven {
    /// Sent again when the disk has answered a [`barrier`](crate::Lane::barrier) over another lane. What was in the
    /// network at the loss has arrived or died by then, and what has arrived has ended: true of every target that reads
    /// its sockets within the time.
    #[default]
    Resend,
    /// Fails. Later changes of the same place wait for the proof.
    Fail,
}

impl WhenNone {
    /// Returns the total time that an operation in trouble may wait, the settle time aside. Without a queue that is
    /// only the wait for a barrier to be answered.
    pub(super) fn patience(self) -> Duration {
        match self {
            Self::Fail => QUEUE_TIME,
            Self::Queue { time, .. } => time.min(QUEUE_FOREVER),
        }
    }

    /// Returns the limit of the bytes that wait.
    pub(super) fn bytes_max(self) -> u64 {
        match self {
            Self::Fail => QUEUE_BYTES,
            Self::Queue { bytes, .. } => bytes,
        }
    }
}

/// Reason why a setting cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is none of {known}")]
pub struct SettingError {
    text: String,
    known: &'static str,
}

impl SettingError {
    /// `text` is none of the names in `known`.
    pub fn new(text: &str, known: &'static str) -> Self {
        Self { text: text.to_owned(), known }
    }
}

impl fmt::Display for Failback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Immediate => f.pad("immediate"),
            Self::After(time) => write!(f, "{}", ExactDuration(*time)),
            Self::Manual => f.pad("manual"),
        }
    }
}

impl FromStr for Failback {
    type Err = SettingError;

    /// `immediate`, `manual`, or after how long: `10s`.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        let refused =
            || SettingError { text: text.to_owned(), known: "immediate, manual, or a time such as 10s" };
        match text {
            "immediate" => Ok(Self::Immediate),
            "manual" => Ok(Self::Manual),
            _ => parse_duration(text).map(Self::After).map_err(|_| refused()),
        }
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Resend => "resend",
            Self::Fail => "fail",
        })
    }
}

impl FromStr for Unproven {
    type Err = SettingError;

    /// `resend` or `fail`.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "resend" => Ok(Self::Resend),
            "fail" => Ok(Self::Fail),
            _ => Err(SettingError::new(text, "resend, fail")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        for text in ["immediate", "manual", "10s"] {
            assert_eq!(text.parse::<Failback>().unwrap().to_string(), text);
        }
        for text in ["resend", "fail"] {
            assert_eq!(text.parse::<Unproven>().unwrap().to_string(), text);
        }
        let error = "never".parse::<Unproven>().unwrap_err().to_string();
        assert_eq!(error, r#""never" is none of resend, fail"#);
        let error = "never".parse::<Failback>().unwrap_err().to_string();
        assert_eq!(error, r#""never" is none of immediate, manual, or a time such as 10s"#);
    }
}
