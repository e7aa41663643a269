//! SCSI Command: from its arrival until the driver has it, and its end (RFC 7143 §11.3).

use lunway_block::Buf;

use super::answer::IscsiSense;
use super::task::{Collection, Task, TaskId, TaskState};
use super::{Announcement, Command, IMMEDIATE_MAX, Phase, TargetConnection, TargetEvent};
use crate::connection::Cdb;
use crate::negotiation::Negotiated;
use crate::pdu::{self, AhsIter, RESERVED_TAG, RejectReason, ScsiCommand, TaskAttribute};
use crate::receive::Head;

impl TargetConnection {
    pub(super) fn negotiated(&self) -> Option<&Negotiated> {
        match &self.phase {
            Phase::FullFeature(logged_in) => Some(&logged_in.negotiated),
            _ => None,
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
            aside: None,
            announced: false,
            passed: false,
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
        if self.announces && want > unsolicited_end {
            return self.announce_task(task);
        }
        // Unsolicited data is on its way, budget or not: FirstBurstLength bounds it.
        if has_space || (!unsolicited && self.unreserved.is_empty() && self.reserve(task)) {
            self.solicit(task);
        } else {
            self.unreserved.push_back(task);
        }
    }

    /// Announces commands to the driver from now on before their data is asked for: [`TargetEvent::Announced`]. So one
    /// that the driver lets wait keeps nothing of the memory that other commands need for theirs.
    pub fn announce(&mut self, announces: bool) {
        self.announces = announces;
    }

    fn announce_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.announced = true;
        let (lun, attribute, cdb) = (task.lun, task.attribute, task.cdb.clone());
        self.events.push_back(TargetEvent::Announced(Announcement { task: id, lun, attribute, cdb }));
    }

    /// Asks for the data of an announced command, as soon as there is memory for it. One that has ended meanwhile is
    /// passed over. `passes`: the command is [given](Command::passed) as one that the driver has let pass.
    pub fn ask_for_data(&mut self, id: TaskId, passes: bool) {
        let Some(task) = self.tasks.get_mut(id).filter(|task| task.announced) else { return };
        (task.announced, task.passed) = (false, passes);
        // Unsolicited data may be on its way: the last of it brings the task to its memory.
        let quiet = matches!(&task.state, TaskState::Collecting(collection) if collection.is_quiet());
        if quiet && self.unreserved.is_empty() && self.reserve(id) {
            self.solicit(id);
        } else {
            self.unreserved.push_back(id);
        }
    }

    /// The driver lets a command wait that no device has: it gives its place in the command window to others, so that
    /// the initiator can go on with those. As many are set aside as the window has places, and as the budget for data
    /// has room for what may come unasked in their place, beside the longest transfer.
    pub fn set_aside(&mut self, id: TaskId) {
        let depth = usize::from(self.config.command_window);
        let room = self.data_out_budget().saturating_sub(self.config.data_out_max + self.aside_reserved);
        let data_max = self
            .negotiated()
            .map_or(0, |negotiated| negotiated.first_burst_length.max(negotiated.max_recv_ours) as usize);
        let is_full = self.aside >= depth;
        let Some(task) = self.tasks.get_mut(id).filter(|task| task.numbered && task.aside.is_none()) else {
            return;
        };
        let bytes = if task.write { data_max.min(task.expected_length as usize) } else { 0 };
        if is_full || bytes > room {
            return;
        }
        task.aside = Some(bytes);
        self.aside += 1;
        self.aside_reserved += bytes;
        self.reserved += bytes;
        let (expected, maximum) = self.numbering.window();
        self.free_place(true);
        // No answer may tell the initiator for long that the window is open again.
        self.aside_untold |=
            usize::from(maximum.wrapping_sub(expected).wrapping_add(1) as u16) < depth / 2 + 1;
    }

    /// Tells the initiator of the places that commands [set aside](Self::set_aside) have left, where it may lack them.
    /// To be called after some of them.
    pub fn tell_aside(&mut self) {
        if std::mem::take(&mut self.aside_untold) && matches!(self.phase, Phase::FullFeature(_)) {
            self.tell_window();
        }
    }

    /// A task that was set aside is over. Returns the budget that it had for that.
    pub(super) fn end_aside(&mut self, aside: Option<usize>) -> usize {
        let bytes = aside.unwrap_or_default();
        self.aside -= usize::from(aside.is_some());
        self.aside_reserved -= bytes;
        bytes
    }

    /// Takes back a command that the driver has not begun, to give it again before those that it has not given yet.
    pub fn put_back(&mut self, mut command: Command) {
        let before = |event: &TargetEvent| matches!(event, TargetEvent::Command(other) if other.passed);
        let at = self.events.iter().position(|event| !before(event)).unwrap_or(self.events.len());
        command.passed = true;
        self.events.insert(at, TargetEvent::Command(command));
    }

    /// Returns `true` if a command has neither ended nor been aborted.
    pub fn has_task(&self, id: TaskId) -> bool {
        self.tasks.get(id).is_some()
    }

    /// All of a task's data is here: it goes to the driver when its turn has come.
    pub(super) fn deliver_command(&mut self, id: TaskId, data: Buf) {
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
    pub(super) fn leave_order(&mut self, place: Option<u64>) {
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
            passed: task.passed,
        };
        self.events.push_back(TargetEvent::Command(command));
    }

    /// Takes a task out of all books; gives it back to be answered, or not.
    pub(super) fn end_task(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(id)?;
        if task.aside.is_none() {
            self.free_place(task.numbered);
        }
        self.free_task(task.charged);
        let aside = self.end_aside(task.aside);
        self.free_memory(task.reserved + aside);
        self.barriers -= usize::from(task.barrier);
        self.leave_order(task.place);
        if !self.waiting.is_empty() {
            self.release_waiting();
        }
        Some(task)
    }

    /// A command occupies the window, or the number of immediate commands, no longer.
    pub(super) fn free_place(&mut self, numbered: bool) {
        if numbered {
            self.numbering.finished(self.window_depth());
        } else {
            self.immediate_tasks -= 1;
        }
    }
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
