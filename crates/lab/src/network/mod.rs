//! A network that runs.

mod cable;
mod calibrate;
mod host;
mod plan;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use crate::error::LabError;
use crate::line::{Line, Tap};
use crate::namespace::Namespace;
use crate::sandbox::Sandbox;
use crate::tool::Tool;
use crate::topology::{Cable, Topology};

pub use cable::LiveCable;
pub use calibrate::{Calibrating, Calibration, Shortfall};
pub use host::LiveHost;

use plan::{NamespaceId, Step};

/// Sizes of TCP's buffers, bytes: the smallest, the first, the largest (tcp(7)).
const BUFFERS: [&str; 2] = ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"];
/// Bytes of a buffer for each that is under way on a cable: the kernel counts a frame as up to twice what it carries
/// (`tcp_adv_win_scale`, tcp(7)), and a path may have two cables.
const BUFFERED: f64 = 4.0;
/// TCP congestion control algorithms, best first. The first is what most systems use; inside a namespace the kernel
/// grants it only if it is the system's own. The second it grants to all. Never BBR, which paces itself and would be
/// measured instead of the network.
const CONGESTION_CONTROL: [&str; 2] = ["cubic", "reno"];

/// A network that was built: a namespace for every host, one for the fabric, and the cables between them.
///
/// ```text
///   host server                     fabric                      host storage
///   ┌─────────────┐   ┌───────────────────────────────┐   ┌──────────────┐
///   │ eth0 ─ tbf ─┼───┼─ lane1.a ═ bridge ═ lane1.b ──┼───┼─ tbf ─ eth0  │   a cable between two cards
///   │ eth1 ─ tbf ─┼───┼─ up.a ─ tbf ═ bridge `switch` │   │              │   a cable to a switch
///   └─────────────┘   └───────────────────────────────┘   └──────────────┘
/// ```
///
/// A cable with a delay or a loss is a line instead: its cards are TAP devices, and what is between them is a thread
/// for each direction.
///
/// A card is one end of a veth pair, its cable's middle is in the fabric. So a cable is pulled as in life: the card
/// stays as it is configured, and loses its carrier. What leaves a card is shaped at the card; what leaves a switch is
/// shaped at the port, where the traffic of several cards meets.
///
/// Clones are the same network. It is gone when the last clone is, and everything that was started in it has ended.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    topology: Topology,
    hosts: Vec<LiveHost>,
    cables: Vec<LiveCable>,
    congestion_control: &'static str,
}

impl Network {
    /// Builds it. Takes some milliseconds for each host and cable.
    ///
    /// # Errors
    ///
    /// The description is wrong, this process is not in a [`Sandbox`], a program is missing, or the kernel lacks
    /// something.
    pub fn build(topology: &Topology) -> Result<Self, LabError> {
        topology.check()?;
        if !Sandbox::is_entered() {
            return Err(LabError::Outside);
        }
        let steps = plan::steps(topology);
        let mut namespaces = LiveNamespaces::build(topology, &steps)?;
        let congestion_control = namespaces.congestion_control()?;
        namespaces.buffers(topology)?;
        let addresses = topology.addresses();
        let hosts = topology.hosts.iter().zip(&namespaces.hosts);
        let hosts = hosts.map(|(host, namespace)| LiveHost::new(&host.name, namespace, &addresses)).collect();
        let mut cables = Vec::with_capacity(topology.cables.len());
        for (number, cable) in topology.cables.iter().enumerate() {
            let shaped = plan::shaped(topology, cable).map(|(namespace, device)| cable::Shaped {
                namespace: namespaces.of(namespace).clone(),
                namespace_name: namespace_name(topology, namespace).to_owned(),
                device,
            });
            let line = namespaces.line(number, cable)?;
            cables.push(LiveCable::new(cable.clone(), namespaces.fabric.clone(), shaped, line));
        }
        Ok(Self(Arc::new(Inner { topology: topology.clone(), hosts, cables, congestion_control })))
    }

    /// Returns a shell script that does the same as [`build`](Self::build).
    ///
    /// # Errors
    ///
    /// The description is wrong.
    pub fn script(topology: &Topology) -> Result<String, LabError> {
        topology.check()?;
        Ok(plan::Script { topology, steps: &plan::steps(topology) }.to_string())
    }

    /// The description that the network was built from.
    pub fn topology(&self) -> &Topology {
        &self.0.topology
    }

    /// The host of that name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn host(&self, name: &str) -> Result<&LiveHost, LabError> {
        let host = self.0.hosts.iter().find(|host| host.name() == name);
        host.ok_or_else(|| LabError::Unknown { what: "host", name: name.to_owned() })
    }

    /// The cable of that name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn cable(&self, name: &str) -> Result<&LiveCable, LabError> {
        let cable = self.0.cables.iter().find(|cable| cable.name() == name);
        cable.ok_or_else(|| LabError::Unknown { what: "cable", name: name.to_owned() })
    }

    /// All cables, in the order of the description.
    pub fn cables(&self) -> &[LiveCable] {
        &self.0.cables
    }

    /// All hosts, in the order of the description.
    pub fn hosts(&self) -> &[LiveHost] {
        &self.0.hosts
    }

    /// The congestion control of TCP on every host: `cubic`, or `reno` where this machine keeps cubic from namespaces.
    pub fn congestion_control(&self) -> &'static str {
        self.0.congestion_control
    }
}

fn namespace_name(topology: &Topology, namespace: NamespaceId) -> &str {
    match namespace {
        NamespaceId::Fabric => "the fabric",
        NamespaceId::Host(host) => &topology.hosts[host].name,
    }
}

/// The namespaces of a network.
struct LiveNamespaces {
    fabric: Namespace,
    hosts: Vec<Namespace>,
    /// The ends of lines, by cable and end.
    taps: BTreeMap<(usize, usize), Tap>,
}

impl LiveNamespaces {
    /// Makes them and takes all steps.
    fn build(topology: &Topology, steps: &[Step]) -> Result<Self, LabError> {
        let namespace = || {
            Namespace::new()
                .map_err(|source| LabError::Kernel { doing: "make a network namespace".into(), source })
        };
        let hosts = topology.hosts.iter().map(|_| namespace()).collect::<Result<_, _>>()?;
        let mut namespaces = Self { fabric: namespace()?, hosts, taps: BTreeMap::new() };
        let mut rest = steps;
        while let Some(step) = rest.first() {
            let mut taken = 1;
            match step {
                Step::Namespace(_) => {}
                Step::Setting { namespace, name, value } => set(namespaces.of(*namespace), name, value)?,
                Step::Tap { namespace, device, cable, end } => {
                    let made = namespaces.of(*namespace).run(|| Tap::new(device)).flatten();
                    let made = made.map_err(|source| LabError::Kernel {
                        doing: format!(
                            "make {device}, an end of cable {} with delay or loss, by /dev/net/tun",
                            topology.cables[*cable].name
                        ),
                        source,
                    })?;
                    namespaces.taps.insert((*cable, *end), made);
                }
                Step::Card { host, .. } => {
                    let line = step.card_line("/proc/self/fd/0").unwrap_or_default();
                    let fabric = namespaces.fabric.descriptor();
                    let fabric = fabric
                        .map_err(|source| LabError::Kernel { doing: "keep a namespace".into(), source })?;
                    let name = &topology.hosts[*host].name;
                    Tool::Ip.across(&namespaces.hosts[*host], name, &line, fabric)?;
                }
                Step::Line { namespace, tool, .. } => {
                    let same = |step: &Step| match step {
                        Step::Line { namespace: p, tool: t, line } if p == namespace && t == tool => {
                            Some(line.clone())
                        }
                        _ => None,
                    };
                    let lines: Vec<String> = rest.iter().map_while(same).collect();
                    taken = lines.len();
                    tool.batch(namespaces.of(*namespace), namespace_name(topology, *namespace), &lines)?;
                }
            }
            rest = &rest[taken..];
        }
        Ok(namespaces)
    }

    /// The line of a cable, where it is one. Its number is its seed.
    fn line(&mut self, number: usize, cable: &Cable) -> Result<Option<Line>, LabError> {
        let (Some(a), Some(b)) = (self.taps.remove(&(number, 0)), self.taps.remove(&(number, 1))) else {
            return Ok(None);
        };
        let (delay, loss) = (cable.delay.unwrap_or_default(), cable.loss.unwrap_or_default());
        Line::start(&cable.name, [a, b], cable.mtu, delay, loss, number as u64)
            .map(Some)
            .map_err(|source| LabError::Kernel { doing: format!("start the line {}", cable.name), source })
    }

    fn of(&self, namespace: NamespaceId) -> &Namespace {
        match namespace {
            NamespaceId::Fabric => &self.fabric,
            NamespaceId::Host(host) => &self.hosts[host],
        }
    }

    /// Sets the congestion control, the same on every host.
    fn congestion_control(&self) -> Result<&'static str, LabError> {
        let mut last = None;
        for name in CONGESTION_CONTROL {
            let give = |host| set(host, "net/ipv4/tcp_congestion_control", name);
            match self.hosts.iter().try_for_each(give) {
                Ok(()) => return Ok(name),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or(LabError::Outside))
    }

    /// Lets one connection fill the longest cable. Buffers that are enough stay.
    fn buffers(&self, topology: &Topology) -> Result<(), LabError> {
        let needed = |cable: &Cable| {
            let round_trip = 2 * cable.delay?;
            let under_way = cable.rate?.bytes_per_second() * round_trip.as_secs_f64();
            Some((BUFFERED * under_way) as u64)
        };
        let most = topology.cables.iter().filter_map(needed).max().unwrap_or(0).next_power_of_two();
        let each = |host| BUFFERS.iter().try_for_each(|name| raise(host, name, most));
        self.hosts.iter().try_for_each(each)
    }
}

/// Raises the last number of a setting of a namespace, which is its largest.
fn raise(namespace: &Namespace, name: &str, most: u64) -> Result<(), LabError> {
    let path = format!("/proc/sys/{name}");
    let Ok(Ok(present)) = namespace.run(|| fs::read_to_string(&path)) else { return Ok(()) };
    let mut numbers: Vec<&str> = present.split_whitespace().collect();
    let text = most.to_string();
    match numbers.last_mut() {
        Some(last) if last.parse().is_ok_and(|last: u64| last < most) => *last = &text,
        _ => return Ok(()),
    }
    set(namespace, name, &numbers.join(" "))
}

/// A setting of a namespace.
fn set(namespace: &Namespace, name: &str, value: &str) -> Result<(), LabError> {
    let path = format!("/proc/sys/{name}");
    match namespace.run(|| fs::write(&path, value)).flatten() {
        // What this kernel was built without need not be set.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(LabError::Kernel { doing: format!("set {name} to {value}"), source }),
        Ok(()) => Ok(()),
    }
}
