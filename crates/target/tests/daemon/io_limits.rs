//! Limits on I/O: what waits for them, and what does not.
//!
//! A limit of 4 KiB per second lets a mebibyte pass and then nothing for four minutes: what waits for it waits for
//! longer than any of these tests, and the tests need no clock.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::pdu::{TaskAttribute, TaskManagementCode, TaskManagementResult};
use lunway_target::{AccessRule, Config};

use crate::support::*;

/// Blocks of a mebibyte.
const LONG: u16 = 2048;
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// Both logical units, and these lines for the first and the second.
fn target(rules: &str, [first, second]: [&str; 2]) -> String {
    format!(
        "[[target]]\nname = \"{TARGET}\"\nopen = true\n{rules}\
         [[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n{first}\n[[target.lun]]\nid = 1\ndevice = \"slow\"\n{second}\n"
    )
}

const SLOWEST: &str = "rate_limit = \"4K\"";

fn limited(lun: usize) -> Daemon {
    let mut lines = [""; 2];
    lines[lun] = SLOWEST;
    Daemon::start_with(&target("", lines))
}

/// A session, and the limit of this unit used up for minutes.
fn used_up(daemon: &Daemon, isid: u8, lun: u8) -> Client {
    let mut client = daemon.log_in_as(isid).ready();
    client.read(lun, 0, LONG);
    client
}

fn lift(daemon: &Daemon) {
    daemon.change(|config| config.targets[0].luns.iter_mut().for_each(|lun| lun.rate_limit = None)).unwrap();
}

fn managed(client: &mut Client) -> TaskManagementResult {
    match client.other_event() {
        Some(InitiatorEvent::TaskManagementDone { response, .. }) => response,
        other => panic!("instead of a task management response: {other:?}"),
    }
}

/// These have no answer by now, which would come before that of a command that is sent now and that no limit holds.
fn assert_unanswered(client: &mut Client, other_lun: u8, tokens: &[u64]) {
    client.execute(other_lun, &TEST_UNIT_READY, &[], 0);
    assert_eq!(tokens.iter().filter(|token| client.has_answer(**token)).count(), 0);
}

#[test]
fn a_limited_unit_holds_up_no_other_of_the_session_and_no_ping_and_goes_on_when_the_limit_is_lifted() {
    let daemon = limited(0);
    let mut client = used_up(&daemon, 1, 0);
    let waiting: Vec<u64> = (0..20).map(|block| client.submit_read(0, block, 8)).collect();
    client.write(1, 0, &pattern(64, 1));
    client.read(1, 0, 64);
    // What moves no data has no limit.
    assert_eq!(client.execute(0, &TEST_UNIT_READY, &[], 0).status, 0);
    client.core.ping();
    client.flush();
    while client.core.unanswered_ping().is_some() {
        client.receive();
    }
    assert_unanswered(&mut client, 1, &waiting);
    lift(&daemon);
    for token in waiting {
        assert_eq!(client.wait(token).status, 0);
    }
    client.read(0, 0, LONG);
    client.read(0, 0, LONG);
}

#[test]
fn a_whole_window_that_waits_leaves_other_units_of_the_session_a_window() {
    let daemon = Daemon::start_with(&format!("[limits]\ncommand_window = 16\n{}", target("", [SLOWEST, ""])));
    let mut client = used_up(&daemon, 1, 0);
    let waiting: Vec<u64> = (0..16).map(|block| client.submit_read(0, block, 8)).collect();
    while !client.core.can_submit() {
        client.receive();
    }
    client.read(1, 0, 8);
    let others: Vec<u64> = (0..15).map(|block| client.submit_read(1, block, 8)).collect();
    others.into_iter().for_each(|token| assert_eq!(client.wait(token).status, 0));
    assert_unanswered(&mut client, 1, &waiting);
    lift(&daemon);
    waiting.into_iter().for_each(|token| assert_eq!(client.wait(token).status, 0));
}

#[test]
fn writes_that_wait_keep_no_memory_from_long_writes_to_other_units() {
    // 8 MiB for data that is asked for.
    let limits = "[limits]\nsession_memory_mib = 16\n";
    let daemon = Daemon::start_with(&format!("{limits}{}", target("", [SLOWEST, ""])));
    let mut client = used_up(&daemon, 1, 0);
    let (long, longest) = (vec![7; 1 << 20], vec![8; 8 << 20]);
    let waiting: Vec<u64> = (0..16).map(|_| client.submit_write(0, 0, &long)).collect();
    client.write(1, 0, &longest);
    assert_unanswered(&mut client, 1, &waiting);
    lift(&daemon);
    waiting.into_iter().for_each(|token| assert_eq!(client.wait(token).status, 0));
    assert_eq!(client.read(0, 0, LONG), long);
}

#[test]
fn a_command_that_waits_is_aborted_at_once_and_not_carried_out() {
    let daemon = limited(0);
    let mut client = used_up(&daemon, 1, 0);
    let data = pattern(8, 3);
    // With all its data, and with data that would be asked for.
    let long = vec![9; 1 << 20];
    for data in [&data[..], &long] {
        let [first, second] = [(); 2].map(|()| client.submit_write(0, 64, data));
        for aborted in [second, first] {
            client.core.manage_task(900, TaskManagementCode::ABORT_TASK, [0; 8], Some(aborted));
            assert_eq!(managed(&mut client), TaskManagementResult::COMPLETE);
        }
        client.submit_write(0, 64, data);
        client.core.manage_task(901, TaskManagementCode::ABORT_TASK_SET, [0; 8], None);
        assert_eq!(managed(&mut client), TaskManagementResult::COMPLETE);
    }
    lift(&daemon);
    assert_eq!(client.read(0, 64, 8), vec![0; 8 * BLOCK]);
}

#[test]
fn a_reset_by_another_session_ends_what_waits() {
    let daemon = limited(0);
    let mut client = used_up(&daemon, 1, 0);
    let mut other = daemon.log_in_as(2).ready();
    let waiting: Vec<u64> = (0..4).map(|block| client.submit_write(0, block, &[5; BLOCK])).collect();
    assert_unanswered(&mut client, 1, &waiting);
    other.core.manage_task(900, TaskManagementCode::LOGICAL_UNIT_RESET, [0; 8], None);
    assert_eq!(managed(&mut other), TaskManagementResult::COMPLETE);
    lift(&daemon);
    let reader = daemon.log_in_as(3).ready().read(0, 0, 4);
    assert_eq!(reader, vec![0; 4 * BLOCK]);
}

#[test]
fn a_session_that_ends_does_not_wait_for_its_limit() {
    let daemon = limited(0);
    let [mut dropped, mut leaves] = [used_up(&daemon, 1, 0), daemon.log_in_as(2).ready()];
    for client in [&mut dropped, &mut leaves] {
        let waiting: Vec<u64> = (0..4).map(|block| client.submit_write(0, block, &[5; BLOCK])).collect();
        assert_unanswered(client, 1, &waiting);
    }
    assert!(daemon.server().drop_session(dropped.core.logged_in().unwrap().tsih));
    dropped.assert_closed();
    drop(leaves);
    daemon.await_sessions(0);
    lift(&daemon);
    assert_eq!(daemon.log_in_as(3).ready().read(0, 0, 4), vec![0; 4 * BLOCK]);
}

#[test]
fn a_flush_and_ordered_commands_stay_behind_the_writes_that_wait() {
    let daemon = limited(1);
    let mut client = used_up(&daemon, 1, 1);
    let data = pattern(1, 4);
    let write = client.submit_write(1, 0, &data);
    let flush = client.submit(1, &SYNCHRONIZE_CACHE, &[], 0);
    let ordered = client.submit_as(TaskAttribute::ORDERED, 1, &TEST_UNIT_READY, &[], 0);
    // After the ordered one, so behind it as well.
    let after = client.submit(1, &TEST_UNIT_READY, &[], 0);
    let past_all = client.submit_as(TaskAttribute::HEAD_OF_QUEUE, 1, &TEST_UNIT_READY, &[], 0);
    assert_eq!(client.wait(past_all).status, 0);
    assert_unanswered(&mut client, 0, &[write, flush, ordered, after]);
    assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 0);
    lift(&daemon);
    for token in [write, flush, ordered, after] {
        assert_eq!(client.wait(token).status, 0);
    }
    assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 1);
    assert_eq!(client.read(1, 0, 1), data);
}

fn rule(text: &str) -> AccessRule {
    toml::from_str(text).unwrap()
}

#[test]
fn the_limit_of_an_initiator_is_one_for_all_its_sessions_and_not_that_of_others() {
    let rules = format!("[[target.acl]]\ninitiators = [\"*:host*\"]\n{SLOWEST}\n");
    let daemon = Daemon::start_with(&target(&rules, ["", ""]));
    let mut first = used_up(&daemon, 1, 0);
    // Another session, another unit.
    let mut second = daemon.log_in_as(2).ready();
    let waits = second.submit_read(1, 0, 1);
    assert_unanswered(&mut second, 0, &[waits]);
    let name = format!("{INITIATOR}-other");
    let login = |isid| InitiatorLoginConfig { initiator_name: name.clone(), ..login(isid) };
    let mut other = Client::log_in(daemon.address, login(1)).unwrap().ready();
    other.read(0, 0, LONG);
    // A rule of another target, but of the same limit, would be the same account; another limit is another.
    daemon.change(|config| config.targets[0].acl = vec![rule("rate_limit = \"1G\"")]).unwrap();
    assert_eq!(second.wait(waits).status, 0);
    first.read(0, 0, LONG);
    let limits = daemon.server().metrics().initiator_limits;
    let of_first = limits.iter().find(|of| of.initiator == INITIATOR).unwrap();
    assert_eq!(of_first.limit.bytes_per_second, Some(1 << 30));
    assert_eq!(limits.len(), 2);
}

#[test]
fn what_waited_for_a_limit_is_counted_and_the_limit_is_kept() {
    let daemon = Daemon::start_with(&target("", ["iops_limit = 100\nlimit_burst = \"10ms\"", ""]));
    let mut client = daemon.log_in().ready();
    let begun = Instant::now();
    let reads: Vec<u64> = (0..32).map(|block| client.submit_read(0, block, 1)).collect();
    reads.into_iter().for_each(|token| assert_eq!(client.wait(token).status, 0));
    // Two at once: the burst, and one that overdraws the account.
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    let metrics = daemon.server().metrics();
    let [of_lun] = &metrics.lun_limits[..] else { panic!("of one unit: {:?}", metrics.lun_limits) };
    assert_eq!((of_lun.lun, of_lun.limit.iops, of_lun.limit.bytes_per_second), (0, Some(100), None));
    assert!(of_lun.limit.throttled >= 1 && of_lun.limit.throttled <= 30, "{of_lun:?}");
    assert!(of_lun.limit.throttled_us_total >= 290_000, "{of_lun:?}");
    assert!(metrics.initiator_limits.is_empty());
    let read = &metrics.luns.iter().find(|lun| lun.lun == 0).unwrap().metrics.operations[0];
    assert_eq!(read.operations, 32);
}

#[test]
fn a_limit_that_is_raised_or_set_holds_at_once_for_sessions_that_are_there() {
    let daemon = limited(0);
    let mut client = used_up(&daemon, 1, 0);
    let waits = client.submit_read(0, 0, 1);
    let set = |rate: u64| {
        move |config: &mut Config| {
            config.targets[0].luns[0].rate_limit = NonZeroU64::new(rate);
        }
    };
    daemon.change(set(1 << 30)).unwrap();
    assert_eq!(client.wait(waits).status, 0);
    daemon.change(set(4096)).unwrap();
    // The session hears of it before the second read: the first may have been before that.
    let reads = [(); 3].map(|()| {
        client.execute(1, &TEST_UNIT_READY, &[], 0);
        client.submit_read(0, 0, LONG)
    });
    assert_unanswered(&mut client, 1, &reads[1..]);
    lift(&daemon);
    reads.into_iter().for_each(|token| assert_eq!(client.wait(token).status, 0));
}
