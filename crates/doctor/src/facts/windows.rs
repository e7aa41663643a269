//! A Windows machine, as `contrib/doctor-windows.ps1` collects it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::seen::Seen;

/// A Windows machine that reaches storage over iSCSI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Windows {
    /// Its name.
    pub name: String,
    /// Values below `HKLM\SYSTEM\CurrentControlSet\Services\mpio\Parameters`.
    pub mpio: Seen<BTreeMap<String, u64>>,
    /// MSDSM claims iSCSI disks.
    pub claims_iscsi: Seen<bool>,
    /// Default policy of MSDSM: `None`, `FOO`, `RR`, `LQD`, `LB`.
    pub policy: Seen<String>,
    /// `Services\Disk\TimeOutValue`, seconds.
    pub disk_timeout: Seen<u64>,
    /// Parameters of the iSCSI initiator's driver.
    pub initiator: Seen<BTreeMap<String, u64>>,
    /// Ports that carry iSCSI.
    pub ports: Seen<Vec<WindowsPort>>,
    /// Sessions.
    pub sessions: Seen<Vec<WindowsSession>>,
}

/// A port of a Windows machine that carries iSCSI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowsPort {
    /// Its name.
    pub name: String,
    /// `TcpAckFrequency` of the interface; 2 where it is not set.
    pub tcp_ack_frequency: Seen<u64>,
    /// `TCPNoDelay` of the interface; 0 where it is not set.
    pub tcp_no_delay: Seen<u64>,
    /// Windows may switch it off to save power.
    pub power_saving: Seen<bool>,
    /// Registers its address in DNS.
    pub registers_dns: Seen<bool>,
    /// NetBIOS over TCP/IP runs on it.
    pub netbios: Seen<bool>,
    /// `TcpipNetbiosOptions`: 0 by DHCP, 1 on, 2 off.
    pub netbios_option: Option<u64>,
    /// IPv6 is bound to it.
    pub ipv6: Seen<bool>,
    /// MTU, bytes.
    pub mtu: Seen<u64>,
    /// Receive side scaling is on.
    pub rss: Seen<bool>,
}

/// A session of a Windows machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowsSession {
    /// `SessionIdentifier`, by which it is registered and ended; empty: it was not told.
    pub identifier: String,
    /// The target's name.
    pub target: String,
    /// The local address that it leaves from.
    pub local: String,
    /// The portal's address.
    pub portal: String,
    /// Comes back after a restart.
    pub persistent: bool,
    /// A source address was chosen for it, not "default".
    pub bound: bool,
}

/// Lists in the form that Windows PowerShell 5.1 gives to those that came through a pipeline, as lists: `{"value": […],
/// "Count": 1}`. PowerShell 6 and later write lists.
pub(super) fn with_plain_lists(value: &mut Value) {
    if let Value::Object(members) = value
        && members.len() == 2
        && members.get("Count").is_some_and(Value::is_u64)
        && let Some(Value::Array(items)) = members.get_mut("value")
    {
        *value = Value::Array(std::mem::take(items));
    }
    match value {
        Value::Object(members) => members.values_mut().for_each(with_plain_lists),
        Value::Array(items) => items.iter_mut().for_each(with_plain_lists),
        _ => {}
    }
}
