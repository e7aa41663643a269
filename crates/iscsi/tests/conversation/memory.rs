//! Memory of a principal: what a session does when there is none.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lunway_block::{MemoryBudget, MemoryLease, MemoryLimits};
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;
use lunway_iscsi::target::Completion;

use crate::wire::*;

const MIB: usize = 1 << 20;
/// Length of the data of a command, bytes.
const LEN: usize = 32 << 10;
const GOOD: u8 = 0x00;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;

fn budget(each: usize) -> Arc<MemoryBudget> {
    MemoryBudget::new(MemoryLimits { whole: 64 * MIB, each })
}

/// A session of the principal.
fn log_in(budget: &Arc<MemoryBudget>) -> Pair {
    let mut pair = Setup::default().log_in();
    pair.target.set_memory(MemoryLease::new(budget, "principal"));
    pair
}

/// Sends a write with its data, and gives the answers.
fn send_write(pair: &mut Pair, cmd_sn: u32, expected: usize, data: &[u8]) -> Vec<Vec<u8>> {
    let mut command = ScsiCommand::new();
    command.flags = 0x80 | ScsiCommand::WRITE;
    command.initiator_task_tag = (0x100 + cmd_sn).into();
    command.expected_data_transfer_length = (expected as u32).into();
    command.cmd_sn = cmd_sn.into();
    command.cdb[0] = WRITE;
    answers_to(pair, &command, data).into_iter().map(|(_, bytes)| bytes).collect()
}

fn statuses(answers: &[Vec<u8>]) -> Vec<u8> {
    let responses = answers.iter().filter(|answer| answer[0] & 0x3f == Opcode::SCSI_RESPONSE.0);
    responses.map(|answer| answer[3]).collect()
}

fn max_cmd_sn(answer: &[u8]) -> u32 {
    u32::from_be_bytes(answer[32..36].try_into().expect("four bytes"))
}

fn count(statuses: &[u8], status: u8) -> usize {
    statuses.iter().filter(|other| **other == status).count()
}

#[test]
fn data_that_waits_for_a_missing_command_is_dropped_without_memory_and_its_commands_are_to_be_sent_again() {
    let budget = budget(MIB);
    let mut pair = log_in(&budget);
    for cmd_sn in 2..=128 {
        assert_eq!(send_write(&mut pair, cmd_sn, LEN, &[7; LEN]).len(), 0);
        assert!(budget.reading().used <= MIB);
    }
    // Requests without data are answered as ever.
    let mut ping = NopOut::new();
    ping.opcode.0 |= 0x40;
    ping.initiator_task_tag = 9.into();
    assert_eq!(answers_to(&mut pair, &ping, b"ping")[0].0, Opcode::NOP_IN);
    let mut reset = TaskManagementRequest::new();
    reset.opcode.0 |= 0x40;
    reset.flags = 0x80 | 1;
    reset.initiator_task_tag = 10.into();
    assert_eq!(answers_to(&mut pair, &reset, &[])[0].0, Opcode::TASK_MANAGEMENT_RESPONSE);

    let answers = send_write(&mut pair, 1, LEN, &[7; LEN]);
    let statuses = statuses(&answers);
    assert_eq!(statuses.len(), 128, "the gap is filled and all are answered");
    let (good, full) = (count(&statuses, GOOD), count(&statuses, TASK_SET_FULL));
    assert_eq!((good, full), (1 + MIB / LEN, 127 - MIB / LEN));
    assert_eq!(budget.reading().refused, full as u64);
    pair.target.settle_memory();
    assert_eq!(budget.reading().used, 0);
    assert_eq!(self::statuses(&send_write(&mut pair, 129, LEN, &[7; LEN])), [GOOD], "sent again");
}

#[test]
fn the_expected_command_has_a_place_for_its_data_where_others_have_all_memory() {
    let budget = budget(0);
    let mut pair = log_in(&budget);
    for cmd_sn in 2..=4 {
        assert_eq!(send_write(&mut pair, cmd_sn, LEN, &[7; LEN]).len(), 0);
    }
    pair.hold = true;
    assert_eq!(statuses(&send_write(&mut pair, 1, LEN, &[7; LEN])), [TASK_SET_FULL; 3]);
    assert_eq!(pair.held.len(), 1);
    let command = pair.held.remove(0);
    pair.execute(command);
    // What finds no place although nothing else of the session is with the logical unit.
    assert_eq!(send_write(&mut pair, 6, LEN, &[7; LEN]).len(), 1, "the response that was queued");
    let mut no_data = ScsiCommand::new();
    no_data.flags = 0x80;
    no_data.initiator_task_tag = 7.into();
    no_data.lun = (1u64 << 48).into();
    no_data.cmd_sn = 5.into();
    let answers: Vec<_> = answers_to(&mut pair, &no_data, &[]).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(statuses(&answers), [BUSY]);
}

#[test]
fn a_numbered_ping_whose_data_found_no_place_is_rejected_in_its_turn() {
    let budget = budget(0);
    let mut pair = log_in(&budget);
    let mut ping = NopOut::new();
    ping.initiator_task_tag = 9.into();
    ping.cmd_sn = 2.into();
    assert_eq!(answers_to(&mut pair, &ping, &[1; 4000]), []);
    let mut command = ScsiCommand::new();
    command.flags = 0x80;
    command.initiator_task_tag = 5.into();
    command.cmd_sn = 1.into();
    let opcodes: Vec<_> = answers_to(&mut pair, &command, &[]).iter().map(|(opcode, _)| *opcode).collect();
    assert!(opcodes.contains(&Opcode::REJECT) && opcodes.contains(&Opcode::SCSI_RESPONSE), "{opcodes:?}");
    ping.cmd_sn = 3.into();
    assert_eq!(answers_to(&mut pair, &ping, &[1; 4000])[0].0, Opcode::NOP_IN);
}

#[test]
fn a_command_asks_for_its_data_when_another_session_has_given_memory_back() {
    let budget = budget(MIB);
    let [mut one, mut other] = [(); 2].map(|()| log_in(&budget));
    let cx = Context::from_waker(Waker::noop());
    // More than there is: one of them at a time is let through all the same.
    let answers = send_write(&mut one, 1, 4 * MIB, &[]);
    assert_eq!(answers[0][0] & 0x3f, Opcode::R2T.0);
    assert_eq!(send_write(&mut other, 1, 4 * MIB, &[]).len(), 0);
    assert!(other.target.lacks_memory() && other.target.poll_memory(&cx).is_pending());
    // Data that fits into the reserve waits for nobody.
    other.hold = true;
    assert_eq!(send_write(&mut other, 2, LEN, &[7; LEN]).len(), 0);
    assert_eq!(other.held.len(), 1);

    one.target.abort_task(0x101);
    assert!(other.target.poll_memory(&cx).is_pending());
    one.target.settle_memory();
    assert_eq!(other.target.poll_memory(&cx), Poll::Ready(()));
    let mut slices = Vec::new();
    other.target.gather(&mut slices, 1);
    assert_eq!(slices[0][0] & 0x3f, Opcode::R2T.0);
    assert_eq!(budget.reading().waits, 1);
}

#[test]
fn commands_at_the_devices_wait_for_the_memory_of_the_principal_and_the_first_of_each_session_for_one() {
    let budget = budget(2 * MIB);
    let [mut one, mut other] = [(); 2].map(|()| log_in(&budget));
    let cx = Context::from_waker(Waker::noop());
    assert!(one.target.take_memory(3 * MIB, false), "the reserve, and all of the budget");
    assert!(other.target.take_memory(MIB, false), "its own reserve");
    assert!(!other.target.take_memory(MIB, false) && other.target.poll_memory(&cx).is_pending());
    assert!(other.target.take_memory(8 * MIB, true));
    assert!(!one.target.take_memory(8 * MIB, true));
    other.target.give_memory(9 * MIB);
    other.target.settle_memory();
    assert!(one.target.poll_memory(&cx).is_ready() && one.target.take_memory(8 * MIB, true));
}

// shows RFC 7143 [4.2.2.1-9]
#[test]
fn the_window_gets_smaller_while_memory_is_scarce_and_never_goes_back() {
    let budget = budget(4 * MIB);
    let mut pair = log_in(&budget);
    let mut told = max_cmd_sn(&send_write(&mut pair, 1, 512, &[7; 512])[0]);
    assert_eq!(told, 129);
    pair.hold = true;
    // 100 of them have 3.1 MiB.
    for cmd_sn in 2..=101 {
        assert_eq!(send_write(&mut pair, cmd_sn, LEN, &[7; LEN]).len(), 0);
    }
    let mut opened = Vec::new();
    for command in std::mem::take(&mut pair.held) {
        pair.target.complete(command.task, Completion::default());
        pair.target.settle_memory();
        let mut slices = Vec::new();
        pair.target.gather(&mut slices, 100);
        let answer: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        pair.target.sent(answer.len());
        let now = max_cmd_sn(&answer);
        assert!(now >= told, "MaxCmdSN goes back from {told} to {now}");
        opened.push(now - told);
        told = now;
    }
    assert_eq!(opened[..20], [0; 20], "with 80 in flight nothing is offered beyond the 28 that were");
    assert_eq!(told, 101 + 128, "when it is over, all are offered");
}

#[test]
fn answers_kept_for_retransmission_are_forgotten_before_others_go_without_memory() {
    let budget = budget(0);
    let level = Parameters { error_recovery_level: 1, ..Parameters::default() };
    let mut pair = Setup { initiator: level.clone(), target: level, ..Setup::default() }.log_in();
    pair.target.set_memory(MemoryLease::new(&budget, "principal"));
    let mut read = ScsiCommand::new();
    read.flags = 0x80 | ScsiCommand::READ;
    read.expected_data_transfer_length = (DISK_LEN as u32).into();
    read.exp_stat_sn = 1.into();
    read.cdb[0] = READ;
    for number in 1..=40u32 {
        read.initiator_task_tag = number.into();
        read.cmd_sn = number.into();
        assert_eq!(answers_to(&mut pair, &read, &[])[0].0, Opcode::DATA_IN);
    }
    let mut snack = Snack::new();
    snack.flags = FINAL;
    snack.exp_stat_sn = 1.into();
    snack.tag = RESERVED_TAG.into();
    let kept = (1..=40u32).filter(|number| {
        snack.initiator_task_tag = (*number).into();
        answers_to(&mut pair, &snack, &[])[0].0 == Opcode::DATA_IN
    });
    let kept: Vec<_> = kept.collect();
    assert!(kept.len() <= MemoryLease::RESERVE / DISK_LEN && kept.ends_with(&[39, 40]), "{kept:?}");
}
