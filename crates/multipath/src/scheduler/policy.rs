//! The policies by name.

use std::fmt;
use std::str::FromStr;

use super::LaneId;

/// Policy: the rule by which lanes are chosen.
///
/// All but [`Adaptive`](Self::Adaptive) are other systems' policies with those systems' exact choices, bad ones
/// included, so that what is known of them holds here too. None of those divides a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One lane until it is lost (MSDSM's Fail Over Only, VMware's MRU; with a preferred lane VMware's Fixed).
    Failover {
        /// The lane to return to when it may be used again.
        preferred: Option<LaneId>,
    },
    /// The next optimized lane for every request (MSDSM's Round Robin).
    RoundRobin,
    /// The same among the optimized lanes, and among the others when there are none (Round Robin with Subset).
    RoundRobinSubset,
    /// The lane with the fewest requests in flight (MSDSM's Least Queue Depth, dm's and NVMe's queue-depth).
    LeastQueueDepth,
    /// The lane with the least weight, always (MSDSM's Weighted Paths).
    Weighted,
    /// The lane with the fewest bytes in flight; sequential requests stay (MSDSM's Least Blocks).
    LeastBlocks,
    /// The lane with the least (bytes in flight + size) / weight (dm-multipath's service-time).
    ServiceTime,
    /// The lane, or the lanes together, by which the request is expected to end first.
    #[default]
    Adaptive,
}

impl Policy {
    /// All policies, in the order in which they are listed for people.
    pub const ALL: [Self; 8] = [
        Self::Adaptive,
        Self::Failover { preferred: None },
        Self::RoundRobin,
        Self::RoundRobinSubset,
        Self::LeastQueueDepth,
        Self::Weighted,
        Self::LeastBlocks,
        Self::ServiceTime,
    ];

    /// Their names, as people write them.
    pub const NAMES: [&str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = Self::ALL[index].name();
            index += 1;
        }
        names
    };

    /// The name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failover { .. } => "failover",
            Self::RoundRobin => "round-robin",
            Self::RoundRobinSubset => "round-robin-subset",
            Self::LeastQueueDepth => "least-queue-depth",
            Self::Weighted => "weighted",
            Self::LeastBlocks => "least-blocks",
            Self::ServiceTime => "service-time",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no policy of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`; there are {names}", names = Policy::NAMES.join(", "))]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == name);
        named.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_and_written_alike() {
        for name in Policy::NAMES {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        let error = "fastest".parse::<Policy>().unwrap_err().to_string();
        assert!(error.contains("`fastest`") && error.contains("least-blocks"), "{error}");
    }
}
