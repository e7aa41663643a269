//! Mode and log parameters, diagnostics and thresholds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunway_block::{BlockDevice, Buf, Io, Space};
use lunway_memory::RamDisk;
use lunway_scsi::vpd::{LogicalBlockProvisioning, page};
use lunway_scsi::{
    AdditionalSense, LogicalUnitOptions, Lun, LunView, MemoryStore, Sense, SenseKey, StateStore, Status,
    TaskManagementFunction, UnitAttention, cdb,
};

use crate::reservation::SlowStore;
use crate::support::{Initiator, Rig, SECTOR, SECTORS, serve};

const CONTROL: u8 = 0x0A;
const CACHING: u8 = 0x08;
const SAVED: u8 = 0b11 << 6;

fn mode_sense(page: u8) -> [u8; 10] {
    // Without block descriptors.
    [0x5A, 0x08, page, 0, 0, 0, 0, 4, 0, 0]
}

fn page_of(host: &Initiator, page: u8) -> Vec<u8> {
    host.good(&mode_sense(page), &[]).data_in[8..].to_vec()
}

/// MODE SELECT of the control page with D_SENSE set, and SP as asked.
fn select_d_sense(host: &Initiator, save: bool) -> lunway_scsi::Response {
    let mut list = vec![0; 8];
    list.extend(page_of(host, CONTROL));
    list[8] &= 0x3F;
    list[8 + 2] |= 0x04;
    host.send(&[0x55, 0x10 | u8::from(save), 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list)
}

fn reset(host: &Initiator) {
    host.0.task_management(Lun::new(0).0, TaskManagementFunction::LogicalUnitReset);
    // In the format that D_SENSE has now.
    assert_eq!(host.refused(&cdb::test_unit_ready(), &[]).code, UnitAttention::Reset.sense().code);
}

#[test]
fn every_page_that_is_told_can_be_asked_for_and_says_its_length() {
    let rig = Rig::new();
    let host = rig.login("host");
    let all = page_of(&host, 0x3F);
    let mut rest = &all[..];
    let mut codes = Vec::new();
    while let [code, len, ..] = *rest {
        codes.push(code);
        let (one, next) = rest.split_at(2 + usize::from(len));
        assert_eq!(page_of(&host, code), one);
        rest = next;
    }
    assert_eq!(codes, [0x01, 0x07, 0x08, 0x0A, 0x18, 0x19, 0x1A, 0x1C]);
}

#[test]
fn without_a_store_nothing_can_be_saved_and_everyone_is_told_so() {
    let rig = Rig::new();
    let host = rig.login("host");
    assert_eq!(page_of(&host, CONTROL)[0], CONTROL);
    let saved = host.refused(&mode_sense(SAVED | CONTROL), &[]);
    assert_eq!(saved.code, AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED);
    let refused = select_d_sense(&host, true);
    assert_eq!(*refused.sense.unwrap(), Sense::invalid_cdb_field(1, 0));
}

/// Each was made of the pages in force when it came, so that the later one saved the earlier one's page as it had been.
#[tokio::test]
async fn two_mode_selects_of_different_pages_at_a_time_are_both_in_force_and_saved() {
    let store = Arc::new(SlowStore::default());
    let state: Arc<dyn StateStore> = store.clone();
    let rig = Rig::with(LogicalUnitOptions { state: Some(state), ..Default::default() });
    let host = rig.login("host");
    let select = |page: u8, bit: u8| {
        let mut list = vec![0; 8];
        list.extend(page_of(&host, page));
        list[8] &= 0x3F;
        list[8 + 2] |= bit;
        let cdb = [0x55, 0x11, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
        match host.0.execute([0; 8], &cdb, Buf::copy_of(&list).freeze()) {
            Io::Pending(response) => tokio::spawn(response),
            Io::Ready(response) => panic!("the store has not answered: {response:?}"),
        }
    };
    let both = [select(CACHING, 0x04), select(CONTROL, 0x04)];
    assert_eq!(page_of(&host, CACHING)[2] & 0x04, 0, "not in force before it is kept");
    while !both.iter().all(tokio::task::JoinHandle::is_finished) {
        tokio::task::yield_now().await;
        let waiting = std::mem::take(&mut *store.0.lock().unwrap());
        waiting.into_iter().for_each(|done| done.send(true).unwrap());
    }
    for control in [0, SAVED] {
        let bits = [CACHING, CONTROL].map(|page| page_of(&host, control | page)[2] & 0x04);
        assert_eq!(bits, [0x04, 0x04], "page control {control:02x}");
    }
}

#[test]
fn saved_pages_outlive_resets_and_restarts() {
    let store = Arc::new(MemoryStore::default());
    let options = LogicalUnitOptions { state: Some(store), ..Default::default() };
    let rig = Rig::with(options.clone());
    let host = rig.login("host");
    assert_eq!(page_of(&host, CONTROL)[0], 0x80 | CONTROL);
    // In force, and not saved: gone with a reset.
    assert_eq!(select_d_sense(&host, false).status, Status::GOOD);
    assert_eq!(page_of(&host, SAVED | CONTROL)[2] & 0x04, 0);
    reset(&host);
    assert_eq!(page_of(&host, CONTROL)[2] & 0x04, 0);
    assert_eq!(select_d_sense(&host, true).status, Status::GOOD);
    assert_eq!(page_of(&host, SAVED | CONTROL)[2] & 0x04, 0x04);
    reset(&host);
    assert_eq!(page_of(&host, CONTROL)[2] & 0x04, 0x04);
    let again = Rig::with(options);
    let host = again.login("host");
    assert_eq!(page_of(&host, CONTROL)[2] & 0x04, 0x04);
    assert_eq!(page_of(&host, CACHING)[0], 0x80 | CACHING);
}

/// A thin disk whose backing store has 1,000 MiB.
struct Store {
    disk: RamDisk,
    used_mib: AtomicU64,
}

impl lunway_block::Layer for Store {
    fn inner(&self) -> &dyn BlockDevice {
        &self.disk
    }

    fn space(&self) -> Option<Space> {
        let used = self.used_mib.load(Ordering::Relaxed);
        Some(Space { allocated: 1 << 20, used: used << 20, available: (1000 - used) << 20 })
    }
}

#[test]
fn a_full_store_is_told_once_and_counted_in_its_page() {
    let disk = RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).unwrap();
    let store = Arc::new(Store { disk, used_mib: AtomicU64::new(799) });
    let options = LogicalUnitOptions { threshold_percent: Some(80), ..Default::default() };
    let (target, unit) = serve(store.clone(), options);
    let host = Initiator(target.open_nexus("host,i,0x1", 1, LunView::ALL));
    host.hears(UnitAttention::PowerOn);
    unit.check_space();
    host.is_ready();
    store.used_mib.store(800, Ordering::Relaxed);
    unit.check_space();
    unit.check_space();
    host.hears(UnitAttention::SoftThresholdReached);
    host.is_ready();
    store.used_mib.store(500, Ordering::Relaxed);
    unit.check_space();
    store.used_mib.store(900, Ordering::Relaxed);
    unit.check_space();
    host.hears(UnitAttention::SoftThresholdReached);

    let vpd = host.good(&cdb::inquiry(true, page::LOGICAL_BLOCK_PROVISIONING, 64), &[]).data_in;
    assert_eq!(LogicalBlockProvisioning::parse(&vpd).unwrap().threshold_exponent, 11);
    // 2,048 blocks of 512 bytes are a unit of 1 MiB: 200 left is the threshold, 100 are left, 1 is used.
    let mut subpage = mode_sense(0x1C);
    subpage[3] = 0x02;
    let told = host.good(&subpage, &[]).data_in;
    assert_eq!(told[8 + 20..8 + 24], 200u32.to_be_bytes());
    let log = host.good(&[0x4D, 0, 0x4C, 0, 0, 0, 0, 1, 0, 0], &[]).data_in;
    assert_eq!(log[..4], [0x0C, 0, 0, 24]);
    assert_eq!((&log[4..12], log[12]), (&[0, 1, 3, 8, 0, 0, 0, 100][..], 0b10));
    assert_eq!((&log[16..24], log[24]), (&[0, 2, 3, 8, 0, 0, 0, 1][..], 0b01));
    let from_the_second = host.good(&[0x4D, 0, 0x4C, 0, 0, 0, 2, 1, 0, 0], &[]).data_in;
    assert_eq!(from_the_second[4..], log[16..]);
}

#[test]
fn log_pages_that_do_not_exist_are_refused() {
    let rig = Rig::new();
    let host = rig.login("host");
    assert_eq!(
        host.good(&[0x4D, 0, 0x40, 0, 0, 0, 0, 1, 0, 0], &[]).data_in[..],
        [0, 0, 0, 3, 0x00, 0x0C, 0x2F]
    );
    for cdb in [
        // Unknown, a threshold, a parameter behind the last.
        [0x4D, 0, 0x4D, 0, 0, 0, 0, 1, 0, 0],
        [0x4D, 0, 0x2F, 0, 0, 0, 0, 1, 0, 0],
        [0x4D, 0, 0x6F, 0, 0, 0, 1, 1, 0, 0],
    ] {
        assert_eq!(host.refused(&cdb, &[]).key, SenseKey::ILLEGAL_REQUEST);
    }
}

#[test]
fn self_tests_read_the_medium_and_diagnostic_pages_are_none() {
    let rig = Rig::new();
    let host = rig.login("host");
    host.good(&[0x1D, 0x04, 0, 0, 0, 0], &[]);
    host.good(&[0x1D, 0xA0, 0, 0, 0, 0], &[]);
    host.refused(&[0x1D, 0x20, 0, 0, 0, 0], &[]);
    host.refused(&[0x1D, 0x10, 0, 0, 8, 0], &[0; 8]);
    assert_eq!(host.good(&[0x1C, 0x01, 0, 0, 64, 0], &[]).data_in[..], [0, 0, 0, 1, 0]);
    host.refused(&[0x1C, 0x01, 0x40, 0, 64, 0], &[]);
}
