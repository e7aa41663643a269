//! Merging what several machines tell: hosts among each other, and with the target that they use.

use std::collections::BTreeSet;

use crate::facts::{
    Disk, Ends, Facts, HostEnd, HostSession, HostUnit, KernelSession, Mount, OpenIscsi, Record, Target,
    TargetEnd,
};
use crate::seen::Seen;

/// File systems that several hosts may mount for writing at once.
const OF_SEVERAL_HOSTS: [&str; 3] = ["gfs2", "ocfs2", "glusterfs"];
/// open-iscsi's keys of digests.
const DIGESTS: [&str; 2] = ["node.conn[0].iscsi.HeaderDigest", "node.conn[0].iscsi.DataDigest"];

/// Both ends of the sessions that these machines tell of, each with the name of where its facts come from. `None`: one
/// end alone, or nothing of iSCSI.
pub fn merge(machines: &[(&str, &Facts)]) -> Option<Ends> {
    let targets: Vec<&Target> = machines.iter().filter_map(|(_, facts)| facts.target.as_ref()).collect();
    let hosts: Vec<HostEnd> = machines.iter().filter_map(|(name, facts)| host(name, facts)).collect();
    let target = (!targets.is_empty()).then(|| target(&targets));
    let two_ends = hosts.len() > 1 || (hosts.len() == 1 && target.is_some());
    two_ends.then_some(Ends { hosts, target })
}

fn target(targets: &[&Target]) -> TargetEnd {
    let served = || targets.iter().flat_map(|target| &target.targets);
    let portals = targets.iter().flat_map(|target| &target.portals).flat_map(|entry| &entry.portals);
    TargetEnd {
        names: served().map(|served| served.name.clone()).collect(),
        sessions: targets.iter().flat_map(|target| target.sessions.clone()).collect(),
        portals: portals
            .filter_map(|portal| portal.parse().ok())
            .filter(|portal: &std::net::SocketAddr| !portal.ip().is_unspecified())
            .collect(),
        luns: served()
            .flat_map(|served| served.luns.iter().map(|lun| (served.name.clone(), lun.id.into(), lun.size)))
            .collect(),
    }
}

/// A machine as an initiator; `None`: it is none.
fn host(name: &str, facts: &Facts) -> Option<HostEnd> {
    let lunway_sessions = facts.lunway_sessions.clone().unwrap_or(Seen::Value(Vec::new()));
    let has_sessions = lunway_sessions.get().is_none_or(|sessions| !sessions.is_empty());
    if facts.open_iscsi.is_none() && !has_sessions {
        return None;
    }
    let own = facts.host.as_ref().map(|host| host.name.as_str()).filter(|name| !name.is_empty());
    let networks = match &facts.ports {
        None => Seen::default(),
        Some(Seen::Unseen { unseen }) => Seen::unseen(unseen),
        Some(Seen::Value(ports)) => {
            Seen::Value(ports.iter().flat_map(|port| port.networks.clone()).collect())
        }
    };
    let end =
        HostEnd { name: own.unwrap_or(name).to_owned(), lunway_sessions, networks, ..HostEnd::default() };
    Some(match &facts.open_iscsi {
        None => HostEnd {
            initiator_name: Seen::Value(String::new()),
            sessions: Seen::Value(Vec::new()),
            units: Seen::Value(Vec::new()),
            ..end
        },
        Some(initiator) => HostEnd {
            initiator_name: initiator.initiator_name.clone(),
            sessions: match initiator.sessions.known() {
                Err(why) => Seen::unseen(why),
                Ok(sessions) => Seen::Value(sessions.iter().map(|one| session(initiator, one)).collect()),
            },
            units: units(facts, initiator),
            ..end
        },
    })
}

fn session(initiator: &OpenIscsi, session: &KernelSession) -> HostSession {
    let digests = match initiator.records.known() {
        Err(why) => Seen::unseen(why),
        Ok(records) => match records.iter().find(|record| is_of(record, session)) {
            None => Seen::unseen("it has no record"),
            Some(record) => Seen::Value(DIGESTS.map(|key| {
                let asked = record.settings.get(key).map_or("None", String::as_str);
                asked.split(',').next().is_some_and(|first| first.trim().eq_ignore_ascii_case("CRC32C"))
            })),
        },
    };
    HostSession {
        name: session.name.clone(),
        target: session.target.clone(),
        up: session.state == "LOGGED_IN",
        isid: session.isid.get().cloned().unwrap_or_default(),
        local: session.connection.local,
        portal: session.connection.portal,
        timeout: session.recovery_tmo.clone(),
        ping_interval: session.connection.ping_interval.clone(),
        digests,
    }
}

/// Returns `true` if a session was made from this record.
fn is_of(record: &Record, session: &KernelSession) -> bool {
    let portal = session.connection.portal.map(|address| address.to_string());
    record.target == session.target
        && portal.as_deref().is_none_or(|address| record.portal.split(',').next() == Some(address))
}

fn units(facts: &Facts, initiator: &OpenIscsi) -> Seen<Vec<HostUnit>> {
    let Some(storage) = &facts.storage else { return Seen::default() };
    let (disks, sessions) = match (storage.disks.known(), initiator.sessions.known()) {
        (Ok(disks), Ok(sessions)) => (disks, sessions),
        (Err(why), _) | (_, Err(why)) => return Seen::unseen(why),
    };
    let unit = |disk: &Disk| {
        let session = sessions.iter().find(|session| session.disks.contains(&disk.name))?;
        Some(HostUnit {
            target: session.target.clone(),
            lun: disk.lun?,
            disk: disk.name.clone(),
            size: disk.size,
            written_at: written_at(facts, disks, disk),
        })
    };
    Seen::Value(disks.iter().filter_map(unit).collect())
}

/// Returns where a disk is mounted for writing: by itself, one of its partitions or its map.
fn written_at(facts: &Facts, disks: &[Disk], disk: &Disk) -> Seen<String> {
    let mounts = match facts.storage.as_ref().map(|storage| storage.mounts.known()) {
        Some(Ok(mounts)) => mounts,
        Some(Err(why)) => return Seen::unseen(why),
        None => return Seen::default(),
    };
    let names = names(facts, disk);
    let written = |mount: &&Mount| {
        !OF_SEVERAL_HOSTS.contains(&mount.kind.as_str()) && !mount.options.iter().any(|option| option == "ro")
    };
    let mut here = mounts.iter().filter(written).filter(|mount| is_on(&names, &mount.device));
    if let Some(mount) = here.next() {
        return Seen::Value(mount.point.clone());
    }
    let all: Vec<_> = disks.iter().map(|disk| self::names(facts, disk)).collect();
    let placed = |mount: &&Mount| all.iter().any(|names| is_on(names, &mount.device));
    match mounts.iter().filter(|mount| mount.iscsi).filter(written).find(|mount| !placed(mount)) {
        Some(mount) => Seen::unseen(format!("which disks {} lies on is not told", mount.device)),
        None => Seen::Value(String::new()),
    }
}

/// Devices, without partitions, under which a disk is used.
fn names(facts: &Facts, disk: &Disk) -> BTreeSet<String> {
    let maps = facts.multipath.iter().filter_map(|multipath| multipath.maps.get()).flatten();
    let maps = maps.filter(|map| map.paths.contains(&disk.name));
    let of_map = maps.flat_map(|map| [format!("/dev/mapper/{}", map.name), format!("/dev/{}", map.device)]);
    of_map.chain([format!("/dev/{}", disk.name)]).collect()
}

/// Returns `true` if a device is one of these, or a partition: `sda1`, `nvme0n1p1`, `mpatha-part1`.
fn is_on(names: &BTreeSet<String>, device: &str) -> bool {
    names.iter().any(|name| {
        device.strip_prefix(name.as_str()).is_some_and(|rest| {
            let number = rest.strip_prefix("-part").or_else(|| rest.strip_prefix('p')).unwrap_or(rest);
            number.chars().all(|c| c.is_ascii_digit())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Multipath, MultipathMap, Storage};

    fn host_with(mounts: Vec<Mount>) -> Facts {
        let session = KernelSession {
            name: "session1".into(),
            target: "t".into(),
            disks: vec!["sdb".into()],
            ..KernelSession::default()
        };
        let disk =
            Disk { name: "sdb".into(), lun: Some(3), session: Some("session1".into()), ..Disk::default() };
        let map = MultipathMap { name: "mpatha".into(), device: "dm-0".into(), paths: vec!["sdb".into()] };
        Facts {
            open_iscsi: Some(OpenIscsi { sessions: Seen::Value(vec![session]), ..OpenIscsi::default() }),
            multipath: Some(Multipath { maps: Seen::Value(vec![map]), ..Multipath::default() }),
            storage: Some(Storage {
                disks: Seen::Value(vec![disk]),
                mounts: Seen::Value(mounts),
                ..Storage::default()
            }),
            ..Facts::default()
        }
    }

    fn written(device: &str, kind: &str, option: &str) -> Seen<String> {
        let mount = Mount {
            device: device.into(),
            point: "/data".into(),
            kind: kind.into(),
            options: vec![option.into()],
            iscsi: true,
            ..Mount::default()
        };
        let facts = host_with(vec![mount]);
        let ends = merge(&[("a", &facts), ("b", &facts)]).unwrap_or_default();
        let units = ends.hosts[0].units.get().cloned().unwrap_or_default();
        assert_eq!((units.len(), units[0].lun), (1, 3));
        units[0].written_at.clone()
    }

    #[test]
    fn a_mount_is_found_on_its_disk_by_partition_and_map_and_one_that_is_not_hides_the_answer() {
        for device in
            ["/dev/sdb", "/dev/sdb1", "/dev/mapper/mpatha-part2", "/dev/mapper/mpatha1", "/dev/dm-0"]
        {
            assert_eq!(written(device, "ext4", "rw"), Seen::Value("/data".to_owned()), "{device}");
        }
        assert_eq!(written("/dev/sdb", "ext4", "ro"), Seen::Value(String::new()));
        assert_eq!(written("/dev/sdb", "gfs2", "rw"), Seen::Value(String::new()));
        assert!(written("/dev/mapper/group-volume", "xfs", "rw").why().contains("is not told"));
    }

    #[test]
    fn one_end_alone_is_not_merged() {
        let host = host_with(vec![]);
        let target = Facts { target: Some(Target::default()), ..Facts::default() };
        assert!(merge(&[("a", &host)]).is_none() && merge(&[("t", &target), ("u", &target)]).is_none());
        assert!(merge(&[("a", &host), ("t", &target)]).is_some());
        let names: Vec<_> = merge(&[("a", &host), ("b", &host)]).unwrap_or_default().hosts;
        assert_eq!(names.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
