//! The kernel's routing socket: which addresses the machine has, and news of changes.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};
use socket2::SockRef;

use crate::address::MachineAddress;

/// Netlink answer timeout: a kernel that takes a second is broken.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// A list that changed while it was read is read again, this often.
const ATTEMPTS: usize = 5;
/// Multicast groups RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR (rtnetlink(7)).
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Tells that something changed at the machine's interfaces and addresses, not what: who is told reads
/// [`addresses`] anew. So news that the kernel had to drop, or that came twice, do no harm.
pub(crate) struct News(TokioSocket);

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("News")
    }
}

impl News {
    /// Needs a runtime.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Waits until there are some.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        match self.0.recv_from_full().await {
            // More news than the socket's buffer can hold are news all the same.
            Err(error) if !is_lossy(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

fn is_lossy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

/// The unicast addresses of all interfaces that are up, those aside that are not known yet to be the only ones on
/// their link (tentative, RFC 4862 §5.4).
pub(crate) fn addresses() -> io::Result<Vec<MachineAddress>> {
    let socket = socket()?;
    let links = dump(&socket, &RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let links: HashMap<u32, LinkMessage> = links
        .into_iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some((link.header.index, link)),
            _ => None,
        })
        .collect();
    let found = dump(&socket, &RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    let found = found.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewAddress(address) => usable(address, &links),
        _ => None,
    });
    let mut addresses: Vec<_> = found.collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// All interfaces, as the kernel tells of them.
pub(crate) fn links() -> io::Result<Vec<RouteNetlinkMessage>> {
    dump(&socket()?, &RouteNetlinkMessage::GetLink(LinkMessage::default()))
}

/// Asks for the way to an address.
pub(crate) fn route(request: RouteNetlinkMessage) -> io::Result<RouteMessage> {
    let socket = socket()?;
    send(&socket, request, NLM_F_REQUEST)?;
    let (bytes, _) = socket.recv_from_full()?;
    match take(&bytes)?.1.map(|message| message.payload) {
        Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route))) => Ok(route),
        Some(NetlinkPayload::Error(error)) => Err(error.to_io()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "netlink's answer is no route")),
    }
}

/// A socket for questions.
fn socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    SockRef::from(&socket).set_read_timeout(Some(ANSWER_TIME))?;
    Ok(socket)
}

fn send(socket: &Socket, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Asks for a list.
fn dump(socket: &Socket, request: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 0..ATTEMPTS {
        send(socket, request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
        if let Some(list) = receive(socket)? {
            return Ok(list);
        }
    }
    Err(io::Error::other("the machine's addresses change faster than they can be read"))
}

/// Takes an answer to its end. `None`: the list changed meanwhile.
fn receive(socket: &Socket) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
    let (mut list, mut whole) = (Vec::new(), true);
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (len, message) = take(rest)?;
            rest = rest.get(len..).unwrap_or_default();
            let Some(message) = message else { continue };
            whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(whole.then_some(list)),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => list.push(message),
                _ => {}
            }
        }
    }
}

/// The first message and the bytes that it takes; `None` where a kernel newer than the library has said something that
/// this cannot read: an interface of a strange kind must not hide the others.
fn take(bytes: &[u8]) -> io::Result<(usize, Option<NetlinkMessage<RouteNetlinkMessage>>)> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a message of netlink without its length");
    let len = bytes.first_chunk().map(|len| u32::from_ne_bytes(*len) as usize);
    let len = len.filter(|len| (16..=bytes.len()).contains(len)).ok_or_else(damaged)?;
    let message = NetlinkMessage::deserialize(&bytes[..len])
        .inspect_err(|error| tracing::debug!("a message of netlink is not understood: {error}"));
    Ok((len.next_multiple_of(4), message.ok()))
}

/// Returns the name of the interface.
pub(crate) fn name(link: &LinkMessage) -> Option<&String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

fn usable(message: &AddressMessage, links: &HashMap<u32, LinkMessage>) -> Option<MachineAddress> {
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    let (mut address, mut local): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let link = links.get(&message.header.index).filter(|link| link.header.flags.contains(LinkFlags::Up))?;
    // On a link between two points IFA_ADDRESS is the other end's.
    let ip = local.or(address)?;
    let alone = !flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed);
    alone.then_some(MachineAddress {
        ip,
        network: IpNet::new(ip, message.header.prefix_len).ok()?,
        interface: name(link)?.clone(),
        loopback: link.header.flags.contains(LinkFlags::Loopback),
        deprecated: flags.contains(AddressFlags::Deprecated),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn message(prefix: u8, index: u32, attributes: Vec<AddressAttribute>) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.attributes = attributes;
        message
    }

    fn links() -> HashMap<u32, LinkMessage> {
        let link = |name: &str, flags| {
            let mut link = LinkMessage::default();
            link.header.flags = flags;
            link.attributes.push(LinkAttribute::IfName(name.to_owned()));
            link
        };
        let loopback = LinkFlags::Up | LinkFlags::Loopback;
        HashMap::from([
            (1, link("lo", loopback)),
            (2, link("eth0", LinkFlags::Up)),
            (3, link("eth1", LinkFlags::empty())),
        ])
    }

    #[test]
    fn an_address_is_its_own_end_of_a_link_between_two_points() {
        let (other, own) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
        let attributes = vec![AddressAttribute::Address(other.into()), AddressAttribute::Local(own.into())];
        let address = usable(&message(32, 2, attributes), &links()).unwrap();
        assert_eq!((address.ip, address.interface.as_str()), (own.into(), "eth0"));
    }

    #[test]
    fn addresses_that_are_tentative_or_on_an_interface_that_is_down_are_none() {
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let with = |flags, index| {
            let attributes = vec![AddressAttribute::Address(v6.into()), AddressAttribute::Flags(flags)];
            usable(&message(64, index, attributes), &links()).map(|address| address.deprecated)
        };
        assert_eq!(with(AddressFlags::empty(), 2), Some(false));
        assert_eq!(with(AddressFlags::Deprecated, 2), Some(true));
        assert_eq!(with(AddressFlags::Tentative, 2), None);
        assert_eq!(with(AddressFlags::Dadfailed, 2), None);
        assert_eq!(with(AddressFlags::empty(), 3), None);
        assert_eq!(with(AddressFlags::empty(), 9), None);
    }

    #[test]
    fn a_message_whose_length_is_wrong_ends_the_reading() {
        for len in [0_u32, 15, 17] {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert!(take(&bytes).is_err(), "{len}");
        }
        assert!(take(&[1, 0]).is_err());
    }

    #[test]
    fn the_kernel_says_which_addresses_there_are() {
        let all = match addresses() {
            Ok(all) => all,
            Err(error) => return lunway_foreign::not_run(&format!("netlink: {error}")),
        };
        let local = all.iter().find(|address| address.ip == Ipv4Addr::LOCALHOST).unwrap();
        assert!(local.loopback && local.network.prefix_len() == 8);
    }
}
