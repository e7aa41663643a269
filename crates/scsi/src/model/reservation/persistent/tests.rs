//! Tests of persistent reservations, without units and nexuses.

use super::*;

pub(crate) fn ports(name: &str) -> PortPair {
    PortPair { initiator_port: name.to_owned(), relative_target_port: 1, principal: String::new() }
}

fn request<'a>(sender: &'a PortPair, key: Option<u64>, new_key: u64) -> Register<'a> {
    Register {
        sender,
        key,
        new_key,
        aptpl: Ok(false),
        initiator_ports: None,
        target_ports: vec![sender.relative_target_port],
    }
}

#[test]
fn ports_of_one_name_and_two_principals_have_nothing_of_each_others() {
    let of = |principal: &str| PortPair { principal: principal.to_owned(), ..ports("a") };
    let mut persistent = Persistent::default();
    persistent.register(request(&of("user:a"), Some(0), 1)).unwrap();
    persistent.reserve(&of("user:a"), 1, Ok(ReservationType::WriteExclusive)).unwrap();
    assert!(persistent.takes_part(&of("user:a")) && !persistent.takes_part(&of("user:b")));
    assert_eq!(persistent.register(request(&of("user:b"), Some(1), 0)), Err(Refusal::Conflict));
    persistent.register(request(&of("user:b"), Some(0), 2)).unwrap();
    assert_eq!(persistent.release(&of("user:b"), 1, Ok(()), None), Err(Refusal::Conflict));
    assert_eq!((persistent.key_of(&of("user:a")), persistent.key_of(&of("user:b"))), (Some(1), Some(2)));
}

#[test]
fn a_registration_of_nobody_in_particular_becomes_the_first_principals() {
    let of = |principal: &str| PortPair { principal: principal.to_owned(), ..ports("a") };
    let mut persistent = Persistent::default();
    persistent.register(request(&of(""), Some(0), 1)).unwrap();
    persistent.reserve(&of(""), 1, Ok(ReservationType::WriteExclusive)).unwrap();
    for principal in ["user:a", "user:b"] {
        persistent.adopt(&of(principal));
    }
    assert!(persistent.held_by(&of("user:a")).is_some());
    assert_eq!((persistent.key_of(&of("")), persistent.key_of(&of("user:b"))), (None, None));
}

fn change(persistent: &mut Persistent, name: &str, key: u64, new_key: u64) -> Outcome {
    persistent.register(request(&ports(name), Some(key), new_key))
}

pub(crate) fn register(persistent: &mut Persistent, name: &str, key: u64) {
    change(persistent, name, 0, key).unwrap();
}

pub(crate) fn reserve(persistent: &mut Persistent, name: &str, key: u64, kind: ReservationType) {
    persistent.reserve(&ports(name), key, Ok(kind)).unwrap();
}

fn with_registrants(names: &[(&str, u64)]) -> Persistent {
    let mut persistent = Persistent::default();
    names.iter().for_each(|(name, key)| register(&mut persistent, name, *key));
    persistent
}

fn preempt(persistent: &mut Persistent, name: &str, key: u64, victim: u64, kind: ReservationType) -> Outcome {
    persistent.preempt(Preempt { sender: &ports(name), key, victim, kind: Ok(kind) })
}

fn told(notices: &[Notice]) -> Vec<(&str, UnitAttention)> {
    notices.iter().map(|notice| (notice.to.initiator_port.as_str(), notice.condition)).collect()
}

use ReservationType as Type;
use UnitAttention::{RegistrationsPreempted, ReservationsPreempted, ReservationsReleased};

/// Table 67.
#[test]
fn register_needs_the_right_key_and_counts_generations() {
    let mut persistent = Persistent::default();
    assert_eq!(change(&mut persistent, "a", 5, 1), Err(Refusal::Conflict));
    assert_eq!(change(&mut persistent, "a", 0, 0), Ok(vec![]));
    assert_eq!(persistent.generation(), 0);
    register(&mut persistent, "a", 1);
    assert_eq!(change(&mut persistent, "a", 0, 2), Err(Refusal::Conflict));
    assert_eq!(persistent.generation(), 1);
    assert_eq!(persistent.register(request(&ports("a"), None, 3)), Ok(vec![]));
    assert_eq!(persistent.key_of(&ports("a")), Some(3));
    assert_eq!(change(&mut persistent, "a", 3, 0), Ok(vec![]));
    assert_eq!((persistent.generation(), persistent.registrations().len()), (3, 0));
}

#[test]
fn the_last_of_all_registrants_takes_the_reservation_along() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
    reserve(&mut persistent, "a", 1, Type::WriteExclusiveAllRegistrants);
    change(&mut persistent, "a", 1, 0).unwrap();
    assert!(persistent.held.is_some());
    change(&mut persistent, "b", 2, 0).unwrap();
    assert!(persistent.held.is_none());
}

#[test]
fn a_holder_that_unregisters_releases_and_registrants_hear_it() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
    reserve(&mut persistent, "a", 1, Type::WriteExclusiveRegistrantsOnly);
    let notices = change(&mut persistent, "a", 1, 0).unwrap();
    assert_eq!(told(&notices), [("b", ReservationsReleased)]);
    assert!(persistent.held.is_none());
}

#[test]
fn spec_i_pt_registers_all_that_it_names_or_nothing() {
    let sender = ports("a");
    let named = |names: &[&str]| Some(Ok(names.iter().map(|&name| name.to_owned()).collect()));
    let mut persistent = with_registrants(&[("old", 9)]);
    let list = Register { initiator_ports: named(&["b", "old"]), ..request(&sender, Some(0), 7) };
    assert_eq!(persistent.register(list), Err(Sense::invalid_parameter(24).into()));
    assert_eq!((persistent.registrations().len(), persistent.generation()), (1, 1));
    let list = Register { initiator_ports: named(&["b", "a", "c", "b"]), ..request(&sender, Some(0), 7) };
    assert_eq!(persistent.register(list), Ok(vec![]));
    let keys: Vec<_> = ["a", "b", "c"].iter().map(|name| persistent.key_of(&ports(name))).collect();
    assert_eq!(keys, [Some(7); 3]);
    // Table 67: a nexus that is registered may not.
    let list = Register { initiator_ports: named(&["d"]), ..request(&sender, Some(7), 8) };
    assert_eq!(persistent.register(list), Err(Sense::invalid_parameter(20).into()));
}

#[test]
fn all_tg_pt_registers_through_every_port_and_unregisters_so() {
    let sender = ports("a");
    let everywhere =
        |key, new_key| Register { target_ports: vec![1, 2, 3], ..request(&sender, Some(key), new_key) };
    let mut persistent = Persistent::default();
    persistent.register(everywhere(0, 5)).unwrap();
    let through: Vec<_> =
        persistent.registrations().iter().map(|found| found.ports.relative_target_port).collect();
    assert_eq!((through, persistent.generation()), (vec![1, 2, 3], 1));
    let third = PortPair { relative_target_port: 3, ..sender.clone() };
    persistent.register(request(&third, Some(5), 6)).unwrap();
    assert_eq!(persistent.register(everywhere(5, 0)), Err(Refusal::Conflict), "port 3 has key 6");
    let all = Register { key: None, ..everywhere(0, 0) };
    persistent.register(all).unwrap();
    assert_eq!(persistent.registrations(), []);
}

#[test]
fn release_wants_the_holder_and_the_type() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
    let kind = Type::ExclusiveAccess;
    reserve(&mut persistent, "a", 1, kind);
    assert_eq!(persistent.reserve(&ports("b"), 2, Ok(kind)), Err(Refusal::Conflict));
    assert_eq!(persistent.release(&ports("b"), 2, Ok(()), Some(kind)), Ok(vec![]));
    assert!(persistent.held.is_some());
    let wrong = Some(Type::WriteExclusive);
    assert!(matches!(persistent.release(&ports("a"), 1, Ok(()), wrong), Err(Refusal::Check(_))));
    persistent.release(&ports("a"), 1, Ok(()), Some(kind)).unwrap();
    assert!(persistent.held.is_none());
}

#[test]
fn a_conflict_is_found_before_a_wrong_scope() {
    let mut persistent = with_registrants(&[("a", 1)]);
    let wrong = Sense::invalid_cdb_field(2, 7);
    assert_eq!(persistent.reserve(&ports("a"), 5, Err(wrong.clone())), Err(Refusal::Conflict));
    assert_eq!(persistent.reserve(&ports("a"), 1, Err(wrong.clone())), Err(wrong.clone().into()));
    assert_eq!(persistent.release(&ports("b"), 1, Err(wrong), None), Err(Refusal::Conflict));
}

#[test]
fn preempt_takes_over_from_the_holder() {
    let kind = Type::WriteExclusive;
    let mut persistent = with_registrants(&[("a", 1), ("b", 2), ("c", 1), ("d", 3)]);
    reserve(&mut persistent, "a", 1, kind);
    let notices = preempt(&mut persistent, "b", 2, 1, kind).unwrap();
    assert_eq!(told(&notices), [("a", RegistrationsPreempted), ("c", RegistrationsPreempted)]);
    assert_eq!(persistent.held_by(&ports("b")), Some(kind));
    assert_eq!(persistent.registrations().len(), 2);
    // With another type, those who stay hear that the old reservation is gone.
    let notices = preempt(&mut persistent, "b", 2, 2, Type::ExclusiveAccess).unwrap();
    assert_eq!(told(&notices), [("d", ReservationsReleased)]);
    assert_eq!(persistent.held_by(&ports("b")), Some(Type::ExclusiveAccess));
}

#[test]
fn preempt_without_a_match_is_a_conflict_and_zero_under_another_types_reservation_a_mistake() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
    let kind = Type::WriteExclusive;
    assert_eq!(preempt(&mut persistent, "a", 1, 77, kind), Err(Refusal::Conflict));
    assert_eq!(preempt(&mut persistent, "a", 1, 0, kind), Err(Refusal::Conflict));
    assert_eq!(preempt(&mut persistent, "x", 1, 2, kind), Err(Refusal::Conflict));
    reserve(&mut persistent, "a", 1, kind);
    assert!(matches!(preempt(&mut persistent, "b", 2, 0, kind), Err(Refusal::Check(_))));
}

#[test]
fn preempting_all_registrants_with_key_zero_leaves_only_the_sender() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2), ("c", 3)]);
    reserve(&mut persistent, "a", 1, Type::ExclusiveAccessAllRegistrants);
    let kind = Type::ExclusiveAccess;
    preempt(&mut persistent, "c", 3, 0, kind).unwrap();
    assert_eq!(persistent.registrations().len(), 1);
    assert_eq!(persistent.held_by(&ports("c")), Some(kind));
}

#[test]
fn preempt_removes_registrations_whatever_scope_and_type_say_and_the_senders_own_too() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2), ("c", 2)]);
    reserve(&mut persistent, "a", 1, Type::WriteExclusiveRegistrantsOnly);
    let nonsense = Err(Sense::invalid_cdb_field(2, 7));
    let notices =
        persistent.preempt(Preempt { sender: &ports("b"), key: 2, victim: 2, kind: nonsense }).unwrap();
    assert_eq!(told(&notices), [("c", RegistrationsPreempted)]);
    assert_eq!(persistent.registrations().len(), 1);
    assert!(persistent.held_by(&ports("a")).is_some());
    // The last of all registrants, by its own hand.
    let mut persistent = with_registrants(&[("a", 1)]);
    reserve(&mut persistent, "a", 1, Type::WriteExclusiveAllRegistrants);
    preempt(&mut persistent, "a", 1, 1, Type::WriteExclusive).unwrap();
    assert!(persistent.held.is_none() && persistent.registrations().is_empty());
}

#[test]
fn clear_removes_all_and_tells_the_others() {
    let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
    reserve(&mut persistent, "a", 1, Type::WriteExclusive);
    assert_eq!(persistent.clear(&ports("b"), 1), Err(Refusal::Conflict));
    let notices = persistent.clear(&ports("b"), 2).unwrap();
    assert_eq!(told(&notices), [("a", ReservationsPreempted)]);
    assert!(persistent.held.is_none() && persistent.registrations().is_empty());
}

/// Table 70.
#[test]
fn register_and_move_is_for_the_holder_of_one_reservation() {
    let request = |sender: &'static str, new_key| (ports(sender), new_key);
    let run = |persistent: &mut Persistent, (sender, new_key): (PortPair, u64), key, unregister| {
        let to = Ok(ports("z"));
        persistent.register_and_move(Move { sender: &sender, key, new_key, aptpl: Ok(false), unregister, to })
    };
    let mut persistent = with_registrants(&[("a", 1), ("b", 2)]);
    assert_eq!(run(&mut persistent, request("x", 9), 0, false), Err(Refusal::Conflict));
    let none = Err(Sense::invalid_cdb_field(1, 4).into());
    assert_eq!(run(&mut persistent, request("a", 9), 1, false), none);
    reserve(&mut persistent, "a", 1, Type::WriteExclusiveRegistrantsOnly);
    assert_eq!(run(&mut persistent, request("b", 9), 2, false), Err(Refusal::Conflict));
    assert_eq!(run(&mut persistent, request("a", 9), 2, false), Err(Refusal::Conflict));
    assert!(matches!(run(&mut persistent, request("a", 0), 1, false), Err(Refusal::Check(_))));
    assert_eq!(run(&mut persistent, request("a", 9), 1, true), Ok(vec![]));
    assert_eq!(persistent.held_by(&ports("z")), Some(Type::WriteExclusiveRegistrantsOnly));
    assert_eq!((persistent.key_of(&ports("a")), persistent.key_of(&ports("z"))), (None, Some(9)));
    let mut shared = with_registrants(&[("a", 1)]);
    reserve(&mut shared, "a", 1, Type::WriteExclusiveAllRegistrants);
    assert_eq!(run(&mut shared, request("a", 9), 1, false), Err(Refusal::Conflict));
}

#[test]
fn registrations_are_bounded() {
    let mut persistent = Persistent::default();
    for index in 0..REGISTRATIONS_MAX {
        register(&mut persistent, &index.to_string(), 1);
    }
    assert!(matches!(change(&mut persistent, "more", 0, 1), Err(Refusal::Check(_))));
    assert_eq!(change(&mut persistent, "7", 1, 2), Ok(vec![]), "a new key needs no room");
}

/// One principal took all of them, by ports that it invented, and no other could register, and so none could
/// preempt its reservation.
#[test]
fn a_principal_that_takes_all_registrations_it_can_get_leaves_some_to_others() {
    let of = |principal: &str, name: &str| PortPair { principal: principal.to_owned(), ..ports(name) };
    let mut persistent = Persistent::default();
    let mut taken = |principal: &str| {
        let before = persistent.registrations().len();
        for session in 0..50 {
            let sender = of(principal, &session.to_string());
            let names = (0..9).map(|port| format!("{session}-{port}")).collect();
            let spec_i_pt = Register { initiator_ports: Some(Ok(names)), ..request(&sender, None, 1) };
            let _ = persistent.register(spec_i_pt);
            let _ = persistent.register(request(&sender, None, 1));
        }
        let taken = persistent.registrations().len() - before;
        if before == 0 {
            let kind = Ok(ReservationType::ExclusiveAccess);
            persistent.reserve(&of(principal, "0"), 1, kind).unwrap();
        }
        taken
    };
    assert_eq!(["a", "b", "c"].map(&mut taken), [192, 32, 4]);
    let other = of("d", "host");
    assert_eq!(persistent.register(request(&other, Some(0), 2)), Ok(Vec::new()));
    let kind = Ok(ReservationType::WriteExclusive);
    persistent.preempt(Preempt { sender: &other, key: 2, victim: 1, kind }).unwrap();
    assert_eq!((persistent.registrations().len(), persistent.held_by(&other).is_some()), (1, true));
}
