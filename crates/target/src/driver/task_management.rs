//! Task management: what the functions of RFC 7143 §11.5 do to the commands of this session and of others.
//!
//! The device server does what a function means for logical units ([`Nexus::task_management`](lunway_scsi::Nexus));
//! here commands are dropped, in this session and, by [`Order`]s, in those on other cores. The response is sent only
//! when the devices have ended every dropped command: until then it could still have its effect, and the initiator may
//! send it again elsewhere as soon as it has the response. Where a device does not end them in time, the function is
//! rejected. The commands of the requesting session, over whichever of its connections, are then answered when the
//! device answers, as if they had not been aborted; those that had ended before, and those that devices never had, are
//! answered as cleared by the device server, since their own answers, or their data, were dropped. Those of other
//! sessions are not answered, which were told of the reset. In all cases other commands on the blocks that they write
//! are answered BUSY from the abort until the device has ended them ([`Work::give_up`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunway_block::Io;
use lunway_iscsi::pdu::{TaskManagementCode, TaskManagementResult};
use lunway_iscsi::target::{
    Aborted, AbortedTasks, Before, Completion, TargetConnection, TaskId, TaskManagementId,
};
use lunway_scsi::{
    AdditionalSense, Lun, NexusTasks, Response, Scope, Sense, SenseKey, TaskManagementFunction,
    TaskManagementServiceResponse,
};
use tokio::sync::oneshot;

use super::end::End;
use super::work::unit_number;
use super::{Connection, Done, Work, completion};
use crate::registry::{AbortScope, Cause, Order, Registry, SiblingFunction};

/// Maximum time that a response waits for devices. After that the function is rejected, which is the truth: initiators
/// then reset something larger. Shorter than the shortest known timer for it (open-iscsi: 15 s for ABORT TASK), so that
/// they have an answer to act upon.
const MANAGEMENT_TIME: Duration = Duration::from_secs(10);

/// A task management function, here or elsewhere, that waits for the end of aborted commands.
struct AbortWaiter {
    tasks: Vec<TaskId>,
    /// Dropped with the waiter: that is the message.
    _done: oneshot::Sender<()>,
}

/// An aborted command that the device still has, or whose answer depends on the functions that abort it.
struct AbortedTask {
    task: TaskId,
    lun: Option<u16>,
    /// A function of another session aborted it as well: it will not be answered.
    by_another: bool,
    /// Functions of this session that abort it and have no response yet.
    functions: u32,
    /// The device has ended it, or never had it. The protocol core has it still, to answer it if all these functions
    /// are rejected.
    ended: bool,
}

/// Aborted commands of a connection that are neither answered nor forgotten, and who waits for their end.
#[derive(Default)]
pub(super) struct Aborts {
    tasks: Vec<AbortedTask>,
    waiters: Vec<AbortWaiter>,
}

impl Aborts {
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// A command that may be an aborted one has ended; `true`: its answer is withheld, as a function that aborts it is
    /// under way.
    // RFC 7143 [11.5.1-2]
    pub(super) fn withholds(&mut self, task: TaskId) -> bool {
        let Some(index) = self.tasks.iter().position(|aborted| aborted.task == task) else { return false };
        let aborted = &mut self.tasks[index];
        aborted.ended = aborted.functions > 0 && !aborted.by_another;
        let withheld = aborted.ended;
        if !withheld {
            self.tasks.swap_remove(index);
        }
        self.ended(task);
        withheld
    }

    /// A command that may be an aborted one has ended, and is answered no more.
    pub(super) fn ended(&mut self, task: TaskId) {
        self.waiters.retain_mut(|waiter| {
            waiter.tasks.retain(|waited_for| *waited_for != task);
            !waiter.tasks.is_empty()
        });
    }

    /// Keeps `done` until the devices have ended these commands; `false`: they have already.
    fn wait_for(&mut self, tasks: &[TaskId], done: oneshot::Sender<()>) -> bool {
        let goes_on = |aborted: &&AbortedTask| !aborted.ended && tasks.contains(&aborted.task);
        let tasks: Vec<_> = self.tasks.iter().filter(goes_on).map(|aborted| aborted.task).collect();
        let waits = !tasks.is_empty();
        if waits {
            self.waiters.push(AbortWaiter { tasks, _done: done });
        }
        waits
    }

    /// Those of a logical unit, or all.
    fn of(&self, lun: Option<u16>) -> Vec<TaskId> {
        let meant = self.tasks.iter().filter(|aborted| lun.is_none() || aborted.lun == lun);
        meant.map(|aborted| aborted.task).collect()
    }

    /// The core has given these commands up, which devices have, or which will never get there (`ended`).
    fn add(&mut self, tasks: &[TaskId], lun: Option<u16>, ended: bool) {
        for &task in tasks {
            // Aborted for the second time, it is in the list already.
            if self.tasks.iter().all(|earlier| earlier.task != task) {
                self.tasks.push(AbortedTask { task, lun, by_another: false, functions: 0, ended });
            }
        }
    }

    /// A function of this session begins.
    fn begin(&mut self, tasks: &[TaskId]) {
        for aborted in self.tasks.iter_mut().filter(|aborted| tasks.contains(&aborted.task)) {
            aborted.functions += 1;
        }
    }

    /// Another session aborts these.
    fn aborted_by_another(&mut self, tasks: &[TaskId], core: &mut TargetConnection) {
        let meant = self.tasks.iter_mut().filter(|aborted| tasks.contains(&aborted.task));
        meant.for_each(|aborted| aborted.by_another = true);
        self.forget_ended(tasks, core);
    }

    /// Drops the commands among these that have ended: they will not be answered.
    fn forget_ended(&mut self, tasks: &[TaskId], core: &mut TargetConnection) {
        self.tasks.retain(|aborted| {
            let forgotten = aborted.ended && tasks.contains(&aborted.task);
            if forgotten {
                core.set_answered(aborted.task, false);
                core.complete(aborted.task, cleared());
            }
            !forgotten
        });
    }

    /// A function of this session has a response. Complete, it has aborted these commands, and they are forgotten.
    /// Rejected, as a device has not ended some of them, the initiator takes all for commands that go on: those are
    /// answered when they end, and those that have ended now, unless another function is under way that aborts them.
    fn settle(&mut self, tasks: &[TaskId], complete: bool, core: &mut TargetConnection) {
        for aborted in self.tasks.iter_mut().filter(|aborted| tasks.contains(&aborted.task)) {
            aborted.functions -= 1;
        }
        if complete {
            return self.forget_ended(tasks, core);
        }
        self.tasks.retain(|aborted| {
            let answered = aborted.functions == 0 && !aborted.by_another && tasks.contains(&aborted.task);
            if answered {
                core.set_answered(aborted.task, true);
            }
            let ended = answered && aborted.ended;
            if ended {
                core.complete(aborted.task, cleared());
            }
            !ended
        });
    }
}

/// The commands that a function aborts have ended, or not in time.
pub(super) struct Managed {
    function: TaskManagementCode,
    in_time: bool,
    /// Commands of this connection that it aborts.
    tasks: Vec<TaskId>,
    /// Of ABORT TASK, where the task is not one of this connection: whether it was one of another connection's.
    found: Option<Arc<AtomicBool>>,
    /// The session's other connections, which hear of the response.
    siblings: Vec<oneshot::Sender<bool>>,
}

/// The tasks of a session, for the logical units that another session preempts it from.
#[derive(Debug)]
pub(super) struct SessionTasks {
    pub(super) registry: Arc<Registry>,
    pub(super) tsih: u16,
}

impl NexusTasks for SessionTasks {
    fn abort(&self, lun: u16) -> Io<()> {
        let mut ends = Vec::new();
        for connection in self.registry.connections_of(self.tsih) {
            let (done, end) = oneshot::channel();
            connection.send(Order::AbortTasks { scope: AbortScope::Cleared { lun }, done });
            ends.push(end);
        }
        Io::pending(async move {
            for end in ends {
                // Dropped when they have ended, and when the connection has.
                let _ = end.await;
            }
        })
    }
}

impl Connection {
    /// Begins what the initiator asks for.
    pub(super) fn manage(
        &mut self,
        request: TaskManagementId,
        function: TaskManagementCode,
        lun: [u8; 8],
        referenced_task_tag: u32,
    ) {
        let nexus = self.session.as_ref().and_then(|session| session.nexus.clone());
        let (Some(nexus), Some(scsi)) = (nexus, scsi_function(function)) else {
            return self.core.respond_task_management(request, TaskManagementResult::NOT_SUPPORTED);
        };
        if let Some(counters) = self.counters() {
            counters.manages(scsi);
        }
        // RFC 7143 [4.2.3.3-8, 11.5.1-9]
        let outcome = nexus.task_management(lun, scsi);
        match outcome.response {
            TaskManagementServiceResponse::FunctionComplete => {}
            TaskManagementServiceResponse::IncorrectLun => {
                return self.core.respond_task_management(request, TaskManagementResult::LUN_DOES_NOT_EXIST);
            }
            TaskManagementServiceResponse::NotSupported => {
                return self.core.respond_task_management(request, TaskManagementResult::NOT_SUPPORTED);
            }
            // RFC 7143 §11.5.1: access controls apply to resets of the target.
            TaskManagementServiceResponse::NotAuthorized => {
                let result = TaskManagementResult::AUTHORIZATION_FAILED;
                return self.core.respond_task_management(request, result);
            }
        }
        let earlier = Before::Request(request);
        let mut found = None;
        let (tasks, elsewhere) = match outcome.abort {
            Scope::Nothing => (Vec::new(), None),
            Scope::Task => match self.abort_one(referenced_task_tag) {
                // RFC 7143 [7.11-3]
                Aborted::NotFound => {
                    found = Some(Arc::new(AtomicBool::new(false)));
                    (Vec::new(), None)
                }
                Aborted::Dropped => (Vec::new(), None),
                Aborted::Executing(task) => (vec![task], None),
            },
            Scope::NexusUnit { lun } => (self.abort_unit(lun, earlier), None),
            Scope::Unit { lun, .. } if function == TaskManagementCode::CLEAR_TASK_SET => {
                (self.abort_unit(lun, earlier), Some(AbortScope::Cleared { lun }))
            }
            Scope::Unit { lun, .. } => (self.abort_unit(lun, earlier), Some(AbortScope::Reset { lun })),
            Scope::Target => (self.abort_all(earlier), Some(AbortScope::All)),
        };
        self.aborts.begin(&tasks);
        let (mut ends, mut siblings) = (Vec::new(), Vec::new());
        let (done, end) = oneshot::channel();
        if self.aborts.wait_for(&tasks, done) {
            ends.push(end);
        }
        for sibling in self.ticket.siblings() {
            let (done, end) = oneshot::channel();
            let (response, complete) = oneshot::channel();
            let (function, before) = (SiblingFunction { done, complete }, request.before());
            sibling.send(match (&outcome.abort, &found) {
                (Scope::Nothing, _) | (Scope::Task, None) => continue,
                (Scope::Task, Some(found)) => {
                    Order::AbortTask { referenced_task_tag, found: Arc::clone(found), function }
                }
                (Scope::NexusUnit { lun } | Scope::Unit { lun, .. }, _) => {
                    Order::AbortEarlier { lun: Some(*lun), before, function }
                }
                (Scope::Target, _) => Order::AbortEarlier { lun: None, before, function },
            });
            ends.push(end);
            siblings.push(response);
        }
        if let Some(scope) = elsewhere {
            for connection in self.ticket.others_with(nexus.target().name()) {
                let (done, end) = oneshot::channel();
                connection.send(Order::AbortTasks { scope, done });
                ends.push(end);
            }
        }
        if ends.is_empty() {
            return self.managed(request, Managed { function, in_time: true, tasks, found, siblings });
        }
        let all = async move {
            for end in ends {
                // The sender is never used, only dropped.
                let _ = end.await;
            }
        };
        self.executing.push(Work::Elsewhere(Box::pin(async move {
            let in_time = tokio::time::timeout(MANAGEMENT_TIME, all).await.is_ok();
            Done::Managed(request, Managed { function, in_time, tasks, found, siblings })
        })));
    }

    /// Answers, now that no aborted command runs any longer.
    pub(super) fn managed(&mut self, request: TaskManagementId, managed: Managed) {
        self.aborts.settle(&managed.tasks, managed.in_time, &mut self.core);
        for sibling in managed.siblings {
            // One that has ended needs no word.
            let _ = sibling.send(managed.in_time);
        }
        let missing = managed.found.is_some_and(|found| !found.load(Ordering::SeqCst));
        let result = match managed.in_time {
            false => TaskManagementResult::REJECTED,
            true if missing && !self.core.plug(request) => TaskManagementResult::TASK_DOES_NOT_EXIST,
            true => TaskManagementResult::COMPLETE,
        };
        self.core.respond_task_management(request, result);
        let target = self.session.as_ref().and_then(|session| session.target.as_deref());
        // RFC 7143 [11.5.1-11, 11.6.1-1]
        // RFC 7143 §11.5.1: a cold reset ends all sessions with the target, this one after the response.
        if managed.function == TaskManagementCode::TARGET_COLD_RESET
            && let Some(target) = target
        {
            for connection in self.ticket.others_with(target) {
                connection.send(Order::Close(Cause::ColdReset));
            }
            self.end(End::Ordered(Cause::ColdReset));
        }
    }

    /// Another connection of the session was asked to abort a task that may be ours.
    pub(super) fn abort_for_sibling(
        &mut self,
        referenced_task_tag: u32,
        found: &AtomicBool,
        function: SiblingFunction,
    ) {
        match self.abort_one(referenced_task_tag) {
            Aborted::NotFound => return,
            Aborted::Dropped => {}
            Aborted::Executing(task) => self.take_part(vec![task], function),
        }
        found.store(true, Ordering::SeqCst);
    }

    /// Another connection of the session was asked to abort tasks of which some may be ours.
    pub(super) fn abort_earlier_for_sibling(
        &mut self,
        lun: Option<u16>,
        before: Before,
        function: SiblingFunction,
    ) {
        let tasks = match lun {
            Some(lun) => self.abort_unit(lun, before),
            None => self.abort_all(before),
        };
        self.take_part(tasks, function);
    }

    /// A function of another connection of the session aborts these tasks here: they are answered by its response.
    fn take_part(&mut self, tasks: Vec<TaskId>, SiblingFunction { done, complete }: SiblingFunction) {
        if tasks.is_empty() {
            return;
        }
        self.aborts.begin(&tasks);
        self.aborts.wait_for(&tasks, done);
        self.executing.push(Work::Elsewhere(Box::pin(async move {
            // Without a response the initiator may count on answers, as after a rejection.
            let complete = complete.await.unwrap_or(false);
            Done::SiblingManaged { tasks, complete }
        })));
    }

    /// A function of another connection of the session, which aborted these tasks here, has its response.
    pub(super) fn managed_for_sibling(&mut self, tasks: &[TaskId], complete: bool) {
        self.aborts.settle(tasks, complete, &mut self.core);
    }

    /// Another session manages tasks that are ours as well.
    // RFC 7143 [4.2.3.3-7, 4.2.3.3-10]
    pub(super) fn abort_for_another(&mut self, scope: AbortScope, done: oneshot::Sender<()>) {
        let before = self.core.commands_in_flight();
        let tasks = match scope {
            AbortScope::Reset { lun } | AbortScope::Cleared { lun } => {
                self.abort_unit(lun, Before::Everything)
            }
            AbortScope::All => self.abort_all(Before::Everything),
        };
        if let AbortScope::Cleared { lun } = scope
            && self.core.commands_in_flight() < before
            && let Some(nexus) = self.session.as_ref().and_then(|session| session.nexus.as_ref())
        {
            nexus.commands_cleared(lun);
        }
        self.aborts.aborted_by_another(&tasks, &mut self.core);
        self.aborts.wait_for(&tasks, done);
    }

    fn abort_one(&mut self, referenced_task_tag: u32) -> Aborted {
        let lun = self.core.lun_of(referenced_task_tag).and_then(unit_number);
        let aborted = self.core.abort_task(referenced_task_tag);
        let executing = if let Aborted::Executing(task) = aborted { vec![task] } else { Vec::new() };
        self.gave_up(&AbortedTasks { executing, dropped: Vec::new() }, lun);
        aborted
    }

    /// Drops the commands of a logical unit, by whichever of its addresses they came. Returns all its aborted commands
    /// that are neither answered nor forgotten: those of earlier functions are among them, as they, too, must end
    /// before this one is complete; those of other units are not, whose devices may hang.
    fn abort_unit(&mut self, lun: u16, before: Before) -> Vec<TaskId> {
        let [high, low] = lun.to_be_bytes();
        // SAM-5 §4.7.7: up to 255, flat space addressing names the same unit.
        let flat = [0x40 | high, low, 0, 0, 0, 0, 0, 0];
        let usual = Lun::new(lun).0;
        // Beyond that they are one, and there is nothing left the second time.
        for address in [usual, flat] {
            let aborted = self.core.abort_tasks(Some(address), before);
            self.gave_up(&aborted, Some(lun));
        }
        self.await_again(Some(lun))
    }

    fn abort_all(&mut self, before: Before) -> Vec<TaskId> {
        // One by one, as each has to be known by its unit.
        let luns: Vec<_> = self.core.luns_in_flight();
        for lun in luns {
            let aborted = self.core.abort_tasks(Some(lun), before);
            self.gave_up(&aborted, unit_number(lun));
        }
        self.await_again(None)
    }

    /// The aborted commands that are neither answered nor forgotten. A function that was rejected may have let them
    /// have an answer, which this one takes from them.
    fn await_again(&mut self, lun: Option<u16>) -> Vec<TaskId> {
        let tasks = self.aborts.of(lun);
        tasks.iter().for_each(|task| self.core.set_answered(*task, false));
        tasks
    }

    /// The core has given commands up.
    fn gave_up(&mut self, AbortedTasks { executing, dropped }: &AbortedTasks, lun: Option<u16>) {
        // Of those that waited for a limit the device knows nothing.
        let waited = self.forget_waiting(executing);
        self.aborts.add(&waited, lun, true);
        self.aborts.add(executing, lun, false);
        self.aborts.add(dropped, lun, true);
        if !executing.is_empty() {
            self.executing.give_up(|task| executing.contains(&task));
        }
    }
}

/// The answer to a command whose own was dropped before its abort was rejected: it may have taken effect, and may be
/// sent again.
fn cleared() -> Completion {
    let code = AdditionalSense::COMMANDS_CLEARED_BY_DEVICE_SERVER;
    completion(Response::from(Sense::new(SenseKey::ABORTED_COMMAND, code)))
}

fn scsi_function(function: TaskManagementCode) -> Option<TaskManagementFunction> {
    Some(match function {
        TaskManagementCode::ABORT_TASK => TaskManagementFunction::AbortTask,
        TaskManagementCode::ABORT_TASK_SET => TaskManagementFunction::AbortTaskSet,
        TaskManagementCode::CLEAR_ACA => TaskManagementFunction::ClearAca,
        TaskManagementCode::CLEAR_TASK_SET => TaskManagementFunction::ClearTaskSet,
        TaskManagementCode::LOGICAL_UNIT_RESET => TaskManagementFunction::LogicalUnitReset,
        TaskManagementCode::TARGET_WARM_RESET => TaskManagementFunction::TargetWarmReset,
        TaskManagementCode::TARGET_COLD_RESET => TaskManagementFunction::TargetColdReset,
        _ => return None,
    })
}
