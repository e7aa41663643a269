//! PDUs of the initiator, one by one, and after PDUs of a test's own making.

use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::wire::*;

pub(crate) const IMMEDIATE: u8 = 0x40;

/// Sends one PDU of the test's own making to the initiator and gives the PDUs that it sends then.
pub(crate) fn requests_after<T: Pdu>(pair: &mut Pair, pdu: &T) -> Vec<Vec<u8>> {
    requests_after_with(pair, pdu, &[])
}

pub(crate) fn requests_after_with<T: Pdu>(pair: &mut Pair, pdu: &T, data: &[u8]) -> Vec<Vec<u8>> {
    let mut bytes = to_bytes(pdu).to_vec();
    bytes[6..8].copy_from_slice(&(data.len() as u16).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    requests_after_bytes(pair, &bytes)
}

/// Gives the initiator bytes and gives the PDUs that it sends then.
pub(crate) fn requests_after_bytes(pair: &mut Pair, mut bytes: &[u8]) -> Vec<Vec<u8>> {
    while !bytes.is_empty() {
        let mut moved = 0;
        for mut slice in pair.initiator.receive_space() {
            let n = slice.len().min(bytes.len());
            slice[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            moved += n;
        }
        pair.initiator.received(moved);
        pair.initiator_events();
    }
    requests(pair)
}

/// The PDUs that the initiator wants to send, which must be without digests.
pub(crate) fn requests(pair: &mut Pair) -> Vec<Vec<u8>> {
    let mut slices = Vec::new();
    pair.initiator.gather(&mut slices, 1000);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    pair.initiator.sent(bytes.len());
    let mut requests = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let ahs = usize::from(rest[4]) * 4;
        let len = usize::from(rest[5]) << 16 | usize::from(rest[6]) << 8 | usize::from(rest[7]);
        let (pdu, after) = rest.split_at(48 + ahs + len.next_multiple_of(4));
        requests.push(pdu.to_vec());
        rest = after;
    }
    requests
}

pub(crate) fn number(pdu: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(pdu[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn opcode(pdu: &[u8]) -> Opcode {
    Opcode(pdu[0] & 0x3f)
}

pub(crate) fn both(parameters: Parameters) -> Setup {
    Setup { initiator: parameters.clone(), target: parameters, ..Setup::default() }
}
