//! Conversations of the two cores with each other.

mod commands;
mod data;
mod hostile_target;
mod login;
mod lost_answers;
mod memory;
mod order;
mod pings;
mod recovery;
mod requests;
mod rules;
mod sessions;
mod text;
mod tolerance;
mod waiting;
mod wire;

use std::time::Duration;

use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::{
    AsyncEvent, Opcode, ServiceResponse, TaskManagementCode, TaskManagementResult, view,
};
use lunway_iscsi::{CloseReason, SendTargets, TargetRecord};
use proptest::prelude::*;
use wire::*;

fn digests() -> Parameters {
    Parameters {
        header_digest: DigestPolicy::Require,
        data_digest: DigestPolicy::Require,
        ..Parameters::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // shows RFC 7143 [4.2.2.1-12, 4.2.2.4-1, 4.2.5.2-3, 11.7.1-1, 11.8-1, 13.1-2, 13.14-1, 11.1-1]
    // shows RFC 7143 [13.1-3, 4.2.5.2-6]
    #[test]
    fn data_survives_every_combination_of_parameters_and_every_splitting(
        seed in 1u64..,
        piece in prop_oneof![Just(1usize), Just(7), Just(100), Just(5000), Just(1 << 20)],
        immediate_data: bool,
        initial_r2t: bool,
        digest: bool,
        first_burst in 512u32..9000,
        max_burst in 512u32..9000,
        segment_initiator in 512u32..9000,
        segment_target in 512u32..9000,
        outstanding in 1u16..5,
        window in 1u16..9,
    ) {
        let digest = if digest { DigestPolicy::Require } else { DigestPolicy::Allow };
        let parameters = Parameters {
            header_digest: digest,
            data_digest: digest,
            immediate_data,
            initial_r2t,
            first_burst_length: first_burst.min(max_burst),
            max_burst_length: max_burst,
            max_outstanding_r2t: outstanding,
            ..Parameters::default()
        };
        let pair = Setup {
            initiator: Parameters { max_recv_data_segment_length: segment_initiator, ..parameters.clone() },
            target: Parameters { max_recv_data_segment_length: segment_target, ..parameters },
            configure: match window {
                1 => |config| { config.data_out_budget = 20_000; config.command_window = 1 },
                2..4 => |config| { config.data_out_budget = 1; config.command_window = 3 },
                _ => |config| { config.data_out_budget = 20_000; config.command_window = 8 },
            },
            seed,
            piece,
            ..Setup::default()
        };
        let mut pair = pair.log_in();
        let mut random = Random::new(seed);
        let mut model = pair.disk.clone();
        for round in 0..6u64 {
            // Pieces that do not overlap, as operations in flight together have no order.
            let lane = DISK_LEN / 8;
            let mut expected = Vec::new();
            for token in 0..8u64 {
                if !pair.initiator.can_submit() {
                    prop_assert!(token > 0, "an idle window is never closed");
                    break;
                }
                let at = token as usize * lane;
                let len = 1 + random.below(lane);
                if random.below(2) == 0 {
                    let data: Vec<u8> = (0..len).map(|i| (i as u64 * 31 + token + round * 97) as u8).collect();
                    model[at..at + len].copy_from_slice(&data);
                    pair.submit(write(token, at, &data));
                    expected.push((token, Vec::new()));
                } else {
                    pair.submit(read(token, at, len));
                    expected.push((token, model[at..at + len].to_vec()));
                }
            }
            pair.run();
            pair.completed.sort_by_key(|completed| completed.token);
            let got: Vec<(u64, Vec<u8>)> =
                pair.completed.drain(..).map(|done| {
                    assert_eq!((done.response, done.status), (ServiceResponse::COMPLETED, 0));
                    (done.token, done.data_in[..done.data_in_len].to_vec())
                }).collect();
            prop_assert_eq!(got, expected);
        }
        prop_assert!(pair.disk == model, "the disk differs from the model");
        prop_assert!(pair.in_flight_most <= 8);
    }

    #[test]
    fn neither_end_panics_when_bytes_are_broken_anywhere(
        seed in 1u64.., position in 0usize..60_000, value: u8, digest: bool, to_target: bool,
    ) {
        let parameters = if digest { digests() } else { Parameters::default() };
        let mut pair =
            Setup { initiator: parameters.clone(), target: parameters, seed, ..Setup::default() }.log_in();
        for token in 0..4 {
            pair.submit(write(token, token as usize * 9000, &[token as u8; 9000]));
            pair.submit(read(10 + token, token as usize * 9000, 9000));
        }
        // Let a part through, then break what is in the pipe.
        let mut slices = Vec::new();
        pair.initiator.gather(&mut slices, 1000);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        pair.initiator.sent(bytes.len());
        pair.to_target.extend(bytes);
        if !to_target {
            let n = pair.to_target.len();
            feed(&mut pair, n);
            let mut slices = Vec::new();
            pair.target.gather(&mut slices, 1000);
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            pair.target.sent(bytes.len());
            pair.to_initiator.extend(bytes);
        }
        let pipe = if to_target { &mut pair.to_target } else { &mut pair.to_initiator };
        if let Some(byte) = pipe.get_mut(position) {
            *byte ^= value;
        }
        // A broken offset may point outside the disk of this test; the driver would answer with an error.
        pair.hold = true;
        pair.run();
    }
}

// shows RFC 7143 [4.2.2.1-10]
#[test]
fn a_command_outside_the_window_is_ignored_and_the_next_one_inside_is_not() {
    let mut pair = Setup::default().log_in();
    let mut command = lunway_iscsi::pdu::ScsiCommand::new();
    command.flags = 0x80;
    command.initiator_task_tag = 5.into();
    for cmd_sn in [0u32, 1 + 128, u32::MAX] {
        command.cmd_sn = cmd_sn.into();
        assert_eq!(answers_to(&mut pair, &command, &[]), [], "CmdSN {cmd_sn}");
    }
    command.cmd_sn = 1.into();
    let answers = answers_to(&mut pair, &command, &[]);
    assert_eq!(answers[0].0, Opcode::SCSI_RESPONSE);
}

// shows RFC 7143 [4.2.2.1-5, 4.2.2.1-7]
#[test]
fn commands_that_arrive_out_of_order_are_delivered_in_order() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    let mut command = lunway_iscsi::pdu::ScsiCommand::new();
    command.flags = 0x80;
    for (tag, cmd_sn) in [(30u32, 3u32), (20, 2), (10, 1)] {
        command.initiator_task_tag = tag.into();
        command.cdb[0] = tag as u8;
        command.cmd_sn = cmd_sn.into();
        answers_to(&mut pair, &command, &[]);
    }
    let order: Vec<u8> = pair.held.iter().map(|command| command.cdb[0]).collect();
    assert_eq!(order, [10, 20, 30]);
}

#[test]
fn a_task_tag_in_use_is_rejected() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    let mut command = lunway_iscsi::pdu::ScsiCommand::new();
    command.flags = 0x80;
    command.initiator_task_tag = 5.into();
    command.cmd_sn = 1.into();
    assert_eq!(answers_to(&mut pair, &command, &[]), []);
    command.cmd_sn = 2.into();
    let answers = answers_to(&mut pair, &command, &[]);
    assert_eq!(answers[0].0, Opcode::REJECT);
    assert_eq!(answers[0].1[2], 0x07, "task in progress");
}

// shows RFC 7143 [11-3, 11.2.1.2-1]
#[test]
fn unknown_opcodes_and_snacks_are_rejected_and_the_session_goes_on() {
    let mut pair = Setup::default().log_in();
    let mut nop = lunway_iscsi::pdu::NopOut::new();
    for (opcode, reason) in [(0x1cu8, 0x05), (0x3f, 0x05), (0x10, 0x03)] {
        nop.opcode.0 = opcode;
        let answers = answers_to(&mut pair, &nop, &[]);
        assert_eq!((answers[0].0, answers[0].1[2]), (Opcode::REJECT, reason), "opcode {opcode:#x}");
    }
    pair.submit(read(1, 0, 100));
    pair.run();
    assert_eq!(pair.completed.len(), 1);
}

// shows RFC 7143 [7.9-2, 11.4.7-1, 10.7-2, 4.6.1.2-1]
#[test]
fn data_out_with_a_wrong_data_sn_or_offset_ends_the_command_and_not_the_session() {
    for (data_sn, offset) in [(1u32, 0u32), (0, 512), (u32::MAX, 0)] {
        let mut pair = Setup::default().log_in();
        let mut command = lunway_iscsi::pdu::ScsiCommand::new();
        command.flags = 0x80 | 0x20;
        command.initiator_task_tag = 5.into();
        command.expected_data_transfer_length = 1024.into();
        command.cmd_sn = 1.into();
        command.cdb[0] = WRITE;
        let answers = answers_to(&mut pair, &command, &[]);
        assert_eq!(answers[0].0, Opcode::R2T);
        let header: [u8; 48] = answers[0].1[..48].try_into().unwrap();
        let r2t = view::<lunway_iscsi::pdu::R2t>(&header);
        assert_eq!(r2t.desired_data_transfer_length.get(), 1024);
        let mut data_out = lunway_iscsi::pdu::DataOut::new();
        data_out.initiator_task_tag = 5.into();
        data_out.target_transfer_tag = r2t.target_transfer_tag;
        data_out.data_sn = data_sn.into();
        data_out.buffer_offset = offset.into();
        let answers = answers_to(&mut pair, &data_out, &[1; 512]);
        assert_eq!(answers[0].0, Opcode::SCSI_RESPONSE);
        assert_eq!(answers[0].1[3], 2, "CHECK CONDITION");
        assert_eq!(answers[0].1[48 + 2 + 2], 0x0b, "ABORTED COMMAND");
        // What still comes of the sequence finds no task and is ignored.
        data_out.flags = 0x80;
        assert_eq!(answers_to(&mut pair, &data_out, &[1; 512]), []);
        assert!(pair.target_closed.is_none());
    }
}

// shows RFC 7143 [7.8-2, 7.8-3, 11.4.7-2]
#[test]
fn a_broken_data_digest_of_a_data_out_is_rejected_and_ends_its_command_only() {
    let parameters = Parameters { immediate_data: false, ..digests() };
    let mut pair = Setup { initiator: parameters.clone(), target: parameters, ..Setup::default() }.log_in();
    pair.submit(write(1, 0, &[7; 600]));
    // Command out, R2T back, then break one byte of the Data-Out.
    let mut broken = false;
    for _ in 0..100 {
        let mut slices = Vec::new();
        pair.initiator.gather(&mut slices, 1000);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        pair.initiator.sent(bytes.len());
        pair.to_target.extend(bytes);
        if pair.to_target.len() > 500 && !broken {
            pair.to_target[300] ^= 1;
            broken = true;
        }
        pair.run();
    }
    assert!(broken);
    assert_eq!(pair.completed.len(), 1);
    assert_eq!(pair.completed[0].status, 2);
    assert_eq!(pair.completed[0].sense[12..14], [0x47, 0x05], "protocol service CRC error");
    assert_ne!(pair.disk[..600], [7; 600]);
    pair.completed.clear();
    pair.submit(read(2, 0, 600));
    pair.run();
    assert_eq!(pair.completed[0].status, 0, "the session goes on");
}

// shows RFC 7143 [11.5.1-2, 7.11-3, 11.5.1-1]
#[test]
fn a_command_that_waits_for_data_can_be_aborted_and_its_tag_used_again() {
    let parameters = Parameters { immediate_data: false, initial_r2t: true, ..Parameters::default() };
    let mut pair = Setup { initiator: parameters.clone(), target: parameters, ..Setup::default() }.log_in();
    pair.hold = true;
    pair.submit(read(1, 0, 100));
    pair.run();
    assert_eq!(pair.held.len(), 1);
    pair.initiator.manage_task(50, TaskManagementCode::ABORT_TASK, [0; 8], Some(1));
    pair.run();
    assert_eq!(pair.managed, [(50, TaskManagementResult::COMPLETE)]);
    let command = pair.held.pop().unwrap();
    pair.execute(command);
    pair.run();
    assert!(pair.completed.is_empty(), "an aborted command has no answer");
    pair.initiator.manage_task(51, TaskManagementCode::ABORT_TASK, [0; 8], Some(1));
    pair.run();
    assert_eq!(pair.managed[1], (51, TaskManagementResult::TASK_DOES_NOT_EXIST));
    assert_eq!(pair.target.commands_in_flight(), 0);
}

#[test]
fn unanswered_commands_come_back_in_the_order_of_submission() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    for token in [5, 3, 9] {
        pair.submit(read(token, 0, 100));
    }
    pair.submit(write(1, 0, &[1; 5000]));
    pair.run();
    let back = pair.initiator.take_unanswered();
    let tokens: Vec<u64> = back.iter().map(|submission| submission.token).collect();
    assert_eq!(tokens, [5, 3, 9, 1]);
    assert_eq!((back[0].data_in.len(), back[3].data_out.len()), (100, 5000));
}

// shows RFC 7143 [11.11.6-1, 11.11.4-1, 11.10.4-1, C-3, 11.11.2-1]
#[test]
fn a_discovery_with_more_targets_than_fit_into_a_pdu_finds_them_all() {
    let small = Parameters { max_recv_data_segment_length: 512, ..Parameters::default() };
    let mut pair = Setup { initiator: small, discovery: true, ..Setup::default() }.log_in();
    pair.targets = (0..2000)
        .map(|n| TargetRecord {
            name: format!("iqn.2026-11.test:target-{n}"),
            addresses: vec![(format!("192.0.2.{n}:3260"), 1), (format!("[2001:db8::{n}]:3260"), 2)],
        })
        .collect();
    pair.initiator.send_targets(&SendTargets::All);
    pair.run();
    assert!(pair.found.as_ref() == Some(&pair.targets), "all 2000, in order");
    pair.initiator.send_targets(&SendTargets::Named("iqn.2026-11.test:target-7".into()));
    pair.run();
    assert_eq!(pair.found.as_deref(), Some(&pair.targets[7..8]));
}

#[test]
fn a_silent_peer_is_pinged_and_given_up_when_it_does_not_answer() {
    let mut pair = Setup::default().log_in();
    let mut now = pair.now;
    for _ in 0..6 {
        now += Duration::from_secs(11);
        pair.target.handle_timeout(now);
        pair.initiator.handle_timeout(now);
        pair.run();
    }
    assert_eq!((&pair.target_closed, &pair.initiator_closed), (&None, &None), "both answer pings");
    for _ in 0..3 {
        now += Duration::from_secs(11);
        pair.target.handle_timeout(now);
        pair.initiator.handle_timeout(now);
    }
    pair.target_events();
    pair.initiator_events();
    assert_eq!(pair.target_closed, Some(CloseReason::PingTimeout));
    assert_eq!(pair.initiator_closed, Some(CloseReason::PingTimeout));
}

#[test]
fn a_login_that_does_not_come_is_given_up() {
    let mut pair = Setup::default().connect();
    let deadline = pair.target.next_timeout().unwrap();
    pair.target.handle_timeout(deadline);
    pair.target_events();
    assert_eq!(pair.target_closed, Some(CloseReason::LoginTimeout));
}

// shows RFC 7143 [11.9.1-1, 11.14-2]
#[test]
fn an_initiator_that_is_asked_to_log_out_can_do_so_and_is_dropped_otherwise() {
    for obeys in [true, false] {
        let mut pair = Setup::default().log_in();
        let now = pair.now;
        pair.target.request_logout(Duration::from_secs(3), now);
        pair.run();
        assert_eq!(pair.messages[0].event, AsyncEvent::LOGOUT_REQUEST);
        assert_eq!(pair.messages[0].parameters[2], 3);
        if obeys {
            pair.initiator.logout();
            pair.run();
            assert_eq!(pair.initiator_closed, Some(CloseReason::LoggedOut));
            assert_eq!(pair.target_closed, Some(CloseReason::LoggedOut));
        } else {
            pair.target.handle_timeout(now + Duration::from_secs(4));
            pair.target_events();
            assert_eq!(pair.target_closed, Some(CloseReason::LogoutTimeout));
        }
    }
}

// shows RFC 7143 [4.2.2.1-3]
#[test]
fn a_lun_reset_leaves_commands_alone_that_were_sent_after_it() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    pair.submit(read(1, 0, 100));
    pair.run();
    // One batch: the reset, then another command. What is in flight before is aborted, what comes after is not.
    pair.initiator.manage_task(50, TaskManagementCode::LOGICAL_UNIT_RESET, [0; 8], None);
    pair.submit(read(2, 0, 100));
    pair.run();
    assert_eq!(pair.managed, [(50, TaskManagementResult::COMPLETE)]);
    let later = pair.held.pop().unwrap();
    pair.execute(later);
    pair.run();
    let answered: Vec<u64> = pair.completed.iter().map(|completed| completed.token).collect();
    assert_eq!(answered, [2]);
}

#[test]
fn silence_right_after_login_is_noticed_as_soon_as_any_other() {
    let mut pair = Setup::default().log_in();
    assert!(pair.target.next_timeout().unwrap() <= pair.now, "the first look is due at once");
    assert!(pair.initiator.next_timeout().unwrap() <= pair.now);
    let mut now = pair.now;
    for _ in 0..4 {
        pair.target.handle_timeout(now);
        pair.initiator.handle_timeout(now);
        now += Duration::from_secs(10);
    }
    pair.target_events();
    pair.initiator_events();
    assert_eq!(pair.target_closed, Some(CloseReason::PingTimeout));
    assert_eq!(pair.initiator_closed, Some(CloseReason::PingTimeout));
}
