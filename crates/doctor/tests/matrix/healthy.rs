//! A set-up in which every rule applies and none is broken.

use std::collections::BTreeMap;

use lunway_doctor::facts::*;
use lunway_doctor::{Facts, Group, RULES, Seen};

pub(crate) fn known<T>(value: T) -> Seen<T> {
    Seen::Value(value)
}

fn map<V: Clone>(pairs: &[(&str, V)]) -> BTreeMap<String, V> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// A storage port with everything as it should be. All are in one subnet, with the settings that this takes.
fn port(number: u8) -> Port {
    Port {
        name: format!("eth{number}"),
        storage: true,
        physical: true,
        networks: vec![format!("10.0.1.{number}/24").parse().unwrap()],
        carrier: true,
        mtu: 9000,
        speed: known(10_000),
        full_duplex: known(true),
        rx_pause: known(true),
        eee: known(false),
        negotiated: known(true),
        coalescing: known(Coalescing { adaptive: true, can_adapt: true, rx_us: 8 }),
        rx_ring: known(Ring { now: 4096, max: 4096 }),
        tx_ring: known(Ring { now: 4096, max: 4096 }),
        offloads_off: known(vec![]),
        interrupts: known(Interrupts {
            processors: 4,
            queues: 4,
            numbers: (0..4).map(|queue| 40 + 8 * u32::from(number) + queue).collect(),
            now: (0..4).collect(),
            taken: (0..4).map(|processor: u32| (processor.to_string(), 1_000_000)).collect(),
        }),
        counters: known(Counters { rx_packets: 1_000_000, ..Counters::default() }),
        arp_ignore: known(1),
        arp_announce: known(2),
        rp_filter: known(2),
        ..Port::default()
    }
}

fn peer(number: u8) -> Peer {
    Peer {
        local: format!("10.0.1.{number}").parse().unwrap(),
        remote: format!("10.0.1.{}", 100 + number).parse().unwrap(),
        role: Role::Initiator,
        route: known(Route { port: format!("eth{number}"), gateway: None }),
        flow: known(Flow { busy_ms: 10_000, window_ms: 100, buffer_ms: 100, round_trip_us: 80 }),
        neighbour: known(neighbour(number)),
    }
}

/// An other end whose hardware address was the same an hour ago.
pub(crate) fn neighbour(number: u8) -> Neighbour {
    let mac = format!("52:54:00:00:00:{number:02x}");
    Neighbour { failed: false, owners: vec![mac.clone()], known_for_s: 3600, mac }
}

pub(crate) const IQN: &str = "iqn.2026-11.com.example:disk";

fn session(number: u8) -> KernelSession {
    KernelSession {
        name: format!("session{number}"),
        target: IQN.into(),
        state: "LOGGED_IN".into(),
        isid: Seen::unseen("the kernel does not tell"),
        recovery_tmo: known(15),
        disks: vec![format!("sd{}", char::from(b'a' + number))],
        connection: Connection {
            local: Some(format!("10.0.1.{number}").parse().unwrap()),
            local_port: Some(50_000),
            portal: Some(format!("10.0.1.{}", 100 + number).parse().unwrap()),
            ping_interval: known(5),
            ping_timeout: known(5),
            segment_max: known(262_144),
        },
    }
}

fn record(number: u8) -> Record {
    Record {
        target: IQN.into(),
        portal: format!("10.0.1.{},3260,1", 100 + number),
        settings: map(&[
            ("node.startup", "automatic".to_owned()),
            ("node.session.timeo.replacement_timeout", "15".to_owned()),
        ]),
    }
}

/// A path of the map `mpatha`.
fn iscsi_disk(number: u8) -> Disk {
    Disk {
        name: format!("sd{}", char::from(b'a' + number)),
        session: Some(format!("session{number}")),
        lun: Some(0),
        wwid: Some("naa.6".into()),
        size: 1 << 40,
        logical_sector: 512,
        physical_sector: 4096,
        rotational: known(false),
        scheduler: known("none".into()),
        add_random: known(false),
        max_sectors_kb: known(1280),
        write_cache: known("write back".into()),
        timeout: known(30),
        state: known("running".into()),
        rq_affinity: known(1),
        nr_requests: known(64),
        read_ahead_kb: known(128),
        holders: vec!["dm-0".into()],
        partitions: vec![],
        healthy: Seen::unseen("its storage knows it"),
    }
}

fn local_disk(name: &str) -> Disk {
    Disk {
        name: name.into(),
        session: None,
        lun: None,
        partitions: vec![Partition { name: format!("{name}1"), start: 1 << 20, holders: vec!["md0".into()] }],
        healthy: known(true),
        holders: vec![],
        ..iscsi_disk(7)
    }
}

fn mount(device: &str, point: &str, iscsi: bool) -> Mount {
    Mount {
        device: device.into(),
        point: point.into(),
        kind: "ext4".into(),
        options: vec!["rw".into(), "relatime".into()],
        made_read_only: known(false),
        root_error: known(String::new()),
        faults: known(MountFaults::default()),
        iscsi,
        used_percent: known(40.0),
        inodes_percent: known(3.0),
    }
}

fn operations(kind: &str, count: u64, microseconds: u64) -> Operations {
    Operations { operation: kind.into(), operations: count, failed: 0, latency_us_total: microseconds }
}

pub(crate) fn served_session(tsih: u16, host: &str, portal: &str, writes: u64) -> ServedSession {
    ServedSession {
        tsih,
        initiator: format!("iqn.2026-11.com.example:{host}"),
        initiator_alias: Some(host.into()),
        isid: format!("40000000000{tsih}"),
        target: IQN.into(),
        peer: format!("10.0.1.{tsih}:50000"),
        portal: portal.into(),
        digests: [false, false],
        keys: known(SessionKeys {
            initial_r2t: false,
            immediate_data: true,
            first_burst_length: 262_144,
            max_burst_length: 1_048_576,
            max_recv_target: 262_144,
            max_recv_initiator: 262_144,
        }),
        task_management: known(TaskManagement::default()),
        since: 1_790_000_000,
        operations: vec![operations("write", writes, 0)],
    }
}

fn target() -> Target {
    let lun = |id: u16, serial: &str, read_only: bool| ServedLun {
        id,
        device: format!("/srv/{id}.img"),
        size: 10 << 30,
        sector: 4096,
        physical_sector: None,
        read_only,
        serial: serial.into(),
    };
    let store = |id: u16| LunStore {
        target: IQN.into(),
        lun: id,
        path: format!("/srv/{id}.img"),
        identity: format!("1 {id}"),
        file_system: "1".into(),
        logical_sector: known(512),
        physical_sector: known(4096),
        write_cache: known("write back".into()),
        quota: known(FolderQuota { limit: 100 << 30, used: 10 << 30 }),
        owner_quotas: known(vec![OwnerQuota {
            kind: "user".into(),
            id: 7,
            limit: 100 << 30,
            used: 10 << 30,
        }]),
    };
    Target {
        left_out: vec![],
        looked_at: 1_790_086_400,
        uptime_s: 30 * 86_400,
        warnings: vec![],
        portals: vec![PortalState {
            listen: "10.0.1.101:3260".into(),
            portals: vec!["10.0.1.101:3260".into()],
            waiting: None,
        }],
        targets: vec![ServedTarget { name: IQN.into(), luns: vec![lun(0, "a", false), lun(1, "b", true)] }],
        sessions: vec![
            served_session(1, "one", "10.0.1.101:3260", 9),
            served_session(2, "one", "10.0.1.102:3260", 9),
            served_session(3, "two", "10.0.1.101:3260", 9),
            served_session(4, "two", "10.0.1.102:3260", 9),
        ],
        logins_refused: known(3),
        units: vec![UnitActivity {
            target: IQN.into(),
            lun: 0,
            operations: vec![
                operations("write", 36, 3600),
                operations("unmap", 4, 400),
                operations("flush", 1000, 2_000_000),
            ],
            failures: vec![],
        }],
        devices: vec![Device {
            target: IQN.into(),
            lun: 0,
            size: 10 << 30,
            space: Some(Space { allocated: 5 << 30, used: 40 << 30, available: 60 << 30 }),
        }],
        // A gibibyte has gone in a day: 60 are left.
        earlier: Some(Look {
            looked_at: 1_790_000_000,
            devices: vec![Device {
                target: IQN.into(),
                lun: 0,
                size: 10 << 30,
                space: Some(Space { allocated: 4 << 30, used: 39 << 30, available: 61 << 30 }),
            }],
        }),
        reservations: vec![UnitReservations {
            target: IQN.into(),
            lun: 0,
            registrations: vec![Registration { initiator: "iqn.2026-11.com.example:one".into() }],
            reservation: None,
            reserved_by: None,
        }],
        stores: known(vec![store(0), store(1)]),
        schedules: known(vec![BackupSchedule {
            name: "db".into(),
            source: format!("{IQN}/0"),
            destination: "/mnt/share/db".into(),
            interval_s: 86_400,
            // Yesterday evening.
            last_success: Some(1_790_040_000),
            known_since: None,
            running_since: None,
            error: None,
            folder: Some(known(BackupFolder { exists: true, is_empty: false, unmounted: None })),
        }]),
    }
}

/// A host with a session to each of the two portals. Hosts one and two have addresses of their own.
fn host_end(number: u8) -> HostEnd {
    let name = ["one", "two"][usize::from(number)];
    let lane = |lane: u8| HostSession {
        name: format!("session{lane}"),
        target: IQN.into(),
        up: true,
        isid: format!("40000000000{}", 2 * number + lane),
        local: Some(format!("10.0.1.{}", 2 * number + lane).parse().unwrap()),
        portal: Some(format!("10.0.1.{}", 100 + lane).parse().unwrap()),
        timeout: known(15),
        ping_interval: known(5),
        digests: known([false, false]),
    };
    HostEnd {
        name: name.into(),
        initiator_name: known(format!("iqn.2026-11.com.example:{name}")),
        sessions: known(vec![lane(1), lane(2)]),
        units: known(vec![HostUnit {
            target: IQN.into(),
            lun: 0,
            disk: "sdb".into(),
            size: 10 << 30,
            written_at: known(if number == 0 { "/data".into() } else { String::new() }),
        }]),
        networks: known(vec!["10.0.1.0/24".parse().unwrap()]),
        lunway_sessions: known(if number == 0 { vec![lunway_session()] } else { vec![] }),
    }
}

/// A session of lunway's initiator on the first host.
pub(crate) fn lunway_session() -> LunwaySession {
    LunwaySession {
        initiator: "iqn.2026-11.com.example:lunway".into(),
        target: IQN.into(),
        lun: 0,
        isid: "400000000009".into(),
        local: None,
        portal: Some("10.0.1.101:3260".parse().unwrap()),
        process: Some(712),
    }
}

fn ends() -> Ends {
    let mut target = target();
    target.sessions.insert(0, served_session(9, "lunway", "10.0.1.101:3260", 9));
    Ends {
        hosts: vec![host_end(0), host_end(1)],
        target: Some(TargetEnd {
            names: vec![IQN.into()],
            sessions: target.sessions,
            portals: ["10.0.1.101:3260", "10.0.1.102:3260"].map(|portal| portal.parse().unwrap()).into(),
            luns: vec![(IQN.into(), 0, 10 << 30)],
        }),
    }
}

fn lane(number: u8) -> Lane {
    Lane {
        name: format!("lane{number}"),
        near: Some(format!("10.0.1.{number}").parse().unwrap()),
        portal: Some(format!("10.0.1.{}:3260", 100 + number).parse().unwrap()),
        reserve: false,
        probe: known(LaneProbe {
            port_mtu: 9000,
            path_mtu: known(9000),
            direct: known(true),
            round_trip_us: 300.0,
            round_trip_max_us: 500.0,
            round_trip_p10_us: known(250.0),
            round_trip_p99_us: known(450.0),
            reads: 101,
            held_back: 0,
            port_owners: known(vec![]),
            portal_owners: known(vec![format!("02:00:00:00:00:0{number}")]),
            segments: known(100_000),
            lost: 1,
            mss: known(8948),
            port_lost: known(0),
        }),
        pull: Some(LanePull { pause_ms: 12.0, reads: 100, failed: 0, back_ms: known(30.0) }),
    }
}

fn windows_port(name: &str) -> WindowsPort {
    WindowsPort {
        name: name.into(),
        tcp_ack_frequency: known(1),
        tcp_no_delay: known(1),
        power_saving: known(false),
        registers_dns: known(false),
        netbios: known(false),
        netbios_option: Some(2),
        ipv6: known(false),
        mtu: known(9000),
        rss: known(true),
    }
}

fn windows_session(number: u8) -> WindowsSession {
    WindowsSession {
        identifier: format!("fffffa800d008430-400001370000000{number}"),
        target: IQN.into(),
        local: format!("10.0.1.{number}"),
        portal: format!("10.0.1.{}", 100 + number),
        persistent: true,
        bound: true,
    }
}

/// Every rule applies, and is kept.
pub(crate) fn healthy() -> Facts {
    let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let asked = RULES.into_iter().flatten().filter(|rule| rule.group == Group::Asked);
    Facts {
        schema: lunway_doctor::facts::FACTS_SCHEMA,
        host: Some(Host {
            name: "host".into(),
            kernel: "6.18".into(),
            root: true,
            clock_synchronised: known(true),
            io_uring_disabled: known(0),
            open_files_max: known(524_288),
            locked_memory_max: known(u64::MAX),
            stolen_percent: known(0.1),
            quota: known(Quota::default()),
            governor: known("performance".into()),
            trim_timer: known(true),
        }),
        kubernetes: Some(Kubernetes {
            kubelet: "/var/lib/kubelet".into(),
            tcp_module: known(true),
            shared: known(true),
            multipathd: known(true),
        }),
        ports: Some(known(vec![port(1), port(2)])),
        peers: Some(known(vec![peer(1), peer(2)])),
        sysctls: [
            ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
            ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
            ("net.ipv4.tcp_window_scaling", "1"),
            ("net.ipv4.tcp_sack", "1"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), known(value.to_owned())))
        .collect(),
        open_iscsi: Some(OpenIscsi {
            initiator_name: known("iqn.2026-11.com.example:host".into()),
            settings: known(text(&[
                ("node.session.cmds_max", "128"),
                ("node.session.queue_depth", "32"),
                ("node.session.nr_sessions", "1"),
            ])),
            records: known(vec![record(1), record(2)]),
            chap: known(vec![Chap {
                place: "/etc/iscsi/iscsid.conf".into(),
                target: None,
                algorithms: ["SHA3-256", "SHA256", "SHA1", "MD5"].map(str::to_owned).into(),
                length: 14,
                same_both_ways: false,
            }]),
            secret_files: known(vec![SecretFile { path: "/etc/iscsi/iscsid.conf".into(), mode: 0o600 }]),
            sessions: known(vec![session(1), session(2)]),
        }),
        lunway_sessions: Some(known(vec![])),
        multipath: Some(Multipath {
            running: known(true),
            defaults: known(BTreeMap::new()),
            ours: known(text(&[
                ("path_grouping_policy", "group_by_prio"),
                ("prio", "alua"),
                ("path_checker", "tur"),
                ("path_selector", "service-time 0"),
                ("failback", "immediate"),
                ("fast_io_fail_tmo", "5"),
                ("dev_loss_tmo", "600"),
                ("no_path_retry", "12"),
                ("find_multipaths", "strict"),
            ])),
            maps: known(vec![MultipathMap {
                name: "mpatha".into(),
                device: "dm-0".into(),
                paths: vec!["sdb".into(), "sdc".into()],
            }]),
        }),
        storage: Some(Storage {
            disks: known(vec![iscsi_disk(1), iscsi_disk(2), local_disk("nvme0n1"), local_disk("nvme1n1")]),
            arrays: known(vec![Array {
                name: "md0".into(),
                kind: ArrayKind::Md,
                level: "raid1".into(),
                action: "idle".into(),
                degraded: known(false),
                errors: known(0),
                superblock: "1.2".into(),
                members: vec!["nvme0n11".into(), "nvme1n11".into()],
                ..Array::default()
            }]),
            pools: known(vec![Array {
                name: "tank".into(),
                kind: ArrayKind::Zfs,
                degraded: known(false),
                errors: known(0),
                used_percent: Some(50.0),
                ..Array::default()
            }]),
            volumes: known(vec![
                Array {
                    name: "vg".into(),
                    kind: ArrayKind::Lvm,
                    level: "group".into(),
                    degraded: known(false),
                    errors: known(0),
                    ..Array::default()
                },
                Array {
                    name: "vg/pool".into(),
                    kind: ArrayKind::Lvm,
                    level: "thin pool".into(),
                    degraded: known(false),
                    errors: known(0),
                    used_percent: Some(50.0),
                    metadata_percent: Some(10.0),
                    ..Array::default()
                },
            ]),
            mounts: known(vec![mount("/dev/md0", "/", false), mount("/dev/mapper/mpatha", "/data", true)]),
            fstab: known(vec![
                FstabEntry {
                    device: "UUID=1".into(),
                    point: "/".into(),
                    kind: "xfs".into(),
                    options: vec!["defaults".into()],
                    iscsi: false,
                    targets: vec![],
                },
                FstabEntry {
                    device: "UUID=2".into(),
                    point: "/data".into(),
                    kind: "xfs".into(),
                    options: vec!["_netdev".into()],
                    iscsi: true,
                    targets: vec![IQN.into()],
                },
            ]),
            swaps: known(vec![Swap { path: "/dev/md1".into(), iscsi: known(false) }]),
        }),
        target: Some(target()),
        ends: Some(ends()),
        lanes: Some(Lanes {
            disk: "iscsi://10.0.1.101/d/0".into(),
            plan: "paired".into(),
            lanes: vec![lane(1), lane(2)],
            findings: vec![],
            units: known(Units { named: 0, shown: vec![0, 1] }),
        }),
        windows: Some(Windows {
            name: "win".into(),
            mpio: known(map(&[
                ("PathVerifyEnabled", 1),
                ("PathVerificationPeriod", 30),
                ("PDORemovePeriod", 120),
                ("RetryCount", 3),
                ("RetryInterval", 1),
            ])),
            claims_iscsi: known(true),
            policy: known("LQD".into()),
            disk_timeout: known(60),
            initiator: known(map(&[("LinkDownTime", 15), ("MaxRequestHoldTime", 60)])),
            ports: known(vec![windows_port("A"), windows_port("B")]),
            sessions: known(vec![windows_session(1), windows_session(2)]),
        }),
        default_ports: known(vec!["mgmt".into()]),
        left_out: vec![],
        answers: Some(asked.map(|rule| (rule.id.to_owned(), true)).collect()),
    }
}
