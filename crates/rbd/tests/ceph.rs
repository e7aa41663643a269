//! The device on a cluster of Ceph, which is killed, and whose own commands do what other clients do.

#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lunway_block::spec::{DeviceSpec, RbdName};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind, Fate, Permit, Zeroing};
use lunway_foreign::ceph::{Ceph, Store};
use lunway_rbd::{RbdDevice, RbdOpenError, RbdOptions, RbdSnapshots};

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
    again.close().await.unwrap();

    // What is only read is in use as well: the image stays. A snapshot does not, and then nothing counts as read.
    ceph.run("rbd", &["snap", "create", "disk@two"]);
    let only_read = RbdOptions { read_only: true, ..RbdOptions::default() };
    let image = RbdDevice::open(&name(&at("clone")), &only_read).await.unwrap();
    let snapshot = RbdDevice::open(&name(&at("disk@two")), &only_read).await.unwrap();
    holds(&snapshot, 0, 5).await;
    let refused = ceph.output("rbd", &["rm", "--no-progress", "clone"]);
    assert!(!refused.status.success(), "an image that is read was removed");
    assert_eq!((image.confirm().await, snapshot.confirm().await), (Ok(()), Ok(())));
    ceph.run("rbd", &["snap", "rename", "disk@two", "disk@three"]);
    assert_eq!(snapshot.confirm().await, Ok(()), "its name is not what it is");
    ceph.run("rbd", &["snap", "rm", "--no-progress", "disk@three"]);
    assert!(matches!(snapshot.confirm().await, Err(BlockError::Gone { .. })));
    let read = snapshot.read(0, Buf::zeroed(4096)).await;
    assert!(matches!(read, Err(BlockError::Gone { .. })), "{read:?}");
    image.close().await.unwrap();

    // Mirrored, and not primary here: read, and not changed.
    ceph.run("rbd", &["mirror", "pool", "enable", "rbd", "image"]);
    for (mode, features) in [("snapshot", "exclusive-lock"), ("journal", "exclusive-lock,journaling")] {
        ceph.run("rbd", &["create", "--size", "4M", "--image-feature", features, mode]);
        ceph.run("rbd", &["mirror", "image", "enable", &format!("rbd/{mode}"), mode]);
        open(&at(mode)).await.unwrap().close().await.unwrap();
        ceph.run("rbd", &["mirror", "image", "demote", &format!("rbd/{mode}")]);
        let refused = open(&at(mode)).await.err().unwrap();
        assert!(matches!(refused, RbdOpenError::NotPrimary { .. }), "{mode}: {refused}");
        let snapshots = RbdSnapshots::open(&name(&at(mode)), &only_read).await.unwrap();
        let refused = snapshots.create("one").await.unwrap_err();
        assert!(matches!(refused, RbdOpenError::NotPrimary { .. }), "{mode}: {refused}");
        snapshots.close().await.unwrap();
        RbdDevice::open(&name(&at(mode)), &only_read).await.unwrap().close().await.unwrap();
    }
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

/// The holder of an image's lock, as Ceph's own command names it.
fn holder(ceph: &Ceph, image: &str) -> String {
    let locks = ceph.run("rbd", &["lock", "ls", image, "--format", "json"]);
    let (_, address) = locks.split_once("\"address\":\"").expect("it is locked");
    address.split('"').next().unwrap().to_owned()
}

/// Writes until it is done: a host repeats what was busy.
async fn put_at_last(device: &RbdDevice, block: u64, stamp: u64) {
    let start = Instant::now();
    loop {
        match put(device, block, stamp).await {
            Ok(()) => return,
            Err(BlockError::Busy) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "busy for ever: {:?}", device.backing());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_image_goes_on_with_a_new_client_when_the_old_one_is_fenced() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    for image in ["disk", "other"] {
        ceph.run("rbd", &["create", "--size", "64M", image]);
    }
    let served = RbdOptions { renew: true, ..RbdOptions::default() };
    let disk = RbdDevice::open(&name(&ceph.device("disk")), &served).await.unwrap();
    put(&disk, 0, 1).await.unwrap();
    let old = holder(&ceph, "disk");

    // By an administrator, with writes under way: none is answered as if it had been carried out or had failed.
    ceph.run("ceph", &["osd", "blocklist", "add", &old]);
    let mut outcome = put(&disk, 0, 2).await;
    let start = Instant::now();
    while outcome.is_ok() {
        // The OSD has not heard of it yet.
        assert!(start.elapsed() < PATIENCE);
        outcome = put(&disk, 0, 2).await;
    }
    assert!(matches!(outcome, Err(BlockError::Fenced { .. })), "{outcome:?}");
    put_at_last(&disk, 0, 3).await;
    assert_ne!(holder(&ceph, "disk"), old);
    assert_eq!(disk.backing(), None);
    holds(&disk, 0, 3).await;

    // By another that takes the disk: refused, and not fenced in turn, until that one has ended.
    let old = holder(&ceph, "disk");
    let other = open(&format!("{}&break_lock={old}", ceph.device("disk"))).await.unwrap();
    put(&other, 1, 1).await.unwrap();
    assert!(matches!(put(&disk, 1, 9).await, Err(BlockError::Fenced { .. })));
    let start = Instant::now();
    while !matches!(put(&disk, 1, 9).await, Err(BlockError::Gone { .. })) {
        assert!(start.elapsed() < PATIENCE, "{:?}", disk.backing());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(disk.backing().unwrap().contains(&holder(&ceph, "disk")), "{:?}", disk.backing());
    put(&other, 1, 2).await.unwrap();
    other.close().await.unwrap();
    let start = Instant::now();
    while disk.backing().is_some() {
        assert!(start.elapsed() < PATIENCE, "{:?}", disk.backing());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    holds(&disk, 1, 2).await;

    // The lock broken by Ceph's own command, which fences its holder; the size has changed meanwhile.
    let locks = ceph.run("rbd", &["lock", "ls", "disk"]);
    let words: Vec<&str> = locks.lines().last().unwrap().split_whitespace().collect();
    let (client, id) = (words[0], words[1..words.len() - 1].join(" "));
    ceph.run("rbd", &["lock", "rm", "disk", &id, client]);
    let mut outcome = put(&disk, 2, 1).await;
    while outcome.is_ok() {
        assert!(start.elapsed() < PATIENCE);
        outcome = put(&disk, 2, 1).await;
    }
    assert!(matches!(outcome, Err(BlockError::Fenced { .. })), "{outcome:?}");
    put_at_last(&disk, 2, 2).await;

    // Without the feature any client writes: this one does not, until it can be locked again.
    ceph.run("rbd", &["feature", "disable", "disk", "fast-diff,object-map,exclusive-lock"]);
    let start = Instant::now();
    while !matches!(put(&disk, 2, 2).await, Err(BlockError::Gone { .. })) {
        assert!(start.elapsed() < PATIENCE, "{:?}", disk.backing());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(disk.backing().unwrap().contains("exclusive-lock was disabled"), "{:?}", disk.backing());
    ceph.run("rbd", &["feature", "enable", "disk", "exclusive-lock"]);
    while put(&disk, 2, 3).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "{:?}", disk.backing());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(disk.backing(), None);
    holds(&disk, 2, 3).await;

    // Another image of its name is not taken for it.
    let old = holder(&ceph, "disk");
    ceph.run("ceph", &["osd", "blocklist", "add", &old]);
    ceph.run("rbd", &["rename", "disk", "away"]);
    ceph.run("rbd", &["rename", "other", "disk"]);
    let start = Instant::now();
    while !matches!(put(&disk, 3, 1).await, Err(BlockError::Gone { .. })) {
        assert!(start.elapsed() < PATIENCE, "{:?}", disk.backing());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(disk.backing().unwrap().contains("another image is called rbd/disk"), "{:?}", disk.backing());
    assert_eq!(disk.close().await, Ok(()));
    let other = open(&ceph.device("disk")).await.unwrap();
    let zeroes = other.read(3 * 4096, Buf::zeroed(4096)).await.unwrap();
    assert!(zeroes.iter().all(|byte| *byte == 0), "it was written to");
}

/// Seeded choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unmapped_zeroed_and_resized_reads_as_it_must_and_no_extent_is_told_wrongly() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    const SIZE: usize = 16 << 20;
    ceph.run("rbd", &["create", "--size", "16M", "--object-size", "1M", "disk"]);
    let disk = open(&ceph.device("disk")).await.unwrap();
    let mut model = vec![0u8; SIZE];
    let mut dice = Dice(19);
    // Every border that librbd or an OSD rounds at, and a sector on each side of it.
    let borders: Vec<u64> = [4096, 64 << 10, 1 << 20]
        .into_iter()
        .flat_map(|border: u64| (1..5).map(move |n| n * border))
        .flat_map(|at| [at - 512, at, at + 512])
        .collect();
    for round in 0..150u64 {
        let at = |dice: &mut Dice| borders[dice.below(borders.len() as u64) as usize];
        let shift = dice.below(11) << 20;
        let (one, two) = (at(&mut dice), at(&mut dice));
        let (from, to) = (one.min(two) + shift, one.max(two) + shift + 512);
        let range = from as usize..to as usize;
        match round % 4 {
            0 | 1 => {
                let bytes: Vec<u8> = (range.clone()).map(|at| (at as u64 * 7 + round) as u8 | 1).collect();
                disk.write(from, Buf::copy_of(&bytes).freeze(), Durability::Stable).await.unwrap();
                model[range].copy_from_slice(&bytes);
            }
            2 => {
                disk.unmap(from, to - from).await.unwrap();
                model[range].fill(0);
            }
            _ => {
                disk.write_zeroes(from, to - from, Zeroing::KeepAllocated).await.unwrap();
                model[range].fill(0);
            }
        }
        if round % 10 == 9 {
            let bytes = disk.read(0, Buf::zeroed(SIZE)).await.unwrap();
            assert!(bytes[..] == model[..], "after round {round}");
            for piece in disk.extents(0, SIZE as u64, usize::MAX).await.unwrap() {
                let range = piece.offset as usize..(piece.offset + piece.len) as usize;
                let zero = model[range].iter().all(|byte| *byte == 0);
                assert!(zero || piece.kind == ExtentKind::Data, "{piece:?} after round {round}");
            }
        }
    }
    // What a smaller size cuts off is not there when it is larger again, down to the sector.
    let cut = 5 * MIB + 3 * 512;
    disk.resize(cut, Permit::default()).await.unwrap();
    assert_eq!(disk.geometry().size, cut);
    assert!(matches!(disk.read(cut, Buf::zeroed(512)).await, Err(BlockError::OutOfRange { .. })));
    disk.resize(SIZE as u64, Permit::default()).await.unwrap();
    model[cut as usize..].fill(0);
    let bytes = disk.read(0, Buf::zeroed(SIZE)).await.unwrap();
    assert!(bytes[..] == model[..], "after two resizes");
    // By Ceph's own command, both ways, while it is open.
    let (heard, hears) = mpsc::channel();
    disk.on_resize(Box::new(move |geometry| {
        let _ = heard.send(geometry.size);
    }));
    for size in [8, 24] {
        ceph.run("rbd", &["resize", "--allow-shrink", "--size", &format!("{size}M"), "disk"]);
        assert_eq!(hears.recv_timeout(PATIENCE), Ok(size * MIB));
        assert_eq!(disk.geometry().size, size * MIB);
    }
    disk.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_between_two_snapshots_is_what_the_cluster_tells() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    const SIZE: u64 = 32 << 20;
    ceph.run("rbd", &["create", "--size", "32M", "disk"]);
    let disk = open(&ceph.device("disk")).await.unwrap();
    let image = name(&ceph.device("disk"));
    let snapshots = RbdSnapshots::open(&image, &RbdOptions::default()).await.unwrap();
    let mut dice = Dice(4);
    let mut last: Option<(String, u64, Buf)> = None;
    for round in 0..6u64 {
        for _ in 0..dice.below(12) {
            let block = dice.below(SIZE / 4096 - 2048);
            match dice.below(4) {
                // More than an object at times.
                0 => disk.unmap(block * 4096, (1 + dice.below(2000)) * 4096).await.unwrap(),
                1 => disk.write_zeroes(block * 4096, 8192, Zeroing::KeepAllocated).await.unwrap(),
                _ => put(&disk, block, round).await.unwrap(),
            }
        }
        // Made by the client that has the lock, for the one that asks.
        let snapshot = format!("s{round}");
        snapshots.create(&snapshot).await.unwrap();
        let at = RbdName { snapshot: Some(snapshot.clone()), ..image.clone() };
        let frozen = RbdDevice::open(&at, &RbdOptions::default()).await.unwrap();
        let now = frozen.read(0, Buf::zeroed(SIZE as usize)).await.unwrap();
        let number = frozen.snapshot().unwrap();
        if let Some((since, before_number, before)) = last {
            let mut told = vec![false; (SIZE / 512) as usize];
            let changes = frozen.changed_since(&since, before_number, 0).await.unwrap();
            assert_eq!(changes.end, SIZE);
            // Another one of that name, with nothing in between, would be told of as if nothing was written.
            let error = frozen.changed_since(&since, number, 0).await.unwrap_err();
            assert!(error.to_string().contains("is not the one"), "{error}");
            for range in &changes.ranges {
                let sectors = (range.start / 512) as usize..range.end.div_ceil(512) as usize;
                told[sectors].fill(true);
            }
            for (sector, told) in told.iter().enumerate() {
                let range = sector * 512..(sector + 1) * 512;
                assert!(*told || before[range.clone()] == now[range], "sector {sector} in round {round}");
            }
        }
        frozen.close().await.unwrap();
        last = Some((snapshot, number, now));
    }
    for round in 0..6 {
        assert!(snapshots.remove(&format!("s{round}"), None).await.unwrap());
    }
    assert!(!snapshots.remove("s0", None).await.unwrap());
    drop(snapshots);
    put(&disk, 0, 77).await.unwrap();
    disk.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_rollback_has_brought_back_is_told_as_changed() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    const SIZE: u64 = 8 << 20;
    ceph.run("rbd", &["create", "--size", "8M", "--object-size", "64K", "disk"]);
    let image = name(&ceph.device("disk"));
    let snapshot = async |snapshot: &str| {
        let snapshots = RbdSnapshots::open(&image, &RbdOptions::default()).await.unwrap();
        snapshots.create(snapshot).await.unwrap();
        snapshots.close().await.unwrap();
        let at = RbdName { snapshot: Some(snapshot.to_owned()), ..image.clone() };
        RbdDevice::open(&at, &RbdOptions::default()).await.unwrap()
    };
    let write = async |first: u64, blocks: u64, value: u64| {
        let disk = open(&ceph.device("disk")).await.unwrap();
        for block in first..first + blocks {
            put(&disk, block * 4, value).await.unwrap();
        }
        disk.close().await.unwrap();
    };
    write(0, 64, 1).await;
    // Of the second one the object map says that nothing was written since the first.
    for daily in ["monday", "tuesday"] {
        snapshot(daily).await.close().await.unwrap();
    }
    write(0, 16, 2).await;
    let before = snapshot("before").await;
    let number = before.snapshot().unwrap();
    let old = before.read(0, Buf::zeroed(SIZE as usize)).await.unwrap();
    before.close().await.unwrap();
    ceph.run("rbd", &["snap", "rollback", "--no-progress", "disk@tuesday"]);
    let after = snapshot("after").await;
    let new = after.read(0, Buf::zeroed(SIZE as usize)).await.unwrap();
    assert!(old[..] != new[..], "it was rolled back");
    let changes = after.changed_since("before", number, 0).await.unwrap();
    assert_eq!(changes.end, SIZE);
    for at in (0..SIZE).step_by(4096) {
        let range = at as usize..at as usize + 4096;
        let is_told = changes.ranges.iter().any(|told| told.contains(&at));
        assert!(is_told || old[range.clone()] == new[range], "offset {at}: {:?}", changes.ranges);
    }
    after.close().await.unwrap();
}
