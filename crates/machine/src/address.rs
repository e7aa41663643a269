//! Addresses of this machine.

use std::net::IpAddr;

use ipnet::IpNet;

/// An address of this machine, on an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineAddress {
    /// Itself.
    pub ip: IpAddr,
    /// The network that the interface reaches by it.
    pub network: IpNet,
    /// Name of the interface.
    pub interface: String,
    /// The interface is a loopback: its whole network is this machine.
    pub loopback: bool,
    /// New connections should not use it (RFC 4862 §5.5.4).
    pub deprecated: bool,
}
