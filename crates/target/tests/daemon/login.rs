//! Who gets in, and what the others are told.

use std::io::Write;
use std::time::Duration;

use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig, LoginError};
use lunway_iscsi::negotiation::{DigestPolicy, Parameters};
use lunway_iscsi::pdu::LoginStatus;
use lunway_iscsi::{CloseReason, SendTargets};

use crate::support::*;

fn refusal(daemon: &Daemon, login: InitiatorLoginConfig) -> LoginError {
    match Client::log_in(daemon.address, login).map(|_| ()) {
        Err(CloseReason::LoginFailed(error)) => error,
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn account(user: &str, secret: &str) -> ChapAccount {
    ChapAccount { user: user.to_owned(), secret: Secret::new(secret).unwrap() }
}

fn chap(secret: &str, mutual: Option<&str>) -> Option<InitiatorChap> {
    Some(InitiatorChap {
        account: account("host", secret),
        algorithms: ChapAlgorithm::OFFER.to_vec(),
        mutual: mutual.map(|secret| account("disks", secret)),
    })
}

/// A daemon that asks for CHAP, and the files with its secrets.
fn daemon_with_chap() -> (Daemon, [tempfile::NamedTempFile; 2]) {
    let files = ["sesame open now", "the other secret"].map(|secret| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{secret}").unwrap();
        file
    });
    let [one, two] = files.each_ref().map(|file| file.path().display().to_string());
    let text = format!(
        "[[target]]\nname = \"{TARGET}\"\nopen = true\n[[target.chap]]\nuser = \"host\"\nsecret_file = \"{one}\"\n\
         [target.mutual_chap]\nuser = \"disks\"\nsecret_file = \"{two}\"\n{}",
        luns()
    );
    (Daemon::start_with(&text), files)
}

// shows RFC 7143 [4.2.4-1]
#[test]
fn the_right_secret_opens_a_session() {
    let (daemon, _files) = daemon_with_chap();
    let login = InitiatorLoginConfig { chap: chap("sesame open now", None), ..login(1) };
    let client = Client::log_in(daemon.address, login).unwrap();
    assert_eq!(client.core.logged_in().unwrap().target_name.as_deref(), Some(TARGET));
    client.ready().write(0, 0, &pattern(8, 1));
}

#[test]
fn a_wrong_secret_and_no_secret_are_authentication_failures() {
    let (daemon, _files) = daemon_with_chap();
    let wrong = InitiatorLoginConfig { chap: chap("open sesame now", None), ..login(1) };
    assert_eq!(refusal(&daemon, wrong), LoginError::AuthenticationFailed);
    assert_eq!(refusal(&daemon, login(1)), LoginError::AuthenticationFailed);
    assert_eq!(daemon.server().sessions(), 0);
}

#[test]
fn which_sessions_there_are_is_told_only_to_who_has_proven_to_be_a_user() {
    let (daemon, _files) = daemon_with_chap();
    let right = InitiatorLoginConfig { chap: chap("sesame open now", None), ..login(1) };
    let client = Client::log_in(daemon.address, right.clone()).unwrap();
    let tsih = client.core.logged_in().unwrap().tsih;
    for tsih in [tsih, tsih + 1] {
        for chap in [None, chap("open sesame now", None)] {
            let stranger = InitiatorLoginConfig { tsih, cid: 1, chap, ..login(1) };
            assert_eq!(refusal(&daemon, stranger), LoginError::AuthenticationFailed, "TSIH {tsih}");
        }
    }
    let user = InitiatorLoginConfig { tsih: tsih + 1, cid: 1, ..right };
    let refused = refusal(&daemon, user);
    assert_eq!(refused, LoginError::Refused(LoginStatus::SESSION_DOES_NOT_EXIST));
}

// shows RFC 7143 [12.1.3-5]
#[test]
fn the_target_proves_itself_to_initiators_that_ask() {
    let (daemon, _files) = daemon_with_chap();
    let mutual = |secret| InitiatorLoginConfig { chap: chap("sesame open now", Some(secret)), ..login(1) };
    assert!(Client::log_in(daemon.address, mutual("the other secret")).is_ok());
    assert!(Client::log_in(daemon.address, mutual("what it is not")).is_err());
}

// shows RFC 7143 [7.12-1]
#[test]
fn an_unknown_target_is_not_found() {
    let daemon = Daemon::start("");
    let login =
        InitiatorLoginConfig { target_name: Some("iqn.2026-11.com.example:none".to_owned()), ..login(1) };
    assert_eq!(refusal(&daemon, login), LoginError::NotFound);
}

#[test]
fn names_are_compared_in_lower_case() {
    let daemon = Daemon::start("");
    let login = InitiatorLoginConfig { target_name: Some(TARGET.to_ascii_uppercase()), ..login(1) };
    assert!(Client::log_in(daemon.address, login).is_ok());
}

// shows RFC 7143 [6.3.1-2]
#[test]
fn a_session_takes_no_second_connection_and_a_session_that_is_not_there_none_at_all() {
    let daemon = Daemon::start("");
    let client = daemon.log_in();
    let tsih = client.core.logged_in().unwrap().tsih;
    assert_ne!(tsih, 0);
    let join = |tsih| InitiatorLoginConfig { tsih, cid: 1, ..login(1) };
    assert_eq!(refusal(&daemon, join(tsih)), LoginError::Refused(LoginStatus::TOO_MANY_CONNECTIONS));
    assert_eq!(
        refusal(&daemon, join(tsih.wrapping_add(7).max(1))),
        LoginError::Refused(LoginStatus::SESSION_DOES_NOT_EXIST)
    );
}

// shows RFC 7143 [6.3.2-4]
#[test]
fn one_session_more_than_allowed_is_out_of_resources() {
    let daemon = Daemon::start("[limits]\nsessions = 2");
    let (first, _second) = (daemon.log_in_as(1), daemon.log_in_as(2));
    let full = LoginError::TargetUnavailable(LoginStatus::OUT_OF_RESOURCES);
    assert_eq!(refusal(&daemon, login(3)), full);
    drop(first);
    daemon.await_sessions(1);
    daemon.log_in_as(3);
}

// shows RFC 7143 [C-2, 13.8-2]
// shows RFC 7143 [C-10]
#[test]
fn discovery_tells_names_and_real_ports() {
    let text = format!(
        "[[target]]\nname = \"{TARGET}\"\nopen = true\n[[target]]\nname = \"iqn.2026-11.com.example:more\"\nopen = true\n"
    );
    let daemon = Daemon::start_with(&text);
    let mut client =
        Client::log_in(daemon.address, InitiatorLoginConfig { target_name: None, ..login(1) }).unwrap();
    client.core.send_targets(&SendTargets::All);
    let Some(InitiatorEvent::Targets(targets)) = client.other_event() else { panic!("targets") };
    let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names, [TARGET, "iqn.2026-11.com.example:more"]);
    for target in &targets {
        assert_eq!(target.addresses, [(daemon.address.to_string(), 1)]);
    }
    client.core.send_targets(&SendTargets::Named("iqn.2026-11.com.example:more".to_owned()));
    let Some(InitiatorEvent::Targets(targets)) = client.other_event() else { panic!("targets") };
    assert_eq!(targets.len(), 1);
    client.core.logout();
    assert!(matches!(client.other_event(), Some(InitiatorEvent::Closing(CloseReason::LoggedOut))));
    daemon.await_sessions(0);
}

// shows RFC 7143 [C-4, C-8]
#[test]
fn a_normal_session_may_ask_about_its_own_target() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in();
    client.core.send_targets(&SendTargets::This);
    let Some(InitiatorEvent::Targets(targets)) = client.other_event() else { panic!("targets") };
    assert_eq!(targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), [TARGET]);
}

// shows RFC 7143 [13.1-2]
#[test]
fn digests_are_used_where_the_initiator_wants_them() {
    let daemon = Daemon::start("");
    let wanted = Parameters {
        header_digest: DigestPolicy::Require,
        data_digest: DigestPolicy::Require,
        ..Parameters::default()
    };
    let mut client = Client::log_in(daemon.address, InitiatorLoginConfig { parameters: wanted, ..login(1) })
        .unwrap()
        .ready();
    let negotiated = &client.core.logged_in().unwrap().negotiated;
    assert!(negotiated.header_digest && negotiated.data_digest);
    let data = pattern(100, 3);
    client.write(0, 7, &data);
    assert_eq!(client.read(0, 7, 100), data);
}

#[test]
fn a_target_that_requires_digests_refuses_initiators_without() {
    let daemon = Daemon::start("header_digest = \"require\"");
    let never = Parameters { header_digest: DigestPolicy::Never, ..Parameters::default() };
    assert!(Client::log_in(daemon.address, InitiatorLoginConfig { parameters: never, ..login(1) }).is_err());
}

#[test]
fn a_login_that_takes_too_long_is_closed() {
    let daemon = Daemon::start("[limits]\nlogin_timeout = \"1s\"");
    let mut stream = daemon.connect();
    stream.write_all(&[0x43, 0x87, 0, 0]).unwrap();
    let start = std::time::Instant::now();
    assert_eq!(std::io::Read::read(&mut stream, &mut [0; 8]).unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_millis(900));
}

#[test]
fn an_initiator_that_offers_everything_gets_one_connection_and_no_error_recovery() {
    let everything = |max_outstanding_r2t| InitiatorLoginConfig {
        parameters: Parameters {
            max_connections: 32,
            error_recovery_level: 2,
            max_outstanding_r2t,
            ..Parameters::default()
        },
        ..login(1)
    };
    let agreed = |daemon: &Daemon, offered| {
        let client = Client::log_in(daemon.address, everything(offered)).unwrap();
        let negotiated = &client.core.logged_in().unwrap().negotiated;
        (negotiated.max_connections, negotiated.error_recovery_level, negotiated.max_outstanding_r2t)
    };
    let daemon = Daemon::start("");
    assert_eq!(agreed(&daemon, 8), (1, 0, 8));
    assert_eq!(agreed(&daemon, 65535), (1, 0, 16), "the offer is followed up to a limit");
    let limits = "error_recovery_level = 1\n[limits]\nconnections_per_session = 2";
    assert_eq!(agreed(&Daemon::start(limits), 8), (2, 1, 1));
}
