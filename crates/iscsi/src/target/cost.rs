//! Cost of a PDU: what part of a connection's turn it takes to receive it and to answer it.

use crate::pdu::{BasicHeader, Opcode};
use crate::receive::Head;

/// Bytes of a text that cost as much as a PDU without one. Where 256 pings took 0.2 ms, 128 texts of 8 KiB of the
/// shortest pair (`a=b`, each of which is answered) took 5 ms: 45 pings for a text, 180 bytes each. A third of that, so
/// that a turn of texts is no longer than one of pings whatever the pairs are.
pub(super) const TEXT_BYTES_PER_COST: usize = 64;

/// Returns the cost of a PDU, see [`take_up_to`](super::TargetConnection::take_up_to). Data that is only moved, that of
/// commands and pings, costs nothing here: the driver counts bytes at its socket.
pub(super) fn of(head: &Head) -> usize {
    match BasicHeader::of(&head.bhs).opcode.opcode() {
        Opcode::TEXT_REQUEST | Opcode::LOGIN_REQUEST => 1 + head.data_len / TEXT_BYTES_PER_COST,
        _ => 1,
    }
}
