//! Proof that this node's registration has not been preempted: required before a change, and of limited age.

use std::time::{Duration, Instant};

use lunway_block::{BlockError, Buf, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_scsi::cdb;

use super::SessionState;
use crate::session::slots::{Command, Effect, Outcome};

/// Proof that this node's registration has not been preempted.
///
/// A preemption is reported once per session, in place of the next command's execution (SPC-4 §5.13.11.2); what was
/// sent together with that command is carried out, if no reservation is in its way. So a change is sent only if a
/// command was carried out that was sent at most `age_max` before: otherwise TEST UNIT READY is sent alone, and all
/// else waits in the queue for its answer. A process that was stopped finds old answers in its socket: the age counts
/// from the sending of a command, not from the arrival of its answer.
#[derive(Debug)]
pub(crate) struct Proof {
    /// `None`: no proof is required.
    age_max: Option<Duration>,
    /// Time at which the newest command was sent that proves it.
    sent: Option<Instant>,
    question: Option<Question>,
}

/// A TEST UNIT READY on which the queue waits.
#[derive(Clone, Copy, Debug)]
struct Question {
    token: u64,
    /// The one before was answered too late to prove anything.
    repeated: bool,
}

impl Proof {
    pub(super) fn new(age_max: Option<Duration>) -> Self {
        Self { age_max, sent: None, question: None }
    }

    /// The time, where it is needed as the time of a sending.
    pub(super) fn clock(&self) -> Option<Instant> {
        self.age_max.map(|_| Instant::now())
    }

    /// A new session: no command of it has been carried out.
    pub(super) fn expire(&mut self) {
        self.sent = None;
    }

    /// A command of that effect was carried out. INQUIRY, REPORT LUNS and REQUEST SENSE, which report no preemption
    /// (SAM-5 §5.14), are among those that ask and among the callers' own.
    pub(super) fn note(&mut self, effect: Effect, sent: Option<Instant>) {
        if !matches!(effect, Effect::Query | Effect::Inspect | Effect::Unknown) {
            self.sent = self.sent.max(sent);
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.question.is_some()
    }

    pub(super) fn is_question(&self, token: u64) -> bool {
        self.question.is_some_and(|question| question.token == token)
    }

    /// Returns `true` if a command of that effect must not be sent at `now` before a question is answered.
    pub(super) fn is_lacking(&self, effect: Effect, now: Instant) -> bool {
        (effect.changes() || effect == Effect::Unknown) && !self.is_fresh(self.sent, now)
    }

    fn is_fresh(&self, sent: Option<Instant>, now: Instant) -> bool {
        let Some(age_max) = self.age_max else { return true };
        sent.is_some_and(|sent| now.saturating_duration_since(sent) <= age_max)
    }
}

impl SessionState {
    /// Sends TEST UNIT READY, on whose answer all else waits.
    pub(super) fn ask_for_proof(&mut self, repeated: bool) {
        let question = self.admit(Command {
            cdb: Cdb::new(&cdb::test_unit_ready()),
            data_out: SharedBuf::default(),
            data_in: Buf::empty(),
            effect: Effect::Look,
        });
        self.proof.question = Some(Question { token: question.token, repeated });
        if let Err(question) = self.send(question) {
            self.waiting.queue.push_front(question);
        }
    }

    /// The question has its answer. What waits for it is sent by the next [`Self::drain_queue`].
    pub(super) fn proof_answered(&mut self, outcome: &Outcome) {
        let Some(Question { token, repeated }) = self.proof.question.take() else { return };
        let sent = self.slots.remove(token).and_then(|entry| entry.sent_at);
        let now = Instant::now();
        match outcome {
            // Not asked a third time: a target whose every answer is late would never be written to.
            Outcome::Executed { .. } if repeated => self.proof.sent = Some(now),
            Outcome::Executed { .. } if self.proof.is_fresh(sent, now) => {
                self.proof.sent = self.proof.sent.max(sent);
            }
            Outcome::Executed { .. } => self.ask_for_proof(true),
            // The end of the connection fails or keeps what waits by itself.
            Outcome::Failed(_) if self.connection.is_none() => {}
            Outcome::Failed(BlockError::Busy) => self.fail_held(&BlockError::Busy, |_| true),
            Outcome::Failed(error) => {
                let why = format!("whether this node's key is still registered is not known: {error}");
                self.fail_held(&BlockError::gone(why), |_| true);
            }
        }
    }
}
