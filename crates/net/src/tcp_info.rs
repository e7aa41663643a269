//! `TCP_INFO`: the kernel's facts about a connection.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use crate::option::{self, INFO_SIZE};

/// A connection as the kernel of one end sees it at one moment.
///
/// Counters count from the connection's start; [`since`](Self::since) turns two of these into what happened between.
/// The sending end's is the one that tells about loss: a receiver retransmits nothing. Fields that a kernel does not
/// have yet are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_var: Duration,
    /// The shortest round trip seen: the path without queues.
    pub rtt_min: Duration,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Payload of a segment sent, bytes.
    pub segment: u32,
    /// The MTU of the path, bytes, as far as the kernel found it out.
    pub path_mtu: u32,
    /// Both ends put timestamps (12 bytes) into every segment.
    pub timestamps: bool,
    /// The receive window that the other end advertised last, bytes.
    pub peer_window: u32,
    /// The rate at which the other end took data, bytes per second, by the kernel's latest measure.
    pub delivery_rate: u64,
    /// Segments that the kernel thinks are out of order at most.
    pub reordering: u32,
    /// Counter: segments sent with data.
    pub segments_sent: u64,
    /// Counter: segments sent again.
    pub retransmits: u64,
    /// Segments now thought lost.
    pub lost: u64,
    /// Counter: times that reordering was seen.
    pub reorderings: u64,
    /// Counter: payload bytes that the other end has acknowledged.
    pub acknowledged: u64,
    /// Counter: payload bytes received.
    pub received: u64,
    /// Counter: time with data to send.
    pub busy: Duration,
    /// Counter: of that, time that the other end's receive window was the limit.
    pub window_limited: Duration,
    /// Counter: of that, time that this end's send buffer was the limit.
    pub buffer_limited: Duration,
}

/// Fields on the wire, 8 bytes each.
const FIELDS: usize = 19;

impl TcpInfo {
    /// Length of [`encode`](Self::encode)'s result.
    pub(crate) const ENCODED: usize = FIELDS * 8;

    /// The connection now.
    pub fn of(stream: &TcpStream) -> io::Result<Self> {
        option::tcp_info(stream).map(|info| Self::parse(&info))
    }

    /// `struct tcp_info` of linux/tcp.h, whose fields never move.
    fn parse(info: &[u8; INFO_SIZE]) -> Self {
        let u32_at = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&info[at..at + 4]);
            u32::from_ne_bytes(bytes)
        };
        let u64_at = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&info[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        let microseconds = |value: u32| Duration::from_micros(value.into());
        Self {
            rtt: microseconds(u32_at(68)),
            rtt_var: microseconds(u32_at(72)),
            // The kernel says the largest number for "not measured yet".
            rtt_min: microseconds(if u32_at(148) == u32::MAX { 0 } else { u32_at(148) }),
            cwnd: u32_at(80),
            segment: u32_at(16),
            path_mtu: u32_at(60),
            timestamps: info[5] & 1 != 0,
            peer_window: u32_at(228),
            delivery_rate: u64_at(160),
            reordering: u32_at(88),
            segments_sent: u32_at(156).into(),
            retransmits: u32_at(100).into(),
            lost: u32_at(32).into(),
            reorderings: u32_at(220).into(),
            acknowledged: u64_at(120),
            received: u64_at(128),
            busy: Duration::from_micros(u64_at(168)),
            window_limited: Duration::from_micros(u64_at(176)),
            buffer_limited: Duration::from_micros(u64_at(184)),
        }
    }

    /// The same, with the counters counted from `earlier`.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            segments_sent: self.segments_sent.saturating_sub(earlier.segments_sent),
            retransmits: self.retransmits.saturating_sub(earlier.retransmits),
            reorderings: self.reorderings.saturating_sub(earlier.reorderings),
            acknowledged: self.acknowledged.saturating_sub(earlier.acknowledged),
            received: self.received.saturating_sub(earlier.received),
            busy: self.busy.saturating_sub(earlier.busy),
            window_limited: self.window_limited.saturating_sub(earlier.window_limited),
            buffer_limited: self.buffer_limited.saturating_sub(earlier.buffer_limited),
            ..self
        }
    }

    /// Every field as a big-endian number, for the other end.
    pub(crate) fn encode(&self) -> [u8; Self::ENCODED] {
        let time = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let fields: [u64; FIELDS] = [
            time(self.rtt),
            time(self.rtt_var),
            time(self.rtt_min),
            self.cwnd.into(),
            self.segment.into(),
            self.path_mtu.into(),
            self.timestamps.into(),
            self.peer_window.into(),
            self.delivery_rate,
            self.reordering.into(),
            self.segments_sent,
            self.retransmits,
            self.lost,
            self.reorderings,
            self.acknowledged,
            self.received,
            time(self.busy),
            time(self.window_limited),
            time(self.buffer_limited),
        ];
        let mut out = [0; Self::ENCODED];
        for (slot, field) in out.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_be_bytes());
        }
        out
    }

    /// Decodes the encoding of the other end. Any bytes are valid; numbers too large for their field become its
    /// largest.
    pub(crate) fn decode(bytes: &[u8; Self::ENCODED]) -> Self {
        let mut fields = [0u64; FIELDS];
        for (field, slot) in fields.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *field = u64::from_be_bytes(*slot);
        }
        let small = |field: u64| u32::try_from(field).unwrap_or(u32::MAX);
        Self {
            rtt: Duration::from_micros(fields[0]),
            rtt_var: Duration::from_micros(fields[1]),
            rtt_min: Duration::from_micros(fields[2]),
            cwnd: small(fields[3]),
            segment: small(fields[4]),
            path_mtu: small(fields[5]),
            timestamps: fields[6] != 0,
            peer_window: small(fields[7]),
            delivery_rate: fields[8],
            reordering: small(fields[9]),
            segments_sent: fields[10],
            retransmits: fields[11],
            lost: fields[12],
            reorderings: fields[13],
            acknowledged: fields[14],
            received: fields[15],
            busy: Duration::from_micros(fields[16]),
            window_limited: Duration::from_micros(fields[17]),
            buffer_limited: Duration::from_micros(fields[18]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_a_fresh_connection_is_plausible_and_survives_the_wire() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = TcpInfo::of(&client).unwrap();
        assert!((1500..=65536).contains(&info.path_mtu), "{info:?}");
        assert!(info.segment > 500 && info.segment < info.path_mtu, "{info:?}");
        assert!(info.cwnd >= 1 && info.rtt < Duration::from_secs(1), "{info:?}");
        assert!(info.peer_window >= 1024, "{info:?}");
        assert_eq!(TcpInfo::decode(&info.encode()), info);
    }

    #[test]
    fn any_bytes_from_the_other_end_are_taken_without_a_panic() {
        let info = TcpInfo::decode(&[0xff; TcpInfo::ENCODED]);
        assert_eq!((info.cwnd, info.rtt), (u32::MAX, Duration::from_micros(u64::MAX)));
        assert_eq!(TcpInfo::default().since(&info).retransmits, 0);
    }
}
