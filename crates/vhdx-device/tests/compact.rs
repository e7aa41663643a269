//! Compaction of a device that is used: what it gives back, what it leaves alone, and what comes in between.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Compaction, CompactionPhase, Durability};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

const MIB: u64 = 1 << 20;
const CLOSE_TIME: Duration = Duration::from_secs(60);

fn new(folder: &Path, size: u64) -> PathBuf {
    let path = folder.join("disk.vhdx");
    let mut options = CreateOptions::new(DiskKind::Dynamic, size, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    path
}

async fn write(device: &VhdxDevice, offset: u64, len: u64, byte: u8) {
    let data = Buf::copy_of(&vec![byte; len as usize]).freeze();
    device.write(offset, data, Durability::Volatile).await.unwrap();
}

async fn read(device: &VhdxDevice, offset: u64, len: u64) -> Vec<u8> {
    device.read(offset, Buf::zeroed(len as usize)).await.unwrap().to_vec()
}

/// A device of 64 blocks, all written, the lower half given up again.
async fn holes(folder: &Path) -> (PathBuf, Arc<VhdxDevice>) {
    let path = new(folder, 96 * MIB);
    let device = Arc::new(VhdxDevice::open(&path, false).unwrap());
    for block in 0..64 {
        write(&device, block * MIB, MIB, block as u8 + 1).await;
    }
    device.unmap(0, 32 * MIB).await.unwrap();
    device.flush().await.unwrap();
    (path, device)
}

fn len(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[tokio::test]
async fn a_file_shrinks_under_verified_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = holes(folder.path()).await;
    let before = len(&path);
    let done = Arc::new(AtomicBool::new(false));
    // Each writer has its own units in all blocks that are there.
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let (device, done) = (Arc::clone(&device), Arc::clone(&done));
            tokio::spawn(async move {
                let mut model = vec![None; 32 * 64];
                let mut random = writer + 1;
                while !done.load(Ordering::Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let unit = (random >> 33) % (32 * 64);
                    let at = (32 + unit / 64) * MIB + (writer * 64 + unit % 64) * 4096;
                    let expected = model[unit as usize].unwrap_or((at / MIB) as u8 + 1);
                    assert!(read(&device, at, 4096).await.iter().all(|byte| *byte == expected), "{at}");
                    let byte = (random >> 20) as u8;
                    write(&device, at, 4096, byte).await;
                    model[unit as usize] = Some(byte);
                    if random % 64 == 0 {
                        device.flush().await.unwrap();
                    }
                }
                model
            })
        })
        .collect();
    let begun = Instant::now();
    // What writers are in the way of is done by the next.
    while len(&path) > before - 31 * MIB {
        assert!(begun.elapsed() < Duration::from_secs(60), "{before} {}", len(&path));
        let task = Arc::new(Compaction::new(u64::MAX));
        device.compact(Arc::clone(&task)).await.unwrap();
        assert_eq!(task.progress().phase, CompactionPhase::Ended);
    }
    done.store(true, Ordering::Relaxed);
    let mut models = Vec::new();
    for writer in writers {
        models.push(writer.await.unwrap());
    }
    device.close(CLOSE_TIME).await.unwrap();
    let device = VhdxDevice::open(&path, true).unwrap();
    for (writer, model) in models.iter().enumerate() {
        for (unit, byte) in model.iter().enumerate() {
            let at = (32 + unit as u64 / 64) * MIB + (writer as u64 * 64 + unit as u64 % 64) * 4096;
            let expected = byte.unwrap_or((at / MIB) as u8 + 1);
            assert!(read(&device, at, 4096).await.iter().all(|byte| *byte == expected), "{at}");
        }
    }
    assert!(read(&device, 0, 32 * MIB).await.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_snapshot_and_the_end_of_the_device_come_in_between() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = holes(folder.path()).await;
    // So slow that it would take a minute.
    let task = Arc::new(Compaction::new(MIB));
    let compacting = tokio::spawn(device.compact(Arc::clone(&task)).into_future());
    let other = Arc::new(Compaction::new(MIB));
    while task.progress().moved < MIB {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(device.compact(other).await, Err(BlockError::Busy), "one at a time");
    let begun = Instant::now();
    device.snapshot(&folder.path().join("leaf.avhdx"), Box::new(|| Ok(()))).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // Where it looked between the two, it found a new file, in which nothing is to be moved.
    assert!(matches!(compacting.await.unwrap(), Ok(()) | Err(BlockError::Gone { .. })));
    let base = VhdxDevice::open(&path, true).unwrap();
    for block in 32..64 {
        assert!(read(&base, block * MIB, MIB).await.iter().all(|byte| *byte == block as u8 + 1));
    }
}

#[tokio::test]
async fn a_compaction_for_idle_times_stops_when_the_device_is_used_and_goes_on_when_it_is_not() {
    const IDLE: Duration = Duration::from_secs(2);
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = holes(folder.path()).await;
    let before = len(&path);
    // It would move half of all in the time for which the device is used.
    let task = Arc::new(Compaction::new(4 * MIB).when_idle(IDLE));
    let begun = Instant::now();
    let compacting = tokio::spawn(device.compact(Arc::clone(&task)).into_future());
    while task.progress().moved < MIB {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() >= IDLE, "it waits first: {:?}", begun.elapsed());
    read(&device, 40 * MIB, 4096).await;
    let (moved, using) = (task.progress().moved, Instant::now());
    let (mut last, mut pause) = (using, Duration::ZERO);
    while using.elapsed() < 2 * IDLE {
        read(&device, 40 * MIB, 4096).await;
        pause = pause.max(last.elapsed());
        last = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let meanwhile = task.progress().moved - moved;
    assert!(meanwhile <= MIB || pause >= IDLE, "{meanwhile} bytes; the longest pause was {pause:?}");
    assert_eq!(task.progress().phase, CompactionPhase::Moving, "it has not given up");
    compacting.await.unwrap().unwrap();
    assert!(len(&path) <= before - 31 * MIB, "{before} {}", len(&path));
    for block in 32..64 {
        assert!(read(&device, block * MIB, MIB).await.iter().all(|byte| *byte == block as u8 + 1), "{block}");
    }
    device.close(CLOSE_TIME).await.unwrap();
}

#[tokio::test]
async fn a_compaction_ends_when_it_is_cancelled_and_the_next_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = holes(folder.path()).await;
    let before = len(&path);
    let task = Arc::new(Compaction::new(4 * MIB));
    let compacting = tokio::spawn(device.compact(Arc::clone(&task)).into_future());
    while task.progress().moved < 2 * MIB {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    task.cancel();
    compacting.await.unwrap().unwrap();
    let first = task.progress();
    assert!(first.moved < 31 * MIB && first.phase == CompactionPhase::Ended, "{first:?}");
    let task = Arc::new(Compaction::new(u64::MAX));
    device.compact(Arc::clone(&task)).await.unwrap();
    assert!(task.progress().moved <= 32 * MIB - first.moved, "{first:?} {:?}", task.progress());
    assert!(len(&path) <= before - 32 * MIB, "{before} {}", len(&path));
    let device = Arc::into_inner(device).unwrap();
    device.close(CLOSE_TIME).await.unwrap();
}

/// A tool's answer, or the name of the one that is missing.
fn run(program: &str, arguments: &[&str]) -> Option<std::process::Output> {
    lunway_foreign::program(program)?;
    Some(Command::new(program).args(arguments).output().unwrap())
}

#[tokio::test]
async fn frozen_file_systems_say_what_is_free_and_what_is_written_later_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (image, contents) = (folder.path().join("ext4.img"), folder.path().join("contents"));
    fs::create_dir(&contents).unwrap();
    fs::write(contents.join("file"), vec![0xAB; 3 << 20]).unwrap();
    File::create(&image).unwrap().set_len(96 * MIB).unwrap();
    let [image_name, contents_name] = [&image, &contents].map(|path| path.to_str().unwrap());
    let Some(made) = run("mke2fs", &["-q", "-t", "ext4", "-d", contents_name, image_name]) else { return };
    assert!(made.status.success(), "{made:?}");
    let bytes = fs::read(&image).unwrap();
    let path = new(folder.path(), 96 * MIB);
    let device = Arc::new(VhdxDevice::open(&path, false).unwrap());
    // All of it is written, what is free too.
    let fill = async || {
        for (at, piece) in (0..).step_by(MIB as usize).zip(bytes.chunks(MIB as usize)) {
            device.write(at, Buf::copy_of(piece).freeze(), Durability::Volatile).await.unwrap();
        }
    };
    fill().await;
    let before = len(&path);

    // A guest that is not frozen: nothing is dropped.
    let [done, writes] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let guest = tokio::spawn({
        let (device, done, writes) = (Arc::clone(&device), Arc::clone(&done), Arc::clone(&writes));
        async move {
            while !done.load(Ordering::Relaxed) {
                write(&device, 95 * MIB, 4096, 0x11).await;
                writes.store(true, Ordering::Relaxed);
            }
        }
    });
    while !writes.load(Ordering::Relaxed) {
        tokio::task::yield_now().await;
    }
    // The map of so small a disk may be read between two of its writes.
    let mut attempts = 0..100;
    let refused = loop {
        assert!(attempts.next().is_some(), "no write was noticed");
        let task = Arc::new(Compaction::new(u64::MAX).of_frozen());
        if let Err(refused) = device.compact(Arc::clone(&task)).await {
            assert_eq!(task.progress().dropped, 0);
            break refused;
        }
        fill().await;
    };
    assert!(refused.to_string().contains("freeze"), "{refused}");
    done.store(true, Ordering::Relaxed);
    guest.await.unwrap();

    // One that is, and writes into what was free as soon as it is thawed.
    let task = Arc::new(Compaction::new(8 * MIB).of_frozen());
    assert_eq!(task.progress().phase, CompactionPhase::Mapping);
    let compacting = tokio::spawn(device.compact(Arc::clone(&task)).into_future());
    while task.progress().phase == CompactionPhase::Mapping {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    write(&device, 90 * MIB + 8192, 4096, 0x77).await;
    compacting.await.unwrap().unwrap();
    let dropped = task.progress().dropped;
    assert!(dropped > 50 * MIB, "{:?}", task.progress());
    assert!(len(&path) < before - 50 * MIB, "{before} {}", len(&path));
    assert_eq!(read(&device, 90 * MIB + 8192, 4096).await, [0x77; 4096]);
    let after = read(&device, 0, 96 * MIB).await;
    device.close(CLOSE_TIME).await.unwrap();
    fs::write(&image, after).unwrap();
    let checked = run("e2fsck", &["-fn", image_name]).unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let read = run("debugfs", &["-R", "cat /file", image_name]).unwrap();
    assert!(read.stdout == vec![0xAB; 3 << 20], "{} bytes", read.stdout.len());
}

#[tokio::test]
async fn a_volume_that_does_not_say_that_it_is_frozen_gives_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    let name = image.to_str().unwrap();
    // A mount sets needs_recovery, and freezing clears it. Nothing tells whether swap space is in use.
    let mke2fs = ["mke2fs", "-q", "-F", "-t", "ext4", name];
    let mounted = ["debugfs", "-w", "-R", "feature needs_recovery", name];
    for (commands, expected) in [
        (&[&mke2fs[..], &mounted][..], Some("ext4 at byte 0: it is mounted and not frozen")),
        (&[&["mkswap", "-q", "-p", "4096", name][..]], Some("swap at byte 0: nothing on it tells")),
        (&[&mke2fs[..]], None),
    ] {
        File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        for command in commands {
            let Some(made) = run(command[0], &command[1..]) else { return };
            assert!(made.status.success(), "{made:?}");
        }
        let mut bytes = fs::read(&image).unwrap();
        // What the guest has written where its map, as far as it is on the disk, says that nothing is.
        bytes[44 << 20..45 << 20].fill(0x77);
        let path = new(folder.path(), 64 * MIB);
        let device = Arc::new(VhdxDevice::open(&path, false).unwrap());
        for (at, piece) in (0..).step_by(MIB as usize).zip(bytes.chunks(MIB as usize)) {
            device.write(at, Buf::copy_of(piece).freeze(), Durability::Volatile).await.unwrap();
        }
        let task = Arc::new(Compaction::new(u64::MAX).of_frozen());
        let ended = device.compact(Arc::clone(&task)).await;
        let data = read(&device, 44 * MIB, MIB).await;
        match expected {
            Some(expected) => {
                let said = ended.unwrap_err().to_string();
                assert!(said.contains(expected), "{said}");
                assert_eq!(task.progress().dropped, 0);
                assert!(data.iter().all(|byte| *byte == 0x77), "{expected}");
            }
            None => {
                ended.unwrap();
                assert!(task.progress().dropped > 40 * MIB && data.iter().all(|byte| *byte == 0));
            }
        }
        device.close(CLOSE_TIME).await.unwrap();
        fs::remove_file(&path).unwrap();
    }
}
