//! Requests that are not commands, while commands fill all that a session may take.

use std::time::{Duration, Instant};

use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::pdu::{TaskManagementCode, TaskManagementResult};

use crate::support::*;

const SLOW: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];
/// 100 ms are promised; a machine whose time is taken gets ten times that. Without the promise no answer comes at all
/// while the device hangs.
const SOON: Duration = Duration::from_secs(1);

/// A session with more reads than the memory takes, on a device that hangs.
fn stuck(daemon: &Daemon) -> (Client, Vec<u64>) {
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    let reads = (0..40).map(|_| client.submit_read(1, 0, 4096)).collect();
    // 8 MiB are for the devices.
    daemon.slow.await_waiting(4);
    (client, reads)
}

fn start() -> Daemon {
    Daemon::start("[limits]\nsession_memory_mib = 16")
}

#[test]
fn a_ping_is_answered_while_a_device_hangs_and_commands_fill_the_memory() {
    let daemon = start();
    let (mut client, reads) = stuck(&daemon);
    for _ in 0..10 {
        let sent = Instant::now();
        client.core.ping();
        client.flush();
        while client.core.unanswered_ping().is_some() {
            client.receive();
        }
        assert!(sent.elapsed() < SOON, "after {:?}", sent.elapsed());
    }
    daemon.slow.await_waiting(4);
    daemon.slow.release();
    for read in reads {
        assert_eq!(client.wait(read).status, 0);
    }
}

#[test]
fn a_command_that_waits_for_memory_is_aborted_at_once() {
    let daemon = start();
    let (mut client, mut reads) = stuck(&daemon);
    let waits = reads.pop().unwrap();
    let sent = Instant::now();
    client.core.manage_task(900, TaskManagementCode::ABORT_TASK, SLOW, Some(waits));
    match client.other_event() {
        Some(InitiatorEvent::TaskManagementDone { response, .. }) => {
            assert_eq!(response, TaskManagementResult::COMPLETE);
        }
        other => panic!("instead of a response: {other:?}"),
    }
    assert!(sent.elapsed() < SOON, "after {:?}", sent.elapsed());
    daemon.slow.release();
    for read in reads {
        assert_eq!(client.wait(read).status, 0);
    }
}

#[test]
fn a_logout_is_answered_while_commands_wait_for_memory() {
    let daemon = start();
    let (mut client, _) = stuck(&daemon);
    let sent = Instant::now();
    client.core.logout();
    assert!(matches!(client.other_event(), Some(InitiatorEvent::Closing(_))));
    assert!(sent.elapsed() < SOON, "after {:?}", sent.elapsed());
    daemon.slow.release();
    daemon.await_sessions(0);
}
