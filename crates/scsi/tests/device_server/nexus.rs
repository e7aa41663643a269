//! What nexuses do to each other: reservations, removal, resets, unit attentions.

use crate::support::{Initiator, Rig, SECTOR};
use lunway_scsi::cdb::{self, TransferFlags};
use lunway_scsi::{
    AdditionalSense, LogicalUnitOptions, Lun, LunView, ReservationType, Scope, Status,
    TaskManagementFunction, TaskManagementServiceResponse, UnitAttention,
};

const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE_6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 0x02, 0];
const LOAD: [u8; 6] = [0x1B, 0, 0, 0, 0x03, 0];
const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];

fn write(host: &Initiator) -> Status {
    host.send(&cdb::write16(0, 1, TransferFlags::NONE), &[1; SECTOR]).status
}

#[test]
fn reserve_keeps_others_out_until_it_is_released_or_the_nexus_goes() {
    let rig = Rig::new();
    let (one, other) = (rig.login("one"), rig.login("other"));
    one.good(&RESERVE_6, &[]);
    other.conflicts(&RESERVE_6, &[]);
    other.conflicts(&cdb::test_unit_ready(), &[]);
    other.good(&cdb::inquiry(false, 0, 36), &[]);
    other.good(&RELEASE_6, &[]);
    assert_eq!(write(&other), Status::RESERVATION_CONFLICT);
    one.good(&RELEASE_6, &[]);
    assert_eq!(write(&other), Status::GOOD);
    one.good(&RESERVE_6, &[]);
    one.0.close();
    assert_eq!(write(&other), Status::GOOD);
    assert_eq!(one.refused(&cdb::test_unit_ready(), &[]).code, AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED);
    other.good(&RESERVE_6, &[]);
    drop(other);
    assert_eq!(write(&rig.login("third")), Status::GOOD);
}

fn prout(action: u8, kind: u8, key: u64, argument: u64) -> ([u8; 10], Vec<u8>) {
    let mut list = [key.to_be_bytes(), argument.to_be_bytes()].concat();
    list.resize(24, 0);
    ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

#[test]
fn a_persistent_reservation_survives_its_nexus_and_is_found_again() {
    let rig = Rig::new();
    let (one, other) = (rig.login("one"), rig.login("other"));
    let do_it = |host: &Initiator, (cdb, list): ([u8; 10], Vec<u8>)| host.send(&cdb, &list).status;
    let kind = ReservationType::ExclusiveAccess.code();
    assert_eq!(do_it(&one, prout(0, 0, 0, 11)), Status::GOOD);
    assert_eq!(do_it(&one, prout(1, kind, 11, 0)), Status::GOOD);
    assert_eq!(write(&other), Status::RESERVATION_CONFLICT);
    drop(one);
    assert_eq!(write(&other), Status::RESERVATION_CONFLICT);
    let one = rig.login_again("one");
    assert_eq!(write(&one), Status::GOOD);
    // The other takes it over, and the first is told.
    assert_eq!(do_it(&other, prout(6, 0, 0, 22)), Status::GOOD);
    assert_eq!(do_it(&other, prout(5, kind, 22, 11)), Status::GOOD);
    one.hears(UnitAttention::RegistrationsPreempted);
    assert_eq!(write(&one), Status::RESERVATION_CONFLICT);
    let keys = one.good(&[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[]).data_in;
    assert_eq!(keys[..], [[0, 0, 0, 3, 0, 0, 0, 8], 22u64.to_be_bytes()].concat());
    let full = one.good(&[0x5E, 3, 0, 0, 0, 0, 0, 1, 0, 0], &[]).data_in;
    assert_eq!((full[8 + 12], full[8 + 13]), (1, kind));
    assert!(full.windows(5).any(|name| name == b"other"));
}

#[test]
fn aptpl_is_refused_as_long_as_it_is_not_kept() {
    let rig = Rig::new();
    let (cdb, mut list) = prout(0, 0, 0, 11);
    list[20] = 1;
    let sense = rig.login("one").refused(&cdb, &list);
    assert_eq!(sense.code, AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
}

#[test]
fn a_medium_comes_and_goes_unless_prevented() {
    let rig = Rig::with(LogicalUnitOptions { removable: true, ..Default::default() });
    let (one, other) = (rig.login("one"), rig.login("other"));
    one.good(&PREVENT, &[]);
    assert_eq!(other.refused(&EJECT, &[]).code, AdditionalSense::MEDIUM_REMOVAL_PREVENTED);
    one.0.close();
    other.good(&EJECT, &[]);
    assert_eq!(
        other.refused(&cdb::read_capacity16(32), &[]).code,
        AdditionalSense::MEDIUM_NOT_PRESENT_TRAY_OPEN
    );
    let third = rig.login("third");
    other.good(&LOAD, &[]);
    other.is_ready();
    third.hears(UnitAttention::MediumChanged);
}

#[test]
fn a_fixed_disk_cannot_be_ejected() {
    let rig = Rig::new();
    assert_eq!(rig.login("one").refused(&EJECT, &[]).code, AdditionalSense::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_reset_releases_and_is_told_to_all() {
    let rig = Rig::new();
    let (one, other) = (rig.login("one"), rig.login("other"));
    one.good(&RESERVE_6, &[]);
    let outcome = other.0.task_management([0; 8], TaskManagementFunction::LogicalUnitReset);
    assert_eq!(outcome.response, TaskManagementServiceResponse::FunctionComplete);
    assert!(matches!(outcome.abort, Scope::Unit { lun: 0, .. }));
    one.hears(UnitAttention::Reset);
    other.hears(UnitAttention::Reset);
    assert_eq!(write(&other), Status::GOOD);
    let outcome = one.0.task_management([0; 8], TaskManagementFunction::TargetWarmReset);
    assert!(matches!(outcome.abort, Scope::Target));
    other.hears(UnitAttention::Reset);
    let nowhere = one.0.task_management(Lun::new(5).0, TaskManagementFunction::LogicalUnitReset);
    assert_eq!(nowhere.response, TaskManagementServiceResponse::IncorrectLun);
    other.0.commands_cleared(0);
    other.hears(UnitAttention::CommandsCleared);
}

#[test]
fn request_sense_tells_a_unit_attention_once() {
    let rig = Rig::new();
    let nexus = Initiator(rig.target.open_nexus("one", 1, LunView::ALL));
    let sense = || lunway_scsi::Sense::parse(&nexus.good(&cdb::request_sense(18), &[]).data_in).unwrap();
    assert_eq!(sense().code, AdditionalSense::POWER_ON_OCCURRED);
    assert_eq!(sense().code, AdditionalSense::NONE);
    nexus.is_ready();
}

#[test]
fn a_read_only_unit_reads() {
    let rig = Rig::with(LogicalUnitOptions { read_only: true, ..Default::default() });
    let host = rig.login("host");
    host.good(&cdb::read16(0, 1, TransferFlags::NONE), &[]);
    for cdb in [
        cdb::write16(0, 1, TransferFlags::NONE),
        cdb::compare_and_write(0, 1, TransferFlags::NONE),
        cdb::write_same16(0, 1, Default::default()),
        cdb::unmap(0),
    ] {
        assert_eq!(host.refused(&cdb, &[0; 2 * SECTOR]).code, AdditionalSense::WRITE_PROTECTED, "{cdb:?}");
    }
}

#[test]
fn a_port_that_was_told_of_the_power_on_hears_of_a_nexus_loss_when_it_comes_back() {
    let rig = Rig::new();
    let first_sense = |name: &str, listen: bool| {
        let nexus = rig.target.open_nexus(name, 1, LunView::ALL);
        let host = Initiator(nexus);
        listen.then(|| host.refused(&cdb::test_unit_ready(), &[]).code)
    };
    assert_eq!(first_sense("one", false), None);
    assert_eq!(
        first_sense("one", true),
        Some(AdditionalSense::POWER_ON_OCCURRED),
        "it was not told the first time"
    );
    assert_eq!(first_sense("one", true), Some(AdditionalSense::I_T_NEXUS_LOSS_OCCURRED));
    assert_eq!(first_sense("other", true), Some(AdditionalSense::POWER_ON_OCCURRED));
}
