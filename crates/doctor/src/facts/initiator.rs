//! open-iscsi, dm-multipath, and sessions of lunway's own initiator.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// Linux's initiator: its settings and its sessions. No secret is among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenIscsi {
    /// `InitiatorName` of `/etc/iscsi/initiatorname.iscsi`.
    pub initiator_name: Seen<String>,
    /// `/etc/iscsi/iscsid.conf` by its keys, passwords left out.
    pub settings: Seen<BTreeMap<String, String>>,
    /// Node records: what a login to a portal uses.
    pub records: Seen<Vec<Record>>,
    /// CHAP secrets, without the secrets.
    pub chap: Seen<Vec<Chap>>,
    /// Files that hold CHAP secrets.
    pub secret_files: Seen<Vec<SecretFile>>,
    /// Sessions of the kernel's initiator.
    pub sessions: Seen<Vec<KernelSession>>,
}

/// A node record of open-iscsi.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The target's name.
    pub target: String,
    /// `ADDRESS,PORT` of the portal, as the record's folder is called.
    pub portal: String,
    /// By their keys, passwords left out.
    pub settings: BTreeMap<String, String>,
}

/// Properties of CHAP secrets that can be told without the secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chap {
    /// The file that has them.
    pub place: String,
    /// The target of a node record; `None`: the settings of new records.
    pub target: Option<String>,
    /// Algorithms that are offered, in order, by open-iscsi's names; none: its default, MD5.
    pub algorithms: Vec<String>,
    /// Bytes of the initiator's secret.
    pub length: usize,
    /// The target's secret (mutual CHAP) is the same.
    pub same_both_ways: bool,
}

/// A file with a CHAP secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretFile {
    /// Its path.
    pub path: String,
    /// Its mode.
    pub mode: u32,
}

/// A session of the kernel's initiator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelSession {
    /// `session3`.
    pub name: String,
    /// The target's name.
    pub target: String,
    /// `LOGGED_IN`, `FAILED`, `FREE`.
    pub state: String,
    /// The initiator's part of the session's identity, twelve hexadecimal digits. The kernel tells it for some
    /// adapters, and not for iSCSI over its own TCP.
    pub isid: Seen<String>,
    /// Seconds until I/O fails when the session is lost (replacement_timeout of the live session).
    pub recovery_tmo: Seen<i64>,
    /// Disks that it leads to.
    pub disks: Vec<String>,
    /// Its connection.
    pub connection: Connection,
}

/// The leading connection of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// This machine's address.
    pub local: Option<IpAddr>,
    /// This machine's port of TCP.
    pub local_port: Option<u16>,
    /// The portal's address.
    pub portal: Option<IpAddr>,
    /// Seconds between pings of a silent target (noop_out_interval); 0: never.
    pub ping_interval: Seen<i64>,
    /// Seconds to wait for a ping's answer (noop_out_timeout).
    pub ping_timeout: Seen<i64>,
    /// Most bytes of a PDU that the target may send (MaxRecvDataSegmentLength of this end).
    pub segment_max: Seen<u64>,
}

/// dm-multipath: settings and maps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Multipath {
    /// multipathd runs.
    pub running: Seen<bool>,
    /// Section `defaults` of the configuration in use, built-in values included.
    pub defaults: Seen<BTreeMap<String, String>>,
    /// Settings for lunway's disks: the defaults with the matching `device` and then `overrides` laid over them.
    pub ours: Seen<BTreeMap<String, String>>,
    /// The maps.
    pub maps: Seen<Vec<MultipathMap>>,
}

/// A multipath map: one disk over several others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MultipathMap {
    /// `mpatha`.
    pub name: String,
    /// `dm-0`.
    pub device: String,
    /// The disks that are its paths.
    pub paths: Vec<String>,
}

/// A session that a process of lunway has recorded on this machine: of `attach`, `copy`, `bench` and others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LunwaySession {
    /// The initiator's name.
    pub initiator: String,
    /// The target's name.
    pub target: String,
    /// The logical unit that it is for.
    pub lun: u64,
    /// The initiator's part of its identity, twelve hexadecimal digits.
    pub isid: String,
    /// The local address that it was bound to; `None`: the kernel chose.
    pub local: Option<IpAddr>,
    /// The portal that it leads to.
    pub portal: Option<SocketAddr>,
    /// Its process; `None`: that has ended, and has not logged out.
    pub process: Option<u32>,
}
