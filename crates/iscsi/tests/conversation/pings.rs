//! What RFC 7143 asks of NOP-Out and NOP-In, looked at PDU by PDU.

use std::time::Duration;

use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::requests::*;
use crate::wire::*;

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
