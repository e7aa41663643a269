//! Rules of thumb that a plan breaks, by the numbers that `docs/src/multipath.md` lists.

use std::collections::BTreeMap;
use std::fmt;

use super::{Inventory, LocalPort, PlannedLane};

/// A rule that a plan breaks, and what may come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its number in the list of rules of thumb; `None`: it is in no list.
    pub rule: Option<u8>,
    /// The fact, its consequence, and a remedy.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Some(rule) => write!(f, "rule {rule}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// All of them, those that no number has last.
pub(super) fn warnings(lanes: &[PlannedLane], inventory: &Inventory<'_>) -> Vec<Warning> {
    let ports: Vec<LocalPort> = used_ports(lanes, inventory);
    let mut warnings = Warnings(Vec::new());
    one_subnet(&mut warnings, lanes, &ports, inventory);
    unequal_sessions(&mut warnings, lanes);
    mesh(&mut warnings, lanes);
    routed(&mut warnings, lanes, inventory);
    different_cards(&mut warnings, &ports);
    overlapping(&mut warnings, &ports);
    single_points(&mut warnings, lanes, &ports);
    missing(&mut warnings, &ports);
    warnings.0
}

struct Warnings(Vec<Warning>);

impl Warnings {
    fn add(&mut self, rule: impl Into<Option<u8>>, text: String) {
        self.0.push(Warning { rule: rule.into(), text });
    }
}

/// The local ports of the lanes, each once, those of loopbacks left out: no rule is about them.
fn used_ports(lanes: &[PlannedLane], inventory: &Inventory<'_>) -> Vec<LocalPort> {
    let mut ports: Vec<LocalPort> = Vec::new();
    for near in lanes.iter().filter_map(|lane| lane.near) {
        let port = inventory.local(near);
        if !port.loopback && !ports.iter().any(|known| known.ip == near) {
            ports.push(port);
        }
    }
    ports
}

fn listed(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

fn one_subnet(
    warnings: &mut Warnings,
    lanes: &[PlannedLane],
    ports: &[LocalPort],
    inventory: &Inventory<'_>,
) {
    let mut subnets: BTreeMap<_, Vec<&LocalPort>> = BTreeMap::new();
    for port in ports {
        subnets.entry(port.network.trunc()).or_default().push(port);
    }
    for (network, ports) in subnets {
        if ports.iter().all(|port| port.card == ports[0].card) {
            continue;
        }
        let both = listed(ports.iter().map(|port| port.title()));
        // What the kernel says it would do is better than what it usually does.
        let astray = lanes.iter().find_map(|lane| {
            let port = ports.iter().find(|port| lane.near == Some(port.ip))?;
            let route = (inventory.route)(lane.near, lane.portal.ip())?;
            let other = route.interface.filter(|interface| *interface != port.interface)?;
            // Where the storage is this machine, no card is between.
            if inventory.locals.iter().any(|port| port.loopback && port.interface == other) {
                return None;
            }
            Some((lane.name(), other))
        });
        let consequence = match astray {
            Some((lane, other)) => format!(
                "the kernel sends by destination alone, and {lane} would leave by {other}: give each port a subnet of its \
                 own, or rules that route by source"
            ),
            None => "their lanes leave by their own cards only as long as routes by source say so; most storage wants a \
                     subnet for each of its ports"
                .to_owned(),
        };
        warnings.add(3, format!("{both} are in one subnet, {network}: {consequence}"));
    }
}

/// Active lanes of each port, near or far.
fn counts(lanes: &[PlannedLane], port: impl Fn(&PlannedLane) -> u32) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for lane in lanes.iter().filter(|lane| !lane.reserve) {
        *counts.entry(port(lane)).or_default() += 1;
    }
    counts
}

fn unequal_sessions(warnings: &mut Warnings, lanes: &[PlannedLane]) {
    let near_name = |port: u32| {
        let lane = lanes.iter().find(|lane| lane.near_port == port);
        lane.and_then(|lane| lane.near).map_or("any".to_owned(), |near| near.to_string())
    };
    let far_name = |port: u32| {
        let lane = lanes.iter().find(|lane| lane.far_port == port);
        lane.map_or(String::new(), |lane| lane.portal.to_string())
    };
    let unequal = |counts: &BTreeMap<u32, usize>, name: &dyn Fn(u32) -> String| {
        let (least, most) = (counts.values().min()?, counts.values().max()?);
        let each = counts.iter().map(|(port, count)| format!("{} has {count}", name(*port)));
        (least < most).then(|| listed(each))
    };
    let near = unequal(&counts(lanes, |lane| lane.near_port), &near_name);
    let far = unequal(&counts(lanes, |lane| lane.far_port), &far_name);
    for (side, list) in [("local port", near), ("portal", far)] {
        if let Some(list) = list {
            warnings.add(
                5,
                format!(
                    "not every {side} has as many sessions: {list}; policies that count requests pile them up on the port with \
                     fewer (KB 969748), only adaptive counts what is on each port"
                ),
            );
        }
    }
}

fn mesh(warnings: &mut Warnings, lanes: &[PlannedLane]) {
    let near = counts(lanes, |lane| lane.near_port);
    let far = counts(lanes, |lane| lane.far_port);
    let shared = |counts: &BTreeMap<u32, usize>| counts.values().any(|count| *count > 1);
    let crossed = |lane: &PlannedLane| {
        !lane.reserve && near.get(&lane.near_port) > Some(&1) && far.get(&lane.far_port) > Some(&1)
    };
    if shared(&near) && shared(&far) && lanes.iter().any(crossed) {
        let active: usize = near.values().sum();
        warnings.add(
            6,
            format!(
                "a mesh is in use: {active} lanes over {} local ports and {} portals, which send over the same port in turns; \
                 with any policy but adaptive that has cost 90 % of the throughput; plan=redundant keeps the rest in reserve",
                near.len(),
                far.len()
            ),
        );
    }
}

fn routed(warnings: &mut Warnings, lanes: &[PlannedLane], inventory: &Inventory<'_>) {
    let routers = lanes.iter().filter_map(|lane| {
        let gateway = (inventory.route)(lane.from, lane.portal.ip())?.gateway?;
        Some(format!("{} by {gateway}", lane.name()))
    });
    let routers: Vec<_> = routers.collect();
    if !routers.is_empty() {
        warnings.add(
            7,
            format!(
                "a router is in between: {}; it adds delay, and is one more thing that fails for all at once",
                listed(routers)
            ),
        );
    }
}

/// Whether a fact that is known of several ports differs.
fn differ<T: PartialEq>(ports: &[LocalPort], fact: impl Fn(&LocalPort) -> Option<T>) -> bool {
    let mut facts = ports.iter().filter_map(fact);
    facts.next().is_some_and(|first| facts.any(|other| other != first))
}

fn different_cards(warnings: &mut Warnings, ports: &[LocalPort]) {
    if differ(ports, |port| port.speed) {
        let speeds =
            ports.iter().filter_map(|port| Some(format!("{} has {}", port.title(), speed(port.speed?))));
        warnings.add(
            8,
            format!(
                "the ports differ in speed: {}; policies that share evenly are as slow as the slowest, adaptive goes by the \
                 rates it measures",
                listed(speeds)
            ),
        );
    }
    if differ(ports, |port| port.mtu) {
        let mtus = ports.iter().filter_map(|port| Some(format!("{} has {}", port.title(), port.mtu?)));
        warnings.add(
            11,
            format!(
                "the MTU is not the same everywhere: {}; use jumbo frames on all of a storage network or on none",
                listed(mtus)
            ),
        );
    }
}

fn speed(bits: u64) -> String {
    match bits {
        1_000_000_000.. if bits.is_multiple_of(100_000_000) => format!("{} Gb/s", bits as f64 / 1e9),
        _ => format!("{} Mb/s", bits / 1_000_000),
    }
}

fn overlapping(warnings: &mut Warnings, ports: &[LocalPort]) {
    for (n, one) in ports.iter().enumerate() {
        for other in &ports[n + 1..] {
            let (a, b) = (one.network.trunc(), other.network.trunc());
            if a != b && (a.contains(&b) || b.contains(&a)) {
                let (one, other) = (one.title(), other.title());
                warnings.add(
                    10,
                    format!("the networks of {one}, {a}, and of {other}, {b}, overlap: keep them apart"),
                );
            }
        }
    }
}

fn single_points(warnings: &mut Warnings, lanes: &[PlannedLane], ports: &[LocalPort]) {
    let Some(first) = lanes.first() else { return };
    // A lane over the loopback has no cable that could be pulled.
    if ports.is_empty() {
        return;
    }
    if let [_] = lanes {
        warnings.add(None, "there is one lane: whatever breaks on it breaks the disk".to_owned());
        return;
    }
    if lanes.iter().all(|lane| lane.near_port == first.near_port) {
        let card = ports.first().map_or(String::new(), |port| port.card.clone());
        warnings.add(
            None,
            format!(
                "all lanes leave by one card, {card}: they share its rate, and when it fails nothing is left"
            ),
        );
    }
    if lanes.iter().all(|lane| lane.far_port == first.far_port) {
        let portal = first.portal;
        warnings.add(
            None,
            format!("all lanes lead to one portal, {portal}: they share its rate, and when it fails nothing is left"),
        );
    }
}

fn missing(warnings: &mut Warnings, ports: &[LocalPort]) {
    for port in ports {
        if port.interface.is_empty() {
            let ip = port.ip;
            warnings.add(
                None,
                format!("{ip} is no address of this machine now: lanes from it wait until it is one"),
            );
        } else if !port.carrier {
            let title = port.title();
            warnings
                .add(None, format!("{title} has no carrier now: lanes from it wait until its cable is in"));
        }
    }
}
