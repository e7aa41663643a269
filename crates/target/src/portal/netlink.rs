//! The kernel's routing socket: which addresses the machine has, and news of changes.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ipnet::IpNet;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use tokio::net::UnixDatagram;

use super::machine::MachineAddress;

/// What the kernel takes a second for is broken.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The kernel cuts its answers into messages of at most this much (`NLMSG_GOODSIZE` is 8 KiB, dumps grow to 32 KiB).
const BUFFER_LEN: usize = 32 << 10;
/// A list that changed while it was read is read again, this often.
const ATTEMPTS: usize = 5;

// The following are of rtnetlink(7), and of the kernel's `netlink.h`, `if_link.h`, `if_addr.h`.

/// Multicast groups RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// NLM_F_REQUEST, NLM_F_ROOT, NLM_F_MATCH.
const DUMP_REQUEST: u16 = 0x301;
const NLM_F_DUMP_INTR: u16 = 0x10;
const IFLA_IFNAME: u16 = 3;
const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const MESSAGE_HEADER_LEN: usize = 16;
const LINK_HEADER_LEN: usize = 16;
const ADDRESS_HEADER_LEN: usize = 8;

/// Tells that something changed at the machine's interfaces and addresses, not what: who is told reads
/// [`addresses`] anew. So news that the kernel had to drop, or that came twice, do no harm.
///
/// The socket is held as what it is not, a datagram socket of the Unix domain: of the types that the runtime can wait for it
/// is the one whose `recv` does exactly that and asks for no address.
#[derive(Debug)]
pub(super) struct News(UnixDatagram);

impl News {
    /// Needs a runtime.
    pub(super) fn subscribe() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(UnixDatagram::from_std(socket.into())?))
    }

    /// Waits until there are some, and takes all that there are.
    pub(super) async fn wait(&self) -> io::Result<()> {
        let mut scrap = [0; 4096];
        lossy(self.0.recv(&mut scrap).await)?;
        loop {
            match self.0.try_recv(&mut scrap) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => lossy(result)?,
            }
        }
    }
}

/// More news than the socket's buffer can hold are news all the same.
fn lossy(received: io::Result<usize>) -> io::Result<()> {
    match received {
        Err(error) if error.raw_os_error() != Some(Errno::NOBUFS.raw_os_error()) => Err(error),
        _ => Ok(()),
    }
}

/// The unicast addresses of all interfaces that are up, those aside that are not known yet to be the only ones on
/// their link (tentative, RFC 4862 §5.4).
pub(super) fn addresses() -> io::Result<Vec<MachineAddress>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIME))?;
    let mut links = HashMap::new();
    dump(&socket, RTM_GETLINK, &mut |kind, body| {
        if kind == RTM_NEWLINK
            && let Some((index, link)) = Link::parse(body)
        {
            links.insert(index, link);
        }
    })?;
    let mut addresses = Vec::new();
    dump(&socket, RTM_GETADDR, &mut |kind, body| {
        if kind == RTM_NEWADDR {
            addresses.extend(parse_address(body, &links));
        }
    })?;
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// Asks for a list and hands over its messages.
fn dump(socket: &OwnedFd, request: u16, take: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_LEN];
    for _ in 0..ATTEMPTS {
        ask(socket, request)?;
        if receive(socket, &mut buffer, take)? {
            return Ok(());
        }
    }
    Err(io::Error::other("the machine's addresses change faster than they can be read"))
}

/// A header and an empty `ifinfomsg`, which is at least as long as any other request's: of every family.
fn ask(socket: &OwnedFd, request: u16) -> io::Result<()> {
    const LEN: usize = MESSAGE_HEADER_LEN + LINK_HEADER_LEN;
    let mut message = [0; LEN];
    message[0..4].copy_from_slice(&(LEN as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&request.to_ne_bytes());
    message[6..8].copy_from_slice(&DUMP_REQUEST.to_ne_bytes());
    send(socket.as_fd(), &message, SendFlags::empty())?;
    Ok(())
}

/// Takes an answer to its end. `false`: the list changed meanwhile.
fn receive(socket: &OwnedFd, buffer: &mut [u8], take: &mut dyn FnMut(u16, &[u8])) -> io::Result<bool> {
    let mut whole = true;
    loop {
        let (len, _) = recv(socket, &mut *buffer, RecvFlags::empty())?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for Message { kind, flags, body } in Messages(&buffer[..len]) {
            whole &= flags & NLM_F_DUMP_INTR == 0;
            match kind {
                NLMSG_DONE => return Ok(whole),
                NLMSG_ERROR => {
                    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                }
                kind => take(kind, body),
            }
        }
    }
}

/// One message of a datagram.
struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

/// The messages of a datagram.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (header, _) = self.0.split_first_chunk::<MESSAGE_HEADER_LEN>()?;
        let len = u32::from_ne_bytes(*header.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let flags = u16::from_ne_bytes([header[6], header[7]]);
        let body = self.0.get(MESSAGE_HEADER_LEN..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Message { kind, flags, body })
    }
}

/// The attributes after a message's own header.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let (header, _) = self.0.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        // The two highest bits say how the value is written, not what it is.
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

struct Link {
    name: String,
    flags: u32,
}

impl Link {
    /// An `ifinfomsg`: family, type, index, flags; then attributes.
    fn parse(body: &[u8]) -> Option<(u32, Self)> {
        let (header, attributes) = body.split_first_chunk::<LINK_HEADER_LEN>()?;
        let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        let name = Attributes(attributes).find(|(kind, _)| *kind == IFLA_IFNAME)?.1;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Some((word(4), Self { name: String::from_utf8_lossy(name).into_owned(), flags: word(8) }))
    }
}

/// An `ifaddrmsg`: family, length of the prefix, flags, scope, index; then attributes.
fn parse_address(body: &[u8], links: &HashMap<u32, Link>) -> Option<MachineAddress> {
    let (header, attributes) = body.split_first_chunk::<ADDRESS_HEADER_LEN>()?;
    let [family, prefix_len, flags, _scope, index @ ..] = header;
    let mut flags = u32::from(*flags);
    let (mut address, mut local) = (None, None);
    for (kind, value) in Attributes(attributes) {
        match kind {
            IFA_ADDRESS => address = ip(*family, value),
            IFA_LOCAL => local = ip(*family, value),
            IFA_FLAGS => flags = value.first_chunk().map_or(flags, |flags| u32::from_ne_bytes(*flags)),
            _ => {}
        }
    }
    let link = links.get(&u32::from_ne_bytes(*index)).filter(|link| link.flags & IFF_UP != 0)?;
    // On a link between two points IFA_ADDRESS is the other end's.
    let ip = local.or(address)?;
    let usable = flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == 0;
    usable.then_some(MachineAddress {
        ip,
        network: IpNet::new(ip, *prefix_len).ok()?,
        interface: link.name.clone(),
        loopback: link.flags & IFF_LOOPBACK != 0,
        deprecated: flags & IFA_F_DEPRECATED != 0,
    })
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::from(*value.first_chunk()?).into()),
        AF_INET6 => Some(Ipv6Addr::from(*value.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An `ifaddrmsg` with one attribute for each pair.
    fn message(family: u8, prefix: u8, flags: u8, index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![family, prefix, flags, 0];
        body.extend(index.to_ne_bytes());
        for (kind, value) in attributes {
            body.extend((value.len() as u16 + 4).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        body
    }

    fn links() -> HashMap<u32, Link> {
        let link = |name: &str, flags| Link { name: name.to_owned(), flags };
        HashMap::from([
            (1, link("lo", IFF_UP | IFF_LOOPBACK)),
            (2, link("eth0", IFF_UP)),
            (3, link("eth1", 0)),
        ])
    }

    #[test]
    fn an_address_is_its_own_end_of_a_link_between_two_points() {
        let body = message(AF_INET, 32, 0, 2, &[(IFA_ADDRESS, &[10, 0, 0, 2]), (IFA_LOCAL, &[10, 0, 0, 1])]);
        let address = parse_address(&body, &links()).unwrap();
        assert_eq!((address.ip.to_string().as_str(), address.interface.as_str()), ("10.0.0.1", "eth0"));
    }

    #[test]
    fn addresses_that_are_tentative_or_on_an_interface_that_is_down_are_none() {
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets();
        let with = |flags: u32, index| {
            let body =
                message(AF_INET6, 64, 0, index, &[(IFA_ADDRESS, &v6), (IFA_FLAGS, &flags.to_ne_bytes())]);
            parse_address(&body, &links()).map(|address| address.deprecated)
        };
        assert_eq!(with(0, 2), Some(false));
        assert_eq!(with(IFA_F_DEPRECATED, 2), Some(true));
        assert_eq!(with(IFA_F_TENTATIVE, 2), None);
        assert_eq!(with(IFA_F_DADFAILED, 2), None);
        assert_eq!(with(0, 3), None);
        assert_eq!(with(0, 9), None);
    }

    #[test]
    fn what_is_cut_short_anywhere_is_left_out() {
        let body = message(AF_INET, 8, 0, 1, &[(IFA_ADDRESS, &[127, 0, 0, 1])]);
        let mut datagram = vec![];
        datagram.extend((MESSAGE_HEADER_LEN as u32 + body.len() as u32).to_ne_bytes());
        datagram.extend(RTM_NEWADDR.to_ne_bytes());
        datagram.extend([0; 10]);
        datagram.extend(body);
        let parse = |datagram: &[u8]| {
            Messages(datagram).filter_map(|message| parse_address(message.body, &links())).count()
        };
        assert_eq!(parse(&datagram), 1);
        for len in 0..datagram.len() {
            assert_eq!(parse(&datagram[..len]), 0);
        }
        // A length of 0 must not be the same message for ever.
        datagram[..4].fill(0);
        assert_eq!(parse(&datagram), 0);
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
