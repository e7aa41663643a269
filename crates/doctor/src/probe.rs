//! Probes of a lane: packets that are sent, and what the kernel knows of a connection.
//!
//! Unlike everything else here they are active: [`path_mtu`] sends some dozen packets.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::gather::Machine;
use crate::seen::Seen;

/// Beginning of the reason, in [`Lane::probe`](crate::facts::Lane::probe), where a lane was asked and did not answer.
pub const NO_ANSWER: &str = "no answer";

/// Time for the answer to a packet. Storage networks answer within milliseconds.
const ANSWER_TIME: Duration = Duration::from_millis(250);
/// Number of times that a packet without an answer is sent: one may be lost by chance.
const ATTEMPTS: u16 = 2;
/// Bytes of the headers of IPv4 and ICMP.
const HEADERS: usize = 28;
/// Bytes of the least packet that is sent.
const LEAST: u32 = HEADERS as u32 + 8;
/// Header of ICMP alone.
const ICMP_HEADER: usize = 8;
/// MTUs that networks have: jumbo frames, FDDI, Ethernet, PPPoE, tunnels, IPv6's least.
const USUAL: [u32; 8] = [9000, 8000, 4352, 1500, 1492, 1460, 1400, 1280];
/// Type of an echo request (RFC 792); an answer has type 0.
const ECHO: u8 = 8;

/// The largest packet, bytes, that gets to `far` and back unbroken: `port_mtu`, or the largest usual MTU below.
///
/// Sends ICMP echo requests, which the kernel marks "don't fragment" (RFC 1191). Blocks for at most
/// some seconds, when nothing larger than the least comes back.
pub fn path_mtu(near: IpAddr, far: IpAddr, port_mtu: u32) -> Seen<u32> {
    let mut echo = match opened(near, far) {
        Ok(echo) => echo,
        Err(why) => return Seen::unseen(why),
    };
    let smaller = USUAL.into_iter().filter(|mtu| *mtu < port_mtu);
    let found = std::iter::once(port_mtu).chain(smaller).find(|mtu| echo.comes_back(*mtu));
    found.ok_or_else(|| "packets of 1280 bytes do not come back".to_owned()).into()
}

/// Whether a packet gets to `far` and back that lives for one hop: the first router drops it (RFC 791, time to live),
/// whatever the table of routes says of it.
pub fn direct(near: IpAddr, far: IpAddr) -> Seen<bool> {
    let mut echo = match opened(near, far) {
        Ok(echo) => echo,
        Err(why) => return Seen::unseen(why),
    };
    match echo.socket.set_ttl_v4(1) {
        Ok(()) => Seen::Value(echo.comes_back(LEAST)),
        Err(error) => Seen::unseen(format!("the time to live of packets cannot be set: {error}")),
    }
}

/// Echo requests whose least comes back.
fn opened(near: IpAddr, far: IpAddr) -> Result<Echo, String> {
    let (IpAddr::V4(_), IpAddr::V4(_)) = (near, far) else {
        return Err("only lanes of IPv4 are probed".to_owned());
    };
    let mut echo = Echo::open(near, far).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "sending echo requests takes root, or a group in net.ipv4.ping_group_range".to_owned()
        }
        _ => format!("echo requests cannot be sent: {error}"),
    })?;
    match echo.comes_back(LEAST) {
        true => Ok(echo),
        false => Err("the other end does not answer echo requests".to_owned()),
    }
}

/// The next sequence number of this process, whose requests have one identifier on raw sockets: an answer that is late
/// would pass for that to a later request of another [`Echo`].
static NEXT_SEQUENCE: AtomicU16 = AtomicU16::new(0);

/// Echo requests between two addresses.
struct Echo {
    socket: Socket,
    /// The kernel takes headers off, and gives the answers to this socket's requests alone.
    datagrams: bool,
    sequence: u16,
}

impl Echo {
    fn open(near: IpAddr, far: IpAddr) -> io::Result<Self> {
        let kind = |kind| Socket::new(Domain::IPV4, kind, Some(Protocol::ICMPV4));
        let (socket, datagrams) = match kind(Type::DGRAM) {
            Ok(socket) => (socket, true),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (kind(Type::RAW)?, false),
            Err(error) => return Err(error),
        };
        socket.bind(&SocketAddr::new(near, 0).into())?;
        socket.connect(&SocketAddr::new(far, 0).into())?;
        Ok(Self { socket, datagrams, sequence: 0 })
    }

    /// Returns `true` if a packet of that many bytes comes back.
    fn comes_back(&mut self, bytes: u32) -> bool {
        (0..ATTEMPTS).any(|_| self.exchange(bytes as usize).unwrap_or(false))
    }

    fn exchange(&mut self, bytes: usize) -> io::Result<bool> {
        self.sequence = NEXT_SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let mut packet = vec![0x5a; bytes.saturating_sub(HEADERS - ICMP_HEADER).max(ICMP_HEADER)];
        // Of an identifier the kernel makes its own, for datagrams.
        let identifier = (std::process::id() as u16).to_be_bytes();
        packet[..4].copy_from_slice(&[ECHO, 0, 0, 0]);
        packet[4..6].copy_from_slice(&identifier);
        packet[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        let sum = checksum(&packet).to_be_bytes();
        packet[2..4].copy_from_slice(&sum);
        self.socket.send(&packet)?;
        let deadline = Instant::now() + ANSWER_TIME;
        let mut answer = vec![0; bytes + HEADERS];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.socket.set_read_timeout(Some(left))?;
            let len = (&self.socket).read(&mut answer)?;
            let answer = &answer[..len];
            let icmp = if self.datagrams { answer } else { behind_ip(answer) };
            let ours = self.datagrams || icmp.get(4..6) == Some(&identifier[..]);
            let same = icmp.first() == Some(&0) && icmp.get(6..8) == Some(&self.sequence.to_be_bytes()[..]);
            if ours && same {
                return Ok(icmp.len() == packet.len());
            }
        }
    }
}

/// Returns the payload behind the IPv4 header, whose length is in its first byte.
fn behind_ip(packet: &[u8]) -> &[u8] {
    let header = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    packet.get(header..).unwrap_or_default()
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).fold(0, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Segments of a connection with data, and those that were lost or late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// With data, both ways.
    pub all: u64,
    /// Sent again by this end, or received out of their order, as those are behind one that was lost.
    pub lost: u64,
    /// The largest payload of a segment on any of the connections, bytes; 0: it is not told.
    pub mss: u32,
}

/// Returns the packets that a port has lost since it came up: those that its card had no room for, and those that
/// arrived broken.
pub fn port_lost(port: &str) -> Seen<u64> {
    let machine = Machine::this();
    let count = |name: &str| machine.number::<u64>(&format!("/sys/class/net/{port}/statistics/{name}"));
    let sum = || Ok(count("rx_errors")?.saturating_add(count("rx_missed_errors")?));
    sum().into()
}

/// Returns the kernel's counts for the connections between an address and a portal, as `ss` shows them.
pub fn segments(near: IpAddr, portal: SocketAddr) -> Seen<Segments> {
    let (near, far, port) = (near.to_string(), portal.ip().to_string(), portal.port().to_string());
    let filter = ["-Htin", "src", &near, "dst", &far, "dport", "=", &port];
    let printed = Machine::this().printed("ss", &filter);
    printed.and_then(|text| counted(&text).ok_or_else(|| "ss shows no connection".to_owned())).into()
}

/// `data_segs_out:5`, `data_segs_in:9`, `retrans:0/3` (now, ever), `rcv_ooopack:1`, of all connections.
fn counted(text: &str) -> Option<Segments> {
    let mut found = Segments::default();
    let mut any = false;
    for word in text.split_whitespace() {
        let Some((name, value)) = word.split_once(':') else { continue };
        let number = || value.parse::<u64>().unwrap_or(0);
        match name {
            "data_segs_out" | "data_segs_in" => {
                any = true;
                found.all = found.all.saturating_add(number());
            }
            "mss" => found.mss = found.mss.max(value.parse().unwrap_or(0)),
            "rcv_ooopack" => found.lost = found.lost.saturating_add(number()),
            "retrans" => {
                let ever = value.split_once('/').and_then(|(_, ever)| ever.parse().ok()).unwrap_or(0);
                found.lost = found.lost.saturating_add(ever);
            }
            _ => {}
        }
    }
    any.then_some(found)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_loopback_carries_its_mtu() {
        let here: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_ne!(direct(here, here), Seen::Value(false));
        match path_mtu(here, here, 9000) {
            Seen::Value(mtu) => assert_eq!(mtu, 9000),
            Seen::Unseen { unseen } => {
                assert!(unseen.contains("ping_group_range"), "{unseen}");
                lunway_foreign::not_run(&unseen);
            }
        }
    }

    #[test]
    fn counts_of_all_connections_are_added() {
        let text = "ESTAB 0 0 10.0.0.1:5 10.0.0.2:3260\n\t cubic rtt:0.1/0.05 mss:1448 retrans:0/2 data_segs_out:10 data_segs_in:90 rcv_ooopack:1\n\
                    ESTAB 0 0 10.0.0.1:6 10.0.0.2:3260\n\t data_segs_in:5\n";
        assert_eq!(counted(text), Some(Segments { all: 105, lost: 3, mss: 1448 }));
        for text in ["", "ESTAB", "retrans:9", "data_segs_in:x data_segs_out:"] {
            assert!(counted(text).is_none_or(|found| found.all == 0), "{text}");
        }
    }

    #[test]
    fn sums_are_those_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(behind_ip(&[]), &[] as &[u8]);
        assert_eq!(behind_ip(&[0x4f]), &[] as &[u8]);
    }
}
