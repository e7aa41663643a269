//! The chain, the lock, sizes and the end of the device. That it is a plain vector of sectors is shown with all devices
//! (`crates/device/tests/waist`).
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind, Permit, Unmap, Zeroing};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, Locator, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 12 * MIB;
const CLOSE_TIME: Duration = Duration::from_secs(60);

fn make(folder: &Path, name: &str, kind: DiskKind, sector: u32, parent: Option<(&str, Guid)>) -> PathBuf {
    let path = folder.join(name);
    let mut options = CreateOptions::new(kind, SIZE, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    options.parameters.logical_sector = sector;
    options.parameters.locator = parent.map(|(name, linkage)| Locator::new(linkage, name, None));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    path
}

fn open(path: &Path, read_only: bool) -> VhdxDevice {
    VhdxDevice::open(path, read_only).unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn a_child_is_written_and_its_parent_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let base = make(folder.path(), "base.vhdx", DiskKind::Dynamic, 512, None);
    let device = open(&base, false);
    device.write(0, Buf::copy_of(&[7; 65_536]).freeze(), Durability::Stable).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let linkage = {
        let file = lunway_vhdx::open_file(&base, false).unwrap();
        let options = lunway_vhdx::VhdxOpenOptions::read_only();
        lunway_vhdx::Disk::open(file, &options, random_guids().unwrap()).unwrap().data_write_guid()
    };
    let child = make(folder.path(), "child.avhdx", DiskKind::Differencing, 512, Some(("base.vhdx", linkage)));
    let before = std::fs::read(&base).unwrap();
    let device = open(&child, false);
    assert_eq!(device.levels(), Some(2));
    device.write(4096, Buf::copy_of(&[9; 4096]).freeze(), Durability::Volatile).await.unwrap();
    device.unmap(8192, 4096).await.unwrap();
    let read = device.read(0, Buf::zeroed(16_384)).await.unwrap();
    assert_eq!(read[..], [[7; 4096], [9; 4096], [0; 4096], [7; 4096]].concat());
    device.close(CLOSE_TIME).await.unwrap();
    assert!(matches!(device.flush().await, Err(BlockError::Gone { .. })));
    assert!(std::fs::read(&base).unwrap() == before, "a parent is only read");
}

#[tokio::test]
async fn the_host_has_the_space_of_unmapped_blocks_without_a_flush_of_the_initiators() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "disk.vhdx", DiskKind::Dynamic, 512, None);
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let device = open(&path, false);
    let data = Buf::copy_of(&vec![7; 4 << 20]).freeze();
    device.write(0, data, Durability::Stable).await.unwrap();
    let full = allocated();
    device.unmap(0, 4 * MIB).await.unwrap();
    let given_back = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        allocated() + 3 * MIB <= full
    });
    assert!(given_back, "{full} bytes, and now {}", allocated());
    device.close(CLOSE_TIME).await.unwrap();
}

#[tokio::test]
async fn zeroes_in_a_fixed_disk_keep_its_space() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "fixed.vhdx", DiskKind::Fixed, 512, None);
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let device = open(&path, false);
    device.write(0, Buf::copy_of(&[7; 12 << 20]).freeze(), Durability::Stable).await.unwrap();
    let full = allocated();
    for zeroing in [Zeroing::MayUnmap, Zeroing::KeepAllocated] {
        // Blocks and parts of blocks.
        device.write_zeroes(0, 5 * MIB + 4096, zeroing).await.unwrap();
        device.write_zeroes(9 * MIB + 512, 1024, zeroing).await.unwrap();
        device.flush().await.unwrap();
        assert!(allocated() >= full, "{full} bytes before, {} after {zeroing:?}", allocated());
    }
    let read = device.read(0, Buf::zeroed(SIZE as usize)).await.unwrap();
    let zero = |at: usize| at < (5 << 20) + 4096 || (0..1024).contains(&at.wrapping_sub((9 << 20) + 512));
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == if zero(at) { 0 } else { 7 }));
    device.close(CLOSE_TIME).await.unwrap();
}

#[tokio::test]
async fn blocks_that_are_unmapped_part_by_part_leave_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.vhdx");
    let mut options = CreateOptions::new(DiskKind::Dynamic, 96 * MIB, Guid::from_digits(5));
    options.parameters.block_size = 32 << 20;
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    let len = |path: &Path| std::fs::metadata(path).unwrap().len();
    let empty = len(&path);
    let device = open(&path, false);
    for at in 0..64 {
        device.write(at * MIB, Buf::copy_of(&[7; 1 << 20]).freeze(), Durability::Volatile).await.unwrap();
    }
    device.flush().await.unwrap();
    // As a guest with `-o discard` deletes files, but for one page of the second block.
    for at in (0..64).rev() {
        let keep = if at == 40 { 4096 } else { 0 };
        device.unmap(at * MIB + keep, MIB - keep).await.unwrap();
    }
    let extents = device.extents(0, 96 * MIB, usize::MAX).await.unwrap();
    let data: Vec<_> = extents.iter().filter(|extent| extent.kind == ExtentKind::Data).collect();
    // The page, as far as the host tells it apart from the holes of its block.
    let [page] = data[..] else { panic!("{extents:?}") };
    assert!((32 * MIB..=40 * MIB).contains(&page.offset) && page.end() > 40 * MIB, "{extents:?}");
    assert_eq!(device.read(40 * MIB, Buf::zeroed(4096)).await.unwrap()[..], [7; 4096]);
    device.unmap(40 * MIB, 4096).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(len(&path), empty, "nothing is left in the file");
    assert!(open(&path, true).read(0, Buf::zeroed(64 << 20)).await.unwrap().iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_fixed_disk_is_not_thin_and_a_read_only_one_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "fixed.vhdx", DiskKind::Fixed, 512, None);
    let device = open(&path, false);
    let geometry = device.geometry();
    assert_eq!((geometry.unmap, geometry.size), (Unmap::Never, SIZE));
    device.write(0, Buf::copy_of(&[1; 512]).freeze(), Durability::Stable).await.unwrap();
    device.unmap(0, SIZE).await.unwrap();
    assert_eq!(device.read(0, Buf::zeroed(512)).await.unwrap()[..], [1; 512]);
    let again = VhdxDevice::open(&path, true).err().unwrap().to_string();
    assert!(again.contains("in use by this process"), "{again}");
    device.close(CLOSE_TIME).await.unwrap();
    let device = open(&path, true);
    assert_eq!(
        device.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await,
        Err(BlockError::ReadOnly)
    );
    device.flush().await.unwrap();
}

#[tokio::test]
async fn many_operations_at_once_on_one_block_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "disk.vhdx", DiskKind::Dynamic, 512, None);
    let device = Arc::new(open(&path, false));
    let tasks: Vec<_> = (0..64u64)
        .map(|n| {
            let device = Arc::clone(&device);
            tokio::spawn(async move {
                let data = vec![n as u8 + 1; 4096];
                device.write(n * 4096, Buf::copy_of(&data).freeze(), Durability::Volatile).await.unwrap();
                device.flush().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // As after a kill: nothing but the file counts.
    let copy = folder.path().join("copy.vhdx");
    std::fs::copy(&path, &copy).unwrap();
    let copied = open(&copy, true);
    let read = copied.read(0, Buf::zeroed(64 * 4096)).await.unwrap();
    assert!(read.chunks(4096).zip(1..).all(|(page, value)| page.iter().all(|byte| *byte == value)));
}

#[tokio::test]
async fn a_disk_is_resized_between_operations_and_stays_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "disk.vhdx", DiskKind::Dynamic, 512, None);
    let device = Arc::new(open(&path, false));
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hearing = Arc::clone(&told);
    device.on_resize(Box::new(move |geometry| hearing.lock().unwrap().push(geometry.size)));
    // Somebody writes all the time, and finds what was written.
    let busy = {
        let device = Arc::clone(&device);
        tokio::spawn(async move {
            for round in 0..200u64 {
                let (offset, value) = (round % 16 * 4096, round as u8 + 1);
                let data = Buf::copy_of(&[value; 4096]).freeze();
                device.write(offset, data, Durability::Volatile).await.unwrap();
                let read = device.read(offset, Buf::zeroed(4096)).await.unwrap();
                assert!(read.iter().all(|byte| *byte == value), "round {round}");
            }
        })
    };
    let sizes = [SIZE + MIB, 64 * MIB, 2 * MIB, 200 * MIB + 512];
    for size in sizes {
        device.resize(size, Permit::default()).await.unwrap();
        assert_eq!(device.geometry().size, size);
        let again = VhdxDevice::open(&path, true).err().unwrap().to_string();
        assert!(again.contains("in use by this process"), "{again}");
        let last = device.read(size - 512, Buf::copy_of(&[0xEE; 512])).await.unwrap();
        assert!(last.iter().all(|byte| *byte == 0));
        let beyond = device.read(size, Buf::zeroed(512)).await;
        assert!(matches!(beyond, Err(BlockError::OutOfRange { .. })), "{beyond:?}");
    }
    busy.await.unwrap();
    assert_eq!(*told.lock().unwrap(), sizes);
    for refused in [0, 513, 65 << 40] {
        let error = device.resize(refused, Permit::default()).await.unwrap_err();
        assert!(matches!(error, BlockError::Size { .. }), "{refused}: {error}");
        assert_eq!(device.geometry().size, sizes[3], "it goes on as it is");
    }
    device.write(0, Buf::copy_of(&[7; 512]).freeze(), Durability::Stable).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let device = open(&path, true);
    assert_eq!(device.geometry().size, sizes[3]);
    assert_eq!(device.read(0, Buf::zeroed(512)).await.unwrap()[..], [7; 512]);
    assert_eq!(device.resize(SIZE, Permit::default()).await, Err(BlockError::ReadOnly));
}

/// The space of blocks behind a smaller end is given back when the new size is durable. Here the host refuses that: of
/// a file that may only be appended to.
#[tokio::test]
async fn users_hear_of_a_size_that_is_durable_although_the_resize_failed() {
    let Some(chattr) = lunway_foreign::program("chattr") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "disk.vhdx", DiskKind::Dynamic, 512, None);
    let device = open(&path, false);
    device.write(0, Buf::copy_of(&[7; 12 << 20]).freeze(), Durability::Stable).await.unwrap();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hearing = Arc::clone(&told);
    device.on_resize(Box::new(move |geometry| hearing.lock().unwrap().push(geometry.size)));
    let set = |how: &str| std::process::Command::new(&chattr).arg(how).arg(&path).output().unwrap();
    let output = set("+a");
    if !output.status.success() {
        lunway_foreign::machine_lacks("the right to make a file append-only");
        return;
    }
    let resized = device.resize(8 * MIB, Permit::default()).await;
    assert!(set("-a").status.success());
    let error = resized.expect_err("the host refused").to_string();
    assert!(error.contains("giving space back"), "{error}");
    assert_eq!((device.geometry().size, told.lock().unwrap().clone()), (8 * MIB, vec![8 * MIB]));
    assert!(device.resize(0, Permit::default()).await.is_err());
    assert_eq!(told.lock().unwrap().len(), 1, "a size that did not change is not told");
    device.close(CLOSE_TIME).await.unwrap();
    assert_eq!(open(&path, true).geometry().size, 8 * MIB);
}

#[tokio::test]
async fn a_parent_is_not_resized() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "base.vhdx", DiskKind::Dynamic, 512, None);
    let linkage = Guid::from_digits(1);
    make(folder.path(), "other.avhdx", DiskKind::Differencing, 512, Some(("base.vhdx", linkage)));
    let device = open(&path, false);
    // It is the parent of another file's child.
    device.resize(SIZE * 2, Permit::default()).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let data_write = lunway_vhdx::Disk::open(
        File::open(&path).unwrap(),
        &lunway_vhdx::VhdxOpenOptions::read_only(),
        random_guids().unwrap(),
    );
    let linkage = data_write.unwrap().data_write_guid();
    let device = open(&path, false);
    make(folder.path(), "child.avhdx", DiskKind::Differencing, 512, Some(("base.vhdx", linkage)));
    let error = device.resize(SIZE, Permit::default()).await.unwrap_err().to_string();
    assert!(error.contains("it is the parent of") && error.contains("child.avhdx"), "{error}");
    assert_eq!(device.geometry().size, SIZE * 2);
    device.close(CLOSE_TIME).await.unwrap();
    let error = VhdxDevice::open(&path, false).err().unwrap().to_string();
    assert!(error.contains("it is the parent of") && error.contains("child.avhdx"), "{error}");
    open(&path, true);
}

/// Before, the next write made the file longer again, and what was lost read as zeroes.
#[tokio::test]
async fn a_file_that_another_program_cuts_fails_as_a_medium_and_is_not_made_longer() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "disk.vhdx", DiskKind::Dynamic, 512, None);
    let len = || std::fs::metadata(&path).unwrap().len();
    let device = open(&path, false);
    device.write(0, Buf::copy_of(&[7; 12 << 20]).freeze(), Durability::Stable).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let device = open(&path, false);
    // The first change of a file flushes it, which would be the first to fail.
    device.write(0, Buf::copy_of(&[7; 512]).freeze(), Durability::Stable).await.unwrap();
    let whole = len();
    let other = File::options().write(true).open(&path).unwrap();
    other.set_len(whole - MIB - 8192).unwrap();
    let medium = |offset| BlockError::Medium { offset };
    // The blocks lie in order.
    let there = device.read(9 * MIB, Buf::zeroed(1 << 20)).await.unwrap();
    assert!(there.iter().all(|byte| *byte == 7));
    assert_eq!(device.read(10 * MIB, Buf::zeroed(2 << 20)).await.err(), Some(medium(11 * MIB - 8192)));
    let write = |offset| device.write(offset, Buf::copy_of(&[9; 512]).freeze(), Durability::Volatile);
    for offset in [11 * MIB - 512, 11 * MIB, SIZE - 512] {
        assert_eq!(write(offset).await, Err(medium(offset)));
        for zeroing in [Zeroing::MayUnmap, Zeroing::KeepAllocated] {
            assert_eq!(device.write_zeroes(offset, 512, zeroing).await, Err(medium(offset)));
        }
        assert_eq!(device.unmap(offset, 512).await, Err(medium(offset)));
    }
    let extents = device.extents(0, SIZE, usize::MAX).await.unwrap();
    assert!(extents.iter().all(|extent| extent.kind == ExtentKind::Data), "{extents:?}");
    // The file has no room for what other programs copy into it, either.
    assert_eq!(len(), whole - MIB - 8192);
    write(0).await.unwrap();
    let error = device.flush().await.unwrap_err().to_string();
    assert!(error.contains("another program has cut it"), "{error}");
    assert!(write(0).await.is_err(), "nobody knows what else is lost");
    assert!(device.resize(2 * SIZE, Permit::default()).await.is_err());
    assert!(device.snapshot(&folder.path().join("leaf.avhdx"), Box::new(|| Ok(()))).await.is_err());
    assert!(device.close(CLOSE_TIME).await.is_err());
    assert_eq!(len(), whole - MIB - 8192);
    drop(device);
    let refused = VhdxDevice::open(&path, false).err().unwrap().to_string();
    assert!(refused.contains("lunway disk repair"), "{refused}");
}

#[tokio::test]
async fn holes_of_the_host_in_what_is_allocated_read_as_zeroes_and_are_no_data() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, hole) in [(DiskKind::Dynamic, ExtentKind::Unallocated), (DiskKind::Fixed, ExtentKind::Zero)] {
        for sector in [512, 4096] {
            let path = make(folder.path(), &format!("{kind:?}-{sector}.vhdx"), kind, sector, None);
            // Of a fixed disk that was copied by a tool that leaves holes.
            let copy = path.with_extension("copy");
            let bytes = std::fs::read(&path).unwrap();
            let file = File::create(&copy).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            for (at, piece) in
                bytes.chunks(4096).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0))
            {
                std::os::unix::fs::FileExt::write_all_at(&file, piece, at as u64 * 4096).unwrap();
            }
            drop(file);
            let device = open(&copy, false);
            device
                .write(5 * MIB + 8192, Buf::copy_of(&[7; 4096]).freeze(), Durability::Stable)
                .await
                .unwrap();
            device.write(6 * MIB, Buf::copy_of(&[8; 4096]).freeze(), Durability::Stable).await.unwrap();
            let extents = device.extents(0, SIZE, usize::MAX).await.unwrap();
            let mut at = 0;
            for extent in &extents {
                assert_eq!(extent.offset, at, "{extents:?}");
                at = extent.end();
                let read = device.read(extent.offset, Buf::zeroed(extent.len as usize)).await.unwrap();
                let is_zero = read.iter().all(|byte| *byte == 0);
                assert!(is_zero || extent.kind == ExtentKind::Data, "{extents:?}");
            }
            assert_eq!(at, SIZE);
            let data: u64 = extents
                .iter()
                .filter(|extent| extent.kind == ExtentKind::Data)
                .map(|extent| extent.len)
                .sum();
            if data == SIZE || data == 2 * MIB {
                lunway_foreign::machine_lacks("a file system that tells holes");
                return;
            }
            assert!((8192..MIB).contains(&data), "{extents:?}");
            // Between the two pieces.
            let inside = extents.iter().find(|extent| extent.end() == 6 * MIB).unwrap();
            assert_eq!(inside.kind, hole, "{extents:?}");
            device.close(CLOSE_TIME).await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_file_has_lost_is_not_lent() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "disk.vhdx", DiskKind::Fixed, 512, None);
    let device = open(&path, true);
    assert!(device.lend(11 * MIB, MIB).await.unwrap().is_some());
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 512).unwrap();
    assert!(device.lend(11 * MIB, MIB).await.unwrap().is_none());
    assert!(device.lend(10 * MIB, MIB).await.unwrap().is_some());
    assert_eq!(
        device.read(11 * MIB, Buf::zeroed(1 << 20)).await.err(),
        Some(BlockError::Medium { offset: SIZE - 512 })
    );
}
