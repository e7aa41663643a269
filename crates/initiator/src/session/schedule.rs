//! What is due when: commands that are late, work put off, the logout.

use std::time::{Duration, Instant};

use lunway_block::BlockError;
use lunway_iscsi::pdu::TaskManagementFunction;

use super::{End, State};
use crate::slots::{Entry, Stage};

impl State {
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
        self.release_held(now);
        self.clock.set(now);
        if self.clock.tick == self.looked_at || self.slots.unanswered() == 0 {
            return Ok(());
        }
        self.looked_at = self.clock.tick;
        let Some(core) = &mut self.core else { return Ok(()) };
        let (tick, lun) = (self.clock.tick, self.lun.0);
        let mut overdue = Vec::new();
        let mut unanswered = None;
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
                    let (opcode, late) = (entry.cdb[0], self.clock.timeout(entry.effect));
                    unanswered = Some((opcode, late));
                    entry.stage = Stage::Aborting { since: tick };
                }
                Stage::Aborting { since } if tick - since > self.clock.abort_ticks => {
                    return Err(End::Lost("no answer to ABORT TASK".to_owned()));
                }
                _ => {}
            }
        }
        if let Some((opcode, late)) = unanswered {
            let silent = if core.awaits_ping() { ", and no answer to a ping" } else { "" };
            self.note_event(format!("{late} to a command {opcode:02X}h, which was aborted{silent}"));
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
        delayed.chain(tick).chain(self.held_until()).chain(self.logout_by.filter(|_| !self.logout_sent)).min()
    }

    /// Logs out where that is wanted and its time has come.
    pub(crate) fn log_out_when_due(&mut self, now: Instant, timeout: Duration) {
        let Some(core) = &mut self.core else { return };
        // Of operations that were dropped too: the target may still be writing what they sent.
        let in_flight = core.unanswered() > 0;
        if self.closing && self.slots.unanswered() == 0 && self.logout_by.is_none() {
            self.logout_by = Some(now + timeout);
        }
        let ours = self.closing && self.slots.unanswered() == 0 && !in_flight;
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
}
