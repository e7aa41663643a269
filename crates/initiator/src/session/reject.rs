//! Commands that the target has rejected.

use std::io;
use std::time::{Duration, Instant};

use lunway_block::{BlockError, Buf};
use lunway_iscsi::pdu::RejectReason;

use super::{End, SessionState};
use crate::session::slots::Stage;

/// Most repetitions of a rejected command over the same session.
pub(crate) const REJECTS_MAX: u32 = 5;

/// Before it is sent again for the first time; each further wait is twice as long, 155 ms in all.
const REJECT_WAIT: Duration = Duration::from_millis(5);

/// For the commands that are under way when a target turns out to wait for the logout; half of it is theirs.
const LEAVING: Duration = Duration::from_secs(2);

/// Consequence of a Reject for its command (RFC 7143 §11.17.1). But for [`OutOfStep`](Self::OutOfStep) it was not
/// carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Sent again: what was wrong passes, or was damaged on the way. The RFC calls it so for a data digest error, too
    /// many immediate commands, and want of resources. What the target takes for a breach of the protocol is counted in
    /// as well: where headers have no digest a damaged one looks like that, and it does no harm to say it again.
    Again,
    /// Sent again in the next session, as the target waits for the end of this one.
    NextSession,
    /// Sent again in a new session: the target has a task of the same tag, so the two ends do not agree on what is
    /// under way.
    OutOfStep,
    /// Will say the same again.
    Final,
}

impl Rejection {
    pub(crate) fn of(reason: RejectReason) -> Self {
        match reason {
            RejectReason::WAITING_FOR_LOGOUT => Self::NextSession,
            RejectReason::TASK_IN_PROGRESS => Self::OutOfStep,
            RejectReason::COMMAND_NOT_SUPPORTED => Self::Final,
            _ => Self::Again,
        }
    }
}

/// Before the next attempt, after that many rejects.
pub(crate) fn reject_wait(rejects: u32) -> Duration {
    REJECT_WAIT * 2u32.saturating_pow(rejects.min(16))
}

impl SessionState {
    /// The target has rejected a command. An error ends the connection.
    pub(crate) fn rejected(
        &mut self,
        token: u64,
        reason: RejectReason,
        data_in: Buf,
        now: Instant,
    ) -> Result<(), End> {
        let Some(entry) = self.slots.get_mut(token) else { return Ok(()) };
        let tried = entry.rejects;
        entry.rejects += 1;
        let rejection = Rejection::of(reason);
        if rejection == Rejection::OutOfStep {
            // Whether it happens is not known before the session has been settled.
            if matches!(entry.stage, Stage::Sent) && entry.effect.is_idempotent() && !self.part.fails_fast() {
                entry.lost_at.get_or_insert(self.clock.tick);
                self.retry(token, data_in, None);
            }
            return Err(End::Lost(format!("the target rejected a command: {reason}")));
        }
        // Otherwise it is late already.
        if matches!(entry.stage, Stage::Sent) {
            entry.was_sent = entry.lost_at.is_some();
            match rejection {
                Rejection::Again if tried < REJECTS_MAX => {
                    tracing::debug!(%reason, "the target rejected a command: it is sent again");
                    self.retry(token, data_in, Some(now + reject_wait(tried)));
                    return Ok(());
                }
                Rejection::NextSession => {
                    self.retry(token, data_in, None);
                    self.leave_within(LEAVING, now);
                    return Ok(());
                }
                _ => {}
            }
        }
        let why = match tried {
            0 => format!("the target rejected the command: {reason}"),
            _ => format!("the target rejected the command {} times: {reason}", tried + 1),
        };
        // Another path may carry it out.
        let error = match self.part.fails_fast() {
            true => BlockError::gone(why),
            false => BlockError::Io { kind: io::ErrorKind::Other, message: why },
        };
        self.fail(token, error);
        Ok(())
    }
}
