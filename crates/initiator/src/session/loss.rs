//! The end of a connection, and the beginning of the next one.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use lunway_block::{BlockError, Fate};
use lunway_iscsi::initiator::InitiatorConnection;

use super::{LiveConnection, SessionState, portal_group_of};
use crate::session::slots::{AwaitedCommand, Effect, Stage};

/// Added to what happened before it.
const CONNECTED_AGAIN: &str = "; connected again";
/// Most sessions that may end by a breach of the protocol over the same command: five are the target's habit, and no
/// accident.
pub(crate) const BREACHES_MAX: u32 = 5;

impl SessionState {
    /// The connection is gone. What can be sent again waits for the next one, in its old order and before what is new;
    /// where nothing waits, everything fails.
    pub(crate) fn disconnect(&mut self, why: &str) {
        let Some(connection) = self.connection.take() else { return };
        self.note_event(format!("connection lost: {why}"));
        if self.part.fails_fast() {
            self.fail_all(&BlockError::gone(why));
        } else {
            self.requeue(connection.core);
        }
    }

    /// The target has broken the protocol, over a certain command or one of those that are under way. Before
    /// [`Self::disconnect`].
    pub(crate) fn blame(&mut self, why: &str) {
        let Some(connection) = &self.connection else { return };
        let (blamed, address) = (connection.core.blamed(), &self.peer.address);
        for (token, entry) in self.slots.iter_unanswered() {
            if !matches!(entry.stage, Stage::Sent) || blamed.is_some_and(|blamed| blamed != token) {
                continue;
            }
            entry.breaches += 1;
            if entry.breaches == BREACHES_MAX && !self.part.fails_fast() {
                let message = format!(
                    "the target of {address} broke the protocol over the same command in {BREACHES_MAX} sessions: {why}"
                );
                entry.stage = Stage::Expired(BlockError::Io { kind: io::ErrorKind::InvalidData, message });
            }
        }
    }

    fn requeue(&mut self, mut core: InitiatorConnection) {
        self.clock.set(Instant::now());
        let tick = self.clock.tick;
        let mut again = VecDeque::new();
        for submission in core.take_unanswered() {
            match self.slots.get_mut(submission.token) {
                Some(entry) if matches!(entry.stage, Stage::Sent) && entry.effect.is_idempotent() => {
                    entry.stage = Stage::Queued;
                    entry.lost_at.get_or_insert(tick);
                    again.push_back(submission);
                }
                // Forgotten: a write whose caller is gone must not come after newer ones.
                _ => {}
            }
        }
        self.waiting.put_before(again);
        let mut lost = Vec::new();
        for (token, entry) in self.slots.iter_unanswered() {
            match entry.stage {
                Stage::Sent => lost.push(token),
                // The next session asks the unit anyway.
                Stage::Queued | Stage::Delayed if entry.effect == Effect::Look => lost.push(token),
                // Others may be carried out meanwhile: this one is what ends the sessions.
                Stage::Queued
                    if entry.lost_at.is_some_and(|lost| tick - lost >= self.clock.replacement_ticks) =>
                {
                    entry.stage = Stage::Expired(self.clock.given_up());
                }
                Stage::Aborting { .. } => {
                    entry.stage = Stage::Expired(self.clock.timeout(entry.effect, Fate::Over));
                }
                _ => {}
            }
        }
        for token in lost {
            self.fail(token, BlockError::lost());
        }
    }

    /// Fails all commands. The outcome of those that the target has and did not answer is unknown. Those that it
    /// answered, and that were to be sent again, are over, like those never sent.
    fn fail_all(&mut self, error: &BlockError) {
        let unknown =
            |stage: &Stage| matches!(stage, Stage::Sent | Stage::Aborting { .. } | Stage::Expired(_));
        let entries = self.slots.iter_unanswered();
        let tokens: Vec<_> = entries.map(|(token, entry)| (token, unknown(&entry.stage))).collect();
        for (token, unknown) in tokens {
            self.fail(token, if unknown { BlockError::lost() } else { error.clone() });
        }
        self.refuse(error);
    }

    /// Makes new commands fail at once.
    fn refuse(&mut self, error: &BlockError) {
        self.waiting.clear();
        self.life.refuse(error);
    }

    /// A new connection, in a session that has ended the old one: nothing sent over that one can happen any more.
    pub(super) fn connect(&mut self, core: InitiatorConnection, volatile: bool, now: Instant) {
        self.peer.portal_group = portal_group_of(&core);
        self.connection = Some(LiveConnection::new(core));
        if let Some(event) = self.last_event.take_if(|event| !event.ends_with(CONNECTED_AGAIN)) {
            self.note_event(event + CONNECTED_AGAIN);
        }
        self.cache.new_session(&mut self.slots);
        self.doubt.end();
        self.proof.expire();
        self.cache.volatile = volatile;
        self.life.accept();
        self.clock.set(now);
        let tick = self.clock.tick;
        let mut expired = Vec::new();
        for (token, entry) in self.slots.iter_unanswered() {
            match &entry.stage {
                Stage::Expired(error) => expired.push((token, error.clone())),
                _ => entry.since = tick,
            }
        }
        for (token, error) in expired {
            self.fail(token, error);
        }
        self.drain_queue();
    }

    /// No connection for too long: everything fails, and what is new will fail at once with `error`.
    pub(crate) fn give_up(&mut self, error: &BlockError, waited: Duration) {
        // Whether it happened is known only of what was never sent.
        let unknown = BlockError::late(waited);
        self.fail_waiting(error, &unknown);
    }

    /// Everything that has no answer fails: what was sent with `unknown`, the rest, and what is new, with `error`.
    fn fail_waiting(&mut self, error: &BlockError, unknown: &BlockError) {
        let told = |entry: &AwaitedCommand| match &entry.stage {
            // No session has come that would have ended the one it went into.
            Stage::Expired(BlockError::Timeout { millis, .. }) => {
                BlockError::Timeout { millis: *millis, fate: Fate::Unknown }
            }
            Stage::Expired(error) => error.clone(),
            _ if entry.was_sent => unknown.clone(),
            _ => error.clone(),
        };
        let errors: Vec<_> =
            self.slots.iter_unanswered().map(|(token, entry)| (token, told(entry))).collect();
        for (token, error) in errors {
            self.fail(token, error);
        }
        self.refuse(error);
    }

    /// The driver ends: nothing will ever be answered again.
    pub(crate) fn end(&mut self, why: &str) {
        let error = &BlockError::gone(why);
        self.connection = None;
        if self.part.fails_fast() {
            self.fail_all(error);
        } else {
            let why = format!("{why}; the operation was under way, and whether it happened is not known");
            self.fail_waiting(error, &BlockError::Gone { why, fate: Fate::Unknown });
        }
        self.life.end(error);
    }

    /// Returns `true` if new commands fail at once.
    pub(crate) fn refuses(&self) -> bool {
        self.life.refusal().is_some()
    }
}
