//! The tasks of a connection, from the command's arrival to its response.

use std::collections::VecDeque;
use std::ops::Range;

use lunway_block::Buf;

use super::order::is_same_unit;
use crate::connection::Cdb;
use crate::pdu::{RESERVED_TAG, TaskAttribute};

/// Names a command within its connection. Never used twice, unlike task tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A sequence of Data-Out PDUs that an R2T asked for.
#[derive(Debug)]
pub(super) struct Solicited {
    pub(super) target_transfer_tag: u32,
    pub(super) r2t_sn: u32,
    pub(super) start: usize,
    /// Buffer offset of the next PDU (DataPDUInOrder is always Yes here).
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) next_data_sn: u32,
}

/// Write data on its way in.
#[derive(Debug, Default)]
pub(super) struct Collection {
    /// Holds `want` bytes once space has been reserved; until then just the immediate data.
    pub(super) buf: Buf,
    /// Immediate and unsolicited bytes received.
    pub(super) have: usize,
    /// Bytes to receive in all.
    pub(super) want: usize,
    /// Up to here unsolicited Data-Out may still come; 0 when none is expected any more.
    pub(super) unsolicited_end: usize,
    /// DataSN that the next unsolicited Data-Out must have.
    pub(super) next_data_sn: u32,
    /// R2Ts under way, oldest first, which is also the order they are answered in (DataSequenceInOrder is always Yes
    /// here).
    pub(super) solicited: VecDeque<Solicited>,
    /// Bytes that have been asked for or came unasked.
    pub(super) requested: usize,
    /// Ranges that arrived with a digest error and are to be requested again.
    pub(super) lost: VecDeque<Range<usize>>,
    /// Number of ranges requested again after a digest error.
    pub(super) recoveries: u32,
    /// The command fails, once all that was asked for has come.
    pub(super) doomed: bool,
}

impl Collection {
    /// Nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.solicited.is_empty() && self.unsolicited_end == 0
    }

    /// Everything is here.
    pub(super) fn is_complete(&self) -> bool {
        self.is_quiet() && self.requested == self.want && self.lost.is_empty()
    }
}

#[derive(Debug)]
pub(super) enum TaskState {
    /// Waits for write data; the driver does not know it yet.
    Collecting(Collection),
    /// All its data is here. It waits until older commands of its logical unit are with the driver.
    Waiting(Buf),
    /// Handed to the driver.
    Executing,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) initiator_task_tag: u32,
    pub(super) lun: [u8; 8],
    pub(super) cdb: Cdb,
    pub(super) attribute: TaskAttribute,
    pub(super) read: bool,
    pub(super) write: bool,
    /// Counted in the command window; immediate commands are not.
    pub(super) numbered: bool,
    /// Expected Data Transfer Length, bytes.
    pub(super) expected_length: u32,
    /// Of a bidirectional command, what it is expected to read, bytes.
    pub(super) bidirectional_read_length: Option<u32>,
    /// Its place in the command order of the session (RFC 7143 §4.2.2.1).
    pub(super) cmd_sn: u32,
    /// Counts up with each command and task management request of the connection.
    pub(super) arrival: u64,
    /// Number of the next R2T.
    pub(super) next_r2t_sn: u32,
    /// Bytes of the connection's Data-Out budget that it holds.
    pub(super) reserved: usize,
    /// Memory of its data that is counted against the principal's budget, bytes.
    pub(super) charged: usize,
    /// ORDERED, and not handed to the driver yet: younger commands of its logical unit are not either.
    pub(super) barrier: bool,
    /// Set aside by the driver: it has no place in the command window. Bytes of the connection's Data-Out budget for
    /// what may come unasked with another command in its place.
    pub(super) aside: Option<usize>,
    /// Announced to the driver, which has not asked for its data yet.
    pub(super) announced: bool,
    /// The driver has let it pass: see [`Command::passed`](super::Command).
    pub(super) passed: bool,
    /// In the order of a session of several connections, until the device server has the task.
    pub(super) place: Option<u64>,
    pub(super) state: TaskState,
}

impl Task {
    /// Not handed to the driver yet.
    pub(super) fn is_pending(&self) -> bool {
        !matches!(self.state, TaskState::Executing)
    }

    /// The driver must get this older task first: SAM-5 §8.6.3, where a task counts from its arrival and not from that
    /// of its data. HEAD OF QUEUE goes past all (8.6.2).
    pub(super) fn comes_after(&self, older: &Self) -> bool {
        (self.barrier || older.barrier)
            && self.attribute != TaskAttribute::HEAD_OF_QUEUE
            && older.arrival < self.arrival
            && older.is_pending()
            && is_same_unit(self.lun, older.lun)
    }
}

/// An aborted task that the driver has still, and the resources that it occupies.
#[derive(Debug)]
pub(super) struct AbortedTask {
    pub(super) id: TaskId,
    pub(super) task: Task,
    /// Answered when it ends: the function that was to abort it was rejected.
    pub(super) answered: bool,
    /// Bytes of the connection's Data-Out budget.
    pub(super) reserved: usize,
    /// Its place in the command window (`true`) or among the immediate commands, where it has it still.
    pub(super) place: Option<bool>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

/// All tasks of a connection, found by id or by Initiator Task Tag.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    slots: Vec<Slot>,
    /// Generation of a new slot: the last one that was used of those that are gone.
    generation: u32,
    free: Vec<u32>,
    /// Initiator Task Tag of each slot, packed: a search through a full window of 128 reads eight cache lines, less
    /// than hashing costs at the usual depth.
    tags: Vec<u32>,
}

impl TaskTable {
    pub(super) fn insert(&mut self, task: Task) -> TaskId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: self.generation, task: None });
            self.tags.push(RESERVED_TAG);
            (self.slots.len() - 1) as u32
        });
        self.tags[slot as usize] = task.initiator_task_tag;
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.task = Some(task);
        TaskId { slot, generation: entry.generation }
    }

    /// Gives back the memory of a table without tasks.
    pub(super) fn rest(&mut self) {
        if self.len() == 0 {
            let last = self.slots.iter().map(|slot| slot.generation).max();
            *self = Self { generation: last.unwrap_or(self.generation), ..Self::default() };
        }
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.task.as_mut().filter(|_| slot.generation == id.generation)
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.task.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let task = slot.task.take()?;
        self.tags[id.slot as usize] = RESERVED_TAG;
        self.free.push(id.slot);
        Some(task)
    }

    /// The task with this Initiator Task Tag.
    pub(super) fn find(&self, initiator_task_tag: u32) -> Option<TaskId> {
        let slot = self.tags.iter().position(|&tag| tag == initiator_task_tag)?;
        let entry = &self.slots[slot];
        entry.task.as_ref().map(|_| TaskId { slot: slot as u32, generation: entry.generation })
    }

    /// The task in a slot.
    pub(super) fn at(&self, slot: u32) -> Option<TaskId> {
        let entry = self.slots.get(slot as usize)?;
        entry.task.as_ref().map(|_| TaskId { slot, generation: entry.generation })
    }

    pub(super) fn ids(&self) -> Vec<TaskId> {
        (0..self.slots.len() as u32).filter_map(|slot| self.at(slot)).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tag: u32) -> Task {
        Task {
            initiator_task_tag: tag,
            lun: [0; 8],
            cdb: Cdb::new(&[]),
            attribute: TaskAttribute::SIMPLE,
            read: false,
            write: false,
            numbered: true,
            expected_length: 0,
            bidirectional_read_length: None,
            cmd_sn: 0,
            arrival: 0,
            next_r2t_sn: 0,
            reserved: 0,
            charged: 0,
            barrier: false,
            aside: None,
            announced: false,
            passed: false,
            place: None,
            state: TaskState::Executing,
        }
    }

    #[test]
    fn an_id_is_never_used_again_also_after_a_rest() {
        let mut table = TaskTable::default();
        let mut used = Vec::new();
        for _ in 0..3 {
            let ids: Vec<_> = (0..4).map(|tag| table.insert(task(tag))).collect();
            table.rest();
            assert_eq!(table.len(), 4, "not while there are tasks");
            ids.iter().for_each(|id| drop(table.remove(*id)));
            table.rest();
            assert_eq!((table.len(), table.slots.capacity()), (0, 0));
            used.extend(ids);
        }
        let last = table.insert(task(9));
        assert!(!used.contains(&last) && used.iter().all(|id| table.get(*id).is_none()));
    }
}
