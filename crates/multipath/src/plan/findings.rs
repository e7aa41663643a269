//! Rules of thumb that a plan breaks, by the numbers that `docs/src/multipath.md` lists.

use std::collections::BTreeMap;

use lunway_block::{Finding, Severity};

use super::{Inventory, LocalPort, PlannedLane};

/// All of them, those that no number has last.
pub(super) fn findings(lanes: &[PlannedLane], inventory: &Inventory<'_>) -> Vec<Finding> {
    let ports: Vec<LocalPort> = used_ports(lanes, inventory);
    let mut findings = Findings(Vec::new());
    one_subnet(&mut findings, lanes, &ports, inventory);
    unequal_sessions(&mut findings, lanes);
    mesh(&mut findings, lanes);
    routed(&mut findings, lanes, inventory);
    different_cards(&mut findings, &ports);
    overlapping(&mut findings, &ports);
    single_points(&mut findings, lanes, &ports);
    missing(&mut findings, &ports);
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    /// A warning about `place`: the other parts as [`Finding`] has them.
    fn add(&mut self, id: &'static str, place: String, what: String, why: &str, remedy: &str) {
        let (why, remedy) = (why.to_owned(), remedy.to_owned());
        self.0.push(Finding { id, severity: Severity::Warning, what, place, why, remedy });
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
    findings: &mut Findings,
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
        let port_of = |lane: &PlannedLane| ports.iter().find(|port| lane.near == Some(port.ip));
        let leaves_by_its_own = |lane: &PlannedLane| {
            let Some(port) = port_of(lane) else { return true };
            let route = (inventory.route)(lane.near, lane.portal.ip());
            route.and_then(|route| route.interface).is_some_and(|interface| interface == port.interface)
        };
        // With routes by source it is as good as a subnet for each port, and the kernel says what they do.
        if lanes.iter().all(leaves_by_its_own) {
            continue;
        }
        let both = listed(ports.iter().map(|port| port.title()));
        // What the kernel says it would do is better than what it usually does.
        let astray = lanes.iter().find_map(|lane| {
            let port = port_of(lane)?;
            let route = (inventory.route)(lane.near, lane.portal.ip())?;
            let other = route.interface.filter(|interface| *interface != port.interface)?;
            // Where the storage is this machine, no card is between.
            if inventory.locals.iter().any(|port| port.loopback && port.interface == other) {
                return None;
            }
            Some((lane.name(), other))
        });
        let why = match astray {
            Some((lane, other)) => {
                format!("the kernel sends by destination alone, and {lane} would leave by {other}")
            }
            None => {
                "the kernel sends by destination alone where no routes by source say otherwise".to_owned()
            }
        };
        let what = format!("{both} are in one subnet, {network}");
        let remedy = "give each port a subnet of its own, or source-based routing rules";
        findings.add("rule-3", both, what, &why, remedy);
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

fn unequal_sessions(findings: &mut Findings, lanes: &[PlannedLane]) {
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
        let Some(list) = list else { continue };
        findings.add(
            "rule-5",
            format!("{side}s"),
            format!("not every {side} has as many sessions: {list}"),
            "policies that count requests pile them up on the port with fewer (KB 969748)",
            "use the same number for each port, or the policy adaptive, which takes the load of each port into account",
        );
    }
}

fn mesh(findings: &mut Findings, lanes: &[PlannedLane]) {
    let near = counts(lanes, |lane| lane.near_port);
    let far = counts(lanes, |lane| lane.far_port);
    let shared = |counts: &BTreeMap<u32, usize>| counts.values().any(|count| *count > 1);
    let crossed = |lane: &PlannedLane| {
        !lane.reserve && near.get(&lane.near_port) > Some(&1) && far.get(&lane.far_port) > Some(&1)
    };
    if shared(&near) && shared(&far) && lanes.iter().any(crossed) {
        let active: usize = near.values().sum();
        let ports = format!("{} local ports and {} portals", near.len(), far.len());
        let what =
            format!("a mesh is in use: {active} lanes over {ports}, which send over the same port in turns");
        findings.add(
            "rule-6",
            ports,
            what,
            "with any policy but adaptive that has cost 90 % of the throughput",
            "plan=redundant keeps the rest in reserve",
        );
    }
}

fn routed(findings: &mut Findings, lanes: &[PlannedLane], inventory: &Inventory<'_>) {
    let routers = lanes.iter().filter_map(|lane| {
        let gateway = (inventory.route)(lane.from, lane.portal.ip())?.gateway?;
        Some(format!("{} by {gateway}", lane.name()))
    });
    let routers: Vec<_> = routers.collect();
    if !routers.is_empty() {
        let routers = listed(routers);
        findings.add(
            "rule-7",
            routers.clone(),
            format!("a router is in between: {routers}"),
            "it adds delay, and is one more thing that fails for all at once",
            "give a local port an address in the storage's subnet",
        );
    }
}

/// Returns `true` if a fact that is known of several ports differs.
fn differ<T: PartialEq>(ports: &[LocalPort], fact: impl Fn(&LocalPort) -> Option<T>) -> bool {
    let mut facts = ports.iter().filter_map(fact);
    facts.next().is_some_and(|first| facts.any(|other| other != first))
}

fn different_cards(findings: &mut Findings, ports: &[LocalPort]) {
    if differ(ports, |port| port.speed) {
        let speeds =
            ports.iter().filter_map(|port| Some(format!("{} has {}", port.title(), speed(port.speed?))));
        findings.add(
            "rule-8",
            titles(ports),
            format!("the ports differ in speed: {}", listed(speeds)),
            "policies that share evenly are as slow as the slowest",
            "use ports of the same speed, or the policy adaptive, which measures their rates",
        );
    }
    if differ(ports, |port| port.mtu) {
        let mtus = ports.iter().filter_map(|port| Some(format!("{} has {}", port.title(), port.mtu?)));
        findings.add(
            "rule-11",
            titles(ports),
            format!("the MTU is not the same everywhere: {}", listed(mtus)),
            "a frame that is too large for a port on its way is lost",
            "use jumbo frames on all of a storage network or on none",
        );
    }
}

fn titles(ports: &[LocalPort]) -> String {
    listed(ports.iter().map(LocalPort::title))
}

fn speed(bits: u64) -> String {
    match bits {
        1_000_000_000.. if bits.is_multiple_of(100_000_000) => format!("{} Gb/s", bits as f64 / 1e9),
        _ => format!("{} Mb/s", bits / 1_000_000),
    }
}

fn overlapping(findings: &mut Findings, ports: &[LocalPort]) {
    for (n, one) in ports.iter().enumerate() {
        for other in &ports[n + 1..] {
            let (a, b) = (one.network.trunc(), other.network.trunc());
            if a != b && (a.contains(&b) || b.contains(&a)) {
                let (one, other) = (one.title(), other.title());
                findings.add(
                    "rule-10",
                    format!("{one} and {other}"),
                    format!("the networks of {one}, {a}, and of {other}, {b}, overlap"),
                    "the narrower one receives traffic that is meant for the other",
                    "keep them apart",
                );
            }
        }
    }
}

/// Cost of one card or one portal for all lanes.
const SHARED: &str = "they share its rate, and when it fails nothing is left";

fn single_points(findings: &mut Findings, lanes: &[PlannedLane], ports: &[LocalPort]) {
    let Some(first) = lanes.first() else { return };
    // A lane over the loopback has no cable that could be pulled.
    if ports.is_empty() {
        return;
    }
    if let [lane] = lanes {
        let why = "a fault anywhere on it stops the disk";
        let what = "there is one lane".to_owned();
        findings.add("one-lane", lane.name(), what, why, "add a local port or a portal");
        return;
    }
    if lanes.iter().all(|lane| lane.near_port == first.near_port) {
        let card = ports.first().map_or(String::new(), |port| port.card.clone());
        let what = format!("all lanes leave by one card, {card}");
        findings.add("one-card", card, what, SHARED, "use a second card");
    }
    if lanes.iter().all(|lane| lane.far_port == first.far_port) {
        let portal = first.portal.to_string();
        let what = format!("all lanes lead to one portal, {portal}");
        findings.add("one-portal", portal, what, SHARED, "have the target listen on a second one");
    }
}

fn missing(findings: &mut Findings, ports: &[LocalPort]) {
    for port in ports {
        if port.interface.is_empty() {
            let ip = port.ip.to_string();
            let what = format!("{ip} is no address of this machine now");
            let why = "lanes from it wait until it is one";
            findings.add("address-missing", ip, what, why, "add it to a card, or leave it out of from=");
        } else if !port.carrier {
            let title = port.title();
            let what = format!("{title} has no carrier now");
            let why = "lanes from it wait until there is one";
            findings.add("no-carrier", title, what, why, "check its cable and the switch");
        }
    }
}
