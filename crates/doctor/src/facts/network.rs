//! Network ports and the connections over them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// A network port: a card, or what stands on cards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Port {
    /// The interface's name.
    pub name: String,
    /// Carries iSCSI, or the user says so.
    pub storage: bool,
    /// Has a driver for hardware behind it.
    pub physical: bool,
    /// Kind of the port, as the kernel names it: `vlan`, `bond`, `team`, `bridge`, `veth`; empty for a card.
    pub kind: String,
    /// The bond, team or bridge that it belongs to.
    pub member_of: Option<String>,
    /// The interface that it stands on.
    pub below: Option<String>,
    /// PCI function that has the cable, and the number of its port: virtual functions of one card (SR-IOV) have that of
    /// the card. Empty: not a PCI card.
    pub socket: String,
    /// Its addresses with their networks, link-local ones left out.
    pub networks: Vec<IpNet>,
    /// A cable is in it, and something at its other end.
    pub carrier: bool,
    /// Longest packet, bytes.
    pub mtu: u32,
    /// Megabits per second.
    pub speed: Seen<u32>,
    /// Sends and receives at once.
    pub full_duplex: Seen<bool>,
    /// Its receiver heeds pause frames (IEEE 802.3 annex 31B).
    pub rx_pause: Seen<bool>,
    /// Energy-Efficient Ethernet is enabled (IEEE 802.3az).
    pub eee: Seen<bool>,
    /// Its speed is negotiated with the other end (IEEE 802.3 clause 28).
    pub negotiated: Seen<bool>,
    /// Interrupt coalescing of its card.
    pub coalescing: Seen<Coalescing>,
    /// Receive ring, descriptors.
    pub rx_ring: Seen<Ring>,
    /// Transmit ring, descriptors.
    pub tx_ring: Seen<Ring>,
    /// Of the offloads that storage gains from, by ethtool's names: those that the port can do and that are switched
    /// off.
    pub offloads_off: Seen<Vec<String>>,
    /// Interrupts of its receive and transmit queues.
    pub interrupts: Seen<Interrupts>,
    /// Counters since the port came up.
    pub counters: Seen<Counters>,
    /// `arp_ignore`, the larger of the port's and `all`'s (ip-sysctl).
    pub arp_ignore: Seen<u32>,
    /// `arp_announce`, the larger of the port's and `all`'s.
    pub arp_announce: Seen<u32>,
    /// `rp_filter`, the larger of the port's and `all`'s.
    pub rp_filter: Seen<u32>,
}

/// A ring of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Descriptors now.
    pub now: u32,
    /// The most that the card can have.
    pub max: u32,
}

/// Interrupts of a card's queues, and the processors that take them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interrupts {
    /// Processors of the machine that are on-line.
    pub processors: u32,
    /// Receive queues in use.
    pub queues: u32,
    /// Their numbers in `/proc/irq`, one for each queue or pair of queues.
    pub numbers: Vec<u32>,
    /// Processors that they are delivered to now.
    pub now: BTreeSet<u32>,
    /// How many each processor has taken since they were requested, by its number; 0 is left out.
    pub taken: BTreeMap<String, u64>,
}

/// Coalescing of receive interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coalescing {
    /// The card adapts it to the load.
    pub adaptive: bool,
    /// The card is able to.
    pub can_adapt: bool,
    /// Microseconds after a packet until the interrupt.
    pub rx_us: u32,
}

/// Packet counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets received broken: checksum, length, alignment.
    pub rx_errors: u64,
    /// Packets that the card had no room for.
    pub rx_missed: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
}

/// Role of an end of an iSCSI connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// This machine reaches storage.
    #[default]
    Initiator,
    /// This machine is the storage.
    Target,
}

/// The other end of an iSCSI connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// This machine's end.
    pub local: IpAddr,
    /// The other end.
    pub remote: IpAddr,
    /// Role of this machine.
    #[serde(default)]
    pub role: Role,
    /// The kernel's route from `local` to `remote`.
    #[serde(default)]
    pub route: Seen<Route>,
    /// Statistics of the kernel on the connections to it.
    #[serde(default)]
    pub flow: Seen<Flow>,
    /// The neighbour that its packets go to: the other end, or the router.
    #[serde(default)]
    pub neighbour: Seen<Neighbour>,
}

/// An entry of the kernel's table of neighbours, which it fills by ARP and NDP, and what it was earlier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Its hardware address; empty: it has not answered.
    pub mac: String,
    /// The kernel asks for it, or has given up, and has no answer.
    pub failed: bool,
    /// Hardware addresses of this look and of those of the last day, without repetitions of the same: each but the
    /// first is a move. The oldest first.
    pub owners: Vec<String>,
    /// Seconds since the first look at it.
    pub known_for_s: u64,
}

/// Statistics of the kernel on all connections between two ends, as `ss` shows it of TCP_INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flow {
    /// Milliseconds in which this end had something to send.
    pub busy_ms: u64,
    /// Of those, milliseconds in which the window of the other end was full.
    pub window_ms: u64,
    /// Of those, milliseconds in which the send buffer of this end was full.
    pub buffer_ms: u64,
    /// The least round trip, microseconds; 0: none was measured.
    pub round_trip_us: u64,
}

/// The kernel's route to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// The port by which packets leave.
    pub port: String,
    /// The router that they go to first.
    pub gateway: Option<IpAddr>,
}
