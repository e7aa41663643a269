//! The end that asks.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::NetError;
use crate::line::{Line, STALL, StopFlag};
use crate::measure::{Direction, End, Stream, Throughput};
use crate::protocol::{BUFFER_RANGE, DURATION_MAX, GO, MESSAGE_MAX, Report, Request, Status, Task, Welcome};
use crate::round_trips::{self, DEPTH_MAX, RoundTrips, Shape};
use crate::socket::{Buffers, Window, congestion, connect};
use crate::stream::{Sampler, give, take, thread_cpu};
use crate::tcp_info::TcpInfo;

/// Streams of one measurement at most.
pub const STREAMS_MAX: u32 = 16;
/// Timeout of a handshake, including the responder's introduction.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Grace time of a measurement beyond its planned duration: data in flight, queues.
const GRACE: Duration = Duration::from_secs(20);
/// Time that an interrupted measurement waits for the responder's report.
const INTERRUPTED_TIME: Duration = Duration::from_secs(1);
/// Segments smaller than this are refused by Linux (`TCP_MIN_MSS`, and room for the headers).
const MTU_RANGE: std::ops::RangeInclusive<u32> = 576..=65535;

/// Measures what TCP does on the way to a responder, blocking the caller.
///
/// Each measurement makes its own connections, so nothing is carried over from one to the next, and several clients can
/// share a responder. A measurement of one stream runs on the calling thread; of several, each on a thread started by
/// it, which therefore is in the same network namespace.
#[derive(Clone, Debug)]
pub struct Client {
    peer: SocketAddr,
    from: Option<IpAddr>,
    window: Window,
    mtu: Option<u32>,
    patience: Duration,
    stop: StopFlag,
    path: Path,
}

/// Properties of the path to the responder, as the first connection showed them.
#[derive(Clone, Debug, Default)]
pub struct Path {
    /// The MTU of the path, bytes, as far as this end's kernel knows.
    pub mtu: u32,
    /// Payload of a full segment, bytes.
    pub segment: u32,
    /// Both ends put timestamps into every segment.
    pub timestamps: bool,
    /// The round trip of the handshake.
    pub round_trip: Duration,
    /// Congestion control of this end.
    pub congestion_near: String,
    /// Congestion control of the responder.
    pub congestion_far: String,
}

impl Client {
    /// Finds out whether a responder is there. `from` is the address to come from, where the machine has several.
    pub fn connect(peer: SocketAddr, from: Option<IpAddr>, window: Window) -> Result<Self, NetError> {
        Self::connect_within(peer, from, window, CONNECT_TIME)
    }

    /// The same, where the handshake of each connection and the responder's first words may take no longer than
    /// `patience` each.
    pub fn connect_within(
        peer: SocketAddr,
        from: Option<IpAddr>,
        window: Window,
        patience: Duration,
    ) -> Result<Self, NetError> {
        let (mtu, stop, path) = (None, StopFlag::new(), Path::default());
        let mut client = Self { peer, from, window, mtu, patience, stop, path };
        let opened = client.open(Task::Describe, Duration::ZERO)?;
        let tcp = TcpInfo::of(&opened.stream)?;
        client.path = Path {
            mtu: tcp.path_mtu,
            segment: tcp.segment,
            timestamps: tcp.timestamps,
            round_trip: tcp.rtt,
            congestion_near: congestion(&opened.stream),
            congestion_far: opened.welcome.congestion,
        };
        Ok(client)
    }

    /// The same with another window.
    #[must_use]
    pub fn with_window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// The same with segments, both ways, no longer than those of a path with this MTU. The path itself stays as it is,
    /// so this can only make packets smaller than they would be.
    #[must_use]
    pub fn with_mtu(mut self, mtu: Option<u32>) -> Self {
        self.mtu = mtu;
        self
    }

    /// The same, ended early by `stop`.
    #[must_use]
    pub fn with_stop(mut self, stop: StopFlag) -> Self {
        self.stop = stop;
        self
    }

    /// The responder's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the known properties of the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Measures goodput of `streams` connections at once for `duration`.
    pub fn throughput(
        &self,
        direction: Direction,
        streams: u32,
        duration: Duration,
    ) -> Result<Throughput, NetError> {
        if !(1..=STREAMS_MAX).contains(&streams) {
            return Err(NetError::Unreasonable(format!("a measurement has 1 to {STREAMS_MAX} streams")));
        }
        let task = match direction {
            Direction::Send => Task::Take,
            Direction::Receive => Task::Give,
        };
        let opened = (0..streams).map(|_| self.open(task, duration)).collect::<Result<Vec<_>, NetError>>()?;
        let measure = |opened: &Opened| match direction {
            Direction::Send => self.send(opened, duration),
            Direction::Receive => self.receive(opened, duration),
        };
        let measured = match opened.as_slice() {
            [only] => vec![measure(only)],
            several => {
                let together = Barrier::new(several.len());
                thread::scope(|scope| {
                    let run = |opened| {
                        let (measure, together) = (&measure, &together);
                        scope.spawn(move || {
                            together.wait();
                            measure(opened)
                        })
                    };
                    let threads: Vec<_> = several.iter().map(run).collect();
                    threads
                        .into_iter()
                        .map(|thread| thread.join().unwrap_or(Err(NetError::Stopped)))
                        .collect()
                })
            }
        };
        let streams = measured.into_iter().collect::<Result<Vec<_>, NetError>>()?;
        let complete = !self.stop.is_stopped() && streams.iter().all(|stream| stream.far.is_some());
        Ok(Throughput { direction, window: self.window, streams, complete })
    }

    /// Measures requests and answers of `shape` with `depth` in flight for `duration`, on one connection.
    pub fn round_trips(&self, shape: Shape, depth: u32, duration: Duration) -> Result<RoundTrips, NetError> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(NetError::Unreasonable(format!("the depth is 1 to {DEPTH_MAX}")));
        }
        if ![shape.request, shape.answer].iter().all(|size| (1..=MESSAGE_MAX).contains(size)) {
            return Err(NetError::Unreasonable("requests and answers have 1 byte to 64 MiB".to_owned()));
        }
        let task = Task::Answer { request: shape.request, answer: shape.answer };
        let opened = self.open(task, duration)?;
        let mut line = self.start(&opened, duration)?;
        let before = TcpInfo::of(&opened.stream)?;
        let cpu = thread_cpu();
        let asked = round_trips::ask(&mut line, shape, depth, duration)?;
        let near = self.near(&opened, cpu, &before)?;
        let far = if asked.complete { self.report(&opened, STALL).ok() } else { None };
        Ok(RoundTrips {
            shape,
            depth,
            count: asked.count,
            elapsed: asked.elapsed,
            latency: asked.latency,
            near,
            far: far.map(|report| opened.far(&report)),
            complete: asked.complete,
        })
    }

    fn send(&self, opened: &Opened, duration: Duration) -> Result<Stream, NetError> {
        let mut line = self.start(opened, duration)?;
        let before = TcpInfo::of(&opened.stream)?;
        let cpu = thread_cpu();
        let origin = Instant::now();
        let mut sampler = Sampler::new(duration);
        let mut series = Vec::new();
        // What has left here has not arrived yet: the acknowledgements tell.
        let acknowledged = || {
            TcpInfo::of(&opened.stream).map_or(0, |now| now.acknowledged.saturating_sub(before.acknowledged))
        };
        give(&mut line, duration, |now, _| {
            if sampler.due(now) {
                series.push((now, acknowledged()));
            }
        })?;
        let arrived = (origin.elapsed(), acknowledged());
        let near = self.near(opened, cpu, &before)?;
        let patience = if self.stop.is_stopped() { INTERRUPTED_TIME } else { GRACE };
        match self.report(opened, patience) {
            Ok(report) => Ok(Stream {
                bytes: report.bytes,
                elapsed: report.elapsed,
                // What was under way at the end may have been sent again as well.
                near: End { tcp: TcpInfo::of(&opened.stream)?.since(&before), ..near },
                far: Some(opened.far(&report)),
                series,
            }),
            Err(_) if self.stop.is_stopped() => {
                Ok(Stream { bytes: arrived.1, elapsed: arrived.0, near, far: None, series })
            }
            Err(error) => Err(error),
        }
    }

    fn receive(&self, opened: &Opened, duration: Duration) -> Result<Stream, NetError> {
        let before = TcpInfo::of(&opened.stream)?;
        let mut line = self.start(opened, duration)?;
        let cpu = thread_cpu();
        let mut sampler = Sampler::new(duration);
        let mut series = Vec::new();
        let taken = take(&mut line, self.window.bytes(), |now, bytes| {
            if sampler.due(now) {
                series.push((now, bytes));
            }
        })?;
        let near = self.near(opened, cpu, &before)?;
        let report = taken.tail.as_ref().and_then(Report::decode);
        if report.is_none() && !self.stop.is_stopped() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let extra = if report.is_some() { Report::SIZE as u64 } else { 0 };
        Ok(Stream {
            bytes: taken.bytes - extra,
            elapsed: taken.elapsed,
            near,
            far: report.map(|report| opened.far(&report)),
            series,
        })
    }

    /// Makes a connection and the request on it; the responder waits for the go.
    fn open(&self, task: Task, duration: Duration) -> Result<Opened, NetError> {
        let peer = self.peer;
        if duration > DURATION_MAX {
            let most = DURATION_MAX.as_secs() / 60;
            return Err(NetError::Unreasonable(format!("a measurement lasts {most} minutes at most")));
        }
        if self.window.bytes().is_some_and(|bytes| !BUFFER_RANGE.contains(&bytes)) {
            return Err(NetError::Unreasonable("a window has 2 KiB to 1 GiB".to_owned()));
        }
        if self.mtu.is_some_and(|mtu| !MTU_RANGE.contains(&mtu)) {
            return Err(NetError::Unreasonable("an MTU is 576 to 65535 bytes".to_owned()));
        }
        let stream = connect(peer, self.from, self.window, self.mtu, self.patience)?;
        let mut line = Line::new(&stream, &self.stop, self.patience)?;
        let request = Request { task, buffer: self.window.bytes().unwrap_or(0), duration };
        line.write_all(&request.encode())?;
        let mut welcome = [0; Welcome::SIZE];
        match line.read_exact(&mut welcome) {
            Ok(()) => {}
            // Another kind of server hung up on this, or waits for more.
            Err(NetError::Broken(_) | NetError::Overdue | NetError::Stalled(_)) => {
                return Err(NetError::Foreign(peer));
            }
            Err(error) => return Err(error),
        }
        let welcome = Welcome::decode(&welcome).ok_or(NetError::Foreign(peer))?;
        match welcome.status {
            Status::Accepted => Ok(Opened { stream, welcome }),
            Status::OtherVersion => Err(NetError::Version { peer, theirs: welcome.version }),
            Status::Busy => Err(NetError::Busy(peer)),
            Status::Malformed | Status::OutOfBounds => Err(NetError::Refused(peer)),
        }
    }

    fn start<'a>(&'a self, opened: &'a Opened, duration: Duration) -> Result<Line<'a>, NetError> {
        let mut line = Line::new(&opened.stream, &self.stop, duration + GRACE)?;
        line.write_all(&[GO])?;
        Ok(line)
    }

    /// Says that nothing more comes, and reads what the responder counted, whether or not a stop was asked for.
    fn report(&self, opened: &Opened, patience: Duration) -> Result<Report, NetError> {
        let unstoppable = StopFlag::new();
        opened.stream.shutdown(Shutdown::Write)?;
        let mut report = [0; Report::SIZE];
        Line::new(&opened.stream, &unstoppable, patience)?.read_exact(&mut report)?;
        Report::decode(&report).ok_or(NetError::Foreign(self.peer))
    }

    fn near(&self, opened: &Opened, cpu: Duration, before: &TcpInfo) -> Result<End, NetError> {
        let cpu = thread_cpu().saturating_sub(cpu);
        let tcp = TcpInfo::of(&opened.stream)?.since(before);
        Ok(End { cpu, buffers: Buffers::of(&opened.stream)?, tcp })
    }
}

/// A connection whose responder waits for the go.
struct Opened {
    stream: TcpStream,
    welcome: Welcome,
}

impl Opened {
    fn far(&self, report: &Report) -> End {
        let buffers = Buffers { send: self.welcome.send_buffer, receive: self.welcome.receive_buffer };
        End { cpu: report.cpu, buffers, tcp: report.tcp }
    }
}
