//! The seven published set-ups on networks that run: both ends, the lanes and their probes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use lunway_doctor::{Group, Machine, Verdict, diagnose, gather, rule};
use lunway_lab::{LiveHost, Network};
use serde_json::Value;

use crate::sandboxed::inside;
use crate::support::{IQN, PATIENCE, Running, finish, lunway, succeed, until};
use crate::{doctor, findings, verdicts};

/// The lanes of the seven published set-ups: numbers of the server's card and of the storage's.
const SEVEN: [(&str, &[(u8, u8)]); 7] = [
    ("A", &[(0, 0), (1, 0), (2, 0), (3, 0)]),
    ("B", &[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]),
    ("C", &[(0, 0), (1, 1)]),
    ("D", &[(0, 0)]),
    ("E", &[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]),
    ("F", &[(0, 0), (1, 1), (2, 0), (3, 1)]),
    ("G", &[(0, 0), (1, 1)]),
];

/// Cards of one side of the lanes.
fn cards(lanes: &[(u8, u8)], of: fn(&(u8, u8)) -> u8) -> BTreeSet<u8> {
    lanes.iter().map(of).collect()
}

/// A server and a storage whose cards are all on one switch.
fn network(lanes: &[(u8, u8)]) -> Network {
    let cables = |host: &str, cards: BTreeSet<u8>| -> String {
        let cable = |card: u8| {
            format!("[[cable]]\nname = '{host}{card}'\nends = ['{host}.eth{card}', 'fabric']\nmtu = 9000\n")
        };
        cards.into_iter().map(cable).collect()
    };
    let text = format!(
        "[[host]]\nname = 'server'\n[[host]]\nname = 'storage'\n[[switch]]\nname = 'fabric'\n{}{}",
        cables("server", cards(lanes, |lane| lane.0)),
        cables("storage", cards(lanes, |lane| lane.1))
    );
    Network::build(&toml::from_str(&text).unwrap()).unwrap()
}

fn address(host: &LiveHost, card: u8) -> std::net::IpAddr {
    host.address(&format!("eth{card}")).unwrap()
}

#[test]
fn the_seven_published_networks_raise_no_alarm_at_either_end() {
    if !inside("seven::the_seven_published_networks_raise_no_alarm_at_either_end") {
        return;
    }
    for (test, lanes) in SEVEN {
        let network = network(lanes);
        let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
        // A connection for each lane, to iSCSI's port: by these doctor knows the ports that carry storage.
        let mut connections = Vec::new();
        for card in cards(lanes, |lane| lane.1) {
            let at = SocketAddr::new(address(storage, card), 3260);
            let listener = storage.run(|| TcpListener::bind(at).unwrap()).unwrap();
            for lane in lanes.iter().filter(|lane| lane.1 == card) {
                let from = SocketAddr::new(address(server, lane.0), 0);
                let near = server.run(|| connect(from, at)).unwrap();
                connections.push((near, listener.accept().unwrap().0));
            }
        }
        for host in [server, storage] {
            let facts = host.run(|| gather(&Machine::this(), &[])).unwrap();
            let found = diagnose(&facts);
            let of_network = |id: &str| rule(id).unwrap().group == Group::Network;
            let alarms: Vec<_> = found
                .iter()
                .filter(|one| of_network(one.finding.id) && one.verdict > Verdict::Unknown)
                .collect();
            assert!(alarms.is_empty(), "{test}, {}: {alarms:#?}", host.name());
            let has = |id: &str| found.iter().any(|one| one.finding.id == id && one.verdict == Verdict::Ok);
            assert!(has("route-source") && has("route-router"), "{test}, {}: {found:#?}", host.name());
            assert!(!has("arp-ignore") || facts.ports.unwrap().get().unwrap().len() > 1);
        }
    }
}

/// A connection from an address of one's own.
fn connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// `lunway serve` on a host, on all of its cards; killed when dropped.
struct Target(Child);

impl Target {
    fn start(host: &LiveHost, portals: &[SocketAddr], socket: &str) -> Self {
        let mut command =
            lunway(&["serve", "--iqn", IQN, "--open", "--lun", "0=ram:64M", "--socket", socket]);
        command.args(portals.iter().map(|portal| format!("--listen={portal}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = host.spawn(command).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready = lines.any(|line| line.starts_with("listening on "));
        std::thread::spawn(move || lines.for_each(drop));
        let target = Self(child);
        assert!(ready, "it does not serve");
        until(|| Path::new(socket).exists());
        target
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rules that one of the seven breaks, and rightly so: all lanes to one portal, a mesh, a single lane.
fn broken_by(test: &str) -> BTreeSet<String> {
    let rules: &[&str] = match test {
        "A" => &["lane-one-portal"],
        "B" | "E" => &["lane-mesh"],
        "D" => &["lane-single"],
        _ => &[],
    };
    rules.iter().map(|&rule| rule.to_owned()).collect()
}

/// Rules with an alarm, of groups that look at the network and not at the machine that the test runs on.
fn alarms(found: &[Value]) -> BTreeSet<String> {
    let looked_at = [Group::Network, Group::Target, Group::Ends, Group::Lanes];
    let alarm = |one: &&Value| {
        let id = one["id"].as_str().unwrap();
        // The target is open on purpose.
        let counts = looked_at.contains(&rule(id).unwrap().group) && id != "target-open";
        counts && (one["verdict"] == "warn" || one["verdict"] == "bad")
    };
    found.iter().filter(alarm).map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn lanes_of_the_seven_are_probed_and_both_ends_compared_without_a_false_alarm() {
    if !inside("seven::lanes_of_the_seven_are_probed_and_both_ends_compared_without_a_false_alarm") {
        return;
    }
    for (test, lanes) in SEVEN {
        let network = network(lanes);
        let (server, storage) = (network.host("server").unwrap(), network.host("storage").unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let portal = |card: u8| SocketAddr::new(address(storage, card), 3260);
        let portals: Vec<SocketAddr> = cards(lanes, |lane| lane.1).into_iter().map(portal).collect();
        let _target = Target::start(storage, &portals, &path("socket"));
        let lane = |(n, lane): (usize, &(u8, u8))| {
            // Of G the second pair is passive.
            let reserve = if test == "G" && n > 0 { ",reserve" } else { "" };
            format!("lane={}%3E{}{reserve}", address(server, lane.0), portal(lane.1))
        };
        let lanes: Vec<String> = lanes.iter().enumerate().map(lane).collect();
        let disk = format!("iscsi://{}/{IQN}/0?{}&plan=explicit", portals[0], lanes.join("&"));
        let attach = lunway(&["attach", &disk, "--nbd", &format!("unix:{}", path("disk"))]);
        let attached = server.run(|| Running::start(attach)).unwrap();
        until(|| Path::new(&path("disk")).exists());

        let probed = doctor(&[&disk, "--probe"], folder.path());
        let found = findings(&server.run(|| finish(probed, PATIENCE)).unwrap());
        assert_eq!(alarms(&found), broken_by(test), "{test}: {found:#?}");
        for rule in ["lane-answers", "lane-mtu", "lane-subnet", "lane-owner", "lane-alike"] {
            let all = verdicts(&found, rule);
            let of_several = rule == "lane-alike" && (lanes.len() < 2 || test == "G");
            assert!(of_several || !all.is_empty(), "{test}: {rule} does not apply");
            assert!(all.iter().all(|verdict| verdict == "ok"), "{test}: {rule}: {found:#?}");
        }
        // Lanes of an attached disk connect one after another.
        let ends = || {
            let mut facts = lunway(&["doctor", "--facts"]);
            facts.env("XDG_STATE_HOME", folder.path());
            std::fs::write(path("server.json"), server.run(|| succeed(facts)).unwrap()).unwrap();
            let both = doctor(&["--from", &path("server.json"), "--socket", &path("socket")], folder.path());
            findings(&storage.run(|| finish(both, PATIENCE)).unwrap())
        };
        until(|| verdicts(&ends(), "ends-login").len() == lanes.len());
        let found = ends();
        assert_eq!(alarms(&found), BTreeSet::new(), "{test}: {found:#?}");
        assert_eq!(verdicts(&found, "ends-login"), vec!["ok"; lanes.len()], "{test}: {found:#?}");
        attached.signal(rustix::process::Signal::INT);
        attached.end(PATIENCE);
    }
}
