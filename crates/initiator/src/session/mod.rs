//! What the callers of a device and its driver share.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lunway_block::{BlockError, Buf, PathSample, PathState};
use lunway_iscsi::initiator::{Completed, InitiatorConnection, Residual, Submission};
use lunway_iscsi::pdu::{ServiceResponse, TaskAttribute, TaskManagementFunction, TaskManagementResult};
use lunway_scsi::{AdditionalSense, Lun, Sense, SenseKey, Status};
use tokio::sync::Notify;

use crate::OpenOptions;
use crate::cache::{Cache, is_power_on};
use crate::clock::Clock;
use crate::slots::{Command, Effect, Entry, Outcome, Slots, Stage};
use crate::traffic::{Probe, Traffic};

/// How often a command may come back at once with a unit attention. A target queues a handful of conditions; one
/// that has more to say than this is broken.
const ATTENTIONS_MAX: u32 = 32;

/// How often a command that the target aborted is sent again.
const ABORTED_MAX: u32 = 4;

/// First and last wait for a busy target.
const BUSY_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// What the callers of a device and its driver share, behind one lock that is held for a few hundred nanoseconds per
/// command and for the system calls of the driver.
///
/// A command enters from any thread: it takes a slot and goes to the core at once if the window is open, else into the
/// queue. Nothing is sent by the caller: it rouses the driver, which finds everything that came in meanwhile and sends
/// it with one vectored write. While the driver is awake, rousing it costs a store.
///
/// **Invariant**: every command without an answer is in exactly one place: the queue, the delayed list, the core, or
/// expired. Each of them ends by an answer, the end of the core, or a tick of the clock, so nobody waits for ever.
pub(crate) struct Session {
    state: Mutex<State>,
    /// Told that the driver shall end.
    pub(crate) closing: Notify,
    /// Told that it has.
    pub(crate) ended: Notify,
}

impl Session {
    pub(crate) fn new(
        core: InitiatorConnection,
        lun: Lun,
        volatile: bool,
        options: &OpenOptions,
    ) -> Arc<Self> {
        let state = Mutex::new(State::new(core, lun, volatile, options));
        Arc::new(Self { state, closing: Notify::new(), ended: Notify::new() })
    }

    /// A panic elsewhere leaves the state whole: no code in here panics half way.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command.
    pub(crate) fn submit(self: &Arc<Self>, command: Command) -> Result<Ticket, BlockError> {
        let (token, waker) = {
            let mut state = self.lock();
            (state.enter(command)?, state.rouse())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(Ticket { session: self.clone(), token: Some(token) })
    }

    /// Asks the driver to log out and end, once nobody waits for an answer.
    pub(crate) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.closing = true;
            state.refusing.get_or_insert_with(|| BlockError::Gone { why: "it was closed".to_owned() });
            state.rouse()
        };
        self.closing.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Changes the state and wakes whoever got an answer by it.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let (result, wakes) = {
            let mut state = self.lock();
            (f(&mut state), mem::take(&mut state.wakes))
        };
        wakes.into_iter().for_each(Waker::wake);
        result
    }
}

/// The answer to one command, to come. Dropped before, the answer is forgotten; the buffers stay with the core until
/// the target is done with them.
pub(crate) struct Ticket {
    session: Arc<Session>,
    token: Option<u64>,
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let gone = || Outcome::Failed(BlockError::Aborted);
        let Some(token) = self.token else { return Poll::Ready(gone()) };
        let mut state = self.session.lock();
        match state.slots.get_mut(token) {
            Some(entry) if !entry.is_answered() => {
                match &mut entry.waker {
                    Some(waker) if waker.will_wake(cx.waker()) => {}
                    waker => *waker = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            _ => {}
        }
        let entry = state.slots.remove(token);
        drop(state);
        self.token = None;
        Poll::Ready(match entry.map(|entry| entry.stage) {
            Some(Stage::Answered(outcome)) => outcome,
            _ => gone(),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            // Freed outside of the lock: it may hold megabytes.
            let entry = self.session.lock().forget(token);
            drop(entry);
        }
    }
}

/// Why the driver stops using a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As we wanted.
    Closed,
    /// For this reason.
    Lost(String),
}

/// See [`Session`].
pub(crate) struct State {
    /// The connection, while there is one.
    pub(crate) core: Option<InitiatorConnection>,
    pub(crate) slots: Slots,
    queue: VecDeque<Submission>,
    delayed: Vec<(Instant, Submission)>,
    /// Whoever got an answer since the lock was taken.
    pub(crate) wakes: Vec<Waker>,
    /// The driver's, while it sleeps.
    pub(crate) driver: Option<Waker>,
    /// Something came in since the driver last looked.
    pub(crate) work: bool,
    /// What every new command is answered with at once.
    refusing: Option<BlockError>,
    pub(crate) closing: bool,
    pub(crate) driver_ended: bool,
    /// Until when commands in flight may finish before the logout that the target asked for.
    logout_by: Option<Instant>,
    logout_sent: bool,
    /// The unit's shape may have changed: read it again.
    pub(crate) stale: bool,
    lun: Lun,
    clock: Clock,
    /// The tick at which commands were last looked at for being late.
    looked_at: u64,
    cache: Cache,
    traffic: Traffic,
    /// Of the connection, while there is one.
    pub(crate) probe: Option<Probe>,
}

impl State {
    fn new(core: InitiatorConnection, lun: Lun, volatile: bool, options: &OpenOptions) -> Self {
        Self {
            core: Some(core),
            slots: Slots::default(),
            queue: VecDeque::new(),
            delayed: Vec::new(),
            wakes: Vec::new(),
            driver: None,
            work: true,
            refusing: None,
            closing: false,
            driver_ended: false,
            logout_by: None,
            logout_sent: false,
            stale: false,
            lun,
            clock: Clock::new(options),
            looked_at: 0,
            cache: Cache { volatile, trusted: options.cache_survives_power_on, ..Cache::default() },
            traffic: Traffic::default(),
            probe: None,
        }
    }

    fn enter(&mut self, command: Command) -> Result<u64, BlockError> {
        if let Some(error) = &self.refusing {
            return Err(error.clone());
        }
        let Command { cdb, data_out, data_in, effect } = command;
        if effect == Effect::Flush
            && let Some(error) = self.cache.unreported.take()
        {
            return Err(error);
        }
        // A driver that sleeps has let the clock stand.
        if self.driver.is_some() {
            self.clock.set(Instant::now());
        }
        let token = self.slots.insert(Entry {
            cdb: cdb.clone(),
            data_out: data_out.clone(),
            effect,
            stage: Stage::Queued,
            born: self.clock.tick,
            since: self.clock.tick,
            refusals: 0,
            was_sent: false,
            covers: self.cache.written,
            spoiled: None,
            waker: None,
        });
        let attribute = TaskAttribute::SIMPLE;
        let submission = Submission { token, lun: self.lun.0, cdb, data_out, data_in, attribute };
        // Who came before goes before.
        if self.queue.is_empty() {
            if let Err(submission) = self.send(submission) {
                self.queue.push_back(submission);
            }
        } else {
            self.queue.push_back(submission);
        }
        Ok(token)
    }

    /// Tells the driver that there is work; gives its waker if it sleeps.
    pub(crate) fn rouse(&mut self) -> Option<Waker> {
        self.work = true;
        self.driver.take()
    }

    fn forget(&mut self, token: u64) -> Option<Entry> {
        let mut entry = self.slots.remove(token)?;
        // What a flush was to report and nobody heard, the next one reports.
        if let Some(error) = entry.spoiled.take() {
            self.cache.unreported.get_or_insert(error);
        }
        Some(entry)
    }

    fn answer(&mut self, token: u64, outcome: Outcome) {
        self.wakes.extend(self.slots.answer(token, outcome));
    }

    fn fail(&mut self, token: u64, error: BlockError) {
        self.traffic.errors += 1;
        self.answer(token, Outcome::Failed(error));
    }

    fn send(&mut self, submission: Submission) -> Result<(), Submission> {
        let token = submission.token;
        match &mut self.core {
            Some(core) if self.logout_by.is_none() => core.submit(submission)?,
            _ => return Err(submission),
        }
        if let Some(entry) = self.slots.get_mut(token) {
            entry.stage = Stage::Sent;
            entry.was_sent = true;
        }
        Ok(())
    }

    /// Hands to the core what waits, in order, as far as the window goes.
    pub(crate) fn drain_queue(&mut self) {
        while let Some(submission) = self.queue.pop_front() {
            match self.slots.get_mut(submission.token) {
                Some(Entry { stage: Stage::Queued, .. }) => {}
                // Forgotten, or answered by the clock.
                _ => continue,
            }
            if let Err(submission) = self.send(submission) {
                self.queue.push_front(submission);
                return;
            }
        }
    }

    /// Puts back into the queue what has waited long enough for a busy target, and acts on commands that are overdue.
    pub(crate) fn pass_time(&mut self, now: Instant) -> Result<(), End> {
        let mut index = 0;
        while index < self.delayed.len() {
            if self.delayed[index].0 > now {
                index += 1;
                continue;
            }
            let (_, submission) = self.delayed.swap_remove(index);
            if let Some(entry @ Entry { stage: Stage::Delayed, .. }) = self.slots.get_mut(submission.token) {
                entry.stage = Stage::Queued;
                self.queue.push_back(submission);
            }
        }
        self.clock.set(now);
        if self.clock.tick == self.looked_at || self.slots.unanswered() == 0 {
            return Ok(());
        }
        self.looked_at = self.clock.tick;
        let Some(core) = &mut self.core else { return Ok(()) };
        let (tick, lun) = (self.clock.tick, self.lun.0);
        let mut overdue = Vec::new();
        for (token, entry) in self.slots.iter_unanswered() {
            let late = tick - entry.since > self.clock.patience(entry.effect)
                || tick - entry.born > self.clock.lifetime_ticks;
            match entry.stage {
                Stage::Queued if late => overdue.push((token, self.clock.timeout(entry.effect))),
                Stage::Delayed if late => overdue.push((token, BlockError::Busy)),
                Stage::Sent if late => {
                    tracing::warn!(cdb = ?entry.cdb, "no answer in time: the command is aborted");
                    // RFC 7143 [7.11-1]
                    core.manage_task(token, TaskManagementFunction::ABORT_TASK, lun, Some(token));
                    entry.stage = Stage::Aborting { since: tick };
                }
                Stage::Aborting { since } if tick - since > self.clock.abort_ticks => {
                    return Err(End::Lost("no answer to ABORT TASK".to_owned()));
                }
                _ => {}
            }
        }
        for (token, error) in overdue {
            self.fail(token, error);
        }
        Ok(())
    }

    /// When [`Self::pass_time`] has something to do.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let tick = (self.slots.unanswered() > 0).then(|| self.clock.next());
        let delayed = self.delayed.iter().map(|(at, _)| *at);
        delayed.chain(tick).chain(self.logout_by.filter(|_| !self.logout_sent)).min()
    }

    /// Logs out where that is wanted and its time has come.
    pub(crate) fn log_out_when_due(&mut self, now: Instant, timeout: Duration) {
        let in_flight = self
            .slots
            .iter_unanswered()
            .any(|(_, entry)| matches!(entry.stage, Stage::Sent | Stage::Aborting { .. }));
        let Some(core) = &mut self.core else { return };
        let ours = self.closing && self.slots.unanswered() == 0;
        let theirs = self.logout_by.is_some_and(|by| !in_flight || by <= now);
        if (ours || theirs) && !self.logout_sent {
            self.logout_sent = true;
            self.logout_by = Some(now + timeout);
            core.logout();
        }
    }

    /// Whether [`Self::log_out_when_due`] has anything to look at.
    pub(crate) fn is_leaving(&self) -> bool {
        (self.closing || self.logout_by.is_some()) && !self.logout_sent
    }

    /// Whether the logout has gone unanswered for too long.
    pub(crate) fn logout_overdue(&self, now: Instant) -> bool {
        self.logout_sent && self.logout_by.is_some_and(|by| by <= now)
    }

    /// The deadline of the logout, once it was sent.
    pub(crate) fn logout_deadline(&self) -> Option<Instant> {
        self.logout_by.filter(|_| self.logout_sent)
    }

    /// The target wants us to log out within `time`: nothing new is sent, what is in flight may finish.
    pub(crate) fn leave_within(&mut self, time: Duration, now: Instant) {
        self.logout_by.get_or_insert(now + time / 2);
    }

    /// The target has answered a command.
    pub(crate) fn completed(&mut self, done: Completed, now: Instant) {
        let Some(entry) = self.slots.get_mut(done.token) else { return };
        let Completed { token, status, sense, data_in, data_in_len: received, .. } = done;
        if done.response != ServiceResponse::COMPLETED {
            let message = "the target failed to execute the command".to_owned();
            return self.fail(token, BlockError::Io { kind: io::ErrorKind::Other, message });
        }
        let status = Status(status);
        let writes = matches!(entry.effect, Effect::Write | Effect::WriteThrough);
        if status == Status::GOOD && writes && done.residual != Residual::None {
            // RFC 7143 §11.4.5.1: it took less than the CDB and the data say, or wanted more. Nobody knows which part.
            let message = format!("the target took a write in part: {:?}", done.residual);
            return self.fail(token, BlockError::Io { kind: io::ErrorKind::WriteZero, message });
        }
        if status == Status::GOOD {
            // The error stays with the entry: should nobody pick it up, the next flush has it.
            let (effect, covers, spoiled) = (entry.effect, entry.covers, entry.spoiled.clone());
            self.traffic.count(effect, received, entry.data_out.len());
            if effect.leaves_unflushed() {
                self.cache.written += 1;
            }
            if effect == Effect::Flush {
                if let Some(error) = spoiled {
                    return self.fail(token, error);
                }
                self.cache.flushed = self.cache.flushed.max(covers);
            }
            return self.answer(token, Outcome::Executed { status, sense, data_in, received });
        }
        let asked = entry.effect == Effect::Query;
        match self.second_thoughts(token, status, &sense) {
            Verdict::Final => {
                // A question that the target does not know is no failure of the path.
                self.traffic.errors += u64::from(!asked);
                self.answer(token, Outcome::Executed { status, sense, data_in, received });
            }
            Verdict::Again => self.retry(token, data_in, None),
            Verdict::Later(wait) => self.retry(token, data_in, Some(now + wait)),
        }
    }

    /// Whether a status other than GOOD is the last word.
    fn second_thoughts(&mut self, token: u64, status: Status, sense: &[u8]) -> Verdict {
        let Some(entry) = self.slots.get_mut(token) else { return Verdict::Final };
        // Once it is being aborted for being late, what comes is final.
        if !matches!(entry.stage, Stage::Sent) {
            return Verdict::Final;
        }
        let refusals = entry.refusals;
        let idempotent = entry.effect.is_idempotent();
        let (first, last) = BUSY_WAIT;
        let later = Verdict::Later((first * 2u32.saturating_pow(refusals.min(16))).min(last));
        let verdict = match status {
            Status::BUSY | Status::TASK_SET_FULL => later,
            Status::TASK_ABORTED if idempotent && refusals < ABORTED_MAX => later,
            Status::CHECK_CONDITION => match Sense::parse(sense) {
                // About an earlier write that was acknowledged; this command was not executed (SPC-4 4.5.7).
                Some(sense) if sense.deferred => {
                    let message = format!("an earlier write failed behind the cache: {sense}");
                    self.cache.spoil(BlockError::Io { kind: io::ErrorKind::Other, message }, &mut self.slots);
                    if refusals < ABORTED_MAX { Verdict::Again } else { Verdict::Final }
                }
                Some(sense) if sense.key == SenseKey::UNIT_ATTENTION => {
                    self.attention(sense.code);
                    if refusals < ATTENTIONS_MAX { Verdict::Again } else { later }
                }
                Some(sense) if sense.key == SenseKey::NOT_READY && is_transient(sense.code) => later,
                Some(sense)
                    if sense.key == SenseKey::ABORTED_COMMAND && idempotent && refusals < ABORTED_MAX =>
                {
                    later
                }
                _ => Verdict::Final,
            },
            _ => Verdict::Final,
        };
        if let Some(entry) = self.slots.get_mut(token) {
            entry.refusals += 1;
        }
        verdict
    }

    fn retry(&mut self, token: u64, data_in: Buf, at: Option<Instant>) {
        let lun = self.lun.0;
        let Some(entry) = self.slots.get_mut(token) else { return };
        let (cdb, data_out) = (entry.cdb.clone(), entry.data_out.clone());
        let attribute = TaskAttribute::SIMPLE;
        let submission = Submission { token, lun, cdb, data_out, data_in, attribute };
        match at {
            Some(at) => {
                entry.stage = Stage::Delayed;
                self.delayed.push((at, submission));
            }
            None => {
                entry.stage = Stage::Queued;
                self.queue.push_front(submission);
            }
        }
    }

    /// Acts on a condition that a unit attention or an asynchronous message told.
    pub(crate) fn attention(&mut self, code: AdditionalSense) {
        if is_power_on(code) {
            self.cache.power_on(&mut self.slots);
        }
        // 2A/01 mode parameters, 2A/09 capacity, 3F/03 inquiry data.
        if [AdditionalSense::MODE_PARAMETERS_CHANGED, AdditionalSense::CAPACITY_DATA_HAS_CHANGED]
            .contains(&code)
            || code.0 == 0x3F03
        {
            self.stale = true;
        }
        tracing::info!(%code, "unit attention");
    }

    /// The answer to ABORT TASK. An error ends the connection, which aborts for certain.
    pub(crate) fn task_managed(&mut self, token: u64, result: TaskManagementResult) -> Result<(), End> {
        let Some(entry @ Entry { stage: Stage::Aborting { .. }, .. }) = self.slots.get_mut(token) else {
            return Ok(());
        };
        let error = self.clock.timeout(entry.effect);
        match result {
            // Done, or too late: in order, its answer would have come before this one.
            TaskManagementResult::COMPLETE | TaskManagementResult::TASK_DOES_NOT_EXIST => {
                self.fail(token, error);
                Ok(())
            }
            other => Err(End::Lost(format!("ABORT TASK was answered with: {other}"))),
        }
    }

    /// The connection is gone: what can be sent again waits for the next one, in its old order and before what is new.
    pub(crate) fn disconnect(&mut self) {
        self.logout_by = None;
        self.logout_sent = false;
        self.probe = None;
        let Some(mut core) = self.core.take() else { return };
        let mut again = VecDeque::new();
        for submission in core.take_unanswered() {
            match self.slots.get_mut(submission.token) {
                Some(entry) if matches!(entry.stage, Stage::Sent) && entry.effect.is_idempotent() => {
                    entry.stage = Stage::Queued;
                    again.push_back(submission);
                }
                // Forgotten: a write that nobody waits for must not come after newer ones.
                _ => {}
            }
        }
        again.append(&mut self.queue);
        self.queue = again;
        let mut lost = Vec::new();
        for (token, entry) in self.slots.iter_unanswered() {
            match entry.stage {
                Stage::Sent => lost.push(token),
                Stage::Aborting { .. } => entry.stage = Stage::Expired,
                _ => {}
            }
        }
        for token in lost {
            self.fail(token, BlockError::Aborted);
        }
    }

    /// A new connection, in a session that has ended the old one: nothing sent over that one can happen any more.
    pub(crate) fn connect(&mut self, core: InitiatorConnection, volatile: bool, now: Instant) {
        self.core = Some(core);
        self.cache.volatile = volatile;
        if !self.closing {
            self.refusing = None;
        }
        self.clock.set(now);
        let tick = self.clock.tick;
        let mut expired = Vec::new();
        for (token, entry) in self.slots.iter_unanswered() {
            match entry.stage {
                Stage::Expired => expired.push((token, self.clock.timeout(entry.effect))),
                _ => entry.since = tick,
            }
        }
        for (token, error) in expired {
            self.fail(token, error);
        }
        self.drain_queue();
    }

    /// What the session is as a path of that name.
    pub(crate) fn path(&self, name: String) -> PathSample {
        let Traffic { read_ios, read_bytes, write_ios, write_bytes, errors } = self.traffic;
        let state = match (&self.core, self.driver_ended || self.closing) {
            (_, true) => PathState::Closed,
            (Some(_), false) => PathState::Up,
            (None, false) => PathState::Down,
        };
        let round_trip = self.probe.as_ref().and_then(Probe::round_trip);
        PathSample { name, state, read_ios, read_bytes, write_ios, write_bytes, errors, round_trip }
    }

    /// The unit's write cache was switched.
    pub(crate) fn set_volatile(&mut self, volatile: bool) {
        self.cache.volatile = volatile;
    }

    /// No connection for too long: everything fails, and what is new will fail at once with `error`.
    pub(crate) fn give_up(&mut self, error: &BlockError, waited: Duration) {
        let tokens: Vec<_> =
            self.slots.iter_unanswered().map(|(token, entry)| (token, entry.was_sent)).collect();
        for (token, was_sent) in tokens {
            // Whether it happened is known only of what was never sent.
            let unknown = BlockError::Timeout { millis: waited.as_millis() as u64 };
            self.fail(token, if was_sent { unknown } else { error.clone() });
        }
        self.queue.clear();
        self.delayed.clear();
        if !self.closing {
            self.refusing = Some(error.clone());
        }
    }

    /// The driver ends: nothing will ever be answered again.
    pub(crate) fn end(&mut self, error: &BlockError) {
        (self.core, self.probe) = (None, None);
        self.driver_ended = true;
        self.give_up(error, Duration::ZERO);
        self.refusing.get_or_insert_with(|| error.clone());
    }

    /// Whether the driver was given up on.
    pub(crate) fn refuses(&self) -> bool {
        self.refusing.is_some()
    }
}

enum Verdict {
    Final,
    Again,
    Later(Duration),
}

/// In progress of becoming ready, or of an asymmetric access transition: it passes.
fn is_transient(code: AdditionalSense) -> bool {
    [AdditionalSense::BECOMING_READY, AdditionalSense::ASYMMETRIC_ACCESS_TRANSITION].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::SharedBuf;
    use lunway_iscsi::Cdb;
    use lunway_iscsi::initiator::InitiatorConnectionConfig;
    use lunway_iscsi::login::InitiatorLoginConfig;
    use lunway_iscsi::negotiation::Parameters;

    /// A session whose login never ends: what enters waits in the queue.
    fn waiting(options: &OpenOptions) -> State {
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.com.example:test".to_owned(),
            initiator_alias: None,
            target_name: None,
            isid: [0; 6],
            tsih: 0,
            cid: 0,
            parameters: Parameters::default(),
            chap: None,
        };
        let config = InitiatorConnectionConfig {
            login,
            login_timeout: Duration::from_secs(60),
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::ZERO,
        };
        State::new(InitiatorConnection::new(config, Instant::now()), Lun::new(0), true, options)
    }

    fn command(effect: Effect) -> Command {
        Command { cdb: Cdb::new(&[0]), data_out: SharedBuf::default(), data_in: Buf::empty(), effect }
    }

    /// Callers moved the clock, and the driver, which saw it moved already, never looked for what was late.
    #[test]
    fn a_late_command_is_noticed_while_others_keep_coming() {
        let options = OpenOptions { command_timeout: Duration::from_millis(16), ..OpenOptions::default() };
        let mut state = waiting(&options);
        let late = state.enter(command(Effect::Query)).unwrap();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            state.driver = Some(Waker::noop().clone());
            state.enter(command(Effect::Query)).unwrap();
            state.pass_time(Instant::now()).unwrap();
        }
        assert!(state.slots.get_mut(late).unwrap().is_answered());
    }

    #[test]
    fn a_spoiled_flush_that_nobody_hears_leaves_its_error_to_the_next() {
        let mut state = waiting(&OpenOptions::default());
        state.cache.written = 1;
        let flush = state.enter(command(Effect::Flush)).unwrap();
        state.attention(AdditionalSense::POWER_ON_OCCURRED);
        assert_eq!(state.cache.unreported, None, "the flush that waits has it");
        state.forget(flush);
        assert!(state.enter(command(Effect::Flush)).is_err());
        assert!(state.enter(command(Effect::Flush)).is_ok(), "reported once");
    }

    #[test]
    fn a_cache_that_holds_nothing_loses_nothing() {
        for (volatile, written, flushed) in [(true, 5, 5), (false, 5, 0)] {
            let mut state = waiting(&OpenOptions::default());
            (state.cache.volatile, state.cache.written, state.cache.flushed) = (volatile, written, flushed);
            state.attention(AdditionalSense::POWER_ON_OCCURRED);
            assert_eq!(state.cache.unreported, None);
        }
    }

    #[test]
    fn giving_up_tells_what_is_known_of_each() {
        let mut state = waiting(&OpenOptions::default());
        let [sent, unsent] = [(); 2].map(|()| state.enter(command(Effect::Query)).unwrap());
        state.slots.get_mut(sent).unwrap().was_sent = true;
        let gone = BlockError::Gone { why: "gone".to_owned() };
        state.give_up(&gone, Duration::from_secs(30));
        let mut outcome = |token| match state.slots.remove(token).unwrap().stage {
            Stage::Answered(Outcome::Failed(error)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(outcome(sent), BlockError::Timeout { millis: 30_000 });
        assert_eq!(outcome(unsent), gone);
        assert_eq!(state.enter(command(Effect::Query)), Err(gone), "refused at once");
    }
}
