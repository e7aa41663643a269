//! Portal groups, and portals that come and go by configuration.

use std::net::{SocketAddr, TcpStream};

use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::{InitiatorLoginConfig, LoginError};
use lunway_iscsi::{CloseReason, SendTargets};
use lunway_target::{Config, PortalGroupConfig};

use crate::support::*;

/// What SendTargets says of [`TARGET`].
pub(crate) fn told(address: SocketAddr) -> Vec<(String, u16)> {
    let login = InitiatorLoginConfig { target_name: None, ..login(9) };
    let mut client = Client::log_in(address, login).unwrap();
    client.core.send_targets(&SendTargets::All);
    let Some(InitiatorEvent::Targets(targets)) = client.other_event() else { panic!("targets") };
    let target = targets.into_iter().find(|target| target.name == TARGET);
    target.map(|target| target.addresses).unwrap_or_default()
}

pub(crate) fn with_listen(listen: &str) -> impl FnOnce(&mut Config) {
    let listen = listen.split(' ').map(|entry| entry.parse().unwrap()).collect();
    move |config| config.listen = listen
}

/// The real address of a portal on this address of the loopback network.
fn address_of(daemon: &Daemon, ip: &str) -> SocketAddr {
    daemon.server().addresses().into_iter().find(|address| address.ip().to_string() == ip).unwrap()
}

#[test]
fn portals_come_and_go_by_configuration_and_only_who_came_by_one_that_goes_is_asked_to_log_out() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let all = with_listen("127.0.0.1:0 127.0.0.2:0");
    daemon.change(all).unwrap();
    let more = address_of(&daemon, "127.0.0.2");
    assert_eq!(address_of(&daemon, "127.0.0.1"), daemon.address, "the portal that stays is the same socket");
    assert_eq!(told(more), [(more.to_string(), 1), (daemon.address.to_string(), 1)]);
    let mut second = Client::log_in(more, login(2)).unwrap().ready();

    let changed = daemon.change(with_listen("127.0.0.2:0")).unwrap();
    let [effect] = &changed.effects[..] else { panic!("{:?}", changed.effects) };
    assert!(effect.starts_with(&format!("sessions with target {TARGET} are asked to log out")), "{effect}");
    assert_eq!(effect.matches("(127.0.0.1:").count(), 1, "the other session stays: {effect}");
    assert_eq!(daemon.server().addresses(), [more]);
    assert!(TcpStream::connect(daemon.address).is_err());
    client.write(0, 0, &pattern(4, 1));
    assert!(matches!(client.other_event(), Some(InitiatorEvent::AsyncMessage(_))));
    assert_eq!(second.read(0, 0, 4), pattern(4, 1));
    assert!(!second.was_told_anything());
}

#[test]
fn a_target_that_is_left_without_a_portal_that_listens_is_named() {
    let daemon = Daemon::start("");
    // TEST-NET-1 (RFC 5737): this machine has no such address, and the portal waits for it.
    daemon.change(with_listen("127.0.0.1:0 192.0.2.1:3260")).unwrap();
    let changed = daemon.change(with_listen("192.0.2.1:3260")).unwrap();
    let cut =
        format!("no initiator can log in to target {TARGET}: no portal that offers it has an address now");
    assert!(changed.effects.contains(&cut), "{:?}", changed.effects);
}

#[test]
fn one_socket_for_every_address_takes_over_without_a_gap() {
    let daemon = Daemon::start("");
    let port = daemon.address.port();
    let mut client = daemon.log_in().ready();
    daemon.change(with_listen(&format!("0.0.0.0:{port}"))).unwrap();
    assert_eq!(daemon.server().addresses(), [SocketAddr::from(([0, 0, 0, 0], port))]);
    assert_eq!(told(daemon.address)[0], (daemon.address.to_string(), 1));
    client.write(0, 0, &pattern(1, 1));
    daemon.change(with_listen(&format!("127.0.0.1:{port}"))).unwrap();
    assert_eq!(daemon.server().addresses(), [daemon.address]);
    assert_eq!(told(daemon.address), [(daemon.address.to_string(), 1)]);
    client.write(0, 0, &pattern(1, 2));
}

#[test]
fn a_portal_that_cannot_be_had_leaves_everything_as_it_was() {
    let daemon = Daemon::start("");
    let foreign = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
    let taken = foreign.local_addr().unwrap();
    let refused = daemon.change(with_listen(&format!("127.0.0.2:0 {taken}"))).unwrap_err();
    assert!(refused.to_string().contains("another program listens there"), "{refused}");
    assert_eq!(daemon.server().addresses(), [daemon.address]);
    assert_eq!(told(daemon.address), [(daemon.address.to_string(), 1)]);
    assert_eq!(daemon.server().generation(), 1);
}

#[test]
fn an_address_that_the_machine_does_not_have_is_waited_for_and_shown() {
    let daemon = Daemon::start("");
    daemon.change(with_listen("127.0.0.1:0 192.0.2.77 nosuch0")).unwrap();
    let portals = daemon.server().portals();
    let shown: Vec<_> =
        portals.iter().map(|portal| (portal.portals.len(), portal.waiting.is_some())).collect();
    assert_eq!(shown, [(1, false), (0, true), (0, true)]);
    assert_eq!(told(daemon.address), [(daemon.address.to_string(), 1)]);
}

// shows RFC 7143 [11.13.8-1, 13.8-2]
#[test]
fn a_portal_group_is_told_by_its_tag_and_only_where_the_target_is_offered() {
    let daemon = Daemon::start("[[portal_group]]\ntag = 7\nlisten = [\"127.0.0.2:0\"]");
    let seventh = address_of(&daemon, "127.0.0.2");
    let both = [(daemon.address.to_string(), 1), (seventh.to_string(), 7)];
    assert_eq!(told(daemon.address), both);
    let client = Client::log_in(seventh, login(1)).unwrap();
    assert_eq!(client.core.logged_in().unwrap().target_portal_group_tag, Some(7));
    // The same initiator port at another target port is another session (RFC 7143 §4.4.2).
    let mut first = Client::log_in(daemon.address, login(1)).unwrap().ready();
    daemon.await_sessions(2);

    daemon
        .change(|config| {
            config.targets[0].portal_groups = vec![toml::from_str("tag = 1").unwrap()];
        })
        .unwrap();
    assert_eq!(told(daemon.address), both[..1]);
    let refused = Client::log_in(seventh, login(1)).map(|_| ());
    assert_eq!(refused, Err(CloseReason::LoginFailed(LoginError::NotFound)));
    // ASYMMETRIC ACCESS STATE CHANGED.
    assert_eq!(first.execute(0, &[0; 6], &[], 0).status, 2);
    first.write(0, 0, &pattern(1, 1));
}

#[test]
fn a_portal_group_can_be_added_while_the_server_runs() {
    let daemon = Daemon::start("");
    let group = PortalGroupConfig { tag: 2, listen: vec!["127.0.0.4:0".parse().unwrap()] };
    daemon.change(|config| config.portal_groups.push(group)).unwrap();
    let second = address_of(&daemon, "127.0.0.4");
    assert_eq!(told(daemon.address), [(daemon.address.to_string(), 1), (second.to_string(), 2)]);
    let mut client = Client::log_in(second, login(1)).unwrap().ready();
    client.write(0, 0, &pattern(1, 1));
}
