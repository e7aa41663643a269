//! The log of a daemon, where nobody reads it.

mod support;

use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use support::{IQN, PATIENCE, lunway, succeed, wait};

/// Bytes that a pipe holds (pipe(7)).
const PIPE: usize = 64 << 10;
/// Bytes of them that the daemon has, and a line of its log at most.
const ROOM: usize = 512;
const LINE: usize = 256;

/// A reader that stops (a pager, a terminal after Ctrl-S) stopped the threads of I/O at the next line: no login was
/// answered, and SIGTERM was not obeyed.
#[test]
fn a_log_that_nobody_reads_stops_neither_logins_nor_the_end() {
    let (mut unread, mut stderr) = pipe().unwrap();
    // There is room for a line or two.
    stderr.write_all(&[b'.'; PIPE - ROOM]).unwrap();
    let mut command =
        lunway(&["serve", "--listen", "127.0.0.1:0", "--iqn", IQN, "--open", "--lun", "0=ram:1M"]);
    command.env("RUST_LOG", "trace").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut daemon = command.spawn().unwrap();
    // The only writer is the daemon.
    drop(command);
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.strip_prefix("listening on ").unwrap().to_owned();
    for _ in 0..60 {
        succeed(lunway(&["inspect", &format!("iscsi://{address}/{IQN}/0")]));
    }
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(wait(&mut daemon, PATIENCE).expect("the daemon ends when asked").success());
    let mut log = Vec::new();
    unread.read_to_end(&mut log).unwrap();
    assert!(log.len() > PIPE - LINE, "{} bytes: nothing was ever in the way", log.len());
}
