//! Steps that build a network, to be carried out or printed.

use std::fmt;

use crate::rate::Rate;
use crate::tool::Tool;
use crate::topology::{Cable, End, Topology};

/// Namespace in which a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NamespaceId {
    /// The namespace of switches and of the middle of cables.
    Fabric,
    /// The namespace of a host, by its number.
    Host(usize),
}

/// Step in building a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A namespace is made.
    Namespace(NamespaceId),
    /// A setting of a namespace. One that this kernel does not have has nothing to be set to.
    Setting { namespace: NamespaceId, name: &'static str, value: &'static str },
    /// A line for a program.
    Line { namespace: NamespaceId, tool: Tool, line: String },
    /// An end of a line is made, by this program itself: a card, or the port of a switch.
    Tap { namespace: NamespaceId, device: String, cable: usize, end: usize },
    /// A card is made on a host, and its other end in the fabric.
    Card { host: usize, card: String, port: String, mtu: u32, mac: String },
}

/// The settings of every namespace.
///
/// Version 6 of IP would send announcements of its own. What one experiment learnt about a path must not help the next.
/// With several cards in one subnet a card must answer for its own address only, and take what comes to it.
pub(crate) const SETTINGS: [(&str, &str); 9] = [
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv4/conf/all/arp_ignore", "1"),
    ("net/ipv4/conf/all/arp_announce", "2"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    // Frames between ports are not packets for a firewall.
    ("net/bridge/bridge-nf-call-iptables", "0"),
    ("net/bridge/bridge-nf-call-arptables", "0"),
];

/// Settings of a switch: forwards at once, no spanning tree, floods multicast, and forgets a card after 5 minutes.
const SWITCH: &str = "stp_state 0 forward_delay 0 mcast_snooping 0 ageing_time 30000";
/// Settings of the middle of a cable: a switch that learns nothing, since whatever enters at one end leaves at the
/// other.
const MIDDLE: &str = "stp_state 0 forward_delay 0 mcast_snooping 0 ageing_time 0";

/// Frames that a line's end holds between the shaper and the line, which may be late on a busy machine: at a gigabit
/// and an MTU of 1500 this is 50 ms.
const LINE_QUEUE: u32 = 4096;

/// The end of a cable in the fabric.
pub(crate) fn port(cable: &Cable, end: usize) -> String {
    format!("{}.{}", cable.name, ["a", "b"][end])
}

/// The bridge that the first end of a cable in the fabric is a port of: a switch, or the middle of the cable.
pub(crate) fn bridge(cable: &Cable) -> &str {
    match &cable.ends {
        [End::Card { .. }, End::Card { .. }] => &cable.name,
        [End::Switch(switch), _] | [_, End::Switch(switch)] => switch,
    }
}

/// The shaper of one direction of a cable, as `tc qdisc add|change` takes it.
///
/// A packet is sent when there are tokens for all its bytes on the wire. The `overhead` makes that count right: the
/// kernel sees a frame's header, but neither its checksum nor the preamble and the gap. It counts right only where the
/// kernel sees frames, not bundles of them: cards have `gso_max_segs 1`, because TCP makes bundles also where
/// segmentation offload is off.
pub(crate) fn shaper(cable: &Cable, rate: Rate) -> String {
    format!(
        "root tbf rate {}bit burst {} limit {} overhead {}",
        rate.bits_per_second(),
        cable.burst_bytes(rate),
        cable.queue_bytes(rate),
        Cable::OVERHEAD
    )
}

/// The devices that shape a cable, and where they are: the card at each end, or the port of the switch. Direction `n`
/// is what leaves end `n`.
pub(crate) fn shaped(topology: &Topology, cable: &Cable) -> [(NamespaceId, String); 2] {
    [0, 1].map(|end| match &cable.ends[end] {
        End::Card { host, card } => (host_namespace(topology, host), card.clone()),
        // What leaves a switch towards a card goes out by the port whose other side is the card.
        End::Switch(_) if !cable.is_line() && !is_trunk(cable) => (NamespaceId::Fabric, port(cable, 1 - end)),
        End::Switch(_) => (NamespaceId::Fabric, port(cable, end)),
    })
}

/// The address of a card: locally administered, and the same in every run.
fn mac(cable: usize, end: usize) -> String {
    format!("02:00:4c:00:{cable:02x}:{end:02x}")
}

fn is_trunk(cable: &Cable) -> bool {
    cable.ends.iter().all(|end| matches!(end, End::Switch(_)))
}

fn host_namespace(topology: &Topology, name: &str) -> NamespaceId {
    NamespaceId::Host(topology.hosts.iter().position(|host| host.name == name).unwrap_or_default())
}

/// All steps. The topology has been checked.
pub(crate) fn steps(topology: &Topology) -> Vec<Step> {
    let namespaces: Vec<NamespaceId> =
        [NamespaceId::Fabric].into_iter().chain((0..topology.hosts.len()).map(NamespaceId::Host)).collect();
    let mut steps = Vec::new();
    for &namespace in &namespaces {
        steps.push(Step::Namespace(namespace));
        steps.extend(SETTINGS.map(|(name, value)| Step::Setting { namespace, name, value }));
    }
    let mut ip = Lines::default();
    let mut tc = Lines::default();
    for &namespace in &namespaces {
        ip.add(namespace, "link set lo up".into());
    }
    for switch in &topology.switches {
        ip.add(NamespaceId::Fabric, format!("link add {} type bridge {SWITCH}", switch.name));
        ip.add(NamespaceId::Fabric, format!("link set {} up", switch.name));
    }
    for (number, cable) in topology.cables.iter().enumerate() {
        match &cable.ends {
            ends if cable.is_line() => {
                let mtu = cable.mtu;
                for (end, at) in ends.iter().enumerate() {
                    let (namespace, device) = match at {
                        End::Card { host, card } => (host_namespace(topology, host), card.clone()),
                        End::Switch(_) => (NamespaceId::Fabric, port(cable, end)),
                    };
                    let mac = mac(number, end);
                    ip.add(
                        namespace,
                        format!("link set {device} address {mac} mtu {mtu} txqueuelen {LINE_QUEUE}"),
                    );
                    if let End::Switch(switch) = at {
                        ip.add(namespace, format!("link set {device} master {switch} gso_max_segs 1 up"));
                    }
                    steps.push(Step::Tap { namespace, device, cable: number, end });
                }
            }
            [End::Switch(a), End::Switch(b)] => {
                let [pa, pb] = [port(cable, 0), port(cable, 1)];
                let mtu = cable.mtu;
                ip.add(
                    NamespaceId::Fabric,
                    format!("link add {pa} mtu {mtu} type veth peer name {pb} mtu {mtu}"),
                );
                for (port, switch) in [(pa, a), (pb, b)] {
                    ip.add(NamespaceId::Fabric, format!("link set {port} master {switch} up"));
                }
            }
            ends => {
                let direct = ends.iter().all(|end| matches!(end, End::Card { .. }));
                if direct {
                    let name = &cable.name;
                    ip.add(NamespaceId::Fabric, format!("link add {name} type bridge {MIDDLE}"));
                    ip.add(NamespaceId::Fabric, format!("link set {name} up"));
                }
                for (end, at) in ends.iter().enumerate() {
                    let End::Card { host, card } = at else { continue };
                    let NamespaceId::Host(host) = host_namespace(topology, host) else { continue };
                    let port = port(cable, end);
                    let master = bridge(cable);
                    let mac = mac(number, end);
                    steps.push(Step::Card {
                        host,
                        card: card.clone(),
                        port: port.clone(),
                        mtu: cable.mtu,
                        mac,
                    });
                    ip.add(NamespaceId::Fabric, format!("link set {port} master {master} gso_max_segs 1 up"));
                }
            }
        }
        if let Some(rate) = cable.rate {
            for (namespace, device) in shaped(topology, cable) {
                tc.add(namespace, format!("qdisc add dev {device} {}", shaper(cable, rate)));
            }
        }
    }
    for (number, (end, address)) in topology.addresses().into_iter().enumerate() {
        let End::Card { host, card } = &end else { continue };
        let host = host_namespace(topology, host);
        let table = 100 + number;
        let net = format!("10.77.{}.0/24", address.octets()[2]);
        ip.add(host, format!("link set {card} gso_max_segs 1 up"));
        ip.add(host, format!("addr add {address}/24 dev {card}"));
        // What has a card's address leaves by that card, also where another is in the same subnet.
        ip.add(host, format!("route add {net} dev {card} src {address} table {table}"));
        ip.add(host, format!("rule add from {address} table {table}"));
    }
    // Bridges first: ports have to be put into them. Cards are made before anything is said of them.
    let cards = std::mem::take(&mut steps);
    let (mut steps, cards): (Vec<Step>, Vec<Step>) =
        cards.into_iter().partition(|step| !matches!(step, Step::Card { .. } | Step::Tap { .. }));
    steps.extend(cards);
    steps.extend(ip.steps(Tool::Ip));
    steps.extend(tc.steps(Tool::Tc));
    steps
}

/// Lines for one program, to be done namespace by namespace.
#[derive(Default)]
struct Lines(Vec<(NamespaceId, String)>);

impl Lines {
    fn add(&mut self, namespace: NamespaceId, line: String) {
        self.0.push((namespace, line));
    }

    fn steps(mut self, tool: Tool) -> impl Iterator<Item = Step> {
        // Stable: the order within a namespace stays.
        self.0.sort_by_key(|(namespace, _)| *namespace);
        self.0.into_iter().map(move |(namespace, line)| Step::Line { namespace, tool, line })
    }
}

/// The steps as a script that does the same with named namespaces.
pub(crate) struct Script<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) steps: &'a [Step],
}

impl fmt::Display for Script<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |namespace: NamespaceId| match namespace {
            NamespaceId::Fabric => "fabric-of-lab",
            NamespaceId::Host(host) => self.topology.hosts[host].name.as_str(),
        };
        writeln!(f, "#!/bin/sh")?;
        writeln!(f, "# Builds the network. Needs no root if users may create namespaces:")?;
        writeln!(
            f,
            "#   unshare --map-root-user --net --mount sh -c 'mount -t tmpfs none /run && . ./this-script'"
        )?;
        writeln!(f, "set -e")?;
        for step in self.steps {
            match step {
                Step::Namespace(namespace) => writeln!(f, "ip netns add {}", name(*namespace))?,
                Step::Setting { namespace, name: setting, value } => {
                    let path = format!("/proc/sys/{setting}");
                    let namespace = name(*namespace);
                    writeln!(f, "ip netns exec {namespace} sh -c '[ ! -e {path} ] || echo {value} >{path}'")?;
                }
                Step::Line { namespace, tool, line } => writeln!(f, "{tool} -n {} {line}", name(*namespace))?,
                Step::Tap { namespace, device, cable, .. } => {
                    writeln!(
                        f,
                        "# Beyond it only a program can be the line {}.",
                        self.topology.cables[*cable].name
                    )?;
                    writeln!(f, "ip -n {} tuntap add dev {device} mode tap", name(*namespace))?;
                }
                Step::Card { host, .. } => {
                    let line = step.card_line("fabric-of-lab").unwrap_or_default();
                    writeln!(f, "ip -n {} {line}", name(NamespaceId::Host(*host)))?;
                }
            }
        }
        Ok(())
    }
}

impl Step {
    /// The line that makes a card, with the fabric under the name that the reader knows it by.
    pub(crate) fn card_line(&self, fabric: &str) -> Option<String> {
        let Self::Card { card, port, mtu, mac, .. } = self else { return None };
        Some(format!(
            "link add {card} address {mac} mtu {mtu} type veth peer name {port} mtu {mtu} netns {fabric}"
        ))
    }
}
