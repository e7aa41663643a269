//! What a process that was killed leaves: nothing that lands on what the next one writes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability, SharedBuf};
use lunway_initiator::{InitiatorPorts, IscsiDevice, IscsiOpenError, IscsiUrl, SessionOptions};

use crate::support::line::Line;
use crate::support::scripted::{Act, Disk, NAME as SCRIPTED};
use crate::support::two_portals;
use crate::support::victim::{self, Victim};

const NAME: &str = "iqn.2026-11.com.example:killed";

/// The test that is the other process.
const VICTIM: &str = "killed::victim_process";

const SIZE: u64 = 1 << 20;

const LEN: usize = 64 << 10;

fn address(portal: SocketAddr) -> String {
    format!("iscsi://{portal}/{NAME}/0")
}

fn recorded_in(records: &Path) -> SessionOptions {
    SessionOptions {
        initiator_ports: InitiatorPorts::In(records.to_owned()),
        settle: Duration::from_secs(2),
        ..SessionOptions::default()
    }
}

async fn open(portal: SocketAddr, records: &Path) -> IscsiDevice {
    IscsiDevice::open(IscsiUrl::parse(&address(portal)).unwrap(), recorded_in(records)).await.unwrap()
}

fn fill(byte: u8) -> SharedBuf {
    Buf::copy_of(&vec![byte; LEN]).freeze()
}

/// The other process.
#[tokio::test]
#[ignore = "a part of the other tests"]
async fn victim_process() {
    let Some((device, records)) = victim::role() else { return };
    let device = IscsiDevice::open(IscsiUrl::parse(&device).unwrap(), recorded_in(&records)).await.unwrap();
    victim::wait_to_write();
    let write = tokio::spawn(device.write(0, fill(1), Durability::Volatile).into_future());
    tokio::time::sleep(Duration::from_millis(200)).await;
    victim::is_writing();
    let _ = write.await;
    std::future::pending::<()>().await;
}

/// Writes what the killed process did not get done, then something newer, and flushes.
async fn overwrite(device: &IscsiDevice) {
    device.write(0, fill(1), Durability::Volatile).await.unwrap();
    device.write(0, fill(2), Durability::Volatile).await.unwrap();
    device.flush().await.unwrap();
}

async fn holds(device: &IscsiDevice, byte: u8) {
    let read = device.read(0, Buf::zeroed(LEN)).await.unwrap();
    assert!(read.iter().all(|&there| there == byte), "a late write of {} is on the disk", read[0]);
}

/// The path swallows packets while the write is under way, and is well again later. With nothing recorded: it is for
/// the kernel alone.
#[tokio::test]
async fn what_a_killed_process_had_in_its_socket_is_never_sent() {
    let (_server, [first, second]) = two_portals::serve(NAME, SIZE, false).await;
    let line = Line::start_at([127, 0, 0, 81], first).await;
    let (theirs, ours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let victim = Victim::start(VICTIM, &address(line.address), theirs.path()).await;
    line.swallow(true);
    victim.write().await.kill();
    let device = open(second, ours.path()).await;
    overwrite(&device).await;
    line.swallow(false);
    // The kernel that went on sending would do so after at most 1.6 s, as its timeout doubles from 200 ms.
    for _ in 0..25 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        holds(&device, 2).await;
    }
}

/// What it sent had left the machine, and arrives later than what the next one has written.
#[tokio::test]
async fn the_next_start_ends_the_session_of_a_killed_process_over_another_portal_of_its_group() {
    let (_server, [first, second]) = two_portals::serve(NAME, SIZE, false).await;
    let line = Line::start_at([127, 0, 0, 82], first).await;
    let records = tempfile::tempdir().unwrap();
    let victim = Victim::start(VICTIM, &address(line.address), records.path()).await;
    let late = tokio::spawn(async move {
        line.cut_and_deliver_late(Duration::from_millis(1500), Duration::from_secs(3)).await;
        line
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    victim.write().await.kill();
    let _line = late.await.unwrap();
    let start = Instant::now();
    let device = open(second, records.path()).await;
    assert!(start.elapsed() < Duration::from_millis(1800), "reinstatement takes no time to settle");
    overwrite(&device).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    holds(&device, 2).await;
    device.close().await;
}

#[tokio::test]
async fn where_the_portal_group_of_a_killed_process_cannot_be_reached_the_next_start_waits_for_the_time_to_settle()
 {
    let (_server, [first, second]) = two_portals::serve(NAME, SIZE, true).await;
    let line = Line::start_at([127, 0, 0, 83], first).await;
    let records = tempfile::tempdir().unwrap();
    let victim = Victim::start(VICTIM, &address(line.address), records.path()).await;
    let late = tokio::spawn(async move {
        line.cut_and_deliver_late(Duration::from_millis(1000), Duration::from_secs(1)).await;
        line.refuse(true);
        line
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    victim.write().await.kill();
    let _line = late.await.unwrap();
    let start = Instant::now();
    let device = open(second, records.path()).await;
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    overwrite(&device).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    holds(&device, 2).await;
    device.close().await;
    let start = Instant::now();
    open(second, records.path()).await.close().await;
    assert!(start.elapsed() < Duration::from_millis(1500), "it is settled for good");
}

#[tokio::test]
async fn a_second_process_on_the_same_disk_ends_nobodys_session() {
    let (_server, [first, _]) = two_portals::serve(NAME, SIZE, false).await;
    let records = tempfile::tempdir().unwrap();
    let _victim = Victim::start(VICTIM, &address(first), records.path()).await;
    let devices = [open(first, records.path()).await, open(first, records.path()).await];
    for device in &devices {
        device.write(0, fill(3), Durability::Volatile).await.unwrap();
        device.flush().await.unwrap();
        assert_eq!(device.epoch(), 1);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    for device in &devices {
        holds(device, 3).await;
        assert_eq!(device.epoch(), 1, "its session has not been ended by another");
    }
    _victim.kill();
}

#[tokio::test]
async fn every_session_of_killed_processes_is_ended_however_many_there_were() {
    let (_server, [first, second]) = two_portals::serve(NAME, SIZE, false).await;
    let line = Line::start_at([127, 0, 0, 84], first).await;
    let records = tempfile::tempdir().unwrap();
    let mut victims = Vec::new();
    for _ in 0..3 {
        victims.push(Victim::start(VICTIM, &address(line.address), records.path()).await);
    }
    let late = tokio::spawn(async move {
        line.cut_and_deliver_late(Duration::from_millis(3500), Duration::from_secs(3)).await;
        line
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    for victim in victims {
        victim.write().await.kill();
    }
    let _line = late.await.unwrap();
    let device = open(second, records.path()).await;
    overwrite(&device).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    holds(&device, 2).await;
    device.close().await;
}

#[tokio::test]
async fn a_session_that_was_logged_out_leaves_no_record() {
    let (server, [first, _]) = two_portals::serve(NAME, SIZE, false).await;
    let records = tempfile::tempdir().unwrap();
    let device = open(first, records.path()).await;
    overwrite(&device).await;
    device.close().await;
    server.shutdown(Duration::from_secs(1)).await.unwrap();
    // With no target there to ask: it would have to be asked for.
    let url = IscsiUrl::parse(&address(first)).unwrap();
    let before = lunway_initiator::Predecessors::find(&url, &recorded_in(records.path())).await.unwrap();
    assert!(before.are_settled());
}

#[tokio::test]
async fn a_logout_while_a_dropped_write_is_under_way_leaves_the_record() {
    let disk = Disk::new(64, 8);
    let records = tempfile::tempdir().unwrap();
    let url = IscsiUrl::parse(&format!("iscsi://{}/{SCRIPTED}/0", disk.serve().await)).unwrap();
    let device = IscsiDevice::open(url.clone(), recorded_in(records.path())).await.unwrap();
    disk.script(|cdb| if cdb[0] == 0x8A { Act::Ignore } else { Act::Execute });
    let dropped = device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile);
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(dropped);
    device.close().await;
    let before = lunway_initiator::Predecessors::find(&url, &recorded_in(records.path())).await.unwrap();
    assert!(!before.are_settled(), "the target may be writing it yet");
}

#[tokio::test]
async fn a_directory_for_records_that_cannot_be_used_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let url = IscsiUrl::parse(&format!("iscsi://127.0.0.1:1/{NAME}/0")).unwrap();
    let error = IscsiDevice::open(url, recorded_in(file.path())).await.unwrap_err();
    assert!(matches!(error, IscsiOpenError::Record { .. }), "{error}");
}
