//! The loop that issues and collects I/Os.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Io};
use tokio::time::Sleep;

use crate::load::job::Job;
use crate::load::pace::Pace;
use crate::load::payload::Payload;
use crate::load::source::{IoSource, Next};
use crate::measure::meter::{Beat, Meter, NEVER, Times, nanos};
use crate::measure::outcome::{End, Outcome};
use crate::run::cancel::Cancel;
use crate::run::slots::Wakes;
use crate::verify::Verifier;

/// A device that answers inline keeps the task this long, nanoseconds, before the runtime gets its turn: a thousand
/// I/Os of a RAM disk, so that a turn costs each of them less than a nanosecond.
const SLICE: u64 = 100_000;
/// With nothing else to do, cancel and progress are looked after this often.
const IDLE_TURN: Duration = Duration::from_millis(50);
/// The runtime's timers have a resolution of 1 ms; the rest of the way to a due I/O is spent turning, nanoseconds.
const TIMER_SLACK: u64 = 1_500_000;
/// Longest time that a cancelled run waits for I/Os in flight, nanoseconds.
const DRAIN_MAX: u64 = 1_000_000_000;
/// Failures in a row, without a success, that end a run.
const FAILURES_MAX: u32 = 1000;

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, BlockError>> + Send>>;

enum Flight {
    Idle,
    Read(Pending<Buf>),
    Write(Pending<()>),
}

struct Slot {
    flight: Flight,
    /// Time at which the I/O was due where there is a rate, otherwise the same as below: nanoseconds since the origin,
    /// like every time here.
    intended: u64,
    submitted: u64,
    offset: u64,
    len: u32,
    /// Memory for reads, while none is under way.
    buf: Buf,
    waker: Waker,
}

/// Result of [`Engine::step`].
enum Step {
    /// Issued one; this is the time now.
    Issued(u64),
    /// The next one is due then.
    Due(u64),
    /// Nothing to issue before something completes.
    Blocked,
}

/// A worker's run of a job: its `queue_depth` slots and its counters.
///
/// [`start`](Self::start), [`poll`](Self::poll) until ready, then [`finish`](Self::finish).
///
/// The cost per I/O is the device's call, one reading of the clock, one histogram count. The time at which one I/O
/// completed is the time at which the next is issued; whatever lies between is charged to the latter. Everything that
/// happens at a time (end of ramp, deadline, series, progress) sits behind one comparison with `edge_at`.
/// No allocation but the device's own.
pub(crate) struct Engine<'a> {
    device: &'a dyn BlockDevice,
    job: &'a Job,
    /// Told what completed, about four times a second.
    beat: &'a mut dyn FnMut(&Beat<'_>),
    cancel: &'a Cancel,
    origin: Instant,

    source: IoSource,
    payload: Payload,
    pace: Option<Pace>,
    verifier: Option<Verifier>,
    /// Drawn, but near it every block was in flight.
    held_back: Option<Next>,
    slots: Vec<Slot>,
    idle: Vec<u32>,
    in_flight: u32,
    wakes: Arc<Wakes>,
    sleep: Pin<Box<Sleep>>,

    /// Bytes that may still be issued, once measuring.
    bytes_left: u64,
    deadline: u64,
    end: Option<End>,
    stopped_at: u64,
    drain_until: u64,
    abandoned: u32,
    failures: u32,

    meter: Meter,
    /// The next time at which something has to be done.
    edge_at: u64,
}

impl<'a> Engine<'a> {
    /// A verifier that is reading back makes this a pass over what it has seen written, and the job's mix, limit, ramp
    /// and rate are without effect.
    pub(crate) fn new(
        device: &'a dyn BlockDevice,
        job: &'a Job,
        verifier: Option<Verifier>,
        beat: &'a mut dyn FnMut(&Beat<'_>),
        cancel: &'a Cancel,
    ) -> Self {
        let limited = !verifier.as_ref().is_some_and(Verifier::is_reading_back);
        let depth = job.queue_depth as usize;
        let wakes = Wakes::new(depth);
        let slot = |waker| Slot {
            flight: Flight::Idle,
            intended: 0,
            submitted: 0,
            offset: 0,
            len: 0,
            buf: Buf::empty(),
            waker,
        };
        let time = job.limit.time().filter(|_| limited);
        let bytes = job.limit.bytes().filter(|_| limited);
        let pace = Pace::new(job).filter(|_| limited);
        let ramp = if limited { job.ramp } else { Duration::ZERO };
        Self {
            device,
            job,
            beat,
            cancel,
            origin: Instant::now(),
            source: IoSource::new(job, job.region_on(&device.geometry())),
            payload: Payload::new(job),
            meter: Meter::new(ramp, pace.is_some()),
            pace,
            verifier,
            held_back: None,
            slots: wakes.wakers(depth).map(slot).collect(),
            idle: (0..job.queue_depth).rev().collect(),
            in_flight: 0,
            wakes,
            sleep: Box::pin(tokio::time::sleep(IDLE_TURN)),
            bytes_left: bytes.unwrap_or(u64::MAX),
            deadline: time.map_or(NEVER, |time| nanos(job.ramp.saturating_add(time))),
            end: None,
            stopped_at: 0,
            drain_until: NEVER,
            abandoned: 0,
            failures: 0,
            edge_at: 0,
        }
    }

    /// Starts the clock: preparing took time that is not the device's.
    pub(crate) fn start(&mut self, origin: Instant) {
        self.origin = origin;
        self.edge_at = self.next_edge();
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
    pub(crate) fn finish(self: Box<Self>) -> (Outcome, Option<Verifier>) {
        let now = self.now();
        // One that ended by bytes has nothing due any more.
        let cut_short = self.end == Some(End::Cancelled) || self.stopped_at >= self.deadline;
        let pace = self.pace.as_ref().filter(|_| cut_short);
        let overdue = pace.map_or(0, |pace| pace.overdue(self.stopped_at));
        let figures = self.meter.finish(now, self.stopped_at);
        let outcome = Outcome {
            job: self.job.clone(),
            read: figures.read,
            write: figures.write,
            elapsed: figures.elapsed,
            series: figures.series,
            cpu: figures.cpu,
            depth_mean: figures.depth_mean,
            depth_max: figures.depth_max,
            end: self.end.unwrap_or(End::Limit),
            abandoned: self.abandoned,
            overdue,
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
        let mut intended = now;
        if let Some(pace) = &self.pace {
            let due = pace.due();
            if due > now {
                return Step::Due(due.min(self.deadline));
            }
            intended = due;
        }
        let Some(Next { is_read, offset, len }) = self.pick(now) else { return Step::Blocked };
        if self.meter.is_measuring() {
            self.bytes_left -= u64::from(len);
        }
        if let Some(pace) = &mut self.pace {
            pace.advance(len.into());
        }
        self.idle.pop();
        let slot = &mut self.slots[index as usize];
        (slot.intended, slot.submitted) = (intended, now);
        (slot.offset, slot.len) = (offset, len);
        Step::Issued(if is_read { self.issue_read(index, now) } else { self.issue_write(index, now) })
    }

    /// Read or write, and where. `None`: every block near is in flight, or there is nothing more to do.
    #[inline]
    fn pick(&mut self, now: u64) -> Option<Next> {
        let next = match &mut self.verifier {
            None => Some(self.source.next()),
            Some(verifier) if verifier.is_reading_back() => verifier.next_written(),
            Some(_) => self.held_back.take().or_else(|| Some(self.source.next())),
        };
        let Some(mut next) = next.filter(|next| self.bytes_left >= u64::from(next.len)) else {
            self.stop(End::Limit, now);
            return None;
        };
        if let Some(verifier) = self.verifier.as_mut().filter(|verifier| !verifier.is_reading_back()) {
            match verifier.claim(next.offset, next.len) {
                Some(offset) => next.offset = offset,
                None => {
                    self.held_back = Some(next);
                    return None;
                }
            }
        }
        Some(next)
    }

    #[inline]
    fn issue_read(&mut self, index: u32, now: u64) -> u64 {
        let slot = &mut self.slots[index as usize];
        let mut buf = std::mem::take(&mut slot.buf);
        let len = slot.len as usize;
        if buf.len() != len {
            buf = Buf::for_overwrite(len);
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
        self.meter.in_flight(self.in_flight + 1);
        self.read_done(index, result, self.in_flight + 1)
    }

    #[inline]
    fn issue_write(&mut self, index: u32, now: u64) -> u64 {
        let slot = &mut self.slots[index as usize];
        let data = match &mut self.verifier {
            Some(verifier) => verifier.stamp(slot.offset, slot.len),
            None => self.payload.next(slot.len as usize),
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
        self.meter.in_flight(self.in_flight + 1);
        self.write_done(index, result, self.in_flight + 1)
    }

    fn flew(&mut self, now: u64) -> u64 {
        self.in_flight += 1;
        self.meter.in_flight(self.in_flight);
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
            verifier.read(slot.offset, slot.len, result.as_deref().ok());
        }
        match result {
            Ok(buf) => {
                slot.buf = buf;
                self.failures = 0;
                self.meter.count(true, slot.len, slot.times(now));
            }
            Err(error) => self.failed(true, &error, now),
        }
        self.idle.push(index);
        now
    }

    #[inline]
    fn write_done(&mut self, index: u32, result: Result<(), BlockError>, depth: u32) -> u64 {
        let now = self.completed(depth);
        let slot = &mut self.slots[index as usize];
        if let Some(verifier) = &mut self.verifier {
            verifier.wrote(slot.offset, slot.len, result.is_ok());
        }
        match result {
            Ok(()) => {
                self.failures = 0;
                self.meter.count(false, slot.len, slot.times(now));
            }
            Err(error) => self.failed(false, &error, now),
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
        self.meter.completed(now, depth);
        now
    }

    #[cold]
    fn failed(&mut self, is_read: bool, error: &BlockError, now: u64) {
        self.meter.failed(is_read, error);
        self.failures += 1;
        if self.failures == FAILURES_MAX {
            self.stop(End::Failing, now);
        }
    }

    /// Does what has become due, and says when the next thing is.
    #[cold]
    fn edge(&mut self, now: u64) {
        self.meter.edge(now, self.in_flight, self.beat);
        if now >= self.deadline {
            self.stop(End::Limit, now);
        }
        self.edge_at = self.next_edge();
    }

    fn next_edge(&self) -> u64 {
        let deadline = if self.end.is_some() { NEVER } else { self.deadline };
        self.meter.edge_at().min(deadline)
    }
}

impl Slot {
    #[inline]
    fn times(&self, completed: u64) -> Times {
        Times { intended: self.intended, submitted: self.submitted, completed }
    }
}
