//! Other configurations while the server runs: what initiators see of them, and what they do not.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lunway_iscsi::CloseReason;
use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::LoginError;
use lunway_target::{
    ChangeError, ChangeOptions, Config, DeviceName, IscsiName, LunConfig, LunMetrics, Persist, TargetConfig,
    WarningKind,
};

use crate::support::*;

const OTHER: &str = "iqn.2026-11.com.example:other";

fn device(text: &str) -> DeviceName {
    text.parse().unwrap()
}

fn target_of(config: &mut Config) -> &mut TargetConfig {
    &mut config.targets[0]
}

/// The sense key and the additional sense code of a check condition.
fn sense(client: &mut Client, lun: u8, cdb: &[u8], data_out: &[u8]) -> (u8, u16) {
    let completed = client.execute(lun, cdb, data_out, 0);
    assert_eq!(completed.status, 2, "CHECK CONDITION");
    (completed.sense[2] & 0xf, u16::from_be_bytes([completed.sense[12], completed.sense[13]]))
}

/// Bytes of a logical unit by READ CAPACITY (10), sectors of 512.
fn capacity(client: &mut Client, lun: u8) -> u64 {
    let completed = client.execute(lun, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8);
    assert_eq!(completed.status, 0);
    let last = completed.data_in[..4].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    (last + 1) * BLOCK as u64
}

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const LUNS_CHANGED: (u8, u16) = (6, 0x3f0e);
const NO_SUCH_LUN: (u8, u16) = (5, 0x2500);

#[test]
fn a_lun_comes_and_goes_and_the_others_notice_nothing_but_that() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.write(0, 0, &pattern(8, 3));
    let added = daemon.change(|config| target_of(config).luns.push(LunConfig::new(5, device("ram:1M"))));
    let added = added.unwrap();
    assert_eq!(added.generation, 2);
    let lines: Vec<_> = added.changes.iter().map(ToString::to_string).collect();
    assert_eq!(lines, [format!("+ target {TARGET}, lun 5: device = ram:1M")]);
    assert_eq!(sense(&mut client, 0, &TEST_UNIT_READY, &[]), LUNS_CHANGED);
    assert_eq!(client.read(0, 0, 8), pattern(8, 3));
    client.execute(5, &TEST_UNIT_READY, &[], 0);
    assert_eq!(capacity(&mut client, 5), 1 << 20);

    daemon.change(|config| target_of(config).luns.retain(|lun| lun.id != 5)).unwrap();
    assert_eq!(sense(&mut client, 5, &TEST_UNIT_READY, &[]), NO_SUCH_LUN);
    assert_eq!(sense(&mut client, 0, &TEST_UNIT_READY, &[]), LUNS_CHANGED);
    assert_eq!(client.read(0, 0, 8), pattern(8, 3));
}

impl Client {
    /// Reads past a unit attention.
    fn read_after_attention(&mut self, lun: u8, blocks: u16) -> Vec<u8> {
        self.execute(lun, &TEST_UNIT_READY, &[], 0);
        self.read(lun, 0, blocks)
    }
}

#[test]
fn a_lun_that_goes_is_flushed_after_its_commands_have_ended() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    let write = client.submit_write(1, 0, &pattern(1, 9));
    daemon.slow.await_waiting(1);
    daemon.runtime.block_on(async {
        let mut removal = pin!(daemon.changing(|config| target_of(config).luns.retain(|lun| lun.id != 1)));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut removal).await;
        assert!(early.is_err());
        assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 0);
        daemon.slow.release();
        removal.await.unwrap();
    });
    assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 1);
    assert_eq!(client.wait(write).status, 0, "the write is answered although its LUN is gone");
}

/// Another change, which has nothing to do with the slow device, while that hangs and one waits for it.
async fn makes_another_change(daemon: &Daemon) {
    let changes = async {
        let add = daemon.changing(|config| target_of(config).luns.push(LunConfig::new(5, device("ram:1M"))));
        let added = add.await.unwrap();
        let remove = daemon.changing(|config| target_of(config).luns.retain(|lun| lun.id != 5));
        assert_eq!(remove.await.unwrap().generation, added.generation + 1);
    };
    // The least that a device is waited for is 10 s.
    tokio::time::timeout(Duration::from_secs(8), changes).await.expect("it does not wait for the device");
}

#[test]
fn a_size_that_a_device_does_not_take_holds_up_no_change_of_others_and_the_next_size_waits() {
    let daemon = Daemon::start("");
    daemon.slow.hold();
    daemon.runtime.block_on(async {
        let mut resizing = pin!(daemon.server().resize_lun(TARGET, 1, 8 << 20, false));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut resizing).await.is_err());
        daemon.slow.await_waiting(1);
        let mut next = pin!(daemon.server().resize_lun(TARGET, 1, 4 << 20, false));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut next).await.is_err());
        daemon.slow.await_waiting(1);
        makes_another_change(&daemon).await;
        daemon.slow.release();
        resizing.await.unwrap();
        next.await.unwrap();
    });
    let targets = daemon.server().targets();
    assert_eq!(targets[0].luns.iter().find(|lun| lun.id == 1).unwrap().size, 4 << 20);
}

#[test]
fn a_lun_whose_device_hangs_is_removed_while_others_change() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    let write = client.submit_write(1, 0, &pattern(1, 9));
    daemon.slow.await_waiting(1);
    daemon.runtime.block_on(async {
        let mut removal = pin!(daemon.changing(|config| target_of(config).luns.retain(|lun| lun.id != 1)));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut removal).await.is_err());
        makes_another_change(&daemon).await;
        // The same device, as another LUN: that waits until it is free.
        let mut again =
            pin!(daemon.changing(|config| target_of(config).luns.push(LunConfig::new(7, device("slow")))));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut again).await.is_err());
        daemon.slow.release();
        removal.await.unwrap();
        again.await.unwrap();
    });
    assert_eq!(client.wait(write).status, 0);
    assert_eq!(daemon.slow.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_device_that_takes_long_to_open_holds_up_no_change_of_others() {
    let daemon = Daemon::start("");
    daemon.slow.hold();
    let add = |config: &mut Config| {
        let luns = &mut target_of(config).luns;
        if luns.iter().all(|lun| lun.id != 9) {
            luns.push(LunConfig::new(9, device("later")));
        }
    };
    let (first, second) = daemon.runtime.block_on(async {
        let mut opening = pin!(daemon.changing(add));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut opening).await.is_err());
        // The same once more waits for the first, and then finds that there is nothing to do.
        let mut again = pin!(daemon.changing(add));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut again).await.is_err());
        assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 1);
        makes_another_change(&daemon).await;
        daemon.slow.release();
        tokio::join!(opening, again)
    });
    assert_eq!((first.unwrap().generation, second.unwrap().changes.len()), (4, 0));
    let ids: Vec<_> = daemon.server().config().targets[0].luns.iter().map(|lun| lun.id).collect();
    assert_eq!(ids, [0, 1, 9], "what others changed meanwhile is there");
}

#[test]
fn memory_of_another_size_keeps_what_it_holds_and_initiators_hear_of_it() {
    let daemon = Daemon::start_with(&format!(
        "[[target]]\nname = \"{TARGET}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n[[target.lun]]\nid = 1\ndevice = \"ram:1M\"\n"
    ));
    let mut client = daemon.log_in().ready();
    client.write(0, 0, &pattern(4, 7));
    daemon.change(|config| target_of(config).luns[0].device = device("ram:3M")).unwrap();
    assert_eq!(sense(&mut client, 0, &TEST_UNIT_READY, &[]), (6, 0x2a09));
    assert_eq!(capacity(&mut client, 0), 3 << 20);
    assert_eq!(client.read(0, 0, 4), pattern(4, 7));
}

#[test]
fn a_lun_becomes_read_only_and_writable_again_in_place() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.write(0, 0, &pattern(1, 1));
    daemon.change(|config| target_of(config).luns[0].read_only = true).unwrap();
    assert_eq!(sense(&mut client, 0, &TEST_UNIT_READY, &[]), (6, 0x2a01));
    assert_eq!(sense(&mut client, 0, &cdb10(0x2a, 0, 1), &pattern(1, 2)), (7, 0x2700));
    assert_eq!(client.read(0, 0, 1), pattern(1, 1));
    daemon.change(|config| target_of(config).luns[0].read_only = false).unwrap();
    assert_eq!(client.read_after_attention(0, 1), pattern(1, 1));
    client.write(0, 0, &pattern(1, 2));
}

#[test]
fn a_change_that_cannot_be_leaves_everything_as_it_was() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let before = daemon.server().config();
    let refused = daemon.change(|config| {
        target_of(config).luns.remove(0);
        target_of(config).luns.push(LunConfig::new(7, device("tape")));
    });
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, format!("target {TARGET}, lun 7, device tape: no such device here"));
    let fails: Persist = Arc::new(|_, _| Err(io::Error::other("the disk is full")));
    let options = ChangeOptions { force: true, persist: Some(fails), ..ChangeOptions::default() };
    let edit = |config: &mut Config| {
        target_of(config).luns.remove(0);
        Ok(())
    };
    let refused = daemon.runtime.block_on(daemon.server().change(edit, options));
    assert_eq!(refused.unwrap_err().to_string(), "cannot save the configuration: the disk is full");
    assert!(matches!(daemon.change(|config| config.cores = Some(1)), Err(ChangeError::NeedsRestart(_))));
    assert_eq!((daemon.server().config(), daemon.server().generation()), (before, 1));
    client.read(0, 0, 1);
}

/// Lost was: the data of a `ram:` LUN, removed when the folder of the configuration answered, 40 s after the command
/// had been given up.
#[test]
fn a_change_whose_file_hangs_is_refused_in_time_and_never_made_and_what_only_asks_waits_for_nothing() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let server = daemon.server();
    let (go_on, hangs) = mpsc::channel::<()>();
    let hangs = std::sync::Mutex::new(hangs);
    let persist: Persist = Arc::new(move |_, permit| {
        let _ = hangs.lock().unwrap().recv();
        permit.begin().map_err(|error| io::Error::other(error.to_string()))
    });
    let remove = |config: &mut Config| {
        target_of(config).luns.retain(|lun| lun.id != 0);
        Ok(())
    };
    let options = ChangeOptions { force: true, persist: Some(persist), ..ChangeOptions::default() };
    let unsettled = || {
        let warnings = server.warnings();
        warnings.iter().find(|warning| warning.kind == WarningKind::UnsettledConfig).map(|it| it.text.clone())
    };
    daemon.runtime.block_on(async {
        let late = server.change(remove, options.clone()).await.unwrap_err();
        assert!(matches!(&late, ChangeError::Late { behind: false, .. }), "{late}");
        assert!(late.to_string().contains("saving the configuration file"), "{late}");
        assert!(unsettled().unwrap().contains("saving the configuration file"));
        // Behind it: what asks, and what changes something else.
        let asked = async { (server.snapshots().await, server.compaction(TARGET, 0).await.unwrap()) };
        tokio::time::timeout(Duration::from_secs(1), asked).await.unwrap();
        let behind = server
            .change(
                |config| {
                    config.targets[0].alias = Some("A".to_owned());
                    Ok(())
                },
                options,
            )
            .await;
        assert!(matches!(&behind, Err(ChangeError::Late { behind: true, .. })), "{behind:?}");
    });
    drop(go_on);
    until("the file answers", || unsettled().is_none());
    assert_eq!(server.generation(), 1);
    client.read(0, 0, 1);
    daemon.change(|config| target_of(config).luns.retain(|lun| lun.id != 0)).unwrap();
}

#[test]
fn a_change_whose_caller_has_gone_before_it_was_made_is_never_made() {
    let daemon = Daemon::start("");
    let server = daemon.server();
    let options = ChangeOptions::default();
    options.permit.withdraw();
    let edit = |config: &mut Config| {
        config.targets[0].alias = Some("A".to_owned());
        Ok(())
    };
    let refused = daemon.runtime.block_on(server.change(edit, options)).unwrap_err();
    assert!(matches!(refused, ChangeError::GivenUp), "{refused}");
    assert_eq!(server.generation(), 1);
}

/// A LUN that hosts had mounted went without a question, and a RAM disk with all its data.
#[test]
fn what_is_used_is_removed_or_replaced_only_if_that_was_said() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.write(0, 0, &pattern(1, 3));
    let server = daemon.server();
    let remove = |edit: fn(&mut Config), force| {
        let options = ChangeOptions { force, shrink: true, dry_run: true, ..ChangeOptions::default() };
        let edit = |config: &mut Config| {
            edit(config);
            Ok(())
        };
        daemon.runtime.block_on(server.change(edit, options))
    };
    let lun: fn(&mut Config) = |config| target_of(config).luns.retain(|lun| lun.id != 0);
    // Another one is left: a configuration names a target.
    let target: fn(&mut Config) = |config| {
        let other = target_of(config);
        other.name = IscsiName::parse("iqn.2026-11.com.example:other").unwrap();
        other.luns.clear();
    };
    // A LUN that a configuration gives another number goes, and an empty one comes.
    let renumbered: fn(&mut Config) = |config| target_of(config).luns[0].id = 5;
    // With the serial number that it has, a host would write to the other disk what is meant for this one.
    let replaced: fn(&mut Config) = |config| target_of(config).luns[0].device = device("slow");
    for edit in [lun, target, renumbered, replaced] {
        let refused = remove(edit, false).unwrap_err();
        let ChangeError::InUse { initiators, .. } = &refused else { panic!("{refused}") };
        assert!(initiators.len() == 1 && initiators[0].contains("127.0.0.1"), "{refused}");
        assert!(!matches!(remove(edit, true), Err(ChangeError::InUse { .. })));
    }
    drop(client);
    until("the session has gone", || server.sessions() == 0);
    for edit in [lun, target, renumbered, replaced] {
        assert!(matches!(remove(edit, false), Err(ChangeError::HoldsData { bytes: 1.., lun: 0, .. })));
        remove(edit, true).unwrap();
    }
    // One in which nothing was ever written holds nothing.
    daemon.change(|config| target_of(config).luns.push(LunConfig::new(5, device("ram:1M")))).unwrap();
    remove(|config| target_of(config).luns.retain(|lun| lun.id != 5), false).unwrap();
}

#[test]
fn nothing_changed_is_no_change_and_a_trial_changes_nothing() {
    let daemon = Daemon::start("");
    assert_eq!(daemon.change(|_| {}).unwrap().generation, 1);
    let saved = Arc::new(AtomicBool::new(false));
    let saves = Arc::clone(&saved);
    let persist: Persist = Arc::new(move |_, _| {
        saves.store(true, Ordering::SeqCst);
        Ok(())
    });
    let edit = |config: &mut Config| {
        target_of(config).alias = Some("A".to_owned());
        Ok(())
    };
    let server = daemon.server();
    let trial =
        ChangeOptions { dry_run: true, generation: Some(1), persist: Some(persist), ..Default::default() };
    let changed = daemon.runtime.block_on(server.change(edit, trial.clone())).unwrap();
    assert_eq!((changed.generation, changed.changes.len(), server.generation()), (1, 1, 1));
    assert!(!saved.load(Ordering::SeqCst));
    let meant = ChangeOptions { dry_run: false, ..trial.clone() };
    let changed = daemon.runtime.block_on(server.change(edit, meant)).unwrap();
    assert_eq!((changed.generation, saved.load(Ordering::SeqCst)), (2, true));
    let late = daemon.runtime.block_on(server.change(|_| Ok(()), trial));
    assert!(matches!(late, Err(ChangeError::Generation { expected: 1, is: 2 })));
}

#[test]
fn a_target_that_goes_asks_its_sessions_to_log_out_and_others_stay() {
    let more =
        format!("[[target]]\nname = \"{OTHER}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n");
    let daemon =
        Daemon::start_with(&format!("[[target]]\nname = \"{TARGET}\"\nopen = true\n{}{more}", luns()));
    let mut stays = daemon.log_in().ready();
    let mut login = login(2);
    login.target_name = Some(OTHER.to_owned());
    let mut goes = Client::log_in(daemon.address, login.clone()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(goes.other_event(), Some(InitiatorEvent::AsyncMessage(_))));
            goes.core.logout();
            goes.flush();
            goes.assert_closed();
        });
        daemon.change(|config| config.targets.retain(|target| target.name.as_str() != OTHER)).unwrap();
    });
    assert_eq!(daemon.server().sessions(), 1);
    stays.read(0, 0, 1);
    let refused = Client::log_in(daemon.address, login).map(|_| ());
    assert!(matches!(refused, Err(CloseReason::LoginFailed(LoginError::NotFound))), "{refused:?}");
}

#[test]
fn sessions_are_listed_and_one_can_be_dropped_without_another_noticing() {
    let daemon = Daemon::start("");
    let mut dropped = daemon.log_in_as(1).ready();
    let mut stays = daemon.log_in_as(2).ready();
    let sessions = daemon.server().session_list();
    assert_eq!(sessions.len(), 2);
    let first = sessions.iter().find(|session| session.isid == "800000000001").unwrap();
    assert_eq!((first.initiator.as_str(), first.target.as_str()), (INITIATOR, TARGET));
    assert_eq!((first.portal, first.peer), (daemon.address, dropped.stream.local_addr().unwrap()));
    assert!(daemon.server().drop_session(first.tsih));
    dropped.assert_closed();
    daemon.await_sessions(1);
    assert!(!daemon.server().drop_session(first.tsih));
    stays.read(0, 0, 1);
}

#[test]
fn a_session_that_does_not_log_out_when_asked_is_closed() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let tsih = daemon.server().session_list()[0].tsih;
    assert!(daemon.server().log_out(tsih, Duration::from_millis(200)));
    assert!(matches!(client.other_event(), Some(InitiatorEvent::AsyncMessage(_))));
    client.assert_closed();
    daemon.await_sessions(0);
}

#[test]
fn what_a_session_does_is_counted_by_lun_session_and_portal_and_kept_when_it_ends() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.write(0, 0, &pattern(8, 1));
    client.read(0, 0, 4);
    daemon.slow.hold();
    let waits = client.submit_read(1, 0, 2);
    daemon.slow.await_waiting(1);
    let now = daemon.server().metrics();
    let of = |metrics: &LunMetrics, operation: &str| {
        metrics
            .operations
            .iter()
            .find(|of| of.operation == operation)
            .map(|of| (of.operations, of.bytes))
            .unwrap()
    };
    let lun = |lun: u16| &now.luns.iter().find(|of| of.lun == lun).unwrap().metrics;
    assert_eq!((of(lun(0), "write"), of(lun(0), "read")), ((1, 8 * 512), (1, 4 * 512)));
    assert_eq!((lun(1).queue, of(lun(1), "read")), (1, (0, 0)));
    assert_eq!((now.sessions.len(), now.portals[0].portal, now.portals[0].sessions), (1, daemon.address, 1));
    daemon.slow.release();
    client.wait(waits);
    drop(client);
    daemon.await_sessions(0);
    until("the counters of the session", || daemon.server().metrics().sessions.is_empty());
    let then = daemon.server().metrics();
    assert_eq!(of(&then.portals[0].metrics, "read"), (2, 6 * 512));
    let page = then.prometheus();
    let line = format!("lunway_lun_bytes_total{{target=\"{TARGET}\",lun=\"1\",operation=\"read\"}} 1024");
    assert!(page.contains(&line), "{page}");
}

/// PERSISTENT RESERVE OUT, REGISTER with APTPL, and the keys that READ KEYS then tells.
fn register(client: &mut Client) -> Vec<u8> {
    let mut parameters = [0; 24];
    parameters[8..16].copy_from_slice(&0x1234_u64.to_be_bytes());
    parameters[20] = 1;
    let registered = client.execute(0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &parameters, 0);
    assert_eq!((registered.status, registered.sense), (0, Vec::new()));
    keys(client)
}

fn keys(client: &mut Client) -> Vec<u8> {
    let keys = client.execute(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], &[], 64);
    assert_eq!(keys.status, 0);
    keys.data_in[8..keys.data_in_len].to_vec()
}

#[test]
fn a_lun_that_was_removed_leaves_no_reservations_to_the_next_of_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let state = format!("state_dir = {:?}\n", folder.path());
    let daemon = Daemon::start(&state);
    let mut client = daemon.log_in().ready();
    assert_eq!(register(&mut client), 0x1234_u64.to_be_bytes());
    let lun = daemon.server().config().targets[0].luns[0].clone();
    daemon.change(|config| target_of(config).luns.retain(|lun| lun.id != 0)).unwrap();
    daemon.change(|config| target_of(config).luns.push(lun.clone())).unwrap();
    let mut client = daemon.log_in_as(2).ready();
    assert!(keys(&mut client).is_empty());
}
