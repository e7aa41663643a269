//! The rules of the registry, one by one.

use std::time::Duration;

use super::ticket::DISCOVERIES_MAX;
use super::*;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn key(initiator: &str) -> SessionKey {
    SessionKey {
        initiator: initiator.to_owned(),
        isid: [0; 6],
        target: "iqn.t".to_owned(),
        portal_group: 1,
        principal: Some(String::new()),
    }
}

fn registry(sessions: usize, connections_before_login: usize) -> Arc<Registry> {
    Registry::new(&Limits { sessions, connections_before_login, ..Limits::default() })
}

fn ticket(registry: &Arc<Registry>) -> Ticket {
    ticket_from(registry, "192.0.2.1")
}

fn ticket_from(registry: &Arc<Registry>, from: &str) -> Ticket {
    registry.enter(from.parse().unwrap()).unwrap().0
}

fn log_in(registry: &Arc<Registry>, initiator: &str) -> (Ticket, Option<Arc<Handle>>) {
    let mut ticket = ticket(registry);
    ticket.reserve_tsih(Some(&key(initiator))).unwrap();
    let predecessor = ticket.establish(key(initiator), 0, None).unwrap().pop();
    (ticket, predecessor)
}

#[test]
fn the_oldest_connection_before_login_makes_place() {
    let registry = registry(9, 2);
    let (mut first, second) = (ticket(&registry), ticket(&registry));
    let (_third, evicted) = registry.enter(HERE).unwrap();
    assert_eq!(evicted.unwrap().id, first.handle.id);
    assert!(matches!(first.orders.try_recv(), Ok(Order::Close(Cause::Crowded))));
    drop(second);
    assert!(registry.enter(HERE).unwrap().1.is_none());
}

#[test]
fn a_second_login_of_the_same_name_takes_the_sessions_place() {
    let registry = registry(1, 9);
    let (mut old, none) = log_in(&registry, "iqn.i");
    assert!(none.is_none());
    let (new, predecessor) = log_in(&registry, "iqn.i");
    assert_eq!(predecessor.unwrap().id, old.handle.id);
    assert!(matches!(old.orders.try_recv(), Ok(Order::Close(Cause::Reinstated))));
    drop(old);
    assert_eq!(registry.sessions(), 1);
    let (_newest, predecessor) = log_in(&registry, "iqn.i");
    assert_eq!(predecessor.unwrap().id, new.handle.id);
}

#[test]
fn one_session_too_many_is_out_of_resources() {
    let registry = registry(1, 9);
    let mut late = ticket(&registry);
    late.reserve_tsih(Some(&key("iqn.b"))).unwrap();
    let (first, _) = log_in(&registry, "iqn.a");
    assert_eq!(late.establish(key("iqn.b"), 0, None).unwrap_err(), Refusal::Full);
    assert_eq!(ticket(&registry).reserve_tsih(Some(&key("iqn.c"))), Err(Refusal::Full));
    drop(first);
    assert!(late.establish(key("iqn.b"), 0, None).is_ok());
}

#[test]
fn one_initiator_does_not_take_the_places_of_all_others() {
    let registry = Registry::new(&Limits { sessions_per_initiator: 2, ..Limits::default() });
    let port = |isid| SessionKey { isid: [isid; 6], ..key("iqn.a") };
    let mut tickets: Vec<_> = (0..3).map(|_| ticket(&registry)).collect();
    for (isid, ticket) in (0..).zip(&mut tickets) {
        let refused = (isid == 2).then_some(Refusal::Full);
        assert_eq!(ticket.reserve_tsih(Some(&port(isid))).err(), refused);
        if refused.is_none() {
            ticket.establish(port(isid), 0, None).unwrap();
        }
    }
    assert!(ticket(&registry).reserve_tsih(Some(&port(0))).is_ok(), "it may log in again");
    assert!(ticket(&registry).reserve_tsih(Some(&key("iqn.b"))).is_ok());
}

/// A user opened as many sessions under each of four made-up names as one initiator may have: 192 of 256, and 6 GiB.
#[test]
fn a_proven_user_has_a_quarter_of_the_places_whatever_names_it_uses() {
    let taken = |limits: Limits, principal: &str| {
        let registry = Registry::new(&limits);
        let mut tickets = Vec::new();
        let logs_in = |name: usize| {
            let of = || SessionKey { principal: Some(principal.to_owned()), ..key(&format!("iqn.{name}")) };
            let mut ticket = ticket(&registry);
            let place = ticket.reserve_tsih(Some(&of())).map(|_| ());
            let place = place.and_then(|()| ticket.establish(of(), 0, None).map(drop));
            tickets.push(ticket);
            place.is_ok()
        };
        (0..limits.sessions).map(logs_in).filter(|has_place| *has_place).count()
    };
    let default = Limits::default();
    assert_eq!(taken(default, "user:greedy"), 64);
    let (few, many) =
        (Limits { sessions_per_initiator: 4, ..default }, Limits { sessions_per_initiator: 100, ..default });
    assert_eq!(taken(few, "user:cluster"), 64, "several hosts may share a user");
    assert_eq!(taken(many, "user:greedy"), 100, "a limit that is raised is raised for users");
    assert_eq!(taken(default, "open"), 192, "a rule may be for many peers");
}

#[test]
fn one_principal_with_many_names_leaves_places_to_others() {
    let limits = Limits { sessions: 64, sessions_per_initiator: 64, ..Limits::default() };
    let registry = Registry::new(&limits);
    let of = |principal: &str, name: usize| SessionKey {
        principal: Some(principal.to_owned()),
        ..key(&format!("iqn.{name}"))
    };
    let mut tickets = Vec::new();
    let mut log_in = |principal: &str, name| {
        let mut ticket = ticket(&registry);
        let place = ticket.reserve_tsih(Some(&of(principal, name))).map(|_| ());
        let place = place.and_then(|()| ticket.establish(of(principal, name), 0, None).map(drop));
        tickets.push(ticket);
        place
    };
    let taken = (0..64).filter(|name| log_in("user:greedy", *name).is_ok()).count();
    assert_eq!(taken, 48);
    let others = (64..96).filter(|name| log_in("user:other", *name).is_ok()).count();
    assert_eq!(others, 8);
    assert!(log_in("", 96).is_ok());
    assert_eq!(log_in("user:greedy", 97), Err(Refusal::Full));
}

/// With 64 places: the first takes 48, the next 8, and the last 8 are for principals that have none, one for each.
#[test]
fn principals_that_take_all_they_can_get_leave_a_place_to_each_that_has_none() {
    let limits = Limits { sessions: 64, sessions_per_initiator: 64, ..Limits::default() };
    let registry = Registry::new(&limits);
    let mut tickets = Vec::new();
    let mut log_in = |principal: usize, name: usize| {
        let of =
            || SessionKey { principal: Some(format!("user:{principal}")), ..key(&format!("iqn.{name}")) };
        let mut ticket = ticket(&registry);
        let place = ticket.reserve_tsih(Some(&of())).map(|_| ());
        let place = place.and_then(|()| ticket.establish(of(), 0, None).map(drop));
        tickets.push(ticket);
        place.is_ok()
    };
    let taken: Vec<_> =
        (0..11).map(|user| (0..64).filter(|name| log_in(user, user * 64 + name)).count()).collect();
    assert_eq!(taken, [48, 8, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn two_principals_with_one_name_take_neither_place_nor_count_of_each_other() {
    let limits = Limits { sessions: 2, sessions_per_initiator: 1, ..Limits::default() };
    let registry = Registry::new(&limits);
    let of = |principal: Option<&str>| SessionKey { principal: principal.map(str::to_owned), ..key("iqn.i") };
    let mut tickets = [ticket(&registry), ticket(&registry)];
    for (ticket, user) in tickets.iter_mut().zip(["user:a", "user:b"]) {
        ticket.reserve_tsih(Some(&of(None))).unwrap();
        assert!(ticket.establish(of(Some(user)), 0, None).unwrap().is_empty());
    }
    let unproven = ticket(&registry).reserve_tsih(Some(&of(None)));
    assert!(unproven.is_ok(), "one of them may be who logs in again");
    let mut third = ticket(&registry);
    third.reserve_tsih(Some(&of(None))).unwrap();
    assert_eq!(third.establish(of(Some("user:c")), 0, None).unwrap_err(), Refusal::Full);
}

#[test]
fn sessions_that_are_being_replaced_count_while_they_end() {
    let registry = registry(2, 9);
    let (_oldest, _) = log_in(&registry, "iqn.a");
    let (_older, _) = log_in(&registry, "iqn.a");
    let (_old, _) = log_in(&registry, "iqn.a");
    assert_eq!(registry.sessions(), 1);
    let mut new = ticket(&registry);
    assert_eq!(new.reserve_tsih(Some(&key("iqn.a"))), Err(Refusal::Full));
}

#[test]
fn discovery_sessions_take_nobodys_place_but_each_others() {
    let registry = registry(1, 999);
    let (_session, _) = log_in(&registry, "iqn.a");
    let mut discoveries: Vec<_> = (0..=DISCOVERIES_MAX).map(|_| ticket(&registry)).collect();
    for discovery in &mut discoveries {
        discovery.reserve_tsih(None).unwrap();
        discovery.establish_discovery().unwrap();
    }
    assert!(matches!(discoveries[0].orders.try_recv(), Ok(Order::Close(Cause::Crowded))));
    assert!(discoveries[1].orders.try_recv().is_err());
    assert_eq!(registry.sessions(), 1);
}

#[test]
fn one_source_takes_no_other_sources_place_before_login_or_in_discovery() {
    let registry = registry(1, 99);
    let enter = |from| {
        let mut discovery = ticket_from(&registry, from);
        discovery.reserve_tsih(None).unwrap();
        discovery.establish_discovery().unwrap();
        discovery
    };
    let mut quiet = enter("192.0.2.1");
    let loud: Vec<_> = (0..3 * DISCOVERIES_MAX).map(|_| enter("192.0.2.2")).collect();
    assert!(quiet.orders.try_recv().is_err(), "a discovery session of another source stays");
    drop(loud);
    let mut quiet = ticket(&registry);
    let mut loud: Vec<_> = (0..300).map(|_| ticket_from(&registry, "192.0.2.2")).collect();
    assert!(quiet.orders.try_recv().is_err(), "a connection of another source stays");
    assert!(matches!(loud[0].orders.try_recv(), Ok(Order::Close(Cause::Crowded))));
}

#[test]
fn a_tsih_is_never_0_nor_used_twice_at_a_time() {
    let registry = registry(usize::from(u16::MAX), 1 << 20);
    let mut tickets: Vec<_> = (0..u16::MAX).map(|_| ticket(&registry)).collect();
    let tsihs: HashSet<u16> = tickets.iter_mut().map(|ticket| ticket.reserve_tsih(None).unwrap()).collect();
    assert_eq!(tsihs.len(), usize::from(u16::MAX));
    assert!(!tsihs.contains(&0));
    assert_eq!(ticket(&registry).reserve_tsih(None), Err(Refusal::Full));
    let freed = tickets.swap_remove(77).tsih.unwrap();
    assert_eq!(ticket(&registry).reserve_tsih(None), Ok(freed));
}

#[test]
fn a_closed_registry_lets_nobody_in() {
    let registry = registry(9, 9);
    let mut waiting = ticket(&registry);
    let (_session, _) = log_in(&registry, "iqn.i");
    let (before_login, sessions) = registry.close();
    assert_eq!((before_login.len(), sessions.len()), (1, 1));
    assert!(registry.enter(HERE).is_none());
    assert_eq!(waiting.reserve_tsih(None), Err(Refusal::ShuttingDown));
}

#[tokio::test]
async fn the_end_of_a_connection_can_be_awaited() {
    let registry = registry(9, 9);
    let ticket = ticket(&registry);
    let handle = Arc::clone(&ticket.handle);
    assert!(tokio::time::timeout(Duration::from_millis(5), handle.ended()).await.is_err());
    drop(ticket);
    handle.ended().await;
}
