//! Answers that a connection has lost although it lives, and acknowledgements of what was never sent.

use lunway_iscsi::CloseReason;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::requests::{number, requests, requests_after};
use crate::wire::*;

/// One command after another, each answered.
fn exchange(pair: &mut Pair, count: u64) {
    for token in 0..count {
        pair.submit(read(token, 0, 4));
        pair.run();
    }
    assert_eq!(pair.completed.len() as u64, count);
    pair.completed.clear();
}

/// The answers to these commands vanish between target and initiator.
fn lose(pair: &mut Pair, tokens: &[u64]) {
    for &token in tokens {
        pair.submit(read(token, 0, 4));
        for command in requests(pair) {
            assert!(!answers_to_bytes(pair, &command).is_empty(), "the answer that is lost");
        }
    }
}

fn is_missing(pair: &Pair) -> bool {
    matches!(&pair.initiator_closed, Some(CloseReason::Missing(why)) if why.contains("StatSN"))
}

// shows RFC 7143 [4.2.2.2-1, 7.9-3]
#[test]
fn an_answer_after_one_that_was_lost_ends_the_session_and_gives_both_commands_back() {
    let mut pair = Setup::default().log_in();
    exchange(&mut pair, 20);
    lose(&mut pair, &[100]);
    pair.submit(read(101, 0, 4));
    pair.run();
    assert!(is_missing(&pair), "{:?}", pair.initiator_closed);
    let why = pair.initiator_closed.as_ref().map(ToString::to_string).unwrap_or_default();
    let numbers: Vec<u32> =
        why.split(|at: char| !at.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
    assert!(matches!(numbers[..], [expected, came] if came == expected + 1), "both numbers are said: {why}");
    let again: Vec<u64> = pair.initiator.take_unanswered().iter().map(|one| one.token).collect();
    assert_eq!((again, pair.completed.len()), (vec![100, 101], 0));
}

#[test]
fn the_answer_to_a_ping_shows_that_one_before_it_was_lost() {
    let mut pair = Setup::default().log_in();
    exchange(&mut pair, 20);
    lose(&mut pair, &[100]);
    pair.initiator.ping();
    pair.run();
    assert!(is_missing(&pair), "{:?}", pair.initiator_closed);
}

#[test]
fn numbers_that_a_ping_of_the_target_or_an_r2t_carries_show_a_lost_answer_once_they_were_in_step() {
    for learned in [15u32, 16] {
        let mut pair = Setup::default().log_in();
        exchange(&mut pair, 20);
        pair.initiator.ping();
        let stat_sn = number(&requests(&mut pair)[0], 28);
        let mut ping = NopIn::new();
        (ping.initiator_task_tag, ping.target_transfer_tag) = (RESERVED_TAG.into(), 5.into());
        ping.stat_sn = stat_sn.into();
        for _ in 0..learned {
            assert_eq!(requests_after(&mut pair, &ping).len(), 1, "answered");
        }
        ping.stat_sn = (stat_sn + 1).into();
        requests_after(&mut pair, &ping);
        assert_eq!(is_missing(&pair), learned == 16, "{:?}", pair.initiator_closed);
    }
}

#[test]
fn a_target_that_was_not_in_step_before_is_not_taken_at_its_word() {
    let mut pair = Setup::default().log_in();
    exchange(&mut pair, 3);
    lose(&mut pair, &[100]);
    pair.submit(read(101, 0, 4));
    pair.run();
    assert_eq!((pair.completed.len(), &pair.initiator_closed), (1, &None));
}

#[test]
fn an_older_number_is_no_gap() {
    let mut pair = Setup::default().log_in();
    exchange(&mut pair, 20);
    pair.submit(read(100, 0, 4));
    let command = requests(&mut pair).remove(0);
    answers_to_bytes(&mut pair, &command);
    let mut response = ScsiResponse::new();
    response.initiator_task_tag = number(&command, 16).into();
    response.stat_sn = 3.into();
    requests_after(&mut pair, &response);
    assert_eq!((pair.completed.len(), &pair.initiator_closed), (1, &None));
    pair.submit(read(101, 0, 4));
    pair.run();
    assert_eq!((pair.completed.len(), &pair.initiator_closed), (2, &None), "nor is the number after it");
}

// shows RFC 7143 [4.2.3.3-4]
#[test]
fn a_command_that_the_target_does_not_know_and_never_answered_comes_back() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    pair.submit(read(1, 0, 4));
    pair.run();
    // The target loses it, without an answer.
    let command = pair.held.pop().expect("held");
    pair.initiator.manage_task(50, TaskManagementCode::ABORT_TASK, [0; 8], Some(1));
    let request = requests(&mut pair).remove(0);
    let mut response = TaskManagementResponse::new();
    response.initiator_task_tag = number(&request, 16).into();
    response.response = TaskManagementResult::TASK_DOES_NOT_EXIST;
    response.stat_sn = number(&request, 28).into();
    requests_after(&mut pair, &response);
    drop(command);
    assert_eq!(pair.managed, [(50, TaskManagementResult::TASK_DOES_NOT_EXIST)]);
    assert!(matches!(pair.initiator_closed, Some(CloseReason::Missing(_))), "{:?}", pair.initiator_closed);
    assert_eq!(pair.initiator.take_unanswered()[0].token, 1);
}

#[test]
fn an_answer_says_how_much_of_the_data_was_sent() {
    let parameters = Parameters { first_burst_length: 8192, ..Parameters::default() };
    for (asked, sent) in [(0, 8192), (4096, 12_288), (56 << 10, 65_536)] {
        let mut pair =
            Setup { initiator: parameters.clone(), target: parameters.clone(), ..Setup::default() }.log_in();
        pair.submit(write(1, 0, &[7; 65_536]));
        let command = requests(&mut pair).remove(0);
        assert_eq!(command.len(), 48 + 8192, "immediate data");
        if asked > 0 {
            let mut r2t = R2t::new();
            r2t.initiator_task_tag = number(&command, 16).into();
            r2t.target_transfer_tag = 5.into();
            (r2t.buffer_offset, r2t.desired_data_transfer_length) = (8192.into(), asked.into());
            requests_after(&mut pair, &r2t);
        }
        let mut response = ScsiResponse::new();
        response.initiator_task_tag = number(&command, 16).into();
        requests_after(&mut pair, &response);
        assert_eq!(pair.completed[0].data_out_len, sent);
    }
}
