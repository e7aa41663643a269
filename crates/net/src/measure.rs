//! Results of one connection, and of several at once.

use std::fmt;
use std::time::Duration;

use crate::socket::{Buffers, Window};
use crate::tcp_info::TcpInfo;
use crate::theory;

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the responder, as a storage write does.
    Send,
    /// From the responder to the client, as a storage read does.
    Receive,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "sending",
            Self::Receive => "receiving",
        })
    }
}

/// One end of a connection over a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// CPU time of its thread, user and system.
    pub cpu: Duration,
    /// Socket buffers for the window.
    pub buffers: Buffers,
    /// The connection as it was at the end, counters since the beginning.
    pub tcp: TcpInfo,
}

/// One stream of a [`Throughput`].
#[derive(Clone, Debug)]
pub struct Stream {
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// From the start to the last of them, on the clock of the end where they arrived.
    pub elapsed: Duration,
    /// The client's end.
    pub near: End,
    /// The responder's, as it reports itself; none if the measurement was interrupted.
    pub far: Option<End>,
    /// Bytes that had arrived by then, about ten times a second.
    pub series: Vec<(Duration, u64)>,
}

impl Stream {
    /// Bytes that had arrived by `time`, between two samples in proportion.
    fn bytes_at(&self, time: Duration) -> f64 {
        let end = (self.elapsed, self.bytes);
        let mut before = (Duration::ZERO, 0);
        for &point in self.series.iter().filter(|point| point.0 < self.elapsed).chain([&end]) {
            if point.0 >= time {
                let span = (point.0 - before.0).as_secs_f64().max(1e-9);
                let part = (time - before.0).as_secs_f64() / span;
                return before.1 as f64 + part * point.1.saturating_sub(before.1) as f64;
            }
            before = point;
        }
        self.bytes as f64
    }
}

/// Result of [`Client::throughput`](crate::Client::throughput): goodput, counted where it arrived.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// Direction of the data.
    pub direction: Direction,
    /// The window asked for.
    pub window: Window,
    /// Each stream.
    pub streams: Vec<Stream>,
    /// Went on for as long as it was meant to.
    pub complete: bool,
}

impl Throughput {
    /// Payload bytes that arrived, of all streams.
    pub fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).fold(0, u64::saturating_add)
    }

    /// The longest stream's time.
    pub fn elapsed(&self) -> Duration {
        self.streams.iter().map(|stream| stream.elapsed).max().unwrap_or_default()
    }

    /// Payload bytes per second, of all streams together.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes() as f64 / self.elapsed().as_secs_f64().max(1e-9)
    }

    /// Payload bits per second, of all streams together.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes_per_second() * 8.0
    }

    /// Payload bits per second without the first `omit` of the time, in which TCP starts slowly; none if it was no
    /// longer than that.
    pub fn bits_per_second_after(&self, omit: Duration) -> Option<f64> {
        let rest = self.elapsed().checked_sub(omit).filter(|rest| !rest.is_zero())?;
        Some((self.bytes() as f64 - self.bytes_at(omit)) * 8.0 / rest.as_secs_f64())
    }

    /// Payload bytes of all streams that had arrived by `time`.
    pub fn bytes_at(&self, time: Duration) -> f64 {
        self.streams.iter().map(|stream| stream.bytes_at(time)).sum()
    }

    /// The end that sends, of each stream whose report came: the one whose TCP knows of loss.
    pub fn senders(&self) -> impl Iterator<Item = &End> {
        self.streams.iter().filter_map(|stream| match self.direction {
            Direction::Send => Some(&stream.near),
            Direction::Receive => stream.far.as_ref(),
        })
    }

    /// Segments that were sent again, of all streams.
    pub fn retransmits(&self) -> u64 {
        self.senders().map(|end| end.tcp.retransmits).fold(0, u64::saturating_add)
    }

    /// The shortest round trip that any sender saw: the path without queues. None if no sender saw any.
    pub fn round_trip(&self) -> Option<Duration> {
        self.senders().map(|end| end.tcp.rtt_min).filter(|rtt| !rtt.is_zero()).min()
    }

    /// CPU time per payload byte of the client's threads, nanoseconds.
    pub fn cpu_ns_per_byte_near(&self) -> f64 {
        let cpu: Duration = self.streams.iter().map(|stream| stream.near.cpu).sum();
        cpu.as_nanos() as f64 / (self.bytes() as f64).max(1.0)
    }

    /// The same of the responder's threads; none if a report is missing.
    pub fn cpu_ns_per_byte_far(&self) -> Option<f64> {
        let cpu =
            self.streams.iter().map(|stream| Some(stream.far?.cpu.as_nanos() as f64)).sum::<Option<f64>>()?;
        Some(cpu / (self.bytes() as f64).max(1.0))
    }

    /// Returns `true` if a kernel granted less window than was requested.
    pub fn clipped(&self) -> bool {
        self.streams.iter().any(|stream| {
            [Some(stream.near), stream.far].iter().flatten().any(|end| end.buffers.clipped(self.window))
        })
    }

    /// Returns the throughput limit of the window, bits per second: a window per round trip and stream. `None` where
    /// the kernel sizes the window.
    pub fn window_limit(&self) -> Option<f64> {
        let limit = theory::window_limit(self.window.bytes()?, self.round_trip()?);
        Some(limit * self.streams.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(bytes: u64, series: &[(u64, u64)]) -> Stream {
        let series = series.iter().map(|&(ms, bytes)| (Duration::from_millis(ms), bytes)).collect();
        let (near, far) = (End::default(), None);
        Stream { bytes, elapsed: Duration::from_secs(2), near, far, series }
    }

    fn throughput(streams: Vec<Stream>) -> Throughput {
        Throughput { direction: Direction::Send, window: Window::Auto, streams, complete: true }
    }

    #[test]
    fn without_its_slow_start_a_stream_is_as_fast_as_it_was_afterwards() {
        // One second at 100 bytes per second, one at 900.
        let measured = throughput(vec![stream(1000, &[(500, 50), (1000, 100), (1500, 550)])]);
        assert_eq!(measured.bits_per_second(), 4000.0);
        assert_eq!(measured.bits_per_second_after(Duration::from_secs(1)), Some(7200.0));
        assert_eq!(measured.bits_per_second_after(Duration::from_millis(250)).map(f64::round), Some(4457.0));
        assert_eq!(measured.bits_per_second_after(Duration::from_secs(2)), None);
    }

    #[test]
    fn streams_add_up_and_a_missing_report_is_no_zero() {
        let measured = throughput(vec![stream(1000, &[]), stream(3000, &[])]);
        assert_eq!((measured.bytes(), measured.bytes_per_second()), (4000, 2000.0));
        assert_eq!(measured.cpu_ns_per_byte_far(), None);
        assert_eq!(measured.window_limit(), None);
    }
}
