//! The device against an array, and its end.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind, Zeroing};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, Kind, Locator, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 12 * MIB;
const CLOSE_TIME: Duration = Duration::from_secs(60);

fn make(folder: &Path, name: &str, kind: Kind, sector: u32, parent: Option<(&str, Guid)>) -> PathBuf {
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

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

async fn against_an_array(path: &Path, mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut device = open(path, false);
    let sector = u64::from(device.geometry().logical_sector);
    for step in 0..300u64 {
        let first = random(&mut state) % (SIZE / sector);
        let most = [1, 64, SIZE / sector][random(&mut state) as usize % 3];
        let len = (1 + random(&mut state) % most.min(SIZE / sector - first)) * sector;
        let offset = first * sector;
        let range = offset as usize..(offset + len) as usize;
        match random(&mut state) % 12 {
            0..4 => {
                let value = (step % 255) as u8 + 1;
                let durability = if step % 5 == 0 { Durability::Stable } else { Durability::Volatile };
                device
                    .write(offset, Buf::copy_of(&vec![value; len as usize]).freeze(), durability)
                    .await
                    .unwrap();
                bytes[range].fill(value);
            }
            4..7 => {
                let read = device.read(offset, Buf::copy_of(&vec![0xEE; len as usize])).await.unwrap();
                assert!(read[..] == bytes[range], "step {step}: {len} bytes at {offset}");
            }
            7 => {
                device.unmap(offset, len).await.unwrap();
                bytes[range].fill(0);
            }
            8 => {
                let zeroing = if step % 2 == 0 { Zeroing::MayUnmap } else { Zeroing::KeepAllocated };
                device.write_zeroes(offset, len, zeroing).await.unwrap();
                bytes[range].fill(0);
            }
            9 => {
                let mut at = offset;
                for extent in device.extents(offset, len).await.unwrap() {
                    assert_eq!(extent.offset, at);
                    at = extent.end();
                    let piece = &bytes[extent.offset as usize..at as usize];
                    assert!(extent.kind == ExtentKind::Data || piece.iter().all(|byte| *byte == 0));
                }
                assert_eq!(at, offset + len);
            }
            10 => device.flush().await.unwrap(),
            _ => {
                device.close(CLOSE_TIME).await.unwrap();
                assert!(matches!(device.flush().await, Err(BlockError::Gone { .. })));
                device = open(path, false);
            }
        }
    }
    device.close(CLOSE_TIME).await.unwrap();
    bytes
}

#[tokio::test]
async fn a_dynamic_disk_and_its_child_hold_what_an_array_holds() {
    for (seed, sector) in [(1, 512), (2, 4096)] {
        let folder = tempfile::tempdir().unwrap();
        let base = make(folder.path(), "base.vhdx", Kind::Dynamic, sector, None);
        let bytes = against_an_array(&base, vec![0; SIZE as usize], seed).await;
        let linkage = {
            let file = lunway_vhdx::open_file(&base, false).unwrap();
            let options = lunway_vhdx::OpenOptions::read_only();
            lunway_vhdx::Disk::open(file, &options, random_guids().unwrap()).unwrap().data_write_guid()
        };
        let child =
            make(folder.path(), "child.avhdx", Kind::Differencing, sector, Some(("base.vhdx", linkage)));
        let before = std::fs::read(&base).unwrap();
        against_an_array(&child, bytes, seed + 10).await;
        assert!(std::fs::read(&base).unwrap() == before, "a parent is only read");
        assert_eq!(open(&child, true).levels(), Some(2));
    }
}

#[tokio::test]
async fn a_fixed_disk_is_not_thin_and_a_read_only_one_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "fixed.vhdx", Kind::Fixed, 512, None);
    let device = open(&path, false);
    let geometry = device.geometry();
    assert_eq!((geometry.thin, geometry.unmap_granularity, geometry.size), (false, 0, SIZE));
    device.write(0, Buf::copy_of(&[1; 512]).freeze(), Durability::Stable).await.unwrap();
    device.unmap(0, SIZE).await.unwrap();
    assert_eq!(device.read(0, Buf::zeroed(512)).await.unwrap()[..], [1; 512]);
    let again = VhdxDevice::open(&path, true).err().unwrap().to_string();
    assert!(again.contains("in use by another process"), "{again}");
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
    let path = make(folder.path(), "disk.vhdx", Kind::Dynamic, 512, None);
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
    let path = make(folder.path(), "disk.vhdx", Kind::Dynamic, 512, None);
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
        device.resize(size).await.unwrap();
        assert_eq!(device.geometry().size, size);
        let again = VhdxDevice::open(&path, true).err().unwrap().to_string();
        assert!(again.contains("in use by another process"), "{again}");
        let last = device.read(size - 512, Buf::copy_of(&[0xEE; 512])).await.unwrap();
        assert!(last.iter().all(|byte| *byte == 0));
        let beyond = device.read(size, Buf::zeroed(512)).await;
        assert!(matches!(beyond, Err(BlockError::OutOfRange { .. })), "{beyond:?}");
    }
    busy.await.unwrap();
    assert_eq!(*told.lock().unwrap(), sizes);
    for refused in [0, 513, 65 << 40] {
        let error = device.resize(refused).await.unwrap_err();
        assert!(matches!(error, BlockError::Size { .. }), "{refused}: {error}");
        assert_eq!(device.geometry().size, sizes[3], "it goes on as it is");
    }
    device.write(0, Buf::copy_of(&[7; 512]).freeze(), Durability::Stable).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let device = open(&path, true);
    assert_eq!(device.geometry().size, sizes[3]);
    assert_eq!(device.read(0, Buf::zeroed(512)).await.unwrap()[..], [7; 512]);
    assert_eq!(device.resize(SIZE).await, Err(BlockError::ReadOnly));
}

#[tokio::test]
async fn a_parent_is_not_resized() {
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), "base.vhdx", Kind::Dynamic, 512, None);
    let linkage = Guid::from_digits(1);
    make(folder.path(), "other.avhdx", Kind::Differencing, 512, Some(("base.vhdx", linkage)));
    let device = open(&path, false);
    // It is the parent of another file's child.
    device.resize(SIZE * 2).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    let data_write = lunway_vhdx::Disk::open(
        File::open(&path).unwrap(),
        &lunway_vhdx::OpenOptions::read_only(),
        random_guids().unwrap(),
    );
    let linkage = data_write.unwrap().data_write_guid();
    let device = open(&path, false);
    make(folder.path(), "child.avhdx", Kind::Differencing, 512, Some(("base.vhdx", linkage)));
    let error = device.resize(SIZE).await.unwrap_err().to_string();
    assert!(error.contains("it is the parent of") && error.contains("child.avhdx"), "{error}");
    assert_eq!(device.geometry().size, SIZE * 2);
    device.close(CLOSE_TIME).await.unwrap();
    let error = VhdxDevice::open(&path, false).err().unwrap().to_string();
    assert!(error.contains("it is the parent of") && error.contains("child.avhdx"), "{error}");
    open(&path, true);
}
