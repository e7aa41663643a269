//! Writes that a target has acknowledged and lost, written again over a single path.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, SharedBuf};
use lunway_initiator::{IscsiDevice, IscsiUrl};
use lunway_retain::RetainingDevice;

use crate::support::scripted::{Act, Disk, NAME, SECTOR};
use crate::support::{model, quick};

const TEST_UNIT_READY: u8 = 0x00;
const READ: u8 = 0x88;
const WRITE: u8 = 0x8A;
const SYNCHRONIZE_CACHE: u8 = 0x91;

async fn open(disk: &Arc<Disk>) -> RetainingDevice {
    let url = IscsiUrl::parse(&format!("iscsi://{}/{NAME}/0", disk.serve().await)).unwrap();
    RetainingDevice::new(Arc::new(IscsiDevice::open(url, quick()).await.expect("open")), 1 << 20)
}

fn sectors(count: usize, byte: u8) -> SharedBuf {
    Buf::copy_of(&vec![byte; count * SECTOR]).freeze()
}

/// What a target says over a new session after its power was off: the standards ask for 29/00 or 29/01, LIO says
/// nothing.
const SAID: [Option<Act>; 3] = [Some(Act::Sense(6, 0x29, 0x00)), Some(Act::Sense(6, 0x29, 0x01)), None];

/// At the first command `at` all is lost that was not flushed, and the connection; the first TEST UNIT READY after that
/// is answered with `said`.
fn lose_power(disk: &Arc<Disk>, at: u8, said: Option<Act>) {
    let (mut lost, mut said, storage) = (false, said, disk.clone());
    disk.script(move |cdb| match cdb[0] {
        opcode if opcode == at && !lost => {
            lost = true;
            storage.data.lock().unwrap().fill(0);
            Act::ExecuteAndHangUp
        }
        TEST_UNIT_READY if lost => said.take().unwrap_or(Act::Execute),
        _ => Act::Execute,
    });
}

#[tokio::test]
async fn a_flush_after_a_restart_of_the_target_succeeds_because_the_data_is_there() {
    for said in SAID {
        let disk = Disk::new(64, 8);
        let device = open(&disk).await;
        device.write(0, sectors(2, 1), Durability::Volatile).await.unwrap();
        device.write(SECTOR as u64, sectors(2, 2), Durability::Volatile).await.unwrap();
        lose_power(&disk, SYNCHRONIZE_CACHE, said);
        device.flush().await.expect("the data is there");
        let data = disk.data.lock().unwrap();
        assert_eq!([0, 1, 2, 3].map(|sector| data[sector * SECTOR]), [1, 2, 2, 0]);
    }
}

#[tokio::test]
async fn a_read_after_a_restart_of_the_target_finds_what_was_written() {
    for said in SAID {
        let disk = Disk::new(64, 8);
        let device = open(&disk).await;
        device.write(0, sectors(1, 1), Durability::Volatile).await.unwrap();
        lose_power(&disk, READ, said);
        let read = device.read(0, Buf::zeroed(SECTOR)).await.unwrap();
        assert_eq!(read[0], 1);
        device.flush().await.unwrap();
    }
}

#[tokio::test]
async fn a_reset_connection_alone_makes_no_flush_fail_though_the_target_says_power_on_over_each_new_session()
{
    let disk = Disk::new(64, 8);
    let device = open(&disk).await;
    for round in 1..10 {
        device.write(0, sectors(1, round), Durability::Volatile).await.unwrap();
        let (mut hung_up, mut told) = (false, false);
        disk.script(move |cdb| match cdb[0] {
            READ if !hung_up => {
                hung_up = true;
                Act::ExecuteAndHangUp
            }
            TEST_UNIT_READY if hung_up && !told => {
                told = true;
                Act::Sense(6, 0x29, 0x00)
            }
            _ => Act::Execute,
        });
        assert_eq!(device.read(0, Buf::zeroed(SECTOR)).await.unwrap()[0], round);
        device.flush().await.expect("nothing is lost");
    }
    assert_eq!(disk.logins.load(Ordering::Relaxed), 10);
}

#[tokio::test]
async fn a_write_through_a_target_without_a_cache_is_not_sent_again() {
    let disk = Disk::new(64, 8);
    *disk.cache.lock().unwrap() = (false, false);
    let device = open(&disk).await;
    device.write(0, sectors(1, 1), Durability::Volatile).await.unwrap();
    disk.once(READ, Act::ExecuteAndHangUp);
    device.read(0, Buf::zeroed(SECTOR)).await.unwrap();
    device.flush().await.unwrap();
    assert_eq!((disk.count(WRITE), device.retained_bytes()), (1, 0));
}

#[tokio::test]
async fn a_target_that_reserves_the_disk_for_another_host_gets_nothing_again() {
    let disk = Disk::new(64, 8);
    let device = open(&disk).await;
    device.write(0, sectors(1, 1), Durability::Volatile).await.unwrap();
    let mut hung_up = false;
    disk.script(move |cdb| match cdb[0] {
        READ if !hung_up => {
            hung_up = true;
            Act::ExecuteAndHangUp
        }
        WRITE => Act::Status(0x18),
        _ => Act::Execute,
    });
    device.read(0, Buf::zeroed(SECTOR)).await.unwrap();
    assert_eq!(device.flush().await, Err(BlockError::ReservationConflict));
    disk.script(|_| Act::Execute);
    device.flush().await.expect("reported once");
    assert_eq!(disk.count(WRITE), 1);
}

#[tokio::test]
async fn verified_io_over_a_target_that_restarts_again_and_again_loses_nothing() {
    let disk = Disk::new(4096, 32);
    // Without FUA: a durable write is one with a flush behind it, which may find that it was lost in between.
    *disk.cache.lock().unwrap() = (true, false);
    let device = Arc::new(open(&disk).await);
    let (storage, mut count, mut told) = (disk.clone(), 0, true);
    let mut durable = disk.data.lock().unwrap().clone();
    disk.script(move |cdb| {
        count += 1;
        match cdb[0] {
            SYNCHRONIZE_CACHE => {
                durable.clone_from(&storage.data.lock().unwrap());
                Act::Execute
            }
            WRITE | READ if count % 97 == 0 => {
                storage.data.lock().unwrap().clone_from(&durable);
                told = count % 2 == 0;
                Act::ExecuteAndHangUp
            }
            TEST_UNIT_READY if !std::mem::replace(&mut told, true) => Act::Sense(6, 0x29, 0x00),
            _ => Act::Execute,
        }
    });
    model::verified_io(device.clone(), 4, 200, |_| false).await;
    assert!(disk.logins.load(Ordering::Relaxed) > 5);
}
