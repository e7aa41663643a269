//! Error recovery level 1: what is lost or broken is sent again, and nobody notices.

use lunway_iscsi::digest::digest;
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::*;
use lunway_iscsi::target::TargetConnectionConfig;

use crate::wire::*;

const TAG: u32 = 5;

/// A session at this error recovery level with data digests, segments of 512 bytes and bursts of 1024.
fn log_in(level: u8, outstanding: u16) -> Pair {
    let parameters = Parameters {
        error_recovery_level: level,
        data_digest: DigestPolicy::Require,
        max_recv_data_segment_length: 512,
        max_burst_length: 1024,
        first_burst_length: 1024,
        max_outstanding_r2t: outstanding,
        ..Parameters::default()
    };
    let mut pair = Setup { initiator: parameters.clone(), target: parameters, ..Setup::default() }.log_in();
    assert_eq!(pair.target.logged_in().expect("logged in").negotiated.error_recovery_level, level);
    pair.completed.clear();
    pair
}

/// Sends a PDU with data digest, broken or not, and gives the answers without theirs.
fn send<T: Pdu>(pair: &mut Pair, pdu: &T, data: &[u8], intact: bool) -> Vec<Vec<u8>> {
    let mut bytes = to_bytes(pdu).to_vec();
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(data);
    if !data.is_empty() {
        let mut crc = digest(data);
        crc[0] ^= u8::from(!intact);
        bytes.extend(crc);
    }
    pair.to_target.extend(&bytes);
    feed(pair, bytes.len());
    let mut slices = Vec::new();
    pair.target.gather(&mut slices, usize::MAX);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    pair.target.sent(bytes.len());
    let (mut answers, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let len = u32::from_be_bytes([0, rest[5], rest[6], rest[7]]) as usize;
        let trailer = if len > 0 { len.next_multiple_of(4) - len + 4 } else { 0 };
        answers.push(rest[..48 + len].to_vec());
        rest = &rest[48 + len + trailer..];
    }
    answers
}

fn opcodes(answers: &[Vec<u8>]) -> Vec<Opcode> {
    answers.iter().map(|answer| Opcode(answer[0] & 0x3f)).collect()
}

fn word(answer: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(answer[at..at + 4].try_into().expect("four bytes"))
}

fn command(flags: u8, opcode: u8, cmd_sn: u32, at: u32, len: u32) -> ScsiCommand {
    let mut command = ScsiCommand::new();
    command.flags = 0x80 | flags;
    command.initiator_task_tag = TAG.into();
    command.expected_data_transfer_length = len.into();
    command.cmd_sn = cmd_sn.into();
    command.exp_stat_sn = 1.into();
    command.cdb[0] = opcode;
    command.cdb[2..6].copy_from_slice(&at.to_be_bytes());
    command
}

/// The piece of `data` that an R2T asks for, in segments of 512 bytes of which `broken` has a wrong digest.
fn answer_r2t(pair: &mut Pair, r2t: &[u8], data: &[u8], broken: Option<u32>) -> Vec<Vec<u8>> {
    let (offset, length) = (word(r2t, 40), word(r2t, 44));
    let mut answers = Vec::new();
    for (data_sn, start) in (offset..offset + length).step_by(512).enumerate() {
        let end = (start + 512).min(offset + length);
        let mut pdu = DataOut::new();
        pdu.initiator_task_tag = TAG.into();
        pdu.target_transfer_tag = word(r2t, 20).into();
        pdu.data_sn = (data_sn as u32).into();
        pdu.buffer_offset = start.into();
        pdu.flags = if end == offset + length { FINAL } else { 0 };
        let intact = broken != Some(data_sn as u32);
        answers.extend(send(pair, &pdu, &data[start as usize..end as usize], intact));
    }
    answers
}

fn snack(kind: SnackType, tag: u32, transfer_tag: u32, begin: u32, run: u32) -> Snack {
    let mut snack = Snack::new();
    snack.flags = FINAL | kind.0;
    snack.initiator_task_tag = tag.into();
    snack.tag = transfer_tag.into();
    snack.beg_run = begin.into();
    snack.run_length = run.into();
    snack.exp_stat_sn = 1.into();
    snack
}

// shows RFC 7143 [7.3-4, 7.8-3]
#[test]
fn write_data_with_a_wrong_digest_is_asked_for_again_and_the_write_succeeds() {
    let mut pair = log_in(1, 1);
    let data: Vec<u8> = (0..3000u32).map(|at| ((at * 7) >> 2) as u8).collect();
    let mut waiting = send(&mut pair, &command(ScsiCommand::WRITE, WRITE, 1, 0, 3000), &[], true);
    let mut round = 0;
    let mut rejects = 0;
    let response = loop {
        let first = waiting.remove(0);
        match Opcode(first[0] & 0x3f) {
            Opcode::R2T => {
                assert_eq!(word(&first, 36), round, "R2TSN counts recovery R2Ts too");
                // The second PDU of the first sequence, and the first of the second.
                let broken = [Some(1), Some(0)].get(round as usize).copied().flatten();
                waiting.extend(answer_r2t(&mut pair, &first, &data, broken));
                round += 1;
            }
            Opcode::REJECT => {
                assert_eq!(first[2], RejectReason::DATA_DIGEST_ERROR.0);
                rejects += 1;
            }
            _ => break first,
        }
    };
    assert_eq!((response[3], rejects, round), (0, 2, 5), "three sequences, two recoveries");
    assert!(pair.disk[..3000] == data);
}

#[test]
fn data_that_is_always_broken_ends_the_command_and_not_the_session() {
    let mut pair = log_in(1, 1);
    let mut waiting = send(&mut pair, &command(ScsiCommand::WRITE, WRITE, 1, 0, 512), &[], true);
    let mut rounds = 0;
    let response = loop {
        let first = waiting.remove(0);
        match Opcode(first[0] & 0x3f) {
            Opcode::R2T => waiting.extend(answer_r2t(&mut pair, &first, &[1; 512], Some(0))),
            Opcode::REJECT => rounds += 1,
            _ => break first,
        }
    };
    assert_eq!((response[3], rounds), (2, 9));
    assert_eq!(response[48 + 14..48 + 16], [0x47, 0x05]);
    assert!(pair.target_closed.is_none());
}

// shows RFC 7143 [7.8-4, 11.4.2-1, 11.17.1-3]
#[test]
fn without_recovery_a_broken_write_fails_only_after_all_its_data_has_come() {
    let mut pair = log_in(0, 4);
    let mut r2ts = send(&mut pair, &command(ScsiCommand::WRITE, WRITE, 1, 0, 2048), &[], true);
    assert_eq!(opcodes(&r2ts), [Opcode::R2T, Opcode::R2T]);
    let answers = answer_r2t(&mut pair, &r2ts.remove(0), &[1; 2048], Some(0));
    assert_eq!(opcodes(&answers), [Opcode::REJECT], "the second sequence is still to come");
    let answers = answer_r2t(&mut pair, &r2ts.remove(0), &[1; 2048], None);
    assert_eq!(opcodes(&answers), [Opcode::SCSI_RESPONSE]);
    assert_eq!(answers[0][3], 2);
}

#[test]
fn a_command_whose_immediate_data_is_broken_is_discarded_and_taken_when_it_comes_again() {
    let mut pair = log_in(1, 1);
    let write = command(ScsiCommand::WRITE, WRITE, 1, 0, 512);
    let answers = send(&mut pair, &write, &[8; 512], false);
    assert_eq!((opcodes(&answers)[0], answers[0][2]), (Opcode::REJECT, RejectReason::DATA_DIGEST_ERROR.0));
    let mut next = command(ScsiCommand::READ, READ, 2, 0, 512);
    next.initiator_task_tag = 6.into();
    assert!(send(&mut pair, &next, &[], true).is_empty(), "it waits for its predecessor");
    let answers = send(&mut pair, &write, &[8; 512], true);
    assert_eq!(opcodes(&answers), [Opcode::SCSI_RESPONSE, Opcode::DATA_IN]);
    assert_eq!(answers[1][48..], [8; 512], "in order");
}

// shows RFC 7143 [7.8-8, 11.16-2]
#[test]
fn read_data_is_sent_again_as_it_was_until_its_status_is_acknowledged() {
    let mut pair = log_in(1, 1);
    let sent = send(&mut pair, &command(ScsiCommand::READ, READ, 1, 0, 2500), &[], true);
    assert_eq!(sent.len(), 5);
    let again = send(&mut pair, &snack(SnackType::DATA_OR_R2T, TAG, RESERVED_TAG, 1, 2), &[], true);
    assert!(again == sent[1..3]);
    let again = send(&mut pair, &snack(SnackType::DATA_OR_R2T, TAG, RESERVED_TAG, 3, 0), &[], true);
    assert!(again == sent[3..], "a run of 0 is all that follow, the status with them");
    let mut late = snack(SnackType::DATA_OR_R2T, TAG, RESERVED_TAG, 0, 0);
    late.exp_stat_sn = (word(&sent[4], 24) + 1).into();
    let answers = send(&mut pair, &late, &[], true);
    assert_eq!((opcodes(&answers)[0], answers[0][2]), (Opcode::REJECT, RejectReason::SNACK_REJECT.0));
}

// shows RFC 7143 [11.4.9-1]
#[test]
fn answers_are_sent_again_with_their_numbers() {
    let mut pair = log_in(1, 1);
    let mut first = None;
    let mut sent = Vec::new();
    for cmd_sn in 1..=4 {
        let answers = send(&mut pair, &command(0, 0, cmd_sn, 0, 0), &[], true);
        first.get_or_insert(word(&answers[0], 24));
        sent.extend(answers);
    }
    let first = first.expect("answers");
    let numbers = |answers: &[Vec<u8>]| answers.iter().map(|answer| word(answer, 24)).collect::<Vec<_>>();
    let again =
        send(&mut pair, &snack(SnackType::STATUS, RESERVED_TAG, RESERVED_TAG, first + 1, 2), &[], true);
    assert_eq!(numbers(&again), [first + 1, first + 2]);
    assert_eq!(word(&again[0], 28), 5, "ExpCmdSN is that of now");
    let again =
        send(&mut pair, &snack(SnackType::STATUS, RESERVED_TAG, RESERVED_TAG, first + 2, 0), &[], true);
    assert_eq!(numbers(&again), [first + 2, first + 3]);
    let mut gone = snack(SnackType::STATUS, RESERVED_TAG, RESERVED_TAG, first, 1);
    gone.exp_stat_sn = (first + 1).into();
    assert_eq!(send(&mut pair, &gone, &[], true)[0][2], RejectReason::SNACK_REJECT.0);
}

#[test]
fn an_r2t_that_got_lost_is_sent_again() {
    let mut pair = log_in(1, 8);
    let sent = send(&mut pair, &command(ScsiCommand::WRITE, WRITE, 1, 0, 2048), &[], true);
    assert_eq!(sent.len(), 1, "one at a time, whatever was agreed on");
    let again = send(&mut pair, &snack(SnackType::DATA_OR_R2T, TAG, RESERVED_TAG, 0, 1), &[], true);
    assert!(again == sent);
    let again = answer_r2t(&mut pair, &sent[0], &[3; 2048], None);
    let answers = send(&mut pair, &snack(SnackType::DATA_OR_R2T, TAG, RESERVED_TAG, 0, 1), &[], true);
    assert_eq!(answers[0][2], RejectReason::SNACK_REJECT.0, "it has been answered");
    let answers = answer_r2t(&mut pair, &again[0], &[3; 2048], None);
    assert_eq!((opcodes(&answers)[0], answers[0][3]), (Opcode::SCSI_RESPONSE, 0));
}

// shows RFC 7143 [11.7.4-1, 11.16.5-1]
#[test]
fn an_initiator_that_acknowledges_nothing_is_asked_to_and_then_finds_old_data_forgotten() {
    let config: fn(&mut TargetConnectionConfig) = |config| config.command_window = 128;
    let parameters = Parameters { error_recovery_level: 1, ..Parameters::default() };
    let setup =
        Setup { initiator: parameters.clone(), target: parameters, configure: config, ..Setup::default() };
    let mut pair = setup.log_in();
    let len = DISK_LEN as u32;
    let mut asked = None;
    for cmd_sn in 1..=400u32 {
        let mut read = command(ScsiCommand::READ, READ, cmd_sn, 0, len);
        read.initiator_task_tag = cmd_sn.into();
        let answers = answers_to(&mut pair, &read, &[]);
        let last = &answers.last().expect("data").1;
        if last[1] & DataIn::ACKNOWLEDGE != 0 {
            asked = Some((cmd_sn, word(last, 20)));
        }
    }
    let (cmd_sn, transfer_tag) = asked.expect("the target asks for an acknowledgement");
    let oldest = answers_to(&mut pair, &snack(SnackType::DATA_OR_R2T, 1, RESERVED_TAG, 0, 0), &[]);
    assert_eq!(oldest[0].1[2], RejectReason::SNACK_REJECT.0, "memory is bounded");
    let newest = answers_to(&mut pair, &snack(SnackType::DATA_OR_R2T, cmd_sn, RESERVED_TAG, 0, 0), &[]);
    assert_eq!(newest[0].0, Opcode::DATA_IN);
    let wrong = answers_to(&mut pair, &snack(SnackType::DATA_ACK, RESERVED_TAG, transfer_tag, 9, 0), &[]);
    assert_eq!(wrong[0].1[2], RejectReason::INVALID_DATA_ACK.0);
    let right = snack(SnackType::DATA_ACK, RESERVED_TAG, transfer_tag, 1, 0);
    assert_eq!(answers_to(&mut pair, &right, &[]), []);
    let gone = answers_to(&mut pair, &snack(SnackType::DATA_OR_R2T, cmd_sn, RESERVED_TAG, 0, 0), &[]);
    assert_eq!(gone[0].1[2], RejectReason::SNACK_REJECT.0, "what it has is not kept");
}

// shows RFC 7143 [11.16-1, 11.16.3-1]
#[test]
fn read_data_is_cut_anew_for_an_initiator_that_takes_other_segments_now() {
    let mut pair = log_in(1, 1);
    let sent = send(&mut pair, &command(ScsiCommand::READ, READ, 1, 0, 2000), &[], true);
    assert_eq!(sent.len(), 4);
    let mut text = TextRequest::new();
    text.flags = 0x80;
    text.opcode.0 |= 0x40;
    text.cmd_sn = 2.into();
    text.exp_stat_sn = 1.into();
    send(&mut pair, &text, b"MaxRecvDataSegmentLength=1024\0\0\0", true);
    let again = send(&mut pair, &snack(SnackType::R_DATA, TAG, 77, 0, 0), &[], true);
    assert_eq!(opcodes(&again), [Opcode::DATA_IN, Opcode::DATA_IN, Opcode::SCSI_RESPONSE]);
    let data: Vec<u8> = again[..2].iter().flat_map(|pdu| pdu[48..].to_vec()).collect();
    assert!(data == pair.disk[..2000]);
    assert_eq!(again[1][1], FINAL, "the status is not in the data");
    let response = &again[2];
    assert_eq!((response[3], word(response, 20), word(response, 36)), (0, 77, 2), "SNACK tag, ExpDataSN");
    let stat_sn = word(response, 24);
    assert_eq!(stat_sn, word(&sent[3], 24), "the same StatSN");
    let status =
        send(&mut pair, &snack(SnackType::STATUS, RESERVED_TAG, RESERVED_TAG, stat_sn, 1), &[], true);
    assert!(status == again[2..], "the latest response");
    let untagged = send(&mut pair, &snack(SnackType::R_DATA, TAG, RESERVED_TAG, 0, 0), &[], true);
    assert_eq!(untagged[0][2], RejectReason::SNACK_REJECT.0);
}
