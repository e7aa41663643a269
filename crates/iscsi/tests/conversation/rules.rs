//! What RFC 7143 asks of each side in its phases, numbering, commands and task management, looked at PDU by PDU.

use lunway_iscsi::CloseReason;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::requests::*;
use crate::wire::*;

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
    pair.initiator.manage_task(9, TaskManagementCode::LOGICAL_UNIT_RESET, [0, 2, 0, 0, 0, 0, 0, 0], None);
    pair.initiator.manage_task(9, TaskManagementCode::ABORT_TASK, [0; 8], Some(1));
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

// shows RFC 7143 [11.5.1-8]
#[test]
fn a_task_management_request_cannot_be_aborted() {
    let mut pair = Setup::default().log_in();
    let mut management = TaskManagementRequest::new();
    management.opcode.0 |= IMMEDIATE;
    management.set_function(TaskManagementCode::ABORT_TASK);
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
    management.set_function(TaskManagementCode::TASK_REASSIGN);
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
            pair.initiator.manage_task(token, TaskManagementCode::LOGICAL_UNIT_RESET, [0; 8], None);
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
