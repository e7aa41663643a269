//! From what `listen` says and the addresses that the machine has: where to listen, and what initiators are told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lunway_machine::MachineAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::{PortalScope, PortalSpec};

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The portal that the initiator came to.
    pub(crate) local: SocketAddr,
    /// The initiator's own address.
    pub(crate) peer: SocketAddr,
}

/// Portals that SendTargets names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Advertise {
    /// Portals that `listen` names by address, interface or network. Of the addresses behind `0.0.0.0` and `[::]`:
    /// those in the network of the initiator, or of the portal at which it asks.
    #[default]
    Reachable,
    /// Only portals in the network of the initiator, or of the portal at which it asks.
    SameNetwork,
    /// All portals.
    All,
}

/// A portal group as configured: the portals of one SCSI target port (RFC 7143 §4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortalGroup {
    pub(crate) tag: u16,
    pub(crate) listen: Vec<PortalSpec>,
}

/// A socket that is to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SocketKey {
    pub(crate) address: SocketAddr,
    /// Tells those apart for which the kernel chooses the port: their number among those with this address.
    pub(crate) nth: usize,
}

impl SocketKey {
    /// Returns `true` if it receives connections to `ip`.
    pub(crate) fn takes(&self, ip: IpAddr) -> bool {
        let own = self.address.ip();
        own == ip || own == unspecified_like(ip)
    }
}

/// An address that a socket takes connections to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPortal {
    pub(crate) ip: IpAddr,
    /// Its group.
    pub(crate) tag: u16,
    /// An entry names it, its interface or its network; otherwise an entry for every address has brought it along.
    pub(crate) named: bool,
}

/// Portals that a socket stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlannedSocket {
    /// The group of connections to addresses that are not among the portals: possible where the socket takes those to
    /// every address, also to one that the machine got a moment ago.
    pub(crate) tag: u16,
    /// The addresses, each with its group.
    pub(crate) portals: Vec<PlannedPortal>,
}

/// Plan of the sockets to listen on.
pub(crate) type Plan = BTreeMap<SocketKey, PlannedSocket>;

/// Says where to listen.
///
/// Sockets and portals are not the same. Where an entry means every address, one socket takes them all, and more
/// particular entries with its port need none of their own (the kernel would not even let them have one beside it).
/// Which group an address belongs to is decided by the most particular entry that means it: itself, then the smallest
/// network, then the interface, then every address; among equals the lowest tag.
pub(crate) fn plan(groups: &[PortalGroup], machine: &[MachineAddress]) -> Plan {
    let mut plan = Plan::new();
    let mut wildcards = BTreeMap::<SocketAddr, u16>::new();
    let mut chosen = BTreeMap::<(IpAddr, u16), (u8, u16)>::new();
    let mut any_port = BTreeMap::<IpAddr, usize>::new();
    for (group, spec) in groups.iter().flat_map(|group| group.listen.iter().map(move |spec| (group, spec))) {
        let meant = meant(spec.scope(), machine);
        if let (PortalScope::Address(ip), 0) = (spec.scope(), spec.port()) {
            let nth = any_port.entry(*ip).or_default();
            *nth += 1;
            let key = SocketKey { address: SocketAddr::new(*ip, 0), nth: *nth };
            if ip.is_unspecified() || !meant.is_empty() {
                let named = !ip.is_unspecified();
                let portals =
                    meant.into_iter().map(|ip| PlannedPortal { ip, tag: group.tag, named }).collect();
                plan.insert(key, PlannedSocket { tag: group.tag, portals });
            }
            continue;
        }
        if let PortalScope::Address(ip) = spec.scope()
            && ip.is_unspecified()
        {
            let tag = wildcards.entry(SocketAddr::new(*ip, spec.port())).or_insert(group.tag);
            *tag = group.tag.min(*tag);
        }
        let rank = rank(spec.scope());
        for ip in meant {
            let best = chosen.entry((ip, spec.port())).or_insert((rank, group.tag));
            *best = (rank, group.tag).min(*best);
        }
    }
    for (address, tag) in &wildcards {
        let key = SocketKey { address: *address, nth: 0 };
        plan.insert(key, PlannedSocket { tag: *tag, portals: Vec::new() });
    }
    for ((ip, port), (rank, tag)) in chosen {
        let everything = SocketAddr::new(unspecified_like(ip), port);
        let address =
            if wildcards.contains_key(&everything) { everything } else { SocketAddr::new(ip, port) };
        let socket = plan.entry(SocketKey { address, nth: 0 }).or_default();
        if address.ip() == ip {
            socket.tag = tag;
        }
        socket.portals.push(PlannedPortal { ip, tag, named: rank != u8::MAX });
    }
    plan
}

/// The addresses that are asked for by name: what the machine has, as far as can be known where it does not say.
pub(super) fn assumed(groups: &[PortalGroup]) -> Vec<MachineAddress> {
    let named = |spec: &PortalSpec| match spec.scope() {
        PortalScope::Address(ip) if !ip.is_unspecified() => Some(MachineAddress {
            ip: *ip,
            network: (*ip).into(),
            interface: String::new(),
            loopback: false,
            deprecated: false,
        }),
        _ => None,
    };
    groups.iter().flat_map(|group| &group.listen).filter_map(named).collect()
}

fn unspecified_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The more particular, the lower.
fn rank(scope: &PortalScope) -> u8 {
    match scope {
        PortalScope::Address(ip) if ip.is_unspecified() => u8::MAX,
        PortalScope::Address(_) => 0,
        // 1 to 129.
        PortalScope::Network(network) => network.max_prefix_len() - network.prefix_len() + 1,
        PortalScope::Interface(_) => u8::MAX - 1,
    }
}

/// The addresses of the machine that an entry means.
pub(super) fn meant(scope: &PortalScope, machine: &[MachineAddress]) -> BTreeSet<IpAddr> {
    let those = |condition: &dyn Fn(&MachineAddress) -> bool| {
        let fit = |address: &&MachineAddress| is_told(address) && condition(address);
        machine.iter().filter(fit).map(|address| address.ip).collect()
    };
    match scope {
        PortalScope::Address(every) if every.is_unspecified() => {
            those(&|address| address.ip.is_ipv4() == every.is_ipv4())
        }
        PortalScope::Address(ip) => {
            // Asked for by name: whatever else is known about it.
            let is_it = |address: &MachineAddress| {
                address.ip == *ip || (address.loopback && address.network.contains(ip))
            };
            machine.iter().any(is_it).then_some(*ip).into_iter().collect()
        }
        PortalScope::Interface(name) => those(&|address| address.interface == *name),
        PortalScope::Network(network) => those(&|address| network.contains(&address.ip)),
    }
}

/// Returns `true` if initiators can be told an address that no entry names.
fn is_told(address: &MachineAddress) -> bool {
    let link_local = match address.ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !link_local && !address.deprecated
}

/// A portal that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portal {
    pub(crate) address: SocketAddr,
    pub(crate) tag: u16,
    /// See [`PlannedPortal::named`].
    pub(crate) named: bool,
}

/// The portals that are listened on, with real ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Portals {
    known: Vec<Portal>,
    /// Sockets that take connections to every address, by that unspecified address.
    everything: Vec<Portal>,
    /// Addresses of the machine, to know which share a network.
    machine: Vec<MachineAddress>,
}

impl Portals {
    /// Adds a socket that listens, with the port it really has.
    pub(crate) fn add(&mut self, key: SocketKey, port: u16, socket: &PlannedSocket) {
        let ip = key.address.ip();
        if ip.is_unspecified() {
            let address = SocketAddr::new(ip, port);
            self.everything.push(Portal { address, tag: socket.tag, named: false });
        }
        let portals = socket.portals.iter();
        self.known.extend(portals.map(|PlannedPortal { ip, tag, named }| Portal {
            address: SocketAddr::new(*ip, port),
            tag: *tag,
            named: *named,
        }));
    }

    /// With what the machine has.
    pub(crate) fn on(machine: Vec<MachineAddress>) -> Self {
        Self { machine, ..Self::default() }
    }

    /// All, those that stand for every address among them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Portal> {
        self.everything.iter().chain(&self.known)
    }

    /// The group of a connection, by the local address that it came to.
    pub(crate) fn tag_of(&self, local: SocketAddr) -> Option<u16> {
        let (ip, port) = (local.ip(), local.port());
        let is_it = |portal: &&Portal| portal.address.ip() == ip && portal.address.port() == port;
        let takes_it =
            |portal: &&Portal| portal.address.is_ipv4() == local.is_ipv4() && portal.address.port() == port;
        let found = self.known.iter().find(is_it).or_else(|| self.everything.iter().find(takes_it));
        found.map(|portal| portal.tag)
    }

    /// Returns `true` if a connection to this address reaches a portal of ours.
    pub(crate) fn is_own(&self, address: SocketAddr) -> bool {
        let everything = || {
            self.everything.iter().any(|portal| {
                portal.address.is_ipv4() == address.is_ipv4() && portal.address.port() == address.port()
            })
        };
        self.known.iter().any(|portal| portal.address == address)
            || address.ip().is_loopback() && everything()
    }

    /// Returns `true` if the server listens on a portal of a group that is `offered`.
    pub(crate) fn any(&self, offered: impl Fn(u16) -> bool) -> bool {
        self.iter().any(|portal| offered(portal.tag))
    }

    /// Returns the portals for the answer to SendTargets: first the one that the initiator came by, then those that it
    /// may be able to reach, as `advertise` says; all of `offered` groups only. Loopback and link-local addresses mean
    /// nothing to another machine and are told only to an initiator that came by one.
    pub(crate) fn told(
        &self,
        ends: Ends,
        advertise: Advertise,
        offered: impl Fn(u16) -> bool,
    ) -> Vec<Portal> {
        let here = ends.local.ip().to_canonical();
        let useful =
            |ip: IpAddr| ip == here || (is_loopback_like(here) && ip.is_loopback()) || !is_loopback_like(ip);
        let near = self.near(ends);
        let reachable = |portal: &Portal| match advertise {
            Advertise::All => true,
            Advertise::Reachable => portal.named || near(portal.address.ip()),
            Advertise::SameNetwork => near(portal.address.ip()),
        };
        let came_by = SocketAddr::new(here, ends.local.port());
        let came_by = self.tag_of(came_by).map(|tag| Portal { address: came_by, tag, named: true });
        let mut all: Vec<Portal> = came_by.into_iter().filter(|portal| offered(portal.tag)).collect();
        for portal in &self.known {
            let known = all.iter().any(|other| other.address == portal.address);
            if !known && useful(portal.address.ip()) && offered(portal.tag) && reachable(portal) {
                all.push(*portal);
            }
        }
        all
    }

    /// Returns a filter for addresses in one network with an initiator, or with the portal that it came by: those of
    /// the interfaces that have an address there. An initiator on this machine is in one network with all. Where
    /// nothing is known of the machine, nothing is left out.
    fn near(&self, ends: Ends) -> impl Fn(IpAddr) -> bool {
        let (here, peer) = (ends.local.ip().to_canonical(), ends.peer.ip().to_canonical());
        let own = peer.is_loopback() || self.machine.iter().any(|address| address.ip == peer);
        let everywhere = own || self.machine.is_empty();
        let in_network = |address: &MachineAddress| {
            address.ip == here || address.network.contains(&here) || address.network.contains(&peer)
        };
        let interfaces: BTreeSet<_> = self
            .machine
            .iter()
            .filter(|address| in_network(address))
            .map(|address| address.interface.as_str())
            .collect();
        let addresses: BTreeSet<IpAddr> = self
            .machine
            .iter()
            .filter(|address| interfaces.contains(address.interface.as_str()))
            .map(|address| address.ip)
            .collect();
        move |ip| everywhere || addresses.contains(&ip)
    }
}

impl Portals {
    /// Returns the portals of `offered` groups whose addresses mean something to any machine.
    pub(crate) fn lasting(&self, offered: impl Fn(u16) -> bool) -> Vec<(SocketAddr, u16)> {
        let portals = self.known.iter().filter(|portal| !is_loopback_like(portal.address.ip()));
        portals.filter(|portal| offered(portal.tag)).map(|portal| (portal.address, portal.tag)).collect()
    }
}

fn is_loopback_like(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(tag: u16, listen: &[&str]) -> PortalGroup {
        PortalGroup { tag, listen: listen.iter().map(|text| text.parse().unwrap()).collect() }
    }

    fn address(interface: &str, network: &str) -> MachineAddress {
        let network: ipnet::IpNet = network.parse().unwrap();
        MachineAddress {
            ip: network.addr(),
            network,
            interface: interface.to_owned(),
            loopback: interface == "lo",
            deprecated: false,
        }
    }

    fn machine() -> Vec<MachineAddress> {
        vec![
            address("lo", "127.0.0.1/8"),
            address("lo", "::1/128"),
            address("eth0", "10.0.0.1/24"),
            address("eth0", "fe80::1/64"),
            address("eth0", "fd00::1/64"),
            address("eth1", "10.0.1.1/24"),
            address("eth1", "169.254.0.7/16"),
        ]
    }

    /// Sockets, and behind each its portals with their groups.
    fn shown(groups: &[PortalGroup], machine: &[MachineAddress]) -> Vec<String> {
        let plan = plan(groups, machine);
        let line = |(key, socket): (SocketKey, PlannedSocket)| {
            let portals: Vec<_> =
                socket.portals.iter().map(|PlannedPortal { ip, tag, .. }| format!("{ip},{tag}")).collect();
            format!("{}: {}", key.address, portals.join(" "))
        };
        plan.into_iter().map(line).collect()
    }

    fn portals(groups: &[PortalGroup], machine: &[MachineAddress]) -> Portals {
        let mut portals = Portals::on(machine.to_vec());
        for (key, socket) in plan(groups, machine) {
            portals.add(key, key.address.port(), &socket);
        }
        portals
    }

    /// Returns the portals told to an initiator at `peer` that came by a portal.
    fn told_to(peer: &str, portals: &Portals, advertise: Advertise, came_by: &str) -> Vec<String> {
        let peer = SocketAddr::new(peer.parse().unwrap(), 40_000);
        let told = portals.told(Ends { local: came_by.parse().unwrap(), peer }, advertise, |_| true);
        told.iter().map(|portal| format!("{},{}", portal.address, portal.tag)).collect()
    }

    /// Returns the portals told to an initiator that is told all portals.
    fn told(groups: &[PortalGroup], machine: &[MachineAddress], came_by: &str) -> Vec<String> {
        told_to("10.0.0.77", &portals(groups, machine), Advertise::All, came_by)
    }

    #[test]
    fn portals_of_other_networks_are_told_only_where_an_entry_names_them() {
        let mut machine = machine();
        machine.push(address("docker0", "172.17.0.1/16"));
        machine.push(address("eth2", "10.0.0.2/24"));
        let wild = portals(&[group(1, &["0.0.0.0", "[::]"])], &machine);
        let near = ["10.0.0.1:3260,1", "10.0.0.2:3260,1", "[fd00::1]:3260,1"];
        for advertise in [Advertise::Reachable, Advertise::SameNetwork] {
            assert_eq!(told_to("10.0.0.77", &wild, advertise, "10.0.0.1:3260"), near);
            assert_eq!(told_to("10.0.1.77", &wild, advertise, "10.0.1.1:3260"), ["10.0.1.1:3260,1"]);
            assert_eq!(told_to("172.17.0.5", &wild, advertise, "172.17.0.1:3260"), ["172.17.0.1:3260,1"]);
            // Through a router: the network of the portal that it came by.
            assert_eq!(told_to("198.51.100.9", &wild, advertise, "10.0.0.1:3260"), near);
            let here = told_to("10.0.0.1", &wild, advertise, "10.0.0.1:3260");
            assert_eq!(here.len(), 5, "a program on this machine reaches all: {here:?}");
        }
        // Over a router to a portal of another network than its own.
        assert_eq!(
            told_to("10.0.0.77", &wild, Advertise::Reachable, "10.0.1.1:3260"),
            ["10.0.1.1:3260,1", "10.0.0.1:3260,1", "10.0.0.2:3260,1", "[fd00::1]:3260,1"]
        );
        let all = told_to("10.0.0.77", &wild, Advertise::All, "10.0.0.1:3260");
        assert!(all.contains(&"172.17.0.1:3260,1".to_owned()), "{all:?}");

        let named = portals(&[group(1, &["10.0.0.1", "eth1"]), group(2, &["172.16.0.0/12"])], &machine);
        let of = |advertise| told_to("10.0.0.77", &named, advertise, "10.0.0.1:3260");
        assert_eq!(of(Advertise::Reachable), ["10.0.0.1:3260,1", "10.0.1.1:3260,1", "172.17.0.1:3260,2"]);
        assert_eq!(of(Advertise::SameNetwork), ["10.0.0.1:3260,1"]);
        assert_eq!(of(Advertise::All), of(Advertise::Reachable));
    }

    #[test]
    fn one_socket_takes_every_address_and_particular_entries_only_choose_the_group() {
        let groups = [group(1, &["0.0.0.0", "10.0.0.1:3261"]), group(2, &["10.0.1.1"])];
        assert_eq!(
            shown(&groups, &machine()),
            ["0.0.0.0:3260: 10.0.0.1,1 10.0.1.1,2 127.0.0.1,1", "10.0.0.1:3261: 10.0.0.1,1"]
        );
        let after = shown(&groups, &machine()[..3]);
        assert_eq!(after, ["0.0.0.0:3260: 10.0.0.1,1 127.0.0.1,1", "10.0.0.1:3261: 10.0.0.1,1"]);
    }

    #[test]
    fn the_most_particular_entry_decides_on_the_group() {
        let groups = [
            group(1, &["0.0.0.0", "10.0.0.0/8"]),
            group(2, &["eth0", "eth1"]),
            group(3, &["10.0.1.0/24"]),
            group(4, &["10.0.0.1"]),
            group(5, &["10.0.0.1"]),
        ];
        assert_eq!(
            shown(&groups, &machine()),
            ["0.0.0.0:3260: 10.0.0.1,4 10.0.1.1,3 127.0.0.1,1", "[fd00::1]:3260: fd00::1,2"]
        );
    }

    #[test]
    fn interfaces_and_networks_stand_for_addresses_that_initiators_can_be_told() {
        assert_eq!(
            shown(&[group(1, &["eth0", "eth1:3261"])], &machine()),
            ["10.0.0.1:3260: 10.0.0.1,1", "10.0.1.1:3261: 10.0.1.1,1", "[fd00::1]:3260: fd00::1,1"]
        );
        assert_eq!(shown(&[group(1, &["fd00::/8"])], &machine()), ["[fd00::1]:3260: fd00::1,1"]);
        let mut deprecated = machine();
        deprecated.iter_mut().for_each(|address| address.deprecated = true);
        assert!(shown(&[group(1, &["eth0", "10.0.0.0/8"])], &deprecated).is_empty());
        assert_eq!(shown(&[group(1, &["10.0.0.1"])], &deprecated).len(), 1);
    }

    #[test]
    fn an_address_that_the_machine_does_not_have_is_waited_for() {
        let groups = [group(1, &["10.0.0.9", "127.0.0.5", "[fd00::9]:0", "eth7"])];
        assert_eq!(shown(&groups, &machine()), ["127.0.0.5:3260: 127.0.0.5,1"]);
        let mut more = machine();
        more.push(address("eth7", "10.0.0.9/24"));
        more.push(address("eth7", "fd00::9/64"));
        assert_eq!(
            shown(&groups, &more),
            [
                "10.0.0.9:3260: 10.0.0.9,1",
                "127.0.0.5:3260: 127.0.0.5,1",
                "[fd00::9]:0: fd00::9,1",
                "[fd00::9]:3260: fd00::9,1"
            ]
        );
    }

    #[test]
    fn two_entries_with_any_free_port_are_two_sockets() {
        let groups = [group(1, &["127.0.0.1:0", "127.0.0.1:0"])];
        assert_eq!(shown(&groups, &machine()), ["127.0.0.1:0: 127.0.0.1,1", "127.0.0.1:0: 127.0.0.1,1"]);
    }

    #[test]
    fn an_initiator_is_told_the_portal_it_came_by_and_then_the_others() {
        let groups = [group(1, &["0.0.0.0"])];
        assert_eq!(told(&groups, &machine(), "10.0.1.1:3260"), ["10.0.1.1:3260,1", "10.0.0.1:3260,1"]);
    }

    #[test]
    fn loopback_and_link_local_addresses_are_told_only_to_who_came_by_them() {
        let groups = [group(1, &["127.0.0.1", "10.0.0.1", "[::]:3261"])];
        assert_eq!(told(&groups, &machine(), "10.0.0.1:3260"), ["10.0.0.1:3260,1", "[fd00::1]:3261,1"]);
        assert_eq!(
            told(&groups, &machine(), "127.0.0.1:3260"),
            ["127.0.0.1:3260,1", "10.0.0.1:3260,1", "[::1]:3261,1", "[fd00::1]:3261,1"]
        );
        assert_eq!(
            told(&[group(1, &["0.0.0.0"])], &machine(), "169.254.0.7:3260"),
            ["169.254.0.7:3260,1", "10.0.0.1:3260,1", "10.0.1.1:3260,1", "127.0.0.1:3260,1"]
        );
    }

    #[test]
    fn an_address_that_is_not_known_yet_belongs_to_the_socket_that_took_it() {
        let groups = [group(7, &["0.0.0.0"]), group(8, &["10.0.0.1"])];
        assert_eq!(told(&groups, &[], "10.0.0.9:3260"), ["10.0.0.9:3260,7"]);
        assert_eq!(told(&groups, &machine(), "10.0.0.9:9999").first().unwrap(), "10.0.0.1:3260,8");
    }

    #[test]
    fn only_groups_that_are_offered_are_told() {
        let portals = portals(&[group(1, &["10.0.0.1"]), group(2, &["10.0.1.1"])], &machine());
        let (local, peer) = ("10.0.0.1:3260".parse().unwrap(), "10.0.0.77:40000".parse().unwrap());
        let told = portals.told(Ends { local, peer }, Advertise::Reachable, |tag| tag == 2);
        assert_eq!(told, [Portal { address: "10.0.1.1:3260".parse().unwrap(), tag: 2, named: true }]);
        assert_eq!(portals.tag_of("10.0.1.1:3260".parse().unwrap()), Some(2));
    }
}
