//! A disk over several paths whose process is killed: nothing that it sent lands on what the next one writes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability, SharedBuf};
use lunway_initiator::{InitiatorPorts, SessionOptions};
use lunway_iscsi_paths::{Address, IscsiMultipath, PathsOpenError};

use crate::line::Line;
use crate::victim::Victim;

const NAME: &str = "iqn.2026-11.com.example:lanes";

const SIZE: u64 = 1 << 20;

const LEN: usize = 64 << 10;

/// The disk over these portals, the first of which is preferred.
fn address(portals: &[SocketAddr], more: &str) -> String {
    let lane = |(n, portal): (usize, &SocketAddr)| format!("lane=127.0.0.{}>{portal}", 91 + n);
    let lanes: Vec<_> = portals.iter().enumerate().map(lane).collect();
    format!("iscsi://{}/{NAME}/0?{}&policy=failover&settle=2s{more}", portals[0], lanes.join("&"))
}

async fn open(address: &str, records: &Path) -> Result<IscsiMultipath, PathsOpenError> {
    let Address::Several(url) = Address::parse(address).unwrap() else { panic!("{address} is one path") };
    let initiator_ports = InitiatorPorts::In(records.to_owned());
    IscsiMultipath::open(&url, &SessionOptions { initiator_ports, ..SessionOptions::default() }).await
}

fn fill(byte: u8) -> SharedBuf {
    Buf::copy_of(&vec![byte; LEN]).freeze()
}

/// The other process.
#[tokio::test]
#[ignore = "a part of the other tests"]
async fn victim_process() {
    let Some((device, records)) = crate::victim::role() else { return };
    let disk = open(&device, &records).await.unwrap();
    crate::victim::wait_to_write();
    let write = tokio::spawn(disk.device().write(0, fill(1), Durability::Volatile).into_future());
    tokio::time::sleep(Duration::from_millis(200)).await;
    crate::victim::is_writing();
    let _ = write.await;
    std::future::pending::<()>().await;
}

/// Kills a process of two lanes, whose write over the first path arrives that much later; nobody can connect over that
/// path from then on.
async fn kill_one(portals: [SocketAddr; 2], records: &Path, late: Duration) -> Line {
    let line = Line::start_at([127, 0, 0, 85], portals[0]).await;
    let victim =
        Victim::start("killed::victim_process", &address(&[line.address, portals[1]], ""), records).await;
    let held = tokio::spawn(async move {
        line.cut_and_deliver_late(Duration::from_millis(600), late).await;
        line.refuse(true);
        line
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    victim.write().await.kill();
    held.await.unwrap()
}

/// Writes what the killed process did not get done, then something newer, and flushes; waits until anything late has
/// arrived.
async fn overwrite(disk: &IscsiMultipath, late: Duration) {
    let device = disk.device();
    device.write(0, fill(1), Durability::Volatile).await.unwrap();
    device.write(0, fill(2), Durability::Volatile).await.unwrap();
    device.flush().await.unwrap();
    tokio::time::sleep(late + Duration::from_secs(1)).await;
    let read = device.read(0, Buf::zeroed(LEN)).await.unwrap();
    assert!(read.iter().all(|&there| there == 2), "a late write of {} is on the disk", read[0]);
}

#[tokio::test]
async fn the_next_start_over_the_path_that_is_left_ends_the_sessions_of_all_paths() {
    let (_server, portals) = crate::two_portals::serve(NAME, SIZE, false).await;
    let (records, late) = (tempfile::tempdir().unwrap(), Duration::from_secs(3));
    let _line = kill_one(portals, records.path(), late).await;
    let start = Instant::now();
    let disk = open(&address(&portals[1..], "&unproven=fail"), records.path()).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(1900), "all of them are proven dead");
    overwrite(&disk, late).await;
    disk.close().await;
}

#[tokio::test]
async fn where_a_path_has_its_own_portal_group_the_next_start_waits_for_the_time_to_settle() {
    let (_server, portals) = crate::two_portals::serve(NAME, SIZE, true).await;
    let (records, late) = (tempfile::tempdir().unwrap(), Duration::from_secs(1));
    let line = kill_one(portals, records.path(), late).await;
    let refused = open(&address(&[portals[1]], "&unproven=fail"), records.path()).await.err().unwrap();
    assert!(refused.to_string().contains(&line.address.to_string()), "{refused}");
    let disk = open(&address(&portals[1..], ""), records.path()).await.unwrap();
    overwrite(&disk, late).await;
    disk.close().await;
    open(&address(&portals[1..], "&unproven=fail"), records.path()).await.unwrap().close().await;
}
