//! TransportIDs: initiator ports as persistent reservations name them (SPC-4 7.6.4).

use crate::field::put;

/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 5;
/// FORMAT CODE 01b: a name with an ISID.
const WITH_ISID: u8 = 0x40;

/// The TransportID of an iSCSI initiator port: null-terminated and padded to a multiple of four.
pub(crate) fn build(initiator_port: &str) -> Vec<u8> {
    let format = if initiator_port.contains(",i,0x") { WITH_ISID } else { 0 };
    let mut bytes = vec![format | ISCSI, 0, 0, 0];
    bytes.extend(initiator_port.bytes().take(252));
    let len = (bytes.len() - 4) / 4 * 4 + 4;
    bytes.resize(4 + len.max(20), 0);
    let additional = (bytes.len() - 4) as u16;
    put(&mut bytes, 2, additional.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_terminated_padded_and_at_least_24_bytes() {
        let id = build("iqn.2026-01.example:host,i,0x00023d000001");
        assert_eq!(id[0], 0x45);
        assert_eq!(id.len() % 4, 0);
        assert_eq!(usize::from(u16::from_be_bytes([id[2], id[3]])), id.len() - 4);
        assert_eq!(id.last(), Some(&0));
        assert_eq!(build("a").len(), 24);
        assert_eq!(build("a")[0], 0x05);
    }
}
