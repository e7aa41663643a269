//! Owners of an IPv4 address on a port: ARP requests, as RFC 5227 has them for addresses that two machines have.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind};
use socket2::{Domain, Protocol, Socket, Type};

use crate::seen::Seen;

/// Requests for an address: the answer to one may be lost.
const REQUESTS: usize = 2;
/// Time for answers to a request. A second owner answers within milliseconds, as the first does.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// Frames that are looked at after a request: a network with a storm of ARP has more.
const FRAMES_MAX: usize = 1000;
/// EtherType of ARP (IEEE 802, RFC 826).
const ETHERTYPE: u16 = 0x0806;
/// Bytes of an Ethernet header and of ARP for IPv4 (RFC 826).
const FRAME_LEN: usize = 14 + 28;
/// Offsets in such a frame.
const AT_ETHERTYPE: usize = 12;
const AT_OPERATION: usize = 20;
const AT_SENDER: usize = 22;
const AT_SENDER_IP: usize = 28;
/// Operation of an answer.
const REPLY: u16 = 2;

type Mac = [u8; 6];

/// The hardware addresses that answer for `address` on the network of `port`, at most a few; the port itself is not
/// among them. `near` is the address that asks, `None` asks without one: then an address of this machine can be asked
/// for (RFC 5227 §2.1.1).
///
/// Sends two broadcasts and blocks for 0.4 s. Takes root: the sockets are those of packets.
pub fn owners(port: &str, near: Option<Ipv4Addr>, address: IpAddr) -> Seen<Vec<String>> {
    let IpAddr::V4(address) = address else { return Seen::unseen("only lanes of IPv4 are probed") };
    let link = match link(port) {
        Ok(link) => link,
        Err(why) => return Seen::unseen(why),
    };
    let asked = ask(&link, near.unwrap_or(Ipv4Addr::UNSPECIFIED), address);
    let named = |macs: BTreeSet<Mac>| macs.iter().map(shown).collect();
    let why = |error: io::Error| match error.kind() {
        ErrorKind::PermissionDenied => "sending ARP requests takes root".to_owned(),
        _ => format!("ARP requests cannot be sent: {error}"),
    };
    asked.map(named).map_err(why).into()
}

/// The port as an address of the link layer, in the network namespace of the thread.
fn link(port: &str) -> Result<LinkAddr, String> {
    let all = getifaddrs().map_err(|error| format!("the ports of this machine cannot be listed: {error}"))?;
    let of_port =
        all.filter(|one| one.interface_name == port).find_map(|one| Some(*one.address?.as_link_addr()?));
    let link = of_port.filter(|link| link.addr().is_some_and(|mac| mac != [0; 6]));
    link.ok_or_else(|| format!("{port} has no hardware address, and so no ARP"))
}

fn ask(link: &LinkAddr, near: Ipv4Addr, address: Ipv4Addr) -> io::Result<BTreeSet<Mac>> {
    let protocol = Protocol::from(i32::from(ETHERTYPE.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    // To the port: what others carry is not looked at.
    bind(socket.as_raw_fd(), link)?;
    let own = link.addr().unwrap_or_default();
    let request = request(own, near, address);
    let mut found = BTreeSet::new();
    for _ in 0..REQUESTS {
        socket.send(&request)?;
        let until = Instant::now() + ANSWER_TIME;
        for _ in 0..FRAMES_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let mut frame = [0; FRAME_LEN];
            match io::Read::read(&mut &socket, &mut frame) {
                Ok(len) => found.extend(answer(&frame[..len], address).filter(|mac| *mac != own)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

/// ARP request for the owner of `address`, to all on the network (RFC 826).
fn request(own: Mac, near: Ipv4Addr, address: Ipv4Addr) -> Vec<u8> {
    // Ethernet: to all, from the port. ARP: Ethernet, IPv4, addresses of 6 and 4 bytes, a request.
    let parts: [&[u8]; 8] = [
        &[0xff; 6],
        &own,
        &ETHERTYPE.to_be_bytes(),
        &[0, 1, 8, 0, 6, 4, 0, 1],
        &own,
        &near.octets(),
        &[0; 6],
        &address.octets(),
    ];
    parts.concat()
}

/// Whose answer for `address` a frame is; `None`: it is none.
fn answer(frame: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let at = |offset: usize, len: usize| frame.get(offset..offset + len);
    let is_answer = frame.len() >= FRAME_LEN
        && at(AT_ETHERTYPE, 2)? == ETHERTYPE.to_be_bytes()
        && at(AT_OPERATION, 2)? == REPLY.to_be_bytes()
        && at(AT_SENDER_IP, 4)? == address.octets();
    if is_answer { at(AT_SENDER, 6)?.try_into().ok() } else { None }
}

fn shown(mac: &Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 9);

    #[test]
    fn an_answer_names_its_sender_and_everything_else_is_none() {
        let mut frame = request([2, 0, 0, 0, 0, 1], Ipv4Addr::UNSPECIFIED, ADDRESS);
        assert_eq!((frame.len(), answer(&frame, ADDRESS)), (FRAME_LEN, None), "a request is no answer");
        frame[AT_OPERATION + 1] = 2;
        frame[AT_SENDER_IP..AT_SENDER_IP + 4].copy_from_slice(&ADDRESS.octets());
        assert_eq!(answer(&frame, ADDRESS), Some([2, 0, 0, 0, 0, 1]));
        assert_eq!(answer(&frame, Ipv4Addr::LOCALHOST), None, "of another address");
        assert_eq!(answer(&frame[..FRAME_LEN - 1], ADDRESS), None);
        assert_eq!(answer(&[], ADDRESS), None);
        assert_eq!(shown(&[2, 0, 0, 0, 0xab, 1]), "02:00:00:00:ab:01");
    }

    #[test]
    fn a_port_without_a_hardware_address_and_one_that_is_not_there_are_unseen() {
        for port in ["lo", "nope"] {
            let found = owners(port, None, ADDRESS.into());
            assert!(found.why().contains("no ARP"), "{port}: {found:?}");
        }
    }
}
