//! The loop that issues and collects I/Os.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Io};
use tokio::time::Sleep;

use crate::cpu::CpuTime;
use crate::job::Job;
use crate::outcome::{Direction, End, Outcome};
use crate::pace::Pace;
use crate::payload::Payload;
use crate::run::{Cancel, Tick};
use crate::series::{Point, Series};
use crate::slots::Wakes;
use crate::source::Source;
use crate::verify::Verifier;

/// A device that answers inline keeps the task this long, nanoseconds, before the runtime gets its turn: a thousand I/Os
/// of a RAM disk, so that a turn costs each of them less than a nanosecond.
const SLICE: u64 = 100_000;
/// With nothing else to do, cancel and progress are looked after this often.
const IDLE_TURN: Duration = Duration::from_millis(50);
/// The runtime's timers have a resolution of 1 ms; the rest of the way to a due I/O is spent turning, nanoseconds.
const TIMER_SLACK: u64 = 1_500_000;
/// How long a cancelled run waits for what is in flight, nanoseconds.
const DRAIN_MAX: u64 = 1_000_000_000;
/// Failures in a row, without a success, that end a run.
const FAILURES_MAX: u32 = 1000;
const TICK: u64 = 250_000_000;
const NEVER: u64 = u64::MAX;

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, BlockError>> + Send>>;

enum Flight {
    Idle,
    Read(Pending<Buf>),
    Write(Pending<()>),
}

struct Slot {
    flight: Flight,
    /// When the I/O was issued, or due where there is a rate: nanoseconds since the origin, like every time here.
    started: u64,
    offset: u64,
    /// Memory for reads, while none is under way.
    buf: Buf,
    waker: Waker,
}

/// What [`Engine::step`] did.
enum Step {
    /// Issued one; this is the time now.
    Issued(u64),
    /// The next one is due then.
    Due(u64),
    /// Nothing to issue before something completes.
    Blocked,
}

/// One run of one job: `queue_depth` slots, and what is counted.
///
/// [`poll`](Self::poll) until ready, then [`finish`](Self::finish).
///
/// The cost per I/O is the device's call, one reading of the clock, one histogram count. The time at which one I/O
/// completed is the time at which the next is issued; whatever lies between is charged to the latter. Everything that
/// happens at a time (end of ramp, deadline, series, progress) sits behind one comparison with [`Engine::edge_at`].
/// No allocation but the device's own.
pub(crate) struct Engine<'a> {
    device: &'a dyn BlockDevice,
    job: &'a Job,
    progress: &'a mut dyn FnMut(&Tick),
    cancel: &'a Cancel,
    origin: Instant,

    source: Source,
    payload: Payload,
    pace: Option<Pace>,
    verifier: Option<Verifier>,
    slots: Vec<Slot>,
    idle: Vec<u32>,
    in_flight: u32,
    wakes: Arc<Wakes>,
    sleep: Pin<Box<Sleep>>,

    /// Bytes that may still be issued, once measuring.
    bytes_left: u64,
    /// Bytes that will be issued in all, where that is known.
    bytes_total: Option<u64>,
    deadline: u64,
    end: Option<End>,
    stopped_at: u64,
    drain_until: u64,
    abandoned: u32,
    failures: u32,

    /// The next time at which something has to be done.
    edge_at: u64,
    /// When measuring began; [`NEVER`] during the ramp.
    measured_from: u64,
    point_at: u64,
    tick_at: u64,
    ticked: (u64, Point),
    last_event: u64,
    depth_sum: u64,
    depth_max: u32,
    cpu: CpuTime,
    read: Direction,
    write: Direction,
    series: Series,
}

impl<'a> Engine<'a> {
    /// Starts the clock. A verifier that is reading back makes this a pass over what it has seen written, and the
    /// job's mix, limit, ramp and rate are without effect.
    pub(crate) fn new(
        device: &'a dyn BlockDevice,
        job: &'a Job,
        verifier: Option<Verifier>,
        progress: &'a mut dyn FnMut(&Tick),
        cancel: &'a Cancel,
    ) -> Self {
        let read_back = verifier.as_ref().filter(|verifier| verifier.is_reading_back());
        let read_back = read_back.map(|verifier| verifier.written() * u64::from(job.block_size));
        let limited = read_back.is_none();
        let depth = job.queue_depth as usize;
        let wakes = Wakes::new(depth);
        let slot = |waker| Slot { flight: Flight::Idle, started: 0, offset: 0, buf: Buf::empty(), waker };
        let time = job.limit.time().filter(|_| limited);
        let bytes = job.limit.bytes().filter(|_| limited);
        let mut engine = Self {
            device,
            job,
            progress,
            cancel,
            origin: Instant::now(),
            source: Source::new(job, job.region_on(&device.geometry())),
            payload: Payload::new(job),
            pace: Pace::new(job).filter(|_| limited),
            verifier,
            slots: wakes.wakers(depth).map(slot).collect(),
            idle: (0..job.queue_depth).rev().collect(),
            in_flight: 0,
            wakes,
            sleep: Box::pin(tokio::time::sleep(IDLE_TURN)),
            bytes_left: bytes.unwrap_or(u64::MAX),
            bytes_total: bytes.or(read_back),
            deadline: time.map_or(NEVER, |time| nanos(job.ramp.saturating_add(time))),
            end: None,
            stopped_at: 0,
            drain_until: NEVER,
            abandoned: 0,
            failures: 0,
            edge_at: 0,
            measured_from: NEVER,
            point_at: NEVER,
            tick_at: TICK,
            ticked: (0, Point::default()),
            last_event: 0,
            depth_sum: 0,
            depth_max: 0,
            cpu: CpuTime::default(),
            read: Direction::default(),
            write: Direction::default(),
            series: Series::default(),
        };
        // Preparing data took time that is not the device's.
        engine.origin = Instant::now();
        if limited && !job.ramp.is_zero() {
            engine.edge_at = nanos(job.ramp).min(engine.tick_at);
        } else {
            engine.start_measuring(0);
            engine.edge_at = engine.next_edge();
        }
        engine
    }

    /// Issues and collects until there is nothing left to do.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.wakes.listen(cx.waker());
        let mut now = self.now();
        let slice_end = now + SLICE;
        if now >= self.edge_at {
            self.edge(now);
        }
        if self.cancel.is_cancelled() {
            self.stop(End::Cancelled, now);
            self.drain_until = self.drain_until.min(now + DRAIN_MAX);
        }
        for word in 0..self.wakes.words() {
            let mut woken = self.wakes.take(word);
            while woken != 0 {
                let index = word as u32 * 64 + woken.trailing_zeros();
                woken &= woken - 1;
                // The slot's successor is issued at once: the completion's time is its start.
                if let Some(completed) = self.poll_slot(index) {
                    now = completed;
                    if let Step::Issued(issued) = self.step(now) {
                        now = issued;
                    }
                }
            }
        }
        let due = loop {
            match self.step(now) {
                Step::Issued(issued) if issued < slice_end => now = issued,
                Step::Issued(_) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Due(due) => break due,
                Step::Blocked => break NEVER,
            }
        };
        if self.end.is_some() && (self.in_flight == 0 || now >= self.drain_until) {
            self.abandoned = self.in_flight;
            return Poll::Ready(());
        }
        self.wait(cx, now, due)
    }

    /// Arranges for the next turn: at `due`, at the latest after [`IDLE_TURN`].
    fn wait(&mut self, cx: &mut Context<'_>, now: u64, due: u64) -> Poll<()> {
        let left = due.saturating_sub(now);
        if left <= TIMER_SLACK {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let turn = Duration::from_nanos(left - TIMER_SLACK / 3 * 2).min(IDLE_TURN);
        if due != NEVER || self.sleep.is_elapsed() {
            self.sleep.as_mut().reset(tokio::time::Instant::now() + turn);
        }
        if self.sleep.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// The outcome, and the verifier for whatever comes next.
    pub(crate) fn finish(mut self: Box<Self>) -> (Outcome, Option<Verifier>) {
        let now = self.now();
        if self.measured_from == NEVER {
            self.start_measuring(now);
        }
        let ended = self.last_event.max(self.stopped_at);
        let elapsed = Duration::from_nanos(ended.saturating_sub(self.measured_from));
        self.read.elapsed = elapsed;
        self.write.elapsed = elapsed;
        let outcome = Outcome {
            job: self.job.clone(),
            read: self.read,
            write: self.write,
            elapsed,
            series: self.series,
            cpu: CpuTime::now().since(self.cpu),
            depth_mean: self.depth_sum as f64 / (elapsed.as_nanos() as f64).max(1.0),
            depth_max: self.depth_max,
            end: self.end.unwrap_or(End::Limit),
            abandoned: self.abandoned,
            verification: None,
        };
        (outcome, self.verifier)
    }

    #[inline]
    fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    fn stop(&mut self, end: End, now: u64) {
        if self.end.is_none() {
            self.end = Some(end);
            self.stopped_at = now;
        }
    }

    /// Issues the next I/O, if one may be issued now.
    #[inline]
    fn step(&mut self, now: u64) -> Step {
        if self.end.is_some() {
            return Step::Blocked;
        }
        let Some(&index) = self.idle.last() else { return Step::Blocked };
        let mut started = now;
        if let Some(pace) = &self.pace {
            let due = pace.due();
            if due > now {
                return Step::Due(due.min(self.deadline));
            }
            started = due;
        }
        let block = u64::from(self.job.block_size);
        if self.bytes_left < block {
            self.stop(End::Limit, now);
            return Step::Blocked;
        }
        let Some((is_read, offset)) = self.pick(now) else { return Step::Blocked };
        if self.measured_from != NEVER {
            self.bytes_left -= block;
        }
        if let Some(pace) = &mut self.pace {
            pace.advance();
        }
        self.idle.pop();
        let slot = &mut self.slots[index as usize];
        slot.started = started;
        slot.offset = offset;
        Step::Issued(if is_read { self.issue_read(index, now) } else { self.issue_write(index, now) })
    }

    /// Read or write, and where. `None`: every block near is in flight, or the pass over what was written is through.
    #[inline]
    fn pick(&mut self, now: u64) -> Option<(bool, u64)> {
        let Some(verifier) = &mut self.verifier else { return Some(self.source.next()) };
        if verifier.is_reading_back() {
            let next = verifier.next_written().map(|offset| (true, offset));
            if next.is_none() {
                self.stop(End::Limit, now);
            }
            return next;
        }
        let (is_read, offset) = self.source.next();
        verifier.claim(offset).map(|offset| (is_read, offset))
    }

    #[inline]
    fn issue_read(&mut self, index: u32, now: u64) -> u64 {
        let slot = &mut self.slots[index as usize];
        let mut buf = std::mem::take(&mut slot.buf);
        let block = self.job.block_size as usize;
        if buf.len() != block {
            buf = Buf::for_overwrite(block);
        }
        let result = match self.device.read(slot.offset, buf) {
            Io::Ready(result) => result,
            Io::Pending(mut future) => match future.as_mut().poll(&mut Context::from_waker(&slot.waker)) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    slot.flight = Flight::Read(future);
                    return self.flew(now);
                }
            },
        };
        self.depth_max = self.depth_max.max(self.in_flight + 1);
        self.read_done(index, result, self.in_flight + 1)
    }

    #[inline]
    fn issue_write(&mut self, index: u32, now: u64) -> u64 {
        let slot = &mut self.slots[index as usize];
        let data = match &mut self.verifier {
            Some(verifier) => verifier.stamp(slot.offset),
            None => self.payload.next(),
        };
        let result = match self.device.write(slot.offset, data, Durability::Volatile) {
            Io::Ready(result) => result,
            Io::Pending(mut future) => match future.as_mut().poll(&mut Context::from_waker(&slot.waker)) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    slot.flight = Flight::Write(future);
                    return self.flew(now);
                }
            },
        };
        self.depth_max = self.depth_max.max(self.in_flight + 1);
        self.write_done(index, result, self.in_flight + 1)
    }

    fn flew(&mut self, now: u64) -> u64 {
        self.in_flight += 1;
        self.depth_max = self.depth_max.max(self.in_flight);
        now
    }

    /// Gives a woken slot its turn; the time of completion if it completed.
    fn poll_slot(&mut self, index: u32) -> Option<u64> {
        let slot = &mut self.slots[index as usize];
        let mut cx = Context::from_waker(&slot.waker);
        match &mut slot.flight {
            // Woken late: the I/O it was woken for was polled for another reason.
            Flight::Idle => None,
            Flight::Read(future) => {
                let Poll::Ready(result) = future.as_mut().poll(&mut cx) else { return None };
                slot.flight = Flight::Idle;
                let now = self.read_done(index, result, self.in_flight);
                self.in_flight -= 1;
                Some(now)
            }
            Flight::Write(future) => {
                let Poll::Ready(result) = future.as_mut().poll(&mut cx) else { return None };
                slot.flight = Flight::Idle;
                let now = self.write_done(index, result, self.in_flight);
                self.in_flight -= 1;
                Some(now)
            }
        }
    }

    #[inline]
    fn read_done(&mut self, index: u32, result: Result<Buf, BlockError>, depth: u32) -> u64 {
        let now = self.completed(depth);
        let slot = &mut self.slots[index as usize];
        if let Some(verifier) = &mut self.verifier {
            verifier.read(slot.offset, result.as_deref().ok());
        }
        match result {
            Ok(buf) => {
                slot.buf = buf;
                self.failures = 0;
                count(&mut self.read, self.job.block_size, now - slot.started.min(now));
            }
            Err(error) => self.failed(true, &error),
        }
        self.idle.push(index);
        now
    }

    #[inline]
    fn write_done(&mut self, index: u32, result: Result<(), BlockError>, depth: u32) -> u64 {
        let now = self.completed(depth);
        let slot = &mut self.slots[index as usize];
        if let Some(verifier) = &mut self.verifier {
            verifier.wrote(slot.offset, result.is_ok());
        }
        match result {
            Ok(()) => {
                self.failures = 0;
                count(&mut self.write, self.job.block_size, now - slot.started.min(now));
            }
            Err(error) => self.failed(false, &error),
        }
        self.idle.push(index);
        now
    }

    /// Something completed while `depth` were in flight: the time now.
    #[inline]
    fn completed(&mut self, depth: u32) -> u64 {
        let now = self.now();
        if now >= self.edge_at {
            self.edge(now);
        }
        self.depth_sum += u64::from(depth) * (now - self.last_event);
        self.last_event = now;
        now
    }

    #[cold]
    fn failed(&mut self, is_read: bool, error: &BlockError) {
        let direction = if is_read { &mut self.read } else { &mut self.write };
        direction.errors += 1;
        direction.first_error.get_or_insert_with(|| error.to_string());
        self.failures += 1;
        if self.failures == FAILURES_MAX {
            self.stop(End::Failing, self.last_event);
        }
    }

    /// Does what has become due, and says when the next thing is.
    #[cold]
    fn edge(&mut self, now: u64) {
        if self.measured_from == NEVER && now >= nanos(self.job.ramp) {
            self.start_measuring(now);
        }
        while now >= self.point_at {
            let totals = self.totals();
            self.series.push(totals);
            self.point_at += nanos(Series::STEP);
        }
        if now >= self.tick_at {
            self.tick(now);
        }
        if now >= self.deadline {
            self.stop(End::Limit, now);
        }
        self.edge_at = self.next_edge();
    }

    fn next_edge(&self) -> u64 {
        let ramp = if self.measured_from == NEVER { nanos(self.job.ramp) } else { NEVER };
        let deadline = if self.end.is_some() { NEVER } else { self.deadline };
        ramp.min(deadline).min(self.point_at).min(self.tick_at)
    }

    /// Forgets what the ramp counted. Errors are kept: they are news, whenever they come.
    fn start_measuring(&mut self, now: u64) {
        for direction in [&mut self.read, &mut self.write] {
            *direction = Direction {
                errors: direction.errors,
                first_error: direction.first_error.take(),
                ..Direction::default()
            };
        }
        self.measured_from = now;
        self.point_at = now + nanos(Series::STEP);
        self.ticked.1 = Point::default();
        self.last_event = now;
        self.depth_sum = 0;
        self.depth_max = self.in_flight;
        self.cpu = CpuTime::now();
    }

    fn totals(&self) -> Point {
        Point {
            read_ios: self.read.ios,
            read_bytes: self.read.bytes,
            write_ios: self.write.ios,
            write_bytes: self.write.bytes,
        }
    }

    fn tick(&mut self, now: u64) {
        let totals = self.totals();
        let (before, old) = self.ticked;
        let seconds = (now - before) as f64 / 1e9;
        let ios = (totals.read_ios + totals.write_ios).saturating_sub(old.read_ios + old.write_ios);
        let done = totals.read_bytes + totals.write_bytes;
        let bytes = done.saturating_sub(old.read_bytes + old.write_bytes);
        let by_time = (self.deadline != NEVER).then(|| now as f64 / self.deadline as f64);
        let by_bytes = self.bytes_total.filter(|&total| total > 0).map(|total| done as f64 / total as f64);
        let fraction = by_time.unwrap_or(0.0).max(by_bytes.unwrap_or(0.0)).min(1.0);
        let elapsed = Duration::from_nanos(now);
        let total = Duration::try_from_secs_f64(elapsed.as_secs_f64() / fraction).ok();
        (self.progress)(&Tick {
            elapsed,
            total,
            iops: ios as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            fraction,
            reading_back: self.verifier.as_ref().is_some_and(Verifier::is_reading_back),
        });
        self.ticked = (now, totals);
        self.tick_at = now + TICK;
    }
}

#[inline]
fn count(direction: &mut Direction, bytes: u32, latency: u64) {
    direction.ios += 1;
    direction.bytes += u64::from(bytes);
    direction.latency.record(latency);
}

/// Nanoseconds; 584 years fit.
#[inline]
fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}
