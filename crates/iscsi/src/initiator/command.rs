//! Commands and their data: SCSI Command, Data-Out, R2T, Data-In, SCSI Response (RFC 7143 §11.3, §11.4, §11.7, §11.8).

use lunway_block::{Buf, SharedBuf};

use super::control::Oddity;
use super::solicited::{Leniency, Request, Solicited};
use super::{Completed, InitiatorConnection, InitiatorEvent, Phase, Residual, Submission};
use crate::connection::CloseReason;
use crate::pdu::{
    self, Ahs, AhsType, DataIn, DataOut, FINAL, R2t, RESERVED_TAG, ScsiCommand, ScsiResponse, ServiceResponse,
};
use crate::receive::{Data, Head};
use crate::serial::Serial;

/// Commands at a time: as many slots as fit into the lower half of a task tag, less than any target grants.
const TASKS_MAX: usize = 1 << 15;

pub(super) struct Task {
    pub(super) submission: Submission,
    pub(super) initiator_task_tag: u32,
    pub(super) cmd_sn: Serial,
    /// Length of the submission's buffer; the buffer itself may be away, being filled.
    expected_in: usize,
    next_data_sn: u32,
    received: usize,
    solicited: Solicited,
}

impl InitiatorConnection {
    /// Returns `true` if the next [`submit`](Self::submit) will be accepted.
    pub fn can_submit(&self) -> bool {
        matches!(self.phase, Phase::FullFeature(_))
            // RFC 7143 [11.14-1]
            && !self.control.leaving
            && self.cmd_sn <= self.max_cmd_sn
            && self.unanswered() < TASKS_MAX
    }

    /// Queues a command, or gives it back if it cannot be sent now.
    pub fn submit(&mut self, submission: Submission) -> Result<(), Submission> {
        let (false, Some(negotiated)) = (!self.can_submit(), self.negotiated()) else {
            return Err(submission);
        };
        let len = submission.data_out.len();
        let segment_max = negotiated.max_recv_peer as usize;
        // RFC 7143 [4.2.5.2-2, 11.3.4-3, 13.11-1, 13.11-3, 13.12-1, 11.8-1]
        let first_burst = (negotiated.first_burst_length as usize).min(len);
        let immediate = if negotiated.immediate_data { first_burst.min(segment_max) } else { 0 };
        let unsolicited = if negotiated.initial_r2t { immediate } else { first_burst };

        let slot = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        self.generation = self.generation.wrapping_add(1);
        // RFC 7143 [11.2.1.8-1, 11.2.1.8-2]
        // Bit 31 is free for the tags of everything that is not a command.
        let initiator_task_tag = u32::from(self.generation & 0x7fff) << 16 | slot as u32;
        let expected_in = submission.data_in.len();

        let mut pdu = ScsiCommand::new();
        pdu.flags = submission.attribute.0 & 0x07;
        // RFC 7143 [11.3.1-2]
        if len > 0 {
            pdu.flags |= ScsiCommand::WRITE;
            pdu.expected_data_transfer_length = (len as u32).into();
        } else if expected_in > 0 {
            pdu.flags |= ScsiCommand::READ;
            pdu.expected_data_transfer_length = (expected_in as u32).into();
        }
        // RFC 7143 [11.3.1-1, 11.3.4-2]
        if unsolicited == immediate {
            pdu.flags |= FINAL;
        }
        pdu.lun = u64::from_be_bytes(submission.lun).into();
        pdu.initiator_task_tag = initiator_task_tag.into();
        pdu.cmd_sn = self.cmd_sn.0.into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        pdu.cdb = *submission.cdb.first();
        let mut ahs = Vec::new();
        // RFC 7143 [11.2.2.3-1, 11.3.5-1]
        if submission.cdb.len() > 16 {
            Ahs { ahs_type: AhsType::EXTENDED_CDB, data: &submission.cdb[16..] }
                .append_to(&mut ahs)
                .expect("a CDB has at most CDB_LEN_MAX bytes");
        }
        let data = submission.data_out.clone();
        self.transmitter.push(&pdu::to_bytes(&pdu), &ahs, data.slice(0..immediate));

        let task = Task {
            submission,
            initiator_task_tag,
            cmd_sn: self.cmd_sn,
            expected_in,
            next_data_sn: 0,
            received: 0,
            solicited: Solicited::new(unsolicited),
        };
        // RFC 7143 [4.2.2.1-2, 4.2.2.1-6, 4.2.2.1-12]
        self.cmd_sn = self.cmd_sn.next();
        // RFC 7143 [4.2.5.2-1, 4.2.5.2-6]
        if unsolicited > immediate {
            self.data_out(&task, &data, RESERVED_TAG, immediate, unsolicited, segment_max);
        }
        self.tasks[slot] = Some(task);
        Ok(())
    }

    /// Queues one sequence of Data-Out: bytes `start..end`.
    fn data_out(
        &mut self,
        task: &Task,
        data: &SharedBuf,
        transfer_tag: u32,
        start: usize,
        end: usize,
        segment_max: usize,
    ) {
        let mut pdu = DataOut::new();
        // RFC 7143 [11.7.4-2]
        // §11.7.4: with a tag of the target's the LUN is that of the R2T, which is the command's.
        pdu.lun = u64::from_be_bytes(task.submission.lun).into();
        pdu.initiator_task_tag = task.initiator_task_tag.into();
        pdu.target_transfer_tag = transfer_tag.into();
        pdu.exp_stat_sn = self.status_numbers.next().into();
        let (mut at, mut data_sn) = (start, 0u32);
        // RFC 7143 [11.7.7-2, 11.7.1-1, 11.8-2, 11.8-3]
        // §11.7.7: whole words.
        let segment_max = segment_max & !3;
        while at < end {
            let next = end.min(at + segment_max);
            pdu.data_sn = data_sn.into();
            pdu.buffer_offset = (at as u32).into();
            pdu.flags = if next == end { FINAL } else { 0 };
            self.transmitter.push(&pdu::to_bytes(&pdu), &[], data.slice(at..next));
            at = next;
            data_sn += 1;
        }
    }

    // RFC 7143 [4.2.5.2-3, 11.8-4]
    // RFC 7143 [4.2.3.3-2, 11.5.1-3]
    pub(super) fn ready_to_transfer(&mut self, head: &Head) {
        let pdu: &R2t = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if !self.note_next_status(pdu.stat_sn.get()) {
            return;
        }
        let Some(negotiated) = self.negotiated() else { return };
        let (segment_max, burst_max) = (negotiated.max_recv_peer as usize, negotiated.max_burst_length);
        let outstanding_max = negotiated.max_outstanding_r2t;
        // An R2T for a task that was aborted may still be on its way.
        let Some(slot) = self.slot_of(pdu.initiator_task_tag.get()) else { return };
        let Some(mut task) = self.tasks[slot].take() else { return };
        let data = task.submission.data_out.clone();
        let start = pdu.buffer_offset.get() as usize;
        let len = pdu.desired_data_transfer_length.get();
        let end = start.saturating_add(len as usize);
        // RFC 7143 [4.2.5.3-1, 11.8-2]
        // §4.2.5.3 for the LUN, §11.8.4 for the rest.
        let (lun, expected_lun) = (pdu.lun.to_bytes(), task.submission.lun);
        let tag = task.initiator_task_tag;
        let answer = if lun != expected_lun && lun != [0; 8] {
            Err(format!("an R2T for LUN {lun:02x?} of a command for LUN {expected_lun:02x?}"))
        } else if len == 0 || end > data.len() {
            let has = data.len();
            Err(format!("an R2T for {len} bytes at {start} of command {tag:#x}, which has {has} bytes"))
        } else {
            let target_transfer_tag = pdu.target_transfer_tag.get();
            let request = Request { r2t_sn: pdu.r2t_sn.get(), target_transfer_tag, range: start..end };
            let asked = task.solicited.ask(&request, outstanding_max, self.transmitter.position());
            asked.map_err(|why| format!("{why}, of command {tag:#x}"))
        };
        let leniency = match answer {
            Ok(leniency) => leniency,
            Err(refused) => {
                self.blamed = Some(task.submission.token);
                self.tasks[slot] = Some(task);
                return self.close(CloseReason::Protocol(refused));
            }
        };
        // The task tag says which command is meant. Targets that leave the field empty are common.
        if lun != expected_lun && self.control.tolerates(Oddity::WithoutLun) {
            self.tolerate(format!("its R2Ts have LUN 0, where their command has LUN {expected_lun:02x?}"));
        }
        if len > burst_max && self.control.tolerates(Oddity::LongR2t) {
            self.tolerate(format!(
                "an R2T asks for {len} bytes at once, where MaxBurstLength is {burst_max}"
            ));
        }
        match leniency {
            Some(Leniency::Outstanding(count)) if self.control.tolerates(Oddity::ManyR2ts) => {
                self.tolerate(format!(
                    "{count} R2Ts of a command are unfinished, where MaxOutstandingR2T is {outstanding_max}"
                ));
            }
            Some(Leniency::Unsolicited) if self.control.tolerates(Oddity::R2tForSent) => {
                self.tolerate(format!(
                    "an R2T asks for {len} bytes at {start}, of which some were sent with the command"
                ));
            }
            _ => {}
        }
        self.data_out(&task, &data, pdu.target_transfer_tag.get(), start, end, segment_max);
        task.solicited.queued(self.transmitter.end());
        self.tasks[slot] = Some(task);
    }

    fn tolerate(&mut self, what: String) {
        self.events.push_back(InitiatorEvent::Tolerated(what));
    }

    pub(super) fn slot_of(&self, initiator_task_tag: u32) -> Option<usize> {
        let slot = (initiator_task_tag & 0xffff) as usize;
        let task = self.tasks.get(slot)?.as_ref()?;
        (task.initiator_task_tag == initiator_task_tag).then_some(slot)
    }

    /// Lends the buffer that a Data-In goes to; `None` for one that is not waited for, or that does not fit.
    // RFC 7143 [7.9-1]
    pub(super) fn place_data_in(&mut self, head: &Head) -> Option<(usize, Buf, usize)> {
        let pdu: &DataIn = pdu::view(&head.bhs);
        let slot = self.slot_of(pdu.initiator_task_tag.get())?;
        let task = self.tasks[slot].as_mut()?;
        let at = pdu.buffer_offset.get() as usize;
        let fits = at.checked_add(head.data_len).is_some_and(|end| end <= task.expected_in);
        (fits && pdu.data_sn.get() == task.next_data_sn && at == task.received)
            .then(|| (slot, std::mem::take(&mut task.submission.data_in), at))
    }

    /// A Data-In whose data went straight into its task's buffer has arrived.
    pub(super) fn data_in_placed(&mut self, head: &Head, slot: usize, data: Data) {
        let pdu: &DataIn = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut)
            && task.initiator_task_tag == pdu.initiator_task_tag.get()
        {
            task.submission.data_in = data.buf;
            task.received += head.data_len;
            task.next_data_sn = task.next_data_sn.wrapping_add(1);
        }
        if !data.intact {
            return self.close(CloseReason::Protocol("a data digest does not match".into()));
        }
        // RFC 7143 [11.7-1, 11.7.2-2]
        if pdu.has_status() && self.note_status(pdu.stat_sn.get()) {
            let residual = residual(pdu.flags, pdu.residual_count.get());
            self.complete(slot, ServiceResponse::COMPLETED, pdu.status, Vec::new(), residual);
        }
    }

    /// A Data-In that has no place: empty, late, or wrong.
    pub(super) fn data_in(&mut self, head: &Head) {
        let pdu: &DataIn = pdu::view(&head.bhs);
        if let Some((slot, buf, _)) = self.place_data_in(head)
            && head.data_len == 0
        {
            return self.data_in_placed(head, slot, Data { buf, intact: true });
        }
        let tag = pdu.initiator_task_tag.get();
        match self.slot_of(tag).and_then(|slot| self.tasks[slot].as_ref()) {
            Some(task) => {
                let (data_sn, at, len) = (pdu.data_sn.get(), pdu.buffer_offset.get(), head.data_len);
                let Task { next_data_sn, received, expected_in, .. } = *task;
                self.blamed = Some(task.submission.token);
                self.close(CloseReason::Protocol(format!(
                    "a Data-In number {data_sn} with {len} bytes at {at}, where number {next_data_sn} at {received} was expected, of \
                     {expected_in} bytes in all"
                )));
            }
            // RFC 7143 [4.2.3.3-3]
            // Of a task that was aborted; it may end with a status, which counts.
            _ if pdu.has_status() => {
                let _ = self.note_status(pdu.stat_sn.get());
            }
            _ => {}
        }
    }

    // RFC 7143 [11.4.3-1]
    pub(super) fn scsi_response(&mut self, head: &Head, data: &[u8]) {
        let pdu: &ScsiResponse = pdu::view(&head.bhs);
        self.note_window(pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if !self.note_status(pdu.stat_sn.get()) {
            return;
        }
        let Some(slot) = self.slot_of(pdu.initiator_task_tag.get()) else { return };
        if pdu.response != ServiceResponse::COMPLETED {
            return self.complete(slot, pdu.response, 0, sense_of(data), Residual::None);
        }
        let residual = residual(pdu.flags, pdu.residual_count.get());
        self.complete(slot, pdu.response, pdu.status, sense_of(data), residual);
    }

    pub(super) fn complete(
        &mut self,
        slot: usize,
        response: ServiceResponse,
        status: u8,
        sense: Vec<u8>,
        residual: Residual,
    ) {
        let Some(task) = self.forget(slot) else { return };
        self.events.push_back(InitiatorEvent::Completed(Completed {
            token: task.submission.token,
            response,
            status,
            sense,
            data_in: task.submission.data_in,
            data_in_len: task.received,
            data_out_len: task.solicited.sent(),
            residual,
        }));
    }

    pub(super) fn forget(&mut self, slot: usize) -> Option<Task> {
        let task = self.tasks.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(task)
    }

    /// Number of commands without an answer, also after the end.
    pub fn unanswered(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// After the end: what has no answer, in the order of submission. Its effects are unknown.
    pub fn take_unanswered(&mut self) -> Vec<Submission> {
        let mut tasks: Vec<Task> = std::mem::take(&mut self.tasks).into_iter().flatten().collect();
        self.free.clear();
        // Serial numbers have no total order, but those in flight lie within a window around the next one.
        let next = self.cmd_sn.0;
        tasks.sort_by_key(|task| std::cmp::Reverse(next.wrapping_sub(task.cmd_sn.0)));
        let restore = |mut task: Task| {
            if task.submission.data_in.len() != task.expected_in {
                // It was being filled when the connection broke.
                task.submission.data_in = Buf::for_overwrite(task.expected_in);
            }
            task.submission
        };
        tasks.into_iter().map(restore).collect()
    }
}

// RFC 7143 [11.4.5.1-2]
fn residual(flags: u8, count: u32) -> Residual {
    // The flags are the same bits in Data-In and SCSI Response.
    match (flags & ScsiResponse::OVERFLOW != 0, flags & ScsiResponse::UNDERFLOW != 0) {
        (true, false) => Residual::Over(count),
        (false, true) => Residual::Under(count),
        (false, false) => Residual::None,
        (true, true) => Residual::Contradictory,
    }
}

/// Sense data behind its two bytes of length (RFC 7143 §11.4.7.1); empty where there is none or the length lies.
pub(super) fn sense_of(data: &[u8]) -> Vec<u8> {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return Vec::new() };
    rest.get(..usize::from(u16::from_be_bytes(*length))).unwrap_or_default().to_vec()
}
