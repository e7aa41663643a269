//! Hosts that may not log in get nothing at all: no command of the table of operations and no task management function
//! of theirs is carried out. What hosts that are logged in can change for each other is in
//! `crates/scsi/tests/isolation`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use lunway_iscsi::CloseReason;
use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig, LoginError};
use lunway_scsi::operations::OPERATIONS;

use crate::support::*;

/// Opcodes of RFC 7143 §11.2.1.2 that would tell of a command's or a function's end, or carry its data.
const ANSWERS: [u8; 4] = [0x21, 0x22, 0x25, 0x31];
/// Codes of the task management functions (RFC 7143 §11.5.1), TASK REASSIGN among them.
const FUNCTIONS: std::ops::RangeInclusive<u8> = 1..=8;

/// Requests of every kind, as they go over the wire.
fn requests() -> Vec<(String, Vec<u8>)> {
    const IMMEDIATE: u8 = 0x40;
    const FINAL: u8 = 0x80;
    const READ: u8 = 0x40;
    const WRITE: u8 = 0x20;
    const SIMPLE: u8 = 0x01;
    const DATA: usize = 64;
    let mut requests = Vec::new();
    for operation in OPERATIONS {
        for flags in [READ, WRITE] {
            let mut pdu = vec![0; 48];
            [pdu[0], pdu[1]] = [IMMEDIATE | 0x01, FINAL | flags | SIMPLE];
            pdu[19] = 1;
            pdu[23] = DATA as u8;
            let cdb = &mut pdu[32..32 + operation.usage.len()];
            cdb[0] = operation.opcode;
            cdb[1] = operation.service_action.unwrap_or(0);
            if flags == WRITE {
                pdu[7] = DATA as u8;
                pdu.extend([0xA5; DATA]);
            }
            requests.push((operation.name.to_owned(), pdu));
        }
    }
    for function in FUNCTIONS {
        let mut pdu = vec![0; 48];
        [pdu[0], pdu[1], pdu[19]] = [IMMEDIATE | 0x02, FINAL | function, 1];
        requests.push((format!("task management function {function}"), pdu));
    }
    requests
}

/// Sends a request, and fails where anything but a rejection comes back. The target may close the connection at any
/// moment.
fn gets_nothing(stream: &mut TcpStream, name: &str, request: &[u8]) {
    if stream.write_all(request).is_err() {
        return;
    }
    let mut head = [0; 48];
    match stream.read_exact(&mut head) {
        Ok(()) => assert!(!ANSWERS.contains(&(head[0] & 0x3F)), "{name} was answered: {head:02x?}"),
        Err(error) => assert!(
            matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            ),
            "{name}: neither rejected nor closed: {error}"
        ),
    }
}

/// What a host observes of LUN 0: data, mode pages, reservations, access states, the list of LUNs; and that it is
/// ready.
fn observe(owner: &mut Client) -> Vec<(u8, Vec<u8>, Vec<u8>)> {
    let questions: [&[u8]; 8] = [
        &[0; 6],
        &[0x5A, 0, 0x3F, 0xFF, 0, 0, 0, 2, 0, 0],
        &[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0],
        &[0x5E, 3, 0, 0, 0, 0, 0, 1, 0, 0],
        &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        &[0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        &[0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0],
        &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0],
    ];
    let mut seen = Vec::new();
    for cdb in questions {
        let answer = owner.execute(0, cdb, &[], 512);
        seen.push((answer.status, answer.sense.to_vec(), answer.data_in.to_vec()));
    }
    seen
}

fn refusal(address: SocketAddr, login: InitiatorLoginConfig) -> LoginError {
    match Client::log_in(address, login).map(|_| ()) {
        Err(CloseReason::LoginFailed(error)) => error,
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn as_user(user: &str, secret: &str, isid: u8) -> InitiatorLoginConfig {
    InitiatorLoginConfig {
        chap: Some(InitiatorChap {
            account: ChapAccount { user: user.to_owned(), secret: Secret::new(secret).unwrap() },
            algorithms: ChapAlgorithm::OFFER.to_vec(),
            mutual: None,
        }),
        ..login(isid)
    }
}

/// Sends every request on a connection of its own that `connect` makes.
fn send_all(connect: impl Fn() -> TcpStream) {
    for (name, request) in requests() {
        gets_nothing(&mut connect(), &name, &request);
    }
}

/// A target for the user `owner`; `other` has an account there and no rule.
fn daemon_with_users() -> Daemon {
    let files = ["the secret of owner", "the secret of other"].map(|secret| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{secret}").unwrap();
        file
    });
    let [owner, other] = files.each_ref().map(|file| file.path().display().to_string());
    Daemon::start_with(&format!(
        "[limits]\nlogins_per_second = 0\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.acl]]\nusers = [\"owner\"]\n\
         [[target.chap]]\nuser = \"owner\"\nsecret_file = \"{owner}\"\n\
         [[target.chap]]\nuser = \"other\"\nsecret_file = \"{other}\"\n{}",
        luns()
    ))
}

#[test]
fn an_unknown_user_gets_nothing_whatever_command_it_sends() {
    let daemon = daemon_with_users();
    let owner = Client::log_in(daemon.address, as_user("owner", "the secret of owner", 1)).unwrap();
    let mut owner = owner.ready();
    owner.write(0, 0, &pattern(1, 7));
    let before = observe(&mut owner);
    for (login, expected) in [
        (login(2), LoginError::AuthenticationFailed),
        (as_user("nobody", "the secret of owner", 2), LoginError::AuthenticationFailed),
        (as_user("owner", "the secret of other", 2), LoginError::AuthenticationFailed),
        (as_user("other", "the secret of other", 2), LoginError::AuthorizationFailed),
        // With the very name and ISID of the owner.
        (login(1), LoginError::AuthenticationFailed),
        (as_user("other", "the secret of other", 1), LoginError::AuthorizationFailed),
    ] {
        assert_eq!(refusal(daemon.address, login), expected);
    }
    send_all(|| daemon.connect());
    assert_eq!(observe(&mut owner), before);
}

#[test]
fn another_host_gets_nothing_not_even_in_a_discovery_session() {
    let daemon = Daemon::start_with(&format!(
        "[limits]\nlogins_per_second = 0\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.acl]]\ninitiators = [\"{INITIATOR}\"]\nfrom = [\"127.0.0.0/8\"]\n{}",
        luns()
    ));
    let mut owner = daemon.log_in().ready();
    owner.write(0, 0, &pattern(1, 7));
    let before = observe(&mut owner);
    let another =
        InitiatorLoginConfig { initiator_name: "iqn.2026-11.com.example:another".to_owned(), ..login(2) };
    assert_eq!(refusal(daemon.address, another.clone()), LoginError::AuthorizationFailed);
    send_all(|| daemon.connect());
    send_all(|| {
        let discovery = InitiatorLoginConfig { target_name: None, ..another.clone() };
        Client::log_in(daemon.address, discovery).unwrap().stream
    });
    assert_eq!(observe(&mut owner), before);
    // The requests are real ones: in a session that may, they are answered.
    let (name, request) = requests().swap_remove(0);
    let mut head = [0; 48];
    let mut stream = daemon.log_in_as(4).stream;
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut head).unwrap();
    assert!(ANSWERS.contains(&(head[0] & 0x3F)), "{name}: {head:02x?}");
    // A rule that changes takes the owner's place away from it in the same way.
    daemon
        .change(|config| config.targets[0].acl = vec![toml::from_str("from = [\"192.0.2.0/24\"]").unwrap()])
        .unwrap();
    assert_eq!(refusal(daemon.address, login(3)), LoginError::AuthorizationFailed);
}
