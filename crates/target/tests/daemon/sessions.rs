//! Sessions and their ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lunway_iscsi::CloseReason;
use lunway_iscsi::login::InitiatorLoginConfig;

use crate::support::*;

// shows RFC 7143 [6.3.5-1, 4.4.3-1, 7.15-2]
#[test]
fn a_second_login_of_the_same_initiator_port_ends_the_first_session() {
    let daemon = Daemon::start("");
    let mut old = daemon.log_in_as(1);
    let mut other = daemon.log_in_as(2).ready();
    let mut new = daemon.log_in_as(1).ready();
    old.assert_closed();
    new.read(0, 0, 1);
    other.read(0, 0, 1);
    assert_eq!(daemon.server().sessions(), 2);
}

#[test]
fn a_new_session_begins_only_after_the_old_ones_writes_have_ended() {
    let daemon = Daemon::start("");
    let mut old = daemon.log_in().ready();
    daemon.slow.hold();
    old.submit_write(1, 0, &pattern(1, 1));
    daemon.slow.await_waiting(1);
    let (address, slow) = (daemon.address, daemon.slow.clone());
    let login = std::thread::spawn(move || {
        let client = Client::log_in(address, login(1)).unwrap();
        assert_eq!(slow.waiting.load(Ordering::SeqCst), 0, "logged in while an old write was under way");
        client
    });
    old.assert_closed();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!login.is_finished());
    daemon.slow.release();
    let mut new = login.join().unwrap().ready();
    assert_eq!(new.read(1, 0, 1), pattern(1, 1));
}

// shows RFC 7143 [6.3.4-1]
#[test]
fn the_connection_of_a_session_with_one_is_replaced_by_a_login_with_its_number() {
    let daemon = Daemon::start("");
    let mut old = daemon.log_in().ready();
    old.write(0, 0, &pattern(1, 1));
    let tsih = old.core.logged_in().unwrap().tsih;
    let again = |cid| InitiatorLoginConfig { tsih, cid, ..login(1) };
    let Err(CloseReason::LoginFailed(error)) = Client::log_in(daemon.address, again(1)).map(|_| ()) else {
        panic!("a second connection where one was agreed")
    };
    assert!(error.to_string().contains("too many connections"), "{error}");
    let mut new = Client::log_in(daemon.address, again(0)).unwrap();
    old.assert_closed();
    // It is the same nexus: no unit attention.
    assert_eq!(new.read(0, 0, 1), pattern(1, 1));
    assert_eq!((new.core.logged_in().unwrap().tsih, daemon.server().sessions()), (tsih, 1));
}

// shows RFC 7143 [7.14-2]
#[test]
fn a_killed_connection_leaves_nothing_behind() {
    let daemon = Daemon::start("");
    for round in 0..20 {
        let mut client = daemon.log_in_as(round).ready();
        client.submit_read(0, 0, 2048);
        let linger = socket2::SockRef::from(&client.stream);
        if round % 2 == 0 {
            // A reset instead of an orderly end.
            linger.set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    daemon.await_sessions(0);
    daemon.log_in().ready().read(0, 0, 1);
}

#[test]
fn many_sessions_share_the_cores() {
    let daemon = Daemon::start("");
    let threads: Vec<_> = (0..8)
        .map(|number: u8| {
            let address = daemon.address;
            std::thread::spawn(move || {
                let mut client = Client::log_in(address, login(number)).unwrap().ready();
                for round in 0..50 {
                    let data = pattern(8, number ^ round);
                    client.write(0, u32::from(number) * 8, &data);
                    assert!(client.read(0, u32::from(number) * 8, 8) == data);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_initiator_that_neither_takes_answers_nor_answers_pings_is_given_up() {
    let daemon = Daemon::start("[limits]\nnop_interval_s = 1\nnop_timeout_s = 1\nlogin_timeout_s = 1");
    let mut client = daemon.log_in().ready();
    for _ in 0..64 {
        client.submit_read(0, 0, 2048);
    }
    daemon.await_sessions(0);
}

#[test]
fn an_initiator_is_not_given_up_because_a_device_is_slow() {
    let daemon = Daemon::start(
        "[limits]\nnop_interval_s = 1\nnop_timeout_s = 1\nlogin_timeout_s = 1\nsession_memory_mib = 16",
    );
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    // More than the session may have with its devices.
    let reads: Vec<_> = (0..8).map(|_| client.submit_read(1, 0, 4096)).collect();
    daemon.slow.await_waiting(4);
    let start = std::time::Instant::now();
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while start.elapsed() < Duration::from_millis(3500) {
        client.answer_pings();
    }
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.slow.release();
    for read in reads {
        assert_eq!(client.wait(read).status, 0);
    }
}
