//! SCSI Command, Data-Out and R2T: from a command's arrival until its data is here (RFC 7143 §11.3, §11.7, §11.8).

use lunway_block::Buf;

use super::answer::IscsiSense;
use super::retained::in_run;
use super::task::{AbortedTask, Collection, Solicited, Task, TaskId, TaskState};
use super::{
    Aborted, AbortedTasks, Before, Command, IMMEDIATE_MAX, Phase, TargetConnection, TargetEvent,
    TaskManagementId,
};
use crate::connection::Cdb;
use crate::negotiation::Negotiated;
use crate::pdu::{
    self, AhsIter, DataOut, R2t, RESERVED_TAG, RejectReason, ScsiCommand, Snack, TaskAttribute,
};
use crate::receive::{Data, Head};
use crate::serial::Serial;

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
    fn negotiated(&self) -> Option<&Negotiated> {
        match &self.phase {
            Phase::FullFeature(logged_in) => Some(&logged_in.negotiated),
            _ => None,
        }
    }

    /// Returns the buffer for immediate data: that for all of the command's data if the budget has room for it, so that
    /// it need not be copied when the rest comes.
    pub(super) fn immediate_data_buffer(&mut self, head: &Head) -> Buf {
        let command: &ScsiCommand = pdu::view(&head.bhs);
        let want = (command.expected_data_transfer_length.get() as usize).min(self.config.data_out_max);
        let fits = command.is_write()
            && want > head.data_len
            && self.unreserved.is_empty()
            && self.reserved + want <= self.data_out_budget()
            && self.has_memory_for(want);
        Buf::for_overwrite(if fits { want } else { head.data_len })
    }

    /// This connection's part of the session's budget.
    fn data_out_budget(&self) -> usize {
        let connections = self.negotiated().map_or(1, |negotiated| negotiated.max_connections.max(1));
        self.config.data_out_budget / usize::from(connections)
    }

    /// The data of a request that is held until its turn: no more than has come, and none that the request cannot use.
    pub(super) fn data_of_held(&self, head: &Head, data: Data) -> Option<Data> {
        let first_burst = self.negotiated().map_or(0, |negotiated| negotiated.first_burst_length as usize);
        let opcode = pdu::BasicHeader::of(&head.bhs).opcode.opcode();
        match opcode {
            // It fails by its length alone.
            pdu::Opcode::SCSI_COMMAND if head.data_len > first_burst => None,
            pdu::Opcode::SCSI_COMMAND if data.buf.len() > head.data_len => {
                Some(Data { buf: Buf::copy_of(&data.buf[..head.data_len]), ..data })
            }
            pdu::Opcode::TASK_MANAGEMENT_REQUEST | pdu::Opcode::LOGOUT_REQUEST => None,
            _ => Some(data),
        }
    }

    /// A command has arrived in its turn; `refused` says that its immediate data was dropped for lack of memory.
    pub(super) fn scsi_command(&mut self, head: &Head, data: Buf, refused: bool) {
        let command: &ScsiCommand = pdu::view(&head.bhs);
        let numbered = !command.opcode.is_immediate();
        let initiator_task_tag = command.initiator_task_tag.get();
        let place = self.numbering.place(command);
        let refusal = match additional_segments(command, &head.ahs) {
            _ if self.tasks.find(initiator_task_tag).is_some() || initiator_task_tag == RESERVED_TAG => {
                Err(RejectReason::TASK_IN_PROGRESS)
            }
            // RFC 7143 §4.2.2.1: the window does not bound them, so the target may refuse them.
            _ if !numbered
                && (self.immediate_tasks >= IMMEDIATE_MAX || !self.has_room_for(head.data_len)) =>
            {
                Err(RejectReason::IMMEDIATE_COMMAND_REJECT)
            }
            segments => segments.ok_or(RejectReason::INVALID_PDU_FIELD),
        };
        let (cdb, bidirectional_read_length) = match refusal {
            Ok(segments) => segments,
            Err(reason) => {
                if numbered {
                    self.numbering.finished(self.window_depth());
                }
                self.leave_order(place);
                return self.reject(head, reason);
            }
        };
        let expected_length = command.expected_data_transfer_length.get();
        let arrival = self.next_arrival();
        let task = self.tasks.insert(Task {
            initiator_task_tag,
            lun: command.lun.to_bytes(),
            cdb,
            attribute: command.attribute(),
            read: command.is_read(),
            write: command.is_write(),
            numbered,
            expected_length,
            bidirectional_read_length,
            cmd_sn: command.cmd_sn.get(),
            arrival,
            next_r2t_sn: 0,
            reserved: 0,
            charged: 0,
            barrier: command.attribute() == TaskAttribute::ORDERED,
            place,
            state: TaskState::Executing,
        });
        self.barriers += usize::from(command.attribute() == TaskAttribute::ORDERED);
        if !numbered {
            self.immediate_tasks += 1;
            if let Some(entry) = self.tasks.get_mut(task) {
                entry.reserved = head.data_len;
                self.reserved += head.data_len;
            }
        }
        if command.is_read() && command.is_write() {
            return self.fail(task, IscsiSense::InvalidOperationCode);
        }
        let Some(negotiated) = self.negotiated() else { return };
        let first_burst = negotiated.first_burst_length as usize;
        let (immediate_data, initial_r2t) = (negotiated.immediate_data, negotiated.initial_r2t);

        if head.data_len > 0 && (!command.is_write() || !immediate_data || head.data_len > first_burst) {
            // RFC 7143 [13.11-2]
            return self.fail(task, IscsiSense::UnexpectedUnsolicitedData);
        }
        if head.data_len > expected_length as usize {
            return self.fail(task, IscsiSense::IncorrectAmountOfData);
        }
        if !command.is_write() {
            return self.deliver_command(task, data);
        }
        let want = (expected_length as usize).min(self.config.data_out_max);
        // F=0 announces unsolicited Data-Out, which InitialR2T=Yes forbids: then it comes unexpected.
        let unsolicited = !command.is_final() && !initial_r2t;
        let unsolicited_end = if unsolicited { first_burst.min(want) } else { 0 };
        let is_complete = head.data_len == expected_length as usize;
        let buffer = if is_complete { data.len() } else { data.len().max(unsolicited_end) };
        if refused {
            return self.refuse(task);
        }
        if !self.charge_task(task, buffer) {
            return;
        }
        if is_complete {
            return self.deliver_command(task, data);
        }
        let collection = Collection {
            have: head.data_len,
            want,
            unsolicited_end,
            requested: head.data_len.max(unsolicited_end),
            buf: data,
            ..Collection::default()
        };
        let has_space = collection.buf.len() == want;
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.state = TaskState::Collecting(collection);
            if has_space {
                self.reserved += want - entry.reserved.min(want);
                entry.reserved = want;
            }
        }
        // Unsolicited data is on its way, budget or not: FirstBurstLength bounds it.
        if has_space || (!unsolicited && self.unreserved.is_empty() && self.reserve(task)) {
            self.solicit(task);
        } else {
            self.unreserved.push_back(task);
        }
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
    fn reserve(&mut self, id: TaskId) -> bool {
        let budget = self.data_out_budget();
        let Some(task) = self.tasks.get_mut(id) else { return true };
        let TaskState::Collecting(collection) = &task.state else { return true };
        let (want, charged) = (collection.want, task.charged);
        if task.reserved >= want {
            return true;
        }
        let others = self.reserved - task.reserved;
        if others > 0 && others + want > budget || !self.charge_whole(charged, want, others == 0) {
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
    fn has_room_for(&self, bytes: usize) -> bool {
        bytes == 0 || self.reserved == 0 || self.reserved + bytes <= self.data_out_budget()
    }

    /// Sends as many R2Ts as the initiator allows (RFC 7143 §11.8).
    // RFC 7143 [11.8-5, 11.8.1-1, 11.8.4-1, 4.2.2.4-1, 11.7.1-2, 13.19-1]
    fn solicit(&mut self, id: TaskId) {
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

    /// All of a task's data is here: it goes to the driver when its turn has come.
    fn deliver_command(&mut self, id: TaskId, data: Buf) {
        if self.has_to_wait(id) {
            let Some(task) = self.tasks.get_mut(id) else { return };
            task.state = TaskState::Waiting(data);
            let arrival = task.arrival;
            let at = self.waiting.partition_point(|(other, _)| *other < arrival);
            self.waiting.insert(at, (arrival, id));
        } else {
            self.hand_over(id, data);
            self.release_waiting();
        }
    }

    /// Returns `true` if an ORDERED task, this one or an older one, keeps the task from the driver.
    fn has_to_wait(&self, id: TaskId) -> bool {
        let Some(task) = self.tasks.get(id) else { return false };
        self.barriers > 0 && self.tasks.iter().any(|older| task.comes_after(older))
            || task.place.is_some_and(|place| self.numbering.has_to_wait(place))
    }

    /// The device server has the command, with its place in the order of the medium's commands. To be called before
    /// anything else after the command's event, where the command is not completed at once.
    pub fn begun(&mut self, id: TaskId) {
        let place = self.tasks.get_mut(id).and_then(|task| task.place.take());
        self.leave_order(place);
    }

    /// A task is with the device server or gone: other connections may go on.
    fn leave_order(&mut self, place: Option<u64>) {
        if let Some(place) = place {
            self.numbering.leave_order(place);
            self.wake_others();
        }
    }

    /// Hands tasks over whose turn has come, as one that was before them is with the driver or gone.
    pub(super) fn release_waiting(&mut self) {
        // Of tasks that arrived later for the same unit none can go before one that waits: each is, or comes after, the
        // same ORDERED one. So the table is searched once for each unit.
        let mut blocked = Vec::new();
        let mut index = 0;
        while let Some(&(_, id)) = self.waiting.get(index) {
            let Some(lun) = self.tasks.get(id).map(|task| task.lun) else {
                self.waiting.remove(index);
                continue;
            };
            if blocked.contains(&lun) || self.has_to_wait(id) {
                blocked.push(lun);
                index += 1;
                continue;
            }
            self.waiting.remove(index);
            if let Some(Task { state: TaskState::Waiting(data), .. }) = self.tasks.get_mut(id) {
                let data = std::mem::take(data);
                self.hand_over(id, data);
            }
        }
    }

    fn hand_over(&mut self, id: TaskId, data: Buf) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.state = TaskState::Executing;
        self.barriers -= usize::from(std::mem::take(&mut task.barrier));
        let command = Command {
            task: id,
            lun: task.lun,
            cmd_sn: task.cmd_sn,
            attribute: task.attribute,
            cdb: task.cdb.clone(),
            data_out: data.freeze(),
            expected_length: task.expected_length,
            data_in_max: if task.read { task.expected_length } else { 0 },
        };
        self.events.push_back(TargetEvent::Command(command));
    }

    /// Takes a task out of all books; gives it back to be answered, or not.
    pub(super) fn end_task(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(id)?;
        self.free_place(task.numbered);
        self.free_task(task.charged);
        self.free_memory(task.reserved);
        self.barriers -= usize::from(task.barrier);
        self.leave_order(task.place);
        if !self.waiting.is_empty() {
            self.release_waiting();
        }
        Some(task)
    }

    /// A command occupies the window, or the number of immediate commands, no longer.
    fn free_place(&mut self, numbered: bool) {
        if numbered {
            self.numbering.finished(self.window_depth());
        } else {
            self.immediate_tasks -= 1;
        }
    }

    /// Gives bytes back to the budget, and lets commands go on that waited for them.
    fn free_memory(&mut self, bytes: usize) {
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

    /// The logical unit that the task with this tag is for.
    pub fn lun_of(&mut self, initiator_task_tag: u32) -> Option<[u8; 8]> {
        let id = self.tasks.find(initiator_task_tag)?;
        self.tasks.get_mut(id).map(|task| task.lun)
    }

    /// Gives up the task that ABORT TASK names. It will not be answered.
    // RFC 7143 [4.2.2.1-3, 7.11-3]
    pub fn abort_task(&mut self, referenced_task_tag: u32) -> Aborted {
        let is_named = |aborted: &AbortedTask| aborted.task.initiator_task_tag == referenced_task_tag;
        let earlier = self.aborted.iter().rfind(|aborted| is_named(aborted)).map(|aborted| aborted.id);
        match (self.tasks.find(referenced_task_tag), earlier) {
            (Some(id), _) => self.abort(id),
            (None, Some(id)) => {
                self.set_answered(id, false);
                Aborted::Executing(id)
            }
            (None, None) => Aborted::NotFound,
        }
    }

    /// Decides whether a task that was aborted, and that the driver has still, is answered when it ends. To be called
    /// with
    /// `true` where the function that aborted it is rejected: the initiator then counts on the answer. With `false`
    /// where a later function aborts it.
    pub fn set_answered(&mut self, id: TaskId, answered: bool) {
        if let Some(aborted) = self.aborted.iter_mut().find(|aborted| aborted.id == id) {
            aborted.answered = answered;
        }
    }

    /// Gives up every task, or those of one logical unit, that a task management function is about. None will be
    /// answered, unless [`set_answered`](Self::set_answered) says otherwise; all of them are in the driver's hands.
    // RFC 7143 [4.2.2.1-3, 11.5.1-2]
    pub fn abort_tasks(&mut self, lun: Option<[u8; 8]>, before: Before) -> AbortedTasks {
        let mut aborted = AbortedTasks::default();
        for id in self.tasks.ids() {
            let is_meant = |task: &mut Task| {
                let earlier = match before {
                    Before::Everything => true,
                    Before::Request(request) => task.arrival < request.arrival,
                    Before::Number(cmd_sn) => Serial(task.cmd_sn) < Serial(cmd_sn),
                };
                earlier && lun.is_none_or(|lun| task.lun == lun)
            };
            if !self.tasks.get_mut(id).is_some_and(is_meant) {
                continue;
            }
            match self.give_up(id).map(|task| self.keep_dropped(id, task)) {
                None => aborted.executing.push(id),
                Some(true) => aborted.dropped.push(id),
                Some(false) => {}
            }
        }
        aborted
    }

    /// RFC 7143 §11.6.1: the task that ABORT TASK names is not there, but its RefCmdSN may still be on its way. Then it
    /// counts as received, what comes under it is ignored, and the function is complete. `false`: there is no such
    /// task.
    // RFC 7143 [7.11-2]
    pub fn plug(&mut self, request: TaskManagementId) -> bool {
        let earlier = Serial(request.ref_cmd_sn) < Serial(request.cmd_sn);
        if !earlier || !self.numbering.plug(request.ref_cmd_sn) {
            return false;
        }
        self.resume();
        true
    }

    fn abort(&mut self, id: TaskId) -> Aborted {
        match self.give_up(id) {
            None => Aborted::Executing(id),
            Some(_) => Aborted::Dropped,
        }
    }

    /// Gives up a task that is there. Returns one that the driver does not have.
    fn give_up(&mut self, id: TaskId) -> Option<Task> {
        // A command that is still in the queue of events has not reached the driver.
        let queued = self
            .events
            .iter()
            .position(|event| matches!(event, TargetEvent::Command(command) if command.task == id));
        if let Some(index) = queued {
            self.events.remove(index);
        }
        let executing = |task: &mut Task| queued.is_none() && matches!(task.state, TaskState::Executing);
        if self.tasks.get_mut(id).is_some_and(executing)
            && let Some(task) = self.tasks.remove(id)
        {
            self.leave_to_driver(id, task);
            return None;
        }
        self.end_task(id)
    }

    /// Keeps what the answer to a task without its data needs; `false`: too many wait for theirs, as where an initiator
    /// sends and aborts without end.
    fn keep_dropped(&mut self, id: TaskId, mut task: Task) -> bool {
        let few = self.aborted.len() < usize::from(self.config.command_window);
        if few {
            (task.state, task.charged) = (TaskState::Executing, 0);
            self.aborted.push(AbortedTask { id, task, answered: false, reserved: 0, place: None });
        }
        few
    }

    /// An aborted task has the memory of its data until the driver completes it. Its place in the window is free at
    /// once, so that a device that hangs does not close the window for others; not so where that would let the
    /// initiator fill memory by sending and aborting.
    fn leave_to_driver(&mut self, id: TaskId, task: Task) {
        let unsolicited = match task.write {
            true => {
                (task.expected_length as usize).min(self.config.data_out_max).saturating_sub(task.reserved)
            }
            false => 0,
        };
        let few = self.aborted.len() < usize::from(self.config.command_window);
        let frees_place = few && self.has_room_for(unsolicited);
        let mut reserved = task.reserved;
        if frees_place {
            self.free_place(task.numbered);
            reserved += unsolicited;
            self.reserved += unsolicited;
        }
        let place = (!frees_place).then_some(task.numbered);
        self.aborted.push(AbortedTask { id, task, answered: false, reserved, place });
    }

    /// The driver has completed an aborted task. Returns it where it is to be answered.
    pub(super) fn aborted_task_completed(&mut self, id: TaskId) -> Option<Task> {
        let at = self.aborted.iter().position(|aborted| aborted.id == id)?;
        let AbortedTask { task, answered, reserved, place, .. } = self.aborted.swap_remove(at);
        self.free_task(task.charged);
        if let Some(numbered) = place {
            let (expected, maximum) = self.numbering.window();
            self.free_place(numbered);
            let is_shut = maximum == expected.wrapping_sub(1);
            if numbered && is_shut && !answered && matches!(self.phase, Phase::FullFeature(_)) {
                // No answer will tell the initiator that the window is open again.
                self.tell_window();
            }
        }
        self.free_memory(reserved);
        answered.then_some(task)
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

/// The CDB with its extension, and what a bidirectional command is to read (RFC 7143 §11.2.2); `None` where a segment
/// is broken, unknown, there twice, or has no place with this command.
fn additional_segments(command: &ScsiCommand, ahs: &[u8]) -> Option<(Cdb, Option<u32>)> {
    if ahs.is_empty() {
        return Some((Cdb::new(&command.cdb), None));
    }
    let mut whole = command.cdb.to_vec();
    let mut read_length = None;
    for segment in AhsIter::new(ahs) {
        let segment = segment.ok()?;
        match (segment.extended_cdb(), segment.bidirectional_read_length()) {
            (Some(rest), _) if whole.len() == command.cdb.len() => whole.extend_from_slice(rest),
            (None, Some(length)) if read_length.is_none() && command.is_read() && command.is_write() => {
                read_length = Some(length);
            }
            _ => return None,
        }
    }
    Some((Cdb::new(&whole), read_length))
}
