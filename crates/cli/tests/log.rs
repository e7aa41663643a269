//! The log of a daemon, where nobody reads it.

mod support;

use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::os::unix::net::UnixStream;
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

/// The same of the other commands whose I/O other programs wait for. `disk mount` and `backup mount` wrote their log
/// from the threads of I/O, when `attach` did not any more.
#[test]
fn a_log_that_nobody_reads_stops_nothing_that_is_attached() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, backups, socket) = (path("disk.vhdx"), path("backups"), path("socket"));
    succeed(lunway(&["disk", "create", &disk, "--size", "4M"]));
    std::fs::create_dir(&backups).unwrap();
    succeed(lunway(&["backup", "run", &disk, &backups]));
    for words in [&["attach", &disk][..], &["disk", "mount", &disk], &["backup", "mount", &backups]] {
        let (mut unread, mut stderr) = pipe().unwrap();
        stderr.write_all(&[b'.'; PIPE - ROOM]).unwrap();
        let mut command = lunway(&[words, &["--nbd", &format!("unix:{socket}")]].concat());
        command.env("RUST_LOG", "info").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("nbd+unix:///"), "{words:?}");
        for _ in 0..60 {
            let mut client = UnixStream::connect(&socket).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.read_exact(&mut [0; 18]).unwrap_or_else(|error| panic!("{words:?}: no greeting: {error}"));
            // Not a client's word: a line of the log.
            client.write_all(&[0xff; 64]).unwrap();
            let _ = client.read_to_end(&mut Vec::new());
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ended = wait(&mut child, PATIENCE);
        assert!(ended.is_some_and(|status| status.success()), "{words:?}: {ended:?}");
        let mut log = Vec::new();
        unread.read_to_end(&mut log).unwrap();
        assert!(log.len() > PIPE - LINE, "{words:?}: {} bytes: nothing was ever in the way", log.len());
    }
}
