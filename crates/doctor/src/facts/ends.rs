//! Both ends of iSCSI sessions: hosts beside the target that they use.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::facts::{LunwaySession, ServedSession};
use crate::seen::Seen;

/// Both ends of the same sessions, as hosts and a target report them: [`merge`](crate::merge) makes it of their facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ends {
    /// Machines with an initiator.
    pub hosts: Vec<HostEnd>,
    /// The target; `None`: only hosts were looked at.
    pub target: Option<TargetEnd>,
}

/// A machine with the kernel's initiator, lunway's, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostEnd {
    /// Its name, or that of the file that tells of it.
    pub name: String,
    /// The name of the kernel's initiator; empty: it has none.
    pub initiator_name: Seen<String>,
    /// Sessions of the kernel's initiator.
    pub sessions: Seen<Vec<HostSession>>,
    /// Sessions of lunway's initiator.
    pub lunway_sessions: Seen<Vec<LunwaySession>>,
    /// Disks that its sessions lead to.
    pub units: Seen<Vec<HostUnit>>,
    /// Networks that it has addresses in.
    pub networks: Seen<Vec<IpNet>>,
}

/// A session of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSession {
    /// `session3`.
    pub name: String,
    /// The target's name.
    pub target: String,
    /// The host takes it for logged in.
    pub up: bool,
    /// The initiator's part of its identity, twelve hexadecimal digits; empty: the kernel does not tell.
    pub isid: String,
    /// Local address.
    pub local: Option<IpAddr>,
    /// The portal that it leads to.
    pub portal: Option<IpAddr>,
    /// Seconds until its I/O fails when it is lost.
    pub timeout: Seen<i64>,
    /// Seconds of silence until a ping.
    pub ping_interval: Seen<i64>,
    /// Digests over headers and over data that its record asks for first.
    pub digests: Seen<[bool; 2]>,
}

/// A logical unit as a host sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostUnit {
    /// The target's name.
    pub target: String,
    /// Its number.
    pub lun: u64,
    /// The host's disk.
    pub disk: String,
    /// Bytes.
    pub size: u64,
    /// Mount points at which it is mounted for writing with a file system for one host; empty: none.
    pub written_at: Seen<String>,
}

/// A target, for its hosts' sake.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetEnd {
    /// Names of its targets.
    pub names: Vec<String>,
    /// Its sessions.
    pub sessions: Vec<ServedSession>,
    /// Portals that it listens on, those on all addresses left out.
    pub portals: Vec<SocketAddr>,
    /// Its logical units: the target's name, the number, bytes.
    pub luns: Vec<(String, u64, u64)>,
}
