//! Counters of a worker.

use std::time::Duration;

use lunway_block::BlockError;

use crate::measure::cpu::CpuTime;
use crate::measure::interval::Interval;
use crate::measure::latency::Latency;
use crate::measure::outcome::Direction;
use crate::measure::series::{Point, Series};

/// "Never", as a time.
pub(crate) const NEVER: u64 = u64::MAX;
/// Beats come at multiples of this, nanoseconds.
pub(crate) const BEAT: u64 = 250_000_000;

/// Completions since the last beat, about four times a second.
pub(crate) struct Beat<'a> {
    /// Nanoseconds since the origin.
    pub(crate) now: u64,
    pub(crate) since: u64,
    pub(crate) read: &'a Interval,
    pub(crate) write: &'a Interval,
    /// Nothing of it counts for the outcome.
    pub(crate) ramping: bool,
}

/// The counters of one worker, and when to look after them: [`edge`](Self::edge) wants to be called at
/// [`edge_at`](Self::edge_at), which is the one comparison that an I/O costs here. Times are nanoseconds since the
/// origin.
///
/// An I/O is counted once, in the current interval; a beat hands that on and adds it to the totals.
pub(crate) struct Meter {
    ramp: u64,
    /// Start of measuring; [`NEVER`] during the ramp.
    measured_from: u64,
    point_at: u64,
    beat_at: u64,
    beaten_at: u64,
    last_event: u64,
    depth_sum: u64,
    depth_max: u32,
    cpu: CpuTime,
    series: Series,
    read: DirectionCounters,
    write: DirectionCounters,
}

/// Counters of one direction.
#[derive(Default)]
struct DirectionCounters {
    interval: Interval,
    total: Interval,
    /// Of an open loop: service and wait.
    parts: Option<Box<(Latency, Latency)>>,
    errors: u64,
    first_error: Option<String>,
}

/// The three times of an I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) intended: u64,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
}

impl Meter {
    /// Starts at time 0. In an open loop intended and submitted times differ and are counted apart.
    pub(crate) fn new(ramp: Duration, open_loop: bool) -> Self {
        let counters =
            || DirectionCounters { parts: open_loop.then(Box::default), ..DirectionCounters::default() };
        let mut meter = Self {
            ramp: nanos(ramp),
            measured_from: NEVER,
            point_at: NEVER,
            beat_at: BEAT,
            beaten_at: 0,
            last_event: 0,
            depth_sum: 0,
            depth_max: 0,
            cpu: CpuTime::default(),
            series: Series::default(),
            read: counters(),
            write: counters(),
        };
        if ramp.is_zero() {
            meter.start_measuring(0, 0);
        }
        meter
    }

    /// The ramp is over.
    #[inline]
    pub(crate) fn is_measuring(&self) -> bool {
        self.measured_from != NEVER
    }

    /// The next time at which something has to be done.
    pub(crate) fn edge_at(&self) -> u64 {
        let ramp = if self.is_measuring() { NEVER } else { self.ramp };
        ramp.min(self.point_at).min(self.beat_at)
    }

    /// Does what has become due while `in_flight` are under way.
    #[cold]
    pub(crate) fn edge(&mut self, now: u64, in_flight: u32, beat: &mut dyn FnMut(&Beat<'_>)) {
        if !self.is_measuring() && now >= self.ramp {
            self.beat(now, beat);
            self.start_measuring(now, in_flight);
        }
        while now >= self.point_at {
            self.series.push(self.totals());
            self.point_at += nanos(Series::STEP);
        }
        if now >= self.beat_at {
            self.beat(now, beat);
        }
    }

    /// Something completed while `depth` were in flight.
    #[inline]
    pub(crate) fn completed(&mut self, now: u64, depth: u32) {
        self.depth_sum += u64::from(depth) * (now - self.last_event);
        self.last_event = now;
    }

    /// Records the number of I/Os in flight.
    #[inline]
    pub(crate) fn in_flight(&mut self, depth: u32) {
        self.depth_max = self.depth_max.max(depth);
    }

    /// An I/O was done.
    #[inline]
    pub(crate) fn count(&mut self, is_read: bool, bytes: u32, times: Times) {
        let counters = if is_read { &mut self.read } else { &mut self.write };
        let Times { intended, submitted, completed } = times;
        counters.interval.ios += 1;
        counters.interval.bytes += u64::from(bytes);
        counters.interval.response.record(completed.saturating_sub(intended));
        if let Some(parts) = &mut counters.parts {
            let (service, wait) = &mut **parts;
            service.record(completed.saturating_sub(submitted));
            wait.record(submitted.saturating_sub(intended));
        }
    }

    /// An I/O failed.
    #[cold]
    pub(crate) fn failed(&mut self, is_read: bool, error: &BlockError) {
        let counters = if is_read { &mut self.read } else { &mut self.write };
        counters.errors += 1;
        counters.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Forgets what the ramp counted. Errors are kept: they are news, whenever they come.
    fn start_measuring(&mut self, now: u64, in_flight: u32) {
        for counters in [&mut self.read, &mut self.write] {
            counters.interval.clear();
            counters.total.clear();
            if let Some(parts) = &mut counters.parts {
                parts.0.clear();
                parts.1.clear();
            }
        }
        self.measured_from = now;
        self.point_at = now + nanos(Series::STEP);
        self.last_event = now;
        self.depth_sum = 0;
        self.depth_max = in_flight;
        self.cpu = CpuTime::now();
    }

    fn totals(&self) -> Point {
        let ios = |counters: &DirectionCounters| counters.total.ios + counters.interval.ios;
        let bytes = |counters: &DirectionCounters| counters.total.bytes + counters.interval.bytes;
        Point {
            read_ios: ios(&self.read),
            read_bytes: bytes(&self.read),
            write_ios: ios(&self.write),
            write_bytes: bytes(&self.write),
        }
    }

    fn beat(&mut self, now: u64, beat: &mut dyn FnMut(&Beat<'_>)) {
        let (read, write) = (&self.read.interval, &self.write.interval);
        beat(&Beat { now, since: self.beaten_at, read, write, ramping: !self.is_measuring() });
        for counters in [&mut self.read, &mut self.write] {
            counters.total.merge(&counters.interval);
            counters.interval.clear();
        }
        self.beaten_at = now;
        self.beat_at = (now / BEAT + 1) * BEAT;
    }

    /// The figures of a run that was stopped at `stopped_at` and whose last I/Os have come.
    pub(crate) fn finish(mut self, now: u64, stopped_at: u64) -> Figures {
        if !self.is_measuring() {
            self.start_measuring(now, 0);
        }
        let elapsed =
            Duration::from_nanos(self.last_event.max(stopped_at).saturating_sub(self.measured_from));
        Figures {
            elapsed,
            read: self.read.finish(elapsed),
            write: self.write.finish(elapsed),
            series: self.series,
            cpu: CpuTime::now().since(self.cpu),
            depth_mean: self.depth_sum as f64 / (elapsed.as_nanos() as f64).max(1.0),
            depth_max: self.depth_max,
        }
    }
}

/// Figures counted by a [`Meter`].
pub(crate) struct Figures {
    pub(crate) elapsed: Duration,
    pub(crate) read: Direction,
    pub(crate) write: Direction,
    pub(crate) series: Series,
    pub(crate) cpu: CpuTime,
    pub(crate) depth_mean: f64,
    pub(crate) depth_max: u32,
}

impl DirectionCounters {
    fn finish(mut self, elapsed: Duration) -> Direction {
        self.total.merge(&self.interval);
        let Interval { ios, bytes, response } = self.total;
        let (service, wait) = self.parts.map_or_else(
            || {
                let mut none = Latency::default();
                none.record_many(0, response.count());
                (response.clone(), none)
            },
            |parts| *parts,
        );
        let Self { errors, first_error, .. } = self;
        Direction { ios, bytes, elapsed, response, service, wait, errors, first_error }
    }
}

/// Nanoseconds; 584 years fit.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}
