//! Tasks that task management functions abort (RFC 7143 §4.2.3.3, §11.5).

use super::control::TaskManagementId;
use super::task::{AbortedTask, Task, TaskId, TaskState};
use super::{Phase, TargetConnection, TargetEvent};
use crate::serial::Serial;

/// Fate of the task that ABORT TASK names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// There is no such task, or not any more.
    NotFound,
    /// Still waiting for data, or for older commands, and is gone.
    Dropped,
    /// The driver has it, perhaps aborted already. It will not be answered, but may still have its effect until the
    /// driver says otherwise by `complete`.
    Executing(TaskId),
}

/// Tasks that a task management function on a task set gave up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AbortedTasks {
    /// The driver has them: as [`Aborted::Executing`].
    pub executing: Vec<TaskId>,
    /// They were still waiting for data, or for older commands, and occupy nothing any more. The driver completes each
    /// when it knows whether they are answered ([`TargetConnection::set_answered`]).
    pub dropped: Vec<TaskId>,
}

/// Tasks that a task management function is about: not those that were sent after it (RFC 7143 §4.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// All there are.
    Everything,
    /// Tasks that arrived before this request of the same connection.
    Request(TaskManagementId),
    /// Tasks with a lower CmdSN than a request of another connection.
    Number(u32),
}

impl TargetConnection {
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
            (task.state, task.charged, task.aside) = (TaskState::Executing, 0, None);
            self.aborted.push(AbortedTask { id, task, answered: false, reserved: 0, place: None });
        }
        few
    }

    /// An aborted task has the memory of its data until the driver completes it. Its place in the window is free at
    /// once, so that a device that hangs does not close the window for others; not so where that would let the
    /// initiator fill memory by sending and aborting.
    fn leave_to_driver(&mut self, id: TaskId, mut task: Task) {
        // The driver may not have begun it.
        self.leave_order(task.place.take());
        let unsolicited = match task.write {
            true => {
                (task.expected_length as usize).min(self.config.data_out_max).saturating_sub(task.reserved)
            }
            false => 0,
        };
        let few = self.aborted.len() < usize::from(self.config.command_window);
        let frees_place = few && task.aside.is_none() && self.has_room_for(unsolicited);
        let mut reserved = task.reserved;
        if frees_place {
            self.free_place(task.numbered);
            reserved += unsolicited;
            self.reserved += unsolicited;
        }
        let place = (!frees_place && task.aside.is_none()).then_some(task.numbered);
        self.aborted.push(AbortedTask { id, task, answered: false, reserved, place });
    }

    /// The driver has completed an aborted task. Returns it where it is to be answered.
    pub(super) fn aborted_task_completed(&mut self, id: TaskId) -> Option<Task> {
        let at = self.aborted.iter().position(|aborted| aborted.id == id)?;
        let AbortedTask { task, answered, reserved, place, .. } = self.aborted.swap_remove(at);
        self.free_task(task.charged);
        let reserved = reserved + self.end_aside(task.aside);
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
