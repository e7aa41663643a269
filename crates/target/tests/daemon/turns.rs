//! Turns: sessions that keep a core busy leave their neighbours time on it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::*;

/// Sessions that flood, more than there are cores, so that each core has one.
const FLOODS: u8 = 4;
const DEPTH: usize = 100;

/// Not measured in time, which a loaded machine has none of, but in commands that go first.
#[test]
fn a_read_does_not_wait_for_a_window_of_long_commands_of_another_session() {
    // VERIFY (16) of 8 MiB without byte check.
    let verify = [0x8f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let floods: Vec<Client> = (1..=FLOODS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (verified, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for mut client in floods {
            let (verified, over) = (&verified, &over);
            scope.spawn(move || {
                let mut sent = VecDeque::new();
                loop {
                    while sent.len() < DEPTH && !over.load(Ordering::Relaxed) {
                        sent.push_back(client.submit(0, &verify, &[], 0));
                        client.flush();
                    }
                    let Some(token) = sent.pop_front() else { return };
                    assert_eq!(client.wait(token).status, 0);
                    verified.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the flood", || verified.load(Ordering::Relaxed) > DEPTH);
        for block in 0..60 {
            let earlier = verified.load(Ordering::Relaxed);
            neighbour.read(0, block, 8);
            before.push(verified.load(Ordering::Relaxed) - earlier);
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    // The lower quartile, as the flood goes on while this thread waits for a processor.
    assert!(before[before.len() / 4] < DEPTH / 4, "commands that went first: {before:?}");
}

/// As many sessions as an initiator may have, each with a window of long commands, leave a neighbour's reads and writes
/// the time slices in between: not one of each session's commands goes first, but one of all.
#[test]
fn a_read_waits_for_one_slice_of_the_long_work_of_many_sessions() {
    const SESSIONS: u8 = 24;
    // VERIFY (16) of 8 MiB, WRITE SAME (16) of 4 MiB of zeroes.
    let long = |opcode: u8, flags: u8, mebibytes: u8| {
        [opcode, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mebibytes << 3, 0, 0, 0]
    };
    let daemon = Daemon::start("");
    let mut neighbour = daemon.log_in_as(100).ready();
    let floods: Vec<Client> = (1..=SESSIONS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        for mut client in floods {
            let (done, over) = (&done, &over);
            scope.spawn(move || {
                let mut sent = VecDeque::new();
                loop {
                    while sent.len() < 8 && !over.load(Ordering::Relaxed) {
                        let cdb = if sent.len() % 2 == 0 { long(0x8f, 0, 8) } else { long(0x93, 1, 4) };
                        sent.push_back(client.submit(0, &cdb, &[], 0));
                        client.flush();
                    }
                    let Some(token) = sent.pop_front() else { return };
                    assert_eq!(client.wait(token).status, 0);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("the flood", || done.load(Ordering::Relaxed) > usize::from(SESSIONS));
        for block in 0..60 {
            let earlier = done.load(Ordering::Relaxed);
            neighbour.read(0, block, 8);
            before.push(done.load(Ordering::Relaxed) - earlier);
        }
        over.store(true, Ordering::Relaxed);
    });
    before.sort_unstable();
    // A slice is a sixteenth of a VERIFY.
    assert!(before[before.len() / 4] <= 2, "commands that went first: {before:?}");
}
