//! The wire's limit: what two bare sockets move, of the same sizes, with no protocol.
//!
//! Two threads and one TCP connection over loopback. A read is a request of 48 bytes (an iSCSI header, RFC 7143 §11.2) and an
//! answer of 48 bytes and the data; a write the reverse. Neither side looks at a byte: they count. Both sides batch: all
//! that arrived is answered with one write. No target that serves the same requests over one connection with two threads
//! can be faster, so a result close to this one cannot be improved on the protocol's side.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::cpu::CpuTime;
use crate::job::{BLOCK_SIZE_MAX, Job, Limit, Mix, Pattern};
use crate::outcome::{Direction, End, Outcome};
use crate::run::Cancel;
use crate::series::{Point, Series};

/// A basic header segment, bytes (RFC 7143 §11.2).
const HEADER: usize = 48;
/// Requests in flight that fit any socket's buffers as bare headers, so that neither side can block the other for good.
const DEPTH_MAX: u32 = 1024;
/// What is received at once, bytes.
const RECEIVE: usize = 1 << 20;
/// What is sent at once, bytes: more makes the other side wait for its first byte.
const SEND: usize = 1 << 20;
/// Answers that do not come in this time will not come.
const STALL: Duration = Duration::from_secs(10);

/// Which way the data goes, and how much of it per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 48 bytes out, 48 and this many back.
    Read(u32),
    /// 48 and this many bytes out, 48 back.
    Write(u32),
}

impl Shape {
    fn data(self) -> u32 {
        match self {
            Self::Read(data) | Self::Write(data) => data,
        }
    }

    fn request(self) -> usize {
        match self {
            Self::Read(_) => HEADER,
            Self::Write(data) => HEADER + data as usize,
        }
    }

    fn answer(self) -> usize {
        match self {
            Self::Read(data) => HEADER + data as usize,
            Self::Write(_) => HEADER,
        }
    }
}

/// Measures `shape` with `depth` requests in flight for about `duration`, blocking the caller. The outcome looks like that of a job,
/// so that tables and reports can set it beside one; payload bytes count, headers do not.
pub fn measure(shape: Shape, depth: u32, duration: Duration, cancel: &Cancel) -> Result<Outcome, BenchError> {
    let depth = depth.clamp(1, DEPTH_MAX);
    if shape.data() > BLOCK_SIZE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than 64 MiB per request").into());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_write_timeout(Some(STALL))?;
    }
    thread::scope(|scope| {
        let answering =
            thread::Builder::new().name("wire".into()).spawn_scoped(scope, || answer(shape, &server))?;
        let asked = ask(shape, depth, duration, cancel, &client);
        // The other thread sees the end of the stream and returns.
        let _ = client.shutdown(Shutdown::Both);
        let answered =
            answering.join().unwrap_or_else(|_| Err(io::Error::other("the answering thread died")));
        let outcome = asked?;
        answered?;
        Ok(outcome)
    })
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

/// `count` messages of `size` bytes, cut from `source`, which repeats.
fn send(mut stream: &TcpStream, source: &[u8], count: usize, size: usize) -> io::Result<()> {
    let mut left = count * size;
    while left > 0 {
        let take = left.min(source.len());
        stream.write_all(&source[..take])?;
        left -= take;
    }
    Ok(())
}

fn answer(shape: Shape, mut stream: &TcpStream) -> io::Result<()> {
    let mut received = vec![0; RECEIVE];
    let sent = vec![0xa5; SEND];
    let mut requests = Messages { size: shape.request(), partial: 0 };
    loop {
        let bytes = match stream.read(&mut received) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The asking side has hung up with answers under way.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        };
        send(stream, &sent, requests.completed_by(bytes), shape.answer())?;
    }
}

fn ask(
    shape: Shape,
    depth: u32,
    duration: Duration,
    cancel: &Cancel,
    mut stream: &TcpStream,
) -> io::Result<Outcome> {
    let mut received = vec![0; RECEIVE];
    let sent = vec![0x5a; SEND];
    let mut answers = Messages { size: shape.answer(), partial: 0 };
    let mut started = VecDeque::with_capacity(depth as usize);
    let mut figures = Direction::default();
    let mut series = Series::default();
    let mut depth_sum = 0u128;
    let is_read = matches!(shape, Shape::Read(_));
    let totals = |figures: &Direction| match is_read {
        true => Point { read_ios: figures.ios, read_bytes: figures.bytes, ..Point::default() },
        false => Point { write_ios: figures.ios, write_bytes: figures.bytes, ..Point::default() },
    };

    let cpu = CpuTime::now();
    let origin = Instant::now();
    let mut now = Duration::ZERO;
    let mut point_at = Series::STEP;
    started.extend((0..depth).map(|_| now));
    send(stream, &sent, depth as usize, shape.request())?;
    while !started.is_empty() {
        let bytes = match stream.read(&mut received) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let completed = answers.completed_by(bytes);
        let before = now;
        now = origin.elapsed();
        depth_sum += started.len() as u128 * (now - before).as_nanos();
        while now >= point_at {
            series.push(totals(&figures));
            point_at += Series::STEP;
        }
        for start in started.drain(..completed.min(started.len())) {
            figures.latency.record(u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX));
        }
        figures.ios += completed as u64;
        figures.bytes += completed as u64 * u64::from(shape.data());
        if now < duration && !cancel.is_cancelled() {
            started.extend((0..completed).map(|_| now));
            send(stream, &sent, completed, shape.request())?;
        }
    }

    figures.elapsed = now;
    let mut other = Direction { elapsed: now, ..Direction::default() };
    let mut mix = Mix::READ;
    if !is_read {
        mix = Mix::WRITE;
        std::mem::swap(&mut figures, &mut other);
    }
    let job = Job {
        pattern: Pattern::Sequential,
        mix,
        block_size: shape.data(),
        queue_depth: depth,
        limit: Limit::Time(duration),
        ..Job::new("the wire's limit")
    };
    Ok(Outcome {
        job,
        read: figures,
        write: other,
        elapsed: now,
        series,
        cpu: CpuTime::now().since(cpu),
        depth_mean: depth_sum as f64 / (now.as_nanos() as f64).max(1.0),
        depth_max: depth,
        end: if cancel.is_cancelled() { End::Cancelled } else { End::Limit },
        abandoned: 0,
        verification: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEFLY: Duration = Duration::from_millis(150);

    #[test]
    fn reads_of_4_kib_at_depth_32_move_and_end() {
        let outcome = measure(Shape::Read(4096), 32, BRIEFLY, &Cancel::new()).unwrap();
        assert_eq!(outcome.read.bytes, outcome.read.ios * 4096);
        assert_eq!(outcome.read.latency.count(), outcome.read.ios);
        assert!(outcome.read.iops() > 1000.0, "{}", outcome.read.iops());
        assert!(outcome.depth_mean > 16.0 && outcome.depth_mean <= 32.0, "{}", outcome.depth_mean);
        assert_eq!(outcome.write.ios, 0);
    }

    #[test]
    fn writes_larger_than_every_buffer_do_not_block_for_good() {
        let outcome = measure(Shape::Write(4 << 20), 8, BRIEFLY, &Cancel::new()).unwrap();
        assert!(outcome.write.ios >= 8);
        assert_eq!(outcome.read.ios, 0);
    }

    #[test]
    fn a_cancel_ends_it_early() {
        let cancel = Cancel::new();
        cancel.cancel();
        let outcome = measure(Shape::Read(512), 1, Duration::from_secs(60), &cancel).unwrap();
        assert_eq!((outcome.read.ios, outcome.end), (1, End::Cancelled));
    }

    #[test]
    fn messages_are_counted_across_reads() {
        let mut messages = Messages { size: 48, partial: 0 };
        assert_eq!([40, 8, 100, 44].map(|bytes| messages.completed_by(bytes)), [0, 1, 2, 1]);
    }
}
