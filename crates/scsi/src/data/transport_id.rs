//! TransportIDs: initiator ports as persistent reservations name them (SPC-4 §7.6.4).

use crate::data::field::{put, u8_at, u16_at};
use crate::data::sense::Sense;

/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 5;
/// FORMAT CODE: a name alone.
const NAME: u8 = 0b00;
/// FORMAT CODE: a name with an ISID.
const NAME_AND_ISID: u8 = 0b01;
/// Between the name and the ISID.
const SEPARATOR: &str = ",i,0x";
/// Longest iSCSI name (RFC 7143 §4.2.7.1).
const NAME_MAX: usize = 223;
/// Hexadecimal digits of an ISID.
const ISID_DIGITS: usize = 12;
/// Bytes before the name.
const HEADER: usize = 4;
/// Least ADDITIONAL LENGTH.
const ADDITIONAL_MIN: usize = 20;

/// Ports that a TransportID names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransportId {
    /// One initiator port, as [`PortPair::initiator_port`](crate::PortPair) has it: name, `,i,0x` and 12 digits of
    /// ISID.
    Port(String),
    /// Every port of the initiator with this name that is known.
    Initiator(String),
}

/// The TransportID of an iSCSI initiator port: null-terminated and padded to a multiple of four.
pub(crate) fn build(initiator_port: &str) -> Vec<u8> {
    let format = if initiator_port.contains(SEPARATOR) { NAME_AND_ISID } else { NAME };
    let mut bytes = vec![format << 6 | ISCSI, 0, 0, 0];
    bytes.extend(initiator_port.bytes().take(252));
    let len = (bytes.len() - HEADER) / 4 * 4 + 4;
    bytes.resize(HEADER + len.max(ADDITIONAL_MIN), 0);
    let additional = (bytes.len() - HEADER) as u16;
    put(&mut bytes, 2, additional.to_be_bytes());
    bytes
}

/// Reads the TransportID that `bytes` begin with, and its length. What is wrong points at a byte of the parameter list,
/// in which `bytes` begin at `at`.
pub(crate) fn parse(bytes: &[u8], at: usize) -> Result<(TransportId, usize), Sense> {
    let wrong = |offset: usize| Sense::invalid_parameter(u16::try_from(at + offset).unwrap_or(u16::MAX));
    let first = u8_at(bytes, 0).ok_or_else(|| wrong(0))?;
    if first & 0x0F != ISCSI {
        return Err(wrong(0));
    }
    let additional = usize::from(u16_at(bytes, 2).ok_or_else(|| wrong(2))?);
    let len = HEADER + additional;
    if additional < ADDITIONAL_MIN || !additional.is_multiple_of(4) || len > bytes.len() {
        return Err(wrong(2));
    }
    let field = &bytes[HEADER..len];
    let end = field.iter().position(|&byte| byte == 0).ok_or_else(|| wrong(HEADER))?;
    let text = std::str::from_utf8(&field[..end]).map_err(|_| wrong(HEADER))?.to_ascii_lowercase();
    let name = |name: &str| match name.len() {
        1..=NAME_MAX if !name.contains(SEPARATOR) => Ok(name.to_owned()),
        _ => Err(wrong(HEADER)),
    };
    let id = match first >> 6 {
        NAME => TransportId::Initiator(name(&text)?),
        NAME_AND_ISID => {
            let (initiator, isid) = text.rsplit_once(SEPARATOR).ok_or_else(|| wrong(HEADER))?;
            let digits = isid.len() <= ISID_DIGITS && isid.bytes().all(|byte| byte.is_ascii_hexdigit());
            if isid.is_empty() || !digits {
                return Err(wrong(HEADER + initiator.len() + SEPARATOR.len()));
            }
            TransportId::Port(format!("{}{SEPARATOR}{isid:0>ISID_DIGITS$}", name(initiator)?))
        }
        _ => return Err(wrong(0)),
    };
    Ok((id, len))
}

/// Reads a list of TransportIDs that fills `bytes`, which begin at `at` of the parameter list.
pub(crate) fn parse_list(bytes: &[u8], at: usize) -> Result<Vec<TransportId>, Sense> {
    let mut ids = Vec::new();
    let mut done = 0;
    while done < bytes.len() {
        let (id, len) = parse(&bytes[done..], at + done)?;
        ids.push(id);
        done += len;
    }
    Ok(ids)
}

/// Returns `true` if `initiator_port` is a port of the initiator `name`.
pub(crate) fn is_port_of(initiator_port: &str, name: &str) -> bool {
    initiator_port.strip_prefix(name).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORT: &str = "iqn.2026-01.example:host,i,0x00023d000001";

    fn field_of(sense: &Sense) -> [u8; 2] {
        let [_, high, low] = sense.key_specific.unwrap();
        [high, low]
    }

    #[test]
    fn names_are_terminated_padded_and_at_least_24_bytes() {
        let id = build(PORT);
        assert_eq!(id[0], 0x45);
        assert_eq!(id.len() % 4, 0);
        assert_eq!(usize::from(u16::from_be_bytes([id[2], id[3]])), id.len() - 4);
        assert_eq!(id.last(), Some(&0));
        assert_eq!(build("a").len(), 24);
        assert_eq!(build("a")[0], 0x05);
    }

    #[test]
    fn what_is_built_is_read_and_names_are_normal() {
        let list = [build(PORT), build("iqn.B")].concat();
        let port = TransportId::Port(PORT.to_owned());
        assert_eq!(parse_list(&list, 28), Ok(vec![port, TransportId::Initiator("iqn.b".to_owned())]));
    }

    #[test]
    fn a_short_isid_is_padded() {
        let (id, len) = parse(&build("iqn.c,i,0x1A"), 0).unwrap();
        assert_eq!(id, TransportId::Port("iqn.c,i,0x00000000001a".to_owned()));
        assert_eq!(len, 24);
        assert!(is_port_of("iqn.c,i,0x00000000001a", "iqn.c"));
        assert!(!is_port_of("iqn.cc,i,0x00000000001a", "iqn.c"));
    }

    #[test]
    fn each_mistake_is_pointed_at() {
        let good = build(PORT);
        let with = |at: usize, byte: u8| {
            let mut id = good.clone();
            id[at] = byte;
            parse(&id, 100).unwrap_err()
        };
        assert_eq!(field_of(&with(0, 0x46)), [0, 100], "SAS");
        assert_eq!(field_of(&with(0, 0x85)), [0, 100], "format 10b");
        assert_eq!(field_of(&with(3, 16)), [0, 102], "shorter than 20");
        assert_eq!(field_of(&with(3, 43)), [0, 102], "no multiple of four");
        assert_eq!(field_of(&with(2, 1)), [0, 102], "beyond the list");
        assert_eq!(field_of(&with(4, 0)), [0, 104], "no name");
        assert_eq!(field_of(&with(4 + PORT.len() - 1, b'g')), [0, 133], "no digit");
        assert_eq!(field_of(&with(0, 0x05)), [0, 104], "a name with an ISID");
        let mut unterminated = build("a");
        unterminated[4..].fill(b'a');
        assert_eq!(field_of(&parse(&unterminated, 0).unwrap_err()), [0, 4]);
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), first in 0u8..4) {
            let mut bytes = bytes;
            if let Some(byte) = bytes.first_mut() {
                *byte = first << 6 | ISCSI;
            }
            let _ = parse_list(&bytes, 24);
        }
    }
}
