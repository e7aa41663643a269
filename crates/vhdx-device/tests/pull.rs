//! A disk that is used while what it lacks comes from its parent: beside writers, with a parent that is gone or damaged
//! for a time, with an end in the middle.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use lunway_block::decorate::Deadline;
use lunway_block::{
    BlockDevice, BlockError, Buf, Compaction, Durability, Geometry, Io, Permit, SharedBuf, Zeroing,
};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, Locator, create};
use lunway_vhdx_device::{PullParent, PullSource, VhdxDevice, random_guids};

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 24;
const SIZE: u64 = BLOCKS * MIB + 4096;
const CLOSE_TIME: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);

/// What a parent does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Answers,
    Fails,
    Hangs,
}

/// A disk in memory, of which every third block has nothing; it gives as many blocks as it may.
struct Parent {
    bytes: Vec<u8>,
    mode: Mutex<Mode>,
    changed: Condvar,
    /// Blocks that the source may still give.
    budget: AtomicU64,
    damaged: Option<u64>,
    released: AtomicBool,
}

impl Parent {
    fn new(budget: u64, damaged: Option<u64>) -> Arc<Self> {
        let byte = |at: u64| if (at / MIB) % 3 == 2 { 0 } else { 1 + (at / 512 % 250) as u8 };
        Arc::new(Self {
            bytes: (0..SIZE).map(byte).collect(),
            mode: Mutex::new(Mode::Answers),
            changed: Condvar::new(),
            budget: AtomicU64::new(budget),
            damaged,
            released: AtomicBool::new(false),
        })
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        self.changed.notify_all();
    }

    /// Waits while it hangs.
    fn answer(&self) -> Result<(), BlockError> {
        let mode = self.changed.wait_while(self.mode.lock().unwrap(), |mode| *mode == Mode::Hangs).unwrap();
        match *mode {
            Mode::Fails => Err(BlockError::gone("the share is gone")),
            Mode::Answers | Mode::Hangs => Ok(()),
        }
    }
}

struct Source(Arc<Parent>);

impl PullSource for Source {
    fn next_data(&self, offset: u64) -> Result<Option<u64>, BlockError> {
        self.0.answer()?;
        Ok((offset..SIZE).step_by(512).find(|at| self.0.bytes[*at as usize] != 0))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, BlockError> {
        while self.0.budget.load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.answer()?;
        if self.0.damaged == Some(offset / MIB) {
            return Err(BlockError::Medium { offset });
        }
        self.0.budget.fetch_sub(1, Ordering::AcqRel);
        buf.copy_from_slice(&self.0.bytes[offset as usize..][..buf.len()]);
        Ok(buf.iter().any(|byte| *byte != 0))
    }
}

struct Device(Arc<Parent>);

impl BlockDevice for Device {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..Geometry::plain(SIZE) }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        let mode = *self.0.mode.lock().unwrap();
        match mode {
            Mode::Answers => {
                let len = buf.len();
                buf.copy_from_slice(&self.0.bytes[offset as usize..][..len]);
                Io::ok(buf)
            }
            Mode::Fails => Io::err(BlockError::gone("the share is gone")),
            Mode::Hangs => Io::pending(std::future::pending()),
        }
    }

    fn write(&self, _: u64, _: SharedBuf, _: Durability) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::ReadOnly)
    }
}

fn make(folder: &Path) -> PathBuf {
    let path = folder.join("disk.vhdx");
    let mut options = CreateOptions::new(DiskKind::Differencing, SIZE, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    options.parameters.locator = Some(Locator::new(Guid::from_digits(7), "./point.vhdx", None));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
    path
}

fn open(path: &Path, parent: &Arc<Parent>) -> VhdxDevice {
    let released = Arc::clone(parent);
    let device = Arc::new(Device(Arc::clone(parent)));
    let parent = PullParent {
        device: Arc::new(Deadline::new(device, Duration::from_millis(200))),
        source: Arc::new(Source(Arc::clone(parent))),
        release: Box::new(move || released.released.store(true, Ordering::Release)),
    };
    VhdxDevice::open_pulled(path, parent, false).unwrap_or_else(|error| panic!("{error}"))
}

fn until(it_is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !it_is_so() {
        assert!(begun.elapsed() < PATIENCE, "too late");
        std::thread::sleep(Duration::from_millis(2));
    }
}

async fn write(device: &VhdxDevice, model: &mut [u8], at: u64, len: usize, byte: u8) {
    device.write(at, Buf::copy_of(&vec![byte; len]).freeze(), Durability::Stable).await.unwrap();
    model[at as usize..][..len].fill(byte);
}

async fn assert_same(device: &VhdxDevice, model: &[u8]) {
    let read = device.read(0, Buf::for_overwrite(SIZE as usize)).await.unwrap();
    let wrong = read.iter().zip(model).position(|(one, other)| one != other);
    assert_eq!(wrong, None);
}

/// Of a file that is not open: that it shows the model without any parent.
async fn assert_alone(path: &Path, model: &[u8]) {
    let file = lunway_vhdx::open_file(path, false).unwrap();
    assert_eq!(lunway_vhdx::check::check(&file).findings, []);
    drop(file);
    let device = VhdxDevice::open(path, true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(device.levels(), Some(1));
    assert_same(&device, model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_used_at_once_and_stands_alone_when_all_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (path, parent) = (make(folder.path()), Parent::new(0, None));
    let mut model = parent.bytes.clone();
    let device = open(&path, &parent);
    assert_same(&device, &model).await;
    write(&device, &mut model, 512, 1024, 251).await;
    write(&device, &mut model, 2 * MIB + 4096, 512, 252).await;
    write(&device, &mut model, 3 * MIB, 1 << 20, 253).await;
    device.write_zeroes(4 * MIB, 2 * MIB, Zeroing::MayUnmap).await.unwrap();
    model[4 << 20..6 << 20].fill(0);
    assert_same(&device, &model).await;
    until(|| device.pull().unwrap().left > 0);
    // 17 blocks have data, and one of those was written, and one discarded.
    let left = device.pull().unwrap().left / MIB;
    assert!((14..=17).contains(&left), "{left}");
    // Nothing that needs the file alone.
    assert!(matches!(device.resize(2 * SIZE, Permit::default()).await, Err(BlockError::Size { .. })));
    let snapshot = device.snapshot(&folder.path().join("leaf.vhdx"), Box::new(|| Ok(()))).await;
    assert!(matches!(snapshot, Err(BlockError::Snapshot { .. })));
    let compact = device.compact(Arc::new(Compaction::new(1 << 30))).await;
    assert!(matches!(compact, Err(BlockError::Compaction { .. })));
    parent.budget.store(5, Ordering::Release);
    until(|| device.pull().unwrap().copied >= 5 * MIB);
    assert!(!parent.released.load(Ordering::Acquire));
    assert_same(&device, &model).await;
    parent.budget.store(1000, Ordering::Release);
    until(|| parent.released.load(Ordering::Acquire));
    assert_eq!(device.pull(), None);
    // The parent is gone for good, and the disk is one as any other.
    parent.set(Mode::Hangs);
    assert_same(&device, &model).await;
    write(&device, &mut model, 5 * MIB, 4096, 254).await;
    device.compact(Arc::new(Compaction::new(1 << 30))).await.unwrap();
    device.resize(SIZE + MIB, Permit::default()).await.unwrap();
    device.resize(SIZE, Permit::default()).await.unwrap();
    device.close(CLOSE_TIME).await.unwrap();
    assert_alone(&path, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_beside_the_copy_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (path, parent) = (make(folder.path()), Parent::new(1000, None));
    let mut model = parent.bytes.clone();
    let device = Arc::new(open(&path, &parent));
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let (device, parent) = (Arc::clone(&device), Arc::clone(&parent));
            tokio::spawn(async move {
                let (mut last, mut random) = (BTreeMap::new(), writer << 32 | 99_991);
                for number in 0_u64.. {
                    // xorshift64, of which any sequence will do.
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let sector = random % (SIZE / 512 / 4) * 4 + writer;
                    let byte = (number % 7) as u8 * 30;
                    let data = Buf::copy_of(&[byte; 512]).freeze();
                    match byte {
                        0 => device.write_zeroes(sector * 512, 512, Zeroing::MayUnmap).await.unwrap(),
                        _ => device.write(sector * 512, data, Durability::Volatile).await.unwrap(),
                    }
                    last.insert(sector, byte);
                    if number % 16 == 0 {
                        let read = device.read(sector * 512, Buf::for_overwrite(512)).await.unwrap();
                        assert_eq!(read[..], [byte; 512]);
                    }
                    if number > 50 && parent.released.load(Ordering::Acquire) {
                        break;
                    }
                }
                last
            })
        })
        .collect();
    for writer in writers {
        for (sector, byte) in writer.await.unwrap() {
            model[(sector * 512) as usize..][..512].fill(byte);
        }
    }
    assert_same(&device, &model).await;
    device.close(CLOSE_TIME).await.unwrap();
    assert_alone(&path, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_parent_that_is_gone_only_reads_of_what_is_not_there_fail() {
    let folder = tempfile::tempdir().unwrap();
    let (path, parent) = (make(folder.path()), Parent::new(3, None));
    let mut model = parent.bytes.clone();
    let device = Arc::new(open(&path, &parent));
    until(|| device.pull().unwrap().copied == 3 * MIB);
    for mode in [Mode::Hangs, Mode::Fails] {
        parent.set(mode);
        parent.budget.store(1000, Ordering::Release);
        let begun = Instant::now();
        // Many at once: none waits for another one.
        let read = |sector: u64| {
            let device = Arc::clone(&device);
            tokio::spawn(async move { device.read(20 * MIB + sector * 512, Buf::for_overwrite(512)).await })
        };
        let reads: Vec<_> = (0..64).map(read).collect();
        write(&device, &mut model, 20 * MIB + 65_536, 4096, 251).await;
        write(&device, &mut model, 22 * MIB, 4096, 252).await;
        let read = device.read(20 * MIB + 65_536, Buf::for_overwrite(4096)).await.unwrap();
        assert_eq!(read[..], [251; 4096]);
        device.read(0, Buf::for_overwrite(4096)).await.unwrap();
        device.flush().await.unwrap();
        for read in reads {
            let error = read.await.unwrap().unwrap_err();
            let is_it = matches!(&error, BlockError::Timeout { .. } | BlockError::Gone { .. });
            assert!(is_it, "{mode:?}: {error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    until(|| device.pull().unwrap().error.is_some());
    assert!(!parent.released.load(Ordering::Acquire));
    // An end in the middle, and with a parent that hangs, takes no time; the next one goes on.
    parent.set(Mode::Hangs);
    device.close(CLOSE_TIME).await.unwrap();
    drop(device);
    parent.set(Mode::Answers);
    parent.budget.store(1000, Ordering::Release);
    let device = open(&path, &parent);
    until(|| parent.released.load(Ordering::Acquire));
    assert_same(&device, &model).await;
    device.close(CLOSE_TIME).await.unwrap();
    assert_alone(&path, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_is_told_and_not_copied_and_the_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let (path, parent) = (make(folder.path()), Parent::new(1000, Some(6)));
    let mut model = parent.bytes.clone();
    let device = open(&path, &parent);
    until(|| device.pull().unwrap().error.is_some());
    // All but that one: 16 of blocks 0, 1, 3, 4 … and the last one.
    assert_eq!(device.pull().unwrap().copied, 16 * MIB);
    write(&device, &mut model, 6 * MIB, 4096, 9).await;
    std::thread::sleep(Duration::from_secs(3));
    assert!(device.pull().unwrap().error.is_some() && !parent.released.load(Ordering::Acquire));
    // Its user writes it, and nothing is lacking any more.
    write(&device, &mut model, 6 * MIB, 1 << 20, 10).await;
    until(|| parent.released.load(Ordering::Acquire));
    device.close(CLOSE_TIME).await.unwrap();
    assert_alone(&path, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_whose_name_leads_elsewhere_is_used_on_and_stands_alone_when_the_name_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, parent) = (make(folder.path()), Parent::new(3, None));
    let moved = folder.path().join("moved.vhdx");
    let mut model = parent.bytes.clone();
    let device = open(&path, &parent);
    until(|| device.pull().unwrap().copied == 3 * MIB);
    std::fs::rename(&path, &moved).unwrap();
    parent.budget.store(1000, Ordering::Release);
    let is_put_off = |why: &str| {
        until(|| device.pull().unwrap().error.is_some_and(|error| error.contains(why)));
        assert!(!parent.released.load(Ordering::Acquire));
    };
    is_put_off("is gone, which the file that is served had");
    write(&device, &mut model, 5 * MIB, 4096, 251).await;
    assert_same(&device, &model).await;
    // A copy has all that identifies it but its inode.
    std::fs::copy(&moved, &path).unwrap();
    is_put_off("leads to another file than the one that is served");
    write(&device, &mut model, 8 * MIB, 4096, 252).await;
    device.flush().await.unwrap();
    assert_same(&device, &model).await;
    std::fs::rename(&moved, &path).unwrap();
    until(|| parent.released.load(Ordering::Acquire));
    assert!(device.pull().is_none());
    assert_same(&device, &model).await;
    device.close(CLOSE_TIME).await.unwrap();
    assert_alone(&path, &model).await;
}
