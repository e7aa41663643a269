//! Writes that wait for room in the page cache, as those of a raw file do.

use std::fs::File;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Owner, OwnerKey};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, create};

use crate::{VhdxDevice, random_guids};

const MIB: usize = 1 << 20;

fn made(folder: &Path) -> VhdxDevice {
    let path = folder.join("disk.vhdx");
    let options = CreateOptions::new(DiskKind::Dynamic, 64 << 20, Guid::from_digits(6));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    VhdxDevice::open(&path, false).unwrap()
}

type Write = Pin<Box<dyn Future<Output = Result<(), BlockError>>>>;

fn write(device: &VhdxDevice, owner: &Owner, len: usize) -> Write {
    let _entered = owner.enter();
    Box::pin(device.write(0, Buf::copy_of(&vec![7; len]).freeze(), Durability::Volatile).into_future())
}

/// Returns `true` if a write does not end for some time.
async fn waits(write: &mut Write) -> bool {
    tokio::time::timeout(Duration::from_millis(100), write.as_mut()).await.is_err()
}

/// Lost was the time of a flush: what the page cache had of a VHDX was without bound, and a flush beside a flood of
/// writes took 11 s on a disk of 150 MB/s. Raw files had been bounded before.
#[tokio::test]
async fn writes_wait_for_room_in_the_page_cache_first_those_of_the_host_that_has_most_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let device = made(folder.path());
    let write_back = &device.inner.write_back;
    let [flood, other] = [(); 2].map(|()| Owner::new());
    assert!(write_back.note(OwnerKey::NONE.group(), 8 << 20), "a pass is due, which nobody makes");
    // The flood may have 8/9 of what is left of 32 MiB.
    for _ in 0..21 {
        write(&device, &flood, MIB).await.unwrap();
    }
    let mut next = write(&device, &flood, MIB);
    assert!(waits(&mut next).await, "the flood goes on");
    for _ in 0..20 {
        write(&device, &other, 8192).await.unwrap();
    }
    write_back.note(OwnerKey::NONE.group(), 3 << 20);
    let mut last = write(&device, &other, 8192);
    assert!(waits(&mut last).await, "the limit is reached");
    // A flush makes room as a pass does.
    device.flush().await.unwrap();
    next.await.unwrap();
    last.await.unwrap();
}
