//! What a logical unit says about itself, read with the initiator's types.

use std::sync::Arc;

use crate::support::{Initiator, Rig, SECTOR, SECTORS};
use lunway_block::{BlockDevice, Buf, Io};
use lunway_memory::RamDisk;
use lunway_scsi::mode::{ModeSense, PageControl, page as mode_page};
use lunway_scsi::vpd::{
    BlockLimits, DeviceIdentification, LogicalBlockProvisioning, SupportedPages, UnitSerialNumber, page,
};
use lunway_scsi::{
    AdditionalSense, Inquiry, LogicalUnit, LogicalUnitOptions, Lun, LunList, LunView, ReadCapacity, Sense,
    Status, TaskManagementFunction, TaskManagementServiceResponse, TaskOptions, UnitAttention, cdb,
};

#[test]
fn inquiry_answers_on_every_lun() {
    let rig = Rig::with(LogicalUnitOptions { removable: true, ..Default::default() });
    let host = rig.login("host");
    let here = host.good(&cdb::inquiry(false, 0, 255), &[]).data_in;
    let here = Inquiry::parse(&here).unwrap();
    assert!(here.removable && here.command_queuing);
    assert_eq!((here.vendor.as_str(), here.peripheral.0), ("LUNWAY", 0));
    let absent = host.send_to(Lun::new(9), &cdb::inquiry(false, 0, 255), &[]);
    assert_eq!(Inquiry::parse(&absent.data_in).unwrap().peripheral.0, 0x7F);
    let refused = host.send_to(Lun::new(9), &cdb::test_unit_ready(), &[]);
    assert_eq!(refused.sense.unwrap().code, AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED);
    let well_known = host.send_to(Lun::REPORT_LUNS, &cdb::inquiry(false, 0, 255), &[]);
    assert_eq!(Inquiry::parse(&well_known.data_in).unwrap().peripheral.device_type(), 0x1E);
}

#[test]
fn an_answer_is_cut_at_the_allocation_length() {
    let rig = Rig::new();
    let response = rig.login("host").good(&cdb::inquiry(false, 0, 5), &[]);
    assert_eq!((response.data_in.len(), response.wanted_in), (5, 5));
}

#[test]
fn every_page_that_is_listed_is_there() {
    let rig = Rig::new();
    let host = rig.login("host");
    let list = host.good(&cdb::inquiry(true, page::SUPPORTED, 255), &[]).data_in;
    for code in SupportedPages::parse(&list).unwrap().0 {
        let bytes = host.good(&cdb::inquiry(true, code, 1024), &[]).data_in;
        assert_eq!(bytes[1], code);
        assert_eq!(usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), bytes.len() - 4);
    }
    assert_eq!(host.refused(&cdb::inquiry(true, 0x42, 255), &[]).code, AdditionalSense::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_pages_say_what_the_unit_does() {
    let rig = Rig::with(LogicalUnitOptions { serial: "SN-7".to_owned(), ..Default::default() });
    let host = rig.login("host");
    let page_of = |code| host.good(&cdb::inquiry(true, code, 1024), &[]).data_in;
    assert_eq!(UnitSerialNumber::parse(&page_of(page::UNIT_SERIAL_NUMBER)).unwrap().0, "SN-7");
    let limits = BlockLimits::parse(&page_of(page::BLOCK_LIMITS)).unwrap();
    assert_eq!(limits.transfer_max as usize * SECTOR, 8 << 20);
    assert_eq!(limits.compare_and_write_max, 255);
    let thin = LogicalBlockProvisioning::parse(&page_of(page::LOGICAL_BLOCK_PROVISIONING)).unwrap();
    assert!(thin.unmap && thin.read_zeroes == 1);
    let names = DeviceIdentification::parse(&page_of(page::DEVICE_IDENTIFICATION)).unwrap();
    assert_eq!(names.unit_name().unwrap().bytes, rig.unit.identity().naa());
    assert_eq!(names.relative_target_port(), Some(1));
    assert!(names.designators.iter().any(|name| name.text() == "iqn.2026-01.example:test,t,0x0001"));
    let capacity = ReadCapacity::parse(&host.good(&cdb::read_capacity16(32), &[]).data_in).unwrap();
    assert_eq!((capacity.last_lba, capacity.block_len), (SECTORS - 1, 512));
    let capacity = ReadCapacity::parse_10(&host.good(&cdb::read_capacity10(), &[]).data_in).unwrap();
    assert_eq!(capacity.size(), Some(SECTORS * 512));
}

#[test]
fn luns_come_and_go_and_are_told() {
    let rig = Rig::new();
    let host = rig.login("host");
    rig.target.attach(300, rig.unit.clone()).unwrap();
    assert!(rig.target.attach(300, rig.unit.clone()).is_err());
    let luns = |lun: Lun| {
        let response = host.send_to(lun, &cdb::report_luns(4096), &[]);
        assert_eq!(response.status, Status::GOOD);
        LunList::parse(&response.data_in).unwrap().luns
    };
    host.hears(UnitAttention::LunsChanged);
    assert_eq!(luns(Lun::new(0)), [Lun::new(0), Lun::new(300)]);
    assert!(rig.target.detach(300).is_some());
    // REPORT LUNS tells it as well, and then it needs not be told again.
    assert_eq!(luns(Lun::REPORT_LUNS), [Lun::new(0)]);
    host.is_ready();
    rig.target.detach(0).unwrap();
    assert_eq!(luns(Lun::new(0)), []);
}

#[test]
fn a_unit_under_the_number_of_another_carries_out_nothing_until_the_nexus_has_asked_what_it_is() {
    let rig = Rig::new();
    let (host, looking, later) = (rig.login("host"), rig.login("looking"), "later,i,0x1");
    let disk = Arc::new(RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).expect("a small disk"));
    let options = LogicalUnitOptions { identity: "test/other".to_owned(), ..Default::default() };
    let other = LogicalUnit::new(disk.clone(), options).expect("no kept state is damaged");
    let exchange = |unit: &Arc<LogicalUnit>| {
        rig.target.detach(0).expect("it is attached");
        rig.target.attach(0, unit.clone()).expect("it is detached");
    };
    let write = cdb::write10(0, 1, Default::default());
    let inquire = |host: &Initiator| drop(host.good(&cdb::inquiry(true, page::UNIT_SERIAL_NUMBER, 255), &[]));
    let is_refused = |host: &Initiator| {
        // Commands that were on their way, and then those of a host that does not ask.
        host.hears(UnitAttention::PowerOn);
        for _ in 0..8 {
            assert_eq!(
                host.refused(&write, &[1; SECTOR]).code,
                AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED
            );
        }
    };
    exchange(&other);
    // It may have been sent before the exchange.
    inquire(&host);
    is_refused(&host);
    let read = Buf::zeroed(SECTOR);
    let Io::Ready(Ok(read)) = disk.read(0, read) else { panic!("a RAM disk answers inline") };
    assert!(read.iter().all(|&byte| byte == 0), "nothing of what was meant for the other one is here");
    // This one may have been sent before the unit attention was heard.
    inquire(&host);
    assert_eq!(host.refused(&write, &[1; SECTOR]).code, AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED);
    inquire(&host);
    host.good(&write, &[1; SECTOR]);
    // One that has not asked, and so believes that it is the first one still, is told when that is back; nothing was
    // written elsewhere.
    is_refused(&looking);
    exchange(&rig.unit);
    looking.hears(UnitAttention::NexusLoss);
    looking.good(&write, &[2; SECTOR]);
    // The one that has asked knows the second one.
    host.hears(UnitAttention::NexusLoss);
    assert_eq!(host.refused(&write, &[1; SECTOR]).code, AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED);
    // A new nexus knows none.
    let later = Initiator(rig.target.open_nexus(later, 1, LunView::ALL));
    later.hears(UnitAttention::PowerOn);
    later.good(&write, &[3; SECTOR]);
}

#[test]
fn a_write_whose_data_come_after_the_inquiry_is_not_meant_for_the_unit_that_this_was_about() {
    let rig = Rig::new();
    let host = rig.login("host");
    let disk = Arc::new(RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).expect("a small disk"));
    let options = LogicalUnitOptions { identity: "test/other".to_owned(), ..Default::default() };
    let other = LogicalUnit::new(disk, options).expect("no kept state is damaged");
    rig.target.detach(0).expect("it is attached");
    rig.target.attach(0, other).expect("it is detached");
    host.hears(UnitAttention::PowerOn);
    let send = |number: u32, cdb: &[u8], data: &[u8]| {
        let options = TaskOptions { number: Some(number), ..TaskOptions::default() };
        match host.0.execute_task(Lun::new(0).0, cdb, Buf::copy_of(data).freeze(), options) {
            Io::Ready(response) => response.sense.map(|sense| sense.code),
            Io::Pending(_) => panic!("a RAM disk answers inline"),
        }
    };
    let write = cdb::write10(0, 1, Default::default());
    let changed = Some(AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED);
    let first = u32::MAX - 1;
    assert_eq!(send(first - 3, &cdb::inquiry(false, 0, 255), &[]), None);
    assert_eq!(send(first, &cdb::inquiry(true, page::UNIT_SERIAL_NUMBER, 255), &[]), None);
    assert_eq!(send(first - 1, &write, &[1; SECTOR]), changed);
    assert_eq!(send(first.wrapping_add(3), &write, &[1; SECTOR]), None);
    assert_eq!(send(first - 2, &write, &[1; SECTOR]), changed);
}

#[test]
fn mode_pages_change_behaviour_and_are_told() {
    let rig = Rig::new();
    let (host, other) = (rig.login("host"), rig.login("other"));
    let sense = || {
        let cdb = cdb::mode_sense6(PageControl::Current, mode_page::CONTROL, 0, 255);
        host.good(&cdb, &[]).data_in.to_vec()
    };
    let parsed = ModeSense::parse_6(&sense()).unwrap();
    assert!(parsed.dpo_fua && !parsed.write_protected);
    assert_eq!(parsed.blocks, Some((SECTORS, 512)));
    let mut list = sense();
    list[0] = 0;
    list[12 + 2] |= 0x04; // D_SENSE
    list[12 + 4] |= 0x08; // SWP
    host.good(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list);
    assert!(ModeSense::parse_6(&sense()).unwrap().write_protected);
    let response = host.send(&cdb::write10(0, 1, Default::default()), &[0; SECTOR]);
    assert_eq!(response.sense_bytes().unwrap()[0], 0x72);
    assert_eq!(response.sense.unwrap().code, AdditionalSense::SOFTWARE_WRITE_PROTECTED);
    let heard = other.refused(&cdb::test_unit_ready(), &[]);
    assert_eq!(heard.code, AdditionalSense::MODE_PARAMETERS_CHANGED);
    let saving = host.refused(&[0x15, 0x11, 0, 0, list.len() as u8, 0], &list);
    assert_eq!(saving.code, AdditionalSense::INVALID_FIELD_IN_CDB);
    let long = cdb::mode_sense10(PageControl::Current, mode_page::ALL, 0xFF, 1024);
    let long = ModeSense::parse_10(&host.good(&long, &[]).data_in).unwrap();
    assert_eq!(long.pages.len(), 10);
    assert_eq!(long.write_cache(), Some(false));
}

#[test]
fn every_reported_operation_is_reported_alone_too() {
    let rig = Rig::new();
    let host = rig.login("host");
    let all = host.good(&[0xA3, 0x0C, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0], &[]).data_in;
    let descriptors = all[4..].chunks_exact(20);
    assert_eq!(descriptors.len(), lunway_scsi::operations::OPERATIONS.len());
    for descriptor in descriptors {
        let (opcode, action, acting) = (descriptor[0], descriptor[3], descriptor[5] & 1);
        let option = if acting == 1 { 2 } else { 1 };
        let one = host.good(&[0xA3, 0x0C, option, opcode, 0, action, 0, 0, 1, 0, 0, 0], &[]).data_in;
        assert_eq!((one[1] & 7, one[3], one[4]), (3, descriptor[7], opcode));
    }
    let unknown = host.good(&[0xA3, 0x0C, 1, 0xEE, 0, 0, 0, 0, 1, 0, 0, 0], &[]).data_in;
    assert_eq!(unknown[1] & 7, 1);
}

/// Both lengths say of each function what asking for it comes to.
#[test]
fn supported_task_management_functions_are_those_that_are_carried_out() {
    use TaskManagementFunction as Function;
    let rig = Rig::new();
    let host = rig.login("host");
    let basic = host.good(&[0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]).data_in;
    let extended = host.good(&[0xA3, 0x0D, 0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]).data_in;
    assert_eq!((basic.len(), extended.len(), basic[3], extended[3]), (4, 16, 0, 12));
    assert_eq!((&basic[..3], extended[4] & 1), (&extended[..3], 0), "no timeouts are told");
    for (bit, functions) in [
        (0x80, &[Function::AbortTask][..]),
        (0x40, &[Function::AbortTaskSet]),
        (0x20, &[Function::ClearAca]),
        (0x10, &[Function::ClearTaskSet]),
        (0x08, &[Function::LogicalUnitReset]),
        (0x02, &[Function::TargetWarmReset, Function::TargetColdReset]),
    ] {
        for &function in functions {
            let response = host.0.task_management(Lun::new(0).0, function).response;
            let supported = response != TaskManagementServiceResponse::NotSupported;
            assert_eq!(basic[0] & bit != 0, supported, "{function:?}");
        }
    }
    assert_eq!((basic[0] & 0x05, basic[1]), (0, 0), "no QUERY functions, no I_T NEXUS RESET");
    host.hears(UnitAttention::Reset);
    let short = host.refused(&[0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0], &[]);
    assert_eq!(short, Sense { descriptor_format: false, ..Sense::invalid_cdb_field(6, 7) });
}

/// SCSI-2 has the logical unit number in bits 7 to 5 of byte 1, and initiators set it still; other bits are left over
/// in their buffers.
#[test]
fn reserved_bits_are_ignored_where_the_field_has_no_later_meaning() {
    let rig = Rig::new();
    let host = rig.login("host");
    for cdb in [
        &[0x00, 0x20, 0, 0, 0, 0][..],
        &[0x03, 0x20, 0, 0, 18, 0],
        &[0x12, 0x20, 0, 0, 36, 0],
        &[0x12, 0xE1, 0x83, 0, 255, 0],
        &[0x1A, 0x28, 0x3F, 0, 255, 0],
        &[0x1E, 0x20, 0, 0, 0, 0],
        &[0x25, 0x20, 0, 0, 0, 1, 0, 0, 1, 0],
        &[0x08, 0x20, 0, 0, 1, 0],
        &[0x28, 0x07, 0, 0, 0, 0, 0xC0, 0, 1, 0],
        &[0x35, 0x20, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0xA0, 0x20, 0, 0xFF, 0, 0, 0, 0, 1, 0, 0xFF, 0],
        &[0x9E, 0x30, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 32, 1, 0],
    ] {
        host.good(cdb, &[]);
    }
    let plain = host.good(&[0x08, 0, 0, 0, 1, 0], &[]).data_in;
    assert_eq!(
        host.good(&[0x08, 0xE0, 0, 0, 1, 0], &[]).data_in[..],
        plain[..],
        "they are no part of the address"
    );
    // What has a meaning and is not done is refused: protection, ANCHOR, CMDDT, a length that has no room.
    for (cdb, byte, bit) in [
        (&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0][..], 1, 5),
        (&[0x41, 0x10, 0, 0, 0, 0, 0, 0, 1, 0], 1, 4),
        (&[0x12, 0x02, 0, 0, 36, 0], 1, 1),
        (&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 12, 0),
        (&[0x00, 0, 0, 0, 0, 0x04], 5, 2),
    ] {
        assert_eq!(host.refused(cdb, &[]), Sense::invalid_cdb_field(byte, bit), "{cdb:02x?}");
    }
}
