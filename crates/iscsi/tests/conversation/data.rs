//! What RFC 7143 asks of Data-In, Data-Out and R2T, looked at PDU by PDU.

use lunway_block::Lent;
use lunway_iscsi::CloseReason;
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::*;
use lunway_iscsi::target::Completion;

use crate::requests::*;
use crate::wire::*;

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

// shows RFC 7143 [4.2.3.3-2, 4.2.3.3-3, 4.2.3.3-4, 11.5.1-3]
#[test]
fn while_tasks_are_being_aborted_r2ts_are_answered_and_responses_taken() {
    let parameters = Parameters { immediate_data: false, initial_r2t: true, ..Parameters::default() };
    let mut pair = both(parameters).log_in();
    pair.submit(write(1, 0, &[7; 600]));
    pair.submit(write(2, 0, &[7; 600]));
    pair.initiator.manage_task(50, TaskManagementCode::ABORT_TASK_SET, [0; 8], None);
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

/// A PDU of lent data is of another moment than the one before it: none begins within a page of 4 KiB.
#[test]
fn lent_data_is_copied_where_a_pdu_would_begin_within_a_page() {
    const LEN: usize = 16 << 10;
    // Longest segment, MaxBurstLength, digests; what of LEN bytes is sent as it is lent, and what of 8 KiB.
    for (segment, burst, digests, whole, half) in [
        (8192, 256 << 10, false, true, true),
        (4096, 8192, false, true, true),
        (12_000, 256 << 10, false, false, true),
        (8192, 9000, false, false, true),
        (512, 256 << 10, false, false, false),
        (8192, 256 << 10, true, false, false),
    ] {
        let initiator = Parameters {
            max_recv_data_segment_length: segment,
            max_burst_length: burst,
            first_burst_length: 4096,
            data_digest: if digests { DigestPolicy::Require } else { DigestPolicy::Allow },
            ..Parameters::default()
        };
        let mut pair = Setup { initiator, ..Setup::default() }.log_in();
        assert!(!pair.target.takes_lent(), "in so short PDUs none is asked for");
        for (token, len, lends) in [(1, LEN, whole), (2, LEN / 2, half)] {
            pair.hold = true;
            pair.submit(read(token, 0, len));
            pair.run();
            let command = pair.held.pop().unwrap();
            let lent = Some(Box::new(Lent::new(Memory::of(&vec![7; len]), 0, len)));
            pair.target
                .complete(command.task, Completion { lent, wanted_in: len as u64, ..Default::default() });
            assert_eq!(pair.target.has_lent(), lends, "{len} bytes, {segment}, {burst}, {digests}");
            pair.run();
            assert_eq!(pair.completed.pop().unwrap().data_in[..], vec![7; len]);
        }
    }
    assert!(Setup::default().log_in().target.takes_lent(), "in those of the default");
}
