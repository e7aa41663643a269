//! Targets that ask without end: what the initiator keeps and sends for them is bounded.

use std::time::Duration;

use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;
use lunway_iscsi::{CloseReason, SendTargets};

use crate::requests::{both, number, requests, requests_after, requests_after_with};
use crate::wire::*;

const LEN: u32 = 64 << 10;

/// A write of which everything is asked for, two R2Ts at a time, and an R2T for its first 4 KiB.
fn asked_write() -> (Pair, R2t) {
    let parameters = Parameters {
        immediate_data: false,
        initial_r2t: true,
        max_outstanding_r2t: 2,
        ..Parameters::default()
    };
    let mut pair = both(parameters).log_in();
    pair.submit(write(1, 0, &[7; LEN as usize]));
    let command = requests(&mut pair).remove(0);
    let mut r2t = R2t::new();
    r2t.initiator_task_tag = number(&command, 16).into();
    r2t.target_transfer_tag = 5.into();
    r2t.desired_data_transfer_length = 4096.into();
    (pair, r2t)
}

fn why(pair: &Pair) -> String {
    match &pair.initiator_closed {
        Some(CloseReason::Protocol(why)) => why.clone(),
        other => panic!("the session goes on: {other:?}"),
    }
}

/// Gives the initiator a PDU whose answers the target does not take.
fn give<T: Pdu>(pair: &mut Pair, pdu: &T) {
    let bytes = to_bytes(pdu);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mut moved = 0;
        for mut slice in pair.initiator.receive_space() {
            let n = slice.len().min(rest.len());
            slice[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            moved += n;
        }
        pair.initiator.received(moved);
        pair.initiator_events();
    }
}

// shows RFC 7143 [7.9-1]
#[test]
fn an_r2t_out_of_its_turn_for_what_was_asked_for_or_with_the_reserved_tag_ends_the_session() {
    for (change, parts) in [
        ((|r2t| r2t.r2t_sn = 2.into()) as fn(&mut R2t), ["R2TSN 2", "1 was expected"]),
        (|r2t| r2t.r2t_sn = 0.into(), ["R2TSN 0", "1 was expected"]),
        (|r2t| r2t.buffer_offset = 0.into(), ["bytes 0 to 4096", "0 to 4096 were asked for before"]),
        (|r2t| r2t.buffer_offset = 2048.into(), ["bytes 2048 to 6144", "0 to 4096 were asked for before"]),
        (|r2t| r2t.target_transfer_tag = RESERVED_TAG.into(), ["reserved", "0xffffffff"]),
    ] {
        let (mut pair, mut r2t) = asked_write();
        assert_eq!(requests_after(&mut pair, &r2t).len(), 1);
        (r2t.r2t_sn, r2t.buffer_offset) = (1.into(), 4096.into());
        change(&mut r2t);
        assert_eq!(requests_after(&mut pair, &r2t), Vec::<Vec<u8>>::new(), "nothing is sent");
        let why = why(&pair);
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        assert_eq!(pair.initiator.take_unanswered().len(), 1, "the write is not done");
    }
}

#[test]
fn r2ts_without_end_end_the_session_and_not_our_memory() {
    // The same bytes again and again, and one byte after another: the target takes none of the data.
    for step in [0, 1] {
        let (mut pair, mut r2t) = asked_write();
        r2t.desired_data_transfer_length = 1.into();
        let mut taken = 0;
        while pair.initiator_closed.is_none() {
            give(&mut pair, &r2t);
            r2t.r2t_sn = (r2t.r2t_sn.get() + 1).into();
            r2t.buffer_offset = (r2t.buffer_offset.get() + step).into();
            taken += 1;
            assert!(taken < 100, "{} bytes wait to be sent", pair.initiator.unsent());
        }
        assert!(pair.initiator.unsent() < 1000, "{}", pair.initiator.unsent());
    }
}

#[test]
fn a_few_r2ts_more_than_agreed_on_are_answered_and_told_of_and_many_are_not() {
    let (mut pair, mut r2t) = asked_write();
    for r2t_sn in 0..4 {
        (r2t.r2t_sn, r2t.buffer_offset) = (r2t_sn.into(), (r2t_sn * 4096).into());
        give(&mut pair, &r2t);
    }
    let [told] = &pair.tolerated[..] else { panic!("{:?}", pair.tolerated) };
    assert!(told.contains("3 R2Ts") && told.contains("MaxOutstandingR2T is 2"), "{told}");
    assert_eq!(requests(&mut pair).len(), 4);
    for r2t_sn in 4..9 {
        assert_eq!(pair.initiator_closed, None);
        (r2t.r2t_sn, r2t.buffer_offset) = (r2t_sn.into(), (r2t_sn * 4096).into());
        give(&mut pair, &r2t);
    }
    assert!(why(&pair).contains("5 R2Ts at a time, where MaxOutstandingR2T is 2"), "{}", why(&pair));
}

/// Data that is sent twice is not twice as much of the command.
#[test]
fn an_r2t_for_data_that_was_sent_with_the_command_is_answered_and_does_not_count_again() {
    let parameters = Parameters { first_burst_length: 8192, ..Parameters::default() };
    let mut pair = both(parameters).log_in();
    pair.submit(write(1, 0, &[7; 16_384]));
    let command = requests(&mut pair).remove(0);
    assert_eq!(command.len(), 48 + 8192, "immediate data");
    let mut r2t = R2t::new();
    r2t.initiator_task_tag = number(&command, 16).into();
    r2t.target_transfer_tag = 5.into();
    r2t.desired_data_transfer_length = 8192.into();
    assert_eq!(requests_after(&mut pair, &r2t).len(), 1);
    assert!(pair.tolerated[0].contains("were sent with the command"), "{:?}", pair.tolerated);
    let mut response = ScsiResponse::new();
    response.initiator_task_tag = number(&command, 16).into();
    requests_after(&mut pair, &response);
    assert_eq!(pair.completed[0].data_out_len, 8192);
}

#[test]
fn pings_and_rejects_without_end_whose_answers_are_not_taken_end_the_session() {
    let mut ping = NopIn::new();
    (ping.initiator_task_tag, ping.target_transfer_tag) = (RESERVED_TAG.into(), 5.into());
    let mut pair = Setup::default().log_in();
    // A target that takes the answers may ask as often as it likes.
    for _ in 0..3000 {
        assert_eq!(requests_after(&mut pair, &ping).len(), 1);
    }
    let mut count = 0;
    while pair.initiator_closed.is_none() {
        give(&mut pair, &ping);
        count += 1;
        assert!(count < 3000, "{} bytes wait to be sent", pair.initiator.unsent());
    }
    assert!(why(&pair).contains("without reading the answers"), "{}", why(&pair));

    let mut pair = Setup::default().log_in();
    pair.submit(read(1, 0, 4));
    let command = requests(&mut pair).remove(0);
    let mut reject = Reject::new();
    reject.exp_cmd_sn = number(&command, 24).into();
    let mut sent = 0;
    for _ in 0..3000 {
        sent += requests_after_with(&mut pair, &reject, &command[..48]).len();
    }
    assert!(sent > 0 && pair.initiator_closed.is_none(), "each is taken");
}

/// A discovery that is answered by responses that say that they go on, until the initiator has enough.
fn answered_by(text: &[u8], most: usize) -> (usize, String) {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    pair.initiator.send_targets(&SendTargets::All);
    let request = requests(&mut pair).remove(0);
    let mut response = TextResponse::new();
    response.flags = 0;
    response.initiator_task_tag = number(&request, 16).into();
    response.target_transfer_tag = 7.into();
    let mut rounds = 0;
    while pair.initiator_closed.is_none() {
        requests_after_with(&mut pair, &response, text);
        rounds += 1;
        assert!(rounds <= most, "more than {most} rounds");
    }
    (rounds, why(&pair))
}

#[test]
fn a_discovery_whose_answer_does_not_end_does() {
    let (rounds, why) = answered_by(b"", 100);
    assert!(rounds == 33 && why.contains("in a row without a pair"), "{rounds}: {why}");
    let (rounds, why) = answered_by(b"X-a=1\0", 20_000);
    assert!(rounds == 16_385 && why.contains("more than 16384 Text Responses"), "{rounds}: {why}");
    let mut addresses = b"TargetName=iqn.2026-11.test:a\0".to_vec();
    while addresses.len() < 60_000 {
        addresses.extend_from_slice(b"TargetAddress=192.0.2.1:3260,1\0");
    }
    let (rounds, why) = answered_by(&addresses, 1000);
    assert!(rounds < 600 && why.contains("bytes"), "{rounds}: {why}");
}

#[test]
fn an_answer_in_pieces_smaller_than_a_pair_is_taken() {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    pair.initiator.send_targets(&SendTargets::All);
    let request = requests(&mut pair).remove(0);
    let mut response = TextResponse::new();
    response.initiator_task_tag = number(&request, 16).into();
    let text = b"TargetName=iqn.2026-11.test:a\0TargetAddress=192.0.2.1:3260,1\0";
    let pieces: Vec<_> = text.chunks(2).collect();
    for (n, piece) in pieces.iter().enumerate() {
        let is_last = n + 1 == pieces.len();
        response.flags = if is_last { 0x80 } else { 0 };
        response.target_transfer_tag = if is_last { RESERVED_TAG } else { 7 }.into();
        requests_after_with(&mut pair, &response, piece);
        pair.now += Duration::from_millis(1);
    }
    assert_eq!(pair.found.as_ref().map(Vec::len), Some(1), "{:?}", pair.initiator_closed);
}
