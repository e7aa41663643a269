//! Snapshots of a device that is used: what is frozen, what goes on, and what a kill at each step leaves.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CHAIN_FILES_MAX, CreateOptions, Disk, DiskKind, Item, VhdxOpenOptions, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

const SIZE: u64 = 12 << 20;
const CLOSE_TIME: Duration = Duration::from_secs(60);
const PENDING: &str = "leaf.avhdx.pending-snapshot";

fn base(folder: &Path, kind: DiskKind) -> PathBuf {
    let path = folder.join("base.vhdx");
    let mut options = CreateOptions::new(kind, SIZE, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    path
}

async fn write(device: &VhdxDevice, offset: u64, byte: u8) {
    device.write(offset, Buf::copy_of(&[byte; 8192]).freeze(), Durability::Volatile).await.unwrap();
}

async fn byte(device: &VhdxDevice, offset: u64) -> u8 {
    let read = device.read(offset, Buf::zeroed(8192)).await.unwrap();
    assert!(read.iter().all(|byte| *byte == read[0]));
    read[0]
}

async fn byte_of(path: &Path, offset: u64) -> u8 {
    let device = VhdxDevice::open(path, true).unwrap();
    let found = byte(&device, offset).await;
    device.close(CLOSE_TIME).await.unwrap();
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_leaf_gets_the_metadata_of_the_disk_and_not_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, leaf) = (folder.path().join("base.vhdx"), folder.path().join("leaf.avhdx"));
    let mut options = CreateOptions::new(DiskKind::Dynamic, SIZE, Guid::from_digits(5));
    let item = |id, flags| Item { id: Guid::from_digits(id), flags, data: vec![id as u8; 100] };
    // Of users and of systems; flag 2 is of the virtual disk (2.6.1.2).
    options.items = vec![item(1, 2), item(2, 3), item(3, 0), item(4, 1)];
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    drop(file);
    let device = VhdxDevice::open(&path, false).unwrap();
    device.snapshot(&leaf, Box::new(|| Ok(()))).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let opened =
        Disk::open(File::open(&leaf).unwrap(), &VhdxOpenOptions::read_only(), random_guids().unwrap());
    let items = opened.unwrap().items().unwrap();
    let has = |item: Item| items.contains(&item);
    assert_eq!(
        [has(item(1, 2)), has(item(2, 3)), has(item(3, 0)), has(item(4, 1))],
        [true, true, false, false]
    );
}

#[tokio::test]
async fn what_was_written_before_is_frozen_and_what_comes_later_goes_to_the_leaf() {
    for kind in [DiskKind::Dynamic, DiskKind::Fixed] {
        let folder = tempfile::tempdir().unwrap();
        let (base, leaf) = (base(folder.path(), kind), folder.path().join("leaf.avhdx"));
        let device = VhdxDevice::open(&base, false).unwrap();
        let identity = device.identity();
        write(&device, 0, 1).await;
        write(&device, 1 << 20, 2).await;
        device.snapshot(&leaf, Box::new(|| Ok(()))).await.unwrap();
        assert_eq!(device.levels(), Some(2));
        assert_eq!(device.identity().content, identity.content);
        assert_ne!(device.identity().place, identity.place, "another file");
        let frozen = fs::read(&base).unwrap();
        write(&device, 0, 3).await;
        device.unmap(1 << 20, 4096).await.unwrap();
        device.flush().await.unwrap();
        assert_eq!(byte(&device, 0).await, 3);
        assert!(fs::read(&base).unwrap() == frozen, "a parent is only read");
        assert_eq!([byte_of(&base, 0).await, byte_of(&base, 1 << 20).await], [1, 2]);
        // The base is shared now; the leaf is not.
        assert!(VhdxDevice::open(&base, false).is_err(), "a parent is not written");
        assert!(VhdxDevice::open(&leaf, true).is_err(), "the leaf is locked");
        // And again, on top of it.
        let top = folder.path().join("top.avhdx");
        device.snapshot(&top, Box::new(|| Ok(()))).await.unwrap();
        write(&device, 2 << 20, 4).await;
        assert_eq!(device.levels(), Some(3));
        device.close(CLOSE_TIME).await.unwrap();
        assert_eq!(names(folder.path()), ["base.vhdx", "leaf.avhdx", "top.avhdx"]);
        assert_eq!([byte_of(&top, 0).await, byte_of(&top, 2 << 20).await], [3, 4]);
        assert_eq!([byte_of(&leaf, 0).await, byte_of(&leaf, 2 << 20).await], [3, 0]);
    }
}

#[tokio::test]
async fn a_commit_that_fails_leaves_the_device_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (base, leaf) = (base(folder.path(), DiskKind::Dynamic), folder.path().join("leaf.avhdx"));
    let device = VhdxDevice::open(&base, false).unwrap();
    write(&device, 0, 1).await;
    let pending = folder.path().join(PENDING);
    let refusing = move || {
        assert!(pending.is_file(), "the new file is there before the commit");
        Err(BlockError::NoSpace)
    };
    assert_eq!(device.snapshot(&leaf, Box::new(refusing)).await, Err(BlockError::NoSpace));
    assert_eq!(names(folder.path()), ["base.vhdx"]);
    assert_eq!(device.levels(), Some(1));
    write(&device, 0, 2).await;
    assert!(VhdxDevice::open(&base, true).is_err(), "it is locked for writing again");
    device.snapshot(&leaf, Box::new(|| Ok(()))).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(byte_of(&leaf, 0).await, 2);
}

#[tokio::test]
async fn what_cannot_be_a_leaf_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let base = base(folder.path(), DiskKind::Dynamic);
    let device = VhdxDevice::open(&base, false).unwrap();
    write(&device, 0, 1).await;
    device.flush().await.unwrap();
    let before = fs::read(&base).unwrap();
    for (leaf, why) in [
        (base.clone(), "already exists"),
        (elsewhere.path().join("leaf.avhdx"), "put both into one directory"),
        (folder.path().join("no/leaf.avhdx"), "looking for the folder"),
    ] {
        let refused = device.snapshot(&leaf, Box::new(|| panic!("nothing to commit"))).await.unwrap_err();
        assert!(matches!(&refused, BlockError::Snapshot { why: said } if said.contains(why)), "{refused}");
        assert!(fs::read(&base).unwrap() == before, "{why}");
    }
    device.close(CLOSE_TIME).await.unwrap();
    let device = VhdxDevice::open(&base, true).unwrap();
    let leaf = folder.path().join("leaf.avhdx");
    let refused = device.snapshot(&leaf, Box::new(|| Ok(()))).await;
    assert_eq!(refused, Err(BlockError::ReadOnly));
}

#[tokio::test]
async fn a_chain_that_could_not_be_opened_again_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let device = VhdxDevice::open(&base(folder.path(), DiskKind::Dynamic), false).unwrap();
    let leaf = |level: usize| folder.path().join(format!("{level}.avhdx"));
    for level in 2..=CHAIN_FILES_MAX {
        device.snapshot(&leaf(level), Box::new(|| Ok(()))).await.unwrap();
    }
    let refused = device.snapshot(&leaf(0), Box::new(|| panic!("nothing to commit"))).await.unwrap_err();
    assert!(
        matches!(&refused, BlockError::Snapshot { why } if why.contains("lunway disk merge")),
        "{refused}"
    );
    assert_eq!((names(folder.path()).len(), device.levels()), (CHAIN_FILES_MAX, Some(CHAIN_FILES_MAX)));
    write(&device, 0, 7).await;
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(byte_of(&leaf(CHAIN_FILES_MAX), 0).await, 7, "it is opened again");
}

/// A copy of a folder as it is while a snapshot is committed: what a kill there leaves.
async fn killed_at_the_commit(folder: &Path) -> tempfile::TempDir {
    let base = base(folder, DiskKind::Dynamic);
    let device = VhdxDevice::open(&base, false).unwrap();
    write(&device, 0, 1).await;
    let left = tempfile::tempdir().unwrap();
    let (from, to) = (folder.to_owned(), left.path().to_owned());
    let copying = move || {
        for name in names(&from) {
            fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
        Ok(())
    };
    device.snapshot(&folder.join("leaf.avhdx"), Box::new(copying)).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(names(left.path()), ["base.vhdx", PENDING]);
    left
}

#[tokio::test]
async fn a_kill_before_the_commit_leaves_the_base_as_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let left = killed_at_the_commit(folder.path()).await;
    let (base, leaf) = (left.path().join("base.vhdx"), left.path().join("leaf.avhdx"));
    let device = VhdxDevice::open(&base, false).unwrap();
    assert_eq!(byte(&device, 0).await, 1);
    write(&device, 0, 2).await;
    device.close(CLOSE_TIME).await.unwrap();
    // The file that was left is no child any more, and is not taken for one.
    let error = VhdxDevice::open(&leaf, false).err().unwrap();
    assert!(error.to_string().contains("parent"), "{error}");
    assert_eq!(names(left.path()), ["base.vhdx", PENDING]);
    // The next snapshot of that name takes its place.
    let device = VhdxDevice::open(&base, false).unwrap();
    device.snapshot(&leaf, Box::new(|| Ok(()))).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(names(left.path()), ["base.vhdx", "leaf.avhdx"]);
    assert_eq!(byte_of(&leaf, 0).await, 2);
}

#[tokio::test]
async fn a_kill_after_the_commit_leaves_the_leaf_as_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let left = killed_at_the_commit(folder.path()).await;
    let leaf = left.path().join("leaf.avhdx");
    let device = VhdxDevice::open(&leaf, false).unwrap();
    assert_eq!(names(left.path()), ["base.vhdx", "leaf.avhdx"]);
    assert_eq!((device.levels(), byte(&device, 0).await), (Some(2), 1));
    write(&device, 0, 2).await;
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(byte_of(&left.path().join("base.vhdx"), 0).await, 1);
}

#[tokio::test]
async fn writers_notice_nothing_of_snapshots_but_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path(), DiskKind::Dynamic);
    let device = Arc::new(VhdxDevice::open(&base, false).unwrap());
    let end = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let (device, end) = (Arc::clone(&device), Arc::clone(&end));
            tokio::spawn(async move {
                let (mut rounds, offset) = (0u64, writer << 20);
                while !end.load(Ordering::Relaxed) {
                    rounds += 1;
                    write(&device, offset, rounds as u8).await;
                    assert_eq!(byte(&device, offset).await, rounds as u8);
                }
                (offset, rounds as u8)
            })
        })
        .collect();
    for number in 0..8 {
        let leaf = folder.path().join(format!("leaf-{number}.avhdx"));
        device.snapshot(&leaf, Box::new(|| Ok(()))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    end.store(true, Ordering::Relaxed);
    let mut last = Vec::new();
    for writer in writers {
        last.push(writer.await.unwrap());
    }
    device.close(CLOSE_TIME).await.unwrap();
    let top = folder.path().join("leaf-7.avhdx");
    for (offset, expected) in last {
        assert_eq!(byte_of(&top, offset).await, expected);
    }
}
