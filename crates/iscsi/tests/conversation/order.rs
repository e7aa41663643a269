//! Task attributes: the order in which commands reach the driver where their data comes in another one (SAM-5 8.6).

use lunway_iscsi::pdu::*;
use lunway_iscsi::target::{Aborted, TargetConnectionConfig};

use crate::wire::*;

const SIMPLE: TaskAttribute = TaskAttribute::SIMPLE;
const ORDERED: TaskAttribute = TaskAttribute::ORDERED;

/// A session whose driver keeps commands, so that their order is seen.
fn log_in() -> Pair {
    let configure = |config: &mut TargetConnectionConfig| config.data_out_budget = 20_000;
    let mut pair = Setup { configure, ..Setup::default() }.log_in();
    pair.hold = true;
    pair
}

/// Sends a write whose task tag and CmdSN are `number`; without all of its data it gives the R2T that asks for the
/// rest.
fn send_write(pair: &mut Pair, number: u32, attribute: TaskAttribute, len: u32, data: &[u8]) -> Vec<Vec<u8>> {
    send_to(pair, number, attribute, [0; 8], len, data)
}

fn send_to(
    pair: &mut Pair,
    number: u32,
    attribute: TaskAttribute,
    lun: [u8; 8],
    len: u32,
    data: &[u8],
) -> Vec<Vec<u8>> {
    let mut command = ScsiCommand::new();
    command.flags = 0x80 | 0x20 | attribute.0;
    command.lun = u64::from_be_bytes(lun).into();
    command.initiator_task_tag = number.into();
    command.cmd_sn = number.into();
    command.expected_data_transfer_length = len.into();
    command.cdb[0] = WRITE;
    let answers = answers_to(pair, &command, data);
    assert!(answers.iter().all(|(opcode, _)| *opcode == Opcode::R2T), "{answers:?}");
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Answers an R2T; gives the R2Ts that other commands get thereupon.
fn answer(pair: &mut Pair, r2t: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_be_bytes(r2t[at..at + 4].try_into().expect("four bytes"));
    let mut data_out = DataOut::new();
    data_out.flags = 0x80;
    data_out.initiator_task_tag = word(16).into();
    data_out.target_transfer_tag = word(20).into();
    data_out.buffer_offset = word(40).into();
    let answers = answers_to(pair, &data_out, &vec![1; word(44) as usize]);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// CmdSNs of what the driver has got, in order.
fn got(pair: &Pair) -> Vec<u32> {
    pair.held.iter().map(|command| command.cmd_sn).collect()
}

#[test]
fn an_ordered_command_waits_for_the_data_of_older_writes_and_younger_ones_wait_for_it() {
    let mut pair = log_in();
    let r2t = send_write(&mut pair, 1, SIMPLE, 1024, &[]);
    send_write(&mut pair, 2, ORDERED, 512, &[2; 512]);
    send_write(&mut pair, 3, SIMPLE, 512, &[3; 512]);
    send_write(&mut pair, 4, TaskAttribute::HEAD_OF_QUEUE, 512, &[4; 512]);
    send_to(&mut pair, 5, SIMPLE, [0, 1, 0, 0, 0, 0, 0, 0], 512, &[5; 512]);
    // Flat space addressing of LUN 0.
    send_to(&mut pair, 6, SIMPLE, [0x40, 0, 0, 0, 0, 0, 0, 0], 512, &[6; 512]);
    assert_eq!(got(&pair), [4, 5], "HEAD OF QUEUE goes past all, and another unit's commands do");
    answer(&mut pair, &r2t[0]);
    assert_eq!(got(&pair), [4, 5, 1, 2, 3, 6]);
}

#[test]
fn an_ordered_write_holds_its_place_from_its_arrival_on() {
    let mut pair = log_in();
    let ordered = send_write(&mut pair, 1, ORDERED, 1024, &[]);
    let simple = send_write(&mut pair, 2, SIMPLE, 1024, &[]);
    send_write(&mut pair, 3, SIMPLE, 512, &[3; 512]);
    answer(&mut pair, &simple[0]);
    assert_eq!(got(&pair), []);
    answer(&mut pair, &ordered[0]);
    assert_eq!(got(&pair), [1, 2, 3]);
}

#[test]
fn an_ordered_command_goes_on_when_the_older_write_is_aborted_or_its_data_fails() {
    for aborts in [true, false] {
        let mut pair = log_in();
        let r2t = send_write(&mut pair, 1, SIMPLE, 1024, &[]);
        send_write(&mut pair, 2, ORDERED, 512, &[2; 512]);
        assert_eq!(got(&pair), []);
        if aborts {
            assert_eq!(pair.target.abort_task(1), Aborted::Dropped);
            pair.target_events();
        } else {
            let mut beyond = r2t[0].clone();
            beyond[43] = 4;
            answer(&mut pair, &beyond);
        }
        assert_eq!(got(&pair), [2], "aborted: {aborts}");
    }
}

#[test]
fn a_command_that_waits_for_its_turn_can_be_aborted() {
    let mut pair = log_in();
    let r2t = send_write(&mut pair, 1, SIMPLE, 1024, &[]);
    send_write(&mut pair, 2, ORDERED, 512, &[2; 512]);
    send_write(&mut pair, 3, SIMPLE, 512, &[3; 512]);
    assert_eq!(pair.target.abort_task(2), Aborted::Dropped);
    pair.target_events();
    assert_eq!(got(&pair), [3], "nothing ordered is before it any more");
    answer(&mut pair, &r2t[0]);
    assert_eq!(got(&pair), [3, 1]);
    assert_eq!(pair.target.commands_in_flight(), 2);
}

/// The younger write would wait for the ordered command, and that for the older write, with the memory that this one
/// needs.
#[test]
fn a_write_does_not_wait_for_memory_of_writes_that_wait_for_it() {
    let mut pair = log_in();
    let first = send_write(&mut pair, 1, SIMPLE, 9000, &[]);
    assert_eq!(send_write(&mut pair, 2, SIMPLE, 15_000, &[]), [[]; 0], "no memory yet");
    send_write(&mut pair, 3, ORDERED, 512, &[3; 512]);
    send_write(&mut pair, 4, SIMPLE, 9000, &[4; 100]);
    answer(&mut pair, &first[0]);
    let command = pair.held.remove(0);
    assert_eq!(command.cmd_sn, 1);
    pair.execute(command);
    let r2t = answers_to_bytes(&mut pair, &[]);
    let second = r2t.iter().find(|(opcode, _)| *opcode == Opcode::R2T).expect("the second has memory now");
    answer(&mut pair, &second.1);
    assert_eq!(got(&pair), [2, 3]);
}
