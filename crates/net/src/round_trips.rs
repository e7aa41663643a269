//! Requests and answers of storage's sizes, with no protocol: the limit above which no protocol can go.
//!
//! One TCP connection. A read is a request of 48 bytes (an iSCSI header, RFC 7143 §11.2) and an answer of 48 bytes and
//! the data; a write the reverse. Neither side looks at a byte: they count. Both sides batch: all that arrived is
//! answered with one write, and both watch the socket for a moment before they sleep, in receiving and in sending, as
//! our initiator and target do. No target that serves the same requests over one connection with one thread on each
//! side can be faster, so a result close to this one cannot be improved on the protocol's side.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::NetError;
use crate::line::Line;
use crate::measure::End;
use crate::stream::SOURCE;

/// A basic header segment, bytes (RFC 7143 §11.2).
pub const HEADER: u32 = 48;
/// Requests in flight at most.
pub const DEPTH_MAX: u32 = 1024;
/// Maximum size of one receive, bytes.
const RECEIVE: usize = 1 << 20;
/// Interval at which a client that can neither send nor receive checks whether it should still wait.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Longest round trip told apart, nanoseconds; what takes longer stalls.
const LONGEST: u64 = 60_000_000_000;
/// Significant decimal digits kept: an error of at most 0.1 %.
const DIGITS: u8 = 3;

/// The sizes of a request and its answer, bytes, headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Size of the client's request.
    pub request: u32,
    /// Size of the answer.
    pub answer: u32,
}

impl Shape {
    /// A read of `data` bytes: 48 out, 48 and the data back.
    pub fn read(data: u32) -> Self {
        Self { request: HEADER, answer: HEADER.saturating_add(data) }
    }

    /// A write of `data` bytes: 48 and the data out, 48 back.
    pub fn write(data: u32) -> Self {
        Self { request: HEADER.saturating_add(data), answer: HEADER }
    }

    /// Bytes per round trip that are no header, both ways.
    pub fn payload(self) -> u64 {
        u64::from(self.request.saturating_sub(HEADER)) + u64::from(self.answer.saturating_sub(HEADER))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} out, {} back", self.request, self.answer))
    }
}

/// Result of [`Client::round_trips`](crate::Client::round_trips).
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// Sizes of request and answer.
    pub shape: Shape,
    /// Requests kept in flight.
    pub depth: u32,
    /// Answers that came.
    pub count: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// From each request to its answer, nanoseconds.
    pub latency: Histogram<u64>,
    /// The asking end.
    pub near: End,
    /// The answering end, as it reports itself.
    pub far: Option<End>,
    /// Went on for as long as it was meant to.
    pub complete: bool,
}

impl RoundTrips {
    /// Round trips per second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Payload bytes per second: headers do not count.
    pub fn bytes_per_second(&self) -> f64 {
        self.per_second() * self.shape.payload() as f64
    }
}

/// Counters of the asking end.
pub(crate) struct Asked {
    pub(crate) count: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latency: Histogram<u64>,
    pub(crate) complete: bool,
}

/// Counts whole messages in a stream of bytes.
struct Messages {
    size: usize,
    /// Bytes of the message that has begun.
    partial: usize,
}

impl Messages {
    fn completed_by(&mut self, bytes: usize) -> usize {
        let total = self.partial + bytes;
        self.partial = total % self.size;
        total / self.size
    }
}

/// Answers until the other end closes; the bytes received.
pub(crate) fn answer(line: &mut Line<'_>, request: usize, answer: usize) -> Result<u64, NetError> {
    let mut received = vec![0; RECEIVE];
    let mut requests = Messages { size: request, partial: 0 };
    let mut bytes = 0;
    loop {
        let piece = line.read_watching(&mut received)?;
        if piece == 0 {
            return Ok(bytes);
        }
        bytes += piece as u64;
        // Both are bounded by the protocol: at most a megabyte of requests, each answered with at most 64 MiB.
        let mut left = requests.completed_by(piece) as u64 * answer as u64;
        while left > 0 {
            let sent = line
                .write_watching(&SOURCE[..SOURCE.len().min(usize::try_from(left).unwrap_or(usize::MAX))])?;
            left -= sent as u64;
        }
    }
}

/// Keeps `depth` requests in flight for `duration`, then waits for the last answers.
pub(crate) fn ask(
    line: &mut Line<'_>,
    shape: Shape,
    depth: u32,
    duration: Duration,
) -> Result<Asked, NetError> {
    let mut received = vec![0; RECEIVE];
    let mut answers = Messages { size: shape.answer as usize, partial: 0 };
    let mut started = VecDeque::with_capacity(depth as usize);
    let mut asked = Asked {
        count: 0,
        elapsed: Duration::ZERO,
        latency: Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("constant bounds are valid"),
        complete: true,
    };
    let origin = Instant::now();
    let mut now = Duration::ZERO;
    started.extend((0..depth).map(|_| now));
    let mut unsent = u64::from(depth) * u64::from(shape.request);
    while !started.is_empty() {
        let piece = match exchange(line, &mut unsent, &mut received) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(piece) => piece,
            // What is in flight now is not waited for: the peer may be what is hanging.
            Err(NetError::Stopped) => {
                asked.complete = false;
                break;
            }
            Err(error) => return Err(error),
        };
        let completed = answers.completed_by(piece).min(started.len());
        now = origin.elapsed();
        for start in started.drain(..completed) {
            asked.latency.saturating_record(u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX));
        }
        asked.count += completed as u64;
        if completed > 0 {
            asked.elapsed = now;
        }
        if line.is_stopped() {
            asked.complete = now >= duration;
        } else if now < duration {
            started.extend((0..completed).map(|_| now));
            unsent += completed as u64 * u64::from(shape.request);
        }
    }
    Ok(asked)
}

/// Sends what can be sent and receives what is there, at least one byte. Never blocked in sending while there is
/// something to receive, or both ends could wait for each other for good. A full send buffer is watched like an empty
/// receive buffer, before the thread sleeps: with large writes it is what is waited for most of the time.
fn exchange(line: &mut Line<'_>, unsent: &mut u64, received: &mut [u8]) -> Result<usize, NetError> {
    let mut since = Instant::now();
    while *unsent > 0 {
        let piece = SOURCE.len().min(usize::try_from(*unsent).unwrap_or(usize::MAX));
        if let Some(sent) = line.write_now(&SOURCE[..piece])? {
            *unsent -= sent as u64;
            since = Instant::now();
            continue;
        }
        if let Some(piece) = line.read_now(received)? {
            return Ok(piece);
        }
        if line.keeps_watching(since) {
            thread::yield_now();
            continue;
        }
        let mut sockets = [PollFd::new(line.stream(), PollFlags::IN | PollFlags::OUT)];
        match poll(&mut sockets, Some(&TICK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        line.keep_waiting(since)?;
    }
    line.read_watching(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_across_reads() {
        let mut messages = Messages { size: 48, partial: 0 };
        assert_eq!([40, 8, 100, 44].map(|bytes| messages.completed_by(bytes)), [0, 1, 2, 1]);
    }

    #[test]
    fn shapes_are_those_of_storage() {
        assert_eq!(Shape::read(4096), Shape { request: 48, answer: 4144 });
        assert_eq!(Shape::write(4096), Shape { request: 4144, answer: 48 });
        assert_eq!((Shape::read(4096).payload(), Shape { request: 1, answer: 1 }.payload()), (4096, 0));
    }
}
