//! Aborts and resets, over real sessions on two cores.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::pdu::{TaskAttribute, TaskManagementCode, TaskManagementResult};

use lunway_target::TaskManagementReading;

use crate::support::*;

const SLOW: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];

fn done(client: &mut Client) -> TaskManagementResult {
    match client.other_event() {
        Some(InitiatorEvent::TaskManagementDone { response, .. }) => response,
        other => panic!("instead of a task management response: {other:?}"),
    }
}

/// Sends a function and asserts that its response comes only after the device has ended all commands.
fn response_after_release(
    daemon: &Daemon,
    client: &mut Client,
    function: TaskManagementCode,
    referenced: Option<u64>,
) -> TaskManagementResult {
    client.core.manage_task(900, function, SLOW, referenced);
    client.flush();
    let slow = daemon.slow.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        slow.release();
    });
    let result = done(client);
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 0, "answered while the device was still at it");
    release.join().unwrap();
    result
}

// shows RFC 7143 [4.2.3.3-9, 11.5.1-2]
#[test]
fn an_aborted_task_is_not_answered_and_the_response_waits_for_the_device() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    let aborted = client.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    let function = TaskManagementCode::ABORT_TASK;
    let result = response_after_release(&daemon, &mut client, function, Some(aborted));
    assert_eq!(result, TaskManagementResult::COMPLETE);
    client.read(0, 0, 1);
    assert!(client.core.take_unanswered().is_empty());
}

#[test]
fn functions_are_counted_for_the_session_that_asked_and_its_keys_are_those_that_were_negotiated() {
    let daemon = Daemon::start("");
    let (mut client, _other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    for function in [
        TaskManagementCode::ABORT_TASK_SET,
        TaskManagementCode::LOGICAL_UNIT_RESET,
        TaskManagementCode::LOGICAL_UNIT_RESET,
    ] {
        client.core.manage_task(900, function, SLOW, None);
        assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
    }
    // One that the target does not know is none.
    client.core.manage_task(901, TaskManagementCode::CLEAR_ACA, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::NOT_SUPPORTED);
    let tsih = client.core.logged_in().unwrap().tsih;
    let sessions = daemon.server().metrics().sessions;
    let mut counts: Vec<_> =
        sessions.iter().map(|one| (one.session.tsih == tsih, one.task_management)).collect();
    counts.sort_by_key(|(own, _)| *own);
    let none = TaskManagementReading::default();
    assert_eq!(counts, [(false, none), (true, TaskManagementReading { aborts: 1, resets: 2 })]);
    let negotiated = &client.core.logged_in().unwrap().negotiated;
    let keys = sessions.iter().find(|one| one.session.tsih == tsih).unwrap().session.keys;
    assert_eq!(keys.max_recv_initiator, negotiated.max_recv_ours);
    assert_eq!(keys.max_recv_target, negotiated.max_recv_peer);
    assert_eq!(keys.first_burst_length, negotiated.first_burst_length);
    assert_eq!((keys.immediate_data, keys.initial_r2t), (negotiated.immediate_data, negotiated.initial_r2t));
}

#[test]
fn a_task_that_is_aborted_again_is_waited_for_again_while_the_device_has_it() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    let aborted = client.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    let function = TaskManagementCode::ABORT_TASK;
    client.core.manage_task(899, function, SLOW, Some(aborted));
    client.flush();
    let result = response_after_release(&daemon, &mut client, function, Some(aborted));
    assert_eq!(result, TaskManagementResult::COMPLETE, "not: does not exist");
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
    client.core.manage_task(901, function, SLOW, Some(aborted));
    assert_eq!(done(&mut client), TaskManagementResult::TASK_DOES_NOT_EXIST);
}

#[test]
fn a_task_that_is_not_there_cannot_be_aborted() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.core.manage_task(900, TaskManagementCode::ABORT_TASK, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::TASK_DOES_NOT_EXIST);
}

#[test]
fn functions_for_a_lun_that_is_not_there_say_so() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.core.manage_task(900, TaskManagementCode::LOGICAL_UNIT_RESET, [0, 9, 0, 0, 0, 0, 0, 0], None);
    assert_eq!(done(&mut client), TaskManagementResult::LUN_DOES_NOT_EXIST);
    client.core.manage_task(901, TaskManagementCode::CLEAR_ACA, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::NOT_SUPPORTED);
}

#[test]
fn abort_task_set_leaves_other_sessions_and_other_luns_alone() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    daemon.slow.hold();
    client.submit_read(1, 0, 1);
    let others = other.submit_read(1, 0, 1);
    daemon.slow.await_waiting(2);
    let function = TaskManagementCode::ABORT_TASK_SET;
    client.core.manage_task(900, function, SLOW, None);
    client.flush();
    std::thread::sleep(Duration::from_millis(50));
    daemon.slow.release();
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
    assert_eq!(other.wait(others).status, 0);
    client.read(0, 0, 1);
}

// shows RFC 7143 [11.5.1-9, 4.2.3.3-8]
#[test]
fn a_logical_unit_reset_ends_the_tasks_of_other_sessions_too() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    daemon.slow.hold();
    other.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    let function = TaskManagementCode::LOGICAL_UNIT_RESET;
    assert_eq!(response_after_release(&daemon, &mut client, function, None), TaskManagementResult::COMPLETE);
    // The first answer after the reset is a unit attention, not that of the aborted read.
    let next = other.execute(1, &[0; 6], &[], 0);
    assert_eq!(next.status, 2, "no unit attention");
    assert_eq!(other.execute(1, &[0; 6], &[], 0).status, 0);
}

// shows RFC 7143 [4.2.3.3-10]
#[test]
fn clear_task_set_tells_the_other_sessions_whose_tasks_it_ends() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    let mut idle = daemon.log_in_as(3).ready();
    daemon.slow.hold();
    other.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    let function = TaskManagementCode::CLEAR_TASK_SET;
    assert_eq!(response_after_release(&daemon, &mut client, function, None), TaskManagementResult::COMPLETE);
    let cleared = other.execute(1, &[0; 6], &[], 0);
    // COMMANDS CLEARED BY ANOTHER INITIATOR.
    assert_eq!((cleared.status, cleared.sense.get(12..14)), (2, Some(&[0x2f, 0][..])));
    assert_eq!(idle.execute(1, &[0; 6], &[], 0).status, 0);
}

#[test]
fn a_warm_reset_ends_all_tasks_and_no_session() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    daemon.slow.hold();
    other.submit_read(1, 0, 1);
    client.submit_read(1, 0, 1);
    daemon.slow.await_waiting(2);
    let function = TaskManagementCode::TARGET_WARM_RESET;
    assert_eq!(response_after_release(&daemon, &mut client, function, None), TaskManagementResult::COMPLETE);
    client.ready().read(0, 0, 1);
    other.ready().read(0, 0, 1);
}

// shows RFC 7143 [11.5.1-11, 11.6.1-1]
#[test]
fn a_cold_reset_ends_every_session_with_the_target() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    client.core.manage_task(900, TaskManagementCode::TARGET_COLD_RESET, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
    client.assert_closed();
    other.assert_closed();
    daemon.await_sessions(0);
    daemon.log_in().ready();
}

/// A PERSISTENT RESERVE OUT for LUN 1 and its parameter list: service action, key, service action key.
fn reserve_out(action: u8, key: u8, argument: u8) -> ([u8; 10], [u8; 24]) {
    const WRITE_EXCLUSIVE: u8 = 1;
    let mut list = [0; 24];
    (list[7], list[15]) = (key, argument);
    ([0x5F, action, WRITE_EXCLUSIVE, 0, 0, 0, 0, 0, 24, 0], list)
}

#[test]
fn preempt_and_abort_drops_the_commands_of_the_preempted_session_alone() {
    let daemon = Daemon::start("");
    let (mut client, mut victim) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    let mut bystander = daemon.log_in_as(3).ready();
    for (session, key) in [(&mut client, 1), (&mut victim, 2)] {
        let (cdb, list) = reserve_out(0, 0, key);
        assert_eq!(session.execute(1, &cdb, &list, 0).status, 0);
    }
    daemon.slow.hold();
    victim.submit_read(1, 0, 1);
    let theirs = bystander.submit_read(1, 0, 1);
    daemon.slow.await_waiting(2);
    let slow = daemon.slow.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        slow.release();
    });
    let (cdb, list) = reserve_out(5, 1, 2);
    assert_eq!(client.execute(1, &cdb, &list, 0).status, 0);
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 0, "answered while the device was still at it");
    release.join().unwrap();
    assert_eq!(bystander.wait(theirs).status, 0);
    // COMMANDS CLEARED BY ANOTHER INITIATOR, REGISTRATIONS PREEMPTED; and no answer to the read.
    for code in [[0x2f, 0], [0x2a, 5]] {
        let told = victim.execute(1, &[0; 6], &[], 0);
        assert_eq!((told.status, told.sense.get(12..14)), (2, Some(&code[..])));
    }
    assert_eq!(victim.execute(1, &[0; 6], &[], 0).status, 0);
}

/// An initiator that has lost a session takes the answer for news of what that one has left behind.
#[test]
fn an_ordered_command_is_answered_when_older_ones_of_every_session_have_ended() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    daemon.slow.hold();
    let older = other.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    assert_eq!(client.execute(1, &[0; 6], &[], 0).status, 0, "a simple one goes past it");
    let ordered = client.submit_as(TaskAttribute::ORDERED, 1, &[0; 6], &[], 0);
    let slow = daemon.slow.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        slow.release();
    });
    assert_eq!(client.wait(ordered).status, 0);
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 0, "answered while the device was still at it");
    assert_eq!(other.wait(older).status, 0);
    release.join().unwrap();
}

#[test]
fn a_reset_of_one_lun_waits_for_commands_of_no_other() {
    const RAM: [u8; 8] = [0; 8];
    let daemon = Daemon::start("");
    let (mut client, mut lost) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    daemon.slow.hold();
    let aborted = client.submit_read(1, 0, 1);
    lost.submit_read(1, 0, 1);
    daemon.slow.await_waiting(2);
    // One is aborted and not ended, the other's connection is lost.
    drop(lost);
    client.core.manage_task(900, TaskManagementCode::ABORT_TASK, SLOW, Some(aborted));
    client.core.manage_task(901, TaskManagementCode::LOGICAL_UNIT_RESET, RAM, None);
    match client.other_event() {
        Some(InitiatorEvent::TaskManagementDone { token, response }) => {
            assert_eq!((token, response), (901, TaskManagementResult::COMPLETE));
        }
        other => panic!("instead of a response: {other:?}"),
    }
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 2);
    daemon.slow.release();
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
}

#[test]
fn a_function_is_rejected_in_time_when_the_device_does_not_end_its_commands() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
    daemon.slow.hold();
    let aborted = client.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    let start = std::time::Instant::now();
    client.core.manage_task(900, TaskManagementCode::ABORT_TASK, SLOW, Some(aborted));
    assert_eq!(done(&mut client), TaskManagementResult::REJECTED);
    // What open-iscsi gives it.
    assert!(start.elapsed() < Duration::from_secs(15), "after {:?}", start.elapsed());
    daemon.slow.release();
}

/// Until the device has ended a write that was aborted: BUSY to a newer one, over every session.
fn busy_until_released(daemon: &Daemon, sessions: &mut [&mut Client]) {
    for client in &mut *sessions {
        let newer = client.execute(1, &cdb10(0x2a, 8, 1), &pattern(1, 8), 0);
        assert_eq!(newer.status, BUSY, "beside the older write");
        assert_eq!(client.execute(1, &cdb10(0x28, 0, 16), &[], 16 * BLOCK).status, BUSY);
        client.read(0, 0, 1);
    }
    daemon.slow.release();
    daemon.slow.await_waiting(0);
    for client in sessions {
        assert!(
            (0..1000).any(|_| client.execute(1, &cdb10(0x2a, 8, 1), &pattern(1, 8), 0).status == 0),
            "the device has ended it"
        );
    }
}

const BUSY: u8 = 8;

/// Lost was: an acknowledged write. The older one that a reset had taken from the task set went on in the device, and
/// overwrote it.
#[test]
fn a_write_that_a_reset_of_another_session_ends_keeps_its_blocks_busy_and_is_never_answered() {
    for function in [
        TaskManagementCode::LOGICAL_UNIT_RESET,
        TaskManagementCode::CLEAR_TASK_SET,
        TaskManagementCode::TARGET_WARM_RESET,
    ] {
        let daemon = Daemon::start("");
        let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
        daemon.slow.hold();
        other.submit_write(1, 8, &pattern(1, 7));
        daemon.slow.await_waiting(1);
        client.core.manage_task(900, function, SLOW, None);
        client.flush();
        // The first answer afterwards is the unit attention: the order has come to that session's core.
        until("the other session is told", || other.execute(1, &[0; 6], &[], 0).status == 2);
        let (mut client, mut other) = (client.ready(), other.ready());
        busy_until_released(&daemon, &mut [&mut client, &mut other]);
        assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
        assert_eq!(client.read(1, 8, 1), pattern(1, 8));
        assert!(other.core.take_unanswered().len() == 1, "the write that was aborted");
    }
}

#[test]
fn a_write_whose_session_ends_keeps_its_blocks_busy_for_others() {
    let daemon = Daemon::start("");
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    daemon.slow.hold();
    other.submit_write(1, 8, &pattern(1, 7));
    daemon.slow.await_waiting(1);
    drop(other);
    // Until the end of the connection is noticed a newer write would only be another command at the device.
    std::thread::sleep(Duration::from_millis(300));
    busy_until_released(&daemon, &mut [&mut client]);
}

#[test]
fn a_preempted_write_keeps_its_blocks_busy_until_preempt_and_abort_is_answered() {
    let daemon = Daemon::start("");
    let (mut client, mut victim) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    for (session, key) in [(&mut client, 1), (&mut victim, 2)] {
        let (cdb, list) = reserve_out(0, 0, key);
        assert_eq!(session.execute(1, &cdb, &list, 0).status, 0);
    }
    daemon.slow.hold();
    victim.submit_write(1, 8, &pattern(1, 7));
    daemon.slow.await_waiting(1);
    let (cdb, list) = reserve_out(5, 1, 2);
    let preempting = client.submit(1, &cdb, &list, 0);
    // COMMANDS CLEARED BY ANOTHER INITIATOR: they are.
    until("the victim is told", || victim.execute(1, &[0; 6], &[], 0).sense.get(12) == Some(&0x2f));
    busy_until_released(&daemon, &mut [&mut client]);
    assert_eq!(client.wait(preempting).status, 0);
}

#[test]
fn a_command_whose_abort_is_rejected_is_answered_when_the_device_answers() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
    daemon.slow.hold();
    let (write, read) = (client.submit_write(1, 8, &pattern(1, 7)), client.submit_read(1, 16, 1));
    daemon.slow.await_waiting(2);
    client.core.manage_task(900, TaskManagementCode::ABORT_TASK, SLOW, Some(write));
    client.core.manage_task(901, TaskManagementCode::ABORT_TASK_SET, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::REJECTED);
    assert_eq!(done(&mut client), TaskManagementResult::REJECTED);
    busy_until_released(&daemon, &mut [&mut client]);
    assert_eq!(client.wait(write).status, 0);
    assert_eq!(client.wait(read).status, 0);
    client.core.manage_task(902, TaskManagementCode::ABORT_TASK_SET, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
}

/// ABORTED COMMAND, COMMANDS CLEARED BY DEVICE SERVER.
const CLEARED: (u8, Option<u8>, Option<&[u8]>) = (2, Some(0x0b), Some(&[0x2f, 2]));

/// Lost was: the answer to a command that ended while a function was about to abort it, which was rejected as another
/// command hung. The host waited for it until its own timer ended the session.
#[test]
fn a_command_that_ended_before_its_abort_is_rejected_is_answered_as_cleared() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
    daemon.slow.hold();
    let (ended, hangs) = (client.submit_write(1, 8, &pattern(1, 7)), client.submit_read(1, 16, 1));
    daemon.slow.await_waiting(2);
    client.core.manage_task(900, TaskManagementCode::ABORT_TASK_SET, SLOW, None);
    client.read(0, 0, 1);
    daemon.slow.release_at(8);
    daemon.slow.await_waiting(1);
    assert_eq!(done(&mut client), TaskManagementResult::REJECTED);
    let answer = client.wait(ended);
    assert_eq!((answer.status, answer.sense.get(2).copied(), answer.sense.get(12..14)), CLEARED);
    daemon.slow.release();
    assert_eq!(client.wait(hangs).status, 0);
    client.core.manage_task(901, TaskManagementCode::ABORT_TASK_SET, SLOW, None);
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE);
}

#[test]
fn an_abort_of_a_command_that_has_ended_beside_one_that_hangs_is_complete_at_once() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
    daemon.slow.hold();
    let [first, hangs, second] = [8, 16, 24].map(|block| client.submit_read(1, block, 1));
    daemon.slow.await_waiting(3);
    let abort = TaskManagementCode::ABORT_TASK;
    client.core.manage_task(900, abort, SLOW, Some(first));
    client.core.manage_task(901, TaskManagementCode::ABORT_TASK_SET, SLOW, None);
    client.read(0, 0, 1);
    let begun = std::time::Instant::now();
    daemon.slow.release_at(8);
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE, "of the first");
    daemon.slow.release_at(24);
    daemon.slow.await_waiting(1);
    // Until the connection has it, too.
    std::thread::sleep(Duration::from_millis(200));
    client.core.manage_task(902, abort, SLOW, Some(second));
    assert_eq!(done(&mut client), TaskManagementResult::COMPLETE, "of the second");
    assert!(begun.elapsed() < Duration::from_secs(8), "after {:?}", begun.elapsed());
    assert_eq!(done(&mut client), TaskManagementResult::REJECTED);
    daemon.slow.release();
    assert_eq!(client.wait(hangs).status, 0);
    // An answer to a command that the initiator knows to be aborted would end the session.
    client.read(1, 8, 1);
    assert!(client.core.take_unanswered().is_empty());
}
