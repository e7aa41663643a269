//! Schedule of a session: late commands, work put off, the logout.

use std::time::{Duration, Instant};

use lunway_block::duration::HumanTime;
use lunway_block::{BlockError, Fate};
use lunway_iscsi::Cdb;
use lunway_iscsi::pdu::TaskManagementCode;

use lunway_scsi::operations;

use super::{End, LiveConnection, SessionState};
use crate::session::slots::{AwaitedCommand, Effect, Stage};

/// The operation of a CDB, and its range where it has one, for people.
pub(crate) fn what(cdb: &Cdb) -> String {
    let mut bytes = [0; 16];
    let len = cdb.len().min(bytes.len());
    bytes[..len].copy_from_slice(&cdb[..len]);
    let Ok(operation) = operations::find(bytes[0], bytes[1]) else {
        return format!("the command {:#04x}", bytes[0]);
    };
    // SBC-4 §5: CDBs of ten bytes have the operation codes from 20h on, those of sixteen from 80h on.
    let (lba, blocks) = match bytes[0] {
        0x28 | 0x2A | 0x35 | 0x41 => {
            let lba = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
            (u64::from(lba), u32::from(u16::from_be_bytes([bytes[7], bytes[8]])))
        }
        0x88 | 0x8A | 0x91 | 0x93 => {
            let [_, _, a, b, c, d, e, f, g, h, i, j, k, l, _, _] = bytes;
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]))
        }
        _ => return operation.name.to_owned(),
    };
    format!("{} of {blocks} blocks at LBA {lba}", operation.name)
}

impl SessionState {
    /// Puts back into the queue what has waited long enough for a busy target, and acts on commands that are overdue.
    pub(crate) fn pass_time(&mut self, now: Instant) -> Result<(), End> {
        let slots = &mut self.slots;
        self.waiting.release(now, |token| match slots.get_mut(token) {
            Some(entry @ AwaitedCommand { stage: Stage::Delayed, .. }) => {
                entry.stage = Stage::Queued;
                true
            }
            _ => false,
        });
        self.release_held(now);
        self.clock.set(now);
        if self.slots.unanswered() == 0 || !self.clock.is_look_due() {
            return Ok(());
        }
        let Some(LiveConnection { core, .. }) = &mut self.connection else { return Ok(()) };
        let (tick, lun) = (self.clock.tick, self.peer.lun.0);
        let mut overdue = Vec::new();
        let mut unanswered = None;
        let mut hung = Vec::new();
        for (token, entry) in self.slots.iter_unanswered() {
            let late = tick - entry.since > self.clock.patience(entry.effect)
                || tick - entry.born > self.clock.lifetime_ticks;
            match entry.stage {
                Stage::Queued if late => {
                    // What was sent before went into a session that this one has ended, or was answered.
                    let fate = if entry.was_sent { Fate::Over } else { Fate::NotDone };
                    overdue.push((token, self.clock.timeout(entry.effect, fate)));
                }
                Stage::Delayed if late => overdue.push((token, BlockError::Busy)),
                Stage::Sent if late => {
                    let waited = HumanTime(self.clock.time(tick - entry.since));
                    tracing::warn!(lane = %self.peer.address, "no answer to {} within {waited}: it is aborted", what(&entry.cdb));
                    // RFC 7143 [7.11-1]
                    core.manage_task(token, TaskManagementCode::ABORT_TASK, lun, Some(token));
                    let (opcode, late) = (entry.cdb[0], self.clock.timeout(entry.effect, Fate::Unknown));
                    unanswered = Some((opcode, late));
                    entry.stage = Stage::Aborting { since: tick };
                }
                // The unit waits for what it was given before, over whichever session, or hangs: this one is well.
                Stage::Aborting { since }
                    if matches!(entry.effect, Effect::Barrier | Effect::Look)
                        && tick - since > self.clock.abort_ticks =>
                {
                    hung.push((token, self.clock.timeout(entry.effect, Fate::Unknown)));
                }
                Stage::Aborting { since } if tick - since > self.clock.abort_ticks => {
                    let (command, waited) = (what(&entry.cdb), HumanTime(self.clock.time(tick - since)));
                    return Err(End::Lost(format!(
                        "no answer to {command}, nor to the ABORT TASK for it within {waited}"
                    )));
                }
                _ => {}
            }
        }
        if let Some((opcode, late)) = unanswered {
            let silent = if core.awaits_ping() { ", and no answer to a ping" } else { "" };
            self.note_event(format!("{late} to a command {opcode:02X}h, which was aborted{silent}"));
        }
        for (token, error) in overdue.into_iter().chain(hung) {
            self.fail(token, error);
        }
        Ok(())
    }

    /// Time at which [`Self::pass_time`] has something to do.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let tick = (self.slots.unanswered() > 0).then(|| self.clock.next());
        let logout = self.connection.as_ref().and_then(LiveConnection::logout_due);
        [self.waiting.next_release(), tick, self.held_until(), logout].into_iter().flatten().min()
    }

    /// Logs out where that is wanted and its time has come.
    pub(crate) fn log_out_when_due(&mut self, now: Instant, timeout: Duration) {
        let done = self.is_closing() && self.slots.unanswered() == 0;
        if let Some(connection) = &mut self.connection {
            connection.log_out_when_due(done, now, timeout);
        }
    }

    /// Returns `true` if [`Self::log_out_when_due`] has anything to look at.
    pub(crate) fn is_leaving(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_leaving(self.is_closing()))
    }

    /// The target wants us to log out within `time`: nothing new is sent, what is in flight may finish.
    pub(crate) fn leave_within(&mut self, time: Duration, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.leave_within(time, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_scsi::cdb;

    #[test]
    fn a_command_is_named_with_its_range() {
        let named = |cdb: &[u8]| what(&Cdb::new(cdb));
        assert_eq!(named(&cdb::test_unit_ready()), "TEST UNIT READY");
        let write = [0x8A, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 8, 0, 0, 0];
        assert_eq!(named(&write), "WRITE (16) of 2048 blocks at LBA 4096");
        assert_eq!(named(&[0x28, 0, 0, 0, 0, 7, 0, 0, 8, 0]), "READ (10) of 8 blocks at LBA 7");
        assert_eq!(named(&[0xFF]), "the command 0xff");
    }
}
