//! The rules of a target: who gets in, who is told of it, and what they see and may do.

use std::io::Write;
use std::net::SocketAddr;

use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig, LoginError};
use lunway_iscsi::pdu::{AsyncEvent, LoginStatus, TaskAttribute, TaskManagementCode, TaskManagementResult};
use lunway_iscsi::{CloseReason, SendTargets};
use lunway_scsi::operations::OPERATIONS;
use lunway_target::{AccessRule, ChangeOptions, Config};

use crate::support::*;

const OTHER: &str = "iqn.2026-11.com.example:other";

/// A daemon whose target has these rules.
fn daemon_with(rules: &str) -> Daemon {
    Daemon::start_with(&format!(
        "[[target]]\nname = \"{TARGET}\"\n{rules}\n{}[[target]]\nname = \"{OTHER}\"\nopen = true\n",
        luns()
    ))
}

fn refusal(address: SocketAddr, login: InitiatorLoginConfig) -> LoginError {
    match Client::log_in(address, login).map(|_| ()) {
        Err(CloseReason::LoginFailed(error)) => error,
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn as_initiator(name: &str) -> InitiatorLoginConfig {
    InitiatorLoginConfig { initiator_name: name.to_owned(), ..login(1) }
}

/// The names that an initiator is told.
fn discovered(daemon: &Daemon, initiator: &str) -> Vec<String> {
    let login = InitiatorLoginConfig { target_name: None, ..as_initiator(initiator) };
    let mut client = Client::log_in(daemon.address, login).unwrap();
    client.core.send_targets(&SendTargets::All);
    let Some(InitiatorEvent::Targets(targets)) = client.other_event() else { panic!("targets") };
    targets.into_iter().map(|target| target.name).collect()
}

/// The logical units that REPORT LUNS lists.
fn reported(client: &mut Client) -> Vec<u8> {
    let completed = client.execute(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256);
    assert_eq!(completed.status, 0);
    let bytes = completed.data_in.to_vec();
    let len = usize::from(bytes[3]);
    bytes[8..8 + len].chunks(8).map(|lun| lun[1]).collect()
}

fn rule(text: &str) -> AccessRule {
    toml::from_str(text).unwrap()
}

// shows RFC 7143 [C-9]
#[test]
fn who_matches_no_rule_is_refused_and_not_even_told_of_the_target() {
    let daemon = daemon_with(
        "[[target.acl]]\ninitiators = [\"iqn.2026-11.com.example:good-*\"]\nfrom = [\"127.0.0.0/8\"]",
    );
    let good = "iqn.2026-11.com.example:GOOD-1";
    assert!(Client::log_in(daemon.address, as_initiator(good)).is_ok());
    assert_eq!(discovered(&daemon, good), [TARGET, OTHER]);
    assert_eq!(refusal(daemon.address, login(1)), LoginError::AuthorizationFailed);
    assert_eq!(discovered(&daemon, INITIATOR), [OTHER]);
    until("the denial is counted", || daemon.server().denied_logins() == 1);
}

#[test]
fn who_comes_from_elsewhere_is_refused() {
    let daemon = daemon_with("[[target.acl]]\nfrom = [\"192.0.2.0/24\"]");
    assert_eq!(refusal(daemon.address, login(1)), LoginError::AuthorizationFailed);
    assert_eq!(discovered(&daemon, INITIATOR), [OTHER]);
}

#[test]
fn a_masked_logical_unit_does_not_exist_for_who_may_not_see_it() {
    let daemon = daemon_with("[[target.acl]]\nluns = [0]\nread_only = true");
    let mut client = daemon.log_in();
    (0..4).any(|_| client.execute(0, &[0; 6], &[], 0).status == 0);
    assert_eq!(reported(&mut client), [0]);
    let masked = client.execute(1, &[0; 6], &[], 0);
    assert_eq!((masked.status, masked.sense[2] & 0xf, masked.sense[12]), (2, 5, 0x25));
    assert_eq!(client.read(0, 0, 1).len(), BLOCK);
    let write = client.submit_write(0, 0, &pattern(1, 1));
    let write = client.wait(write);
    assert_eq!((write.status, write.sense[2] & 0xf, write.sense[12]), (2, 7, 0x27), "write protected");
}

#[test]
fn a_rule_that_changes_changes_what_sessions_see_and_ends_those_that_may_not_be() {
    let daemon = daemon_with("[[target.acl]]\ninitiators = [\"*\"]");
    let mut client = daemon.log_in().ready();
    assert_eq!(reported(&mut client), [0, 1]);
    daemon.change(|config| config.targets[0].acl = vec![rule("luns = [0]")]).unwrap();
    let attention = client.execute(0, &[0; 6], &[], 0);
    assert_eq!((attention.status, attention.sense[2] & 0xf, attention.sense[12]), (2, 6, 0x3f));
    assert_eq!(reported(&mut client), [0]);
    client.write(0, 0, &pattern(1, 5));

    daemon.change(|config| config.targets[0].acl = vec![rule("deny = true")]).unwrap();
    let Some(InitiatorEvent::AsyncMessage(message)) = client.other_event() else { panic!("a message") };
    assert_eq!(message.event, AsyncEvent::LOGOUT_REQUEST);
    client.core.logout();
    assert!(matches!(client.other_event(), Some(InitiatorEvent::Closing(CloseReason::LoggedOut))));
    daemon.await_sessions(0);
    assert_eq!(refusal(daemon.address, login(1)), LoginError::AuthorizationFailed);
}

#[test]
fn a_session_does_not_lose_a_logical_unit_that_it_may_not_see() {
    let seer = "iqn.2026-11.com.example:seer";
    let daemon = daemon_with(&format!(
        "[[target.acl]]\ninitiators = [\"{seer}\"]\n[[target.acl]]\ninitiators = [\"*\"]\nluns = [0]"
    ));
    let removed = |daemon: &Daemon| {
        let edit = |config: &mut Config| {
            config.targets[0].luns.retain(|lun| lun.id == 0);
            Ok(())
        };
        let options = ChangeOptions { dry_run: true, force: true, ..ChangeOptions::default() };
        let tried = daemon.runtime.block_on(daemon.server().change(edit, options)).unwrap().effects;
        tried.into_iter().filter(|effect| effect.starts_with("sessions")).collect::<Vec<_>>()
    };
    let _masked = daemon.log_in();
    assert_eq!(removed(&daemon), [""; 0]);
    let _seeing = Client::log_in(daemon.address, as_initiator(seer)).unwrap().ready();
    let [told] = &removed(&daemon)[..] else { panic!("{:?}", removed(&daemon)) };
    assert!(told.starts_with(&format!("sessions with target {TARGET} would lose lun 1: {seer} (")), "{told}");
    assert!(!told.contains(INITIATOR), "{told}");
}

/// What a change would mean, and everything stays as it is.
fn tried(daemon: &Daemon, mut edit: impl FnMut(&mut Config) + Send) -> Vec<String> {
    let edit = |config: &mut Config| {
        edit(config);
        Ok(())
    };
    let options = ChangeOptions { dry_run: true, ..ChangeOptions::default() };
    daemon.runtime.block_on(daemon.server().change(edit, options)).unwrap().effects
}

#[test]
fn a_target_whose_last_rule_is_removed_lets_in_nobody() {
    let daemon = daemon_with("[[target.acl]]\ninitiators = [\"*\"]");
    let client = daemon.log_in();
    let peer = client.stream.local_addr().unwrap();
    let emptied = |config: &mut Config| config.targets[0].acl.clear();
    assert_eq!(
        tried(&daemon, emptied),
        [
            format!(
                "no initiator may log in to target {TARGET} any more: no access rule allows one, and it is not open"
            ),
            format!("1 session would be logged out of target {TARGET}: {INITIATOR} ({peer})"),
        ]
    );
    assert_eq!(daemon.server().sessions(), 1);
    let changed = daemon.change(emptied).unwrap();
    let last = format!("1 session is logged out of target {TARGET}: {INITIATOR} ({peer})");
    assert_eq!(changed.effects.last(), Some(&last));
    drop(client);
    daemon.await_sessions(0);
    assert_eq!(refusal(daemon.address, login(2)), LoginError::AuthorizationFailed);
    assert_eq!(discovered(&daemon, INITIATOR), [OTHER]);
}

#[test]
fn a_target_without_rules_that_is_not_open_lets_in_nobody_not_even_its_users() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "the secret of one").unwrap();
    let chap = format!("[[target.chap]]\nuser = \"one\"\nsecret_file = {:?}", file.path());
    let daemon = daemon_with(&chap);
    let as_one = || InitiatorLoginConfig {
        chap: Some(InitiatorChap {
            account: ChapAccount {
                user: "one".to_owned(),
                secret: Secret::new("the secret of one").unwrap(),
            },
            algorithms: ChapAlgorithm::OFFER.to_vec(),
            mutual: None,
        }),
        ..login(1)
    };
    assert_eq!(refusal(daemon.address, as_one()), LoginError::AuthorizationFailed);
    let opened = daemon.change(|config| config.targets[0].open = true).unwrap();
    assert!(opened.effects[0].starts_with("every CHAP user may log in to target"), "{:?}", opened.effects);
    assert!(Client::log_in(daemon.address, as_one()).is_ok());
    assert_eq!(refusal(daemon.address, login(2)), LoginError::AuthenticationFailed);
}

#[test]
fn the_first_rule_of_an_open_target_logs_out_only_those_that_match_none_once_it_is_not_open() {
    let daemon = daemon_with("open = true");
    let mut kept = daemon.log_in().ready();
    let stranger = "iqn.2026-11.com.example:stranger";
    let login_of_stranger = || InitiatorLoginConfig { isid: [0x80, 0, 0, 0, 0, 2], ..as_initiator(stranger) };
    let mut other = Client::log_in(daemon.address, login_of_stranger()).unwrap().ready();
    let only_host = || vec![rule(&format!("initiators = [\"{INITIATOR}\"]"))];

    let first = daemon.change(|config| config.targets[0].acl = only_host()).unwrap();
    assert_eq!(first.effects, [""; 0], "who matches no rule is let in as before");
    other.write(0, 0, &pattern(1, 3));

    let closed = |config: &mut Config| config.targets[0].open = false;
    let peer = other.stream.local_addr().unwrap();
    let (unmatched, leaves) = (
        format!("initiators that match no access rule may not log in to target {TARGET} any more"),
        format!("1 session would be logged out of target {TARGET}: {stranger} ({peer})"),
    );
    assert_eq!(tried(&daemon, closed), [unmatched, leaves]);
    daemon.change(closed).unwrap();
    let Some(InitiatorEvent::AsyncMessage(message)) = other.other_event() else { panic!("a message") };
    assert_eq!(message.event, AsyncEvent::LOGOUT_REQUEST);
    drop(other);
    daemon.await_sessions(1);
    kept.write(0, 0, &pattern(1, 4));
    assert!(!kept.was_told_anything(), "the session that matches goes on");
    assert_eq!(refusal(daemon.address, login_of_stranger()), LoginError::AuthorizationFailed);
}

// shows RFC 7143 [9.2-6]
#[test]
fn a_user_who_proves_who_he_is_can_still_be_one_who_may_not() {
    let files = ["the secret of one", "the secret of two"].map(|secret| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{secret}").unwrap();
        file
    });
    let [one, two] = files.each_ref().map(|file| file.path().display().to_string());
    let daemon = daemon_with(&format!(
        "[[target.acl]]\nusers = [\"one\"]\n\
         [[target.chap]]\nuser = \"one\"\nsecret_file = \"{one}\"\n\
         [[target.chap]]\nuser = \"two\"\nsecret_file = \"{two}\""
    ));
    let as_user = |user: &str, secret: &str| InitiatorLoginConfig {
        chap: Some(InitiatorChap {
            account: ChapAccount { user: user.to_owned(), secret: Secret::new(secret).unwrap() },
            algorithms: ChapAlgorithm::OFFER.to_vec(),
            mutual: None,
        }),
        ..login(1)
    };
    assert!(Client::log_in(daemon.address, as_user("one", "the secret of one")).is_ok());
    assert_eq!(refusal(daemon.address, as_user("two", "the secret of two")), LoginError::AuthorizationFailed);
    let unproven = refusal(daemon.address, as_user("two", "the secret of one"));
    assert_eq!(unproven, LoginError::AuthenticationFailed);
    until("both denials are counted", || daemon.server().denied_logins() == 2);
}

#[test]
fn too_many_logins_from_one_address_are_put_off() {
    let daemon = Daemon::start("[limits]\nlogins_per_second = 1");
    for isid in 1..=4 {
        daemon.log_in_as(isid);
    }
    let later = LoginError::TargetUnavailable(LoginStatus::OUT_OF_RESOURCES);
    assert_eq!(refusal(daemon.address, login(5)), later);
    assert_eq!(daemon.server().throttled_logins(), 1);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    daemon.log_in_as(5);
}

/// Every operation, and every task management function, with parameters as simple as they come.
fn attempts() -> Vec<(&'static str, Vec<u8>)> {
    let fill = |operation: &lunway_scsi::operations::Operation| {
        let mut cdb = vec![0; operation.usage.len()];
        cdb[0] = operation.opcode;
        cdb[1] = operation.service_action.unwrap_or(0);
        (operation.name, cdb)
    };
    OPERATIONS.iter().map(fill).collect()
}

/// Operations that a nexus is answered which sees no logical unit (SPC-4 6.6, 6.33, 6.39).
const ALWAYS: [u8; 3] = [0x03, 0x12, 0xa0];

#[test]
fn a_session_whose_rule_is_removed_changes_and_reads_nothing_from_then_on() {
    let daemon = daemon_with("[[target.acl]]\ninitiators = [\"*\"]");
    let owner = "iqn.2026-11.com.example:owner";
    let login_of_owner = InitiatorLoginConfig { isid: [0x80, 0, 0, 0, 0, 9], ..as_initiator(owner) };
    let mut stays = Client::log_in(daemon.address, login_of_owner).unwrap().ready();
    let mut revoked = daemon.log_in().ready();
    // What it has done while it might, and what is on its way when it may no longer.
    revoked.write(0, 0, &pattern(1, 7));
    revoked.execute(0, &[0x16, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!(stays.execute(0, &[0; 6], &[], 0).status, 0x18, "reserved");
    daemon.slow.hold();
    let read = revoked.submit_read(1, 0, 1);
    daemon.slow.await_waiting(1);
    // Waits for its turn behind the read, as it has to be carried out alone.
    let ordered = revoked.submit_as(TaskAttribute::ORDERED, 1, &cdb10(0x2a, 0, 1), &pattern(1, 8), 0);
    // The target has it, as it answers what comes after it.
    assert_eq!(revoked.execute(0, &[0; 6], &[], 0).status, 0);
    let only_owner = rule(&format!("initiators = [\"{owner}\"]"));
    daemon.change(|config| config.targets[0].acl = vec![only_owner.clone()]).unwrap();
    let before_all = stays.read(0, 0, 1);
    daemon.slow.release();
    assert_eq!(revoked.wait(read).status, 0, "it had begun");
    let ordered = revoked.wait(ordered);
    assert_eq!((ordered.status, ordered.sense[2] & 0xf, ordered.sense[12]), (2, 7, 0x27));
    assert_eq!(stays.execute(0, &[0; 6], &[], 0).status, 0, "RESERVE goes with the right");
    for (name, cdb) in attempts() {
        let answer = revoked.execute(0, &cdb, &pattern(1, 9), 512);
        if ALWAYS.contains(&cdb[0]) {
            assert_eq!(answer.status, 0, "{name}");
        } else {
            let sense = (answer.status, answer.sense[2] & 0xf, answer.sense[12]);
            assert!([(2, 5, 0x25), (2, 5, 0x20), (2, 5, 0x24)].contains(&sense), "{name}: {answer:?}");
        }
    }
    for function in [
        TaskManagementCode::LOGICAL_UNIT_RESET,
        TaskManagementCode::CLEAR_TASK_SET,
        TaskManagementCode::TARGET_WARM_RESET,
        TaskManagementCode::TARGET_COLD_RESET,
    ] {
        revoked.core.manage_task(1, function, [0; 8], None);
        let response = loop {
            match revoked.other_event() {
                Some(InitiatorEvent::TaskManagementDone { response, .. }) => break response,
                Some(InitiatorEvent::AsyncMessage(_)) => {}
                other => panic!("{function:?}: {other:?}"),
            }
        };
        let refusals = [TaskManagementResult::LUN_DOES_NOT_EXIST, TaskManagementResult::AUTHORIZATION_FAILED];
        assert!(refusals.contains(&response), "{function:?}: {response:?}");
    }
    assert_eq!(stays.execute(0, &[0; 6], &[], 0).status, 0, "nothing was reset");
    assert_eq!(stays.read(0, 0, 1), before_all);
    assert_eq!(stays.read(1, 0, 1), vec![0; BLOCK]);
}

#[test]
fn a_rule_that_becomes_read_only_is_in_force_when_the_change_is_answered() {
    let daemon = daemon_with("[[target.acl]]\ninitiators = [\"*\"]");
    let mut client = daemon.log_in().ready();
    for turn in 0..50 {
        daemon
            .change(|config| config.targets[0].acl = vec![rule("initiators = [\"*\"]\nread_only = true")])
            .unwrap();
        let write = client.submit_write(0, 0, &pattern(1, turn));
        let write = client.wait(write);
        assert_eq!(write.status, 2, "the change of its mode parameters, or write protected");
        daemon.change(|config| config.targets[0].acl = vec![rule("initiators = [\"*\"]")]).unwrap();
        client = client.ready();
    }
}

#[test]
fn a_persistent_reservation_outlives_the_right_to_log_in_and_the_change_says_so() {
    let daemon = daemon_with("[[target.acl]]\ninitiators = [\"*\"]");
    let owner = "iqn.2026-11.com.example:owner";
    let login_of_owner = InitiatorLoginConfig { isid: [0x80, 0, 0, 0, 0, 9], ..as_initiator(owner) };
    let mut stays = Client::log_in(daemon.address, login_of_owner).unwrap().ready();
    let mut revoked = daemon.log_in().ready();
    let mut list = vec![0; 24];
    list[8..16].copy_from_slice(&7u64.to_be_bytes());
    assert_eq!(revoked.execute(0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0).status, 0, "registered");
    list.rotate_left(8);
    // Write exclusive.
    assert_eq!(revoked.execute(0, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &list, 0).status, 0, "reserved");
    let only_owner = rule(&format!("initiators = [\"{owner}\"]"));
    let changed = daemon.change(|config| config.targets[0].acl = vec![only_owner.clone()]).unwrap();
    let told = changed.effects.last().unwrap();
    let parts = ["registrations on lun 0", INITIATOR, &format!("lunway reservation clear {TARGET} 0")];
    assert!(parts.iter().all(|part| told.contains(part)), "{:?}", changed.effects);
    drop(revoked);
    daemon.await_sessions(1);
    let write = stays.submit_write(0, 0, &pattern(1, 1));
    assert_eq!(stays.wait(write).status, 0x18, "it is persistent");
    daemon.runtime.block_on(daemon.server().clear_reservations(TARGET, 0)).unwrap();
    stays.ready().write(0, 0, &pattern(1, 1));
}
