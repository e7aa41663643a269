//! open-iscsi: its files, and the kernel's sessions.

use std::collections::BTreeMap;

use super::source::Machine;
use crate::facts::{Chap, Connection, KernelSession, OpenIscsi, Record, SecretFile};
use crate::seen::Seen;

const CONFIGURATION: &str = "/etc/iscsi/iscsid.conf";
const NAME: &str = "/etc/iscsi/initiatorname.iscsi";
/// Folders of node records: of distributions, and of open-iscsi's own default.
const NODES: [&str; 2] = ["/etc/iscsi/nodes", "/var/lib/iscsi/nodes"];
/// Records that are read. A machine with more is one whose records are not tended.
const RECORDS_MAX: usize = 512;

/// open-iscsi's settings and sessions; `None`: the machine has neither.
pub(super) fn open_iscsi(machine: &Machine) -> Option<OpenIscsi> {
    let sessions = sessions(machine);
    let installed = machine.exists(CONFIGURATION) || machine.exists(NAME);
    if !installed && sessions.is_empty() {
        return None;
    }
    let settings = machine.text(CONFIGURATION).map(|text| pairs(&text));
    let records = records(machine);
    let mut chap = Vec::new();
    let mut files = Vec::new();
    for (path, target, pairs) in settings
        .iter()
        .map(|pairs| (CONFIGURATION, None, pairs))
        .chain(records.iter().flatten().map(|(path, target, _, pairs)| (path.as_str(), Some(target), pairs)))
    {
        if let Some(found) = secrets(path, target, pairs) {
            chap.push(found);
            files.extend(machine.mode(path).map(|mode| SecretFile { path: path.to_owned(), mode }));
        }
    }
    let blocked = settings.as_ref().err().or(records.as_ref().err()).cloned();
    let name = machine.text(NAME).and_then(|text| {
        let names: Vec<_> = pairs(&text).remove("InitiatorName").into_iter().collect();
        names.into_iter().next().ok_or_else(|| format!("{NAME} has no line InitiatorName="))
    });
    Some(OpenIscsi {
        initiator_name: name.into(),
        settings: settings.map(without_secrets).into(),
        records: records
            .map(|records| {
                let record = |(_, target, portal, pairs): (_, _, _, _)| Record {
                    target,
                    portal,
                    settings: without_secrets(pairs),
                };
                records.into_iter().map(record).collect()
            })
            .into(),
        // Where a part could not be read, nothing is said of all.
        chap: blocked.clone().map_or(Seen::Value(chap), Seen::unseen),
        secret_files: blocked.map_or(Seen::Value(files), Seen::unseen),
        sessions: Seen::Value(sessions),
    })
}

/// `key = value` lines; comments and empty values are left out.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let line = line.trim();
        let (key, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
        let (key, value) = (key.trim(), value.trim());
        (!value.is_empty() && !key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

fn without_secrets(mut pairs: BTreeMap<String, String>) -> BTreeMap<String, String> {
    pairs.retain(|key, _| !key.contains("password"));
    pairs
}

fn secrets(path: &str, target: Option<&String>, pairs: &BTreeMap<String, String>) -> Option<Chap> {
    let of = |key: &str| pairs.get(&format!("node.session.auth.{key}"));
    let secret = of("password")?;
    let algorithms = of("chap_algs").map(String::as_str).unwrap_or_default().split(',').map(str::trim);
    Some(Chap {
        place: path.to_owned(),
        target: target.cloned(),
        algorithms: algorithms.filter(|name| !name.is_empty()).map(str::to_uppercase).collect(),
        length: secret.len(),
        same_both_ways: of("password_in") == Some(secret),
    })
}

/// A record: its file, its target, its portal, its settings.
type RecordFile = (String, String, String, BTreeMap<String, String>);

/// `nodes/TARGET/ADDRESS,PORT[,TAG]` is a file, or a folder with a file for each interface.
fn records(machine: &Machine) -> Result<Vec<RecordFile>, String> {
    let mut records = Vec::new();
    for folder in NODES {
        let targets = match machine.listed(folder) {
            Ok(targets) => targets,
            Err(why) if why.contains("takes root") => return Err(why),
            Err(_) => continue,
        };
        for target in targets {
            for portal in machine.names(&format!("{folder}/{target}")) {
                let path = format!("{folder}/{target}/{portal}");
                let below = machine.names(&path);
                let files = if below.is_empty() {
                    vec![path.clone()]
                } else {
                    below.iter().map(|name| format!("{path}/{name}")).collect()
                };
                for file in files {
                    if records.len() >= RECORDS_MAX {
                        machine.note(format!("only {RECORDS_MAX} node records of open-iscsi were looked at"));
                    } else {
                        let settings = pairs(&machine.text(&file)?);
                        records.push((file, target.clone(), portal.clone(), settings));
                    }
                }
            }
        }
    }
    Ok(records)
}

/// Sessions of the kernel's initiator (`scsi_transport_iscsi`).
fn sessions(machine: &Machine) -> Vec<KernelSession> {
    let folder = "/sys/class/iscsi_session";
    let session = |name: String| {
        let file = |what: &str| format!("{folder}/{name}/{what}");
        let number = name.strip_prefix("session").unwrap_or_default();
        KernelSession {
            target: machine.line(&file("targetname")).unwrap_or_default(),
            state: machine.line(&file("state")).unwrap_or_default(),
            isid: machine.line(&file("isid")).into(),
            recovery_tmo: machine.number(&file("recovery_tmo")).into(),
            disks: disks(machine, &name),
            connection: connection(
                machine,
                &name,
                &format!("/sys/class/iscsi_connection/connection{number}:0"),
            ),
            name,
        }
    };
    machine.names(folder).into_iter().map(session).collect()
}

fn connection(machine: &Machine, session: &str, folder: &str) -> Connection {
    let file = |what: &str| format!("{folder}/{what}");
    let parsed = |path: &str| machine.line(path).ok().and_then(|text| text.parse().ok());
    let address = |what: &str| parsed(&file(what));
    // iscsi_tcp, the kernel's own transport, tells the local address of a session's host and not of its connection.
    let of_host = || {
        let hosts = format!("/sys/class/iscsi_session/{session}/device/../iscsi_host");
        machine.names(&hosts).iter().find_map(|host| parsed(&format!("{hosts}/{host}/ipaddress")))
    };
    Connection {
        local: address("local_ipaddr").or_else(of_host),
        local_port: machine.number(&file("local_port")).ok(),
        portal: address("address").or_else(|| address("persistent_address")),
        // recv_tmo is noop_out_interval, ping_tmo noop_out_timeout (open-iscsi, usr/iscsi_sysfs.c).
        ping_interval: machine.number(&file("recv_tmo")).into(),
        ping_timeout: machine.number(&file("ping_tmo")).into(),
        segment_max: machine.number(&file("max_recv_dlength")).into(),
    }
}

/// Disks of a session: `…/sessionN/targetH:B:T/H:B:T:L/block/sdX` below its device.
fn disks(machine: &Machine, session: &str) -> Vec<String> {
    let device = format!("/sys/class/iscsi_session/{session}/device");
    let below = |path: &str, is: fn(&str) -> bool| -> Vec<String> {
        let names = machine.names(path).into_iter().filter(|name| is(name));
        names.map(|name| format!("{path}/{name}")).collect()
    };
    let is_unit =
        |name: &str| name.split(':').count() == 4 && name.chars().all(|c| c.is_ascii_digit() || c == ':');
    let mut disks = Vec::new();
    for target in below(&device, |name| name.starts_with("target")) {
        for unit in below(&target, is_unit) {
            disks.extend(machine.names(&format!("{unit}/block")));
        }
    }
    disks.sort();
    disks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::put;

    #[test]
    fn sessions_records_and_secrets_are_read_and_no_secret_is_kept() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        put(
            root,
            "etc/iscsi/initiatorname.iscsi",
            "## comment\nInitiatorName=iqn.2026-11.com.example:host\n",
        );
        put(
            root,
            "etc/iscsi/iscsid.conf",
            "# x = y\nnode.startup = automatic\nnode.session.auth.password = hunter2hunter2\nnode.session.auth.password_in = hunter2hunter2\nnode.session.auth.chap_algs = sha256, MD5\n",
        );
        let node = "etc/iscsi/nodes/iqn.2026-11.com.example:d";
        put(
            root,
            &format!("{node}/10.0.0.1,3260,1/default"),
            "node.session.timeo.replacement_timeout = 15\n",
        );
        let session = "sys/class/iscsi_session/session1";
        for (file, text) in [
            ("targetname", "iqn.2026-11.com.example:d"),
            ("state", "LOGGED_IN"),
            ("recovery_tmo", "120"),
            ("iscsi_host/host2/ipaddress", "10.0.0.9"),
            ("device/target2:0:0/2:0:0:1/block/sdb/size", "1"),
        ] {
            put(root, &format!("{session}/{file}"), text);
        }
        let connection = "sys/class/iscsi_connection/connection1:0";
        for (file, text) in [("address", "10.0.0.1"), ("recv_tmo", "5"), ("ping_tmo", "odd")] {
            put(root, &format!("{connection}/{file}"), text);
        }
        let found = open_iscsi(&Machine::copy(root)).unwrap_or_default();
        assert_eq!(found.initiator_name.get().map(String::as_str), Some("iqn.2026-11.com.example:host"));
        assert_eq!(found.records.get().map(|records| records[0].portal.as_str()), Some("10.0.0.1,3260,1"));
        let chap = found.chap.get().cloned().unwrap_or_default();
        assert!(chap[0].length == 14 && chap[0].same_both_ways, "{chap:?}");
        assert_eq!((&chap[0].target, chap[0].algorithms.join(" ").as_str()), (&None, "SHA256 MD5"));
        let session = &found.sessions.get().cloned().unwrap_or_default()[0];
        assert_eq!(
            (session.recovery_tmo.get(), session.disks.as_slice()),
            (Some(&120), &["sdb".to_owned()][..])
        );
        assert_eq!(session.connection.local, "10.0.0.9".parse().ok());
        assert!(session.connection.ping_timeout.why().contains("\"odd\""));
        let written = serde_json::to_string(&found).unwrap_or_default();
        assert!(written.contains("automatic") && !written.contains("hunter2"), "{written}");
        assert_eq!(open_iscsi(&Machine::copy(root.join("nowhere"))), None);
    }
}
