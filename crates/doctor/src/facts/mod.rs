//! Facts about a set-up: plain data that rules judge, that can be written to a file and judged elsewhere.

mod ends;
mod host;
mod initiator;
mod lanes;
mod limits;
mod network;
mod storage;
mod target;
mod windows;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use ends::{Ends, HostEnd, HostSession, HostUnit, TargetEnd};
pub use host::{Answers, Host, Kubernetes, Quota};
pub use initiator::{
    Chap, Connection, KernelSession, LunwaySession, Multipath, MultipathMap, OpenIscsi, Record, SecretFile,
};
pub use lanes::{Lane, LaneProbe, LanePull, Lanes, PlanFinding, Units};
pub use limits::within_limits;
pub use network::{Coalescing, Counters, Flow, Interrupts, Neighbour, Peer, Port, Ring, Role, Route};
pub use storage::{Array, ArrayKind, Disk, FstabEntry, Mount, MountFaults, Partition, Storage, Swap};
pub use target::{
    BackupFolder, BackupSchedule, Device, Failures, FolderQuota, Look, LunStore, Operations, OwnerQuota,
    PortalState, Registration, ServedLun, ServedSession, ServedTarget, SessionKeys, Space, Target,
    TargetWarning, TaskManagement, UnitActivity, UnitReservations,
};
pub use windows::{Windows, WindowsPort, WindowsSession};

use crate::seen::Seen;

/// Version of the form of [`Facts`] in a file. It grows when a field changes its meaning.
pub const FACTS_SCHEMA: u32 = 1;

/// Everything that rules judge. A part that is absent was not looked at, and rules about it do not apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// [`FACTS_SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub host: Option<Host>,
    /// Facts of a node of Kubernetes.
    pub kubernetes: Option<Kubernetes>,
    /// Its network ports, loopbacks left out.
    pub ports: Option<Seen<Vec<Port>>>,
    /// The other ends of its iSCSI connections.
    pub peers: Option<Seen<Vec<Peer>>>,
    /// Kernel settings by their names, as `net.ipv4.tcp_rmem`.
    pub sysctls: BTreeMap<String, Seen<String>>,
    /// Linux's initiator.
    pub open_iscsi: Option<OpenIscsi>,
    /// Sessions of lunway's own initiator.
    pub lunway_sessions: Option<Seen<Vec<LunwaySession>>>,
    /// dm-multipath.
    pub multipath: Option<Multipath>,
    /// Disks, arrays, file systems.
    pub storage: Option<Storage>,
    /// A running target, by its management interface.
    pub target: Option<Target>,
    /// A disk of lunway's own initiator, and its lanes.
    pub lanes: Option<Lanes>,
    /// A Windows machine.
    pub windows: Option<Windows>,
    /// Hosts and their target, merged.
    pub ends: Option<Ends>,
    /// Answers given by people.
    pub answers: Option<Answers>,
    /// Ports by which the default routes leave.
    pub default_ports: Seen<Vec<String>>,
    /// Facts that were not gathered because there are more than the limits allow: a sentence each.
    pub left_out: Vec<String>,
}

impl Facts {
    /// Of these names of ports, the first that the machine does not have, and the names that it has. `None`: it has
    /// all of them, or its ports are not known.
    pub fn missing_port<'a>(&self, named: &'a [String]) -> Option<(&'a str, Vec<&str>)> {
        let ports = self.ports.as_ref()?.get()?;
        let missing = named.iter().find(|name| !ports.iter().any(|port| port.name == **name))?;
        Some((missing, ports.iter().map(|port| port.name.as_str()).collect()))
    }

    /// Reads facts from a file that `lunway doctor --facts` or `doctor-windows.ps1` wrote.
    ///
    /// # Errors
    ///
    /// A sentence: what is not a file of facts, or of a later version.
    pub fn parse(text: &str) -> Result<Self, String> {
        // PowerShell writes UTF-8 files with a byte order mark.
        let text = text.trim_start_matches('\u{feff}');
        let none = |error: serde_json::Error| format!("it does not hold facts of lunway doctor: {error}");
        let mut document: serde_json::Value = serde_json::from_str(text).map_err(none)?;
        if let Some(windows) = document.get_mut("windows") {
            windows::with_plain_lists(windows);
        }
        let left_out = within_limits("facts", &mut document);
        let mut facts: Self = serde_json::from_value(document).map_err(none)?;
        facts.left_out.extend(left_out);
        match facts.schema {
            FACTS_SCHEMA => Ok(facts),
            0 => Err("it does not hold facts of lunway doctor: \"schema\" is missing".to_owned()),
            other => Err(format!(
                "its facts have form {other}, and this version of lunway reads form {FACTS_SCHEMA}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_named_and_not_there_is_told_with_those_that_are() {
        let port = Port { name: "eth0".to_owned(), ..Port::default() };
        let facts = Facts { ports: Some(Seen::Value(vec![port])), ..Facts::default() };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(facts.missing_port(&names(&["eth0", "nope"])), Some(("nope", vec!["eth0"])));
        assert_eq!(facts.missing_port(&names(&["eth0"])), None);
        let unseen = Facts { ports: Some(Seen::unseen("no ip")), ..Facts::default() };
        assert_eq!(unseen.missing_port(&names(&["nope"])), None);
    }

    #[test]
    fn facts_that_are_not_or_of_a_later_form_are_refused_in_a_sentence() {
        for (text, sentence) in [
            ("", "does not hold facts"),
            ("[]", "does not hold facts"),
            ("{}", "\"schema\" is missing"),
            ("{\"schema\":99}", "form 99"),
            ("{\"schema\":1,\"ports\":7}", "does not hold facts"),
            (&"[".repeat(100_000), "does not hold facts"),
        ] {
            let refused = Facts::parse(text).unwrap_err();
            assert!(refused.contains(sentence) && refused.len() < 300, "{refused}");
        }
        assert!(Facts::parse("\u{feff}{\"schema\":1}").is_ok());
    }
}
