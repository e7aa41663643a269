//! SCSI commands that are unlike the usual ones.

use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{
    Ahs, AhsType, DataOut, Opcode, RejectReason, ScsiCommand, TaskManagementCode, TextRequest,
};
use lunway_iscsi::target::{Aborted, TargetConnectionConfig, TargetEvent};

use crate::wire::*;

/// A command PDU with additional header segments: CmdSN 1, tag 5.
fn command(flags: u8, segments: &[(AhsType, &[u8])]) -> Vec<u8> {
    let mut pdu = ScsiCommand::new();
    pdu.flags = 0x80 | flags;
    pdu.initiator_task_tag = 5.into();
    pdu.expected_data_transfer_length = 512.into();
    pdu.cmd_sn = 1.into();
    pdu.cdb[0] = 0x7f;
    let mut ahs = Vec::new();
    for &(ahs_type, data) in segments {
        Ahs { ahs_type, data }.append_to(&mut ahs).expect("short enough");
    }
    let mut bytes = lunway_iscsi::pdu::to_bytes(&pdu).to_vec();
    bytes[4] = (ahs.len() / 4) as u8;
    bytes.extend(ahs);
    bytes
}

#[test]
fn a_bidirectional_command_gets_sense_data_and_both_residuals() {
    let mut pair = Setup::default().log_in();
    let length = 1024u32.to_be_bytes();
    let extension = [9; 16];
    let segments =
        [(AhsType::EXTENDED_CDB, &extension[..]), (AhsType::BIDIRECTIONAL_READ_LENGTH, &length[..])];
    let answers = answers_to_bytes(&mut pair, &command(0x40 | 0x20, &segments));
    let (opcode, response) = &answers[0];
    assert_eq!((answers.len(), *opcode), (1, Opcode::SCSI_RESPONSE));
    assert_eq!(response[1], 0x80 | 0x08 | 0x02, "both directions fell short");
    assert_eq!(response[3], 0x02, "CHECK CONDITION");
    assert_eq!(response[40..48], [0, 0, 4, 0, 0, 0, 2, 0], "read residual, then write residual");
    assert_eq!(
        (response[50 + 2], &response[50 + 12..50 + 14]),
        (5, &[0x20, 0][..]),
        "invalid operation code"
    );
    pair.submit(read(1, 0, 100));
    pair.run();
    assert!(pair.target_closed.is_none(), "the session goes on");
}

// shows RFC 7143 [11.3.5-1]
#[test]
fn an_extended_cdb_reaches_the_driver_whole() {
    for len in [1usize, 16, 244] {
        let mut pair = Setup::default().log_in();
        pair.hold = true;
        let extension: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let answers = answers_to_bytes(&mut pair, &command(0x40, &[(AhsType::EXTENDED_CDB, &extension)]));
        assert_eq!(answers, []);
        assert_eq!(pair.held[0].cdb[16..], extension[..]);
        assert_eq!(pair.held[0].cdb[0], 0x7f);
    }
}

#[test]
fn header_segments_that_are_unknown_double_or_out_of_place_are_rejected_and_the_session_goes_on() {
    let cdb: (AhsType, &[u8]) = (AhsType::EXTENDED_CDB, &[1; 16]);
    let length: (AhsType, &[u8]) = (AhsType::BIDIRECTIONAL_READ_LENGTH, &[0, 0, 2, 0]);
    for segments in [&[(AhsType(9), &[0; 4][..])][..], &[cdb, cdb], &[length], &[cdb, length]] {
        let mut pair = Setup::default().log_in();
        let answers = answers_to_bytes(&mut pair, &command(0x40, segments));
        assert_eq!(answers[0].0, Opcode::REJECT);
        assert_eq!(answers[0].1[2], RejectReason::INVALID_PDU_FIELD.0);
        let mut next = ScsiCommand::new();
        next.flags = 0x80;
        next.cmd_sn = 2.into();
        assert_eq!(answers_to(&mut pair, &next, &[])[0].0, Opcode::SCSI_RESPONSE);
    }
}

// shows RFC 7143 [6.2-10, 6.2-6]
#[test]
fn the_longest_data_segment_may_change_in_full_feature_phase_and_nothing_else_may() {
    let mut pair = Setup::default().log_in();
    let mut text = TextRequest::new();
    text.flags = 0x80;
    text.opcode.0 |= 0x40;
    text.cmd_sn = 1.into();
    let keys = b"MaxRecvDataSegmentLength=512\0MaxBurstLength=4096\0X-com.example=1\0";
    let answers = answers_to(&mut pair, &text, keys);
    let answer = &answers[0].1;
    assert_eq!(answers[0].0, Opcode::TEXT_RESPONSE);
    let expected = b"MaxBurstLength=Reject\0X-com.example=NotUnderstood\0";
    assert_eq!(&answer[48..48 + expected.len()], expected);
    let mut read = ScsiCommand::new();
    read.flags = 0x80 | 0x40;
    read.cmd_sn = 1.into();
    read.expected_data_transfer_length = 1024.into();
    read.cdb[0] = READ;
    let data_in = answers_to(&mut pair, &read, &[]);
    let lengths: Vec<u8> = data_in.iter().map(|(_, pdu)| pdu[6]).collect();
    assert_eq!(lengths, [2, 2], "two segments of 512 bytes");
}

#[test]
fn commands_that_are_sent_and_aborted_keep_their_memory_until_the_device_has_ended_them() {
    let configure = |config: &mut TargetConnectionConfig| {
        config.data_out_budget = 20_000;
        config.command_window = 3;
    };
    let mut pair = Setup { configure, ..Setup::default() }.log_in();
    pair.hold = true;
    let mut sent = 0;
    while sent < 20 && pair.initiator.can_submit() {
        pair.submit(write(sent, 0, &[1; 9000]));
        pair.run();
        pair.initiator.manage_task(100 + sent, TaskManagementCode::ABORT_TASK, [0; 8], Some(sent));
        pair.run();
        sent += 1;
    }
    // Two fit into the budget; the others keep their places until the window is closed.
    assert_eq!((sent, pair.held.len()), (5, 5));
    for command in std::mem::take(&mut pair.held) {
        pair.execute(command);
    }
    pair.run();
    assert!(pair.initiator.can_submit(), "the window is open again, and nobody told the initiator");
    pair.hold = false;
    pair.submit(read(50, 0, 100));
    pair.run();
    assert_eq!(pair.completed.len(), 1);
}

#[test]
fn pings_and_task_management_go_past_commands_that_the_driver_cannot_begin() {
    let mut pair = Setup::default().log_in();
    pair.submit(read(1, 0, 100));
    pair.initiator.ping();
    pair.initiator.manage_task(50, TaskManagementCode::ABORT_TASK, [0; 8], Some(1));
    let mut slices = Vec::new();
    pair.initiator.gather(&mut slices, 1000);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    pair.initiator.sent(bytes.len());
    let mut left = &bytes[..];
    while !left.is_empty() {
        let [mut first, _] = pair.target.receive_space();
        let n = first.len().min(left.len());
        first[..n].copy_from_slice(&left[..n]);
        pair.target.received(n);
        left = &left[n..];
    }
    assert!(pair.target.next_command().is_some());
    let urgent = pair.target.poll_urgent_event();
    assert!(matches!(urgent, Some(TargetEvent::TaskManagement { .. })), "{urgent:?}");
    assert!(pair.target.poll_urgent_event().is_none() && pair.target.next_command().is_some());
    assert!(pair.target.unsent() > 0, "the ping is answered");
}

/// Lost once: the buffer was grown while the receiver had it.
#[test]
fn memory_that_is_freed_while_unsolicited_data_arrives_does_not_disturb_it() {
    let parameters = Parameters { immediate_data: false, initial_r2t: false, ..Parameters::default() };
    let configure = |config: &mut TargetConnectionConfig| config.data_out_budget = 1;
    let mut pair =
        Setup { initiator: parameters.clone(), target: parameters, configure, ..Setup::default() }.log_in();
    pair.hold = true;
    let mut command = ScsiCommand::new();
    command.cdb[0] = WRITE;
    for (tag, cmd_sn, flags, len) in [(5, 1, 0xa0, 1024), (6, 2, 0x20, 1536)] {
        command.flags = flags;
        command.initiator_task_tag = tag.into();
        command.cmd_sn = cmd_sn.into();
        command.expected_data_transfer_length = len.into();
        answers_to(&mut pair, &command, &[]);
    }
    let data_out = |at: u32, last: bool| {
        let mut pdu = DataOut::new();
        pdu.flags = if last { 0x80 } else { 0 };
        pdu.initiator_task_tag = 6.into();
        pdu.data_sn = (at / 512).into();
        pdu.buffer_offset = at.into();
        let mut bytes = lunway_iscsi::pdu::to_bytes(&pdu).to_vec();
        bytes[5..8].copy_from_slice(&512u32.to_be_bytes()[1..]);
        bytes.extend([(at / 512) as u8 + 7; 512]);
        bytes
    };
    // The first command has the memory, so that the second one waits for its own.
    answers_to_bytes(&mut pair, &data_out(0, false));
    let (arrived, arrives) = (data_out(512, false), data_out(1024, true));
    answers_to_bytes(&mut pair, &arrived[..300]);
    assert_eq!(pair.target.abort_task(5), Aborted::Dropped);
    answers_to_bytes(&mut pair, &arrived[300..]);
    answers_to_bytes(&mut pair, &arrives);
    let expected: Vec<u8> = [0u32, 512, 1024].iter().flat_map(|at| [(at / 512) as u8 + 7; 512]).collect();
    assert_eq!(pair.held.len(), 1);
    assert_eq!(pair.held[0].data_out[..], expected[..]);
    assert!(pair.target_closed.is_none());
}
