//! Live changes of a device whose host fails at every step that there is: first once, then from there on.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, BlockError, Buf, Compaction, Durability, Permit};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, create};

use crate::backing::Backing;
use crate::{VhdxDevice, random_guids};

/// Which calls of the storages of one device fail.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    /// Calls so far.
    count: u64,
    failing: Option<(RangeInclusive<u64>, io::ErrorKind)>,
}

impl Faults {
    pub(crate) fn step(&self) -> io::Result<()> {
        let mut plan = self.0.lock().unwrap();
        plan.count += 1;
        match &plan.failing {
            Some((steps, kind)) if steps.contains(&plan.count) => Err((*kind).into()),
            _ => Ok(()),
        }
    }

    /// Counts from 1 again; the calls with these numbers fail.
    fn set(&self, failing: Option<(RangeInclusive<u64>, io::ErrorKind)>) {
        *self.0.lock().unwrap() = Plan { count: 0, failing };
    }

    fn count(&self) -> u64 {
        self.0.lock().unwrap().count
    }
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 12 * MIB;
const CLOSE_TIME: Duration = Duration::from_secs(60);
/// Far longer than a device waits before it tries to open its file again.
const PATIENCE: Duration = Duration::from_secs(30);

fn made(folder: &Path) -> PathBuf {
    let path = folder.join("disk.vhdx");
    let mut options = CreateOptions::new(DiskKind::Dynamic, SIZE, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    path
}

fn faults(device: &VhdxDevice) -> Arc<Faults> {
    let state = device.inner.alone();
    match state.chain().unwrap().disks()[0].storage() {
        Backing::File(file) => Arc::clone(&file.faults),
        Backing::Device(_) => panic!("a file"),
    }
}

async fn write(device: &VhdxDevice, offset: u64, byte: u8) -> Result<(), BlockError> {
    device.write(offset, Buf::copy_of(&[byte; 8192]).freeze(), Durability::Volatile).await
}

async fn byte(device: &VhdxDevice, offset: u64) -> Result<u8, BlockError> {
    let read = device.read(offset, Buf::zeroed(8192)).await?;
    assert!(read.iter().all(|byte| *byte == read[0]));
    Ok(read[0])
}

/// Missing was: a word to the administrator. After one failed flush all writes failed, and nothing said what to do.
#[tokio::test]
async fn a_disk_that_takes_no_writes_since_a_flush_failed_says_so_and_what_to_do() {
    let mut told = 0;
    for step in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let device = VhdxDevice::open(&made(folder.path()), false).unwrap();
        write(&device, 0, 1).await.unwrap();
        let faults = faults(&device);
        faults.set(Some((step..=step, io::ErrorKind::Other)));
        let flushed = device.flush().await;
        let steps = faults.count();
        faults.set(None);
        let writes = write(&device, MIB, 2).await;
        let said = device.backing();
        let says =
            said.as_ref().is_some_and(|said| said.contains("disk.vhdx") && said.contains("add it again"));
        assert_eq!(writes.is_err(), says, "step {step}: {flushed:?}, {writes:?}, {said:?}");
        told += u32::from(says);
        if steps < step {
            break;
        }
    }
    assert!(told > 0, "some step fails the disk");
}

/// Change that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Live {
    Grow,
    Shrink,
    Snapshot,
    Compact,
}

impl Live {
    async fn make(self, device: &VhdxDevice, folder: &Path) -> Result<(), BlockError> {
        match self {
            // So much that the table moves.
            Self::Grow => device.resize(SIZE << 14, Permit::default()).await,
            Self::Shrink => device.resize(SIZE - 3 * MIB, Permit::default()).await,
            Self::Snapshot => device.snapshot(&folder.join("leaf.avhdx"), Box::new(|| Ok(()))).await,
            Self::Compact => device.compact(Arc::new(Compaction::new(u64::MAX))).await,
        }
    }
}

/// Contents of the disk: blocks by number, and their bytes.
const FLUSHED: [(u64, u8); 4] = [(0, 1), (3, 2), (8, 3), (11, 4)];

async fn holds(device: &VhdxDevice, what: &str) {
    for (block, expected) in FLUSHED {
        if (block + 1) * MIB > device.geometry().size {
            continue;
        }
        let begun = Instant::now();
        let found = loop {
            match byte(device, block * MIB).await {
                Ok(found) => break found,
                Err(BlockError::Medium { .. }) if begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{what}: block {block}: {error}"),
            }
        };
        assert_eq!(found, expected, "{what}: block {block}");
    }
}

/// One change during which the storage fails at step `first` and those behind it, up to `last`: how many steps there
/// were.
async fn fails(live: Live, first: u64, last: u64, kind: io::ErrorKind) -> u64 {
    let what = format!("{live:?}, steps {first} to {last}, {kind}");
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path());
    let device = VhdxDevice::open(&path, false).unwrap();
    for (block, value) in [(1, 9), (2, 9)].into_iter().chain(FLUSHED) {
        write(&device, block * MIB, value).await.unwrap();
    }
    device.unmap(MIB, 2 * MIB).await.unwrap();
    device.flush().await.unwrap();
    // Accepted, and not flushed: it takes one of the two holes, and the last block of the file may move into the other.
    write(&device, 4 * MIB, 5).await.unwrap();
    let faults = faults(&device);
    faults.set(Some((first..=last, kind)));
    let done = live.make(&device, folder.path()).await;
    let steps = faults.count();
    if last > first && steps >= first {
        // The host is still out of order: an error, and not another disk.
        let read = byte(&device, 0).await;
        assert!(
            matches!(read, Ok(1) | Err(_)) && !matches!(read, Err(BlockError::Gone { .. })),
            "{what}: {read:?}"
        );
    }
    faults.set(None);
    holds(&device, &what).await;
    assert_eq!(byte(&device, 4 * MIB).await, Ok(5), "{what}");
    // The disk works, or says why it does not.
    let mut written = write(&device, 5 * MIB, 6).await;
    if written.is_ok() {
        written = device.flush().await;
    }
    if let Err(error) = &written {
        assert!(error.to_string().contains("open it again"), "{what}: {error}");
        assert!(done.is_err(), "{what}");
    }
    let current =
        if live == Live::Snapshot && done.is_ok() { folder.path().join("leaf.avhdx") } else { path };
    let closed = device.close(CLOSE_TIME).await;
    assert_eq!(closed.is_ok(), written.is_ok(), "{what}: {closed:?}");
    let device = VhdxDevice::open(&current, false).unwrap_or_else(|error| panic!("{what}: {error}"));
    holds(&device, &what).await;
    if written.is_ok() {
        assert_eq!((byte(&device, 4 * MIB).await, byte(&device, 5 * MIB).await), (Ok(5), Ok(6)), "{what}");
    }
    device.close(CLOSE_TIME).await.unwrap();
    steps
}

async fn fails_everywhere(live: Live) {
    let all = fails(live, u64::MAX, u64::MAX, io::ErrorKind::Other).await;
    assert!(all > 10, "{all}");
    for first in 1..=all {
        let kind = if first % 2 == 0 { io::ErrorKind::Other } else { io::ErrorKind::StorageFull };
        fails(live, first, first, kind).await;
        fails(live, first, u64::MAX, io::ErrorKind::StorageFull).await;
    }
}

#[tokio::test]
async fn a_growth_that_fails_at_any_step_leaves_a_disk_that_works() {
    fails_everywhere(Live::Grow).await;
}

#[tokio::test]
async fn a_shrink_that_fails_at_any_step_leaves_a_disk_that_works() {
    fails_everywhere(Live::Shrink).await;
}

#[tokio::test]
async fn a_snapshot_that_fails_at_any_step_leaves_a_disk_that_works() {
    fails_everywhere(Live::Snapshot).await;
}

#[tokio::test]
async fn a_compaction_that_fails_at_any_step_leaves_a_disk_that_works() {
    fails_everywhere(Live::Compact).await;
}
