//! The way to an address.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};

use crate::netlink;

/// The kernel's route to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The number of the interface by which packets leave; `None`: not known.
    pub index: Option<u32>,
    /// The local address that they carry.
    pub from: Option<IpAddr>,
    /// The router that they go to first; `None`: the address is reached on the link itself, or that is not known.
    pub gateway: Option<IpAddr>,
}

impl KernelRoute {
    /// Asks the kernel, which sends nothing for it: how would a packet get to `to`, with `from` as its source if there
    /// is one? In the network namespace of the calling thread.
    pub fn lookup(from: Option<IpAddr>, to: IpAddr) -> io::Result<Self> {
        match netlink::route(request(from, to)) {
            Ok(message) => Ok(Self::read(&message, from)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Self::by_connecting(from, to),
            Err(error) => Err(error),
        }
    }

    /// Finds the route without netlink: a connected socket, over which nothing is sent, knows its own address.
    fn by_connecting(from: Option<IpAddr>, to: IpAddr) -> io::Result<Self> {
        let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), 0))?;
        socket.connect(SocketAddr::new(to, 9))?;
        Ok(Self { index: None, from: Some(socket.local_addr()?.ip()), gateway: None })
    }

    fn read(message: &RouteMessage, asked: Option<IpAddr>) -> Self {
        let mut route = Self { index: None, from: asked, gateway: None };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => route.index = Some(*index),
                RouteAttribute::PrefSource(address) if asked.is_none() => route.from = ip(address),
                RouteAttribute::Gateway(address) => route.gateway = ip(address),
                _ => {}
            }
        }
        route
    }
}

fn request(from: Option<IpAddr>, to: IpAddr) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    let len = if to.is_ipv4() { 32 } else { 128 };
    message.header.address_family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.destination_prefix_length = len;
    message.attributes.push(RouteAttribute::Destination(address(to)));
    if let Some(from) = from {
        message.header.source_prefix_length = len;
        message.attributes.push(RouteAttribute::Source(address(from)));
    }
    RouteNetlinkMessage::GetRoute(message)
}

fn address(ip: IpAddr) -> RouteAddress {
    match ip {
        IpAddr::V4(ip) => RouteAddress::Inet(ip),
        IpAddr::V6(ip) => RouteAddress::Inet6(ip),
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_way_to_this_machine_is_its_loopback() {
        let (here, there) = (IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3]));
        let route = match KernelRoute::lookup(None, here) {
            Ok(route) => route,
            Err(error) => return lunway_foreign::not_run(&format!("netlink: {error}")),
        };
        let lo = crate::Link::all().unwrap().into_iter().find(|link| link.loopback).unwrap();
        assert_eq!((route.index, route.gateway), (Some(lo.index), None));
        assert!(route.from.is_some_and(|from| from.is_loopback()), "{route:?}");
        assert_eq!(KernelRoute::lookup(Some(there), here).unwrap().from, Some(there));
    }

    #[test]
    fn a_connected_socket_knows_its_own_address() {
        let route = KernelRoute::by_connecting(None, Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(route.from, Some(Ipv4Addr::LOCALHOST.into()));
    }
}
