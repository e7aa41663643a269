//! Start and stop.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::pdu::AsyncEvent;
use lunway_target::{Config, Server, StartError};

use crate::support::*;

// shows RFC 7143 [4.2.6-2]
#[test]
fn shutdown_asks_for_logout_and_flushes_every_device() {
    let mut daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.write(1, 0, &pattern(1, 1));
    let initiator = std::thread::spawn(move || {
        let Some(InitiatorEvent::AsyncMessage(message)) = client.other_event() else { panic!("a message") };
        client.core.logout();
        assert!(matches!(client.other_event(), Some(InitiatorEvent::Closing(_))));
        message.event
    });
    let start = Instant::now();
    daemon.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(initiator.join().unwrap(), AsyncEvent::LOGOUT_REQUEST);
    assert!(start.elapsed() < Duration::from_secs(4), "did not end although everybody had logged out");
    assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn an_initiator_that_does_not_log_out_is_cut_off_after_the_grace() {
    let mut daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let mut never_logged_in = daemon.connect();
    let start = Instant::now();
    daemon.shutdown(Duration::from_millis(300)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(250));
    client.assert_closed();
    assert_eq!(std::io::Read::read(&mut never_logged_in, &mut [0]).unwrap_or(0), 0);
    assert!(std::net::TcpStream::connect(daemon.address).is_err());
}

#[test]
fn shutdown_waits_for_writes_that_the_device_has() {
    let mut daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    client.submit_write(1, 0, &pattern(1, 1));
    daemon.slow.await_waiting(1);
    let slow = daemon.slow.clone();
    let device = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(slow.flushes.load(Ordering::SeqCst), 0, "flushed before the write had ended");
        slow.release();
    });
    daemon.shutdown(Duration::from_millis(50)).unwrap();
    device.join().unwrap();
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 0);
    assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_flush_that_fails_at_the_end_is_reported_with_its_device() {
    let mut daemon = Daemon::start("");
    daemon.slow.flush_fails.store(true, Ordering::SeqCst);
    let error = daemon.shutdown(Duration::ZERO).unwrap_err();
    assert_eq!((error.unfinished, error.flushes.len(), error.flushes[0].lun), (0, 1, 1));
    assert!(error.to_string().contains("flushing raw:slow failed: no space left"), "{error}");
}

#[test]
fn a_device_that_hangs_is_named_at_the_end_and_keeps_nothing_from_it() {
    let mut daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    client.submit_write(1, 0, &pattern(1, 1));
    daemon.slow.await_waiting(1);
    let start = Instant::now();
    let error = daemon.shutdown(Duration::ZERO).unwrap_err();
    assert!(start.elapsed() < Server::SHUTDOWN_TIME + Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!((error.unfinished, error.unanswered.len(), error.unanswered[0].lun), (1, 1, 1));
    assert!(error.to_string().contains("lun 1: raw:slow does not answer"), "{error}");
    assert_eq!(
        daemon.slow.flushes.load(Ordering::SeqCst),
        1,
        "what was written before is flushed all the same"
    );
}

fn start_error(text: &str) -> StartError {
    let config = Config::from_toml(text, "test.toml").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Server::start(config, opener(&Slow::new()))).map(|_| ()).unwrap_err()
}

#[test]
fn an_address_in_use_is_named_with_what_to_do() {
    let daemon = Daemon::start("");
    let message = start_error(&format!(
        "listen = [\"{}\"]\n[[target]]\nname = \"{TARGET}\"\nopen = true",
        daemon.address
    ))
    .to_string();
    assert!(
        message.contains(&daemon.address.to_string()) && message.contains("another program"),
        "{message}"
    );
}

#[test]
fn a_device_that_cannot_be_opened_is_named_with_its_lun() {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\nopen = true\n[[target.lun]]\nid = 5\ndevice = \"tape\"\n"
    );
    let message = start_error(&text).to_string();
    assert_eq!(message, format!("target {TARGET}, lun 5, device tape: no such device here"));
}

#[test]
fn a_server_that_is_dropped_breaks_its_connections() {
    let mut daemon = Daemon::start("");
    let mut client = daemon.log_in();
    drop(daemon.server.take());
    client.assert_closed();
}
