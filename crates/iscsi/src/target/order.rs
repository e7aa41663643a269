//! The order of a session's tasks over all of its connections (SAM-5 §8.6.3; RFC 7143 §4.2.2.1).

use std::collections::VecDeque;

use crate::pdu::{ScsiCommand, TaskAttribute};

/// The tasks of all connections of a session that the device server does not have yet, by their arrival in the session.
///
/// A task *enters* in the step that takes its CmdSN, and *leaves* when the device server has begun it or it has ended
/// early. In between, an ORDERED one waits for all older ones of its logical unit, and all younger ones for it. What a
/// connection's own tasks mean for each other its own table says.
#[derive(Debug, Default)]
pub(super) struct TaskOrder {
    tasks: VecDeque<PendingTask>,
    last: u64,
    /// ORDERED ones among `tasks`: while there is none, no task waits.
    barriers: usize,
    /// Connections with tasks that wait for those of others.
    blocked: Vec<u32>,
}

#[derive(Debug)]
struct PendingTask {
    number: u64,
    member: u32,
    lun: [u8; 8],
    attribute: TaskAttribute,
}

impl TaskOrder {
    pub(super) fn enter(&mut self, member: u32, command: &ScsiCommand) -> u64 {
        self.last += 1;
        let attribute = command.attribute();
        self.barriers += usize::from(attribute == TaskAttribute::ORDERED);
        self.tasks.push_back(PendingTask {
            number: self.last,
            member,
            lun: command.lun.to_bytes(),
            attribute,
        });
        self.last
    }

    /// Returns `true` if a task has to wait for one of another connection; then notes its own connection, to be woken.
    pub(super) fn has_to_wait(&mut self, number: u64) -> bool {
        let own = self.tasks.partition_point(|task| task.number < number);
        let Some(task) = self.tasks.get(own).filter(|task| task.number == number && self.barriers > 0) else {
            return false;
        };
        let waits = self.tasks.range(..own).any(|older| task.comes_after(older));
        let member = task.member;
        if waits && !self.blocked.contains(&member) {
            self.blocked.push(member);
        }
        waits
    }

    /// A task is with the device server, or gone. Returns the connections that may go on now.
    pub(super) fn leave(&mut self, number: u64) -> Vec<u32> {
        let at = self.tasks.partition_point(|task| task.number < number);
        if self.tasks.get(at).is_some_and(|task| task.number == number) {
            let task = self.tasks.remove(at);
            self.barriers -= usize::from(task.is_some_and(|task| task.is_barrier()));
        }
        std::mem::take(&mut self.blocked)
    }

    /// None of a connection's tasks will be begun. Returns the connections that may go on now.
    pub(super) fn leave_all(&mut self, member: u32) -> Vec<u32> {
        self.tasks.retain(|task| task.member != member);
        self.barriers = self.tasks.iter().filter(|task| task.is_barrier()).count();
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|other| *other != member);
        blocked
    }
}

impl PendingTask {
    fn is_barrier(&self) -> bool {
        self.attribute == TaskAttribute::ORDERED
    }

    fn comes_after(&self, older: &Self) -> bool {
        older.member != self.member
            && (self.is_barrier() || older.is_barrier())
            && self.attribute != TaskAttribute::HEAD_OF_QUEUE
            && is_same_unit(self.lun, older.lun)
    }
}

/// Returns `true` if two LUNs address the same logical unit, by whichever addressing method (SAM-5 §4.7.7). A false
/// match only makes one task wait for the other in vain.
pub(super) fn is_same_unit(one: [u8; 8], other: [u8; 8]) -> bool {
    const METHOD: u8 = 0xc0;
    let ([one, ones @ ..], [two, twos @ ..]) = (one, other);
    one & !METHOD == two & !METHOD && ones == twos
}
