//! What belongs to a principal: nobody gets another's sessions and reservations by its name.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use lunway_iscsi::CloseReason;
use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig};
use socket2::{Domain, Socket, Type};

use crate::support::*;

const CONFLICT: u8 = 0x18;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;

/// A daemon with two users, and the files with their secrets.
fn with_users(more: &str) -> (Daemon, Vec<tempfile::NamedTempFile>) {
    let mut files = Vec::new();
    let mut users = String::new();
    for user in ["ann", "bob"] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "the secret of {user}").unwrap();
        users +=
            &format!("[[target.chap]]\nuser = \"{user}\"\nsecret_file = \"{}\"\n", file.path().display());
        files.push(file);
    }
    let text = format!("{more}\n[[target]]\nname = \"{TARGET}\"\nopen = true\n{users}{}", luns());
    (Daemon::start_with(&text), files)
}

/// A login of the same initiator port, as one of them.
fn as_user(user: &str) -> InitiatorLoginConfig {
    let secret = Secret::new(format!("the secret of {user}")).unwrap();
    let account = ChapAccount { user: user.to_owned(), secret };
    let chap = InitiatorChap { account, algorithms: ChapAlgorithm::OFFER.to_vec(), mutual: None };
    InitiatorLoginConfig { chap: Some(chap), ..login(1) }
}

/// A session of the same initiator port from another address of this machine.
fn from(daemon: &Daemon, address: &str) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let own: SocketAddr = format!("{address}:0").parse().unwrap();
    socket.bind(&own.into()).unwrap();
    socket.connect(&daemon.address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client::log_in_over(stream, login(1)).unwrap()
}

/// A PERSISTENT RESERVE OUT for LUN 0: service action, type, key, service action key, APTPL.
fn reserve_out(client: &mut Client, [action, kind, key, argument, aptpl]: [u8; 5]) -> u8 {
    let mut list = [0; 24];
    (list[7], list[15], list[20]) = (key, argument, aptpl);
    client.execute(0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0).status
}

fn try_write(client: &mut Client) -> u8 {
    client.execute(0, &cdb10(0x2a, 0, 1), &pattern(1, 2), 0).status
}

#[test]
fn a_user_neither_replaces_nor_joins_another_users_session_by_its_name() {
    let (daemon, _files) = with_users("[limits]\nconnections_per_session = 2");
    let mut ann = Client::log_in(daemon.address, as_user("ann")).unwrap().ready();
    ann.write(0, 0, &pattern(1, 1));
    let mut bob = Client::log_in(daemon.address, as_user("bob")).unwrap().ready();
    assert_eq!(ann.read(0, 0, 1), pattern(1, 1), "the session goes on");
    bob.read(0, 0, 1);
    assert_eq!(daemon.server().sessions(), 2);
    let tsih = ann.core.logged_in().unwrap().tsih;
    for cid in [0, 1] {
        let joins = InitiatorLoginConfig { tsih, cid, ..as_user("bob") };
        let Err(CloseReason::LoginFailed(_)) = Client::log_in(daemon.address, joins).map(|_| ()) else {
            panic!("joined another's session")
        };
    }
    let mut again = Client::log_in(daemon.address, as_user("ann")).unwrap().ready();
    ann.assert_closed();
    again.read(0, 0, 1);
    bob.read(0, 0, 1);
    assert_eq!(daemon.server().sessions(), 2);
}

#[test]
fn a_users_reservation_is_not_that_of_another_user_with_its_name_and_outlives_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let state = format!("state_dir = \"{}\"", dir.path().display());
    {
        let (daemon, _files) = with_users(&state);
        let mut ann = Client::log_in(daemon.address, as_user("ann")).unwrap().ready();
        assert_eq!(reserve_out(&mut ann, [REGISTER, 0, 0, 7, 1]), 0);
        assert_eq!(reserve_out(&mut ann, [RESERVE, WRITE_EXCLUSIVE, 7, 0, 0]), 0);
    }
    let (daemon, _files) = with_users(&state);
    let mut bob = Client::log_in(daemon.address, as_user("bob")).unwrap().ready();
    assert_eq!(try_write(&mut bob), CONFLICT);
    assert_eq!(reserve_out(&mut bob, [REGISTER, 0, 7, 0, 0]), CONFLICT, "its key does not help");
    let mut ann = Client::log_in(daemon.address, as_user("ann")).unwrap().ready();
    assert_eq!(try_write(&mut ann), 0);
}

#[test]
fn without_users_the_rule_that_lets_in_says_whose_a_session_is() {
    let rule = |network: &str| format!("[[target.acl]]\nfrom = [\"{network}\"]\n");
    let rules = [rule("127.0.0.0/30"), rule("127.0.1.0/24")].concat();
    let daemon = Daemon::start_with(&format!("[[target]]\nname = \"{TARGET}\"\n{rules}{}", luns()));
    let mut host = from(&daemon, "127.0.0.1").ready();
    assert_eq!(reserve_out(&mut host, [REGISTER, 0, 0, 7, 0]), 0);
    assert_eq!(reserve_out(&mut host, [RESERVE, WRITE_EXCLUSIVE, 7, 0, 0]), 0);
    let mut stranger = from(&daemon, "127.0.1.1").ready();
    assert_eq!((try_write(&mut stranger), try_write(&mut host)), (CONFLICT, 0));
    // The other card of the same host.
    let mut other_card = from(&daemon, "127.0.0.2").ready();
    host.assert_closed();
    assert_eq!(try_write(&mut other_card), 0);
    assert_eq!(daemon.server().sessions(), 2);
}

#[test]
fn a_session_stays_its_principals_when_the_rules_change() {
    let (daemon, _files) = with_users("");
    let mut ann = Client::log_in(daemon.address, as_user("ann")).unwrap().ready();
    assert_eq!(reserve_out(&mut ann, [REGISTER, 0, 0, 7, 0]), 0);
    assert_eq!(reserve_out(&mut ann, [RESERVE, WRITE_EXCLUSIVE, 7, 0, 0]), 0);
    let rule = toml::from_str("users = [\"ann\", \"bob\"]").unwrap();
    daemon.change(|config| config.targets[0].acl.push(rule)).unwrap();
    assert_eq!(try_write(&mut ann), 0);
    let mut again = Client::log_in(daemon.address, as_user("ann")).unwrap().ready();
    assert_eq!(try_write(&mut again), 0);
}
