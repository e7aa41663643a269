//! Memory of a connection, against the [budget](lunway_block::MemoryBudget) of its principal.

use std::task::{Context, Poll};

use lunway_block::{Buf, MemoryLease};

use super::answer::REFUSED;
use super::task::TaskId;
use super::{Held, TargetConnection};

/// Of the command window, one part in so many is offered while memory is scarce for the principal: what is in flight
/// already stays, and is not followed by more. Sixteen commands of 256 KiB are 4 MiB.
const WINDOW_PART: u16 = 8;
/// Commands that are offered at least, where the window has them.
const WINDOW_MIN: u16 = 4;

/// Memory that a connection occupies, and its lease of the budget.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    /// `None`: before login, when nothing that is large may come.
    lease: Option<MemoryLease>,
    /// Bytes of data that arrives or waits, and of commands with the driver; answers are counted by those who keep
    /// them.
    charged: usize,
    /// The part of it that is for the data segment which is arriving.
    arriving: usize,
}

impl TargetConnection {
    /// Counts what the connection occupies against this lease from now on. To be called when the login has succeeded.
    pub fn set_memory(&mut self, lease: MemoryLease) {
        self.memory.lease = Some(lease);
    }

    /// Takes memory for a command that the driver begins, besides its data-out: `false` if it has to wait for it, see
    /// [`poll_memory`](Self::poll_memory). If it is `alone` with the driver, it waits for no more than one command of
    /// the principal that got memory beyond its budget.
    pub fn take_memory(&mut self, bytes: usize, alone: bool) -> bool {
        self.charge_or_wait(bytes, alone)
    }

    /// Gives back what [`take_memory`](Self::take_memory) has taken.
    pub fn give_memory(&mut self, bytes: usize) {
        self.memory.charged -= bytes;
    }

    /// Gives back to the budget what is not needed any more. To be called once in a while; it costs a comparison where
    /// nothing is to be given back.
    pub fn settle_memory(&mut self) {
        let occupied = self.occupied();
        self.memory.lease.iter_mut().for_each(|lease| lease.settle(occupied));
    }

    /// Returns `true` if a command waits for memory of the principal: call [`poll_memory`](Self::poll_memory).
    pub fn lacks_memory(&self) -> bool {
        self.memory.lease.as_ref().is_some_and(MemoryLease::is_waited_for)
    }

    /// Ready when there may be memory for what waits for it: commands ask for their data, and the driver may try again
    /// to [take](Self::take_memory) some.
    pub fn poll_memory(&mut self, cx: &Context<'_>) -> Poll<()> {
        let occupied = self.occupied();
        let ready = self.memory.lease.as_mut().map_or(Poll::Ready(()), |lease| lease.poll_room(occupied, cx));
        if ready.is_ready() {
            self.grant_memory();
        }
        ready
    }

    /// Bytes that the connection occupies.
    fn occupied(&self) -> usize {
        let retained = self.retention.as_ref().map_or(0, |retention| retention.bytes());
        self.memory.charged + self.transmitter.memory() + retained
    }

    /// Takes memory for what has arrived in its turn, if there is some.
    fn charge(&mut self, bytes: usize) -> bool {
        let need = self.occupied() + bytes;
        let covered = self.memory.lease.as_mut().is_none_or(|lease| lease.cover(need));
        self.memory.charged += if covered { bytes } else { 0 };
        covered
    }

    fn charge_or_wait(&mut self, bytes: usize, alone: bool) -> bool {
        let need = self.occupied() + bytes;
        let covered = bytes == 0
            || self.memory.lease.as_mut().is_none_or(|lease| lease.cover_or_wait(need, bytes, alone));
        self.memory.charged += if covered { bytes } else { 0 };
        covered
    }

    /// Counts the buffer for a data segment that is to arrive, if it is of its own. One at a time, and no longer than
    /// a data segment may be: it needs no leave.
    pub(super) fn expect_data(&mut self, buffer: usize) {
        self.memory.arriving = Buf::memory_of(buffer);
        self.memory.charged += self.memory.arriving;
    }

    /// The data segment has arrived, or never will.
    pub(super) fn data_came(&mut self) {
        self.memory.charged -= std::mem::take(&mut self.memory.arriving);
    }

    /// Returns `true` if a buffer may be made that is longer than what arrives.
    pub(super) fn has_memory_for(&mut self, buffer: usize) -> bool {
        let need = self.occupied() + Buf::memory_of(buffer);
        self.memory.lease.as_mut().is_none_or(|lease| lease.cover(need))
    }

    /// Takes memory for the data of a request that came before its predecessors. If there is none, the data is dropped,
    /// and the request fails when its turn comes: it must be known until then, as the initiator does not send it again.
    /// It never takes the memory that the predecessors need.
    pub(super) fn charge_held(&mut self, held: &mut Held) {
        let bytes = held.data.as_ref().map_or(0, |data| Buf::memory_of(data.buf.len()));
        let need = self.occupied() + bytes;
        let covered = bytes == 0 || self.memory.lease.as_mut().is_none_or(|lease| lease.cover_ahead(need));
        if covered {
            held.charged = bytes;
            self.memory.charged += bytes;
        } else {
            (held.data, held.refused) = (None, true);
        }
    }

    /// A held request goes on, or is dropped.
    pub(super) fn free_held(&mut self, charged: usize) {
        self.memory.charged -= charged;
    }

    /// Takes memory for the data of a task that has arrived. If there is none, the task is answered: BUSY or TASK SET
    /// FULL (SAM-5 §5.3.1), and the initiator sends it again later.
    pub(super) fn charge_task(&mut self, id: TaskId, buffer: usize) -> bool {
        let bytes = Buf::memory_of(buffer);
        if bytes > 0 && !self.charge(bytes) {
            self.refuse(id);
            return false;
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.charged = bytes;
        }
        true
    }

    /// Takes memory for all of a task's data, more than it has.
    pub(super) fn charge_whole(&mut self, charged: usize, whole: usize, alone: bool) -> bool {
        let more = Buf::memory_of(whole).saturating_sub(charged);
        self.charge_or_wait(more, alone)
    }

    /// The data of a task is gone.
    pub(super) fn free_task(&mut self, charged: usize) {
        self.memory.charged -= charged;
    }

    /// Answers a task for which there is no memory.
    pub(super) fn refuse(&mut self, id: TaskId) {
        self.memory.lease.iter().for_each(MemoryLease::note_refusal);
        let Some(lun) = self.tasks.get(id).map(|task| task.lun) else { return };
        let others = self.tasks.iter().filter(|task| task.lun == lun).count() > 1;
        self.answer_refused(id, REFUSED[usize::from(others)]);
    }

    /// Commands that the session is offered now.
    pub(super) fn window_depth(&self) -> u16 {
        let full = self.config.command_window;
        match self.memory.lease.as_ref().is_some_and(MemoryLease::is_pressed) {
            true => (full / WINDOW_PART).max(WINDOW_MIN).min(full),
            false => full,
        }
    }

    /// Forgets answers that are kept for retransmission until the others have a place in the budget.
    pub(super) fn fit_retention(&mut self) {
        loop {
            let need = self.occupied();
            let covered = self.memory.lease.as_mut().is_none_or(|lease| lease.cover(need));
            if covered || !self.retention.as_mut().is_some_and(|retention| retention.forget()) {
                return;
            }
        }
    }

    /// Returns `true` if the initiator is to say at once which answers it has.
    pub(super) fn wants_acknowledgement(&self) -> bool {
        let is_pressed = self.memory.lease.as_ref().is_some_and(MemoryLease::is_pressed);
        self.retention.as_ref().is_some_and(|retention| is_pressed || retention.is_crowded())
    }
}
