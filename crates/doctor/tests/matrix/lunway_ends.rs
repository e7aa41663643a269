//! Both ends of sessions of lunway's own initiator.

use lunway_doctor::Verdict::{self, Bad, Ok, Unknown, Warn};
use lunway_doctor::facts::*;
use lunway_doctor::{Facts, Seen, merge, rule};

use crate::healthy::{IQN, known, lunway_session, served_session};

const NAME: &str = "iqn.2026-11.com.example:lunway";

/// A machine without the kernel's initiator.
fn host(name: &str, sessions: Vec<LunwaySession>) -> Facts {
    let network = "10.0.1.0/24".parse().unwrap();
    let port = Port { name: "eth1".into(), networks: vec![network], ..Port::default() };
    Facts {
        host: Some(Host { name: name.into(), ..Host::default() }),
        ports: Some(known(vec![port])),
        lunway_sessions: Some(known(sessions)),
        ..Facts::default()
    }
}

fn target(sessions: Vec<ServedSession>) -> Facts {
    let portal = |at: &str| PortalState { listen: at.into(), portals: vec![at.into()], waiting: None };
    let target = Target {
        targets: vec![ServedTarget { name: IQN.into(), luns: vec![] }],
        portals: vec![portal("10.0.1.101:3260"), portal("10.0.1.102:3260")],
        sessions,
        ..Target::default()
    };
    Facts { target: Some(target), ..Facts::default() }
}

fn judged(id: &str, machines: &[&Facts]) -> Vec<(Verdict, String, String)> {
    let machines: Vec<_> = machines.iter().map(|facts| ("file", *facts)).collect();
    let facts = Facts { ends: merge(&machines), ..Facts::default() };
    let found = rule(id).unwrap().diagnoses(&facts).into_iter();
    found.map(|one| (one.verdict, one.finding.what, one.finding.remedy)).collect()
}

fn verdicts(id: &str, machines: &[&Facts]) -> Vec<Verdict> {
    judged(id, machines).into_iter().map(|(verdict, ..)| verdict).collect()
}

#[test]
fn a_session_of_lunway_is_met_at_the_target_by_its_names_and_its_isid() {
    let served = || served_session(9, "lunway", "10.0.1.101:3260", 0);
    let own = host("one", vec![lunway_session()]);
    assert_eq!(verdicts("ends-login", &[&own, &target(vec![served()])]), [Ok]);
    // The record has the target's name in lower case.
    let other_case = ServedSession { target: IQN.to_uppercase(), ..served() };
    assert_eq!(verdicts("ends-login", &[&own, &target(vec![other_case])]), [Ok]);
    let (verdict, what, fix) = judged("ends-login", &[&own, &target(vec![])]).remove(0);
    assert!(
        verdict == Warn && what.contains("its lane is down") && fix.starts_with("on one: "),
        "{what} {fix}"
    );
    // Another ISID is a session of another process.
    let other = ServedSession { isid: "80aabbccddee".into(), tsih: 4, ..served() };
    let found = judged("ends-login", &[&own, &target(vec![served(), other])]);
    assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [Unknown, Ok]);
    assert!(found[0].1.contains("another user or a container"), "{found:?}");
}

#[test]
fn a_session_that_a_killed_process_left_is_told_while_the_target_has_it() {
    let left = host("one", vec![LunwaySession { process: None, ..lunway_session() }]);
    let served = served_session(9, "lunway", "10.0.1.101:3260", 0);
    let (verdict, what, fix) = judged("ends-login", &[&left, &target(vec![served])]).remove(0);
    assert_eq!((verdict, fix.as_str()), (Warn, "lunway session drop 9"), "{what}");
    assert_eq!(verdicts("ends-login", &[&left, &target(vec![])]), []);
}

#[test]
fn hosts_whose_lunway_has_one_name_are_told_and_a_portal_without_a_lane_as_well() {
    let hosts = [host("one", vec![lunway_session()]), host("two", vec![lunway_session()])];
    let found = judged("ends-name", &[&hosts[0], &hosts[1]]);
    assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [Bad, Bad]);
    assert!(found[0].1.contains(NAME) && found[0].2.contains("initiator=IQN"), "{found:?}");
    let served = served_session(9, "lunway", "10.0.1.101:3260", 0);
    let found = judged("ends-lanes", &[&hosts[0], &target(vec![served])]);
    assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [Warn, Ok]);
    assert!(found[0].2.contains("portal=10.0.1.102:3260"), "{found:?}");
}

#[test]
fn records_that_cannot_be_read_are_unknown_and_a_machine_without_an_initiator_is_no_host() {
    let unread = Facts { lunway_sessions: Some(Seen::unseen("no /proc")), ..host("one", vec![]) };
    let found = judged("ends-login", &[&unread, &target(vec![])]);
    assert!(found.len() == 1 && found[0].0 == Unknown && found[0].1.contains("no /proc"), "{found:?}");
    assert_eq!(judged("ends-login", &[&host("one", vec![]), &target(vec![])]), []);
}
