//! Healthy set-ups of every kind: no rule of any group raises an alarm.

use std::collections::{BTreeMap, BTreeSet};

use lunway_doctor::facts::*;
use lunway_doctor::{Facts, Seen, Verdict, diagnose};

use crate::healthy::{healthy, known, neighbour, served_session};

/// A set-up: what it is like, what it differs by from the one in which every rule applies, and the rules that cannot be
/// judged in it.
type SetUp = (&'static str, fn(&mut Facts), &'static [&'static str]);

fn value<T>(seen: &mut Seen<T>) -> &mut T {
    match seen {
        Seen::Value(value) => value,
        Seen::Unseen { unseen } => panic!("{unseen}"),
    }
}

fn ports(facts: &mut Facts) -> &mut Vec<Port> {
    value(facts.ports.as_mut().unwrap())
}

fn initiator(facts: &mut Facts) -> &mut OpenIscsi {
    facts.open_iscsi.as_mut().unwrap()
}

fn storage(facts: &mut Facts) -> &mut Storage {
    facts.storage.as_mut().unwrap()
}

fn target(facts: &mut Facts) -> &mut Target {
    facts.target.as_mut().unwrap()
}

/// One of the seven published networks: cards of the server and of the storage by the lanes between them, as lunway's
/// own initiator makes them. All are in one subnet, with the settings that this takes.
fn published(facts: &mut Facts, lanes: &[(u8, u8)]) {
    let model = ports(facts)[0].clone();
    let near: BTreeSet<u8> = lanes.iter().map(|lane| lane.0).collect();
    *ports(facts) = near
        .iter()
        .map(|card| Port {
            name: format!("eth{card}"),
            networks: vec![format!("10.0.1.{card}/24").parse().unwrap()],
            ..model.clone()
        })
        .collect();
    let peer = |&(near, far): &(u8, u8)| Peer {
        local: format!("10.0.1.{near}").parse().unwrap(),
        remote: format!("10.0.1.{}", 100 + far).parse().unwrap(),
        role: Role::Initiator,
        route: known(Route { port: format!("eth{near}"), gateway: None }),
        flow: known(Flow::default()),
        neighbour: known(neighbour(far)),
    };
    facts.peers = Some(known(lanes.iter().map(peer).collect()));
    let portal = |far: u8| format!("10.0.1.{}:3260", 100 + far);
    let session = |(tsih, &(near, far)): (u16, &(u8, u8))| ServedSession {
        peer: format!("10.0.1.{near}:50000"),
        ..served_session(tsih, "one", &portal(far), 9)
    };
    target(facts).sessions = (1..).zip(lanes).map(session).collect();
    target(facts).portals = lanes
        .iter()
        .map(|lane| lane.1)
        .collect::<BTreeSet<u8>>()
        .into_iter()
        .map(|far| PortalState { listen: portal(far), portals: vec![portal(far)], waiting: None })
        .collect();
    (facts.open_iscsi, facts.multipath, facts.ends, facts.lanes) = (None, None, None, None);
    // Its node plugin would need the kernel's initiator.
    facts.kubernetes = None;
    value(&mut storage(facts).disks).retain(|disk| disk.session.is_none());
    value(&mut storage(facts).mounts).retain(|mount| !mount.iscsi);
    value(&mut storage(facts).fstab).retain(|entry| !entry.iscsi);
}

/// A set-up without what a rule of storage looks at.
fn without_storage(facts: &mut Facts) {
    published(facts, &[(1, 1)]);
    facts.target = None;
    facts.peers = Some(known(vec![]));
    ports(facts)[0].storage = false;
}

const MESH: &[(u8, u8)] = &[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)];
/// What a mesh without a word from its hosts leaves open: one host with several cards, or a clone.
const CLONE: &[&str] = &["host-name-cloned"];

const SET_UPS: &[SetUp] = &[
    ("everything that rules know", |_| {}, &[]),
    // Several cards to one portal are one host or several, too.
    ("A: four cards to one", |facts| published(facts, &[(0, 0), (1, 0), (2, 0), (3, 0)]), CLONE),
    ("B: a full mesh under round robin", |facts| published(facts, MESH), CLONE),
    ("C: two pairs", |facts| published(facts, &[(0, 0), (1, 1)]), &[]),
    ("D: one card", |facts| published(facts, &[(0, 0)]), &[]),
    ("E: a full mesh under least queue depth", |facts| published(facts, MESH), CLONE),
    ("F: a partial mesh", |facts| published(facts, &[(0, 0), (1, 1), (2, 0), (3, 1)]), CLONE),
    ("G: an active pair and a passive one", |facts| published(facts, &[(0, 0), (1, 1)]), &[]),
    ("a desktop without storage", without_storage, &[]),
    (
        "a virtual machine with virtual disks",
        |facts| {
            without_storage(facts);
            let disks = value(&mut storage(facts).disks);
            for (disk, name) in disks.iter_mut().zip(["vda", "xvdb"]) {
                disk.name = name.into();
                disk.healthy = Seen::unseen("smartctl does not tell");
                disk.partitions.clear();
            }
        },
        &[],
    ),
    (
        "one session, which waits for two minutes",
        |facts| {
            value(&mut initiator(facts).sessions).truncate(1);
            value(&mut initiator(facts).sessions)[0].recovery_tmo = known(120);
            for record in value(&mut initiator(facts).records) {
                record.settings.insert("node.session.timeo.replacement_timeout".into(), "120".into());
            }
            value(&mut storage(facts).disks).remove(1);
            facts.multipath = None;
        },
        &[],
    ),
    (
        "a subnet for each port, with the kernel's defaults",
        |facts| {
            for (port, network) in ports(facts).iter_mut().zip(["10.0.1.1/24", "10.0.2.2/24"]) {
                port.networks = vec![network.parse().unwrap()];
                (port.arp_ignore, port.arp_announce, port.rp_filter) = (known(0), known(0), known(1));
            }
            let peer = &mut value(facts.peers.as_mut().unwrap())[1];
            (peer.local, peer.remote) = ("10.0.2.2".parse().unwrap(), "10.0.2.102".parse().unwrap());
        },
        &[],
    ),
    (
        "a VLAN on each of two cards, beside ports of other things",
        |facts| {
            for (port, card) in ports(facts).iter_mut().zip(["card1", "card2"]) {
                (port.kind, port.below, port.physical) = ("vlan".into(), Some(card.into()), false);
                (port.speed, port.full_duplex) = (known(10_000), Seen::unseen("its driver does not tell"));
            }
            let office = Port { name: "office".into(), carrier: false, mtu: 1500, ..Port::default() };
            ports(facts).push(office);
        },
        &[],
    ),
    (
        "an address of a cluster that failed over, and back",
        |facts| {
            let peer = &mut value(facts.peers.as_mut().unwrap())[0];
            value(&mut peer.neighbour).owners = ["a", "b", "a"].map(str::to_owned).to_vec();
        },
        &[],
    ),
    (
        "a container with a quota that it does not use up",
        |facts| {
            let quota = Quota { processors: 2.0, throttled_percent: 0.0 };
            facts.host.as_mut().unwrap().quota = known(quota);
        },
        &[],
    ),
    (
        "storage over IPv6 alone",
        |facts| {
            for (n, port) in (1..).zip(ports(facts).iter_mut()) {
                port.networks = vec![format!("2001:db8:{n}::1/64").parse().unwrap()];
            }
            for (n, peer) in (1..).zip(value(facts.peers.as_mut().unwrap())) {
                peer.local = format!("2001:db8:{n}::1").parse().unwrap();
                peer.remote = format!("2001:db8:{n}::9").parse().unwrap();
            }
        },
        &[],
    ),
    (
        "fixed speeds at 10 Gb/s",
        |facts| {
            for port in ports(facts) {
                port.negotiated = known(false);
            }
        },
        &[],
    ),
    (
        "shares of NFS in fstab, and records that a cluster starts by hand",
        |facts| {
            for record in value(&mut initiator(facts).records) {
                record.settings.insert("node.startup".into(), "manual".into());
            }
            let entry = &mut value(&mut storage(facts).fstab)[1];
            *entry = FstabEntry {
                device: "nas:/share".into(),
                kind: "nfs4".into(),
                options: vec!["_netdev".into()],
                ..FstabEntry::default()
            };
        },
        &[],
    ),
    (
        "a second target whose disks are not in fstab",
        |facts| {
            let mut other = value(&mut initiator(facts).records)[0].clone();
            other.target = "iqn.2026-11.com.example:other".into();
            other.settings.insert("node.startup".into(), "manual".into());
            value(&mut initiator(facts).records).push(other);
        },
        &[],
    ),
    (
        "an iSCSI disk that is mounted by hand",
        |facts| {
            for record in value(&mut initiator(facts).records) {
                record.settings.insert("node.startup".into(), "manual".into());
            }
            value(&mut storage(facts).fstab)[1].options.push("noauto".into());
        },
        &[],
    ),
    (
        "LUNs of 512 bytes on disks of 512e",
        |facts| {
            for lun in &mut target(facts).targets[0].luns {
                lun.sector = 512;
            }
        },
        &[],
    ),
    (
        "LUNs of 512 bytes that report 4096 on disks of 4Kn",
        |facts| {
            for lun in &mut target(facts).targets[0].luns {
                (lun.sector, lun.physical_sector) = (512, Some(4096));
            }
            for store in value(&mut target(facts).stores) {
                store.logical_sector = known(4096);
            }
        },
        &[],
    ),
    (
        "a LUN that takes all of its size, whose hosts unmap nothing",
        |facts| {
            target(facts).units[0].operations.retain(|operation| operation.operation != "unmap");
            let device = &mut target(facts).devices[0];
            device.space.as_mut().unwrap().allocated = device.size;
        },
        &[],
    ),
    (
        "a scratch array without redundancy",
        |facts| {
            let array = &mut value(&mut storage(facts).arrays)[0];
            (array.level, array.action) = ("raid0".into(), String::new());
        },
        &[],
    ),
    (
        "no arrays, pools or volumes",
        |facts| {
            let storage = storage(facts);
            (storage.arrays, storage.pools, storage.volumes) = (known(vec![]), known(vec![]), known(vec![]));
        },
        &[],
    ),
    (
        "disks without write caches, and no UPS to speak of",
        |facts| {
            for disk in value(&mut storage(facts).disks) {
                disk.write_cache = known("write through".into());
            }
            facts.answers.as_mut().unwrap().remove("asked-ups");
        },
        &["asked-ups"],
    ),
    (
        "a target on a machine with one port",
        |facts| {
            published(facts, &[(0, 0)]);
            target(facts).portals = vec![PortalState {
                listen: "0.0.0.0:3260".into(),
                portals: vec!["0.0.0.0:3260".into()],
                waiting: None,
            }];
        },
        &[],
    ),
    (
        "a target that offers IPv6 to hosts of IPv4, and a portal to itself",
        |facts| {
            let portals = ["[2001:db8::1]:3260", "127.0.0.1:3260"].map(|at| PortalState {
                listen: at.into(),
                portals: vec![at.into()],
                waiting: None,
            });
            target(facts).portals.extend(portals);
        },
        &[],
    ),
    (
        "two hosts that read, and write nothing",
        |facts| {
            target(facts).reservations.clear();
            for session in &mut target(facts).sessions {
                session.operations.clear();
            }
        },
        &[],
    ),
    (
        "the settings of another vendor's guide",
        |facts| {
            let ours = value(&mut facts.multipath.as_mut().unwrap().ours);
            for (key, value) in
                [("fast_io_fail_tmo", "10"), ("no_path_retry", "30"), ("dev_loss_tmo", "infinity")]
            {
                ours.insert(key.into(), value.into());
            }
        },
        &[],
    ),
    (
        "a Windows machine with one session",
        |facts| {
            let windows = facts.windows.as_mut().unwrap();
            value(&mut windows.sessions).truncate(1);
            value(&mut windows.ports).truncate(1);
            windows.claims_iscsi = known(false);
        },
        &[],
    ),
    (
        "facts of a machine, without answers of its people",
        |facts| facts.answers = None,
        &["disk-write-cache"],
    ),
];

#[test]
fn no_rule_of_any_group_raises_an_alarm_in_a_healthy_set_up() {
    assert!(SET_UPS.len() >= 20, "{} set-ups", SET_UPS.len());
    let mut kept: BTreeMap<_, usize> = BTreeMap::new();
    for (name, change, open) in SET_UPS {
        let mut facts = healthy();
        change(&mut facts);
        let found = diagnose(&facts);
        let alarms: Vec<_> = found.iter().filter(|one| one.verdict >= Verdict::Warn).collect();
        assert!(alarms.is_empty(), "{name}: {alarms:#?}");
        let unknown = found.iter().filter(|one| one.verdict == Verdict::Unknown);
        let unknown: BTreeSet<&str> = unknown.map(|one| one.finding.id).collect();
        assert_eq!(unknown, open.iter().copied().collect(), "{name}");
        for one in found.iter().filter(|one| one.verdict == Verdict::Ok) {
            *kept.entry(lunway_doctor::rule(one.finding.id).unwrap().group).or_default() += 1;
        }
    }
    assert_eq!(kept.len(), lunway_doctor::Group::ALL.len(), "{kept:?}");
}
