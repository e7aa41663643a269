//! Topology of a network: hosts, switches, and the cables between them.

mod check;
mod notation;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rate::Rate;

pub use check::TopologyError;

/// The MTU of a cable that names none, bytes.
pub const MTU_DEFAULT: u32 = 1500;

/// A network: who is in it, and which cable goes from where to where.
///
/// The form in a file is `[[host]]`, `[[switch]]` and `[[cable]]`. [`check`](Self::check) says what is wrong with it;
/// [`Network::build`](crate::Network::build) asks that first.
///
/// Addresses are given, not configured: every cable between two cards is a subnet, and so is every switch, or group of
/// switches with cables between them. See [`addresses`](Self::addresses).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The hosts. Each has a network stack of its own.
    #[serde(default, rename = "host")]
    pub hosts: Vec<Host>,
    /// The switches.
    #[serde(default, rename = "switch", skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Switch>,
    /// The cables.
    #[serde(default, rename = "cable")]
    pub cables: Vec<Cable>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Name that ends of cables and runs use.
    pub name: String,
    /// Units that a target on it serves, as `serve --lun` takes them; none where no target runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub luns: Vec<String>,
}

/// A switch: one broadcast domain, one subnet. It forwards at once, learns addresses, and knows no spanning tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Name that ends of cables use.
    pub name: String,
}

/// A cable. Everything about it holds for each direction alone: a cable of `1Gbit` carries that both ways at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// Name that runs, events and reports use.
    pub name: String,
    /// `HOST.CARD` or `SWITCH`. A card is where its cable is; it need not be named anywhere else.
    pub ends: [End; 2],
    /// Rate of the cable; without one it is as fast as the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The largest packet, bytes, on every device of the cable.
    #[serde(default = "mtu_default")]
    pub mtu: u32,
    /// Burst that may be sent at once after a pause, bytes; see [`burst`](Self::burst_bytes).
    #[serde(default, with = "notation::size", skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Queue at an end before frames are dropped, bytes; see [`queue`](Self::queue_bytes).
    #[serde(default, with = "notation::size", skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// One-way delay of a frame, in each direction: a round trip takes twice this. With a delay or a loss, be it `0s`,
    /// the cable is a line on which both can be changed while it runs.
    #[serde(default, with = "notation::duration", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Share of the frames that get lost, in each direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
}

fn mtu_default() -> u32 {
    MTU_DEFAULT
}

/// The smallest burst, as time at the cable's rate. A timer of the kernel is late by this much on a busy machine
/// without that the cable stands idle.
const BURST_TIME: Duration = Duration::from_micros(200);
/// The smallest burst, frames.
const BURST_FRAMES: u64 = 2;
/// The queue, as time at the cable's rate: what a switch of the kind used for storage buffers for a port.
const QUEUE_TIME: Duration = Duration::from_millis(4);
/// The smallest queue, frames: fewer would not let TCP open its window.
const QUEUE_FRAMES: u64 = 32;
/// Framing overhead of a packet on the wire, bytes: header, checksum, preamble and gap.
const FRAMING: u32 = lunway_net::theory::ETHERNET_OVERHEAD;
/// The part of [`FRAMING`] that the kernel sees, bytes: the header.
const HEADER: u32 = 14;

impl Cable {
    /// Returns the burst that may be sent at once after a pause, bytes: as requested, or two frames or 200 µs of the
    /// rate, whichever is more.
    pub fn burst_bytes(&self, rate: Rate) -> u64 {
        self.burst.unwrap_or_else(|| {
            let frames = BURST_FRAMES * u64::from(self.mtu + FRAMING);
            frames.max((rate.bytes_per_second() * BURST_TIME.as_secs_f64()) as u64)
        })
    }

    /// Returns the queue at an end of the cable, bytes: as requested, or 32 frames or 4 ms of the rate, whichever is
    /// more.
    pub fn queue_bytes(&self, rate: Rate) -> u64 {
        self.queue.unwrap_or_else(|| {
            let frames = QUEUE_FRAMES * u64::from(self.mtu + FRAMING);
            frames.max((rate.bytes_per_second() * QUEUE_TIME.as_secs_f64()) as u64)
        })
    }

    /// Returns the theoretical throughput of a long TCP transfer over a cable of this MTU at `rate`, payload bytes per
    /// second.
    pub fn payload_bytes_per_second(&self, rate: Rate) -> f64 {
        lunway_net::theory::goodput(self.mtu, rate.bits_per_second() as f64, true) / 8.0
    }

    /// Returns `true` if delay and loss can be changed: see [`delay`](Self::delay).
    pub fn is_line(&self) -> bool {
        self.delay.is_some() || self.loss.is_some()
    }

    /// Bytes that the kernel's shaper must add to the length it sees, to get a frame's length on the wire.
    pub(crate) const OVERHEAD: u32 = FRAMING - HEADER;
}

/// End of a cable: `HOST.CARD`, or `SWITCH`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// A card of a host.
    Card {
        /// The host's name.
        host: String,
        /// The card's name, which is unique on its host.
        card: String,
    },
    /// A switch, by its name.
    Switch(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card { host, card } => write!(f, "{host}.{card}"),
            Self::Switch(name) => f.write_str(name),
        }
    }
}

/// A share of frames, from none to all. Read from and printed as `0.5%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Loss(f64);

impl Loss {
    /// A share, moved into 0..=1; what is no number is none.
    pub fn new(share: f64) -> Self {
        Self(if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) })
    }

    /// The share, 0..=1.
    pub fn share(self) -> f64 {
        self.0
    }
}

impl Topology {
    /// The host of that name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The cable of that name.
    pub fn cable(&self, name: &str) -> Option<&Cable> {
        self.cables.iter().find(|cable| cable.name == name)
    }

    /// Returns the end of a cable on a host.
    pub fn end_on(&self, cable: &str, host: &str) -> Option<&End> {
        let Cable { ends, .. } = self.cable(cable)?;
        ends.iter().find(|end| matches!(end, End::Card { host: name, .. } if name == host))
    }

    /// The card of a host at a cable; without a name where there is none, as no card is called.
    pub fn card(&self, cable: &str, host: &str) -> &str {
        match self.end_on(cable, host) {
            Some(End::Card { card, .. }) => card,
            _ => "",
        }
    }

    /// The same network, every rate multiplied. What a processor cannot carry at full speed it carries at half, and
    /// ratios between cables stay what they were.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let mut scaled = self.clone();
        for cable in &mut scaled.cables {
            cable.rate = cable.rate.map(|rate| rate.times(factor));
        }
        scaled
    }
}
