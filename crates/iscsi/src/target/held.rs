//! Requests that arrived before their predecessors, until their turn comes (RFC 7143 §4.2.2.1).

use lunway_block::Buf;

use super::{TargetConnection, TargetEvent, control};
use crate::pdu::{self, BasicHeader, Opcode, RejectReason, ScsiCommand};
use crate::receive::{Data, Head};
use crate::window::Order;

/// Task management functions at a time that wait for requests which were sent before them. As many as may be unanswered
/// ([`MANAGEMENT_MAX`](control::MANAGEMENT_MAX)): more would be rejected when their turn comes. Numbered requests need
/// no limit of their own: the window has one place for each.
const HELD_IMMEDIATE_MAX: usize = control::MANAGEMENT_MAX;

/// A PDU that waits until all numbers before `cmd_sn` have come.
pub(super) struct Held {
    cmd_sn: u32,
    /// Has no number of its own: a task management function that is about all that was sent before it.
    immediate: bool,
    head: Head,
    pub(super) data: Option<Data>,
    /// Memory of its data that is counted, bytes.
    pub(super) charged: usize,
    /// Its data was dropped, as there was no memory for it.
    pub(super) refused: bool,
}

impl Held {
    pub(super) fn new(cmd_sn: u32, immediate: bool, head: Head, data: Option<Data>) -> Self {
        Self { cmd_sn, immediate, head, data, charged: 0, refused: false }
    }
}

impl TargetConnection {
    /// Keeps a request until its turn. What the window offers is always kept: a number is held once and its window has
    /// `depth` of them, with FirstBurstLength or one data segment each, which is what `session_memory_mib` counts for
    /// the window. Its data is kept if the principal's memory has room for it.
    pub(super) fn hold(&mut self, mut held: Held) {
        if held.immediate {
            let waiting = self.held.iter().filter(|other| other.immediate).count();
            if waiting >= HELD_IMMEDIATE_MAX {
                return self.reject(&held.head, RejectReason::IMMEDIATE_COMMAND_REJECT);
            }
        }
        // Before the numbered request with the number that an immediate one carries: that is sent after it.
        let before = |other: &Held| {
            let distance = held.cmd_sn.wrapping_sub(other.cmd_sn).cast_signed();
            distance > 0 || distance == 0 && (other.immediate || !held.immediate)
        };
        let at = self.held.partition_point(before);
        if !held.immediate
            && at.checked_sub(1).is_some_and(|last| {
                let last = &self.held[last];
                last.cmd_sn == held.cmd_sn && !last.immediate
            })
        {
            // It has come already.
            return;
        }
        held.data = held.data.take().and_then(|data| self.data_of_held(&held.head, data));
        self.charge_held(&mut held);
        self.held.insert(at, held);
    }

    /// Goes on with what another connection of the session held up: requests whose predecessors it had to bring, and
    /// tasks that come after one of its own.
    pub fn resume(&mut self) {
        self.release();
        self.release_waiting();
        self.wake_others();
    }

    /// The connection ends: no command that the driver has not begun will be. Returns the session's connections that go
    /// on thereby, by CID, and those that were still to be woken.
    pub fn abandon(&mut self) -> Vec<u16> {
        self.numbering.abandon_order();
        self.wake_others();
        let wake = |event: TargetEvent| if let TargetEvent::Wake(cid) = event { Some(cid) } else { None };
        self.events.drain(..).filter_map(wake).collect()
    }

    /// Delivers held requests whose turn it is, and drops those that came too late.
    pub(super) fn release(&mut self) {
        while self.held.front().is_some_and(|first| self.numbering.has_reached(first.cmd_sn))
            && let Some(held) = self.held.pop_front()
        {
            let is_command = BasicHeader::of(&held.head.bhs).opcode.opcode() == Opcode::SCSI_COMMAND;
            let command = is_command.then(|| pdu::view::<ScsiCommand>(&held.head.bhs));
            self.free_held(held.charged);
            if held.immediate || self.numbering.take(held.cmd_sn, command) == Order::Next {
                self.deliver(held.head, held.data, held.refused);
            }
        }
    }

    pub(super) fn wake_others(&mut self) {
        self.events.extend(self.numbering.take_wakes().into_iter().map(TargetEvent::Wake));
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
}
