//! Ports, connections and kernel settings of the network.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use lunway_machine::{KernelRoute, Link};
use serde_json::Value;

use super::ethtool::{Card, Ethtool};
use super::flows;
use super::interrupts;
use super::source::Machine;
use crate::facts::{Counters, Neighbour, Peer, Port, Role, Route};
use crate::seen::Seen;

/// The port of iSCSI (IANA, RFC 7143 §13.9).
const ISCSI_PORT: u16 = 3260;
/// State of an established connection and of a listening socket in `/proc/net/tcp` (linux/tcp_states.h).
const ESTABLISHED: &str = "01";
const LISTENING: &str = "0A";
/// Peers that are looked at: a target with more initiators than this has a view of its own, `--socket`.
const PEERS_MAX: usize = 256;

/// Kernel settings that rules judge.
const SYSCTLS: [&str; 4] =
    ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_window_scaling", "net.ipv4.tcp_sack"];

pub(super) fn sysctls(machine: &Machine) -> BTreeMap<String, Seen<String>> {
    let value = |name: &&str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let value = machine.line(&path).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        ((*name).to_owned(), Seen::from(value))
    };
    SYSCTLS.iter().map(value).collect()
}

/// Ports, and the other ends of iSCSI connections.
pub(super) fn ports(machine: &Machine, named: &[String]) -> (Seen<Vec<Port>>, Seen<Vec<Peer>>) {
    let connections = connections(machine);
    let mut ports = match links(machine) {
        Ok(ports) => ports,
        Err(why) => return (Seen::unseen(&why), Seen::unseen(why)),
    };
    let carrying: BTreeSet<IpAddr> = match &connections {
        Ok(connections) => connections.iter().map(|connection| connection.local).collect(),
        Err(_) => BTreeSet::new(),
    };
    let ethtool = if machine.is_live() {
        Ethtool::open()
    } else {
        Err("a copied tree of files has no kernel to ask".to_owned())
    };
    for port in &mut ports {
        let carries = port.networks.iter().any(|network| carrying.contains(&network.addr()));
        port.storage = carries || named.contains(&port.name);
        let card = match &ethtool {
            Ok(ethtool) => ethtool.card(&port.name),
            Err(why) => unseen_card(machine, &port.name, why),
        };
        port.speed = card.speed;
        port.full_duplex = card.full_duplex;
        port.rx_pause = card.rx_pause;
        port.eee = card.eee;
        port.negotiated = card.negotiated;
        port.coalescing = card.coalescing;
        port.rx_ring = card.rx_ring;
        port.tx_ring = card.tx_ring;
        port.offloads_off = card.offloads_off;
        let setting = |name: &str| -> Seen<u32> {
            let of = |port: &str| machine.number::<u32>(&format!("/proc/sys/net/ipv4/conf/{port}/{name}"));
            match (of("all"), of(&port.name)) {
                (Ok(all), Ok(own)) => Seen::Value(all.max(own)),
                (Err(why), _) | (_, Err(why)) => Seen::unseen(why),
            }
        };
        (port.arp_ignore, port.arp_announce, port.rp_filter) =
            (setting("arp_ignore"), setting("arp_announce"), setting("rp_filter"));
    }
    let peers = connections.map(|connections| peers(machine, &connections));
    (Seen::Value(ports), peers.into())
}

/// Returns what the files of a copied tree tell about a card.
fn unseen_card(machine: &Machine, name: &str, why: &str) -> Card {
    let file = |what: &str| format!("/sys/class/net/{name}/{what}");
    let speed = machine.number::<i64>(&file("speed")).ok().and_then(|speed| u32::try_from(speed).ok());
    let duplex = machine.line(&file("duplex")).ok().filter(|duplex| duplex == "full" || duplex == "half");
    let unseen = || why.to_owned();
    Card {
        speed: speed.filter(|speed| *speed > 0).ok_or_else(unseen).into(),
        full_duplex: duplex.map(|duplex| duplex == "full").ok_or_else(unseen).into(),
        rx_pause: Seen::unseen(why),
        eee: Seen::unseen(why),
        negotiated: Seen::unseen(why),
        coalescing: Seen::unseen(why),
        rx_ring: Seen::unseen(why),
        tx_ring: Seen::unseen(why),
        offloads_off: Seen::unseen(why),
    }
}

/// Links with their addresses, as `ip` prints them: it is in every distribution, and asks the namespace of the thread.
fn links(machine: &Machine) -> Result<Vec<Port>, String> {
    let parse = |text: String| -> Result<Vec<Value>, String> {
        serde_json::from_str(&text).map_err(|_| {
            "ip printed no whole JSON: its time was over, or it is older than iproute2 4.14".to_owned()
        })
    };
    let links = parse(machine.printed("ip", &["-json", "-details", "-statistics", "link", "show"])?)?;
    let addresses = parse(machine.printed("ip", &["-json", "address", "show"])?)?;
    let mut ports: Vec<Port> = links.iter().filter_map(link).collect();
    let shown = LazyCell::new(|| interrupts::table(machine));
    for port in &mut ports {
        port.physical =
            machine.exists(&format!("/sys/class/net/{}/device", port.name)) && port.kind.is_empty();
        if port.physical {
            port.socket = socket(machine, &port.name).unwrap_or_default();
            port.interrupts = interrupts::of_card(machine, &shown, &port.name).into();
        }
        let of_port = addresses.iter().filter(|address| address["ifname"] == port.name.as_str());
        let all = of_port.flat_map(|address| address["addr_info"].as_array().into_iter().flatten());
        port.networks = all.filter_map(network).collect();
    }
    Ok(ports)
}

/// PCI function of the card with the cable of a port, and the port's number on it; `None`: it is not a PCI card.
fn socket(machine: &Machine, name: &str) -> Option<String> {
    let device = format!("/sys/class/net/{name}/device");
    let slot = |folder: &str| {
        let text = machine.text(&format!("{folder}/uevent")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=").map(str::to_owned))
    };
    // A virtual function is a part of a physical one.
    let slot = slot(&format!("{device}/physfn")).or_else(|| slot(&device))?;
    let number = machine.line(&format!("/sys/class/net/{name}/dev_port")).unwrap_or_default();
    Some(format!("{slot} port {}", if number.is_empty() { "0" } else { number.as_str() }))
}

/// Ports by which packets to elsewhere leave: those of the machine's administration.
pub(super) fn default_ports(machine: &Machine) -> Seen<Vec<String>> {
    let mut ports = BTreeSet::new();
    // A kernel without IPv6 has no routes of it.
    let six = machine.exists("/proc/sys/net/ipv6").then_some("-6");
    for version in ["-4"].into_iter().chain(six) {
        let routes =
            machine.printed("ip", &["-json", version, "route", "show", "default"]).and_then(|text| {
                // Without a route older versions print nothing.
                let text = if text.trim().is_empty() { "[]" } else { text.as_str() };
                serde_json::from_str::<Vec<Value>>(text)
                    .map_err(|_| "ip printed no JSON for routes".to_owned())
            });
        match routes {
            Ok(routes) => {
                ports.extend(routes.iter().filter_map(|route| route["dev"].as_str().map(str::to_owned)));
            }
            Err(why) => return Seen::unseen(why),
        }
    }
    Seen::Value(ports.into_iter().collect())
}

fn link(link: &Value) -> Option<Port> {
    let text = |key: &str| link[key].as_str().map(str::to_owned);
    let has = |flag: &str| link["flags"].as_array().is_some_and(|flags| flags.iter().any(|has| has == flag));
    if has("LOOPBACK") {
        return None;
    }
    let kind = link["linkinfo"]["info_kind"].as_str().unwrap_or_default().to_owned();
    let counter = |way: &str, key: &str| link["stats64"][way][key].as_u64();
    let counters = || {
        Some(Counters {
            rx_packets: counter("rx", "packets")?,
            rx_errors: counter("rx", "errors")?,
            rx_missed: counter("rx", "missed_errors").or_else(|| counter("rx", "over_errors")).unwrap_or(0),
            tx_errors: counter("tx", "errors")?,
        })
    };
    Some(Port {
        name: text("ifname")?,
        member_of: text("master"),
        // The other end of a pair is given in the same place, and is no card of this machine.
        below: text("link").filter(|_| kind != "veth"),
        kind,
        carrier: has("LOWER_UP") && has("UP"),
        mtu: link["mtu"].as_u64().and_then(|mtu| u32::try_from(mtu).ok())?,
        counters: counters().ok_or_else(|| "ip printed no counters".to_owned()).into(),
        ..Port::default()
    })
}

fn network(address: &Value) -> Option<IpNet> {
    if address["scope"] == "link" || address["scope"] == "host" {
        return None;
    }
    let ip: IpAddr = address["local"].as_str()?.parse().ok()?;
    let length = u8::try_from(address["prefixlen"].as_u64()?).ok()?;
    IpNet::new(ip, length).ok()
}

/// An iSCSI connection, or a portal that is listened on: then it has no other end.
struct Connection {
    local: IpAddr,
    remote: Option<IpAddr>,
    role: Role,
}

/// Established connections of iSCSI's port, and portals on addresses of their own.
fn connections(machine: &Machine) -> Result<Vec<Connection>, String> {
    // The files of the thread's namespace; `net` itself is of the process's first thread.
    let folder = if machine.is_live() { "/proc/thread-self/net" } else { "/proc/net" };
    let four = machine.text(&format!("{folder}/tcp"))?;
    let six = machine.text(&format!("{folder}/tcp6")).unwrap_or_default();
    Ok(four.lines().chain(six.lines()).filter_map(connection).collect())
}

fn connection(line: &str) -> Option<Connection> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let ((local, local_port), (remote, remote_port)) = (end(local)?, end(remote)?);
    if local.is_loopback() {
        return None;
    }
    match state {
        LISTENING if local_port == ISCSI_PORT && !local.is_unspecified() => {
            Some(Connection { local, remote: None, role: Role::Target })
        }
        ESTABLISHED if remote_port == ISCSI_PORT => {
            Some(Connection { local, remote: Some(remote), role: Role::Initiator })
        }
        ESTABLISHED if local_port == ISCSI_PORT => {
            Some(Connection { local, remote: Some(remote), role: Role::Target })
        }
        _ => None,
    }
}

/// `0100007F:0CBC`: words of four bytes in the machine's byte order, and the port.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if !address.is_ascii() {
        return None;
    }
    let word = |n: usize| u32::from_str_radix(address.get(8 * n..8 * n + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let bytes: Vec<u8> = (0..4).map(word).collect::<Option<Vec<_>>>()?.concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some((ip, port))
}

fn peers(machine: &Machine, connections: &[Connection]) -> Vec<Peer> {
    let ends: BTreeSet<_> = connections
        .iter()
        .filter_map(|connection| {
            Some((connection.local, connection.remote?, connection.role == Role::Target))
        })
        .collect();
    let links = if machine.is_live() { Link::all().unwrap_or_default() } else { Vec::new() };
    let flows = match ends.is_empty() {
        true => Ok(BTreeMap::new()),
        false => flows::flows(machine, ISCSI_PORT),
    };
    let flow = |ends: &(IpAddr, IpAddr, bool)| match &flows {
        Ok(flows) => flows.get(ends).copied().ok_or_else(|| "ss does not show its connections".to_owned()),
        Err(why) => Err(why.clone()),
    };
    let table = match ends.is_empty() {
        true => Ok(Vec::new()),
        false => neighbours(machine),
    };
    let peer = |(local, remote, target): (IpAddr, IpAddr, bool)| {
        let route = match machine.is_live() {
            true => route(&links, local, remote),
            false => Err("a copied tree of files has no kernel to ask".to_owned()),
        };
        let entry = route.clone().and_then(|route| {
            let table = table.as_ref().map_err(Clone::clone)?;
            let hop = route.gateway.unwrap_or(remote);
            let entry = table.iter().find_map(|entry| neighbour(entry, &route.port, hop));
            entry.ok_or_else(|| "the kernel has no entry for it now".to_owned())
        });
        Peer {
            local,
            remote,
            role: if target { Role::Target } else { Role::Initiator },
            route: route.into(),
            flow: flow(&(local, remote, target)).into(),
            neighbour: entry.into(),
        }
    };
    if ends.len() > PEERS_MAX {
        machine.note(format!("of {} ends of iSCSI connections only {PEERS_MAX} were looked at", ends.len()));
    }
    ends.into_iter().take(PEERS_MAX).map(peer).collect()
}

/// The kernel's table of neighbours.
fn neighbours(machine: &Machine) -> Result<Vec<Value>, String> {
    let text = machine.printed("ip", &["-json", "neighbour", "show"])?;
    // Without neighbours older versions print nothing.
    let text = if text.trim().is_empty() { "[]" } else { text.as_str() };
    serde_json::from_str(text).map_err(|_| "ip printed no JSON for neighbours".to_owned())
}

/// An entry of the table, if it is that of an address at a port.
fn neighbour(entry: &Value, port: &str, address: IpAddr) -> Option<Neighbour> {
    let is_it = entry["dev"] == port && entry["dst"].as_str()?.parse::<IpAddr>().ok()? == address;
    if !is_it {
        return None;
    }
    let mac = entry["lladdr"].as_str().unwrap_or_default().to_owned();
    // FAILED and INCOMPLETE have no hardware address, all others have one (linux/neighbour.h).
    Some(Neighbour { failed: mac.is_empty(), owners: vec![mac.clone()], known_for_s: 0, mac })
}

fn route(links: &[Link], local: IpAddr, remote: IpAddr) -> Result<Route, String> {
    let route =
        KernelRoute::lookup(Some(local), remote).map_err(|error| format!("the kernel has none: {error}"))?;
    let link = links.iter().find(|link| Some(link.index) == route.index);
    let port = link.map(|link| link.name.clone()).ok_or("the kernel does not tell its port")?;
    Ok(Route { port, gateway: route.gateway })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_connections_are_read_in_the_machines_byte_order() {
        // 127.0.0.1:3260 and ::1:3260, as a little-endian kernel prints them.
        if cfg!(target_endian = "little") {
            assert_eq!(end("0100007F:0CBC"), Some((Ipv4Addr::LOCALHOST.into(), 3260)));
            assert_eq!(
                end("00000000000000000000000001000000:0CBC"),
                Some((Ipv6Addr::LOCALHOST.into(), 3260))
            );
        }
        for text in ["", ":", "0100007F", "0100007F:", "XX00007F:0CBC", "0100007:0CBC", "ÄÄÄÄ:0CBC"] {
            assert_eq!(end(text), None, "{text}");
        }
    }

    #[test]
    fn virtual_functions_of_a_card_have_its_cable_and_functions_of_their_own_do_not() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let put = |path: &str, text: &str| super::super::put(folder.path(), path, text);
        for (port, function) in [("a", 1), ("b", 2)] {
            put(
                &format!("sys/class/net/{port}/device/uevent"),
                &format!("PCI_SLOT_NAME=0000:01:10.{function}\n"),
            );
            put(
                &format!("sys/class/net/{port}/device/physfn/uevent"),
                "DRIVER=ixgbe\nPCI_SLOT_NAME=0000:01:00.0\n",
            );
            put(&format!("sys/class/net/{port}/dev_port"), "0\n");
        }
        put("sys/class/net/c/device/uevent", "PCI_SLOT_NAME=0000:01:00.1\n");
        put("sys/class/net/d/device/uevent", "DRIVER=virtio_net\n");
        let machine = Machine::copy(folder.path());
        let sockets = ["a", "b", "c", "d"].map(|name| socket(&machine, name));
        assert_eq!(sockets[0].as_deref(), Some("0000:01:00.0 port 0"));
        assert_eq!(sockets[1], sockets[0]);
        assert_eq!(sockets[2].as_deref(), Some("0000:01:00.1 port 0"));
        assert_eq!(sockets[3], None);
    }

    #[test]
    fn what_ip_prints_becomes_ports_and_what_makes_no_sense_is_left_out() {
        let printed = serde_json::json!([
            { "ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536 },
            { "ifname": "eth1.7", "link": "eth1", "flags": ["UP", "LOWER_UP"], "mtu": 9000,
              "linkinfo": { "info_kind": "vlan" },
              "stats64": { "rx": { "packets": 5, "errors": 1, "missed_errors": 2 }, "tx": { "errors": 0 } } },
            { "ifname": 7, "mtu": 1 }, { "ifname": "x", "mtu": -1 }, "x", null
        ]);
        let ports: Vec<Port> = printed.as_array().into_iter().flatten().filter_map(link).collect();
        assert_eq!(ports.len(), 1, "{ports:?}");
        let port = &ports[0];
        assert!(port.carrier && port.mtu == 9000 && port.below.as_deref() == Some("eth1"));
        assert_eq!(
            port.counters.get().map(|counters| (counters.rx_packets, counters.rx_missed)),
            Some((5, 2))
        );
    }
}
