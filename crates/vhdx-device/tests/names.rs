//! Names that are given to other files while the disk is used: no change may go on from those.
//!
//! A copy of a file that is served has its GUIDs. A snapshot made it the parent of the new file, so that after a
//! restart everything was lost that had been written since the copy was made.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Permit};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

const SIZE: u64 = 12 << 20;
const CLOSE_TIME: Duration = Duration::from_secs(60);
/// A file that cannot be opened is tried again each second.
const PATIENCE: Duration = Duration::from_secs(60);

fn make(path: &Path, seed: u128) {
    let options = CreateOptions::new(DiskKind::Dynamic, SIZE, Guid::from_digits(seed));
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
}

async fn write(device: &VhdxDevice, byte: u8) {
    device.write(0, Buf::copy_of(&[byte; 4096]).freeze(), Durability::Stable).await.unwrap();
}

async fn byte(device: &VhdxDevice) -> Result<u8, BlockError> {
    Ok(device.read(0, Buf::zeroed(4096)).await?[0])
}

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// A copy of the file has it.
    Copy,
    /// Another disk has it.
    Other,
    /// The file has another name.
    Gone,
}

/// Gives the name to another file, whose own name is beside it; where the file that had it is now.
fn give_away(name: &Path, to: Now, copy: &Path) -> PathBuf {
    let kept = name.with_extension("kept");
    fs::rename(name, &kept).unwrap();
    match to {
        Now::Copy => fs::rename(copy, name).unwrap(),
        Now::Other => make(name, 9),
        Now::Gone => {}
    }
    kept
}

#[tokio::test]
async fn a_snapshot_or_resize_of_a_disk_whose_name_leads_elsewhere_is_refused() {
    for to in [Now::Copy, Now::Other, Now::Gone] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (base, leaf) = (at("base.vhdx"), at("leaf.avhdx"));
        make(&base, 5);
        let device = VhdxDevice::open(&base, false).unwrap();
        write(&device, 1).await;
        fs::copy(&base, at("copy")).unwrap();
        let kept = give_away(&base, to, &at("copy"));
        write(&device, 2).await;
        let what = if to == Now::Gone { "is gone" } else { "leads to another file" };
        let refused = |error: BlockError| {
            let error = error.to_string();
            assert!(
                error.contains(what) && error.contains("base.vhdx") && error.contains("/proc/"),
                "{to:?}: {error}"
            );
        };
        let commit = Box::new(|| panic!("nothing to commit"));
        refused(device.snapshot(&leaf, commit).await.unwrap_err());
        refused(device.resize(2 * SIZE, Permit::default()).await.unwrap_err());
        assert_eq!(device.geometry().size, SIZE, "{to:?}");
        assert!(!leaf.exists() && !at("leaf.avhdx.pending-snapshot").exists(), "{to:?}");
        assert_eq!(byte(&device).await, Ok(2), "{to:?}: it goes on as it is");
        write(&device, 3).await;
        // With its name back it is a disk as before.
        fs::rename(&kept, &base).unwrap();
        device.resize(2 * SIZE, Permit::default()).await.unwrap();
        device.snapshot(&leaf, Box::new(|| Ok(()))).await.unwrap();
        device.close(CLOSE_TIME).await.unwrap();
        let device = VhdxDevice::open(&leaf, false).unwrap();
        assert_eq!((byte(&device).await, device.geometry().size), (Ok(3), 2 * SIZE), "{to:?}");
        device.close(CLOSE_TIME).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_has_no_name_any_more_is_said_to_be_lost_with_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base.vhdx");
    make(&base, 5);
    let device = VhdxDevice::open(&base, false).unwrap();
    fs::remove_file(&base).unwrap();
    let error = device.resize(2 * SIZE, Permit::default()).await.unwrap_err().to_string();
    assert!(error.contains("is lost when the daemon ends"), "{error}");
}

/// A chain base ◀── leaf that is served, and a copy of the base as it was before its last write.
async fn chain(folder: &Path) -> (VhdxDevice, PathBuf, PathBuf) {
    let (base, copy) = (folder.join("base.vhdx"), folder.join("copy"));
    make(&base, 5);
    let device = VhdxDevice::open(&base, false).unwrap();
    write(&device, 1).await;
    fs::copy(&base, &copy).unwrap();
    write(&device, 2).await;
    device.snapshot(&folder.join("leaf.avhdx"), Box::new(|| Ok(()))).await.unwrap();
    (device, base, copy)
}

#[tokio::test]
async fn a_resize_does_not_exchange_a_parent_for_a_copy_that_has_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (device, base, copy) = chain(folder.path()).await;
    let kept = give_away(&base, Now::Copy, &copy);
    let error = device.resize(2 * SIZE, Permit::default()).await.unwrap_err().to_string();
    assert!(error.contains("base.vhdx leads to another file"), "{error}");
    assert_eq!(byte(&device).await, Ok(2));
    fs::rename(&kept, &base).unwrap();
    device.resize(2 * SIZE, Permit::default()).await.unwrap();
    assert_eq!(byte(&device).await, Ok(2));
    device.close(CLOSE_TIME).await.unwrap();
}

#[tokio::test]
async fn a_disk_is_not_opened_again_on_a_copy_that_got_the_name_of_its_parent_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let (device, base, copy) = chain(folder.path()).await;
    let name = base.clone();
    let commit = move || {
        give_away(&name, Now::Copy, &copy);
        Err(BlockError::NoSpace)
    };
    let error = device.snapshot(&folder.path().join("top.avhdx"), Box::new(commit)).await.unwrap_err();
    assert!(error.to_string().contains("another file than the parent that was open"), "{error}");
    assert_eq!(byte(&device).await, Err(BlockError::Medium { offset: 0 }));
    fs::rename(base.with_extension("kept"), &base).unwrap();
    let begun = Instant::now();
    let found = loop {
        match byte(&device).await {
            Err(BlockError::Medium { .. }) if begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            found => break found,
        }
    };
    assert_eq!(found, Ok(2));
    device.close(CLOSE_TIME).await.unwrap();
}
