//! Turns of connections on a core: how much one does before the others, and which one is next.

use std::future::poll_fn;
use std::net::IpAddr;

use lunway_block::{Owner, TimeSlices};

use crate::principal;

/// Bytes that commands move on the core, and bytes that go through the socket either way, before the other connections
/// of the core have their turn: each a tenth of a millisecond of copying, so that the connections of a core wait for
/// each other no longer than a network takes.
const BYTES: usize = 1 << 20;
/// Least cost of a command: 256 short ones, at 1 µs to 2 µs each, are as long as [`BYTES`].
const COMMAND_BYTES: usize = 4 << 10;
/// Cost of the PDUs of any kind that a connection takes in a turn: to reject one, or to answer a ping, takes as long as
/// a short command, and many thousands come in one read. A text costs by its length.
pub(super) const PDU_COST: usize = BYTES / COMMAND_BYTES;

/// Work that a connection has done in its turn. A turn goes on over rounds, as a connection that finds work ready does
/// not wait. PDUs are counted by the protocol core, which holds back what costs more than [`PDU_COST`].
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Bytes that commands have moved.
    device_bytes: usize,
    /// Bytes that have gone through the socket.
    socket_bytes: usize,
}

impl Turn {
    /// A command, or its answer, moves so many bytes.
    pub(super) fn command(&mut self, bytes: usize) {
        self.device_bytes += bytes.max(COMMAND_BYTES);
    }

    /// The socket has taken or given so many bytes.
    pub(super) fn socket(&mut self, bytes: usize) {
        self.socket_bytes += bytes;
    }

    /// Bytes that the socket may take yet.
    pub(super) fn socket_room(&self) -> usize {
        BYTES.saturating_sub(self.socket_bytes)
    }

    /// Returns `true` if it is the turn of the core's other connections.
    pub(super) fn is_over(&self) -> bool {
        self.device_bytes >= BYTES || self.socket_room() == 0
    }
}

/// Owner of the turns of a connection that belongs to no session: a login, and discovery. Each source is one principal.
pub(super) fn of_source(source: IpAddr) -> Owner {
    let source = principal::memory_owner("", source);
    Owner::in_groups([&source, &source])
}

/// Waits for the next turn, after one that is over.
///
/// First go the tasks that are ready, such as connections with a command or a ping. Then one connection whose turn was
/// over goes on at a time, between two looks at the sockets of the core: a turn is a slice of its time as those of long
/// commands are, see [`TimeSlices`], and owners take turns. So a host that floods 60 sessions delays another by one
/// turn, not by 60. It costs a queue's push and pop and one more switch of tasks for each turn, of which there are
/// 10,000 per second at most, and nothing for a command.
pub(super) async fn next(owner: &Owner) {
    tokio::task::yield_now().await;
    let mut slices = TimeSlices::new();
    poll_fn(|cx| {
        let _entered = owner.enter();
        slices.poll(cx)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_a_mebibyte_at_the_devices_or_a_mebibyte_at_the_socket() {
        let mut turn = Turn::default();
        turn.command((1 << 20) - 1);
        turn.socket((1 << 20) - 1);
        assert!(!turn.is_over(), "each counts on its own");
        let mut device = turn;
        device.command(1);
        assert!(device.is_over());
        let mut socket = Turn::default();
        socket.socket((1 << 20) - 1);
        assert_eq!((socket.is_over(), socket.socket_room()), (false, 1));
        socket.socket(9);
        assert_eq!((socket.is_over(), socket.socket_room()), (true, 0));
    }

    #[test]
    fn short_commands_count_4_kib_and_as_many_pdus_as_short_commands_are_a_turn() {
        let mut turn = Turn::default();
        let commands = (1..).find(|_| {
            turn.command(0);
            turn.is_over()
        });
        assert_eq!((commands, PDU_COST), (Some(256), 256));
    }
}
