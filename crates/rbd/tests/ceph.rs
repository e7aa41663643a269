//! The device on a cluster of Ceph, which is killed, and whose own commands do what other clients do.

#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lunway_block::spec::{DeviceSpec, RbdName};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind, Fate};
use lunway_foreign::ceph::{Ceph, Store};
use lunway_rbd::{RbdDevice, RbdOpenError, RbdOptions};

/// More than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

fn name(text: &str) -> RbdName {
    match DeviceSpec::parse(text).unwrap() {
        DeviceSpec::Rbd { name } => name,
        other => panic!("{other}"),
    }
}

async fn open(text: &str) -> Result<RbdDevice, RbdOpenError> {
    RbdDevice::open(&name(text), &RbdOptions::default()).await
}

/// A block with its number and a stamp all over it.
fn stamped(block: u64, stamp: u64) -> Buf {
    let bytes: Vec<u8> = (0..512).flat_map(|_| (block << 32 | stamp).to_le_bytes()).collect();
    Buf::copy_of(&bytes)
}

async fn put(device: &RbdDevice, block: u64, stamp: u64) -> Result<(), BlockError> {
    device.write(block * 4096, stamped(block, stamp).freeze(), Durability::Stable).await
}

async fn holds(device: &RbdDevice, block: u64, stamp: u64) {
    let bytes = device.read(block * 4096, Buf::zeroed(4096)).await.unwrap();
    assert!(bytes[..] == stamped(block, stamp)[..], "block {block} is not of write {stamp}");
}

#[tokio::test]
async fn images_snapshots_clones_sizes_and_locks_are_those_of_ceph() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    ceph.run("rbd", &["create", "--size", "64M", "disk"]);
    let at = |image: &str| ceph.device(image);
    let disk = open(&at("disk")).await.unwrap();
    assert_eq!(disk.geometry().size, 64 * MIB);
    assert!(!disk.geometry().volatile_cache);
    put(&disk, 0, 1).await.unwrap();
    put(&disk, 5 * 1024, 2).await.unwrap();

    // A second writer of our own, and one of Ceph's.
    let Err(RbdOpenError::Held { holder, .. }) = open(&at("disk")).await else { panic!("two writers") };
    assert!(ceph.run("rbd", &["lock", "ls", "disk"]).contains(&holder), "{holder}");
    let bench = ["bench", "--io-type", "write", "--io-total", "4096", "--io-size", "4096", "disk"];
    let mut other = std::process::Command::new("timeout");
    other.arg("5").arg("rbd").arg("--conf").arg(ceph.conf()).args(bench);
    assert!(!other.output().unwrap().status.success(), "the lock was handed over");
    holds(&disk, 0, 1).await;

    // A snapshot, a clone of it: what they hold, and that none is another.
    ceph.run("rbd", &["snap", "create", "disk@one"]);
    ceph.run("rbd", &["snap", "protect", "disk@one"]);
    ceph.run("rbd", &["clone", "disk@one", "clone"]);
    put(&disk, 0, 3).await.unwrap();
    let (snapshot, clone) = (open(&at("disk@one")).await.unwrap(), open(&at("clone")).await.unwrap());
    holds(&snapshot, 0, 1).await;
    holds(&clone, 0, 1).await;
    assert_eq!(put(&snapshot, 0, 9).await, Err(BlockError::ReadOnly));
    let pieces = |list: Vec<lunway_block::Extent>| -> Vec<(bool, u64)> {
        list.iter().map(|piece| (piece.kind == ExtentKind::Data, piece.len / MIB)).collect()
    };
    // Objects of 4 MiB: the first, and the one that begins at 20 MiB; a clone has them of its parent.
    let expected = [(true, 4), (false, 16), (true, 4), (false, 40)];
    for device in [&disk, &snapshot, &clone] {
        assert_eq!(pieces(device.extents(0, 64 * MIB, usize::MAX).await.unwrap()), expected);
    }
    let places = [disk.identity(), snapshot.identity(), clone.identity()];
    assert!(!places[0].is_same_disk(&places[1]) && !places[0].is_same_disk(&places[2]), "{places:?}");
    clone.unmap(0, 4 * MIB).await.unwrap();
    let bytes = clone.read(0, Buf::zeroed(4096)).await.unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "the parent shows through");
    clone.close().await.unwrap();
    snapshot.close().await.unwrap();

    // Resized by Ceph's own command, while it is open and locked.
    let (heard, hears) = mpsc::channel();
    disk.on_resize(Box::new(move |geometry| {
        let _ = heard.send(geometry.size);
    }));
    ceph.run("rbd", &["resize", "--size", "96M", "disk"]);
    assert_eq!(hears.recv_timeout(PATIENCE), Ok(96 * MIB));
    assert_eq!(disk.geometry().size, 96 * MIB);
    put(&disk, 96 * 256 - 1, 4).await.unwrap();

    // Fenced: dead or alive, it never writes again.
    let taken = open(&format!("{}&break_lock={holder}", at("disk"))).await.unwrap();
    put(&taken, 0, 5).await.unwrap();
    let Err(error) = put(&disk, 0, 6).await else { panic!("a fenced client has written") };
    assert!(error.to_string().contains("fenced this client"), "{error}");
    assert!(disk.backing().is_some());
    holds(&taken, 0, 5).await;
    assert_eq!(disk.close().await, Ok(()));
    taken.close().await.unwrap();
    let again = open(&at("disk")).await.unwrap();
    holds(&again, 0, 5).await;
    holds(&again, 5 * 1024, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_osd_is_killed_in_mid_write() {
    let Some(ceph) = Ceph::start(Store::BlueStore) else { return };
    ceph.run("rbd", &["create", "--size", "64M", "disk"]);
    let device = Arc::new(open(&format!("{}&timeout=60s", ceph.device("disk"))).await.unwrap());
    let writers: Vec<_> = (0..8u64)
        .map(|writer| {
            let device = Arc::clone(&device);
            tokio::spawn(async move {
                for stamp in 1..=200 {
                    put(&device, writer * 100 + stamp % 10, stamp).await.unwrap();
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    ceph.kill("osd");
    assert!(writers.iter().any(|writer| !writer.is_finished()), "all was written before");
    tokio::time::sleep(Duration::from_secs(1)).await;
    ceph.revive("osd");
    for writer in writers {
        writer.await.unwrap();
    }
    for writer in 0..8 {
        for place in 0..10 {
            holds(&device, writer * 100 + place, if place == 0 { 200 } else { 190 + place }).await;
        }
    }
    device.close().await.unwrap();

    // No answer at all: said within the limit, and the outcome of a write is unknown.
    let device = open(&format!("{}&timeout=3s", ceph.device("disk"))).await.unwrap();
    put(&device, 0, 1).await.unwrap();
    ceph.kill("osd");
    let begun = Instant::now();
    let error = put(&device, 0, 2).await.unwrap_err();
    assert_eq!(error.fate(), Fate::Unknown, "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(2) && begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    ceph.revive("osd");
    while put(&device, 0, 3).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "it does not come back");
    }
    holds(&device, 0, 3).await;
}
