//! Peers as they are: what other initiators and targets do that a strict reading of RFC 7143 would end a session for.

use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;
use lunway_iscsi::target::{Completion, TargetConnectionConfig};

use crate::requests::{both, number, opcode, requests, requests_after, requests_after_with};
use crate::wire::*;

/// A read of no data under this number, with the number as its tag.
fn numbered(cmd_sn: u32) -> ScsiCommand {
    let mut command = ScsiCommand::new();
    command.flags = 0x80;
    command.initiator_task_tag = cmd_sn.into();
    command.cmd_sn = cmd_sn.into();
    command
}

// shows RFC 7143 [4.2.2.1-5]
#[test]
fn commands_of_a_whole_window_may_arrive_in_any_order_on_one_connection() {
    let mut pair = Setup::default().log_in();
    let window = u32::from(TargetConnectionConfig::default().command_window);
    pair.hold = true;
    // Multiplied by an odd number they are shuffled; 0, the first of them, comes last. Some come twice.
    for step in 1..window {
        let cmd_sn = 1 + step * 45 % window;
        for _ in 0..1 + step % 2 {
            assert_eq!(answers_to(&mut pair, &numbered(cmd_sn), &[]), []);
        }
    }
    assert_eq!((pair.held.len(), &pair.target_closed), (0, &None));
    answers_to(&mut pair, &numbered(1), &[]);
    assert_eq!(pair.held.len(), window as usize);
    for command in std::mem::take(&mut pair.held) {
        pair.target.complete(command.task, Completion::default());
    }
    let answers = answers_to_bytes(&mut pair, &[]);
    let tags: Vec<u32> = answers.iter().map(|(_, pdu)| number(pdu, 16)).collect();
    assert_eq!(tags, (1..=window).collect::<Vec<_>>(), "in the order of their numbers");
}

#[test]
fn functions_that_wait_for_commands_sent_before_them_are_rejected_when_too_many_and_the_session_goes_on() {
    let mut pair = Setup::default().log_in();
    let mut management = TaskManagementRequest::new();
    management.opcode.set_immediate(true);
    management.set_function(TaskManagementCode::LOGICAL_UNIT_RESET);
    management.cmd_sn = 2.into();
    let answers: Vec<_> = (0..33)
        .flat_map(|tag| {
            management.initiator_task_tag = tag.into();
            answers_to(&mut pair, &management, &[])
        })
        .collect();
    assert_eq!((answers.len(), answers[0].0), (1, Opcode::REJECT));
    assert_eq!(answers[0].1[2], RejectReason::IMMEDIATE_COMMAND_REJECT.0);
    let answers = answers_to(&mut pair, &numbered(1), &[]);
    assert_eq!((answers.len(), &pair.target_closed), (33, &None), "32 functions, then the command");
}

/// A Login Response of a target that is written by hand.
fn response(isid: Isid, flags: u8) -> LoginResponse {
    let mut response = LoginResponse::new();
    response.isid = isid;
    response.flags = flags;
    response.max_cmd_sn = 8.into();
    response
}

/// Logs in to a target that answers with this ISID, and ends with this text.
fn log_in_to(isid: Isid, last: &[u8]) -> Pair {
    let mut pair = Setup::default().connect();
    requests(&mut pair);
    requests_after(&mut pair, &response(isid, 0x81));
    requests_after_with(&mut pair, &response(isid, 0x87), last);
    pair
}

#[test]
fn a_login_response_with_another_isid_is_taken_and_told_of_once() {
    for isid in [[0; 6], [0xff, 0xff, 0xff, 0x80, 1, 2]] {
        let pair = log_in_to(isid, &[]);
        assert!(pair.initiator.logged_in().is_some(), "{:?}", pair.initiator_closed);
        let [told] = &pair.tolerated[..] else { panic!("{:?}", pair.tolerated) };
        assert!(told.contains("our request had 0x800102030405"), "{told}");
    }
    assert_eq!(log_in_to([0x80, 1, 2, 3, 4, 5], &[]).tolerated, Vec::<String>::new());
}

#[test]
fn offers_with_the_last_response_do_not_end_the_login() {
    let pair = log_in_to([0x80, 1, 2, 3, 4, 5], b"IFMarker=No\0OFMarker=No\0X-vendor.key=1\0");
    assert!(pair.initiator.logged_in().is_some(), "{:?}", pair.initiator_closed);
    let [told] = &pair.tolerated[..] else { panic!("{:?}", pair.tolerated) };
    assert!(told.contains("IFMarker=No") && told.contains("X-vendor.key=NotUnderstood"), "{told}");
}

// shows RFC 7143 [9.2-2]
#[test]
fn a_login_that_is_left_says_what_was_expected_and_what_came() {
    let closed = |flags: u8, data: &[u8]| {
        let mut pair = Setup::default().connect();
        requests(&mut pair);
        requests_after_with(&mut pair, &response([0x80, 1, 2, 3, 4, 5], flags), data);
        pair.initiator_closed.expect("left").to_string()
    };
    for (flags, data, parts) in [
        (0x04, &b""[..], ["\"login operational negotiation\"", "we are in \"security negotiation\""]),
        (0x83, b"", ["goes on to \"full feature phase\"", "we asked for \"login operational negotiation\""]),
        (0x00, b"AuthMethod=KRB5\0", ["we offered None", "answered \"KRB5\""]),
        (0x00, b"TargetPortalGroupTag=65536\0", ["TargetPortalGroupTag=\"65536\"", "from 0 to 65535"]),
    ] {
        let why = closed(flags, data);
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
}

/// A write of 4096 bytes to LUN 1 of which everything is asked for, and an R2T for all of it.
fn write_to_lun_1() -> (Pair, R2t) {
    let parameters = Parameters {
        immediate_data: false,
        initial_r2t: true,
        max_burst_length: 2048,
        ..Parameters::default()
    };
    let mut pair = both(parameters).log_in();
    let mut submission = write(1, 0, &[7; 4096]);
    submission.lun = [0, 1, 0, 0, 0, 0, 0, 0];
    pair.submit(submission);
    let command = requests(&mut pair).remove(0);
    let mut r2t = R2t::new();
    r2t.initiator_task_tag = number(&command, 16).into();
    r2t.target_transfer_tag = 5.into();
    r2t.desired_data_transfer_length = 2048.into();
    (pair, r2t)
}

// shows RFC 7143 [11.7.4-2]
#[test]
fn an_r2t_without_its_lun_is_answered_and_told_of_once() {
    let (mut pair, mut r2t) = write_to_lun_1();
    for (r2t_sn, at) in [(0, 0), (1, 2048)] {
        (r2t.r2t_sn, r2t.buffer_offset) = (r2t_sn.into(), at.into());
        let data = requests_after(&mut pair, &r2t);
        assert!(pair.initiator_closed.is_none(), "{:?}", pair.initiator_closed);
        assert_eq!((data.len(), opcode(&data[0]), number(&data[0], 40)), (1, Opcode::DATA_OUT, at));
        assert_eq!(data[0][8..16], [0, 1, 0, 0, 0, 0, 0, 0], "the LUN of the command");
    }
    let [told] = &pair.tolerated[..] else { panic!("{:?}", pair.tolerated) };
    assert!(told.contains("LUN 0") && told.contains("[00, 01, 00"), "{told}");
}

#[test]
fn an_r2t_for_more_than_a_burst_is_answered_and_told_of() {
    let (mut pair, mut r2t) = write_to_lun_1();
    r2t.lun = (1u64 << 48).into();
    r2t.desired_data_transfer_length = 4096.into();
    let data = requests_after(&mut pair, &r2t);
    assert_eq!((data.iter().map(|pdu| pdu.len() - 48).sum::<usize>(), pair.initiator_closed), (4096, None));
    assert!(pair.tolerated[0].contains("4096") && pair.tolerated[0].contains("2048"), "{:?}", pair.tolerated);
}

// shows RFC 7143 [4.2.5.3-1]
#[test]
fn an_r2t_of_another_lun_or_for_other_data_ends_the_connection_and_both_values_are_said() {
    for (change, parts) in [
        ((|r2t| r2t.lun = (2u64 << 48).into()) as fn(&mut R2t), ["LUN [00, 02", "LUN [00, 01"]),
        (|r2t| r2t.buffer_offset = 4096.into(), ["2048 bytes at 4096", "has 4096 bytes"]),
        (|r2t| r2t.desired_data_transfer_length = 0.into(), ["0 bytes at 0", "has 4096 bytes"]),
    ] {
        let (mut pair, mut r2t) = write_to_lun_1();
        change(&mut r2t);
        requests_after(&mut pair, &r2t);
        let why = pair.initiator_closed.expect("left").to_string();
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
}
