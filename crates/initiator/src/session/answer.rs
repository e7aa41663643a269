//! Answers of the target: those that end a command, and those that repeat it.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use lunway_block::{BlockError, Buf, Fate};
use lunway_iscsi::Cdb;
use lunway_iscsi::initiator::{Completed, Residual, Submission};
use lunway_iscsi::pdu::{ServiceResponse, TaskManagementResult};
use lunway_scsi::block_error::{Request, result_of};
use lunway_scsi::{AccessState, AdditionalSense, Sense, SenseKey, Status, cdb};

use super::doubt::{MAYBE_FENCED, is_doubtful, tells_of_no_disk};
use super::{End, SessionState};
use crate::observer::SessionEvent;
use crate::session::cache::is_power_on;
use crate::session::slots::{AwaitedCommand, Effect, Outcome, Stage};

/// Most returns of a command with a unit attention. A target queues a handful of conditions; one
/// that has more to say than this is broken.
const ATTENTIONS_MAX: u32 = 32;

/// Most repetitions of a command that the target aborted.
const ABORTED_MAX: u32 = 4;

/// First and last wait for a busy target.
const BUSY_WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Time for which a busy target may put off a command where there is another path to the disk: longer than a queue
/// takes to have room again, and short beside what a busy port costs who waits for it.
const PUT_OFF_MAX: Duration = Duration::from_millis(100);

/// Returns the contradiction in the residual count of a READ: it must agree with the bytes that came
/// (RFC 7143 §11.4.5.1), as there is no telling which of the two is right. A READ that is short without a count is
/// found out by its length. `None`: no contradiction.
fn contradiction(residual: Residual, received: usize, expected: usize) -> Option<String> {
    let says = match residual {
        Residual::None | Residual::Over(0) | Residual::Under(0) => return None,
        Residual::Under(left) if received.saturating_add(left as usize) == expected => return None,
        Residual::Under(left) => format!("{left} are missing"),
        Residual::Over(more) => format!("there are {more} more"),
        Residual::Contradictory => "there are both too few and too many".to_owned(),
    };
    Some(format!("the target sent {received} of {expected} bytes and says that {says}"))
}

/// Describes the residual count of a write (RFC 7143 §11.4.5.1).
fn in_words(residual: Residual) -> String {
    match residual {
        Residual::None => "that it took all of it".to_owned(),
        Residual::Under(left) => format!("that it left {left} bytes of it (residual underflow)"),
        Residual::Over(more) => {
            format!("that it wanted {more} bytes more than the command has (residual overflow)")
        }
        Residual::Contradictory => "both residual underflow and overflow".to_owned(),
    }
}

impl SessionState {
    /// The target has answered a command.
    pub(crate) fn completed(&mut self, done: Completed, now: Instant) {
        let Some(entry) = self.slots.get_mut(done.token) else { return };
        let Completed { token, status, sense, data_in, data_in_len: received, data_out_len: sent, .. } = done;
        if done.response != ServiceResponse::COMPLETED {
            let message = "the target failed to execute the command".to_owned();
            return self.fail(token, BlockError::Io { kind: io::ErrorKind::Other, message });
        }
        let status = Status(status);
        let writes = matches!(entry.effect, Effect::Write | Effect::WriteThrough);
        if status == Status::GOOD && writes && done.residual != Residual::None {
            // RFC 7143 §11.4.5.1: it took less than the CDB and the data say, or wanted more. Which part is unknown.
            let message = format!("the target reported success of a write, and {}", in_words(done.residual));
            return self.fail(token, BlockError::Io { kind: io::ErrorKind::WriteZero, message });
        }
        // RFC 7143 §11.4.5.1: what it did not take it has to say by a residual count.
        let left = match done.residual {
            Residual::Under(left) => left as usize,
            Residual::None | Residual::Over(_) | Residual::Contradictory => 0,
        };
        if status == Status::GOOD
            && entry.effect == Effect::Read
            && let Some(message) = contradiction(done.residual, received, data_in.len())
        {
            return self.fail(token, BlockError::Io { kind: io::ErrorKind::InvalidData, message });
        }
        if status == Status::GOOD && sent.saturating_add(left) < entry.data_out.len() {
            let len = entry.data_out.len();
            let message = format!(
                "the target acknowledged a command with {len} bytes of data, of which it took only {sent}"
            );
            return self.fail(token, BlockError::Io { kind: io::ErrorKind::WriteZero, message });
        }
        if status == Status::GOOD {
            // The error stays with the entry: if no caller picks it up, the next flush has it.
            let (effect, covers, spoiled) = (entry.effect, entry.covers, entry.spoiled.clone());
            let sent_at = entry.sent_at;
            self.traffic.count(effect, received, entry.data_out.len());
            if let Some(connection) = &mut self.connection {
                connection.carried_out |= !asks_only(effect);
            }
            self.proof.note(effect, sent_at);
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
        if status == Status::CHECK_CONDITION && self.shorten(token, &sense) {
            return self.retry(token, data_in, None);
        }
        let Some(entry) = self.slots.get_mut(token) else { return };
        let asked = asks_only(entry.effect);
        // Who asks what the unit is can make use of any answer.
        let fails_fast = self.part.fails_fast() && entry.effect != Effect::Inspect;
        match self.second_thoughts(token, status, &sense) {
            // It is known to be over, which who waits no longer than it must can make use of.
            Verdict::Final if fails_fast && is_abort(status, &Sense::parse(&sense)) => {
                let effect = self.slots.get_mut(token).map(|entry| entry.effect);
                let error =
                    effect.map_or(BlockError::lost(), |effect| self.clock.timeout(effect, Fate::Over));
                self.fail(token, error);
            }
            // Another port may carry it out.
            Verdict::Final if fails_fast && let Some(why) = refusal_of_the_port(&sense) => {
                self.fail(token, BlockError::gone(why));
            }
            Verdict::Final => {
                // A question that the target does not know is no failure of the path.
                self.traffic.errors += u64::from(!asked);
                self.answer(token, Outcome::Executed { status, sense, data_in, received });
            }
            Verdict::Again => self.retry(token, data_in, None),
            Verdict::Unsure => {
                self.fail(token, BlockError::gone(MAYBE_FENCED));
            }
            Verdict::Later(wait) if self.is_put_off_too_long(token, now, wait) => {
                self.fail(token, BlockError::Busy);
            }
            Verdict::Later(wait) => self.retry(token, data_in, Some(now + wait)),
        }
    }

    /// Makes a transfer one of ten bytes, and all later ones, where the target does not know the long one. Says whether
    /// it did.
    fn shorten(&mut self, token: u64, sense: &[u8]) -> bool {
        let unknown = AdditionalSense::INVALID_COMMAND_OPERATION_CODE;
        let is_unknown = Sense::parse(sense).is_some_and(|sense| !sense.deferred && sense.code == unknown);
        let Some(entry @ AwaitedCommand { stage: Stage::Sent, .. }) = self.slots.get_mut(token) else {
            return false;
        };
        let Some(short) = short_transfer(&entry.cdb, entry.effect).filter(|_| is_unknown) else {
            return false;
        };
        entry.cdb = short;
        entry.was_sent = entry.lost_at.is_some();
        if !std::mem::replace(&mut self.peer.short_transfers, true) {
            tracing::info!(
                "the target does not know READ (16) and WRITE (16): READ (10) and WRITE (10) are sent"
            );
        }
        true
    }

    /// Tells whether a status other than GOOD is final.
    fn second_thoughts(&mut self, token: u64, status: Status, sense: &[u8]) -> Verdict {
        let Some(entry) = self.slots.get_mut(token) else { return Verdict::Final };
        // Once it is being aborted for being late, what comes is final.
        if !matches!(entry.stage, Stage::Sent) {
            return Verdict::Final;
        }
        let refusals = entry.refusals;
        let idempotent = entry.effect.is_idempotent();
        let changes = entry.effect.changes();
        let inspects = entry.effect == Effect::Inspect;
        let (first, last) = BUSY_WAIT;
        let later = Verdict::Later((first * 2u32.saturating_pow(refusals.min(16))).min(last));
        let verdict = match status {
            Status::BUSY | Status::TASK_SET_FULL => later,
            Status::TASK_ABORTED if idempotent && refusals < ABORTED_MAX => later,
            Status::CHECK_CONDITION => match Sense::parse(sense) {
                // About an earlier write that was acknowledged; this command was not executed (SPC-4 §4.5.7).
                Some(sense) if sense.deferred => {
                    let message = format!("an earlier write failed behind the cache: {sense}");
                    if self.part.leaves_flushes() {
                        self.deferred.events.push(SessionEvent::Spoiled { why: message });
                    } else {
                        let error = BlockError::Io { kind: io::ErrorKind::Other, message };
                        self.cache.spoil(error, &mut self.slots);
                    }
                    if refusals < ABORTED_MAX { Verdict::Again } else { Verdict::Final }
                }
                Some(sense) if sense.key == SenseKey::UNIT_ATTENTION => {
                    self.attention(sense.code);
                    match refusals < ATTENTIONS_MAX {
                        // Whether this node may still write is for who hears of it to find out first.
                        true if self.part.fails_fast() && changes && is_preemption(sense.code) => {
                            Verdict::Unsure
                        }
                        true => Verdict::Again,
                        false => later,
                    }
                }
                Some(sense)
                    if sense.key == SenseKey::NOT_READY
                        && let Some(access) = access_told_by(sense.code) =>
                {
                    self.note_access(access);
                    self.deferred.stale.access = true;
                    let passes = access == AccessState::Transitioning;
                    if passes && !self.part.fails_fast() { later } else { Verdict::Final }
                }
                Some(sense) if sense.becomes_ready() => later,
                Some(sense) if tells_of_no_disk(sense.code) && !inspects => {
                    // The unit under this address now, or later, may be another disk.
                    self.suspect_disk();
                    Verdict::Final
                }
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
            // What was refused has not been executed; what was ended may have been in part.
            let sense = Sense::parse(sense);
            if status != Status::TASK_ABORTED && !is_abort(status, &sense) {
                entry.was_sent = entry.lost_at.is_some();
            }
        }
        verdict
    }

    /// Returns `true` if a command that may go elsewhere would be put off for too long if it waited once more. A
    /// command that asks about this very session waits.
    fn is_put_off_too_long(&mut self, token: u64, now: Instant, wait: Duration) -> bool {
        let fails_fast = self.part.fails_fast();
        let Some(entry) = self.slots.get_mut(token) else { return false };
        let so_far = now.saturating_duration_since(*entry.put_off.get_or_insert(now));
        fails_fast && !matches!(entry.effect, Effect::Query | Effect::Inspect) && so_far + wait > PUT_OFF_MAX
    }

    pub(super) fn retry(&mut self, token: u64, data_in: Buf, at: Option<Instant>) {
        let lun = self.peer.lun.0;
        let Some(entry) = self.slots.get_mut(token) else { return };
        let (cdb, data_out) = (entry.cdb.clone(), entry.data_out.clone());
        let attribute = entry.effect.attribute();
        let submission = Submission { token, lun, cdb, data_out, data_in, attribute };
        match at {
            Some(at) => {
                entry.stage = Stage::Delayed;
                self.waiting.delay(at, submission);
            }
            None => {
                entry.stage = Stage::Queued;
                self.waiting.queue.push_front(submission);
            }
        }
    }

    /// Acts on a condition that a unit attention or an asynchronous message told.
    pub(crate) fn attention(&mut self, code: AdditionalSense) {
        if is_power_on(code) {
            self.cache.power_on(&mut self.slots);
            self.deferred.events.push(SessionEvent::PowerOn);
        }
        let preempted = self.part.fails_fast() && is_preemption(code);
        if preempted {
            self.deferred.events.push(SessionEvent::Preempted);
        }
        self.deferred.stale.access |= code == AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED;
        // Its shape may be another one too: 2A/01 mode parameters, 2A/09 capacity, 3F/03 inquiry data.
        if is_doubtful(code) {
            self.suspect(preempted);
        }
        tracing::info!(%code, "unit attention");
    }

    /// The answer to ABORT TASK. An error ends the connection, which aborts for certain.
    pub(crate) fn task_managed(&mut self, token: u64, result: TaskManagementResult) -> Result<(), End> {
        let Some(entry @ AwaitedCommand { stage: Stage::Aborting { .. }, .. }) = self.slots.get_mut(token)
        else {
            return Ok(());
        };
        // Told only where the target has confirmed that nothing of it happens any more.
        let error = self.clock.timeout(entry.effect, Fate::Over);
        match result {
            TaskManagementResult::COMPLETE => {
                self.fail(token, error);
                Ok(())
            }
            // In order, its answer would have come before this one: it was lost, and so is the session, as the core
            // says next. The command is sent again like all others that a session loses, but once only: a target may
            // lose its commands itself.
            TaskManagementResult::TASK_DOES_NOT_EXIST => {
                if !mem::replace(&mut entry.answer_lost, true) {
                    entry.stage = Stage::Sent;
                }
                Ok(())
            }
            other => Err(End::Lost(format!("ABORT TASK was answered with: {other}"))),
        }
    }
}

/// READ (10) or WRITE (10) instead of the long one, where it can do the same. What callers send by themselves is left
/// as it is.
pub(super) fn short_transfer(long: &Cdb, effect: Effect) -> Option<Cdb> {
    let transfers = matches!(effect, Effect::Read | Effect::Write | Effect::WriteThrough);
    transfers.then(|| cdb::short_transfer(long)).flatten().map(|short| Cdb::new(&short))
}

/// Returns `true` if a command is a question about the unit, and moves no data.
fn asks_only(effect: Effect) -> bool {
    matches!(effect, Effect::Query | Effect::Inspect | Effect::Barrier | Effect::Look)
}

enum Verdict {
    Final,
    Again,
    /// Not carried out, and may not be allowed any more.
    Unsure,
    Later(Duration),
}

/// Another nexus has removed reservations or registrations of others (SPC-4 §5.13.11.2).
fn is_preemption(code: AdditionalSense) -> bool {
    [AdditionalSense::RESERVATIONS_PREEMPTED, AdditionalSense::REGISTRATIONS_PREEMPTED].contains(&code)
}

/// The state of a target port that refuses a command for it: 04/0A to 04/0C (SPC-4 §5.16.2.4).
fn access_told_by(code: AdditionalSense) -> Option<AccessState> {
    match code {
        AdditionalSense::ASYMMETRIC_ACCESS_TRANSITION => Some(AccessState::Transitioning),
        AdditionalSense::TARGET_PORT_STANDBY => Some(AccessState::Standby),
        AdditionalSense::TARGET_PORT_UNAVAILABLE => Some(AccessState::Unavailable),
        _ => None,
    }
}

/// Returns the reason why the target port refused a command, for people, if it did.
fn refusal_of_the_port(sense: &[u8]) -> Option<String> {
    let sense = Sense::parse(sense)?;
    (sense.key == SenseKey::NOT_READY && access_told_by(sense.code).is_some()).then(|| sense.to_string())
}

/// The target ended the command before it was carried out, or half way.
fn is_abort(status: Status, sense: &Option<Sense>) -> bool {
    matches!(result_of(status, sense.as_ref(), Request::default()), Err(BlockError::Aborted { .. }))
}
