//! Inventory of a network: the local ports, portals and routes that a plan is made of.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// A local address, and the card behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// The address.
    pub ip: IpAddr,
    /// The network that it is in.
    pub network: IpNet,
    /// Its interface.
    pub interface: String,
    /// The card that carries it: the interface itself, or what that stands on.
    pub card: String,
    /// Speed that the card negotiated, bits per second.
    pub speed: Option<u64>,
    /// Longest packet, bytes.
    pub mtu: Option<u32>,
    /// A cable is in it, and something at the other end.
    pub carrier: bool,
    /// Leads nowhere but to this machine.
    pub loopback: bool,
}

/// An address where the storage answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// The name under which it has the disk, where that is not the address's: arrays have a name for each port or node.
    pub target: Option<String>,
    /// Tag of its portal group (RFC 7143 §4.4.1), where the storage has told.
    pub group: Option<u16>,
    /// The user named it: it is not left out.
    pub named: bool,
}

/// Route of a packet to a portal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The interface by which it leaves.
    pub interface: Option<String>,
    /// The local address that it carries.
    pub source: Option<IpAddr>,
    /// The router that it goes to first.
    pub gateway: Option<IpAddr>,
}

/// Ports of the machine and portals of the storage: the input of a plan.
pub struct Inventory<'a> {
    /// The machine's addresses, in an order that stays.
    pub locals: Vec<LocalPort>,
    /// The storage's portals, in an order that stays.
    pub portals: Vec<Portal>,
    /// Asks the kernel for the route to an address, with a source or without; `None`: there is none, or it is not
    /// known.
    pub route: &'a dyn Fn(Option<IpAddr>, IpAddr) -> Option<Route>,
}

impl fmt::Debug for Inventory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Inventory");
        shown.field("locals", &self.locals).field("portals", &self.portals).finish_non_exhaustive()
    }
}

impl Inventory<'_> {
    /// The port that has an address. An address of a loopback's network that no interface has works all the same, as
    /// on Linux. One that the machine does not have may come yet; a network of the usual size is assumed around it.
    pub(super) fn local(&self, ip: IpAddr) -> LocalPort {
        if let Some(port) = self.locals.iter().find(|port| port.ip == ip) {
            return port.clone();
        }
        let around = self.locals.iter().find(|port| port.loopback && port.network.contains(&ip));
        if let Some(loopback) = around {
            return LocalPort { ip, ..loopback.clone() };
        }
        let len = if ip.is_ipv4() { 24 } else { 64 };
        LocalPort {
            ip,
            network: IpNet::new(ip, len).unwrap_or_else(|_| ip.into()),
            interface: String::new(),
            card: ip.to_string(),
            speed: None,
            mtu: None,
            carrier: false,
            loopback: false,
        }
    }
}

impl LocalPort {
    /// Returns the key that tells it from others: the card, except on the loopback, whose addresses stand for ports.
    pub(super) fn key(&self) -> String {
        if self.loopback { self.ip.to_string() } else { self.card.clone() }
    }

    /// Returns the name for people.
    pub(super) fn title(&self) -> String {
        if self.interface.is_empty() {
            self.ip.to_string()
        } else {
            format!("{} ({})", self.interface, self.ip)
        }
    }
}
