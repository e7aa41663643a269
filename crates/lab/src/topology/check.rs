//! Validation of a topology, and its subnets: which cards and switches belong together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::{Cable, End, Topology};

/// The longest name: the kernel's devices have 15 characters, of which ends of cables need two.
const NAME_MAX: usize = 12;
/// Names that the kernel uses for something else.
const RESERVED: [&str; 3] = ["lo", "all", "default"];
/// The most hosts, switches, cables: what one machine can hold with sense.
const COUNT_MAX: usize = 64;
/// The smallest MTU: IPv4 insists on 68, TCP makes no sense below this.
const MTU_MIN: u32 = 576;
/// The largest MTU that a packet device takes.
const MTU_MAX: u32 = 65_500;
/// The longest delay: half of what TCP waits before it first gives up on an answer.
const DELAY_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// The largest burst and queue, bytes.
const BUFFER_MAX: u64 = 1 << 30;

/// Reason why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Nothing to build.
    #[error("the network has no hosts: describe each with [[host]] and a name")]
    Empty,
    /// Too much.
    #[error("the network has {count} {what}; the limit is {COUNT_MAX}")]
    TooMany {
        /// Hosts, switches, cables.
        what: &'static str,
        /// So many.
        count: usize,
    },
    /// A name that the kernel or a reader could take for something else.
    #[error(
        "`{name}` cannot be the name of a {what}: use 1 to {NAME_MAX} letters, digits, `-` and `_`, beginning with a letter"
    )]
    Name {
        /// A host, a card…
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two of the same name.
    #[error("the name `{name}` is used twice: hosts, switches and cables need unique names")]
    Twice {
        /// The name.
        name: String,
    },
    /// Two cables at one card.
    #[error("two cables end at the card {end}: a card takes one")]
    CardTwice {
        /// The card.
        end: End,
    },
    /// A cable to nowhere.
    #[error("cable `{cable}` ends at {end}, but there is no {what} of that name")]
    NoSuchEnd {
        /// The cable.
        cable: String,
        /// End of the cable.
        end: End,
        /// Host or switch.
        what: &'static str,
    },
    /// A cable from a host to itself.
    #[error("cable `{cable}` begins and ends at `{name}`: traffic to an own address never leaves the host")]
    ToItself {
        /// The cable.
        cable: String,
        /// The host or switch.
        name: String,
    },
    /// Switches in a ring.
    #[error(
        "cable `{cable}` closes a ring of switches: they know no spanning tree, and a broadcast would go round for ever"
    )]
    Ring {
        /// The cable.
        cable: String,
    },
    /// A figure outside of what can be built.
    #[error("cable `{cable}`: {what} is out of range ({limits})")]
    Range {
        /// The cable.
        cable: String,
        /// Property that is out of range.
        what: &'static str,
        /// Range allowed.
        limits: &'static str,
    },
    /// A shaper that could pass nothing.
    #[error("cable `{cable}`: a {what} of {bytes} bytes is less than one frame, so nothing would pass")]
    BelowAFrame {
        /// The cable.
        cable: String,
        /// Burst or queue.
        what: &'static str,
        /// So little.
        bytes: u64,
    },
}

impl Topology {
    /// Checks that the network can be built.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), TopologyError> {
        if self.hosts.is_empty() {
            return Err(TopologyError::Empty);
        }
        for (what, count) in
            [("hosts", self.hosts.len()), ("switches", self.switches.len()), ("cables", self.cables.len())]
        {
            if count > COUNT_MAX {
                return Err(TopologyError::TooMany { what, count });
            }
        }
        let hosts = self.hosts.iter().map(|host| ("host", &host.name));
        let switches = self.switches.iter().map(|switch| ("switch", &switch.name));
        let cables = self.cables.iter().map(|cable| ("cable", &cable.name));
        let mut names = BTreeSet::new();
        for (what, name) in hosts.chain(switches).chain(cables) {
            check_name(what, name)?;
            if !names.insert(name) {
                return Err(TopologyError::Twice { name: name.clone() });
            }
        }
        let mut cards = BTreeSet::new();
        let mut domains = Domains::default();
        for cable in &self.cables {
            self.check_ends(cable, &mut cards)?;
            check_figures(cable)?;
            if let [End::Switch(a), End::Switch(b)] = &cable.ends
                && !domains.join(a, b)
            {
                return Err(TopologyError::Ring { cable: cable.name.clone() });
            }
        }
        Ok(())
    }

    fn check_ends<'a>(&self, cable: &'a Cable, cards: &mut BTreeSet<&'a End>) -> Result<(), TopologyError> {
        for end in &cable.ends {
            let missing =
                |what| TopologyError::NoSuchEnd { cable: cable.name.clone(), end: end.clone(), what };
            match end {
                End::Card { host, card } => {
                    self.host(host).ok_or_else(|| missing("host"))?;
                    check_name("card", card)?;
                    if !cards.insert(end) {
                        return Err(TopologyError::CardTwice { end: end.clone() });
                    }
                }
                End::Switch(name) => {
                    let known = self.switches.iter().any(|switch| switch.name == *name);
                    known.then_some(()).ok_or_else(|| missing("switch"))?;
                }
            }
        }
        let owner = |end: &'a End| match end {
            End::Card { host, .. } => host,
            End::Switch(name) => name,
        };
        let [a, b] = [owner(&cable.ends[0]), owner(&cable.ends[1])];
        if a == b {
            return Err(TopologyError::ToItself { cable: cable.name.clone(), name: a.clone() });
        }
        Ok(())
    }

    /// The address of every card. Subnet `n` is `10.77.n.0/24`, counted from 1 as the cables first name them; in it
    /// cards count from 1 likewise.
    pub fn addresses(&self) -> BTreeMap<End, Ipv4Addr> {
        let domains = self.domains();
        // What a subnet is known by, and how many cards are in it.
        let mut subnets: Vec<(&str, u8)> = Vec::new();
        let mut addresses = BTreeMap::new();
        for cable in &self.cables {
            let key = domains.of(cable);
            let subnet = subnets.iter().position(|(name, _)| *name == key).unwrap_or_else(|| {
                subnets.push((key, 0));
                subnets.len() - 1
            });
            for end in cable.ends.iter().filter(|end| matches!(end, End::Card { .. })) {
                subnets[subnet].1 += 1;
                addresses.insert(end.clone(), Ipv4Addr::new(10, 77, number(subnet), subnets[subnet].1));
            }
        }
        addresses
    }

    /// The third number of the addresses at a switch; none where no cable is.
    pub(crate) fn subnet(&self, switch: &str) -> Option<u8> {
        let domains = self.domains();
        let mut subnets: Vec<&str> = Vec::new();
        for cable in &self.cables {
            let key = domains.of(cable);
            if !subnets.contains(&key) {
                subnets.push(key);
            }
        }
        subnets.iter().position(|key| *key == domains.root(switch)).map(number)
    }

    fn domains(&self) -> Domains<'_> {
        let mut domains = Domains::default();
        for cable in &self.cables {
            if let [End::Switch(a), End::Switch(b)] = &cable.ends {
                domains.join(a, b);
            }
        }
        domains
    }
}

/// The third number of the addresses of the subnet that was named as the `position`th.
fn number(position: usize) -> u8 {
    u8::try_from(position + 1).unwrap_or(u8::MAX)
}

fn check_name(what: &'static str, name: &str) -> Result<(), TopologyError> {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if !plain || name.len() > NAME_MAX || RESERVED.contains(&name) {
        return Err(TopologyError::Name { what, name: name.to_owned() });
    }
    Ok(())
}

fn check_figures(cable: &Cable) -> Result<(), TopologyError> {
    let range = |what, limits| Err(TopologyError::Range { cable: cable.name.clone(), what, limits });
    if !(MTU_MIN..=MTU_MAX).contains(&cable.mtu) {
        return range("mtu", "576 to 65500");
    }
    if cable.delay.is_some_and(|delay| delay > DELAY_MAX) {
        return range("delay", "0s to 10s");
    }
    for (what, bytes) in [("burst", cable.burst), ("queue", cable.queue)] {
        let Some(bytes) = bytes else { continue };
        if bytes > BUFFER_MAX {
            return range(what, "at most 1G");
        }
        if bytes < u64::from(cable.mtu + super::FRAMING) {
            return Err(TopologyError::BelowAFrame { cable: cable.name.clone(), what, bytes });
        }
    }
    Ok(())
}

/// Switches and the group of switches that each belongs to.
#[derive(Default)]
struct Domains<'a> {
    above: BTreeMap<&'a str, &'a str>,
}

impl<'a> Domains<'a> {
    fn root<'b>(&'b self, name: &'b str) -> &'b str {
        let mut name = name;
        while let Some(above) = self.above.get(name) {
            name = above;
        }
        name
    }

    /// Returns the name of a cable's subnet: the first switch of its group, or the cable itself.
    fn of<'b>(&'b self, cable: &'b Cable) -> &'b str {
        let switch = cable.ends.iter().find_map(|end| match end {
            End::Switch(name) => Some(name),
            End::Card { .. } => None,
        });
        switch.map_or(&cable.name, |name| self.root(name))
    }

    /// Makes one group of two; `false` where they were one already.
    fn join(&mut self, a: &'a str, b: &'a str) -> bool {
        let top = |mut name: &'a str| {
            while let Some(above) = self.above.get(name) {
                name = above;
            }
            name
        };
        let (a, b) = (top(a), top(b));
        if a == b {
            return false;
        }
        self.above.insert(b, a);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(cables: &str) -> Topology {
        let text = format!(
            "host = [{{ name = 'server' }}, {{ name = 'storage' }}]\nswitch = [{{ name = 'left' }}, {{ name = 'right' }}]\ncable = [{cables}]"
        );
        toml::from_str(&text).unwrap()
    }

    fn wrong(cables: &str) -> TopologyError {
        network(cables).check().unwrap_err()
    }

    #[test]
    fn a_cable_is_a_subnet_and_so_is_a_group_of_switches() {
        let topology = network(
            "{ name = 'a', ends = ['server.eth0', 'left'] }, { name = 'b', ends = ['server.eth1', 'storage.eth1'] },
             { name = 'c', ends = ['storage.eth0', 'right'] }, { name = 'd', ends = ['right', 'left'] }",
        );
        topology.check().unwrap();
        let addresses = topology.addresses();
        let of = |end: &str| addresses[&end.parse().unwrap()].to_string();
        assert_eq!(of("server.eth0"), "10.77.1.1");
        assert_eq!(of("storage.eth0"), "10.77.1.2");
        assert_eq!((of("server.eth1"), of("storage.eth1")), ("10.77.2.1".into(), "10.77.2.2".into()));
    }

    #[test]
    fn what_cannot_be_built_is_named() {
        let twice = "{ name = 'a', ends = ['server.eth0', 'storage.eth0'] }, { name = 'b', ends = ['server.eth0', 'storage.eth1'] }";
        assert!(matches!(wrong(twice), TopologyError::CardTwice { .. }));
        assert!(matches!(
            wrong("{ name = 'left', ends = ['server.a', 'storage.a'] }"),
            TopologyError::Twice { .. }
        ));
        assert!(matches!(
            wrong("{ name = 'a', ends = ['nobody.a', 'storage.a'] }"),
            TopologyError::NoSuchEnd { .. }
        ));
        assert!(matches!(
            wrong("{ name = 'a', ends = ['server.a', 'nowhere'] }"),
            TopologyError::NoSuchEnd { .. }
        ));
        assert!(matches!(
            wrong("{ name = 'a', ends = ['server.a', 'server.b'] }"),
            TopologyError::ToItself { .. }
        ));
        assert!(matches!(wrong("{ name = 'a', ends = ['left', 'left'] }"), TopologyError::ToItself { .. }));
        let ring = "{ name = 'a', ends = ['left', 'right'] }, { name = 'b', ends = ['right', 'left'] }";
        assert!(matches!(wrong(ring), TopologyError::Ring { .. }));
        for card in ["lo", "", "a b", "0eth", "much-too-long-a-name"] {
            let cable = format!("{{ name = 'a', ends = ['server.{card}', 'storage.eth0'] }}");
            assert!(matches!(wrong(&cable), TopologyError::Name { .. }), "{card}");
        }
        for figure in ["mtu = 500", "mtu = 70000", "delay = '11s'", "burst = '2G'"] {
            let cable = format!("{{ name = 'a', ends = ['server.a', 'storage.a'], {figure} }}");
            assert!(matches!(wrong(&cable), TopologyError::Range { .. }), "{figure}");
        }
        let burst = "{ name = 'a', ends = ['server.a', 'storage.a'], mtu = 9000, burst = '9000' }";
        assert!(matches!(wrong(burst), TopologyError::BelowAFrame { .. }));
        assert_eq!(Topology::default().check(), Err(TopologyError::Empty));
    }
}
