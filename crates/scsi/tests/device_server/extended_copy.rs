//! EXTENDED COPY and RECEIVE COPY RESULTS, between two disks of different blocks.

use std::sync::Arc;

use lunway_block::{BlockDevice, ExtentKind, Io};
use lunway_memory::RamDisk;
use lunway_scsi::{
    AdditionalSense, LogicalUnit, LogicalUnitOptions, Lun, Sense, SenseKey, Status, UnitAttention, cdb,
};

use crate::support::{Initiator, Rig, SECTOR, SECTORS};

const OTHER_SECTOR: usize = 4096;
const NONE: cdb::TransferFlags = cdb::TransferFlags::NONE;

/// LUN 0 has blocks of 512 bytes, LUN 1 of 4096; both have 2 MiB.
fn two_disks(second: LogicalUnitOptions) -> (Rig, Arc<LogicalUnit>, Initiator) {
    let rig = Rig::new();
    let disk = Arc::new(RamDisk::new(SECTORS * SECTOR as u64, OTHER_SECTOR as u32).expect("a small disk"));
    let unit = LogicalUnit::new(disk, LogicalUnitOptions { identity: "test/1".to_owned(), ..second })
        .expect("nothing is kept of it");
    rig.target.attach(1, unit.clone()).expect("the number is free");
    let host = rig.login("host");
    let tur = host.send_to(Lun::new(1), &cdb::test_unit_ready(), &[]);
    assert_eq!(*tur.sense.expect("a unit attention"), UnitAttention::PowerOn.sense());
    (rig, unit, host)
}

/// An identification descriptor with the unit's NAA designator.
fn target(unit: &LogicalUnit, pad: bool) -> [u8; 32] {
    let mut slot = [0; 32];
    slot[0] = 0xE4;
    slot[4] = 1;
    slot[5] = 3;
    slot[7] = 16;
    slot[8..24].copy_from_slice(&unit.identity().naa());
    slot[28] = u8::from(pad) << 2;
    slot
}

fn blocks(source: u16, destination: u16, dc: bool, count: u16, from: u64, to: u64) -> Vec<u8> {
    let mut slot = vec![0x02, u8::from(dc) << 1, 0, 24];
    slot.extend(source.to_be_bytes());
    slot.extend(destination.to_be_bytes());
    slot.extend([0, 0]);
    slot.extend(count.to_be_bytes());
    slot.extend(from.to_be_bytes());
    slot.extend(to.to_be_bytes());
    slot
}

/// Bytes `from` of the source's block 0 to `to` of the destination's.
fn bytes(count: u32, from: u16, to: u16) -> Vec<u8> {
    let mut slot = vec![0x0A, 0, 0, 28, 0, 0, 0, 1];
    slot.extend(count.to_be_bytes());
    slot.extend([0; 16]);
    slot.extend(from.to_be_bytes());
    slot.extend(to.to_be_bytes());
    slot
}

fn list(id: u8, usage: u8, targets: &[[u8; 32]], segments: &[Vec<u8>]) -> Vec<u8> {
    let mut list = vec![0; 16];
    list[0] = id;
    list[1] = usage << 3;
    list[2..4].copy_from_slice(&((32 * targets.len()) as u16).to_be_bytes());
    let len: usize = segments.iter().map(Vec::len).sum();
    list[8..12].copy_from_slice(&(len as u32).to_be_bytes());
    list.extend(targets.concat());
    list.extend(segments.concat());
    list
}

fn copy_cdb(len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

fn results(action: u8, list: u8) -> [u8; 16] {
    [0x84, action, list, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]
}

fn read(host: &Initiator, lun: u16, lba: u64, count: u32) -> Vec<u8> {
    let response = host.send_to(Lun::new(lun), &cdb::read16(lba, count, NONE), &[]);
    assert_eq!(response.status, Status::GOOD);
    response.data_in.to_vec()
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index / 7) as u8).collect()
}

#[test]
fn blocks_are_copied_between_disks_of_different_blocks() {
    let (rig, other, host) = two_disks(LogicalUnitOptions::default());
    let data = numbered(16 * SECTOR);
    host.good(&cdb::write16(8, 16, NONE), &data);
    let targets = [target(&rig.unit, false), target(&other, false)];
    let list_out = list(1, 0, &targets, &[blocks(0, 1, false, 16, 8, 2), blocks(1, 0, false, 1, 2, 100)]);
    host.good(&copy_cdb(list_out.len()), &list_out);
    assert_eq!(read(&host, 1, 2, 2), data);
    assert_eq!(read(&host, 0, 100, 8), data[..OTHER_SECTOR]);
    // DC counts in blocks of the destination.
    let list_out = list(1, 0, &targets, &[blocks(0, 1, true, 1, 8, 9)]);
    host.good(&copy_cdb(list_out.len()), &list_out);
    assert_eq!(read(&host, 1, 9, 1), data[..OTHER_SECTOR]);
}

#[test]
fn bytes_are_copied_to_where_no_block_begins() {
    let (rig, other, host) = two_disks(LogicalUnitOptions::default());
    host.good(&cdb::write16(0, 16, NONE), &numbered(16 * SECTOR));
    let around = vec![0xEE; 2 * OTHER_SECTOR];
    host.send_to(Lun::new(1), &cdb::write16(0, 2, NONE), &around);
    let targets = [target(&rig.unit, false), target(&other, false)];
    let list_out = list(0, 3, &targets, &[bytes(5000, 3, 1000)]);
    host.good(&copy_cdb(list_out.len()), &list_out);
    let mut expected = around;
    expected[1000..6000].copy_from_slice(&numbered(16 * SECTOR)[3..5003]);
    assert_eq!(read(&host, 1, 0, 2), expected);
}

#[test]
fn what_does_not_fill_a_block_is_padded_or_refused() {
    let (rig, other, host) = two_disks(LogicalUnitOptions::default());
    host.good(&cdb::write16(0, 16, NONE), &numbered(16 * SECTOR));
    host.send_to(Lun::new(1), &cdb::write16(0, 1, NONE), &[0xEE; OTHER_SECTOR]);
    let copy = |pad: bool| {
        list(1, 0, &[target(&rig.unit, false), target(&other, pad)], &[blocks(0, 1, false, 3, 0, 0)])
    };
    let refused = host.refused(&copy_cdb(copy(false).len()), &copy(false));
    assert_eq!(
        (refused.key, refused.code),
        (SenseKey::COPY_ABORTED, AdditionalSense::UNEXPECTED_INEXACT_SEGMENT)
    );
    host.good(&copy_cdb(copy(true).len()), &copy(true));
    let mut expected = numbered(3 * SECTOR);
    expected.resize(OTHER_SECTOR, 0);
    assert_eq!(read(&host, 1, 0, 1), expected);
}

#[test]
fn what_the_source_has_no_space_for_takes_none_at_the_destination() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(0, 1, NONE), &[1; SECTOR]);
    host.good(&cdb::write16(2048, 2048, NONE), &vec![2; 2048 * SECTOR]);
    let list_out = list(1, 0, &[target(&rig.unit, false)], &[blocks(0, 0, false, 2048, 0, 2048)]);
    host.good(&copy_cdb(list_out.len()), &list_out);
    assert_eq!(read(&host, 0, 2048, 1), [1; SECTOR]);
    assert_eq!(read(&host, 0, 4095, 1), [0; SECTOR]);
    let half = 2048 * SECTOR as u64;
    let Io::Ready(Ok(extents)) = rig.disk.extents(half, half, usize::MAX) else {
        panic!("a RAM disk answers inline")
    };
    let data: u64 =
        extents.iter().filter(|extent| extent.kind == ExtentKind::Data).map(|extent| extent.len).sum();
    assert!(data < half / 4, "{extents:?}");
}

#[test]
fn a_copy_that_fails_says_where_and_keeps_its_details() {
    let (rig, other, host) = two_disks(LogicalUnitOptions::default());
    let targets = [target(&rig.unit, false), target(&other, false)];
    let good = blocks(0, 0, false, 8, 0, 100);
    for (bad, code) in [
        (blocks(0, 5, false, 8, 0, 0), AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE),
        (blocks(0, 0, false, 8, SECTORS - 7, 0), AdditionalSense::NONE),
        (blocks(0, 0, false, 8, 0, u64::MAX), AdditionalSense::NONE),
    ] {
        let list_out = list(9, 0, &targets, &[good.clone(), bad]);
        let refused = host.refused(&copy_cdb(list_out.len()), &list_out);
        assert_eq!((refused.key, refused.code), (SenseKey::COPY_ABORTED, code));
        assert_eq!(refused.command_specific, Some(1), "the number of the segment");
        let status = host.good(&results(0x00, 9), &[]).data_in;
        assert_eq!((status[4], &status[5..12]), (0x02, &[0, 1, 0, 0, 0, 16, 0][..]));
        let details = host.good(&results(0x04, 9), &[]).data_in;
        assert_eq!(details[56], Status::CHECK_CONDITION.0);
        assert_eq!(Sense::parse(&details[60..]).unwrap().code, code);
        host.refused(&results(0x04, 9), &[]);
    }
}

#[test]
fn results_are_told_once_to_the_nexus_that_asked_for_the_copy() {
    let (rig, other, host) = two_disks(LogicalUnitOptions::default());
    let stranger = rig.login("stranger");
    let targets = [target(&rig.unit, false), target(&other, false)];
    host.refused(&results(0x00, 1), &[]);
    let copy = |id, usage| list(id, usage, &targets, &[blocks(0, 1, false, 8, 0, 0)]);
    host.good(&copy_cdb(copy(1, 0).len()), &copy(1, 0));
    stranger.refused(&results(0x00, 1), &[]);
    let status = host.good(&results(0x00, 1), &[]).data_in;
    assert_eq!(status[..], [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 16, 0]);
    host.refused(&results(0x00, 1), &[]);
    // To be discarded at its end, or without a name.
    host.good(&copy_cdb(copy(2, 2).len()), &copy(2, 2));
    host.refused(&results(0x00, 2), &[]);
    host.good(&copy_cdb(copy(0, 3).len()), &copy(0, 3));
    host.refused(&copy_cdb(copy(2, 3).len()), &copy(2, 3));
    host.refused(&copy_cdb(copy(2, 1).len()), &copy(2, 1));
}

#[test]
fn a_copy_needs_what_its_reads_and_writes_would_need() {
    let (rig, other, host) = two_disks(LogicalUnitOptions { read_only: true, ..Default::default() });
    let targets = [target(&rig.unit, false), target(&other, false)];
    let onto = |source, destination| list(1, 0, &targets, &[blocks(source, destination, false, 8, 0, 0)]);
    let list_out = onto(0, 1);
    let refused = host.refused(&copy_cdb(list_out.len()), &list_out);
    assert_eq!(refused.code, AdditionalSense::THIRD_PARTY_DEVICE_FAILURE);
    let list_out = onto(1, 0);
    host.good(&copy_cdb(list_out.len()), &list_out);
}

#[test]
fn wrong_lists_are_refused_by_what_is_wrong() {
    let (rig, other, host) = two_disks(LogicalUnitOptions::default());
    let targets = [target(&rig.unit, false), target(&other, false)];
    let segment = blocks(0, 1, false, 8, 0, 0);
    let good = list(1, 0, &targets, std::slice::from_ref(&segment));
    host.good(&copy_cdb(0), &[]);
    use AdditionalSense as Code;
    let inline = {
        let mut list = good.clone();
        list[15] = 1;
        list
    };
    let foreign = {
        let mut list = good.clone();
        list[16] = 0xE0;
        list
    };
    let long_segment = {
        let mut list = good.clone();
        list[16 + 64 + 3] = 28;
        list
    };
    let wrong_block = {
        let mut list = good.clone();
        list[16 + 30] = 0x10;
        list
    };
    for (list, code) in [
        (good[..15].to_vec(), Code::PARAMETER_LIST_LENGTH_ERROR),
        (good[..good.len() - 1].to_vec(), Code::PARAMETER_LIST_LENGTH_ERROR),
        (inline, Code::INLINE_DATA_LENGTH_EXCEEDED),
        (foreign, Code::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE),
        (long_segment, Code::INVALID_FIELD_IN_PARAMETER_LIST),
        (wrong_block, Code::INVALID_FIELD_IN_PARAMETER_LIST),
        (list(1, 0, &targets, &[vec![0x03; 20]]), Code::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE),
        (list(1, 0, &[targets[0]; 9], std::slice::from_ref(&segment)), Code::TOO_MANY_TARGET_DESCRIPTORS),
        (list(1, 0, &targets, &vec![segment.clone(); 33]), Code::TOO_MANY_SEGMENT_DESCRIPTORS),
        (list(1, 0, &targets, &vec![segment; 60]), Code::PARAMETER_LIST_LENGTH_ERROR),
    ] {
        let refused = host.refused(&copy_cdb(list.len()), &list);
        assert_eq!((refused.key, refused.code), (SenseKey::ILLEGAL_REQUEST, code));
    }
}
