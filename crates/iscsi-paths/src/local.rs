//! This machine's side of a plan.

use std::net::IpAddr;

use lunway_machine::{KernelRoute, Link, Machine, MachineAddress};
use lunway_multipath::plan::{self, LocalPort};

/// The addresses of this machine with their cards, and its kernel's routes: as they are in the network
/// namespace of the thread.
pub(crate) struct Local {
    pub(crate) ports: Vec<LocalPort>,
    links: Vec<Link>,
}

impl Local {
    /// Looks. What cannot be found out is left out: it is for the plan's sake only.
    pub(crate) fn look(machine: &Machine) -> Self {
        let unread = |error: &std::io::Error| tracing::warn!("cannot read this machine's addresses: {error}");
        let addresses = machine.addresses().inspect_err(unread).unwrap_or_default();
        let links = machine.links().inspect_err(unread).unwrap_or_default();
        let ports =
            addresses.iter().filter(|address| !address.deprecated).map(|address| port(address, &links));
        Self { ports: ports.collect(), links }
    }

    /// The kernel's route to an address.
    pub(crate) fn route(&self, from: Option<IpAddr>, to: IpAddr) -> Option<plan::Route> {
        let route = KernelRoute::lookup(from, to).ok()?;
        let link = route.index.and_then(|index| self.links.iter().find(|link| link.index == index));
        Some(plan::Route {
            interface: link.map(|link| link.name.clone()),
            source: route.from,
            gateway: route.gateway,
        })
    }
}

fn port(address: &MachineAddress, links: &[Link]) -> LocalPort {
    let link = links.iter().find(|link| link.name == address.interface);
    let below = link.and_then(|link| link.below.clone());
    let card = below.and_then(|below| links.iter().find(|link| link.name == below));
    LocalPort {
        ip: address.ip,
        network: address.network,
        interface: address.interface.clone(),
        card: card.map_or_else(|| address.interface.clone(), |card| card.name.clone()),
        speed: link.and_then(|link| link.speed).or_else(|| card.and_then(|card| card.speed)),
        mtu: link.and_then(|link| link.mtu),
        // Where nothing is known, nothing is wrong.
        carrier: link.is_none_or(|link| link.carrier),
        loopback: address.loopback,
    }
}
