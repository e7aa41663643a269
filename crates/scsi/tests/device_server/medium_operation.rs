//! SANITIZE and FORMAT UNIT: what they do to the medium, and what others hear meanwhile and afterwards.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use lunway_block::decorate::Fault;
use lunway_block::spec::FaultSpec;
use lunway_block::{BlockDevice, ExtentKind, Io};
use lunway_memory::RamDisk;
use lunway_scsi::{
    AdditionalSense, Background, LogicalUnitOptions, Lun, LunView, MemoryStore, Sense, SenseKey, Status,
    TaskManagementFunction, UnitAttention, cdb,
};

use crate::support::{Initiator, Rig, SECTOR, SECTORS, serve};

const SIZE: u64 = SECTORS * SECTOR as u64;
const OVERWRITE: u8 = 0x01;
const BLOCK_ERASE: u8 = 0x02;
const EXIT_FAILURE_MODE: u8 = 0x1F;
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;
const INVERT: u8 = 0x80;

fn sanitize(action: u8, len: usize) -> [u8; 10] {
    let [high, low] = (len as u16).to_be_bytes();
    [0x48, action, 0, 0, 0, 0, 0, high, low, 0]
}

fn overwrite_list(flags_and_count: u8, pattern: &[u8]) -> Vec<u8> {
    let mut list = vec![flags_and_count, 0];
    list.extend((pattern.len() as u16).to_be_bytes());
    list.extend(pattern);
    list
}

fn first_and_last(host: &Initiator) -> (Vec<u8>, Vec<u8>) {
    let read = |lba| host.good(&cdb::read16(lba, 1, cdb::TransferFlags::NONE), &[]).data_in.to_vec();
    (read(0), read(SECTORS - 1))
}

/// Keeps the work until the test runs it.
#[derive(Default)]
struct Later(Mutex<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Later")
    }
}

impl Background for Later {
    fn run(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.lock().expect("no test panics with it").push(work);
    }
}

impl Later {
    fn take(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.lock().expect("no test panics with it").pop().expect("work was begun")
    }

    fn finish(&self) {
        let mut work = self.take();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        while work.as_mut().poll(&mut cx).is_pending() {}
    }
}

fn rig_with_later() -> (Rig, Arc<Later>) {
    let later = Arc::new(Later::default());
    let options = LogicalUnitOptions { background: Some(later.clone()), ..Default::default() };
    (Rig::with(options), later)
}

#[test]
fn overwriting_leaves_the_pattern_in_every_block() {
    let rig = Rig::new();
    let host = rig.login("host");
    let list = overwrite_list(1, &[0xAA, 0xBB, 0xCC]);
    host.good(&sanitize(OVERWRITE, list.len()), &list);
    let expected: Vec<u8> = [0xAA, 0xBB, 0xCC].into_iter().cycle().take(SECTOR).collect();
    assert_eq!(first_and_last(&host), (expected.clone(), expected));
    // With INVERT and an even count the first pass is the inversion, so that the last one is the pattern.
    let list = overwrite_list(INVERT | 2, &[0x0F]);
    host.good(&sanitize(OVERWRITE, list.len()), &list);
    assert_eq!(first_and_last(&host).0, [0x0F; SECTOR]);
}

#[test]
fn block_erase_gives_all_space_back() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(7, 1, cdb::TransferFlags::NONE), &[1; SECTOR]);
    host.good(&sanitize(BLOCK_ERASE, 0), &[]);
    let Io::Ready(Ok(extents)) = rig.disk.extents(0, SIZE, usize::MAX) else {
        panic!("a RAM disk answers inline")
    };
    assert!(extents.iter().all(|extent| extent.kind == ExtentKind::Unallocated), "{extents:?}");
}

#[test]
fn wrong_parameter_lists_are_refused_and_change_nothing() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&cdb::write16(0, 1, cdb::TransferFlags::NONE), &[1; SECTOR]);
    for list in [
        vec![1, 0, 0, 0],
        overwrite_list(0, &[1]),
        overwrite_list(0x21, &[1]),
        vec![1, 0, 0, 0, 1],
        vec![1, 0, 0, 3, 1],
        overwrite_list(1, &[1; SECTOR + 1]),
    ] {
        assert_eq!(host.refused(&sanitize(OVERWRITE, list.len()), &list).key, SenseKey::ILLEGAL_REQUEST);
    }
    host.refused(&sanitize(BLOCK_ERASE, 8), &[0; 8]);
    host.refused(&sanitize(EXIT_FAILURE_MODE, 8), &[0; 8]);
    // Cryptographic erase: nothing is encrypted.
    assert_eq!(host.refused(&sanitize(0x03, 0), &[]), Sense::invalid_cdb_field(1, 4));
    assert_eq!(first_and_last(&host).0, [1; SECTOR]);
}

#[test]
fn commands_that_need_the_medium_hear_how_far_it_is() {
    let (rig, later) = rig_with_later();
    let (host, other) = (rig.login("host"), rig.login("other"));
    let list = overwrite_list(1, &[0x55]);
    host.good(&sanitize(OVERWRITE | IMMED, list.len()), &list);
    let mut work = later.take();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    // One step of the two that 2 MiB are.
    assert!(work.as_mut().poll(&mut cx).is_pending());
    for refused in [
        other.refused(&cdb::read16(0, 1, cdb::TransferFlags::NONE), &[]),
        host.refused(&cdb::test_unit_ready(), &[]),
        host.refused(&sanitize(BLOCK_ERASE, 0), &[]),
        other.refused(&[0x04, 0, 0, 0, 0, 0], &[]),
    ] {
        assert_eq!((refused.key, refused.code), (SenseKey::NOT_READY, AdditionalSense::SANITIZE_IN_PROGRESS));
        assert_eq!(refused.key_specific, Some([0, 0x80, 0]));
    }
    let told = Sense::parse(&host.good(&cdb::request_sense(252), &[]).data_in).unwrap();
    assert_eq!(told.key_specific, Some([0, 0x80, 0]));
    host.good(&cdb::inquiry(false, 0, 96), &[]);
    assert_eq!(other.send_to(Lun::new(0), &cdb::report_luns(64), &[]).status, Status::GOOD);
    while work.as_mut().poll(&mut cx).is_pending() {}
    assert_eq!(first_and_last(&other), (vec![0x55; SECTOR], vec![0x55; SECTOR]));
}

#[test]
fn resets_and_nexus_loss_let_the_command_go_and_not_the_operation() {
    let (rig, later) = rig_with_later();
    let (host, other) = (rig.login("host"), rig.login("other"));
    let list = overwrite_list(1, &[0x55]);
    let begin = || {
        host.0.execute(
            Lun::new(0).0,
            &sanitize(OVERWRITE, list.len()),
            lunway_block::Buf::copy_of(&list).freeze(),
        )
    };
    let Io::Pending(waiting) = begin() else { panic!("the work was not done yet") };
    host.0.task_management(Lun::new(0).0, TaskManagementFunction::AbortTask);
    let released = crate::support::drive(waiting);
    assert_eq!(released.sense.unwrap().code, AdditionalSense::SANITIZE_IN_PROGRESS);
    host.0.task_management(Lun::new(0).0, TaskManagementFunction::LogicalUnitReset);
    other.hears(UnitAttention::Reset);
    host.0.close();
    let refused = other.refused(&cdb::test_unit_ready(), &[]);
    assert_eq!(refused.code, AdditionalSense::SANITIZE_IN_PROGRESS);
    later.finish();
    other.is_ready();
}

/// A disk whose writes fail from its second half on, until the file is gone.
fn failing() -> (tempfile::NamedTempFile, Arc<dyn BlockDevice>) {
    let switch = tempfile::NamedTempFile::new().expect("a temporary file");
    let spec: FaultSpec = format!("write@1M-,file={}", switch.path().display()).parse().expect("a fault");
    let disk = Arc::new(RamDisk::new(SIZE, SECTOR as u32).expect("a small disk"));
    (switch, Arc::new(Fault::new(disk, spec)))
}

#[test]
fn after_a_failure_only_another_sanitize_opens_the_medium() {
    let (switch, device) = failing();
    let (target, _unit) = serve(device, LogicalUnitOptions::default());
    let host = Initiator(target.open_nexus("host,i,0x1", 1, LunView::ALL));
    host.hears(UnitAttention::PowerOn);
    let list = overwrite_list(1, &[0x55]);
    let failed = Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSense::SANITIZE_COMMAND_FAILED);
    assert_eq!(host.refused(&sanitize(OVERWRITE, list.len()), &list), failed);
    assert_eq!(host.refused(&cdb::read16(0, 1, cdb::TransferFlags::NONE), &[]), failed);
    assert_eq!(host.refused(&[0x04, 0, 0, 0, 0, 0], &[]), failed);
    host.0.task_management(Lun::new(0).0, TaskManagementFunction::LogicalUnitReset);
    host.hears(UnitAttention::Reset);
    assert_eq!(host.refused(&cdb::test_unit_ready(), &[]), failed);
    // The restricted mode has no exit, and does not change into the unrestricted one.
    assert_eq!(host.refused(&sanitize(EXIT_FAILURE_MODE, 0), &[]), Sense::invalid_cdb_field(1, 4));
    assert_eq!(host.refused(&sanitize(OVERWRITE | AUSE, list.len()), &list), Sense::invalid_cdb_field(1, 5));
    drop(switch);
    // The fault looks for its file only now and then.
    let repaired = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        host.send(&sanitize(OVERWRITE, list.len()), &list).status == Status::GOOD
    });
    assert!(repaired);
    assert_eq!(first_and_last(&host).1, [0x55; SECTOR]);
}

#[test]
fn the_unrestricted_mode_has_an_exit() {
    let (_switch, device) = failing();
    let (target, _unit) = serve(device, LogicalUnitOptions::default());
    let host = Initiator(target.open_nexus("host,i,0x1", 1, LunView::ALL));
    host.hears(UnitAttention::PowerOn);
    let list = overwrite_list(1, &[0x55]);
    host.refused(&sanitize(OVERWRITE | AUSE, list.len()), &list);
    host.refused(&cdb::test_unit_ready(), &[]);
    host.good(&sanitize(EXIT_FAILURE_MODE, 0), &[]);
    host.is_ready();
}

#[test]
fn work_that_is_dropped_is_a_failed_operation() {
    let (rig, later) = rig_with_later();
    let host = rig.login("host");
    host.good(&sanitize(BLOCK_ERASE | IMMED, 0), &[]);
    drop(later.take());
    assert_eq!(host.refused(&cdb::test_unit_ready(), &[]).code, AdditionalSense::SANITIZE_COMMAND_FAILED);
}

#[test]
fn a_sanitize_that_a_crash_ended_has_failed() {
    let store = Arc::new(MemoryStore::default());
    let later = Arc::new(Later::default());
    let options = LogicalUnitOptions {
        state: Some(store),
        background: Some(later.clone()),
        identity: "test/0".to_owned(),
        ..Default::default()
    };
    let host = Rig::with(options.clone()).login("host");
    host.good(&sanitize(BLOCK_ERASE | IMMED | AUSE, 0), &[]);
    // The process ends here: the work is never run.
    let restarted = Rig::with(options.clone());
    let host = restarted.login("host");
    assert_eq!(host.refused(&cdb::test_unit_ready(), &[]).code, AdditionalSense::SANITIZE_COMMAND_FAILED);
    host.good(&sanitize(EXIT_FAILURE_MODE, 0), &[]);
    let host = Rig::with(options.clone()).login("host");
    host.good(&sanitize(BLOCK_ERASE | IMMED, 0), &[]);
    later.finish();
    host.is_ready();
    Rig::with(options).login("host").is_ready();
}

#[test]
fn a_protected_unit_is_not_sanitized() {
    let rig = Rig::with(LogicalUnitOptions { read_only: true, ..Default::default() });
    let host = rig.login("host");
    let list = overwrite_list(1, &[0x55]);
    for (command, data) in
        [(sanitize(OVERWRITE, list.len()), &list[..]), (sanitize(BLOCK_ERASE, 0), &[]), ([0x04; 10], &[])]
    {
        let command = if command[0] == 0x04 { &[0x04, 0, 0, 0, 0, 0][..] } else { &command[..] };
        assert_eq!(host.refused(command, data).key, SenseKey::DATA_PROTECT);
    }
}

#[test]
fn format_unit_zeroes_everything_and_takes_only_lists_that_change_nothing() {
    let (rig, later) = rig_with_later();
    let host = rig.login("host");
    host.good(&cdb::write16(0, 1, cdb::TransferFlags::NONE), &[1; SECTOR]);
    let with_data = [0x04, 0x10, 0, 0, 0, 0];
    // Protection information, an initialization pattern, a defect.
    for list in [[1, 0, 0, 0], [0, 0x08, 0, 0], [0, 0, 0, 8]] {
        host.refused(&with_data, &list);
    }
    host.good(&with_data, &[0, 0x02, 0, 0]);
    assert_eq!(host.refused(&cdb::test_unit_ready(), &[]).code, AdditionalSense::FORMAT_IN_PROGRESS);
    later.finish();
    assert_eq!(first_and_last(&host), (vec![0; SECTOR], vec![0; SECTOR]));
}
