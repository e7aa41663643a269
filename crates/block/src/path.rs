//! Paths by which data reaches a device.

use std::fmt;
use std::time::Duration;

/// Path to a device, with the traffic over it since it was opened.
///
/// Counters only grow; a reader that wants rates takes two samples and divides by the time between them. A device
/// without a way that could be told apart (memory, a file) has none of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSample {
    /// Display name of the path's destination: a portal.
    pub name: String,
    /// State of the path.
    pub state: PathState,
    /// Reads answered without error.
    pub read_ios: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes answered without error.
    pub write_ios: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Operations of any kind that failed.
    pub errors: u64,
    /// Smoothed round trip of the transport; `None` where nothing knows it.
    pub round_trip: Option<Duration>,
    /// Round-trip time of the last request that needs no medium (an iSCSI NOP), including transport; `None` where none
    /// was sent. Idle paths are probed too.
    pub ping: Option<Duration>,
    /// Last event on the path, for people: why its connection was lost, what was not answered; `None` if there was
    /// none.
    pub last_event: Option<String>,
}

impl PathSample {
    /// A path over which nothing has gone.
    pub fn unused(name: impl Into<String>, state: PathState) -> Self {
        Self {
            name: name.into(),
            state,
            read_ios: 0,
            read_bytes: 0,
            write_ios: 0,
            write_bytes: 0,
            errors: 0,
            round_trip: None,
            ping: None,
            last_event: None,
        }
    }
}

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Carries requests.
    Up,
    /// The connection was lost and is being brought back.
    Down,
    /// Closed, or cannot come back.
    Closed,
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Closed => "closed",
        })
    }
}
