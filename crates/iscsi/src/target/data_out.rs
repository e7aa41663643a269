//! Data-Out and R2T: the data of a command, until all of it is here (RFC 7143 §11.7, §11.8).

use lunway_block::Buf;

use super::TargetConnection;
use super::answer::IscsiSense;
use super::retained::in_run;
use super::task::{Solicited, TaskId, TaskState};
use crate::pdu::{self, DataOut, R2t, RESERVED_TAG, RejectReason, ScsiCommand, Snack};
use crate::receive::{Data, Head};

/// Number of times that data of one command may come with a wrong digest before the command fails. A network that
/// breaks more than one PDU in a command has the checksums of TCP and of every link against it.
const RECOVERIES_MAX: u32 = 8;

/// Reason why a Data-Out cannot be taken.
pub(super) enum DataOutFault {
    /// Belongs to no task that waits for data: to one that has ended early, most likely. RFC 7143 §11.4.2 and §4.2.3.3
    /// let the initiator finish its sequences, so it is ignored.
    NoTask,
    /// Breaks its task.
    Sequence(TaskId, IscsiSense),
}

impl TargetConnection {
    /// Returns the buffer for immediate data: that for all of the command's data if the budget has room for it, so that
    /// it need not be copied when the rest comes.
    pub(super) fn immediate_data_buffer(&mut self, head: &Head) -> Buf {
        let command: &ScsiCommand = pdu::view(&head.bhs);
        let want = (command.expected_data_transfer_length.get() as usize).min(self.config.data_out_max);
        let fits = command.is_write()
            && !self.announces
            && want > head.data_len
            && self.unreserved.is_empty()
            && self.reserved + want <= self.data_out_budget()
            && self.has_memory_for(want);
        Buf::for_overwrite(if fits { want } else { head.data_len })
    }

    /// This connection's part of the session's budget.
    pub(super) fn data_out_budget(&self) -> usize {
        let connections = self.negotiated().map_or(1, |negotiated| negotiated.max_connections.max(1));
        self.config.data_out_budget / usize::from(connections)
    }

    /// Sees whether a Data-Out fits, and lends the buffer it goes to.
    // RFC 7143 [7.9-2, 7.8-3]
    pub(super) fn place_data_out(&mut self, head: &Head) -> Result<(TaskId, Buf, usize), DataOutFault> {
        let pdu: &DataOut = pdu::view(&head.bhs);
        let transfer_tag = pdu.target_transfer_tag.get();
        let id = match transfer_tag {
            RESERVED_TAG => self.tasks.find(pdu.initiator_task_tag.get()),
            tag => self.tasks.at(tag & 0xffff),
        }
        .ok_or(DataOutFault::NoTask)?;
        let task = self.tasks.get_mut(id).ok_or(DataOutFault::NoTask)?;
        if task.initiator_task_tag != pdu.initiator_task_tag.get() {
            return Err(DataOutFault::NoTask);
        }
        let TaskState::Collecting(collection) = &mut task.state else { return Err(DataOutFault::NoTask) };
        let fault = |sense| Err(DataOutFault::Sequence(id, sense));

        let (at, end, next_data_sn) = match collection.solicited.front() {
            _ if transfer_tag == RESERVED_TAG && collection.unsolicited_end > 0 => {
                (collection.have, collection.unsolicited_end, collection.next_data_sn)
            }
            _ if transfer_tag == RESERVED_TAG => return fault(IscsiSense::UnexpectedUnsolicitedData),
            Some(first) if first.target_transfer_tag == transfer_tag => {
                (first.at, first.end, first.next_data_sn)
            }
            // DataSequenceInOrder=Yes: R2Ts are answered in their order. An older tag's sequence is over.
            _ => return Err(DataOutFault::NoTask),
        };
        // RFC 7143 §7.9: a sequence error ends the task. What has a wrong digest counts, so it makes no gap.
        if pdu.data_sn.get() != next_data_sn || pdu.buffer_offset.get() as usize != at {
            return fault(IscsiSense::ProtocolServiceCrcError);
        }
        let after = at + head.data_len;
        // RFC 7143 [11.7.1-2]
        if after > end || (transfer_tag != RESERVED_TAG && pdu.is_final() != (after == end)) {
            return fault(IscsiSense::IncorrectAmountOfData);
        }
        if collection.buf.len() < end {
            // Unsolicited data that the budget had no room for in advance. FirstBurstLength bounds what can come, so
            // there is room for that and not for all of the command's data.
            let mut first_burst = Buf::for_overwrite(end);
            first_burst[..collection.have].copy_from_slice(&collection.buf[..collection.have]);
            collection.buf = first_burst;
        }
        Ok((id, std::mem::take(&mut collection.buf), at))
    }

    /// A Data-Out whose data went straight into its task's buffer has arrived.
    pub(super) fn data_out_placed(&mut self, head: &Head, id: TaskId, data: Data) {
        let pdu: &DataOut = pdu::view(&head.bhs);
        let Some(task) = self.tasks.get_mut(id) else { return };
        let TaskState::Collecting(collection) = &mut task.state else { return };
        collection.buf = data.buf;
        let is_solicited = pdu.target_transfer_tag.get() != RESERVED_TAG;
        let mut at = collection.have;
        if !is_solicited {
            collection.have += head.data_len;
            collection.next_data_sn = collection.next_data_sn.wrapping_add(1);
            if pdu.is_final() {
                collection.unsolicited_end = 0;
                collection.requested = collection.have;
            } else if collection.have == collection.unsolicited_end {
                return self.fail(id, IscsiSense::IncorrectAmountOfData);
            }
        } else if let Some(first) = collection.solicited.front_mut() {
            at = first.at;
            first.at += head.data_len;
            first.next_data_sn = first.next_data_sn.wrapping_add(1);
            if first.at == first.end {
                collection.solicited.pop_front();
            }
        }
        if !data.intact {
            // §7.8: ask for it again, or fail the command, but not before all that was asked for has come.
            // RFC 7143 [7.8-2, 7.8-3]
            collection.recoveries += 1;
            collection.doomed |= self.retention.is_none() || collection.recoveries > RECOVERIES_MAX;
            collection.lost.push_back(at..at + head.data_len);
            self.reject(head, RejectReason::DATA_DIGEST_ERROR);
        }
        self.collect(id);
    }

    /// Goes on with a command after a piece of its data has come.
    fn collect(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let TaskState::Collecting(collection) = &mut task.state else { return };
        // RFC 7143 [7.8-4, 11.4.2-1, 11.17.1-3]
        if collection.doomed {
            if collection.is_quiet() {
                self.fail(id, IscsiSense::ProtocolServiceCrcError);
            }
        } else if collection.is_complete() {
            let buf = std::mem::take(&mut collection.buf);
            self.deliver_command(id, buf);
        } else {
            self.solicit(id);
            self.grant_memory();
        }
    }

    /// A Data-Out that has no place: empty, late, or wrong.
    pub(super) fn data_out(&mut self, head: &Head, data: Option<&Data>) {
        match self.place_data_out(head) {
            Ok((id, buf, at)) => {
                // RFC 7143 [11.7.7-1]
                // An empty one may end a sequence of unsolicited data.
                debug_assert!(data.is_none() && at <= buf.len());
                self.data_out_placed(head, id, Data { buf, intact: true });
            }
            // RFC 7143 [10.7-2]
            Err(DataOutFault::NoTask) => {}
            Err(DataOutFault::Sequence(id, sense)) => self.fail(id, sense),
        }
    }

    /// Takes space for all of a task's data from the budget, and memory of the principal. A task on its own always gets
    /// the first, and waits for no more than one of each other connection for the second.
    pub(super) fn reserve(&mut self, id: TaskId) -> bool {
        let budget = self.data_out_budget();
        let Some(task) = self.tasks.get_mut(id) else { return true };
        let TaskState::Collecting(collection) = &task.state else { return true };
        let (want, charged) = (collection.want, task.charged);
        if task.reserved >= want {
            return true;
        }
        let others = self.reserved - task.reserved;
        // Beside what is set aside there is always room for one.
        let alone = others == self.aside_reserved;
        if !alone && others + want > budget || !self.charge_whole(charged, want, alone) {
            return false;
        }
        let Some(task) = self.tasks.get_mut(id) else { return true };
        let TaskState::Collecting(collection) = &mut task.state else { return true };
        let mut whole = Buf::for_overwrite(want);
        whole[..collection.have].copy_from_slice(&collection.buf[..collection.have]);
        collection.buf = whole;
        self.reserved = others + want;
        task.reserved = want;
        task.charged = charged.max(Buf::memory_of(want));
        true
    }

    /// Returns `true` if the budget has room for `bytes` more. For a command on its own it always has.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        bytes == 0 || self.reserved == 0 || self.reserved + bytes <= self.data_out_budget()
    }

    /// Sends as many R2Ts as the initiator allows (RFC 7143 §11.8).
    // RFC 7143 [11.8-5, 11.8.1-1, 11.8.4-1, 4.2.2.4-1, 11.7.1-2, 13.19-1]
    pub(super) fn solicit(&mut self, id: TaskId) {
        let Some(negotiated) = self.negotiated() else { return };
        let (outstanding_max, burst_max) =
            (usize::from(negotiated.max_outstanding_r2t), negotiated.max_burst_length as usize);
        loop {
            let tag = self.transfer_tag(id.slot);
            let Some(task) = self.tasks.get_mut(id) else { return };
            let TaskState::Collecting(collection) = &mut task.state else { return };
            if collection.doomed
                || task.reserved < collection.want
                || collection.unsolicited_end > 0
                || collection.solicited.len() >= outstanding_max
            {
                return;
            }
            let piece = match collection.lost.pop_front() {
                // RFC 7143 [7.3-4, 7.8-3]
                // A recovery R2T (§7.8): no longer than the PDU that was lost.
                Some(lost) => lost,
                None if collection.requested == collection.want => return,
                None => {
                    let start = collection.requested;
                    collection.requested = collection.want.min(start + burst_max);
                    start..collection.requested
                }
            };
            let solicited = Solicited {
                target_transfer_tag: tag,
                r2t_sn: task.next_r2t_sn,
                start: piece.start,
                at: piece.start,
                end: piece.end,
                next_data_sn: 0,
            };
            task.next_r2t_sn = task.next_r2t_sn.wrapping_add(1);
            let r2t = ready_to_transfer(task.lun, task.initiator_task_tag, &solicited);
            collection.solicited.push_back(solicited);
            self.send_r2t(r2t);
        }
    }

    /// An R2T has the next StatSN and does not use it up (§11.8.3).
    fn send_r2t(&mut self, mut r2t: R2t) {
        let (exp_cmd_sn, max_cmd_sn) = self.numbering.window();
        r2t.stat_sn = self.stat_sn.into();
        r2t.exp_cmd_sn = exp_cmd_sn.into();
        r2t.max_cmd_sn = max_cmd_sn.into();
        self.transmitter.push(&pdu::to_bytes(&r2t), &[], Default::default());
    }

    /// Sends R2Ts again that have not been answered at all; `false` if there is none in the run.
    pub(super) fn resend_r2ts(&mut self, snack: &Snack) -> bool {
        let Some(id) = self.tasks.find(snack.initiator_task_tag.get()) else { return false };
        let Some(task) = self.tasks.get_mut(id) else { return false };
        let TaskState::Collecting(collection) = &task.state else { return false };
        let lost = |one: &&Solicited| one.at == one.start && in_run(snack, one.r2t_sn);
        let meant = collection.solicited.iter().filter(lost);
        let r2ts: Vec<R2t> =
            meant.map(|one| ready_to_transfer(task.lun, task.initiator_task_tag, one)).collect();
        let found = !r2ts.is_empty();
        r2ts.into_iter().for_each(|r2t| self.send_r2t(r2t));
        found
    }

    /// Gives bytes back to the budget, and lets commands go on that waited for them.
    pub(super) fn free_memory(&mut self, bytes: usize) {
        self.reserved -= bytes;
        self.grant_memory();
    }

    /// Lets tasks that wait for memory ask for their data, the oldest first.
    pub(super) fn grant_memory(&mut self) {
        while let Some(&next) = self.unreserved.front() {
            // While unsolicited data comes, its buffer is lent to the receiver again and again: it must not be grown
            // when memory is freed elsewhere. The last of that data brings the task here once more.
            let more_comes = self.tasks.get(next).is_some_and(|task| match &task.state {
                TaskState::Collecting(collection) => collection.unsolicited_end > 0,
                _ => false,
            });
            if more_comes || !self.reserve(next) {
                break;
            }
            self.unreserved.pop_front();
            self.solicit(next);
        }
    }
}

/// An R2T, but for what is as it is when it is sent.
fn ready_to_transfer(lun: [u8; 8], initiator_task_tag: u32, solicited: &Solicited) -> R2t {
    let mut r2t = R2t::new();
    // RFC 7143 [11.7.4-2]
    r2t.lun = u64::from_be_bytes(lun).into();
    r2t.initiator_task_tag = initiator_task_tag.into();
    r2t.target_transfer_tag = solicited.target_transfer_tag.into();
    r2t.r2t_sn = solicited.r2t_sn.into();
    r2t.buffer_offset = (solicited.start as u32).into();
    r2t.desired_data_transfer_length = ((solicited.end - solicited.start) as u32).into();
    r2t
}
