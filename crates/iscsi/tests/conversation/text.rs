//! What RFC 7143 asks of text requests, discovery among them, looked at PDU by PDU.

use std::time::Duration;

use lunway_iscsi::CloseReason;
use lunway_iscsi::pdu::*;

use crate::requests::*;
use crate::wire::*;

// shows RFC 7143 [4.3-1]
#[test]
fn a_discovery_session_takes_send_targets_and_its_logout_only() {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    let mut nop = NopOut::new();
    nop.opcode.0 |= IMMEDIATE;
    nop.initiator_task_tag = 9.into();
    let mut command = ScsiCommand::new();
    command.opcode.0 |= IMMEDIATE;
    command.flags = 0x80;
    let mut management = TaskManagementRequest::new();
    management.opcode.0 |= IMMEDIATE;
    management.set_function(TaskManagementCode::LOGICAL_UNIT_RESET);
    let mut logout = LogoutRequest::new();
    logout.opcode.0 |= IMMEDIATE;
    logout.set_reason(LogoutReason::CLOSE_CONNECTION);
    let answers = [
        answers_to(&mut pair, &nop, &[]),
        answers_to(&mut pair, &command, &[]),
        answers_to(&mut pair, &management, &[]),
        answers_to(&mut pair, &logout, &[]),
    ];
    for answers in answers {
        assert_eq!((answers.len(), answers[0].0), (1, Opcode::REJECT));
        assert_eq!(answers[0].1[2], RejectReason::PROTOCOL_ERROR.0);
    }
    logout.set_reason(LogoutReason::CLOSE_SESSION);
    assert_eq!(answers_to(&mut pair, &logout, &[])[0].0, Opcode::LOGOUT_RESPONSE);
    assert_eq!(pair.target_closed, Some(CloseReason::LoggedOut));
}

// shows RFC 7143 [7.4.3-1]
#[test]
fn a_silent_discovery_session_is_ended_without_a_ping() {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    for _ in 0..4 {
        pair.now += Duration::from_secs(11);
        pair.target.handle_timeout(pair.now);
    }
    pair.target_events();
    assert_eq!(pair.target.unsent(), 0);
    assert_eq!(pair.target_closed, Some(CloseReason::PingTimeout));
}

// shows RFC 7143 [6.4-5, 11.11.1-2, 11.11.1-3, C-4]
// shows RFC 7143 [6.4-4, 11.11.1-1, 6.4-3]
#[test]
fn a_text_request_without_f_is_not_answered_with_f() {
    let mut pair = Setup::default().log_in();
    let mut text = TextRequest::new();
    text.opcode.0 |= IMMEDIATE;
    text.cmd_sn = 1.into();
    text.initiator_task_tag = 3.into();
    let answers = answers_to(&mut pair, &text, b"SendTargets=\0");
    let first = &answers[0].1;
    assert_eq!((answers[0].0, first[1] & 0xc0), (Opcode::TEXT_RESPONSE, 0));
    let tag = number(first, 20);
    assert_ne!(tag, RESERVED_TAG, "the exchange goes on");
    text.flags = 0x80;
    text.target_transfer_tag = tag.into();
    let answers = answers_to(&mut pair, &text, &[]);
    let last = &answers[0].1;
    assert_eq!((last[1] & 0xc0, number(last, 20)), (0x80, RESERVED_TAG));
}

// shows RFC 7143 [6.4-6, 7.12-2, 6.2-11]
#[test]
fn a_key_sent_twice_in_full_feature_phase_is_a_protocol_error_and_changes_nothing() {
    let mut pair = Setup::default().log_in();
    let mut text = TextRequest::new();
    text.flags = 0x80;
    text.opcode.0 |= IMMEDIATE;
    text.cmd_sn = 1.into();
    let twice = b"MaxRecvDataSegmentLength=512\0MaxRecvDataSegmentLength=1024\0";
    let answers = answers_to(&mut pair, &text, twice);
    assert_eq!((answers[0].0, answers[0].1[2]), (Opcode::REJECT, RejectReason::PROTOCOL_ERROR.0));
    let agreed = pair.initiator.logged_in().expect("logged in").negotiated.max_recv_ours;
    assert_eq!(pair.target.logged_in().expect("logged in").negotiated.max_recv_peer, agreed);
}

// shows RFC 7143 [6.2-2, 6.2-1, C-6]
#[test]
fn a_text_request_that_goes_on_is_answered_by_an_empty_response_with_a_tag() {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    let mut text = TextRequest::new();
    text.flags = TextRequest::CONTINUE;
    text.opcode.0 |= IMMEDIATE;
    text.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &text, b"SendTar");
    let empty = &answers[0].1;
    assert_eq!((empty.len(), empty[1]), (48, 0));
    text.target_transfer_tag = number(empty, 20).into();
    text.flags = 0x80;
    let answers = answers_to(&mut pair, &text, b"gets=All\0");
    assert_eq!((answers[0].0, answers[0].1[1]), (Opcode::TEXT_RESPONSE, 0x80));
}

// shows RFC 7143 [11.11.4-2, C-5, 6.4-1, 6.4-2, 11.10.2-1, 11.10.3-1, 6.1-1]
#[test]
fn the_initiator_copies_tag_and_lun_to_ask_for_the_rest_of_a_text() {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    pair.initiator.send_targets(&lunway_iscsi::SendTargets::All);
    let request = requests(&mut pair).remove(0);
    assert_eq!((number(&request, 20), &request[48..]), (RESERVED_TAG, &b"SendTargets=All\0"[..]));
    let mut response = TextResponse::new();
    response.initiator_task_tag = number(&request, 16).into();
    response.target_transfer_tag = 77.into();
    response.lun = 0x0102_0000_0000_0000.into();
    let next = requests_after(&mut pair, &response).remove(0);
    assert_eq!((number(&next, 16), number(&next, 20)), (number(&request, 16), 77));
    assert_eq!((&next[8..10], next.len()), (&[1, 2][..], 48));
}

// shows RFC 7143 [11.9.1-4]
#[test]
fn a_request_to_negotiate_is_answered_by_an_empty_text_request() {
    let mut pair = Setup::default().log_in();
    let mut message = AsyncMessage::new();
    message.event = AsyncEvent::NEGOTIATION_REQUEST;
    let pdus = requests_after(&mut pair, &message);
    assert_eq!((pdus.len(), opcode(&pdus[0]), pdus[0].len()), (1, Opcode::TEXT_REQUEST, 48));
    assert_eq!((pdus[0][1], number(&pdus[0], 20)), (0x80, RESERVED_TAG));
}

// shows RFC 7143 [C-7, C-1]
#[test]
fn a_discovery_may_ask_for_one_target_by_its_name() {
    let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
    let record = |name: &str| lunway_iscsi::TargetRecord {
        name: name.into(),
        addresses: vec![("192.0.2.1:3260".into(), 1)],
    };
    pair.targets = vec![record("iqn.2026-11.test:a"), record("iqn.2026-11.test:b")];
    pair.initiator.send_targets(&lunway_iscsi::SendTargets::Named("iqn.2026-11.test:b".into()));
    pair.run();
    assert_eq!(pair.found, Some(vec![record("iqn.2026-11.test:b")]));
}

// shows RFC 7143 [11.17.1-2]
#[test]
fn a_rejected_text_ends_the_connection_whatever_the_reason() {
    for reason in [RejectReason::NEGOTIATION_RESET, RejectReason::PROTOCOL_ERROR] {
        let mut pair = Setup { discovery: true, ..Setup::default() }.log_in();
        pair.initiator.send_targets(&lunway_iscsi::SendTargets::All);
        let text = requests(&mut pair).remove(0);
        let mut reject = Reject::new();
        reject.reason = reason;
        requests_after_with(&mut pair, &reject, &text[..48]);
        assert!(matches!(pair.initiator_closed, Some(CloseReason::Protocol(_))));
    }
}
