//! What RFC 7143 asks of each side, looked at PDU by PDU.

use std::time::Duration;

use lunway_iscsi::CloseReason;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::wire::*;

const IMMEDIATE: u8 = 0x40;

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

// shows RFC 7143 [4.2.4-3]
#[test]
fn anything_before_the_first_login_request_closes_the_connection_without_an_answer() {
    let mut pair = Setup::default().connect();
    assert_eq!(answers_to(&mut pair, &NopOut::new(), &[]), []);
    assert!(matches!(pair.target_closed, Some(CloseReason::Protocol(_))));
}

// shows RFC 7143 [4.2.4-4, 11.13.5-4]
#[test]
fn anything_but_a_login_request_in_the_middle_of_a_login_is_refused_as_invalid_during_login() {
    let mut pair = Setup::default().connect();
    let mut login = LoginRequest::new();
    login.set_stages(Stage::SECURITY, None);
    login.flags |= LoginRequest::CONTINUE;
    assert_eq!(answers_to(&mut pair, &login, b"InitiatorName=iqn.2026-11.te")[0].0, Opcode::LOGIN_RESPONSE);
    let answers = answers_to(&mut pair, &NopOut::new(), &[]);
    assert_eq!((answers.len(), answers[0].0), (1, Opcode::LOGIN_RESPONSE));
    assert_eq!(answers[0].1[36..38], [2, 0x0b], "invalid during login");
    assert!(matches!(pair.target_closed, Some(CloseReason::LoginRefused(LoginStatus::INVALID_DURING_LOGIN))));
}

// shows RFC 7143 [4.2.4-2]
#[test]
fn a_second_login_on_a_connection_ends_it() {
    let mut pair = Setup::default().log_in();
    let answers = answers_to(&mut pair, &LoginRequest::new(), &[]);
    assert_eq!((answers[0].0, answers[0].1[2]), (Opcode::REJECT, RejectReason::PROTOCOL_ERROR.0));
    assert!(pair.target_closed.is_some());
}

// shows RFC 7143 [4.2.4-5, 7.7-2]
#[test]
fn an_initiator_that_hears_anything_but_a_login_response_during_login_leaves() {
    let mut pair = Setup::default().connect();
    requests(&mut pair);
    assert_eq!(requests_after(&mut pair, &NopIn::new()), Vec::<Vec<u8>>::new());
    assert!(matches!(pair.initiator_closed, Some(CloseReason::Protocol(_))));
}

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
    management.set_function(TaskManagementFunction::LOGICAL_UNIT_RESET);
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

// shows RFC 7143 [11.19-1, 11.19-2, 11.18.1-2]
#[test]
fn a_ping_is_echoed_with_its_tag_and_as_much_data_as_the_initiator_takes() {
    let small = Parameters { max_recv_data_segment_length: 512, ..Parameters::default() };
    let mut pair = Setup { initiator: small, ..Setup::default() }.log_in();
    let mut nop = NopOut::new();
    nop.opcode.0 |= IMMEDIATE;
    nop.initiator_task_tag = 0x1234_5678.into();
    nop.lun = u64::MAX.into();
    nop.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &nop, &[5; 600]);
    let answer = &answers[0].1;
    assert_eq!((answers.len(), answers[0].0, answer.len()), (1, Opcode::NOP_IN, 48 + 512));
    assert_eq!((number(answer, 16), number(answer, 20)), (0x1234_5678, RESERVED_TAG));
    assert_eq!(answer[8..16], [0; 8], "without a transfer tag the LUN is reserved");
    nop.initiator_task_tag = RESERVED_TAG.into();
    assert_eq!(answers_to(&mut pair, &nop, &[]), [], "what asks for nothing gets nothing");
}

// shows RFC 7143 [11.18-1, 11.18-2, 11.18.1-3, 11.18.2-1, 11.18.2-2, 4.2.2.1-1]
#[test]
fn the_targets_ping_is_answered_with_its_tag_and_lun_and_nothing_else_is_answered() {
    let mut pair = Setup::default().log_in();
    let mut nop = NopIn::new();
    nop.exp_cmd_sn = 1.into();
    nop.max_cmd_sn = 100.into();
    assert_eq!(requests_after(&mut pair, &nop), Vec::<Vec<u8>>::new());
    nop.target_transfer_tag = 55.into();
    nop.lun = 0x0003_0000_0000_0000.into();
    let answers = requests_after(&mut pair, &nop);
    let answer = &answers[0];
    assert_eq!((answers.len(), answer[0], answer.len()), (1, IMMEDIATE, 48), "an immediate NOP-Out");
    assert_eq!((number(answer, 16), number(answer, 20)), (RESERVED_TAG, 55));
    assert_eq!(answer[8..16], 0x0003_0000_0000_0000u64.to_be_bytes());
    assert_eq!(number(answer, 24), 1, "CmdSN stays");
    pair.submit(read(1, 0, 100));
    assert_eq!(number(&requests(&mut pair)[0], 24), 1);
}

// shows RFC 7143 [11.19-3, 11.19.3-1]
#[test]
fn the_targets_own_ping_has_no_data_and_takes_no_number() {
    let mut pair = Setup::default().log_in();
    pair.run();
    let mut pings = Vec::new();
    for _ in 0..2 {
        pair.now += Duration::from_secs(11);
        pair.target.handle_timeout(pair.now);
    }
    let mut slices = Vec::new();
    pair.target.gather(&mut slices, 10);
    slices.iter().for_each(|slice| pings.extend_from_slice(slice));
    pair.target.sent(pings.len());
    assert_eq!((pings.len(), opcode(&pings)), (48, Opcode::NOP_IN));
    assert_eq!(number(&pings, 16), RESERVED_TAG);
    assert_ne!(number(&pings, 20), RESERVED_TAG);
    let mut nop = NopOut::new();
    nop.opcode.0 |= IMMEDIATE;
    nop.initiator_task_tag = 4.into();
    nop.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &nop, &[]);
    assert_eq!(
        number(&answers[0].1, 24),
        number(&pings, 24),
        "the next response has the number the ping named"
    );
}

// shows RFC 7143 [4.2.2.2-2]
#[test]
fn every_response_has_the_next_stat_sn_and_an_r2t_none_of_its_own() {
    let parameters = Parameters { immediate_data: false, initial_r2t: true, ..Parameters::default() };
    let mut pair = both(parameters).log_in();
    let mut nop = NopOut::new();
    nop.opcode.0 |= IMMEDIATE;
    nop.initiator_task_tag = 4.into();
    nop.cmd_sn = 1.into();
    let first = number(&answers_to(&mut pair, &nop, &[])[0].1, 24);
    let mut write = ScsiCommand::new();
    write.flags = 0x80 | ScsiCommand::WRITE;
    write.expected_data_transfer_length = 512.into();
    write.initiator_task_tag = 6.into();
    write.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &write, &[]);
    assert_eq!((answers[0].0, number(&answers[0].1, 24)), (Opcode::R2T, first + 1));
    assert_eq!(number(&answers_to(&mut pair, &nop, &[])[0].1, 24), first + 1);
    assert_eq!(number(&answers_to(&mut pair, &nop, &[])[0].1, 24), first + 2);
}

// shows RFC 7143 [4.2.2.4-1, 11.7.1-1, 11.7.1-2, 11.7.2-1, 11.7.3-3, 11.7.7-2, 13.19-1]
// shows RFC 7143 [4.2.2.1-15, 11.4.5.1-3]
#[test]
fn data_in_is_numbered_from_0_cut_at_words_and_bursts_and_ends_with_the_status() {
    let odd =
        Parameters { max_recv_data_segment_length: 515, max_burst_length: 1026, ..Parameters::default() };
    let mut pair = Setup { initiator: odd, ..Setup::default() }.log_in();
    let mut read = ScsiCommand::new();
    read.flags = 0x80 | ScsiCommand::READ;
    read.expected_data_transfer_length = 2000.into();
    read.initiator_task_tag = 6.into();
    read.cmd_sn = 1.into();
    read.cdb[0] = READ;
    let answers = answers_to(&mut pair, &read, &[]);
    let (mut offset, mut burst) = (0, 0);
    for (data_sn, (kind, pdu)) in answers.iter().enumerate() {
        let len = u32::from(pdu[6]) << 8 | u32::from(pdu[7]);
        let (is_final, has_status) = (pdu[1] & 0x80 != 0, pdu[1] & 0x01 != 0);
        assert_eq!(*kind, Opcode::DATA_IN);
        assert_eq!((number(pdu, 36), number(pdu, 40)), (data_sn as u32, offset));
        assert!(len <= 515 && (is_final || len % 4 == 0), "whole words but at the end of a sequence");
        assert_eq!(pdu[1] & DataIn::ACKNOWLEDGE, 0, "no acknowledgement is asked for at level 0");
        assert_eq!(has_status, data_sn + 1 == answers.len());
        assert!(is_final || !has_status);
        offset += len;
        burst += len;
        assert!(burst <= 1026);
        if is_final {
            burst = 0;
        }
    }
    assert_eq!(offset, 2000);
}

// shows RFC 7143 [4.2.5.2-1, 4.2.5.2-2, 4.2.5.2-3, 11.3.1-1, 11.3.1-2, 11.3.4-3, 11.7.7-2, 11.8-2, 11.8-3, 11.8-4]
// shows RFC 7143 [13.11-1, 13.11-3, 13.12-1]
#[test]
fn a_command_sends_its_data_by_the_rules_of_its_session() {
    for (initial_r2t, immediate_data, sent_unasked, immediate) in
        [(true, false, 0, 0), (true, true, 1000, 1000), (false, false, 3001, 0), (false, true, 3001, 1000)]
    {
        let parameters = Parameters {
            initial_r2t,
            immediate_data,
            max_recv_data_segment_length: 1000,
            first_burst_length: 3001,
            max_burst_length: 4096,
            ..Parameters::default()
        };
        let mut pair = both(parameters).log_in();
        pair.submit(write(1, 0, &[7; 9000]));
        let pdus = requests(&mut pair);
        assert_eq!(opcode(&pdus[0]), Opcode::SCSI_COMMAND);
        assert_eq!(number(&pdus[0], 20), 9000, "expected length");
        assert_eq!(pdus[0][1] & ScsiCommand::WRITE, ScsiCommand::WRITE);
        assert_eq!(pdus[0][1] & 0x80 != 0, pdus.len() == 1, "F unless data follows");
        assert_eq!(pdus[0].len() - 48, immediate);
        check_sequence(&pdus[1..], immediate, sent_unasked, RESERVED_TAG);
        let tag = number(&pdus[0], 16);
        for (n, (start, len)) in [(sent_unasked, 4096), (sent_unasked + 4096, 1903)].into_iter().enumerate() {
            let mut r2t = R2t::new();
            r2t.initiator_task_tag = tag.into();
            r2t.target_transfer_tag = (90 + n as u32).into();
            r2t.r2t_sn = (n as u32).into();
            r2t.buffer_offset = (start as u32).into();
            r2t.desired_data_transfer_length = (len as u32).into();
            let answer = requests_after(&mut pair, &r2t);
            check_sequence(&answer, start, start + len, 90 + n as u32);
        }
    }
}

/// A sequence of Data-Out for bytes `start..end`.
fn check_sequence(pdus: &[Vec<u8>], start: usize, end: usize, transfer_tag: u32) {
    let mut at = start;
    for (data_sn, pdu) in pdus.iter().enumerate() {
        let len = usize::from(pdu[6]) << 8 | usize::from(pdu[7]);
        let is_last = data_sn + 1 == pdus.len();
        assert_eq!(opcode(pdu), Opcode::DATA_OUT);
        assert_eq!(
            (number(pdu, 20), number(pdu, 36), number(pdu, 40)),
            (transfer_tag, data_sn as u32, at as u32)
        );
        assert_eq!(pdu[1] & 0x80 != 0, is_last);
        assert!(len <= 1000 && (is_last || len % 4 == 0));
        at += len;
    }
    assert_eq!(at, end);
}

// shows RFC 7143 [4.2.5.3-1]
#[test]
fn an_r2t_for_another_lun_or_beyond_the_rules_ends_the_session() {
    for (lun, offset, length) in [(1u64, 0u32, 512u32), (0, 0, 0), (0, 8192, 4096), (0, 0, u32::MAX)] {
        let parameters = Parameters { immediate_data: false, initial_r2t: true, ..Parameters::default() };
        let mut pair = both(parameters).log_in();
        pair.submit(write(1, 0, &[7; 9000]));
        let tag = number(&requests(&mut pair)[0], 16);
        let mut r2t = R2t::new();
        r2t.lun = (lun << 48).into();
        r2t.initiator_task_tag = tag.into();
        r2t.buffer_offset = offset.into();
        r2t.desired_data_transfer_length = length.into();
        assert_eq!(requests_after(&mut pair, &r2t), Vec::<Vec<u8>>::new());
        assert!(
            matches!(pair.initiator_closed, Some(CloseReason::Protocol(_))),
            "LUN {lun}, {offset}+{length}"
        );
    }
}

// shows RFC 7143 [4.2.2.1-11]
#[test]
fn a_window_that_is_void_or_older_does_not_count() {
    let mut pair = Setup::default().log_in();
    let mut nop = NopIn::new();
    for (expected, maximum) in [(1u32, 2u32), (5, 1), (1, 1)] {
        nop.exp_cmd_sn = expected.into();
        nop.max_cmd_sn = maximum.into();
        requests_after(&mut pair, &nop);
    }
    for token in 1..=128 {
        pair.submit(read(token, 0, 4));
    }
    assert!(!pair.initiator.can_submit(), "the window of the login holds, not more and not less");
}

// shows RFC 7143 [4.2.2.1-1, 4.2.2.1-2, 4.2.2.1-6, 11.5.2-1, 11.5.4-1, 11.5.5-1, 11.5.1-6]
// shows RFC 7143 [11.2.1.5-1]
#[test]
fn commands_count_up_and_immediate_requests_do_not() {
    let mut pair = Setup::default().log_in();
    pair.submit(read(1, 0, 4));
    pair.initiator.manage_task(9, TaskManagementFunction::LOGICAL_UNIT_RESET, [0, 2, 0, 0, 0, 0, 0, 0], None);
    pair.initiator.manage_task(9, TaskManagementFunction::ABORT_TASK, [0; 8], Some(1));
    pair.submit(read(2, 0, 4));
    let pdus = requests(&mut pair);
    let numbers: Vec<u32> = pdus.iter().map(|pdu| number(pdu, 24)).collect();
    assert_eq!(numbers, [1, 2, 2, 2]);
    let (reset, abort) = (&pdus[1], &pdus[2]);
    assert_eq!((reset[0], reset.len(), reset[1]), (IMMEDIATE | 2, 48, 0x80 | 5));
    assert_eq!((&reset[8..10], number(reset, 20)), (&[0, 2][..], RESERVED_TAG));
    assert_eq!((number(abort, 20), number(abort, 32)), (number(&pdus[0], 16), 1), "the task's tag and CmdSN");
}

// shows RFC 7143 [11.14-1, 11.14.2-1, 11.14-4]
#[test]
fn after_a_logout_request_no_command_is_taken() {
    let mut pair = Setup::default().log_in();
    pair.initiator.logout();
    assert!(!pair.initiator.can_submit());
    let pdus = requests(&mut pair);
    assert_eq!((pdus.len(), opcode(&pdus[0]), pdus[0].len()), (1, Opcode::LOGOUT_REQUEST, 48));
    let mut response = LogoutResponse::new();
    response.initiator_task_tag = number(&pdus[0], 16).into();
    assert_eq!(requests_after(&mut pair, &response), Vec::<Vec<u8>>::new());
    assert_eq!(pair.initiator_closed, Some(CloseReason::LoggedOut));
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

// shows RFC 7143 [11-1, 11-2]
#[test]
fn reserved_bits_are_not_looked_at() {
    let mut pair = Setup::default().log_in();
    let mut nop = NopOut::new();
    nop.opcode.0 |= IMMEDIATE | 0x80;
    nop.flags = 0xff;
    nop.reserved = [0xff; 2];
    nop.reserved_tail = [0xff; 16];
    nop.initiator_task_tag = 4.into();
    nop.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &nop, &[]);
    assert_eq!((answers.len(), answers[0].0), (1, Opcode::NOP_IN));
    assert_eq!(answers[0].1[1..4], [0x80, 0, 0], "and none is set in the answer");
    assert_eq!(answers[0].1[36..48], [0; 12]);
}

// shows RFC 7143 [11.7.7-1, 11.8.1-1, 11.8.4-1, 11.8.5-1]
#[test]
fn an_empty_data_out_may_end_the_unsolicited_data() {
    let parameters = Parameters { immediate_data: true, initial_r2t: false, ..Parameters::default() };
    let mut pair = both(parameters).log_in();
    let mut write = ScsiCommand::new();
    write.flags = ScsiCommand::WRITE;
    write.expected_data_transfer_length = 1024.into();
    write.initiator_task_tag = 6.into();
    write.cmd_sn = 1.into();
    write.cdb[0] = WRITE;
    assert_eq!(answers_to(&mut pair, &write, &[3; 512]), []);
    let mut empty = DataOut::new();
    empty.initiator_task_tag = 6.into();
    empty.flags = 0x80;
    empty.buffer_offset = 512.into();
    let answers = answers_to(&mut pair, &empty, &[]);
    assert_eq!((answers.len(), answers[0].0), (1, Opcode::R2T));
    let r2t = &answers[0].1;
    assert_eq!((number(r2t, 40), number(r2t, 44), r2t.len()), (512, 512, 48));
    assert_ne!(number(r2t, 20), RESERVED_TAG);
}

// shows RFC 7143 [13.11-2, 11.4.7-2, 11.4.8-1, 11.4.5.2-2]
// shows RFC 7143 [10.2-1]
#[test]
fn unsolicited_data_that_was_not_agreed_on_has_its_own_condition() {
    for (immediate_data, initial_r2t, len) in [(false, true, 4), (false, false, 4), (true, true, 0)] {
        let parameters = Parameters { immediate_data, initial_r2t, ..Parameters::default() };
        let mut pair = both(parameters).log_in();
        let mut write = ScsiCommand::new();
        write.flags = 0x80 | ScsiCommand::WRITE;
        write.expected_data_transfer_length = 1024.into();
        write.initiator_task_tag = 6.into();
        write.cmd_sn = 1.into();
        let mut answers = answers_to(&mut pair, &write, &vec![3; len]);
        if len == 0 {
            let mut unasked = DataOut::new();
            unasked.initiator_task_tag = 6.into();
            unasked.flags = 0x80;
            answers = answers_to(&mut pair, &unasked, &[3; 512]);
        }
        let response = &answers.last().expect("an answer").1;
        assert_eq!((opcode(response), response[3]), (Opcode::SCSI_RESPONSE, 2), "CHECK CONDITION");
        assert_eq!((response[50 + 2], &response[50 + 12..50 + 14]), (0x0b, &[0x0c, 0x0c][..]));
        assert_eq!(
            (response[1] & 0x06, number(response, 44)),
            (0x02, 1024),
            "nothing of 1024 bytes was taken"
        );
        assert_eq!(number(response, 36), 0, "no Data-In was sent");
    }
}

// shows RFC 7143 [7.3-3]
#[test]
fn the_gap_that_a_rejected_command_leaves_is_plugged_by_a_ping() {
    for (expected, plugged) in [(1u32, true), (2, false)] {
        let mut pair = Setup::default().log_in();
        pair.submit(read(1, 0, 4));
        let command = requests(&mut pair).remove(0);
        let mut reject = Reject::new();
        reject.reason = RejectReason::COMMAND_NOT_SUPPORTED;
        reject.exp_cmd_sn = expected.into();
        let pings = requests_after_with(&mut pair, &reject, &command[..48]);
        assert_eq!(pair.rejected, [(1, RejectReason::COMMAND_NOT_SUPPORTED)]);
        assert_eq!(pings.len(), usize::from(plugged), "a target that counts it as received has no gap");
        for ping in pings {
            assert_eq!(
                (ping[0], number(&ping, 24)),
                (Opcode::NOP_OUT.0, 1),
                "not immediate, with the command's CmdSN"
            );
            assert_ne!(number(&ping, 16), RESERVED_TAG);
        }
    }
}

#[test]
fn a_target_that_answers_a_ping_and_does_not_count_a_command_from_before_it_never_got_that() {
    // The number that the answer says is expected, whether the command was rejected meanwhile, whether that is the end.
    for (expected, rejected, ends) in [(1u32, false, true), (2, false, false), (1, true, false)] {
        let mut pair = Setup::default().log_in();
        pair.submit(read(1, 0, 4));
        let command = requests(&mut pair).remove(0);
        pair.initiator.ping();
        let ping = requests(&mut pair).remove(0);
        if rejected {
            let mut reject = Reject::new();
            reject.reason = RejectReason::COMMAND_NOT_SUPPORTED;
            reject.exp_cmd_sn = 1.into();
            requests_after_with(&mut pair, &reject, &command[..48]);
        }
        let mut answer = NopIn::new();
        answer.initiator_task_tag = number(&ping, 16).into();
        answer.target_transfer_tag = RESERVED_TAG.into();
        answer.exp_cmd_sn = expected.into();
        answer.max_cmd_sn = 64.into();
        requests_after_with(&mut pair, &answer, &[]);
        let closed = pair.initiator_closed.as_ref().map(ToString::to_string).unwrap_or_default();
        assert_eq!(closed.contains("lost on the way: commands"), ends, "{expected} {rejected}: {closed}");
        assert_eq!(pair.initiator_closed.is_some(), ends);
    }
}

// shows RFC 7143 [11.5.1-8]
#[test]
fn a_task_management_request_cannot_be_aborted() {
    let mut pair = Setup::default().log_in();
    let mut management = TaskManagementRequest::new();
    management.opcode.0 |= IMMEDIATE;
    management.set_function(TaskManagementFunction::ABORT_TASK);
    management.initiator_task_tag = 8.into();
    management.referenced_task_tag = 8.into();
    management.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &management, &[]);
    assert_eq!((answers[0].0, answers[0].1[2]), (Opcode::TASK_MANAGEMENT_RESPONSE, 255), "function rejected");
}

// shows RFC 7143 [7.2.2-3, 11.6.2-1, 11.5.1-1]
#[test]
fn a_task_cannot_be_reassigned() {
    let mut pair = Setup::default().log_in();
    let mut management = TaskManagementRequest::new();
    management.opcode.0 |= IMMEDIATE;
    management.set_function(TaskManagementFunction::TASK_REASSIGN);
    management.initiator_task_tag = 8.into();
    management.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &management, &[]);
    assert_eq!((answers[0].0, answers[0].1.len()), (Opcode::TASK_MANAGEMENT_RESPONSE, 48));
    assert_eq!(answers[0].1[2], TaskManagementResult::REASSIGNMENT_NOT_SUPPORTED.0);
}

// shows RFC 7143 [11.15.2-1, 11.15-1, 11.14-2]
#[test]
fn a_logout_is_answered_by_a_bare_header_and_ends_everything() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    pair.submit(read(1, 0, 4));
    pair.run();
    let mut logout = LogoutRequest::new();
    logout.opcode.0 |= IMMEDIATE;
    logout.cmd_sn = 2.into();
    let answers = answers_to(&mut pair, &logout, &[]);
    assert_eq!((answers.len(), answers[0].0, answers[0].1.len()), (1, Opcode::LOGOUT_RESPONSE, 48));
    assert_eq!(pair.target_closed, Some(CloseReason::LoggedOut));
    let command = pair.held.pop().expect("held");
    pair.execute(command);
    assert_eq!(pair.target.unsent(), 0, "no response after the logout");
}

// shows RFC 7143 [4.2.3.3-2, 4.2.3.3-3, 4.2.3.3-4, 11.5.1-3]
#[test]
fn while_tasks_are_being_aborted_r2ts_are_answered_and_responses_taken() {
    let parameters = Parameters { immediate_data: false, initial_r2t: true, ..Parameters::default() };
    let mut pair = both(parameters).log_in();
    pair.submit(write(1, 0, &[7; 600]));
    pair.submit(write(2, 0, &[7; 600]));
    pair.initiator.manage_task(50, TaskManagementFunction::ABORT_TASK_SET, [0; 8], None);
    let pdus = requests(&mut pair);
    let mut r2t = R2t::new();
    r2t.initiator_task_tag = number(&pdus[0], 16).into();
    r2t.target_transfer_tag = 90.into();
    r2t.desired_data_transfer_length = 600.into();
    check_sequence(&requests_after(&mut pair, &r2t), 0, 600, 90);
    let mut response = ScsiResponse::new();
    response.initiator_task_tag = number(&pdus[0], 16).into();
    requests_after(&mut pair, &response);
    assert_eq!(pair.completed.len(), 1);
    let mut done = TaskManagementResponse::new();
    done.initiator_task_tag = number(&pdus[2], 16).into();
    requests_after(&mut pair, &done);
    requests_after(&mut pair, &done);
    assert_eq!(pair.managed, [(50, TaskManagementResult::COMPLETE)], "a second response is nobody's");
}

// shows RFC 7143 [7.3-1]
#[test]
fn a_reject_leaves_the_task_whose_tag_was_used_again() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    let mut command = ScsiCommand::new();
    command.flags = 0x80;
    command.initiator_task_tag = 5.into();
    command.cmd_sn = 1.into();
    answers_to(&mut pair, &command, &[]);
    command.cmd_sn = 2.into();
    assert_eq!(answers_to(&mut pair, &command, &[])[0].0, Opcode::REJECT);
    let held = pair.held.pop().expect("the first command");
    pair.execute(held);
    let answers = answers_to_bytes(&mut pair, &[]);
    assert_eq!((answers[0].0, number(&answers[0].1, 16)), (Opcode::SCSI_RESPONSE, 5));
}

// shows RFC 7143 [7.9-1, 7.7-2]
#[test]
fn data_in_out_of_order_ends_the_session() {
    for (data_sn, offset) in [(1u32, 0u32), (0, 4), (u32::MAX, 0)] {
        let mut pair = Setup::default().log_in();
        pair.submit(read(1, 0, 100));
        let mut data_in = DataIn::new();
        data_in.initiator_task_tag = number(&requests(&mut pair)[0], 16).into();
        data_in.data_sn = data_sn.into();
        data_in.buffer_offset = offset.into();
        requests_after_with(&mut pair, &data_in, &[1; 8]);
        assert!(matches!(pair.initiator_closed, Some(CloseReason::Protocol(_))), "{data_sn} {offset}");
    }
}

// shows RFC 7143 [11.7-1, 11.7.2-2, 11.4.5.1-2]
#[test]
fn status_in_data_in_is_taken_and_what_is_not_valid_in_it_is_ignored() {
    let mut pair = Setup::default().log_in();
    pair.submit(read(1, 0, 8));
    let mut data_in = DataIn::new();
    data_in.flags = 0x80 | DataIn::STATUS | DataIn::ACKNOWLEDGE;
    data_in.initiator_task_tag = number(&requests(&mut pair)[0], 16).into();
    data_in.residual_count = 99.into();
    assert_eq!(
        requests_after_with(&mut pair, &data_in, &[1; 8]),
        Vec::<Vec<u8>>::new(),
        "no SNACK at level 0"
    );
    let completed = pair.completed.pop().expect("an answer");
    assert_eq!((completed.status, completed.data_in_len), (0, 8));
    assert_eq!(completed.residual, lunway_iscsi::initiator::Residual::None);
}

// shows RFC 7143 [11.4.3-1]
#[test]
fn without_command_completed_status_and_residual_mean_nothing() {
    let mut pair = Setup::default().log_in();
    pair.submit(read(1, 0, 8));
    let mut response = ScsiResponse::new();
    response.flags |= ScsiResponse::UNDERFLOW;
    response.response = ServiceResponse::TARGET_FAILURE;
    response.status = 0x18;
    response.residual_count = 3.into();
    response.initiator_task_tag = number(&requests(&mut pair)[0], 16).into();
    requests_after(&mut pair, &response);
    let completed = pair.completed.pop().expect("an answer");
    assert_eq!((completed.response, completed.status), (ServiceResponse::TARGET_FAILURE, 0));
    assert_eq!(completed.residual, lunway_iscsi::initiator::Residual::None);
}

// shows RFC 7143 [11.2.1.8-1, 11.2.1.8-2, 11.3.4-2, 11.2.1.5-1, 11.2.1.6-1]
#[test]
fn no_two_tasks_have_the_same_tag_and_none_the_reserved_one() {
    let mut pair = Setup::default().log_in();
    let mut tags = std::collections::HashSet::new();
    for token in 0..100 {
        pair.submit(if token % 2 == 0 { read(token, 0, 4) } else { write(token, 0, &[1; 4]) });
        if token % 10 == 0 {
            pair.initiator.manage_task(token, TaskManagementFunction::LOGICAL_UNIT_RESET, [0; 8], None);
        }
    }
    for pdu in requests(&mut pair) {
        assert!(tags.insert(number(&pdu, 16)), "a tag twice");
        assert_eq!((pdu[1] & 0x80, pdu[4]), (0x80, 0), "F, and no additional headers");
        assert_eq!(pdu.len() - 48, usize::from(pdu[7]), "no data but what the header says");
    }
    assert!(tags.len() == 110 && !tags.contains(&RESERVED_TAG));
}

// shows RFC 7143 [11.2.2.3-1, 11.3.5-1]
#[test]
fn a_cdb_goes_on_in_an_additional_header_only_where_it_is_longer_than_16_bytes() {
    for (len, ahs_words) in [(6, 0), (16, 0), (17, 2), (32, 5)] {
        let mut pair = Setup::default().log_in();
        let mut submission = read(1, 0, 4);
        let cdb: Vec<u8> = (1..=len).collect();
        submission.cdb = lunway_iscsi::Cdb::new(&cdb);
        pair.submit(submission);
        let pdu = requests(&mut pair).remove(0);
        assert_eq!(pdu[4], ahs_words, "{len} bytes");
        if ahs_words > 0 {
            assert_eq!((&pdu[48..51], pdu[52]), (&[0, len - 15, 1][..], 17));
        }
    }
}

// shows RFC 7143 [11.8-5, 11.7.4-2, 11.8.4-1]
#[test]
fn r2ts_follow_each_other_without_gap_or_overlap_and_name_the_commands_lun() {
    let parameters = Parameters {
        immediate_data: false,
        initial_r2t: true,
        max_burst_length: 1024,
        max_outstanding_r2t: 2,
        ..Parameters::default()
    };
    let mut pair = both(parameters).log_in();
    let mut write = ScsiCommand::new();
    write.flags = 0x80 | ScsiCommand::WRITE;
    write.lun = 0x0005_0000_0000_0000.into();
    write.expected_data_transfer_length = 2500.into();
    write.initiator_task_tag = 6.into();
    write.cmd_sn = 1.into();
    write.cdb[0] = WRITE;
    let mut r2ts = answers_to(&mut pair, &write, &[]);
    assert_eq!(r2ts.len(), 2, "as many as were agreed on");
    let mut data_out = DataOut::new();
    data_out.flags = 0x80;
    data_out.initiator_task_tag = 6.into();
    data_out.target_transfer_tag = number(&r2ts[0].1, 20).into();
    data_out.lun = 0x0005_0000_0000_0000.into();
    r2ts.extend(answers_to(&mut pair, &data_out, &[1; 1024]));
    let pieces: Vec<_> =
        r2ts.iter().map(|(_, pdu)| (number(pdu, 36), number(pdu, 40), number(pdu, 44))).collect();
    assert_eq!(pieces, [(0, 0, 1024), (1, 1024, 1024), (2, 2048, 452)]);
    assert!(r2ts.iter().all(|(_, pdu)| pdu[8..10] == [0, 5]));
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

// shows RFC 7143 [11.18.1-1, 11.18.1-3, 11.18.2-1]
#[test]
fn the_initiators_ping_asks_for_an_answer_and_passes_the_window() {
    let mut pair = Setup::default().log_in();
    for _ in 0..2 {
        pair.now += Duration::from_secs(6);
        pair.initiator.handle_timeout(pair.now);
    }
    let ping = requests(&mut pair).remove(0);
    assert_eq!((ping[0], ping.len()), (IMMEDIATE, 48), "an immediate NOP-Out");
    assert!(number(&ping, 16) != RESERVED_TAG && number(&ping, 20) == RESERVED_TAG);
}

// shows RFC 7143 [7.8-5, 7.8-6, 7.8-7]
#[test]
fn an_initiator_that_gets_broken_data_uses_nothing_of_it_and_leaves() {
    let digests =
        Parameters { data_digest: lunway_iscsi::negotiation::DigestPolicy::Require, ..Parameters::default() };
    let mut pair = both(digests).log_in();
    pair.submit(read(1, 0, 8));
    let mut data_in = DataIn::new();
    data_in.flags = 0x80 | DataIn::STATUS;
    data_in.initiator_task_tag = number(&requests(&mut pair)[0], 16).into();
    let mut bytes = to_bytes(&data_in).to_vec();
    bytes[7] = 8;
    bytes.extend_from_slice(&[1; 8]);
    bytes.extend_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(requests_after_bytes(&mut pair, &bytes), Vec::<Vec<u8>>::new());
    assert!(matches!(pair.initiator_closed, Some(CloseReason::Protocol(_))));
    assert!(pair.completed.is_empty());
    assert_eq!(pair.initiator.take_unanswered().len(), 1, "the command is unanswered");
}
