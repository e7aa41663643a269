//! Rules about addresses, routes and the kernel's network settings.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use lunway_block::Severity;

use super::ports::{each, storage, unseen_ports};
use super::{Group, Rule, listed};
use crate::facts::{Facts, Peer, Port};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

/// Bytes below which TCP's window throttles one gigabit, as measured.
const WINDOW_MIN: u64 = 128 << 10;
/// Round trip that buffers must cover when no other is known, seconds: a switched network of a few hops.
const ROUND_TRIP_S: f64 = 1e-3;
/// A round trip beyond this, seconds, is not that of a network: a satellite's is shorter.
const ROUND_TRIP_MAX_S: f64 = 1.0;

/// Milliseconds of sending below which a share says nothing.
const BUSY_MIN_MS: u64 = 1000;
/// Percent of that time that a sender may wait for a window or a buffer. Both are full for moments whenever the other
/// end is busy; a window that is too small is full most of the time.
const LIMITED_MAX: f64 = 20.0;
/// Bytes of buffers that hold what is under way at 100 Gb/s and the round trip of a switched network.
const LIMITED_NEW: u64 = 16 << 20;

/// The first of the routing tables that fixes make: far from those that administrators number by hand, and a table of
/// its own for each port.
const TABLE: u32 = 326_001;

const ONE_SUBNET: &str = "storage ports that share a subnet with another one";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "subnet-overlap",
        group: Group::Network,
        title: "Networks of storage ports do not overlap",
        severity: Severity::Warning,
        applies: "two or more storage ports",
        why: "the narrower network receives traffic that is meant for the wider one, so that lanes leave by another card than \
              they were planned for (no published figure)",
        source: "rule of thumb 10",
        thumbs: &[10],
        fix: "ip address add ADDRESS/LENGTH dev {port}; ip address del {network} dev {port}    # an address in a network of its own, also at \
              the storage",
        undo: "ip address add {network} dev {port}; ip address del ADDRESS/LENGTH dev {port}",
        check: overlap,
    },
    Rule {
        id: "arp-ignore",
        group: Group::Network,
        title: "A storage port answers ARP only for its own addresses",
        severity: Severity::Warning,
        applies: ONE_SUBNET,
        why: "Linux answers for any address of the machine on any port, and both lanes may end up on one wire (ARP flux): half of \
              the rate, and both are lost with one cable (no published figure)",
        source: "Linux ip-sysctl, arp_ignore; rule of thumb 3: most vendors want a subnet for each port",
        thumbs: &[3],
        fix: "sysctl -w net/ipv4/conf/{port}/arp_ignore=1",
        undo: "sysctl -w net/ipv4/conf/{port}/arp_ignore={old}",
        check: |facts| arp(facts, |port| &port.arp_ignore, "arp_ignore", 1),
    },
    Rule {
        id: "arp-announce",
        group: Group::Network,
        title: "A storage port sends ARP requests only with its own address",
        severity: Severity::Warning,
        applies: ONE_SUBNET,
        why: "a request with the other port's address makes the storage send packets for that address to this port (no published \
              figure)",
        source: "Linux ip-sysctl, arp_announce",
        thumbs: &[3],
        fix: "sysctl -w net/ipv4/conf/{port}/arp_announce=2",
        undo: "sysctl -w net/ipv4/conf/{port}/arp_announce={old}",
        check: |facts| arp(facts, |port| &port.arp_announce, "arp_announce", 2),
    },
    Rule {
        id: "reverse-path",
        group: Group::Network,
        title: "The reverse-path filter is not strict where two storage ports share a subnet",
        severity: Severity::Warning,
        applies: ONE_SUBNET,
        why: "the strict filter drops every packet that arrives at another port than the answer would leave by: one of the lanes \
              never comes up (no published figure)",
        source: "RFC 3704 §2.2; Linux ip-sysctl, rp_filter",
        thumbs: &[3],
        fix: "sysctl -w net/ipv4/conf/{port}/rp_filter=2",
        undo: "sysctl -w net/ipv4/conf/{port}/rp_filter={old}",
        check: reverse_path,
    },
    Rule {
        id: "route-source",
        group: Group::Network,
        title: "Packets leave by the port whose address they carry",
        severity: Severity::Warning,
        applies: "iSCSI connections of this machine",
        why: "the kernel routes by destination alone: with two ports in one subnet both lanes leave by one card, and its cable \
              takes both: one card carried 99 MB/s of reads and 108 MB/s of writes, two pairs 131 and 184 MB/s",
        source: "rule of thumb 3; `ip route get ADDRESS from ADDRESS` shows it",
        thumbs: &[3],
        fix: "ip route add {network} dev {port} table {table}; ip rule add from {local} table {table}",
        undo: "ip rule del from {local} table {table}; ip route del {network} dev {port} table {table}",
        check: route_source,
    },
    Rule {
        id: "route-router",
        group: Group::Network,
        title: "There is no router between initiator and storage",
        severity: Severity::Warning,
        applies: "iSCSI connections of this machine",
        why: "a router adds delay to every I/O, and is one more single point of failure (no published figure)",
        source: "rule of thumb 7",
        thumbs: &[7],
        fix: "ip address add ADDRESS/LENGTH dev PORT    # an address in the storage's network, {remote}",
        undo: "ip address del ADDRESS/LENGTH dev PORT",
        check: |facts| {
            peers(facts, |peer, port, route| {
                let what = match route.1 {
                    Some(gateway) => format!("{} is reached by the router {gateway}", peer.remote),
                    None => format!("{} is reached on the link", peer.remote),
                };
                let outcome = Outcome::judged(route.1.is_none(), Verdict::Warn, port, what);
                Some(outcome.with("remote", peer.remote))
            })
        },
    },
    Rule {
        id: "port-ipv6",
        group: Group::Network,
        title: "Storage ports have addresses of one IP version only",
        severity: Severity::Note,
        applies: "storage ports whose connections all use IPv4",
        why: "an IPv6 address that a router advertised is an unplanned way to reach the target, and discovery \
              may return it first",
        source: "rule of thumb 13: nothing but IPv4 bound on storage ports",
        thumbs: &[13],
        fix: "sysctl -w net/ipv6/conf/{port}/disable_ipv6=1",
        undo: "sysctl -w net/ipv6/conf/{port}/disable_ipv6=0; for address in {addresses}; do ip address replace $address dev {port}; done",
        check: ipv6,
    },
    Rule {
        id: "tcp-window",
        group: Group::Network,
        title: "TCP's buffers hold the data in flight: rate × round trip, and at least 128 KiB",
        severity: Severity::Warning,
        applies: "machines with storage ports",
        why: "windows under 128 KiB limit throughput and make it unstable even on one gigabit link",
        source: "published tests of software targets on one gigabit link; rate × 1 ms for faster ports",
        thumbs: &[],
        fix: "sysctl -w {name}=\"4096 131072 {new}\"",
        undo: "sysctl -w {name}=\"{old}\"",
        check: window,
    },
    Rule {
        id: "tcp-limited",
        group: Group::Network,
        title: "No iSCSI connection waits for a window or a send buffer",
        severity: Severity::Note,
        applies: "iSCSI connections that had something to send for 1 s or longer",
        why: "a sender that waits for a window or for its buffer leaves the wire idle: at 10 Gb/s and a round trip of 1 ms 1.2 MB are under \
              way, and with a window of 128 KiB a tenth of that",
        source: "tcp(7), TCP_INFO: tcpi_rwnd_limited, tcpi_sndbuf_limited; RFC 7323 §1.1: window = rate × round trip",
        thumbs: &[],
        fix: "at {place}: sysctl -w {name}=\"4096 131072 {new}\"    # new connections have it",
        undo: "at {place}: sysctl -w {name}=\"{old}\"",
        check: limited,
    },
    Rule {
        id: "tcp-scaling",
        group: Group::Network,
        title: "TCP window scaling is on",
        severity: Severity::Warning,
        applies: "machines with storage ports",
        why: "without it no window is larger than 64 KiB, less than the 128 KiB that one gigabit link needs",
        source: "RFC 7323 §2; published tests of software targets",
        thumbs: &[],
        fix: "sysctl -w net.ipv4.tcp_window_scaling=1",
        undo: "sysctl -w net.ipv4.tcp_window_scaling={old}",
        check: |facts| switched_on(facts, "net.ipv4.tcp_window_scaling"),
    },
    Rule {
        id: "tcp-sack",
        group: Group::Network,
        title: "TCP selective acknowledgements are on",
        severity: Severity::Warning,
        applies: "machines with storage ports",
        why: "without it two losses in one window cost a time-out of 200 ms or more, as long as hundreds of I/Os",
        source: "RFC 2018; Linux's least retransmission time-out",
        thumbs: &[],
        fix: "sysctl -w net.ipv4.tcp_sack=1",
        undo: "sysctl -w net.ipv4.tcp_sack={old}",
        check: |facts| switched_on(facts, "net.ipv4.tcp_sack"),
    },
];

/// Storage ports with another one in their IPv4 subnet.
fn in_one_subnet(facts: &Facts) -> Vec<&Port> {
    let ports = storage(facts);
    let v4 = |port: &Port| -> BTreeSet<IpNet> {
        port.networks.iter().filter(|network| network.addr().is_ipv4()).map(IpNet::trunc).collect()
    };
    let mut users: BTreeMap<IpNet, BTreeSet<&str>> = BTreeMap::new();
    for port in &ports {
        for network in v4(port) {
            users.entry(network).or_default().insert(&port.name);
        }
    }
    let shares = |port: &&&Port| {
        v4(port).iter().any(|network| users.get(network).is_some_and(|users| users.len() > 1))
    };
    ports.iter().filter(shares).copied().collect()
}

fn arp(facts: &Facts, value: fn(&Port) -> &Seen<u32>, name: &str, least: u32) -> Vec<Outcome> {
    let judge = |port: &Port| match value(port).known() {
        Err(why) => Outcome::unknown(&port.name, format!("{name} of {}: {why}", port.name)),
        Ok(value) => {
            let what = format!("{} shares its subnet and has {name} {value}", port.name);
            let sound = *value >= least;
            Outcome::judged(sound, Verdict::Warn, &port.name, what)
                .with("port", &port.name)
                .with("old", value)
        }
    };
    let unseen = unseen_ports(facts);
    if unseen.is_empty() { in_one_subnet(facts).into_iter().map(judge).collect() } else { unseen }
}

fn reverse_path(facts: &Facts) -> Vec<Outcome> {
    let judge = |port: &Port| match port.rp_filter.known() {
        Err(why) => Outcome::unknown(&port.name, format!("rp_filter of {}: {why}", port.name)),
        Ok(value) => {
            let what = format!("{} shares its subnet and has rp_filter {value}", port.name);
            let outcome = Outcome::judged(*value != 1, Verdict::Warn, &port.name, what);
            outcome.with("port", &port.name).with("old", value)
        }
    };
    let unseen = unseen_ports(facts);
    if unseen.is_empty() { in_one_subnet(facts).into_iter().map(judge).collect() } else { unseen }
}

fn overlap(facts: &Facts) -> Vec<Outcome> {
    let ports = storage(facts);
    if ports.len() < 2 {
        return unseen_ports(facts);
    }
    let mut users: BTreeMap<IpNet, Vec<(&str, &IpNet)>> = BTreeMap::new();
    for port in &ports {
        for network in &port.networks {
            users.entry(network.trunc()).or_default().push((&port.name, network));
        }
    }
    // Of two that overlap, one is a part of the other: each is looked for among the networks that hold it.
    let mut hits: BTreeMap<&str, (String, &IpNet)> = BTreeMap::new();
    for port in &ports {
        for network in &port.networks {
            let own = network.trunc();
            let wider = std::iter::successors(own.supernet(), IpNet::supernet);
            for (wider, users) in wider.filter_map(|wider| Some((wider, users.get(&wider)?))) {
                let Some((other, theirs)) = users.iter().find(|(other, _)| *other != port.name) else {
                    continue;
                };
                let what = format!("{own} of {} overlaps {wider} of {other}", port.name);
                hits.entry(&port.name).or_insert_with(|| (what.clone(), network));
                hits.entry(other).or_insert((what, theirs));
            }
        }
    }
    let judge = |port: &&Port| {
        let (hit, network) = hits.get(port.name.as_str()).cloned().unzip();
        let what = hit.clone().unwrap_or_else(|| format!("networks of {} overlap no other's", port.name));
        let network = network.map_or_else(|| "NETWORK".to_owned(), ToString::to_string);
        Outcome::judged(hit.is_none(), Verdict::Warn, &port.name, what)
            .with("port", &port.name)
            .with("network", network)
    };
    ports.iter().map(judge).collect()
}

/// Judges each connection by the port that has its local address and the kernel's route: its port and router.
pub(super) fn peers(
    facts: &Facts,
    mut judge: impl FnMut(&Peer, &str, (&str, Option<std::net::IpAddr>)) -> Option<Outcome>,
) -> Vec<Outcome> {
    let peers = match &facts.peers {
        None => return Vec::new(),
        Some(Seen::Unseen { unseen }) => return vec![Outcome::unknown("connections", unseen)],
        Some(Seen::Value(peers)) => peers,
    };
    let Some(Seen::Value(ports)) = &facts.ports else { return unseen_ports(facts) };
    let mut judged = |peer: &Peer| {
        let has = |port: &&Port| port.networks.iter().any(|network| network.addr() == peer.local);
        // A connection within this machine has no port.
        let port = ports.iter().find(has)?;
        if ports.iter().any(|port| port.networks.iter().any(|network| network.addr() == peer.remote)) {
            return None;
        }
        match peer.route.known() {
            Err(why) => Some(Outcome::unknown(&port.name, format!("the route to {}: {why}", peer.remote))),
            Ok(route) => judge(peer, &port.name, (&route.port, route.gateway)),
        }
    };
    let mut outcomes: Vec<Outcome> = peers.iter().filter_map(&mut judged).collect();
    outcomes.dedup();
    outcomes
}

fn route_source(facts: &Facts) -> Vec<Outcome> {
    let network = |peer: &Peer| {
        let networks = facts.ports.iter().filter_map(Seen::get).flatten().flat_map(|port| &port.networks);
        networks
            .filter(|network| network.addr() == peer.local)
            .map(|network| network.trunc().to_string())
            .next()
    };
    let tables: BTreeMap<String, u32> =
        storage(facts).iter().zip(TABLE..).map(|(port, table)| (port.name.clone(), table)).collect();
    peers(facts, |peer, port, route| {
        let what = match route.0 == port {
            true => format!("packets of {} leave by {port}", peer.local),
            false => format!("packets of {}, an address of {port}, leave by {}", peer.local, route.0),
        };
        let outcome = Outcome::judged(route.0 == port, Verdict::Warn, port, what)
            .with("port", port)
            .with("local", peer.local)
            .with("network", network(peer).unwrap_or_else(|| "NETWORK".to_owned()))
            .with("table", tables.get(port).unwrap_or(&TABLE));
        Some(outcome)
    })
}

fn ipv6(facts: &Facts) -> Vec<Outcome> {
    let Some(Seen::Value(peers)) = &facts.peers else { return Vec::new() };
    each(facts, |port| {
        let on_port = |peer: &&Peer| port.networks.iter().any(|network| network.addr() == peer.local);
        let of_port: Vec<&Peer> = peers.iter().filter(on_port).collect();
        if of_port.is_empty() || of_port.iter().any(|peer| peer.local.is_ipv6()) {
            return None;
        }
        let networks = || port.networks.iter().filter(|network| network.addr().is_ipv6());
        let six: Vec<String> = networks().map(|network| network.addr().to_string()).collect();
        let what = match six.is_empty() {
            true => format!("{} has no IPv6 address beside its link-local one", port.name),
            false => format!("{} carries iSCSI by IPv4 and has {} too", port.name, listed(six.clone())),
        };
        // The kernel forgets addresses that are not its own when it switches the version off.
        let outcome = Outcome::judged(six.is_empty(), Verdict::Warn, &port.name, what);
        Some(outcome.with_words("addresses", networks().map(ToString::to_string)))
    })
}

/// Returns `true` if rules about the kernel's TCP apply.
fn has_storage_ports(facts: &Facts) -> bool {
    !storage(facts).is_empty()
}

/// A kernel setting as a rule finds it; `None`: it was not looked for.
fn sysctl<'a>(facts: &'a Facts, name: &str) -> Option<Result<&'a str, Outcome>> {
    let seen = facts.sysctls.get(name)?;
    let unknown = |why: &str| Outcome::unknown(name, format!("{name}: {why}"));
    Some(seen.known().map(String::as_str).map_err(unknown))
}

fn switched_on(facts: &Facts, name: &'static str) -> Vec<Outcome> {
    if !has_storage_ports(facts) {
        return Vec::new();
    }
    let judge = |value: Result<&str, Outcome>| match value {
        Err(unknown) => unknown,
        Ok(value) => {
            let outcome = Outcome::judged(value != "0", Verdict::Warn, name, format!("{name} is {value}"));
            outcome.with("old", value)
        }
    };
    sysctl(facts, name).map(judge).into_iter().collect()
}

fn window(facts: &Facts) -> Vec<Outcome> {
    if !has_storage_ports(facts) {
        return Vec::new();
    }
    let fastest =
        storage(facts).iter().filter(|port| port.kind != "veth").filter_map(|port| port.speed.get()).max();
    // The network's own, without what a busy end adds; a millisecond where it is shorter, for what switches queue.
    let measured = facts.peers.iter().filter_map(Seen::get).flatten().filter_map(|peer| peer.flow.get());
    let round_trip_s = measured.map(|flow| flow.round_trip_us as f64 / 1e6).fold(ROUND_TRIP_S, f64::max);
    let round_trip_s = round_trip_s.min(ROUND_TRIP_MAX_S);
    let under_way = fastest.map_or(0.0, |speed| f64::from(*speed) * 1e6 / 8.0 * round_trip_s) as u64;
    let least = under_way.max(WINDOW_MIN);
    let judge = |name: &'static str| {
        let value = match sysctl(facts, name)? {
            Err(unknown) => return Some(unknown),
            Ok(value) => value,
        };
        let Some(most) = value.split_whitespace().nth(2).and_then(|most| most.parse::<u64>().ok()) else {
            return Some(Outcome::unknown(name, format!("{name} is {value:?}, not three numbers")));
        };
        let what = format!("{name} allows {} KiB, {} KiB are needed", most >> 10, least.div_ceil(1024));
        let outcome = Outcome::judged(most >= least, Verdict::Warn, name, what);
        Some(
            outcome.with("name", name).with("old", value).with("new", least.next_power_of_two().max(4 << 20)),
        )
    };
    ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"].into_iter().filter_map(judge).collect()
}

/// Judges each connection by the share of its time in which its sender waited for a window or a buffer.
fn limited(facts: &Facts) -> Vec<Outcome> {
    let Some(Seen::Value(peers)) = &facts.peers else { return Vec::new() };
    let most = |name: &str| facts.sysctls.get(name).and_then(|seen| seen.get()).map_or("", String::as_str);
    let judge = |peer: &Peer| {
        let ends = format!("{} to {}", peer.local, peer.remote);
        let flow = match peer.flow.known() {
            Ok(flow) => flow,
            Err(why) => return Some(Outcome::unknown(&ends, format!("what limits {ends}: {why}"))),
        };
        if flow.busy_ms < BUSY_MIN_MS {
            return None;
        }
        let share = |waited: u64| 100.0 * waited as f64 / flow.busy_ms as f64;
        let (window, buffer) = (share(flow.window_ms), share(flow.buffer_ms));
        let what = format!(
            "{ends}: of the time with something to send {window:.0} % waited for the other end's window, {buffer:.0} % for the send buffer"
        );
        let outcome = Outcome::judged(window + buffer <= LIMITED_MAX, Verdict::Warn, &ends, what);
        // The other end's window is its receive buffer, the send buffer this end's.
        let outcome = match window > buffer {
            true => outcome.with("place", peer.remote).with("name", "net.ipv4.tcp_rmem").with("old", "OLD"),
            false => {
                let name = "net.ipv4.tcp_wmem";
                outcome.with("place", peer.local).with("name", name).with("old", most(name))
            }
        };
        Some(outcome.with("new", LIMITED_NEW))
    };
    peers.iter().filter_map(judge).collect()
}
