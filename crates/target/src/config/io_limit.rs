//! Limits on the I/O of a logical unit, or of an initiator.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{AccessRule, LunConfig};

/// Limit on I/O: so much in a second, and so much at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoLimit {
    /// Commands per second that read or change the medium.
    pub iops: Option<NonZeroU64>,
    /// Bytes per second that these read or write together.
    pub bytes: Option<NonZeroU64>,
    /// What was not used in this time may be used at once.
    pub burst: Duration,
}

impl IoLimit {
    /// Without `limit_burst`. Many times the millisecond to which timers are exact, so that the limit is reached; so
    /// short that no second has more than a tenth beyond it.
    pub const BURST: Duration = Duration::from_millis(100);

    fn of(iops: Option<u64>, bytes: Option<NonZeroU64>, burst: Option<Duration>) -> Option<Self> {
        let iops = iops.and_then(NonZeroU64::new);
        (iops.is_some() || bytes.is_some()).then(|| Self { iops, bytes, burst: burst.unwrap_or(Self::BURST) })
    }
}

impl LunConfig {
    /// The limit of all its initiators together; `None`: there is none.
    pub fn io_limit(&self) -> Option<IoLimit> {
        IoLimit::of(self.iops_limit, self.rate_limit, self.limit_burst)
    }
}

impl AccessRule {
    /// The limit of each initiator that it lets in; `None`: there is none.
    pub fn io_limit(&self) -> Option<IoLimit> {
        IoLimit::of(self.iops_limit, self.rate_limit, self.limit_burst)
    }
}
