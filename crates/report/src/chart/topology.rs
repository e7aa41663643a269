//! Hosts, their cards, switches, and the cables between them.

use super::svg::{CHARACTER, Svg, TEXT, fit, wrap};
use super::{BROAD, both};

/// A network.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Machines, from top to bottom.
    pub hosts: Vec<Host>,
    /// Switches, from top to bottom.
    pub switches: Vec<Switch>,
    /// Cables, in the order of their numbers.
    pub cables: Vec<Cable>,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Description of the host, or of its service; may be empty.
    pub detail: String,
    /// Its network cards, from top to bottom.
    pub ports: Vec<Port>,
    /// Side that it is drawn on.
    pub side: Side,
}

/// A network card.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its address; may be empty.
    pub address: String,
}

/// A side of the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Asking side: initiators.
    Left,
    /// Answering side: targets.
    Right,
}

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Its name.
    pub name: String,
}

/// A cable.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Its name.
    pub name: String,
    /// Ends that it joins. A cable with an end that does not exist is listed and not drawn.
    pub ends: [End; 2],
    /// Rate, MTU, delay, loss, and how much of it was used, as text; may be empty.
    pub detail: String,
    /// Its state.
    pub state: CableState,
}

/// An end of a [`Cable`]; indices into [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A network card: of which host, and which of its cards.
    Port(usize, usize),
    /// A switch.
    Switch(usize),
}

/// State of a [`Cable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CableState {
    /// Good.
    Up,
    /// Changed while measuring: slowed, or pulled and plugged again.
    Disturbed,
    /// Pulled, or carrying nothing.
    Down,
}

impl CableState {
    fn class(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Disturbed => "disturbed",
            Self::Down => "down",
        }
    }
}

/// Height of a host's heading line.
const HEADING: f64 = 18.0;
/// Height of a card's row: its name, and its address below.
const PORT: f64 = 34.0;
const GAP: f64 = 16.0;
/// Radius of a cable's number.
const BADGE: f64 = 9.0;
/// Distance of two cables at a switch.
const PITCH: f64 = 24.0;
/// Height of a line of the list.
const LEADING: f64 = 17.0;

/// A drawing of `topology`: hosts at both sides, switches between them, cables with their numbers, and below it a list
/// of the cables.
pub fn topology(topology: &Topology) -> String {
    both(|width| Plan::new(topology, width).draw())
}

/// The way of a cable.
struct Route {
    points: Vec<(f64, f64)>,
    /// Position of its number.
    number: (f64, f64),
}

/// Layout of the drawing.
struct Plan<'a> {
    topology: &'a Topology,
    width: f64,
    host_width: f64,
    /// Top left corner and height of each host.
    hosts: Vec<(f64, f64, f64)>,
    /// Left, right, top and bottom of each switch.
    switches: Vec<[f64; 4]>,
    /// Height of all that.
    height: f64,
}

impl<'a> Plan<'a> {
    fn new(topology: &'a Topology, width: f64) -> Self {
        let host_width = if width >= BROAD { 200.0 } else { 118.0 };
        let host_height = |host: &Host| {
            let heading = if host.detail.is_empty() { HEADING } else { 2.0 * HEADING };
            heading + 10.0 + host.ports.len() as f64 * PORT
        };
        let switch_height = |index: usize| {
            let count = |side| topology.switch_cables(index, side).len();
            count(Side::Left).max(count(Side::Right)).max(1) as f64 * PITCH + 12.0
        };
        let stack = |heights: &mut dyn Iterator<Item = f64>| heights.map(|height| height + GAP).sum::<f64>();
        let column =
            |side| stack(&mut topology.hosts.iter().filter(|host| host.side == side).map(host_height));
        // A cable between switches has its number above the lower one.
        let above = if topology.trunks().next().is_some() { 2.0 * BADGE } else { 0.0 };
        let room = topology.switches.len() as f64 * above;
        let switches = stack(&mut (0..topology.switches.len()).map(switch_height)) + room;
        let height = column(Side::Left).max(column(Side::Right)).max(switches);

        let mut tops = [(height - column(Side::Left)) / 2.0, (height - column(Side::Right)) / 2.0];
        let hosts = topology.hosts.iter().map(|host| {
            let (top, x) = match host.side {
                Side::Left => (&mut tops[0], 1.0),
                Side::Right => (&mut tops[1], width - host_width - 1.0),
            };
            let place = (x, *top + 1.0, host_height(host));
            *top += place.2 + GAP;
            place
        });
        let hosts = hosts.collect();
        let half = if width >= BROAD { 52.0 } else { 30.0 };
        let mut top = (height - switches) / 2.0;
        let switches = (0..topology.switches.len()).map(|index| {
            let from = top + above;
            top = from + switch_height(index) + GAP;
            [width / 2.0 - half, width / 2.0 + half, from, from + switch_height(index)]
        });
        let switches = switches.collect();
        Self { topology, width, host_width, hosts, switches, height }
    }

    fn draw(&self) -> Svg {
        let Topology { cables, .. } = self.topology;
        let details: Vec<Vec<String>> = cables.iter().map(|cable| self.listed(cable)).collect();
        let listed = details.iter().map(|lines| lines.len() as f64 * LEADING + 4.0).sum::<f64>();
        let mut svg = Svg::new(self.width, self.height + listed + 8.0, "topology");
        let paths: Vec<_> = cables.iter().enumerate().map(|(index, cable)| self.path(index, cable)).collect();
        for (cable, path) in cables.iter().zip(&paths) {
            if let Some(Route { points, .. }) = path {
                svg.polyline(points.iter().copied(), &format!("cable {}", cable.state.class()), &cable.name);
            }
        }
        (0..self.topology.hosts.len()).for_each(|index| self.host(&mut svg, index));
        for (switch, [left, right, top, bottom]) in self.topology.switches.iter().zip(&self.switches) {
            svg.rect((*left, *top), (right - left, bottom - top), "box switch", &switch.name);
            let (x, y) = ((left + right) / 2.0, (top + bottom) / 2.0);
            svg.text(x, y + TEXT * 0.36, "mid", &fit(&switch.name, right - left - 4.0));
        }
        for (index, (cable, path)) in cables.iter().zip(&paths).enumerate() {
            if let Some(Route { number, .. }) = path {
                badge(&mut svg, *number, index, cable.state);
            }
        }
        let mut y = self.height + LEADING / 2.0;
        for (index, (cable, lines)) in cables.iter().zip(&details).enumerate() {
            badge(&mut svg, (BADGE + 1.0, y), index, cable.state);
            for line in lines {
                svg.text(2.0 * BADGE + 9.0, y + TEXT * 0.36, "name", line);
                y += LEADING;
            }
            y += 4.0;
        }
        svg
    }

    /// The lines of the list that describe a cable.
    fn listed(&self, cable: &Cable) -> Vec<String> {
        let state = match cable.state {
            CableState::Up => "",
            CableState::Disturbed if !cable.detail.is_empty() => "",
            CableState::Disturbed => "disturbed",
            CableState::Down => "down",
        };
        let parts = [cable.name.as_str(), cable.detail.as_str(), state];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        wrap(&parts.join(" · "), self.width - 2.0 * BADGE - 12.0, 3)
    }

    fn host(&self, svg: &mut Svg, index: usize) {
        let (host, (x, y, height)) = (&self.topology.hosts[index], self.hosts[index]);
        let room = self.host_width - 16.0;
        svg.rect((x, y), (self.host_width, height), "box host", &host.name);
        svg.text(x + 8.0, y + HEADING - 3.0, "strong", &fit(&host.name, room));
        if !host.detail.is_empty() {
            svg.text(x + 8.0, y + 2.0 * HEADING - 5.0, "tick", &fit(&host.detail, room));
        }
        for (number, port) in host.ports.iter().enumerate() {
            let (_, middle) = self.port(index, number);
            let (edge, class) = match host.side {
                Side::Left => (x + self.host_width - 8.0, "end"),
                Side::Right => (x + 8.0, ""),
            };
            let at = match host.side {
                Side::Left => x + self.host_width,
                Side::Right => x,
            };
            svg.rect((at - 4.0, middle - 5.0), (8.0, 10.0), "port", &port.name);
            if port.address.is_empty() {
                svg.text(edge, middle + TEXT * 0.36, class, &fit(&port.name, room));
            } else {
                svg.text(edge, middle - 3.0, class, &fit(&port.name, room));
                svg.text(edge, middle + 11.0, &format!("tick {class}"), &fit(&port.address, room));
            }
        }
    }

    /// Returns the point at which the cable of a card begins.
    fn port(&self, host: usize, port: usize) -> (f64, f64) {
        let (x, y, height) = self.hosts[host];
        let ports = self.topology.hosts[host].ports.len() as f64;
        let middle = y + height - 6.0 - (ports - port as f64 - 0.5) * PORT;
        match self.topology.hosts[host].side {
            Side::Left => (x + self.host_width + 4.0, middle),
            Side::Right => (x - 4.0, middle),
        }
    }

    fn end(&self, cable: usize, end: End) -> Option<((f64, f64), Option<Side>)> {
        match end {
            End::Port(host, port) => {
                let found = self.topology.hosts.get(host)?;
                found.ports.get(port)?;
                Some((self.port(host, port), Some(found.side)))
            }
            End::Switch(index) => {
                let [left, right, top, bottom] = *self.switches.get(index)?;
                for (side, x) in [(Side::Left, left), (Side::Right, right)] {
                    let cables = self.topology.switch_cables(index, side);
                    if let Some(place) = cables.iter().position(|&other| other == cable) {
                        let step = (bottom - top) / cables.len() as f64;
                        return Some(((x, top + (place as f64 + 0.5) * step), None));
                    }
                }
                // The middle of the switch, whose box is drawn over the cable.
                let trunks = self.topology.trunks().count() as f64;
                let place = self.topology.trunks().position(|other| other == cable)? as f64;
                let aside = (place - (trunks - 1.0) / 2.0) * (2.0 * BADGE + 4.0);
                Some((((left + right) / 2.0 + aside, (top + bottom) / 2.0), None))
            }
        }
    }

    fn path(&self, index: usize, cable: &Cable) -> Option<Route> {
        let (a, a_side) = self.end(index, cable.ends[0])?;
        let (b, b_side) = self.end(index, cable.ends[1])?;
        let inward = |side: Side| if side == Side::Left { 1.0 } else { -1.0 };
        // Cards have rows of their own, so a number right beside a card touches no other.
        let at = match (a_side, b_side) {
            (Some(side), _) => (a.0 + inward(side) * (BADGE + 3.0), a.1),
            (None, Some(side)) => (b.0 + inward(side) * (BADGE + 3.0), b.1),
            (None, None) => {
                let tops = cable.ends.iter().filter_map(|end| match end {
                    End::Switch(index) => Some(self.switches.get(*index)?[2]),
                    End::Port(..) => None,
                });
                (b.0, tops.fold(0.0, f64::max) - (GAP + 2.0 * BADGE) / 2.0)
            }
        };
        let stub = |(x, y): (f64, f64), side: Option<Side>| {
            side.map(|side| (x + inward(side) * (2.0 * BADGE + 6.0), y))
        };
        let mut points = vec![a];
        points.extend(stub(a, a_side));
        points.extend(stub(b, b_side));
        points.push(b);
        Some(Route { points, number: at })
    }
}

impl Topology {
    /// The cables that join two switches.
    fn trunks(&self) -> impl Iterator<Item = usize> + '_ {
        let both = |cable: &Cable| matches!(cable.ends, [End::Switch(_), End::Switch(_)]);
        (0..self.cables.len()).filter(move |&index| both(&self.cables[index]))
    }

    /// The cables that leave a switch towards hosts of one side, in the order of their other ends.
    fn switch_cables(&self, switch: usize, side: Side) -> Vec<usize> {
        let other = |cable: &Cable| match cable.ends {
            [End::Switch(index), End::Port(host, port)] | [End::Port(host, port), End::Switch(index)] => {
                (index == switch && self.hosts.get(host)?.side == side).then_some((host, port))
            }
            _ => None,
        };
        let mut found: Vec<_> = self
            .cables
            .iter()
            .enumerate()
            .filter_map(|(index, cable)| Some((other(cable)?, index)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, index)| index).collect()
    }
}

fn badge(svg: &mut Svg, (x, y): (f64, f64), index: usize, state: CableState) {
    svg.rect((x - BADGE, y - BADGE), (2.0 * BADGE, 2.0 * BADGE), &format!("badge {}", state.class()), "");
    svg.text(x, y + 4.0, "number mid", &fit(&(index + 1).to_string(), 3.0 * CHARACTER));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, side: Side, ports: usize) -> Host {
        let port = |n| Port { name: format!("eth{n}"), address: format!("10.0.{n}.1") };
        Host { name: name.into(), detail: String::new(), ports: (0..ports).map(port).collect(), side }
    }

    fn cable(a: End, b: End) -> Cable {
        Cable {
            name: "lane".into(), ends: [a, b], detail: "1 Gb/s · MTU 9000".into(), state: CableState::Up
        }
    }

    #[test]
    fn every_cable_has_a_number_at_a_place_of_its_own() {
        let mut cables = Vec::new();
        for port in 0..4 {
            cables.push(cable(End::Port(0, port), End::Switch(port % 2)));
        }
        cables.push(cable(End::Port(1, 0), End::Switch(0)));
        cables.push(cable(End::Switch(1), End::Port(1, 1)));
        let switches = ["a", "b"].map(|name| Switch { name: name.into() }).to_vec();
        let topology = Topology {
            hosts: vec![host("server", Side::Left, 4), host("storage", Side::Right, 2)],
            switches,
            cables,
        };
        for width in [super::super::COLUMN, BROAD] {
            let plan = Plan::new(&topology, width);
            let places: Vec<(f64, f64)> = topology
                .cables
                .iter()
                .enumerate()
                .map(|(index, cable)| plan.path(index, cable).unwrap().number)
                .collect();
            for (index, a) in places.iter().enumerate() {
                assert!(a.0 > 0.0 && a.0 < width && a.1 > 0.0 && a.1 < plan.height);
                for b in &places[index + 1..] {
                    assert!(
                        (a.0 - b.0).abs() >= 2.0 * BADGE || (a.1 - b.1).abs() >= 2.0 * BADGE,
                        "{a:?} {b:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_cable_that_ends_nowhere_is_listed_and_not_drawn() {
        let nowhere = cable(End::Port(7, 0), End::Switch(3));
        let network = Topology { cables: vec![nowhere], ..Topology::default() };
        let svg = topology(&network);
        assert!(svg.contains("lane · 1\u{a0}Gb/s") && !svg.contains("class=\"cable"));
    }
}
