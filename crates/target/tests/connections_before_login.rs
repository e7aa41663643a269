//! Thousands of connections that never log in: alone in its process, because it measures the process's memory.

#![expect(clippy::unwrap_used, reason = "this is all test")]

#[path = "daemon/support.rs"]
#[expect(dead_code, reason = "the daemon's other tests use the rest")]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use support::{Daemon, pattern};

/// As far as the process may have so many files open.
const CONNECTIONS_MAX: usize = 10_000;
const BEFORE_LOGIN: usize = 500;
/// What those that are let in at a time may cost, both ends and the client's side of this process together.
const MEMORY_MAX: usize = 24 << 20;

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => panic!("an answer to nothing"),
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn connections_that_never_log_in_cost_little_and_disturb_nobody() {
    let daemon = Daemon::start(&format!("[limits]\nconnections_before_login = {BEFORE_LOGIN}"));
    let mut session = daemon.log_in().ready();
    let data = pattern(256, 1);
    session.write(0, 0, &data);
    assert!(session.read(0, 0, 256) == data);
    // The daemon has raised the limit as far as it goes.
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    let connections =
        descriptors.map_or(CONNECTIONS_MAX, |limit| CONNECTIONS_MAX.min(limit - 2 * BEFORE_LOGIN));
    assert!(connections > 2 * BEFORE_LOGIN, "{descriptors:?} file descriptors are too few for this test");
    let before = resident();

    let mut crowd = Vec::new();
    for number in 0..connections {
        let mut stream = daemon.connect();
        // Every other one sends half a login.
        if number % 2 == 0 {
            let _ = stream.write_all(&[0x43, 0x87, 0, 0, 0, 0, 1, 0, 0, 0]);
        }
        crowd.push(stream);
        if number % 50 == 0 {
            assert!(session.read(0, 0, 256) == data);
            session.write(0, 0, &data);
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{connections} connections cost {} MiB", grown >> 20);

    support::until("places for newer connections", || {
        let open = crowd
            .iter()
            .filter_map(|stream| stream.try_clone().ok())
            .filter_map(|mut stream| (!is_closed(&mut stream)).then_some(()));
        open.count() <= BEFORE_LOGIN
    });
    assert!(!is_closed(crowd.last_mut().unwrap()), "the newest had to go before the oldest");

    // Whoever does log in gets in, and the session never noticed.
    daemon.log_in_as(9).ready().read(0, 0, 1);
    assert!(session.read(0, 0, 256) == data);
    drop(crowd);
    std::thread::sleep(Duration::from_millis(10));
    daemon.log_in_as(10).ready().read(0, 0, 1);
}
