//! What each nexus may see and do: LUN masking, read-only exports, and changes of both while nexuses are open.

use crate::support::{Initiator, Rig, SECTOR};
use lunway_scsi::cdb::{self, TransferFlags};
use lunway_scsi::mode::{ModeSense, PageControl};
use lunway_scsi::{
    AccessState, AdditionalSense, Inquiry, Lun, LunList, LunView, PeripheralType, PortGroup, SenseKey,
    Status, TaskManagementFunction, TaskManagementServiceResponse, UnitAttention,
};

fn only(luns: &[u16]) -> LunView {
    LunView { luns: Some(luns.iter().copied().collect()), read_only: false }
}

/// A target that offers the same unit as LUNs 0, 1 and 300.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.target.attach(1, rig.unit.clone()).expect("a free number");
    rig.target.attach(300, rig.unit.clone()).expect("a free number");
    rig
}

fn open(rig: &Rig, name: &str, view: LunView) -> Initiator {
    Initiator(rig.target.open_nexus(name, 1, view))
}

fn reported(host: &Initiator) -> Vec<Lun> {
    LunList::parse(&host.good(&cdb::report_luns(256), &[]).data_in).expect("a list").luns
}

fn next_sense(host: &Initiator, lun: u16) -> Option<AdditionalSense> {
    host.send_to(Lun::new(lun), &cdb::test_unit_ready(), &[]).sense.map(|sense| sense.code)
}

#[test]
fn a_masked_unit_does_not_exist() {
    let rig = rig();
    let host = open(&rig, "host", only(&[1, 300, 7]));
    let answer = host.send_to(Lun::new(300), &cdb::report_luns(256), &[]);
    assert_eq!(LunList::parse(&answer.data_in).unwrap().luns, [Lun::new(1), Lun::new(300)]);
    let inquiry = host.good(&cdb::inquiry(false, 0, 36), &[]).data_in;
    assert_eq!(Inquiry::parse(&inquiry).unwrap().peripheral, PeripheralType::ABSENT);
    let refused = host.refused(&cdb::read16(0, 1, TransferFlags::NONE), &[]);
    assert_eq!(refused.code, AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED);
    assert_eq!(next_sense(&host, 1), Some(AdditionalSense::POWER_ON_OCCURRED));
    assert_eq!(next_sense(&host, 1), None);
}

/// A host that came back after a restart of the daemon had its commands failed with "not supported", because the disk
/// took some seconds longer to be opened.
#[test]
fn a_unit_that_is_expected_is_becoming_ready_for_those_who_may_see_it() {
    let rig = rig();
    let (host, other) = (open(&rig, "host", LunView::ALL), open(&rig, "other", only(&[0])));
    let read = |host: &Initiator| {
        let answer = host.send_to(Lun::new(9), &cdb::read16(0, 1, TransferFlags::NONE), &[]);
        answer.sense.map(|sense| (sense.key, sense.code))
    };
    let absent = Some((SenseKey::ILLEGAL_REQUEST, AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED));
    assert_eq!(read(&host), absent);
    rig.target.expect(9);
    assert_eq!(read(&host), Some((SenseKey::NOT_READY, AdditionalSense::BECOMING_READY)));
    assert_eq!(read(&other), absent, "it must not learn that there is one");
    assert!(!reported(&host).contains(&Lun::new(9)));
    rig.target.expect_no_more(9);
    assert_eq!(read(&host), absent);
    rig.target.expect(9);
    rig.target.attach(9, rig.unit.clone()).unwrap();
    rig.target.detach(9).unwrap();
    assert_eq!(read(&host), absent, "it has come, and gone");
}

#[test]
fn a_change_of_the_view_is_told_to_its_nexus_and_to_no_other() {
    let rig = rig();
    let (host, other) = (open(&rig, "host", only(&[0])), rig.login("other"));
    host.hears(UnitAttention::PowerOn);
    host.0.set_view(only(&[0]));
    host.is_ready();
    host.0.set_view(only(&[0, 1]));
    host.hears(UnitAttention::LunsChanged);
    assert_eq!(reported(&host), [Lun::new(0), Lun::new(1)]);
    host.0.set_view(only(&[0]));
    host.hears(UnitAttention::LunsChanged);
    assert_eq!(next_sense(&host, 1), Some(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED));
    other.is_ready();
}

#[test]
fn a_unit_that_is_attached_or_detached_concerns_only_those_who_may_see_it() {
    let rig = rig();
    let (host, other) = (open(&rig, "host", only(&[0])), rig.login("other"));
    host.hears(UnitAttention::PowerOn);
    rig.target.attach(2, rig.unit.clone()).unwrap();
    host.is_ready();
    other.hears(UnitAttention::LunsChanged);
    rig.target.detach(2).unwrap();
    host.is_ready();
    other.hears(UnitAttention::LunsChanged);
    host.0.set_view(LunView::ALL);
    assert_eq!(reported(&host), [Lun::new(0), Lun::new(1), Lun::new(300)]);
}

#[test]
fn what_a_nexus_held_on_a_unit_goes_when_that_is_masked() {
    let rig = Rig::new();
    let (host, other) = (rig.login("host"), rig.login("other"));
    host.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    other.conflicts(&cdb::test_unit_ready(), &[]);
    host.0.set_view(only(&[]));
    other.is_ready();
}

#[test]
fn a_read_only_nexus_reads_and_sees_wp_while_others_write() {
    let rig = Rig::new();
    let (host, other) = (rig.login("host"), rig.login("other"));
    let write = cdb::write16(0, 1, TransferFlags::NONE);
    let sense = |host: &Initiator| {
        let data = host.good(&cdb::mode_sense6(PageControl::Current, 0x3F, 0, 255), &[]).data_in;
        ModeSense::parse_6(&data).unwrap().write_protected
    };
    host.0.set_view(LunView { read_only: true, ..LunView::ALL });
    host.hears(UnitAttention::ModeParametersChanged);
    let refused = host.refused(&write, &[0; SECTOR]);
    assert_eq!((refused.key, refused.code), (SenseKey::DATA_PROTECT, AdditionalSense::WRITE_PROTECTED));
    host.good(&cdb::read16(0, 1, TransferFlags::NONE), &[]);
    assert!(sense(&host) && !sense(&other));
    assert_eq!(other.send(&write, &[0; SECTOR]).status, Status::GOOD);
    host.0.set_view(LunView::ALL);
    host.hears(UnitAttention::ModeParametersChanged);
    host.good(&write, &[0; SECTOR]);
}

#[test]
fn port_groups_that_change_are_told_to_every_nexus_once() {
    let rig = Rig::new();
    let host = rig.login("host");
    let group = |tag, state| PortGroup { tag, state, preferred: false, ports: vec![tag] };
    rig.target.set_port_groups(vec![group(1, AccessState::ActiveOptimized)]);
    host.is_ready();
    let groups = vec![group(1, AccessState::ActiveOptimized), group(2, AccessState::ActiveNonOptimized)];
    rig.target.set_port_groups(groups.clone());
    host.hears(UnitAttention::AsymmetricAccessChanged);
    assert_eq!(rig.target.port_groups(), groups);
}

#[test]
fn a_nexus_that_does_not_see_all_units_cannot_reset_the_target() {
    let rig = rig();
    let (host, other) = (open(&rig, "host", only(&[0])), rig.login("other"));
    let reset = |host: &Initiator, function| host.0.task_management([0; 8], function).response;
    for function in [TaskManagementFunction::TargetWarmReset, TaskManagementFunction::TargetColdReset] {
        assert_eq!(reset(&host, function), TaskManagementServiceResponse::NotAuthorized);
    }
    other.is_ready();
    let function = TaskManagementFunction::LogicalUnitReset;
    assert_eq!(reset(&host, function), TaskManagementServiceResponse::FunctionComplete);
    other.hears(UnitAttention::Reset);
    let function = TaskManagementFunction::TargetWarmReset;
    assert_eq!(reset(&other, function), TaskManagementServiceResponse::FunctionComplete);
}
