//! A session's counters, as its connection uses them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use lunway_scsi::{AdditionalSense, Nexus, Response, SenseKey, Status, TaskManagementFunction};

use super::counters::{Counters, Ending, Kind, LunMetrics};
use super::failure::{Cause, Unlogged};
use super::{Metrics, TaskManagementReading};
use crate::summary::SessionSummary;

/// Sense keys of a failed device, rather than a failed command.
const FAILURES: [SenseKey; 4] =
    [SenseKey::MEDIUM_ERROR, SenseKey::HARDWARE_ERROR, SenseKey::ABORTED_COMMAND, SenseKey::DATA_PROTECT];
/// No logical unit has this number: they have 14 bits.
const NOWHERE: u16 = u16::MAX;

/// Counters of a session, as others can read them.
#[derive(Debug)]
pub(super) struct PublishedCounters {
    pub(super) session: SessionSummary,
    /// Locked when a session uses a logical unit for the first time, and to read.
    counters: Mutex<Vec<(u16, Arc<Counters>)>>,
    /// Task management functions that the initiator has asked for: commands aborted, units or the target reset.
    aborts: AtomicU64,
    resets: AtomicU64,
}

impl PublishedCounters {
    pub(super) fn new(session: SessionSummary) -> Self {
        Self { session, counters: Mutex::default(), aborts: AtomicU64::new(0), resets: AtomicU64::new(0) }
    }

    pub(super) fn task_management(&self) -> TaskManagementReading {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TaskManagementReading { aborts: read(&self.aborts), resets: read(&self.resets) }
    }

    pub(super) fn read_lun(&self, lun: u16) -> Option<LunMetrics> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().find(|(of, _)| *of == lun).map(|(_, counters)| counters.snapshot())
    }

    pub(super) fn read(&self) -> Vec<(u16, LunMetrics)> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(lun, counters)| (*lun, counters.snapshot())).collect()
    }
}

/// Counts what one connection does.
///
/// The clock is read twice in a round of the connection, not for each command: what is answered at once took, for the
/// counters, from the round's read to the end of its executions. At depth 1 that is the command's own time, at depth 32
/// the time until its answer could be sent.
pub(crate) struct SessionCounters {
    published: Arc<PublishedCounters>,
    metrics: Arc<Metrics>,
    /// The session's own list, which it reads without the lock. The first entry is for numbers that it does not see,
    /// which are not shown: there are too many of them to count apart.
    luns: Vec<(u16, Arc<Counters>)>,
    /// Commands that were answered at once in this round, by place in `luns` and kind.
    round: Vec<(usize, Kind, u64)>,
    round_start: Instant,
    /// Commands that devices have failed, by logical unit and cause.
    failures: Vec<Unlogged>,
}

/// Address of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressed {
    pub(crate) lun: [u8; 8],
    pub(crate) opcode: u8,
}

/// A command that the device has, to the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    place: usize,
    kind: Kind,
    start: Instant,
}

impl SessionCounters {
    pub(super) fn new(published: Arc<PublishedCounters>, metrics: Arc<Metrics>) -> Self {
        let luns = vec![(NOWHERE, Arc::default())];
        Self {
            published,
            metrics,
            luns,
            round: Vec::new(),
            round_start: Instant::now(),
            failures: Vec::new(),
        }
    }

    /// A round begins: commands may have arrived.
    pub(crate) fn begin_round(&mut self) {
        self.round_start = Instant::now();
    }

    /// All commands of the round are executed.
    pub(crate) fn end_round(&mut self) {
        if self.round.is_empty() {
            return;
        }
        let latency = self.round_start.elapsed();
        for (place, kind, count) in self.round.drain(..) {
            self.luns[place].1.took(kind, count, latency);
        }
    }

    /// A command was answered at once.
    pub(crate) fn answered(&mut self, nexus: &Nexus, to: Addressed, response: &Response) {
        let (place, kind) = (self.place(nexus, to.lun), Kind::of(to.opcode));
        let (ending, bytes) = outcome(response);
        self.luns[place].1.ended(kind, ending, bytes);
        if ending == Ending::Failed {
            self.failed(place, kind, response);
        }
        match self.round.iter_mut().find(|(at, of, _)| (*at, *of) == (place, kind)) {
            Some((_, _, count)) => *count += 1,
            None => self.round.push((place, kind, 1)),
        }
    }

    /// The device needs time for a command.
    pub(crate) fn queued(&mut self, nexus: &Nexus, to: Addressed) -> Counted {
        let place = self.place(nexus, to.lun);
        self.luns[place].1.queued(1);
        Counted { place, kind: Kind::of(to.opcode), start: self.round_start }
    }

    /// The device has ended it.
    pub(crate) fn done(&mut self, counted: Counted, response: &Response) {
        let Counted { place, kind, start } = counted;
        let (ending, bytes) = outcome(response);
        let counters = &self.luns[place].1;
        counters.queued(-1);
        counters.ended(kind, ending, bytes);
        counters.took(kind, 1, start.elapsed());
        if ending == Ending::Failed {
            self.failed(place, kind, response);
        }
    }

    /// The initiator asks for a task management function.
    pub(crate) fn manages(&self, function: TaskManagementFunction) {
        use TaskManagementFunction as Function;
        let counter = match function {
            Function::AbortTask | Function::AbortTaskSet | Function::ClearTaskSet => &self.published.aborts,
            Function::LogicalUnitReset | Function::TargetWarmReset | Function::TargetColdReset => {
                &self.published.resets
            }
            Function::ClearAca => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn place(&mut self, nexus: &Nexus, lun: [u8; 8]) -> usize {
        // Up to 255 in peripheral, beyond in flat space addressing (SAM-5 §4.7.7): the low 14 bits either way.
        let number = u16::from_be_bytes([lun[0], lun[1]]) & 0x3fff;
        match self.luns.iter().position(|(of, _)| *of == number) {
            Some(place) => place,
            None => self.add(nexus, number),
        }
    }

    /// Counts a command that a device has failed by its cause, and logs it where none of its cause was for a while.
    #[cold]
    fn failed(&mut self, place: usize, kind: Kind, response: &Response) {
        let (Some(cause), true) = (Cause::of(response), place != 0) else { return };
        let (lun, now) = (self.luns[place].0, Instant::now());
        self.luns[place].1.failed(cause);
        let known = self.failures.iter().position(|of| (of.lun, of.cause) == (lun, cause));
        let at = known.unwrap_or_else(|| {
            self.failures.push(Unlogged::new(lun, cause));
            self.failures.len() - 1
        });
        let Some(count) = self.failures[at].add(now) else { return };
        let session = &self.published.session;
        let Some(more) = self.metrics.logs_failure(&session.target, lun, (cause, kind), count, now) else {
            return;
        };
        let (target, initiator, operation) = (&session.target, &session.initiator, kind.name());
        let more = (more > 0).then_some(more);
        let (why, told) =
            (cause.sentence(), response.sense.as_deref().map(ToString::to_string).unwrap_or_default());
        tracing::error!(%target, lun, %initiator, operation, more, "a command failed: {why} (its initiator was told: {told})");
    }

    #[cold]
    fn add(&mut self, nexus: &Nexus, number: u16) -> usize {
        if !nexus.luns().contains(&number) {
            return 0;
        }
        let counters = Arc::<Counters>::default();
        self.luns.push((number, Arc::clone(&counters)));
        self.published.counters.lock().unwrap_or_else(PoisonError::into_inner).push((number, counters));
        self.luns.len() - 1
    }
}

/// Returns the outcome of a command, and the bytes that it moved.
fn outcome(response: &Response) -> (Ending, u64) {
    let ending = match (response.status, &response.sense) {
        (Status::GOOD, _) => Ending::Good,
        (_, Some(sense)) if FAILURES.contains(&sense.key) => Ending::Failed,
        // The storage behind the logical unit is gone.
        (_, Some(sense)) if sense.code == AdditionalSense::NOT_READY_MANUAL_INTERVENTION => Ending::Failed,
        _ => Ending::Refused,
    };
    (ending, response.wanted_in + response.wanted_out)
}

impl Drop for SessionCounters {
    fn drop(&mut self) {
        self.end_round();
        self.metrics.close(&self.published);
    }
}
