//! Health of one lane.

use std::fmt;
use std::time::Duration;

use super::flap::Record;
use crate::AluaState;

/// State of a lane, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// Carries I/O (or would, if its [`AluaState`] let it).
    Up,
    /// Connected and not used yet: it came and went, or the return to it is to wait.
    HeldBack {
        /// Until then; `None`: until the user says so.
        left: Option<Duration>,
    },
    /// Does not answer as it should: used only if no other is left.
    Suspect,
    /// Waits until no other is left.
    Reserve,
    /// Its connection is lost and is being brought back.
    Down,
    /// Does not come back.
    Closed,
    /// The user switched it off.
    Disabled,
}

impl fmt::Display for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::HeldBack { .. } => "held back",
            Self::Suspect => "suspect",
            Self::Reserve => "reserve",
            Self::Down => "down",
            Self::Closed => "closed",
            Self::Disabled => "disabled",
        })
    }
}

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Not there, or not yet.
    Down,
    Up {
        since: Duration,
    },
    /// For ever.
    Closed,
}

/// Reason why a lane that is up is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// `None`: until the user says so.
    pub(super) until: Option<Duration>,
}

/// Health of one lane.
#[derive(Clone, Debug)]
pub(super) struct LaneHealth {
    pub(super) reserve: bool,
    pub(super) link: Link,
    /// `true` if it ever was up: the first time it need not prove anything.
    pub(super) known: bool,
    /// The session there is, or the last one there was.
    pub(super) epoch: u64,
    /// The last one of which the loss was told.
    pub(super) lost: u64,
    /// Time of that loss.
    pub(super) lost_at: Duration,
    /// Nothing of it or of those before can reach the disk any more.
    pub(super) settled: u64,
    /// The last one that is taken for dead without proof.
    pub(super) presumed: u64,
    pub(super) access: AluaState,
    pub(super) silent: bool,
    /// Until then it is suspect for an operation that it did badly.
    pub(super) complaint: Option<Duration>,
    pub(super) disabled: bool,
    pub(super) hold: Option<Hold>,
    pub(super) record: Record,
    pub(super) last_event: Option<(Duration, String)>,
}

impl LaneHealth {
    pub(super) fn new(reserve: bool) -> Self {
        Self {
            reserve,
            link: Link::Down,
            known: false,
            epoch: 0,
            lost: 0,
            lost_at: Duration::ZERO,
            settled: 0,
            presumed: 0,
            access: AluaState::Optimized,
            silent: false,
            complaint: None,
            disabled: false,
            hold: None,
            record: Record::default(),
            last_event: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// Returns `true` if I/O could go there.
    pub(super) fn is_usable(&self) -> bool {
        self.is_up() && !self.disabled && self.access.is_active()
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.silent || self.complaint.is_some()
    }

    pub(super) fn state(&self, now: Duration) -> LaneState {
        match (&self.link, &self.hold) {
            _ if self.disabled => LaneState::Disabled,
            (Link::Closed, _) => LaneState::Closed,
            (Link::Down, _) => LaneState::Down,
            (Link::Up { .. }, Some(hold)) => {
                LaneState::HeldBack { left: hold.until.map(|until| until.saturating_sub(now)) }
            }
            (Link::Up { .. }, None) if self.is_suspect() => LaneState::Suspect,
            (Link::Up { .. }, None) if self.reserve => LaneState::Reserve,
            (Link::Up { .. }, None) => LaneState::Up,
        }
    }
}
