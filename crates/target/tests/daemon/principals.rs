//! What belongs to a principal: nobody gets another's sessions and reservations by its name.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use lunway_iscsi::CloseReason;
use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig};
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{HEADER_LEN, NopOut, ScsiCommand, to_bytes};
use socket2::{Domain, Socket, Type};

use crate::support::*;

const CONFLICT: u8 = 0x18;
/// Sense keys.
const UNIT_ATTENTION: u8 = 6;
const DATA_PROTECT: u8 = 7;
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
    from_as(daemon, address, login(1)).unwrap()
}

/// A login from an address of this machine.
fn from_as(daemon: &Daemon, address: &str, login: InitiatorLoginConfig) -> Result<Client, CloseReason> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let own: SocketAddr = format!("{address}:0").parse().unwrap();
    socket.bind(&own.into()).unwrap();
    socket.connect(&daemon.address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client::log_in_over(stream, login)
}

/// Two addresses of this machine, each a network of its own: here a user may write, and there only read.
const WRITABLE: &str = "127.0.0.1";
const READ_ONLY: &str = "127.0.1.1";

fn with_two_networks(more: &str) -> (Daemon, Vec<tempfile::NamedTempFile>) {
    let (daemon, files) = with_users(more);
    let rules =
        [format!("from = [\"{WRITABLE}/32\"]"), format!("from = [\"{READ_ONLY}/32\"]\nread_only = true")];
    daemon
        .change(|config| config.targets[0].acl = rules.map(|rule| toml::from_str(&rule).unwrap()).to_vec())
        .unwrap();
    (daemon, files)
}

/// Sends a PDU over a connection, and takes the next one.
fn exchange(client: &mut Client, mut header: [u8; HEADER_LEN], data: &[u8]) -> ([u8; HEADER_LEN], Vec<u8>) {
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    client.stream.write_all(&[&header, data].concat()).unwrap();
    client.stream.read_exact(&mut header).unwrap();
    let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let mut data = vec![0; len.next_multiple_of(4)];
    client.stream.read_exact(&mut data).unwrap();
    (header, data)
}

/// Writes a block of LUN 0 over a connection of a session with several, with the session's next number, until there is
/// no unit attention; gives the sense key, 0 for none.
fn write_over(client: &mut Client) -> u8 {
    let mut ping = NopOut::new();
    ping.opcode.set_immediate(true);
    ping.initiator_task_tag = 0x7777.into();
    let (pong, _) = exchange(client, to_bytes(&ping), &[]);
    let mut write = ScsiCommand::new();
    write.flags = 0x80 | ScsiCommand::WRITE;
    write.initiator_task_tag = 1.into();
    write.expected_data_transfer_length = (BLOCK as u32).into();
    write.cmd_sn = u32::from_be_bytes([pong[28], pong[29], pong[30], pong[31]]).into();
    write.cdb[..10].copy_from_slice(&cdb10(0x2a, 0, 1));
    let (_, answer) = exchange(client, to_bytes(&write), &pattern(1, 3));
    // Two bytes of length, then sense data in fixed format.
    match answer.get(4).map_or(0, |key| key & 0xf) {
        UNIT_ATTENTION => write_over(client),
        key => key,
    }
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

/// A user that may write from one network and only read from another wrote from that other one, by a connection that
/// joined his session from the first.
#[test]
fn a_connection_from_the_read_only_one_of_two_networks_takes_writing_from_the_session_that_it_joins() {
    let (daemon, _files) =
        with_two_networks("[limits]\nconnections_per_session = 2\nsession_memory_mib = 64");
    let several = |tsih, cid| {
        let parameters = Parameters { max_connections: 2, ..Parameters::default() };
        InitiatorLoginConfig { tsih, cid, parameters, ..as_user("ann") }
    };
    let mut leading = from_as(&daemon, WRITABLE, several(0, 0)).unwrap();
    leading.flush();
    assert_eq!(write_over(&mut leading), 0);
    let tsih = leading.core.logged_in().unwrap().tsih;
    let mut joined = from_as(&daemon, READ_ONLY, several(tsih, 1)).unwrap();
    joined.flush();
    assert_eq!(write_over(&mut joined), DATA_PROTECT);
    assert_eq!(write_over(&mut leading), DATA_PROTECT, "commands are the session's, not the connection's");

    // Another connection takes the place of that one, and the rules change.
    let mut joined = from_as(&daemon, WRITABLE, several(tsih, 1)).unwrap();
    joined.flush();
    assert_eq!((write_over(&mut joined), write_over(&mut leading)), (0, 0));
    daemon.change(|config| config.targets[0].acl[0].read_only = true).unwrap();
    assert_eq!((write_over(&mut joined), write_over(&mut leading)), (DATA_PROTECT, DATA_PROTECT));
    assert_eq!(daemon.server().sessions(), 1);
}

/// The rules of each network, applied last to the session, were those of the connection that looked last.
#[test]
fn a_change_of_the_rules_for_one_of_two_networks_holds_for_a_session_with_a_connection_from_each() {
    let (daemon, _files) = with_users("[limits]\nconnections_per_session = 2\nsession_memory_mib = 64");
    let network = |address: &str| toml::from_str(&format!("from = [\"{address}/32\"]")).unwrap();
    daemon.change(|config| config.targets[0].acl = [WRITABLE, READ_ONLY].map(network).to_vec()).unwrap();
    let several = |tsih, cid| {
        let parameters = Parameters { max_connections: 2, ..Parameters::default() };
        InitiatorLoginConfig { tsih, cid, parameters, ..as_user("ann") }
    };
    let mut leading = from_as(&daemon, WRITABLE, several(0, 0)).unwrap();
    leading.flush();
    let tsih = leading.core.logged_in().unwrap().tsih;
    let mut joined = from_as(&daemon, READ_ONLY, several(tsih, 1)).unwrap();
    joined.flush();
    assert_eq!((write_over(&mut joined), write_over(&mut leading)), (0, 0));
    for (read_only, protects) in
        [([true, false], DATA_PROTECT), ([false, true], DATA_PROTECT), ([false, false], 0)]
    {
        daemon
            .change(|config| {
                for (rule, read_only) in config.targets[0].acl.iter_mut().zip(read_only) {
                    rule.read_only = read_only;
                }
            })
            .unwrap();
        assert_eq!(
            (write_over(&mut joined), write_over(&mut leading)),
            (protects, protects),
            "{read_only:?}"
        );
    }
}

/// The same by taking the place of the session's only connection.
#[test]
fn a_connection_from_the_read_only_one_of_two_networks_takes_over_no_right_to_write() {
    let (daemon, _files) = with_two_networks("");
    let mut session = from_as(&daemon, WRITABLE, as_user("ann")).unwrap().ready();
    assert_eq!(try_write(&mut session), 0);
    let tsih = session.core.logged_in().unwrap().tsih;
    for (address, may_write) in [(READ_ONLY, false), (WRITABLE, true), (READ_ONLY, false)] {
        let mut next =
            from_as(&daemon, address, InitiatorLoginConfig { tsih, ..as_user("ann") }).unwrap().ready();
        session.assert_closed();
        assert_eq!(try_write(&mut next) == 0, may_write, "the connection, from {address}");
        session = next;
    }
    for (address, may_write) in [(WRITABLE, true), (READ_ONLY, false)] {
        let mut next = from_as(&daemon, address, as_user("ann")).unwrap().ready();
        session.assert_closed();
        assert_eq!(try_write(&mut next) == 0, may_write, "the session, from {address}");
        session = next;
    }
    assert_eq!(daemon.server().sessions(), 1);
}

/// The number of a session and of its connection are no secrets.
#[test]
fn another_principal_does_not_take_over_the_connection_of_a_session() {
    let rule = |network: &str| format!("[[target.acl]]\nfrom = [\"{network}\"]\n");
    let rules = [rule("127.0.0.0/30"), rule("127.0.1.0/24")].concat();
    let daemon = Daemon::start_with(&format!("[[target]]\nname = \"{TARGET}\"\n{rules}{}", luns()));
    let mut host = from(&daemon, WRITABLE).ready();
    let tsih = host.core.logged_in().unwrap().tsih;
    let takes_over = || InitiatorLoginConfig { tsih, ..login(1) };
    let refused = from_as(&daemon, READ_ONLY, takes_over()).map(|_| ());
    assert!(matches!(refused, Err(CloseReason::LoginFailed(_))), "{refused:?}");
    assert_eq!(try_write(&mut host), 0, "the session goes on");
    let mut other_card = from_as(&daemon, "127.0.0.2", takes_over()).unwrap().ready();
    host.assert_closed();
    assert_eq!(try_write(&mut other_card), 0);
    assert_eq!(daemon.server().sessions(), 1);
}
