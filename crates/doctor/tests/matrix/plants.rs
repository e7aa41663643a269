//! A fault for each rule.

use lunway_doctor::facts::*;
use lunway_doctor::{Facts, Seen, Verdict};

use crate::healthy::{IQN, known, served_session};

/// What breaks a rule.
type Plant = fn(&mut Facts);

pub(crate) fn value<T>(seen: &mut Seen<T>) -> &mut T {
    match seen {
        Seen::Value(value) => value,
        Seen::Unseen { unseen } => panic!("{unseen}"),
    }
}

fn port(facts: &mut Facts) -> &mut Port {
    &mut value(facts.ports.as_mut().unwrap())[1]
}

fn peer(facts: &mut Facts) -> &mut Peer {
    &mut value(facts.peers.as_mut().unwrap())[1]
}

fn initiator(facts: &mut Facts) -> &mut OpenIscsi {
    facts.open_iscsi.as_mut().unwrap()
}

fn session(facts: &mut Facts) -> &mut KernelSession {
    &mut value(&mut initiator(facts).sessions)[0]
}

fn setting(facts: &mut Facts, key: &str, text: &str) {
    value(&mut initiator(facts).settings).insert(key.to_owned(), text.to_owned());
}

fn multipath(facts: &mut Facts, key: &str, text: &str) {
    value(&mut facts.multipath.as_mut().unwrap().ours).insert(key.to_owned(), text.to_owned());
}

fn storage(facts: &mut Facts) -> &mut Storage {
    facts.storage.as_mut().unwrap()
}

fn disk(facts: &mut Facts, number: usize) -> &mut Disk {
    &mut value(&mut storage(facts).disks)[number]
}

fn array(facts: &mut Facts) -> &mut Array {
    &mut value(&mut storage(facts).arrays)[0]
}

fn pool(facts: &mut Facts) -> &mut Array {
    &mut value(&mut storage(facts).pools)[0]
}

fn mount(facts: &mut Facts, number: usize) -> &mut Mount {
    &mut value(&mut storage(facts).mounts)[number]
}

fn fstab(facts: &mut Facts) -> &mut FstabEntry {
    &mut value(&mut storage(facts).fstab)[1]
}

fn host(facts: &mut Facts) -> &mut Host {
    facts.host.as_mut().unwrap()
}

fn target(facts: &mut Facts) -> &mut Target {
    facts.target.as_mut().unwrap()
}

fn warn(facts: &mut Facts, kind: &str) {
    let warning = TargetWarning { kind: kind.to_owned(), text: "A sentence.".to_owned() };
    target(facts).warnings.push(warning);
}

fn schedule(facts: &mut Facts) -> &mut BackupSchedule {
    &mut value(&mut target(facts).schedules)[0]
}

fn unit(facts: &mut Facts) -> &mut UnitActivity {
    &mut target(facts).units[0]
}

fn ends(facts: &mut Facts) -> &mut Ends {
    facts.ends.as_mut().unwrap()
}

fn host_session(facts: &mut Facts) -> &mut HostSession {
    &mut value(&mut ends(facts).hosts[1].sessions)[0]
}

fn plan(facts: &mut Facts, id: &str) {
    facts.lanes.as_mut().unwrap().findings.push(PlanFinding {
        id: id.to_owned(),
        what: "something is so".to_owned(),
        place: "eth1".to_owned(),
        remedy: "do something".to_owned(),
    });
}

fn probe(facts: &mut Facts) -> &mut LaneProbe {
    value(&mut facts.lanes.as_mut().unwrap().lanes[1].probe)
}

fn pull(facts: &mut Facts) -> &mut LanePull {
    facts.lanes.as_mut().unwrap().lanes[1].pull.as_mut().unwrap()
}

fn windows(facts: &mut Facts) -> &mut Windows {
    facts.windows.as_mut().unwrap()
}

fn mpio(facts: &mut Facts, name: &str, number: u64) {
    value(&mut windows(facts).mpio).insert(name.to_owned(), number);
}

fn windows_port(facts: &mut Facts) -> &mut WindowsPort {
    &mut value(&mut windows(facts).ports)[0]
}

fn answer_no(facts: &mut Facts, id: &str) {
    facts.answers.as_mut().unwrap().insert(id.to_owned(), false);
}

fn taken(interrupts: &[(&str, u64)]) -> std::collections::BTreeMap<String, u64> {
    interrupts.iter().map(|(processor, count)| ((*processor).to_owned(), *count)).collect()
}

/// Processor 2 has all the interrupts of a card.
fn one_processor(interrupts: &mut Interrupts) {
    (interrupts.now, interrupts.taken) = ([2].into(), taken(&[("0", 1000), ("2", 4_000_000)]));
}

pub(crate) const PLANTS: &[(&str, Plant)] = &[
    ("port-carrier", |facts| port(facts).carrier = false),
    ("port-mtu", |facts| port(facts).mtu = 1500),
    ("port-speed", |facts| port(facts).speed = known(1000)),
    ("port-duplex", |facts| port(facts).full_duplex = known(false)),
    ("port-pause", |facts| port(facts).rx_pause = known(false)),
    ("port-energy", |facts| port(facts).eee = known(true)),
    ("port-coalesce", |facts| {
        port(facts).coalescing = known(Coalescing { can_adapt: true, rx_us: 125, ..Coalescing::default() });
    }),
    ("port-negotiation", |facts| port(facts).negotiated = known(false)),
    ("port-ring", |facts| port(facts).rx_ring = known(Ring { now: 256, max: 4096 })),
    ("port-offload", |facts| port(facts).offloads_off = known(vec!["tso".into()])),
    ("port-errors", |facts| value(&mut port(facts).counters).rx_errors = 101),
    ("port-team", |facts| port(facts).kind = "bond".into()),
    ("port-interrupts", |facts| one_processor(value(&mut port(facts).interrupts))),
    ("port-shared-card", |facts| {
        for port in value(facts.ports.as_mut().unwrap()) {
            port.below = Some("eth9".into());
        }
    }),
    ("subnet-overlap", |facts| {
        port(facts).networks.push("172.16.0.1/16".parse().unwrap());
        value(facts.ports.as_mut().unwrap())[0].networks.push("172.16.1.1/24".parse().unwrap());
    }),
    ("arp-ignore", |facts| port(facts).arp_ignore = known(0)),
    ("arp-announce", |facts| port(facts).arp_announce = known(0)),
    ("reverse-path", |facts| port(facts).rp_filter = known(1)),
    ("route-source", |facts| value(&mut peer(facts).route).port = "eth1".into()),
    ("route-router", |facts| value(&mut peer(facts).route).gateway = Some("10.0.1.254".parse().unwrap())),
    ("neighbour-answers", |facts| {
        let neighbour = value(&mut peer(facts).neighbour);
        (neighbour.mac, neighbour.failed) = (String::new(), true);
    }),
    ("neighbour-owner", |facts| {
        value(&mut peer(facts).neighbour).owners = ["a", "b", "a", "b"].map(str::to_owned).to_vec();
    }),
    ("port-ipv6", |facts| port(facts).networks.push("2001:db8::2/64".parse().unwrap())),
    ("tcp-window", |facts| {
        facts.sysctls.insert("net.ipv4.tcp_rmem".into(), known("4096 65536 65536".into()));
    }),
    ("tcp-limited", |facts| value(&mut peer(facts).flow).window_ms = 5000),
    ("tcp-scaling", |facts| {
        facts.sysctls.insert("net.ipv4.tcp_window_scaling".into(), known("0".into()));
    }),
    ("tcp-sack", |facts| {
        facts.sysctls.insert("net.ipv4.tcp_sack".into(), known("0".into()));
    }),
    ("session-state", |facts| session(facts).state = "FAILED".into()),
    ("session-timeout", |facts| {
        // The record too: that they differ is another rule's.
        let key = "node.session.timeo.replacement_timeout";
        value(&mut initiator(facts).records)[0].settings.insert(key.into(), "120".into());
        session(facts).recovery_tmo = known(120);
    }),
    ("session-ping", |facts| session(facts).connection.ping_interval = known(0)),
    ("session-record", |facts| session(facts).recovery_tmo = known(20)),
    ("session-segment", |facts| session(facts).connection.segment_max = known(8192)),
    ("session-port", |facts| session(facts).connection.local = Some("10.0.1.2".parse().unwrap())),
    ("initiator-depth", |facts| setting(facts, "node.session.queue_depth", "8")),
    ("initiator-startup", |facts| {
        value(&mut initiator(facts).records)[0].settings.insert("node.startup".into(), "manual".into());
    }),
    ("initiator-sessions", |facts| setting(facts, "node.session.nr_sessions", "2")),
    ("initiator-name", |facts| initiator(facts).initiator_name = known("host".into())),
    ("chap-files", |facts| value(&mut initiator(facts).secret_files)[0].mode = 0o644),
    ("chap-length", |facts| value(&mut initiator(facts).chap)[0].length = 8),
    ("chap-mutual", |facts| value(&mut initiator(facts).chap)[0].same_both_ways = true),
    ("chap-algorithm", |facts| value(&mut initiator(facts).chap)[0].algorithms.clear()),
    ("multipath-running", |facts| value(&mut facts.multipath.as_mut().unwrap().maps).clear()),
    ("multipath-policy", |facts| multipath(facts, "path_selector", "round-robin 0")),
    ("multipath-fast-fail", |facts| multipath(facts, "fast_io_fail_tmo", "off")),
    ("multipath-device-loss", |facts| multipath(facts, "dev_loss_tmo", "10")),
    ("multipath-all-lost", |facts| multipath(facts, "no_path_retry", "queue")),
    ("multipath-find", |facts| multipath(facts, "find_multipaths", "smart")),
    ("map-paths", |facts| {
        // The other path's disk is gone.
        value(&mut facts.multipath.as_mut().unwrap().maps)[0].paths.pop();
        value(&mut storage(facts).disks).remove(1);
    }),
    ("map-disks", |facts| disk(facts, 1).size = 2 << 40),
    ("map-bare-path", |facts| disk(facts, 1).holders.push("md7".into())),
    ("disk-scheduler", |facts| disk(facts, 0).scheduler = known("bfq".into())),
    ("disk-random", |facts| disk(facts, 0).add_random = known(true)),
    ("disk-timeout", |facts| disk(facts, 0).timeout = known(5)),
    ("disk-request", |facts| disk(facts, 0).max_sectors_kb = known(64)),
    ("disk-affinity", |facts| disk(facts, 0).rq_affinity = known(0)),
    ("disk-queue", |facts| disk(facts, 0).nr_requests = known(4)),
    ("disk-read-ahead", |facts| disk(facts, 0).read_ahead_kb = known(16)),
    ("disk-write-cache", |facts| answer_no(facts, "asked-ups")),
    ("disk-alignment", |facts| disk(facts, 2).partitions[0].start = 63 * 512),
    ("disk-smart", |facts| disk(facts, 2).healthy = known(false)),
    ("array-sectors", |facts| disk(facts, 3).logical_sector = 4096),
    ("array-degraded", |facts| array(facts).degraded = known(true)),
    ("array-errors", |facts| pool(facts).errors = known(3)),
    ("array-superblock", |facts| array(facts).superblock = "0.90".into()),
    ("array-busy", |facts| array(facts).action = "check".into()),
    ("pool-full", |facts| pool(facts).used_percent = Some(85.0)),
    ("mount-full", |facts| mount(facts, 0).used_percent = known(85.0)),
    ("mount-inodes", |facts| mount(facts, 0).inodes_percent = known(99.0)),
    ("mount-sync", |facts| mount(facts, 0).options.push("nobarrier".into())),
    ("mount-time", |facts| mount(facts, 0).options = vec!["rw".into(), "strictatime".into()]),
    ("mount-read-only", |facts| mount(facts, 1).options.push("emergency_ro".into())),
    ("mount-errors", |facts| value(&mut mount(facts, 1).faults).count = 1),
    ("mount-trim", |facts| host(facts).trim_timer = known(false)),
    ("fstab-netdev", |facts| fstab(facts).options = vec!["defaults".into()]),
    ("fstab-name", |facts| fstab(facts).device = "/dev/sdb1".into()),
    ("swap-iscsi", |facts| value(&mut storage(facts).swaps)[0].iscsi = known(true)),
    ("host-clock", |facts| host(facts).clock_synchronised = known(false)),
    ("host-io-uring", |facts| host(facts).io_uring_disabled = known(2)),
    ("host-open-files", |facts| host(facts).open_files_max = known(1024)),
    ("host-locked-memory", |facts| host(facts).locked_memory_max = known(64 << 10)),
    ("host-stolen", |facts| host(facts).stolen_percent = known(12.0)),
    ("facts-whole", |facts| facts.left_out.push("of 5000 mounts only 256 were looked at".into())),
    ("host-quota", |facts| host(facts).quota = known(Quota { processors: 0.5, throttled_percent: 5.0 })),
    ("host-governor", |facts| host(facts).governor = known("powersave".into())),
    ("kubernetes-module", |facts| facts.kubernetes.as_mut().unwrap().tcp_module = known(false)),
    ("kubernetes-initiator", |facts| {
        // Without open-iscsi nothing else of it applies.
        facts.open_iscsi = None;
    }),
    ("kubernetes-mounts", |facts| facts.kubernetes.as_mut().unwrap().shared = known(false)),
    ("kubernetes-multipath", |facts| facts.kubernetes.as_mut().unwrap().multipathd = known(false)),
    ("target-open", |facts| warn(facts, "open_target")),
    ("target-closed", |facts| warn(facts, "closed_target")),
    ("target-secret", |facts| warn(facts, "weak_secret")),
    ("target-name", |facts| warn(facts, "odd_name")),
    ("lun-offline", |facts| warn(facts, "offline_lun")),
    ("lun-lost-file", |facts| warn(facts, "lost_file")),
    ("lun-shrunk", |facts| warn(facts, "shrunk_lun")),
    ("portal-set", |facts| {
        target(facts).portals[0].portals = vec!["10.0.1.1:3260".into()];
        facts.default_ports = known(vec!["eth1".into()]);
        // Its hosts use it as well: that they do not is another rule's.
        for session in target(facts).sessions.iter_mut().filter(|session| session.portal == "10.0.1.101:3260")
        {
            session.portal = "10.0.1.1:3260".into();
        }
    }),
    ("portal-idle", |facts| target(facts).portals[0].waiting = Some("no such address".into())),
    ("host-name-cloned", |facts| target(facts).sessions[1].initiator_alias = Some("clone".into())),
    ("host-lanes", |facts| {
        target(facts).sessions.remove(3);
    }),
    ("writers", |facts| target(facts).reservations.clear()),
    ("digest-mixed", |facts| target(facts).sessions[1].digests = [false, true]),
    ("session-keys", |facts| {
        // All sessions of the host: that they differ is another rule's.
        for session in &mut target(facts).sessions[..2] {
            value(&mut session.keys).max_recv_initiator = 8192;
        }
    }),
    ("session-alike", |facts| value(&mut target(facts).sessions[1].keys).max_burst_length = 262_144),
    ("session-aborts", |facts| value(&mut target(facts).sessions[1].task_management).aborts = 1),
    ("login-refused", |facts| target(facts).logins_refused = known(100_000)),
    ("lun-serial", |facts| target(facts).targets[0].luns[1].serial = "a".into()),
    ("lun-store-twice", |facts| {
        let target = target(facts);
        target.targets[0].luns[1].read_only = false;
        value(&mut target.stores)[1].identity = "1 0".into();
        value(&mut target.stores)[1].path = "/srv/0.img".into();
    }),
    ("lun-sectors", |facts| {
        target(facts).targets[0].luns[0].sector = 512;
        value(&mut target(facts).stores)[0].logical_sector = known(4096);
    }),
    ("store-full", |facts| {
        let space = target(facts).devices[0].space.as_mut().unwrap();
        (space.used, space.available) = (90 << 30, 10 << 30);
        // It has been so for long.
        target(facts).earlier.as_mut().unwrap().devices[0].space = target(facts).devices[0].space;
    }),
    ("store-quota", |facts| {
        value(&mut target(facts).stores)[0].quota = known(FolderQuota { limit: 100 << 30, used: 85 << 30 });
    }),
    ("store-owner-quota", |facts| {
        // Of the two owners the group has less left.
        let group = OwnerQuota { kind: "group".into(), id: 8, limit: 10 << 30, used: 9 << 30 };
        value(&mut value(&mut target(facts).stores)[0].owner_quotas).push(group);
    }),
    ("store-thin", |facts| target(facts).devices[0].size = 1 << 40),
    ("store-forecast", |facts| {
        // 40 GiB in a day, and 60 are left: 36 h.
        let look = target(facts).earlier.as_mut().unwrap();
        look.devices[0].space.as_mut().unwrap().available = 100 << 30;
    }),
    // Two days old.
    ("backup-overdue", |facts| schedule(facts).last_success = Some(1_789_913_599)),
    ("backup-failing", |facts| schedule(facts).error = Some("the share is full".into())),
    ("backup-destination", |facts| {
        schedule(facts).folder = Some(known(BackupFolder { exists: false, is_empty: true, unmounted: None }));
    }),
    ("lun-unmap", |facts| unit(facts).operations[1].operations = 0),
    ("lun-failures", |facts| unit(facts).failures.push(Failures { cause: "medium".into(), count: 1 })),
    ("lun-flush", |facts| unit(facts).operations[2].latency_us_total = 1000),
    ("ends-login", |facts| {
        // The target has forgotten the host's first session.
        ends(facts).target.as_mut().unwrap().sessions.remove(1);
    }),
    ("ends-name", |facts| {
        // A clone without sessions: with them it would also take the other's.
        let ends = ends(facts);
        let clone = HostEnd { name: "clone".into(), sessions: known(vec![]), ..ends.hosts[1].clone() };
        ends.hosts.push(clone);
        ends.target.as_mut().unwrap().sessions.clear();
        for host in &mut ends.hosts {
            (host.sessions, host.lunway_sessions) = (known(vec![]), known(vec![]));
        }
    }),
    ("ends-writers", |facts| value(&mut ends(facts).hosts[1].units)[0].written_at = known("/mnt".into())),
    ("ends-digest", |facts| host_session(facts).digests = known([false, true])),
    ("ends-timers", |facts| host_session(facts).timeout = known(120)),
    ("ends-lanes", |facts| {
        let ends = ends(facts);
        value(&mut ends.hosts[1].sessions).pop();
        ends.target.as_mut().unwrap().sessions.pop();
    }),
    ("ends-size", |facts| value(&mut ends(facts).hosts[1].units)[0].size = 5 << 30),
    ("lane-lun", |facts| value(&mut facts.lanes.as_mut().unwrap().units).named = 7),
    ("lane-subnet", |facts| plan(facts, "rule-3")),
    ("lane-balance", |facts| plan(facts, "rule-5")),
    ("lane-mesh", |facts| plan(facts, "rule-6")),
    ("lane-router", |facts| plan(facts, "rule-7")),
    ("lane-speed", |facts| plan(facts, "rule-8")),
    ("lane-overlap", |facts| plan(facts, "rule-10")),
    ("lane-mtu-ports", |facts| plan(facts, "rule-11")),
    ("lane-single", |facts| plan(facts, "one-lane")),
    ("lane-one-card", |facts| plan(facts, "one-card")),
    ("lane-one-portal", |facts| plan(facts, "one-portal")),
    ("lane-address", |facts| plan(facts, "address-missing")),
    ("lane-carrier", |facts| plan(facts, "no-carrier")),
    ("lane-answers", |facts| {
        facts.lanes.as_mut().unwrap().lanes[1].probe = Seen::unseen("no answer within 2 s");
    }),
    ("lane-mtu", |facts| probe(facts).path_mtu = known(1500)),
    ("lane-hops", |facts| probe(facts).direct = known(false)),
    ("lane-loss", |facts| probe(facts).lost = 100),
    ("lane-mss", |facts| probe(facts).mss = known(1448)),
    ("lane-drops", |facts| probe(facts).port_lost = known(1)),
    ("lane-alike", |facts| probe(facts).round_trip_p10_us = known(900.0)),
    ("lane-slowest", |facts| probe(facts).round_trip_p99_us = known(200_000.0)),
    ("lane-owner", |facts| {
        value(&mut probe(facts).portal_owners).push("02:00:00:00:00:09".into());
    }),
    ("lane-delayed", |facts| probe(facts).held_back = 30),
    ("lane-pull", |facts| pull(facts).failed = 1),
    ("lane-return", |facts| pull(facts).back_ms = Seen::unseen("no answer within 10 s")),
    ("windows-verify", |facts| mpio(facts, "PathVerifyEnabled", 0)),
    ("windows-remove", |facts| mpio(facts, "PDORemovePeriod", 10)),
    ("windows-retry", |facts| mpio(facts, "RetryCount", 0)),
    ("windows-claim", |facts| windows(facts).claims_iscsi = known(false)),
    ("windows-policy", |facts| windows(facts).policy = known("None".into())),
    ("windows-disk-timeout", |facts| windows(facts).disk_timeout = known(30)),
    ("windows-initiator", |facts| {
        value(&mut windows(facts).initiator).insert("LinkDownTime".into(), 60);
    }),
    ("windows-ack", |facts| windows_port(facts).tcp_ack_frequency = known(2)),
    ("windows-power", |facts| windows_port(facts).power_saving = known(true)),
    ("windows-dns", |facts| windows_port(facts).registers_dns = known(true)),
    ("windows-bindings", |facts| windows_port(facts).netbios = known(true)),
    ("windows-mtu", |facts| windows_port(facts).mtu = known(1500)),
    ("windows-sessions", |facts| value(&mut windows(facts).sessions)[0].bound = false),
    ("asked-ups", |facts| answer_no(facts, "asked-ups")),
    ("asked-vendor", |facts| answer_no(facts, "asked-vendor")),
    ("asked-module", |facts| answer_no(facts, "asked-module")),
    ("asked-firmware", |facts| answer_no(facts, "asked-firmware")),
    ("asked-subnets", |facts| answer_no(facts, "asked-subnets")),
    ("asked-edge", |facts| answer_no(facts, "asked-edge")),
    ("asked-pull", |facts| answer_no(facts, "asked-pull")),
    ("asked-blocks", |facts| answer_no(facts, "asked-blocks")),
];

#[test]
fn a_file_system_whose_writes_have_ended_shows_it_in_one_of_many_ways() {
    let says = |change: fn(&mut Mount)| {
        let mut facts = crate::healthy::healthy();
        change(mount(&mut facts, 1));
        crate::broken(&facts)
    };
    let ways: [fn(&mut Mount); 6] = [
        |mount| mount.options.push("emergency_ro".into()),
        |mount| mount.options.push("shutdown".into()),
        |mount| mount.made_read_only = known(true),
        |mount| mount.root_error = known("Input/output error (os error 5)".into()),
        |mount| {
            // ext4 of Linux 6.1.
            let met = MountFaults { count: 1, function: "ext4_find_entry".into(), ended_writes: true };
            mount.faults = known(met);
        },
        // That of older kernels, in /etc/fstab.
        |mount| mount.options = vec!["ro".into(), "relatime".into()],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        assert_eq!(says(way), ["mount-read-only"].into(), "way {number}");
    }
    // By hand: it is in no fstab.
    let read_only: fn(&mut Mount) = |mount| {
        (mount.options, mount.point) = (vec!["ro".into(), "relatime".into()], "/by/hand".into());
    };
    assert_eq!(says(read_only), [].into());
}

#[test]
fn interrupts_at_one_processor_alarm_only_where_there_are_others_queues_and_enough_of_them() {
    let verdict = |change: fn(&mut Interrupts)| {
        let mut facts = crate::healthy::healthy();
        let interrupts = value(&mut port(&mut facts).interrupts);
        one_processor(interrupts);
        change(interrupts);
        let found = lunway_doctor::rule("port-interrupts").unwrap().diagnoses(&facts);
        found.into_iter().find(|one| one.finding.place == "eth2").unwrap().verdict
    };
    assert_eq!(verdict(|_| {}), Verdict::Warn);
    assert_eq!(verdict(|interrupts| interrupts.processors = 1), Verdict::Ok);
    assert_eq!(verdict(|interrupts| interrupts.queues = 1), Verdict::Ok);
    // One flow is in one queue, and its processor takes all, while those of the other queues go elsewhere.
    assert_eq!(verdict(|interrupts| interrupts.now = [2, 3].into()), Verdict::Ok);
    assert_eq!(verdict(|interrupts| interrupts.numbers.truncate(1)), Verdict::Unknown);
    assert_eq!(verdict(|interrupts| interrupts.taken = taken(&[("2", 9_999)])), Verdict::Unknown);
    assert_eq!(
        verdict(|interrupts| interrupts.taken = taken(&[("1", 600_000), ("2", 400_000)])),
        Verdict::Unknown
    );
}

#[test]
fn two_virtual_functions_of_one_card_share_it_and_two_ports_of_a_card_do_not() {
    let broken = |sockets: [&str; 2]| {
        let mut facts = crate::healthy::healthy();
        for (port, socket) in value(facts.ports.as_mut().unwrap()).iter_mut().zip(sockets) {
            port.socket = socket.to_owned();
        }
        crate::broken(&facts)
    };
    assert_eq!(broken(["0000:01:00.0 port 0", "0000:01:00.0 port 0"]), ["port-shared-card"].into());
    for own in
        [["0000:01:00.0 port 0", "0000:01:00.1 port 0"], ["0000:01:00.0 port 0", "0000:01:00.0 port 1"]]
    {
        assert_eq!(broken(own), [].into());
    }
}

#[test]
fn an_algorithm_of_chap_is_weak_where_md5_or_sha1_comes_first() {
    let remedy = |algorithms: &[&str], target: Option<&str>| {
        let mut facts = crate::healthy::healthy();
        let chap = &mut value(&mut initiator(&mut facts).chap)[0];
        chap.algorithms = algorithms.iter().map(|&name| name.to_owned()).collect();
        chap.target = target.map(str::to_owned);
        let found =
            lunway_doctor::diagnose(&facts).into_iter().find(|one| one.finding.id == "chap-algorithm");
        let found = found.unwrap();
        (found.finding.remedy, found.undo)
    };
    for strong in [&["SHA256"][..], &["SHA3-256", "MD5"]] {
        assert_eq!(remedy(strong, None), (String::new(), String::new()), "{strong:?}");
    }
    for weak in [&["MD5"][..], &["MD5", "SHA256"], &["SHA1", "SHA256"]] {
        let (fix, undo) = remedy(weak, None);
        assert!(
            fix.starts_with("sed -i") && undo.contains(&format!("chap_algs = {}/", weak.join(","))),
            "{undo}"
        );
        let (fix, undo) = remedy(weak, Some("iqn.2026-11.com.example:d"));
        assert!(fix.starts_with("iscsiadm ") && undo.ends_with(&weak.join(",")), "{fix}: {undo}");
    }
    let (_, undo) = remedy(&[], None);
    assert!(undo.ends_with("/d' /etc/iscsi/iscsid.conf"), "{undo}");
    let (_, undo) = remedy(&["MD5; reboot"], None);
    assert!(undo.starts_with("edit the file of"), "{undo}");
}

#[test]
fn a_quota_of_a_folder_is_bad_from_95_percent_and_none_is_no_fault() {
    use lunway_doctor::Verdict::{Bad, Ok, Unknown, Warn};
    let judged = |quota: Seen<FolderQuota>| {
        let mut facts = crate::healthy::healthy();
        value(&mut target(&mut facts).stores)[0].quota = quota;
        let found = lunway_doctor::rule("store-quota").unwrap().diagnoses(&facts);
        found.into_iter().map(|one| one.verdict).max().unwrap()
    };
    let of = |limit: u64, used: u64| judged(known(FolderQuota { limit, used }));
    assert_eq!([of(0, 0), of(0, 5), of(100, 79), of(100, 80), of(100, 94)], [Ok, Ok, Ok, Warn, Warn]);
    assert_eq!([of(100, 95), of(100, 100), judged(Seen::unseen("no permission"))], [Bad, Bad, Unknown]);
}

/// Its fix made a look at a snapshot, or at what another machine writes, a mount that writes.
#[test]
fn a_mount_that_is_only_read_may_be_without_its_log_and_a_fix_keeps_the_other_options() {
    let found = |options: &[&str]| {
        let mut facts = crate::healthy::healthy();
        mount(&mut facts, 0).options = options.iter().map(|&option| option.to_owned()).collect();
        let found = lunway_doctor::rule("mount-sync").unwrap().diagnoses(&facts).into_iter();
        found.max_by_key(|one| one.verdict).unwrap()
    };
    for options in [&["ro", "nouuid", "norecovery"][..], &["ro", "nobarrier"]] {
        assert_eq!(found(options).verdict, Verdict::Ok, "{options:?}");
    }
    let journal = found(&["rw", "noatime", "data=writeback"]);
    assert_eq!(journal.verdict, Verdict::Bad);
    let fix = journal.finding.remedy;
    assert!(fix.contains("-o 'rw,noatime,data=ordered' "), "{fix}");
}

#[test]
fn a_store_has_a_forecast_in_hours_only_after_two_looks() {
    use lunway_doctor::Verdict::{Bad, Ok, Unknown, Warn};
    let judged = |earlier: Option<Look>| {
        let mut facts = crate::healthy::healthy();
        target(&mut facts).earlier = earlier;
        let rule = lunway_doctor::rule("store-forecast").unwrap();
        let found = rule.diagnoses(&facts).remove(0);
        (found.verdict, found.finding.what)
    };
    let look = |hours: u64, gone: u64| {
        let mut facts = crate::healthy::healthy();
        let target = target(&mut facts);
        let mut device = target.devices[0].clone();
        device.space.as_mut().unwrap().available += gone << 30;
        Some(Look { looked_at: target.looked_at - hours * 3600, devices: vec![device] })
    };
    assert_eq!(judged(None).0, Unknown);
    assert_eq!(judged(look(0, 1)).0, Unknown, "too short a time");
    assert_eq!(judged(Some(Look { devices: vec![], ..look(24, 1).unwrap() })).0, Unknown, "the LUN is new");
    assert_eq!(judged(look(24, 0)).0, Ok);
    assert_eq!(judged(look(24, 1)).0, Ok);
    let (verdict, what) = judged(look(24, 40));
    assert!(verdict == Warn && what.contains("full in 36 h"), "{what}");
    let (verdict, what) = judged(look(2, 20));
    assert!(verdict == Bad && what.contains("full in 6 h"), "{what}");
}

#[test]
fn two_hosts_of_one_name_are_told_by_their_aliases_and_one_host_with_several_cards_is_not() {
    let sessions =
        |aliases: [Option<&str>; 2], portals: [&str; 2]| -> Vec<(lunway_doctor::Verdict, String)> {
            let session = |n: usize| ServedSession {
                initiator_alias: aliases[n].map(str::to_owned),
                ..served_session(n as u16 + 1, "one", portals[n], 0)
            };
            let target = Target { sessions: vec![session(0), session(1)], ..Target::default() };
            let facts = Facts { target: Some(target), ..Facts::default() };
            let rule = lunway_doctor::rule("host-name-cloned").unwrap();
            rule.diagnoses(&facts).into_iter().map(|found| (found.verdict, found.finding.what)).collect()
        };
    use lunway_doctor::Verdict::{Bad, Ok, Unknown};
    let verdict = |aliases, portals| sessions(aliases, portals)[0].0;
    assert_eq!(verdict([Some("a"), Some("a")], ["p", "q"]), Ok, "a lane to each portal");
    assert_eq!(
        verdict([Some("a"), Some("a")], ["p", "p"]),
        Unknown,
        "a clone has its original's name as well"
    );
    assert_eq!(verdict([Some("a"), Some("b")], ["p", "q"]), Bad);
    assert_eq!(verdict([None, None], ["p", "q"]), Ok, "a lane to each portal");
    assert_eq!(verdict([None, None], ["p", "p"]), Unknown, "a mesh, or two hosts");
    assert!(!IQN.is_empty());
}

#[test]
fn a_destination_is_missing_empty_or_on_a_share_that_is_not_mounted() {
    let there = BackupFolder { exists: true, is_empty: false, unmounted: None };
    let rule = lunway_doctor::rule("backup-destination").unwrap();
    let told = |folder: BackupFolder, last_success: Option<u64>| {
        let mut facts = crate::healthy::healthy();
        let schedule = schedule(&mut facts);
        (schedule.folder, schedule.last_success) = (Some(known(folder)), last_success);
        let [found] = <[_; 1]>::try_from(rule.diagnoses(&facts)).unwrap();
        (found.verdict, found.finding.what, found.finding.remedy)
    };
    let gone = BackupFolder { unmounted: Some("/mnt/share".into()), ..there };
    let (verdict, what, fix) = told(gone, None);
    assert!(verdict == Verdict::Bad && what.contains("not mounted"), "{what}");
    assert_eq!(fix, "mount /mnt/share");
    let empty = BackupFolder { is_empty: true, unmounted: None, exists: true };
    assert_eq!(told(empty.clone(), None).0, Verdict::Ok, "before the first run");
    let (verdict, what, _) = told(empty, Some(1_790_040_000));
    assert!(verdict == Verdict::Bad && what.contains("is empty"), "{what}");
}

#[test]
fn a_backup_without_a_point_is_overdue_when_the_daemon_has_served_for_two_intervals() {
    let rule = lunway_doctor::rule("backup-overdue").unwrap();
    let verdict = |uptime_s: u64| {
        let mut facts = crate::healthy::healthy();
        schedule(&mut facts).last_success = None;
        target(&mut facts).uptime_s = uptime_s;
        rule.diagnoses(&facts)[0].verdict
    };
    assert_eq!((verdict(2 * 86_400), verdict(2 * 86_400 + 1)), (Verdict::Ok, Verdict::Bad));
    // Where it is known when the daemon saw it first, that counts: also before a restart, and for one that is new.
    let verdict = |age: u64, last_success: Option<u64>| {
        let mut facts = crate::healthy::healthy();
        target(&mut facts).uptime_s = 2 * 86_400;
        let since = target(&mut facts).looked_at - age;
        (schedule(&mut facts).known_since, schedule(&mut facts).last_success) = (Some(since), last_success);
        let found = rule.diagnoses(&facts).remove(0);
        (found.verdict, found.finding.what)
    };
    assert_eq!(
        [3600, 2 * 86_400, 2 * 86_400 + 1].map(|age| verdict(age, None).0),
        [Verdict::Ok, Verdict::Ok, Verdict::Bad]
    );
    let (of_the_future, what) = verdict(0, Some(2_100_000_000));
    assert!(of_the_future == Verdict::Bad && what.contains("in the future"), "{what}");
    // Elsewhere nothing is known of the folder, and nothing is said.
    let mut facts = crate::healthy::healthy();
    schedule(&mut facts).folder = None;
    assert_eq!(lunway_doctor::rule("backup-destination").unwrap().diagnoses(&facts), []);
}

#[test]
fn while_a_run_is_under_way_nobody_is_told_to_begin_another_one() {
    let mut facts = crate::healthy::healthy();
    let looked_at = target(&mut facts).looked_at;
    let schedule = schedule(&mut facts);
    schedule.error = Some("the share is full".into());
    schedule.last_success = Some(looked_at - 3 * schedule.interval_s);
    let found = |facts: &Facts, id: &str| {
        let [found] = <[_; 1]>::try_from(lunway_doctor::rule(id).unwrap().diagnoses(facts)).unwrap();
        (found.verdict, found.finding.what, found.finding.remedy)
    };
    for (id, expected) in [("backup-overdue", Verdict::Bad), ("backup-failing", Verdict::Warn)] {
        let (verdict, _, fix) = found(&facts, id);
        assert!(verdict == expected && fix.contains("lunway backup schedule run db"), "{fix}");
        self::schedule(&mut facts).running_since = Some(looked_at - 3600);
        let (verdict, what, fix) = found(&facts, id);
        assert!(verdict == expected && what.ends_with("; a run is under way for 60 min"), "{what}");
        assert!(!fix.contains("schedule run"), "{fix}");
        self::schedule(&mut facts).running_since = None;
    }
}
