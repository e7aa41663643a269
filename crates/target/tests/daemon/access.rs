//! The rules of a target: who gets in, who is told of it, and what they see and may do.

use std::io::Write;
use std::net::SocketAddr;

use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig, LoginError};
use lunway_iscsi::pdu::{AsyncEvent, LoginStatus};
use lunway_iscsi::{CloseReason, SendTargets};
use lunway_target::AccessRule;

use crate::support::*;

const OTHER: &str = "iqn.2026-11.com.example:other";

/// A daemon whose target has these rules.
fn daemon_with(rules: &str) -> Daemon {
    Daemon::start_with(&format!(
        "[[target]]\nname = \"{TARGET}\"\n{rules}\n{}[[target]]\nname = \"{OTHER}\"\n",
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
