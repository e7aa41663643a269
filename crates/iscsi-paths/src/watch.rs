//! Cables that are pulled and put back, as the kernel tells of them.

use std::net::IpAddr;
use std::sync::Arc;

use lunway_machine::{Link, Machine, MachineAddress};

use crate::lane::IscsiLane;

/// Trouble of a local address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    /// Its interface has no carrier.
    NoCarrier(String),
    /// The machine does not have it, or has switched its interface off.
    NoAddress(String),
}

impl Trouble {
    fn of(ip: IpAddr, interface: &str, addresses: &[MachineAddress], links: &[Link]) -> Option<Self> {
        let address = addresses
            .iter()
            .find(|address| address.ip == ip || (address.loopback && address.network.contains(&ip)));
        let Some(address) = address else {
            let link = links.iter().find(|link| link.name == interface);
            // An interface that is off has no address that could be used.
            return Some(match link {
                Some(link) if !link.carrier => Self::NoCarrier(interface.to_owned()),
                _ => Self::NoAddress(ip.to_string()),
            });
        };
        let link = links.iter().find(|link| link.name == address.interface)?;
        (!link.carrier && !link.loopback).then(|| Self::NoCarrier(link.name.clone()))
    }

    fn sentence(&self) -> String {
        match self {
            Self::NoCarrier(interface) => format!("cable pulled: {interface} has no carrier"),
            Self::NoAddress(ip) => format!("{ip} is no address of this machine any more"),
        }
    }
}

/// A lane's local address, and whether something is wrong with it.
struct Watched {
    lane: Arc<IscsiLane>,
    ip: IpAddr,
    interface: String,
    trouble: Option<Trouble>,
}

/// Watches cables: sets the port of a lane down when its cable is pulled, and up when it is back; for ever.
///
/// It hears of the network namespace in which `machine` was made.
pub(crate) async fn watch(machine: Machine, lanes: Vec<Arc<IscsiLane>>) {
    let watched = lanes.into_iter().filter_map(|lane| {
        let interface = lane.planned.interface.clone().unwrap_or_default();
        Some(Watched { ip: lane.planned.near?, lane, interface, trouble: None })
    });
    let mut watched: Vec<_> = watched.collect();
    loop {
        look(&machine, &mut watched);
        machine.told().await;
    }
}

fn look(machine: &Machine, watched: &mut [Watched]) {
    let (Ok(addresses), Ok(links)) = (machine.addresses(), machine.links()) else { return };
    for watched in watched {
        let trouble = Trouble::of(watched.ip, &watched.interface, &addresses, &links);
        if trouble == watched.trouble {
            continue;
        }
        match &trouble {
            Some(trouble) => watched.lane.set_port_down(&trouble.sentence()),
            None => watched.lane.set_port_up(),
        }
        watched.trouble = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: &str, network: &str) -> MachineAddress {
        let network: ipnet::IpNet = network.parse().unwrap();
        let loopback = interface == "lo";
        MachineAddress {
            ip: network.addr(),
            network,
            interface: interface.to_owned(),
            loopback,
            deprecated: false,
        }
    }

    fn link(name: &str, carrier: bool) -> Link {
        let loopback = name == "lo";
        Link { name: name.to_owned(), index: 1, carrier, mtu: None, loopback, below: None, speed: None }
    }

    #[test]
    fn a_pulled_cable_and_a_lost_address_are_told_apart() {
        let ip = "10.0.0.1".parse().unwrap();
        let of = |addresses: &[MachineAddress], links: &[Link]| {
            Trouble::of(ip, "eth0", addresses, links).map(|trouble| trouble.sentence())
        };
        let here = [address("eth0", "10.0.0.1/24")];
        assert_eq!(of(&here, &[link("eth0", true)]), None);
        let pulled = Some("cable pulled: eth0 has no carrier".to_owned());
        assert_eq!(of(&here, &[link("eth0", false)]), pulled);
        assert_eq!(of(&[], &[link("eth0", false)]), pulled, "an interface that is off lists no address");
        let gone = Some("10.0.0.1 is no address of this machine any more".to_owned());
        assert_eq!(of(&[], &[link("eth0", true)]), gone);
        assert_eq!(of(&[], &[]), gone);
    }

    #[test]
    fn every_address_of_the_loopback_is_always_there() {
        let lo = [address("lo", "127.0.0.1/8")];
        let trouble = Trouble::of("127.9.9.9".parse().unwrap(), "lo", &lo, &[link("lo", false)]);
        assert_eq!(trouble, None);
    }
}
