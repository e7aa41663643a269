//! Any header, seen as every PDU there is, with the rest of the input as its additional header segments.

use lunway_iscsi::digest;
use lunway_iscsi::pdu::{self, AhsIter, BasicHeader, HEADER_LEN, Pdu};
use std::fmt::Debug;

fn check<T: Pdu + Debug>(header: &pdu::Header) {
    let view = pdu::view::<T>(header);
    assert_eq!(pdu::to_bytes(view), *header);
    // Formats every code, known or not.
    assert!(!format!("{view:?}").is_empty());
}

/// Runs one input. Panics if something is wrong with the code, never because of the input.
pub(crate) fn run(input: &[u8]) {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else { return };
    let basic = BasicHeader::of(header);
    assert!(basic.ahs_len() <= 1020);
    assert!((basic.data_len() + basic.data_padding()).is_multiple_of(4));
    let segments = &rest[..basic.ahs_len().min(rest.len())];
    let mut held = 0;
    for segment in AhsIter::new(segments).flatten() {
        held += segment.data.len();
        let _ = (segment.extended_cdb(), segment.bidirectional_read_length());
        let mut again = Vec::new();
        segment.append_to(&mut again).expect("what came out of a header fits one");
        assert_eq!(AhsIter::new(&again).next(), Some(Ok(segment)));
    }
    assert!(held <= segments.len());
    assert_eq!(digest::digest_of(&[header, segments]), digest::digest(&input[..HEADER_LEN + segments.len()]));

    check::<pdu::ScsiCommand>(header);
    check::<pdu::ScsiResponse>(header);
    check::<pdu::TaskManagementRequest>(header);
    check::<pdu::TaskManagementResponse>(header);
    check::<pdu::DataOut>(header);
    check::<pdu::DataIn>(header);
    check::<pdu::R2t>(header);
    check::<pdu::AsyncMessage>(header);
    check::<pdu::TextRequest>(header);
    check::<pdu::TextResponse>(header);
    check::<pdu::LoginRequest>(header);
    check::<pdu::LoginResponse>(header);
    check::<pdu::LogoutRequest>(header);
    check::<pdu::LogoutResponse>(header);
    check::<pdu::Snack>(header);
    check::<pdu::Reject>(header);
    check::<pdu::NopOut>(header);
    check::<pdu::NopIn>(header);
}
