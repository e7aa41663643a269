//! A disk of lunway's own initiator: the plan of its lanes, and what probes measured on them.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// A disk and its lanes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lanes {
    /// The disk, without secrets.
    pub disk: String,
    /// The rule by which lanes were chosen.
    pub plan: String,
    /// The lanes.
    pub lanes: Vec<Lane>,
    /// Rules that the plan breaks.
    pub findings: Vec<PlanFinding>,
    /// The logical unit that the address names, and those that there are.
    pub units: Seen<Units>,
}

/// Logical units of a target, as it shows them to this initiator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Units {
    /// The number in the disk's address.
    pub named: u16,
    /// The numbers that REPORT LUNS lists.
    pub shown: Vec<u16>,
}

impl Units {
    /// Returns `true` if the one that is named is there.
    pub fn has_named(&self) -> bool {
        self.shown.contains(&self.named)
    }
}

/// A lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// The address that it leaves from.
    pub near: Option<IpAddr>,
    /// Portal that the lane leads to.
    pub portal: Option<SocketAddr>,
    /// Carries something only when no other is left.
    pub reserve: bool,
    /// Results of a probe.
    pub probe: Seen<LaneProbe>,
    /// Effects of taking the lane down; `None`: it was not taken down.
    pub pull: Option<LanePull>,
}

/// Effects on the disk's users of a lane that was taken down and put back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LanePull {
    /// The longest time that a read took meanwhile, milliseconds.
    pub pause_ms: f64,
    /// Reads meanwhile.
    pub reads: u64,
    /// Number of them that failed.
    pub failed: u64,
    /// Milliseconds until the lane was logged in again, once it was let.
    pub back_ms: Seen<f64>,
}

/// Measurements of one lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneProbe {
    /// MTU of the local port, bytes.
    pub port_mtu: u32,
    /// The largest packet that came back unbroken, bytes.
    pub path_mtu: Seen<u32>,
    /// A packet that the first router drops comes back.
    pub direct: Seen<bool>,
    /// Time of a read of one sector, the median, microseconds.
    pub round_trip_us: f64,
    /// The slowest of them, microseconds.
    pub round_trip_max_us: f64,
    /// 10th percentile, microseconds: the lane's own time, without what a busy machine adds.
    pub round_trip_p10_us: Seen<f64>,
    /// 99th percentile, microseconds.
    pub round_trip_p99_us: Seen<f64>,
    /// Number of reads that were made.
    pub reads: u32,
    /// Of those, reads that took as long as a delayed acknowledgement does.
    pub held_back: u32,
    /// Hardware addresses of other machines that answer for the lane's local address.
    pub port_owners: Seen<Vec<String>>,
    /// Hardware addresses that answer for the portal's address.
    pub portal_owners: Seen<Vec<String>>,
    /// TCP segments with data, both ways.
    pub segments: Seen<u64>,
    /// Of those, segments that this end sent again, or received out of their order.
    pub lost: u64,
    /// Payload of TCP's largest segment, bytes.
    pub mss: Seen<u32>,
    /// Packets that its port lost or received broken during the probe.
    pub port_lost: Seen<u64>,
}

/// A rule that a plan breaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFinding {
    /// `rule-3`.
    pub id: String,
    /// Observation.
    pub what: String,
    /// Subject.
    pub place: String,
    /// Remedy.
    pub remedy: String,
}
