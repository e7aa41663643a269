//! Asymmetric access states: SPC-4 5.16.2.4 and 5.16.2.5, and how groups are reported and set.

use std::sync::Arc;

use lunway_scsi::cdb;
use lunway_scsi::vpd::DeviceIdentification;
use lunway_scsi::{
    AccessState, AdditionalSense, Inquiry, LunView, MemoryStore, PeripheralType, PortGroup, Response,
    ScsiTarget, Sense, SenseKey, StateStore, Status, state_item,
};

use crate::commands::{Rig, assert_complete, cdb_of, hear_all, operation, send};

/// Whether a command is carried out through a port in standby, unavailable, in transition: `A` the standard says that
/// it shall be, `a` it may be and is, `R` it is refused. Active ports carry out everything.
#[rustfmt::skip]
const COMMANDS: &[(&str, &str)] = &[
    ("INQUIRY",                                                  "AAA"),
    ("MODE SELECT (6)",                                          "ARR"),
    ("MODE SELECT (10)",                                         "ARR"),
    ("MODE SENSE (6)",                                           "ARR"),
    ("MODE SENSE (10)",                                          "ARR"),
    ("REPORT LUNS",                                              "AAA"),
    ("LOG SENSE",                                                "ARR"),
    ("RECEIVE DIAGNOSTIC RESULTS",                               "ARR"),
    ("SEND DIAGNOSTIC",                                          "ARR"),
    ("REPORT TARGET PORT GROUPS",                                "AAA"),
    ("SET TARGET PORT GROUPS",                                   "AAR"),
    ("REQUEST SENSE",                                            "AAA"),
    ("PERSISTENT RESERVE IN: READ KEYS",                         "ARR"),
    ("PERSISTENT RESERVE IN: READ RESERVATION",                  "ARR"),
    ("PERSISTENT RESERVE IN: REPORT CAPABILITIES",               "ARR"),
    ("PERSISTENT RESERVE IN: READ FULL STATUS",                  "ARR"),
    ("PERSISTENT RESERVE OUT: REGISTER",                         "ARR"),
    ("PERSISTENT RESERVE OUT: RESERVE",                          "ARR"),
    ("PERSISTENT RESERVE OUT: RELEASE",                          "ARR"),
    ("PERSISTENT RESERVE OUT: CLEAR",                            "ARR"),
    ("PERSISTENT RESERVE OUT: PREEMPT",                          "ARR"),
    ("PERSISTENT RESERVE OUT: PREEMPT AND ABORT",                "ARR"),
    ("PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY", "ARR"),
    ("PERSISTENT RESERVE OUT: REGISTER AND MOVE",                "ARR"),

    ("READ CAPACITY (10)",                                       "aRR"),
    ("READ CAPACITY (16)",                                       "aRR"),
    ("REPORT SUPPORTED OPERATION CODES",                         "aRR"),
    ("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",               "aRR"),

    ("TEST UNIT READY",                                          "RRR"),
    ("FORMAT UNIT",                                              "RRR"),
    ("READ (6)",                                                 "RRR"),
    ("WRITE (6)",                                                "RRR"),
    ("RESERVE (6)",                                              "RRR"),
    ("RELEASE (6)",                                              "RRR"),
    ("START STOP UNIT",                                          "RRR"),
    ("PREVENT ALLOW MEDIUM REMOVAL",                             "RRR"),
    ("READ (10)",                                                "RRR"),
    ("WRITE (10)",                                               "RRR"),
    ("WRITE AND VERIFY (10)",                                    "RRR"),
    ("VERIFY (10)",                                              "RRR"),
    ("PRE-FETCH (10)",                                           "RRR"),
    ("SYNCHRONIZE CACHE (10)",                                   "RRR"),
    ("READ DEFECT DATA (10)",                                    "RRR"),
    ("WRITE SAME (10)",                                          "RRR"),
    ("UNMAP",                                                    "RRR"),
    ("SANITIZE: OVERWRITE",                                      "RRR"),
    ("SANITIZE: BLOCK ERASE",                                    "RRR"),
    ("SANITIZE: EXIT FAILURE MODE",                              "RRR"),
    ("RESERVE (10)",                                             "RRR"),
    ("RELEASE (10)",                                             "RRR"),
    ("EXTENDED COPY (LID1)",                                     "RRR"),
    ("RECEIVE COPY STATUS (LID1)",                               "RRR"),
    ("RECEIVE COPY DATA (LID1)",                                 "RRR"),
    ("RECEIVE COPY OPERATING PARAMETERS",                        "RRR"),
    ("RECEIVE COPY FAILURE DETAILS (LID1)",                      "RRR"),
    ("READ (16)",                                                "RRR"),
    ("COMPARE AND WRITE",                                        "RRR"),
    ("WRITE (16)",                                               "RRR"),
    ("ORWRITE (16)",                                             "RRR"),
    ("WRITE AND VERIFY (16)",                                    "RRR"),
    ("VERIFY (16)",                                              "RRR"),
    ("PRE-FETCH (16)",                                           "RRR"),
    ("SYNCHRONIZE CACHE (16)",                                   "RRR"),
    ("WRITE SAME (16)",                                          "RRR"),
    ("WRITE ATOMIC (16)",                                        "RRR"),
    ("GET LBA STATUS (16)",                                      "RRR"),
    ("READ (12)",                                                "RRR"),
    ("WRITE (12)",                                               "RRR"),
    ("WRITE AND VERIFY (12)",                                    "RRR"),
    ("VERIFY (12)",                                              "RRR"),
    ("READ DEFECT DATA (12)",                                    "RRR"),
];

const STATES: [(AccessState, AdditionalSense); 3] = [
    (AccessState::Standby, AdditionalSense::TARGET_PORT_STANDBY),
    (AccessState::Unavailable, AdditionalSense::TARGET_PORT_UNAVAILABLE),
    (AccessState::Transitioning, AdditionalSense::ASYMMETRIC_ACCESS_TRANSITION),
];

/// The port was the reason for a refusal.
fn refused_for_its_port(response: &Response) -> Option<AdditionalSense> {
    let sense = response.sense.as_ref().filter(|sense| sense.key == SenseKey::NOT_READY)?;
    (sense.code.0 >> 8 == 0x04).then_some(sense.code)
}

#[test]
fn every_operation_is_in_the_table() {
    assert_complete("standard's lists of asymmetric access states", COMMANDS.iter().map(|row| row.0));
}

#[test]
fn ports_carry_out_what_the_standard_says_of_their_state() {
    for &(name, row) in COMMANDS {
        let cdb = cdb_of(operation(name), None);
        for (index, (state, code)) in STATES.into_iter().enumerate() {
            let rig = Rig::new();
            let (here, there) = (rig.login("host", 1), rig.login("host", 2));
            rig.set_state(state);
            hear_attention(&here);
            hear_all(&there);
            let expected = if row.chars().nth(index) == Some('R') { Some(code) } else { None };
            assert_eq!(refused_for_its_port(&send(&here, &cdb, &[])), expected, "{name} through {state:?}");
            assert_eq!(refused_for_its_port(&send(&there, &cdb, &[])), None, "{name} through the other port");
        }
        for state in [AccessState::ActiveOptimized, AccessState::ActiveNonOptimized] {
            let rig = Rig::new();
            rig.set_state(state);
            let nexus = rig.login("host", 1);
            assert_eq!(refused_for_its_port(&send(&nexus, &cdb, &[])), None, "{name} through {state:?}");
        }
    }
}

/// ASYMMETRIC ACCESS STATE CHANGED is told in every state, with the next command that is not INQUIRY and the like.
fn hear_attention(nexus: &lunway_scsi::Nexus) {
    let sense = send(nexus, &cdb::test_unit_ready(), &[]).sense.expect("something has changed");
    assert_eq!(sense.code, AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED);
}

fn report(nexus: &lunway_scsi::Nexus, format: u8) -> Vec<u8> {
    let mut cdb = cdb_of(operation("REPORT TARGET PORT GROUPS"), Some((1, format << 5 | 0x0A)));
    cdb[8] = 1;
    let response = send(nexus, &cdb, &[]);
    assert_eq!(response.status, Status::GOOD);
    response.data_in.to_vec()
}

fn set(nexus: &lunway_scsi::Nexus, choices: &[(u8, u16)]) -> Response {
    let mut list = vec![0; 4];
    for &(state, tag) in choices {
        list.extend([state, 0]);
        list.extend(tag.to_be_bytes());
    }
    let mut cdb = cdb_of(operation("SET TARGET PORT GROUPS"), None);
    cdb[9] = list.len() as u8;
    send(nexus, &cdb, &list)
}

#[test]
fn groups_are_reported_with_both_headers() {
    let rig = Rig::new();
    let group =
        |tag, state, preferred, ports: &[u16]| PortGroup { tag, state, preferred, ports: ports.to_vec() };
    rig.target.set_port_groups(vec![
        group(1, AccessState::ActiveOptimized, true, &[1, 3]),
        group(0x102, AccessState::Standby, false, &[2]),
        group(7, AccessState::Unavailable, false, &[]),
    ]);
    let nexus = rig.login("host", 1);
    let descriptors = [
        &[0x80, 0x8F, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3][..],
        &[0x02, 0x8F, 1, 2, 0, 0, 0, 1, 0, 0, 0, 2],
    ]
    .concat();
    assert_eq!(report(&nexus, 0), [&[0, 0, 0, 28][..], &descriptors].concat());
    assert_eq!(report(&nexus, 1), [&[0, 0, 0, 32, 0x10, 0, 0, 0][..], &descriptors].concat());
    let reserved = cdb_of(operation("REPORT TARGET PORT GROUPS"), Some((1, 0x4A)));
    let sense = send(&nexus, &reserved, &[]).sense.unwrap();
    assert_eq!(*sense, Sense::invalid_cdb_field(1, 7));
}

#[test]
fn a_nexus_learns_its_port_and_group_and_that_the_states_can_be_set() {
    let rig = Rig::new();
    let nexus = rig.login("host", 2);
    let page = send(&nexus, &cdb::inquiry(true, 0x83, 1024), &[]).data_in;
    let names = DeviceIdentification::parse(&page).unwrap();
    assert_eq!((names.relative_target_port(), names.target_port_group()), (Some(2), Some(2)));
    let inquiry = Inquiry::parse(&send(&nexus, &cdb::inquiry(false, 0, 96), &[]).data_in).unwrap();
    assert_eq!((inquiry.asymmetric_access, inquiry.peripheral), (3, PeripheralType::DISK));
    let stray = rig.target.open_nexus("host", 9, LunView::ALL);
    let page = send(&stray, &cdb::inquiry(true, 0x83, 1024), &[]).data_in;
    assert_eq!(DeviceIdentification::parse(&page).unwrap().target_port_group(), None);
}

#[test]
fn through_an_unavailable_port_the_disk_is_not_there_and_its_state_can_be_set() {
    let rig = Rig::new();
    let nexus = rig.login("host", 1);
    rig.set_state(AccessState::Unavailable);
    hear_attention(&nexus);
    for evpd in [false, true] {
        let inquiry = send(&nexus, &cdb::inquiry(evpd, 0, 96), &[]).data_in;
        assert_eq!(PeripheralType(inquiry[0]).qualifier(), 1);
    }
    let sense = Sense::parse(&send(&nexus, &cdb::request_sense(18), &[]).data_in).unwrap();
    assert_eq!(sense.code, AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED);
    assert_eq!(set(&nexus, &[(0, 1)]).status, Status::GOOD);
    assert_eq!(send(&nexus, &cdb::test_unit_ready(), &[]).status, Status::GOOD);
}

#[test]
fn setting_states_tells_every_nexus_but_the_one_that_does_it() {
    let rig = Rig::new();
    let (here, there) = (rig.login("host", 1), rig.login("host", 2));
    let other = rig.login("other", 1);
    assert_eq!(set(&here, &[(2, 1), (0, 2)]).status, Status::GOOD);
    let report = report(&here, 0);
    // The state and, five bytes on, by whom.
    assert_eq!((report[4], report[9], report[16], report[21]), (2, 1, 0, 1));
    let sense = send(&here, &cdb::test_unit_ready(), &[]).sense.unwrap();
    assert_eq!(sense.code, AdditionalSense::TARGET_PORT_STANDBY);
    hear_attention(&there);
    hear_attention(&other);
    assert_eq!(send(&there, &cdb::test_unit_ready(), &[]).status, Status::GOOD);
    // The same again changes nothing.
    assert_eq!(set(&here, &[(2, 1)]).status, Status::GOOD);
    assert_eq!(send(&there, &cdb::test_unit_ready(), &[]).status, Status::GOOD);
}

#[test]
fn states_that_cannot_be_set_change_nothing() {
    let rig = Rig::new();
    let nexus = rig.login("host", 1);
    let before = rig.target.port_groups();
    let refused = |choices: &[(u8, u16)], byte: u16| {
        let sense = set(&nexus, choices).sense.expect("a refusal");
        assert_eq!(*sense, Sense::invalid_parameter(byte), "{choices:?}");
        assert_eq!(rig.target.port_groups(), before);
    };
    for state in [0x4, 0x5, 0xE, 0xF] {
        refused(&[(2, 1), (state, 2)], 8);
    }
    refused(&[(2, 1), (2, 5)], 10);
    refused(&[(2, 1), (3, 1)], 10);
    let mut cdb = cdb_of(operation("SET TARGET PORT GROUPS"), None);
    assert_eq!(send(&nexus, &cdb, &[]).status, Status::GOOD, "an empty list is none");
    cdb[9] = 6;
    assert_eq!(*send(&nexus, &cdb, &[0; 6]).sense.unwrap(), Sense::invalid_cdb_field(6, 7));
}

#[test]
fn states_that_were_set_are_those_of_the_next_target_of_the_name() {
    let store = Arc::new(MemoryStore::default());
    let target = || ScsiTarget::with_state("iqn.t", store.clone()).unwrap();
    let disk = Arc::new(lunway_memory::RamDisk::new(1 << 20, 512).unwrap());
    let unit = lunway_scsi::LogicalUnit::new(disk, Default::default()).unwrap();
    let first = target();
    first.attach(0, unit).unwrap();
    let nexus = first.open_nexus("host", 1, LunView::ALL);
    hear_all(&nexus);
    assert_eq!(set(&nexus, &[(1, 1)]).status, Status::GOOD);
    assert_eq!(target().port_groups()[0].state, AccessState::ActiveNonOptimized);
    let saved = store.save("iqn.t", state_item::PORT_GROUPS, b"LWPG".to_vec());
    assert!(matches!(saved, lunway_block::Io::Ready(Ok(()))));
    assert!(ScsiTarget::with_state("iqn.t", store.clone()).is_err());
}
