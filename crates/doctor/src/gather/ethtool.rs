//! The kernel's ethtool interface over generic netlink (linux/ethtool_netlink.h): what `ethtool` shows, without it.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

use crate::facts::{Coalescing, Ring};
use crate::seen::Seen;

/// Time limit for an answer from the kernel; if it takes longer, something is broken.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Family, command and attributes of the generic netlink controller (linux/genetlink.h).
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Message types (linux/netlink.h).
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// Bits of an attribute's type that are flags: nested, network byte order.
const NLA_TYPE_MASK: u16 = 0x3fff;
const NLA_F_NESTED: u16 = 0x8000;

/// Requests of ethtool, and the attribute that has the header in each of them (linux/ethtool_netlink_generated.h).
const LINKMODES_GET: u8 = 4;
const FEATURES_GET: u8 = 11;
const RINGS_GET: u8 = 15;
const COALESCE_GET: u8 = 19;
const PAUSE_GET: u8 = 21;
const EEE_GET: u8 = 23;
const HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;

/// Longest name of an interface (IFNAMSIZ, linux/if.h), with its zero.
const NAME_MAX: usize = 16;

/// Offloads that storage gains from, by the names of ethtool's feature strings.
const OFFLOADS: [(&str, &str); 5] = [
    ("tx-tcp-segmentation", "tso"),
    ("tx-generic-segmentation", "gso"),
    ("rx-gro", "gro"),
    ("rx-checksum", "rx"),
    ("tx-checksum-ip-generic", "tx"),
];

/// Information that ethtool has about a port.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub(super) speed: Seen<u32>,
    pub(super) full_duplex: Seen<bool>,
    pub(super) rx_pause: Seen<bool>,
    pub(super) eee: Seen<bool>,
    pub(super) negotiated: Seen<bool>,
    pub(super) coalescing: Seen<Coalescing>,
    pub(super) rx_ring: Seen<Ring>,
    pub(super) tx_ring: Seen<Ring>,
    pub(super) offloads_off: Seen<Vec<String>>,
}

/// A socket to ask the kernel by, in the network namespace of the thread that made it.
pub(super) struct Ethtool {
    socket: Socket,
    family: u16,
    /// Sequence number of the last request, by which its answer is known.
    sequence: Cell<u32>,
}

/// An attribute: its type and its bytes.
type Attribute<'a> = (u16, &'a [u8]);

impl Ethtool {
    pub(super) fn open() -> Result<Self, String> {
        let why = |error: io::Error| format!("the kernel's ethtool interface cannot be asked: {error}");
        let mut socket = Socket::new(NETLINK_GENERIC).map_err(why)?;
        socket.bind_auto().map_err(why)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(why)?;
        SockRef::from(&socket).set_read_timeout(Some(ANSWER_TIME)).map_err(why)?;
        let mut ethtool = Self { socket, family: GENL_ID_CTRL, sequence: Cell::new(0) };
        let mut name = Vec::new();
        put(&mut name, CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
        let answer = ethtool.ask(CTRL_CMD_GETFAMILY, &name).map_err(why)?;
        let family = attributes(&answer).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
        let family = family.and_then(|(_, bytes)| Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?)));
        ethtool.family = family.ok_or("the kernel has no ethtool interface over netlink")?;
        Ok(ethtool)
    }

    /// Everything about one port.
    pub(super) fn card(&self, name: &str) -> Card {
        let modes = self.of(LINKMODES_GET, name);
        let rings = self.of(RINGS_GET, name);
        let ring = |now: u16, max: u16| -> Seen<Ring> {
            let read = |answer: &Vec<u8>| {
                let ring = Ring { now: number(answer, now)?, max: number(answer, max)? };
                (ring.max > 0).then_some(ring)
            };
            seen(&rings, "its rings", read)
        };
        Card {
            // SPEED 5: Mb/s, or all ones.
            speed: seen(&modes, "its speed", |answer| {
                number(answer, 5).filter(|speed| (1..u32::MAX).contains(speed))
            }),
            // DUPLEX 6: 0 half, 1 full, 255 unknown.
            full_duplex: seen(&modes, "its duplex", |answer| {
                Some(byte(answer, 6).filter(|duplex| *duplex < 2)? == 1)
            }),
            // AUTONEG 2.
            negotiated: seen(&modes, "whether its speed is negotiated", |answer| Some(byte(answer, 2)? != 0)),
            // RX_USECS 2, USE_ADAPTIVE_RX 11.
            coalescing: seen(&self.of(COALESCE_GET, name), "its coalescing", |answer| {
                // The kernel leaves out what the card cannot do.
                let adaptive = byte(answer, 11).map(|on| on != 0);
                let rx_us = number(answer, 2);
                adaptive.or(rx_us.map(|_| false)).map(|on| Coalescing {
                    adaptive: on,
                    can_adapt: adaptive.is_some(),
                    rx_us: rx_us.unwrap_or(0),
                })
            }),
            // RX 3.
            rx_pause: seen(&self.of(PAUSE_GET, name), "pause frames", |answer| Some(byte(answer, 3)? != 0)),
            // ENABLED 5.
            eee: seen(&self.of(EEE_GET, name), "Energy-Efficient Ethernet", |answer| {
                Some(byte(answer, 5)? != 0)
            }),
            // RX_MAX 2, TX_MAX 5, RX 6, TX 9.
            rx_ring: ring(6, 2),
            tx_ring: ring(9, 5),
            offloads_off: seen(&self.of(FEATURES_GET, name), "its offloads", |answer| {
                Some(offloads_off(answer))
            }),
        }
    }

    fn of(&self, command: u8, name: &str) -> io::Result<Vec<u8>> {
        if name.len() >= NAME_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut header = Vec::new();
        put(&mut header, HEADER_DEV_NAME, &[name.as_bytes(), &[0]].concat());
        let mut body = Vec::new();
        put(&mut body, HEADER | NLA_F_NESTED, &header);
        self.ask(command, &body)
    }

    /// Sends a request, and returns the attributes of its answer.
    fn ask(&self, command: u8, body: &[u8]) -> io::Result<Vec<u8>> {
        // struct nlmsghdr, then struct genlmsghdr with version 1.
        let len = u32::try_from(16 + 4 + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut message = Vec::new();
        message.extend(len.to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend(NLM_F_REQUEST.to_ne_bytes());
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        message.extend(sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend([command, 1, 0, 0]);
        message.extend(body);
        self.socket.send(&message, 0)?;
        let deadline = Instant::now() + ANSWER_TIME;
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            if let Some(answer) = answer_to(sequence, &answer) {
                return answer;
            }
            // The answer to a request that was given up, or news that was not asked for.
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// The attributes of a message (struct nlmsghdr, struct genlmsghdr) that answers the request of this number, or the
/// error that it reports; `None`: it answers another.
fn answer_to(sequence: u32, message: &[u8]) -> Option<io::Result<Vec<u8>>> {
    let Some(header) = message.first_chunk::<16>() else {
        return Some(Err(io::ErrorKind::UnexpectedEof.into()));
    };
    let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    if u32::from_ne_bytes(word(8)) != sequence {
        return None;
    }
    Some(match u16::from_ne_bytes([header[4], header[5]]) {
        NLMSG_ERROR => {
            let code = message.get(16..20).and_then(|code| Some(i32::from_ne_bytes(code.try_into().ok()?)));
            Err(io::Error::from_raw_os_error(code.unwrap_or(0).saturating_neg()))
        }
        _ => Ok(message.get(20..).unwrap_or_default().to_vec()),
    })
}

/// A fact from an answer, or why there is none.
fn seen<T>(answer: &io::Result<Vec<u8>>, what: &str, read: impl FnOnce(&Vec<u8>) -> Option<T>) -> Seen<T> {
    let unsupported = || format!("its driver does not tell {what}");
    match answer {
        Ok(answer) => read(answer).ok_or_else(unsupported).into(),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => {
            Seen::unseen(unsupported())
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Seen::unseen(format!("{what}: reading it takes root"))
        }
        Err(error) => Seen::unseen(format!("{what} cannot be read: {error}")),
    }
}

/// Appends an attribute, padded to four bytes.
fn put(to: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    let len = u16::try_from(4 + bytes.len()).unwrap_or(u16::MAX);
    to.extend(len.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(bytes);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// The attributes in a range of bytes, up to the first that does not fit.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(attribute(bytes, kind)?.get(..4)?.try_into().ok()?))
}

fn byte(bytes: &[u8], kind: u16) -> Option<u8> {
    attribute(bytes, kind)?.first().copied()
}

/// Names of the bits that are set in a bitset in its long form: ETHTOOL_A_BITSET_BITS 3, of BIT 1, each with NAME 2. A
/// set with NOMASK 1 lists these alone, one with a mask all bits of the mask, of which those that are set have VALUE 3.
fn names(bitset: &[u8]) -> Vec<String> {
    let bits = attribute(bitset, 3).unwrap_or_default();
    let has_mask = attribute(bitset, 1).is_none();
    let name = |(_, bit): Attribute<'_>| {
        if has_mask {
            attribute(bit, 3)?;
        }
        let name = attribute(bit, 2)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(name).into_owned())
    };
    attributes(bits).filter_map(name).collect()
}

/// Offloads that the port can do (ETHTOOL_A_FEATURES_HW 2: what can be changed), and that are neither ACTIVE (4) nor
/// WANTED (3): one that is wanted and not active lacks something else, as a tap whose program takes no long packets,
/// and no command switches it on.
fn offloads_off(answer: &[u8]) -> Vec<String> {
    let can = names(attribute(answer, 2).unwrap_or_default());
    let on = [3, 4].map(|set| names(attribute(answer, set).unwrap_or_default())).concat();
    let is_off = |(feature, _): &&(&str, &str)| {
        can.iter().any(|name| name == feature) && !on.iter().any(|name| name == feature)
    };
    OFFLOADS.iter().filter(is_off).map(|(_, option)| (*option).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_do_not_fit_end_the_list() {
        for bytes in [&[][..], &[0, 0, 1, 0], &[255, 255, 1, 0, 7], &[3, 0, 1, 0], &[4]] {
            assert!(attributes(bytes).count() <= 1);
            assert_eq!(number(bytes, 1), None);
        }
        let mut bytes = Vec::new();
        put(&mut bytes, 2, &[1]);
        put(&mut bytes, 5 | NLA_F_NESTED, &7u32.to_ne_bytes());
        assert_eq!((byte(&bytes, 2), number(&bytes, 5)), (Some(1), Some(7)));
    }

    #[test]
    fn of_a_set_with_a_mask_only_the_bits_that_are_set_are_named() {
        let bits = |values: [bool; 2]| {
            let mut bits = Vec::new();
            for (name, value) in [&b"tso\0"[..], b"gro\0"].into_iter().zip(values) {
                let mut bit = Vec::new();
                put(&mut bit, 2, name);
                if value {
                    put(&mut bit, 3, &[]);
                }
                put(&mut bits, 1, &bit);
            }
            bits
        };
        let mut masked = Vec::new();
        put(&mut masked, 3, &bits([false, true]));
        assert_eq!(names(&masked), ["gro"]);
        let mut list = Vec::new();
        put(&mut list, 1, &[]);
        put(&mut list, 3, &bits([false, false]));
        assert_eq!(names(&list), ["tso", "gro"]);
    }

    #[test]
    fn an_answer_belongs_to_the_request_of_its_number() {
        let message = |kind: u16, sequence: u32, rest: &[u8]| {
            let head = [&[0; 4][..], &kind.to_ne_bytes(), &[0; 2], &sequence.to_ne_bytes(), &[0; 4]];
            [head.concat(), rest.to_vec()].concat()
        };
        assert!(answer_to(7, &message(20, 6, &[0; 8])).is_none(), "a late answer to the request before");
        let own = answer_to(7, &message(20, 7, &[1, 1, 0, 0, 9])).and_then(Result::ok);
        assert_eq!(own, Some(vec![9]));
        let error = answer_to(7, &message(NLMSG_ERROR, 7, &(-95i32).to_ne_bytes())).and_then(Result::err);
        assert_eq!(error.and_then(|error| error.raw_os_error()), Some(95));
        assert!(answer_to(7, &[0; 15]).is_some_and(|answer| answer.is_err()));
    }

    #[test]
    fn the_kernel_tells_of_the_loopback_or_why_not() {
        let ethtool = match Ethtool::open() {
            Ok(ethtool) => ethtool,
            Err(why) => return lunway_foreign::not_run(&why),
        };
        let card = ethtool.card("lo");
        // A loopback has offloads, and no speed.
        assert!(card.offloads_off.get().is_some(), "{card:?}");
        assert!(!card.speed.why().is_empty(), "{card:?}");
        let none = ethtool.card("no-such-port");
        assert!(none.offloads_off.why().contains("cannot be read"), "{none:?}");
    }
}
