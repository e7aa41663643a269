//! The protocol between a client and a responder: one connection, one measurement.
//!
//! ```text
//!   client                                  responder
//!     │ ── request, 32 bytes ───────────────▶ │   what to do, within bounds; or it is refused and the connection ends
//!     │ ◀─────────────── welcome, 64 bytes ── │   what it is, and the buffers that it got
//!     │ ── go, 1 byte ──────────────────────▶ │   so that several streams start together
//!     │ ◀═══════════ bytes, either way ═════▶ │   until the client closes its side, or the time is over
//!     │ ◀──────────────── report, last bytes ─ │   what the responder counted; then the connection ends
//! ```
//!
//! There is no state beyond the connection, so there is no session that anybody could exhaust, take over or forget; and
//! data only ever goes to the address that shook hands. Numbers are big-endian. Every message has a fixed size: nothing
//! is allocated because a peer said so. A responder that speaks another version answers with its own and ends.

use std::time::Duration;

use crate::tcp_info::TcpInfo;

/// The version that this crate speaks.
pub const VERSION: u16 = 1;
/// Default port of a responder: next to iSCSI's 3260 and 3261.
pub const PORT: u16 = 3262;
/// The longest measurement that a responder takes part in.
pub const DURATION_MAX: Duration = Duration::from_secs(600);
/// The largest request or answer of a round trip, bytes: 64 MiB and a header.
pub const MESSAGE_MAX: u32 = (64 << 20) + 48;
/// The smallest and largest socket buffers that can be asked for, bytes.
pub const BUFFER_RANGE: std::ops::RangeInclusive<u32> = (2 << 10)..=(1 << 30);

const MAGIC: [u8; 8] = *b"lunwynet";
const MAGIC_END: [u8; 8] = *b"lunwyend";
/// The byte that starts the measurement.
pub(crate) const GO: u8 = b'G';

/// Request of a client for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) task: Task,
    /// Socket buffers of the responder, bytes; 0 leaves them to its kernel.
    pub(crate) buffer: u32,
    /// Duration of the measurement.
    pub(crate) duration: Duration,
}

/// Task of a connection: which ends send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// None: the welcome is all that is wanted.
    Describe,
    /// The client.
    Take,
    /// The responder.
    Give,
    /// Both: requests and answers of these sizes.
    Answer { request: u32, answer: u32 },
}

impl Request {
    pub(crate) const SIZE: usize = 32;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let (task, request, answer) = match self.task {
            Task::Describe => (0, 0, 0),
            Task::Take => (1, 0, 0),
            Task::Give => (2, 0, 0),
            Task::Answer { request, answer } => (3, request, answer),
        };
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_be_bytes());
        out[10] = task;
        out[12..16].copy_from_slice(&self.buffer.to_be_bytes());
        let milliseconds = u32::try_from(self.duration.as_millis()).unwrap_or(u32::MAX);
        out[16..20].copy_from_slice(&milliseconds.to_be_bytes());
        out[20..24].copy_from_slice(&request.to_be_bytes());
        out[24..28].copy_from_slice(&answer.to_be_bytes());
        out
    }

    /// `Err` is what the welcome must say instead.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Result<Self, Status> {
        if bytes[..8] != MAGIC {
            return Err(Status::Malformed);
        }
        if u16::from_be_bytes([bytes[8], bytes[9]]) != VERSION {
            return Err(Status::OtherVersion);
        }
        let buffer = u32_at(bytes, 12);
        let duration = Duration::from_millis(u32_at(bytes, 16).into());
        let (request, answer) = (u32_at(bytes, 20), u32_at(bytes, 24));
        let task = match bytes[10] {
            0 => Task::Describe,
            1 => Task::Take,
            2 => Task::Give,
            3 => Task::Answer { request, answer },
            _ => return Err(Status::Malformed),
        };
        if bytes[11] != 0 || bytes[28..] != [0; 4] {
            return Err(Status::Malformed);
        }
        let sizes = match task {
            Task::Answer { request, answer } => [request, answer],
            _ if request != 0 || answer != 0 => return Err(Status::Malformed),
            _ => [1, 1],
        };
        let within = duration <= DURATION_MAX
            && (buffer == 0 || BUFFER_RANGE.contains(&buffer))
            && sizes.iter().all(|size| (1..=MESSAGE_MAX).contains(size));
        if within { Ok(Self { task, buffer, duration }) } else { Err(Status::OutOfBounds) }
    }
}

/// Status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Accepted,
    /// The responder speaks the version that its welcome names.
    OtherVersion,
    Malformed,
    /// As many measurements run as the responder allows.
    Busy,
    OutOfBounds,
}

/// Welcome message: facts of the responder and of this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) version: u16,
    pub(crate) status: Status,
    /// `SO_SNDBUF` and `SO_RCVBUF` as the kernel granted them, bytes.
    pub(crate) send_buffer: u32,
    pub(crate) receive_buffer: u32,
    /// The congestion control's name.
    pub(crate) congestion: String,
}

impl Welcome {
    pub(crate) const SIZE: usize = 64;
    const NAME_MAX: usize = 16;

    pub(crate) fn refusing(status: Status) -> Self {
        Self { version: VERSION, status, send_buffer: 0, receive_buffer: 0, congestion: String::new() }
    }

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.version.to_be_bytes());
        out[10] = match self.status {
            Status::Accepted => 0,
            Status::OtherVersion => 1,
            Status::Malformed => 2,
            Status::Busy => 3,
            Status::OutOfBounds => 4,
        };
        out[12..16].copy_from_slice(&self.send_buffer.to_be_bytes());
        out[16..20].copy_from_slice(&self.receive_buffer.to_be_bytes());
        let name = self.congestion.as_bytes();
        let len = name.len().min(Self::NAME_MAX);
        out[20..20 + len].copy_from_slice(&name[..len]);
        out
    }

    /// `None`: this is no responder.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        if bytes[..8] != MAGIC {
            return None;
        }
        let status = match bytes[10] {
            0 => Status::Accepted,
            1 => Status::OtherVersion,
            2 => Status::Malformed,
            3 => Status::Busy,
            4 => Status::OutOfBounds,
            _ => return None,
        };
        let name = &bytes[20..20 + Self::NAME_MAX];
        // Shown on terminals: only what names of congestion controls are made of.
        let name = name.iter().take_while(|&&byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
        Some(Self {
            version: u16::from_be_bytes([bytes[8], bytes[9]]),
            status,
            send_buffer: u32_at(bytes, 12),
            receive_buffer: u32_at(bytes, 16),
            congestion: name.map(|&byte| char::from(byte)).collect(),
        })
    }
}

/// Report of a responder's counters: the last bytes of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Bytes that the responder sent or received in the measurement, whichever its task was; of round trips, received.
    pub(crate) bytes: u64,
    /// From the go to the last of them.
    pub(crate) elapsed: Duration,
    /// CPU time of the responder's thread, user and system.
    pub(crate) cpu: Duration,
    /// Since the go.
    pub(crate) tcp: TcpInfo,
}

impl Report {
    pub(crate) const SIZE: usize = 32 + TcpInfo::ENCODED;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_be_bytes();
        let mut out = [0; Self::SIZE];
        out[..8].copy_from_slice(&MAGIC_END);
        out[8..16].copy_from_slice(&self.bytes.to_be_bytes());
        out[16..24].copy_from_slice(&nanoseconds(self.elapsed));
        out[24..32].copy_from_slice(&nanoseconds(self.cpu));
        out[32..].copy_from_slice(&self.tcp.encode());
        out
    }

    /// `None`: the stream did not end as a responder's does.
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        if bytes[..8] != MAGIC_END {
            return None;
        }
        let mut tcp = [0; TcpInfo::ENCODED];
        tcp.copy_from_slice(&bytes[32..]);
        Some(Self {
            bytes: u64_at(bytes, 8),
            elapsed: Duration::from_nanos(u64_at(bytes, 16)),
            cpu: Duration::from_nanos(u64_at(bytes, 24)),
            tcp: TcpInfo::decode(&tcp),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        let second = Duration::from_secs(1);
        vec![
            Request { task: Task::Describe, buffer: 0, duration: Duration::ZERO },
            Request { task: Task::Take, buffer: 65536, duration: second },
            Request { task: Task::Give, buffer: 0, duration: DURATION_MAX },
            Request {
                task: Task::Answer { request: 48, answer: MESSAGE_MAX },
                buffer: 4096,
                duration: second,
            },
        ]
    }

    #[test]
    fn messages_survive_the_wire() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let welcome = Welcome { congestion: "cubic".into(), ..Welcome::refusing(Status::Busy) };
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        let tcp = TcpInfo { retransmits: 7, timestamps: true, ..TcpInfo::default() };
        let (elapsed, cpu) = (Duration::from_nanos(12), Duration::from_secs(3));
        let report = Report { bytes: u64::MAX, elapsed, cpu, tcp };
        assert_eq!(Report::decode(&report.encode()), Some(report));
    }

    #[test]
    fn a_request_beyond_any_bound_is_refused() {
        let good = requests()[3];
        let bad = [
            Request { duration: DURATION_MAX + Duration::from_millis(1), ..good },
            Request { buffer: 1, ..good },
            Request { buffer: u32::MAX, ..good },
            Request { task: Task::Answer { request: 0, answer: 1 }, ..good },
            Request { task: Task::Answer { request: 1, answer: MESSAGE_MAX + 1 }, ..good },
        ];
        for request in bad {
            assert_eq!(Request::decode(&request.encode()), Err(Status::OutOfBounds), "{request:?}");
        }
    }

    #[test]
    fn every_single_byte_changed_gives_a_good_request_or_a_refusal_within_bounds() {
        for request in requests() {
            for (at, value) in (0..Request::SIZE).flat_map(|at| (0..=255).map(move |value| (at, value))) {
                let mut bytes = request.encode();
                bytes[at] = value;
                if let Ok(read) = Request::decode(&bytes) {
                    assert!(read.duration <= DURATION_MAX && read.buffer <= *BUFFER_RANGE.end());
                    assert_eq!(read.encode(), bytes, "nothing in a good request is ignored");
                }
            }
        }
        let mut other = requests()[0].encode();
        other[9] = 2;
        assert_eq!(Request::decode(&other), Err(Status::OtherVersion));
    }

    #[test]
    fn a_name_from_the_other_end_cannot_control_a_terminal() {
        let mut bytes = Welcome::refusing(Status::Accepted).encode();
        bytes[20..26].copy_from_slice(b"bbr\x1b[2");
        assert_eq!(Welcome::decode(&bytes).unwrap().congestion, "bbr");
    }
}
