//! Snapshots against copies of the whole disk, made at the same instant; holds that nobody ends; areas that fail.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use lunway_block::decorate::{Delay, Fault};
use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Extent, ExtentKind, Io, Owner, Permit, SharedBuf, Space,
    Zeroing,
};
use lunway_file::Workers;
use lunway_memory::RamDisk;
use lunway_snapshot::{COPY_TIME, Fleece, GRAIN, HoldError, SnapshotDevice, SnapshotLayer};

/// Not a multiple of a grain: the last one is shorter.
const SIZE: u64 = 64 * GRAIN + 4096;
const SECTOR: u64 = 512;
/// Longer than any hold of these tests takes.
const LONG: Duration = Duration::from_secs(60);

fn ram(size: u64) -> Arc<RamDisk> {
    Arc::new(RamDisk::new(size, 512).unwrap())
}

fn filled(byte: u8, length: u64) -> SharedBuf {
    Buf::copy_of(&vec![byte; length as usize]).freeze()
}

async fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let size = device.geometry().size as usize;
    device.read(0, Buf::for_overwrite(size)).await.unwrap().to_vec()
}

/// A snapshot, and the disk's content at that instant, read while changes are held.
async fn snapshot(layer: &SnapshotLayer, area: Arc<dyn BlockDevice>) -> (Arc<Fleece>, Vec<u8>) {
    let hold = layer.hold(LONG).unwrap();
    hold.at_rest().await.unwrap();
    let now = content(layer).await;
    let fleece = hold.fleece(area).unwrap();
    hold.begin(&fleece).unwrap();
    (fleece, now)
}

/// xorshift64: any sequence will do.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn range(&mut self) -> (u64, u64) {
        let sectors = SIZE / SECTOR;
        let length = if self.below(4) == 0 { 1 + self.below(900) } else { 1 + self.below(16) };
        let start = self.below(sectors);
        (start * SECTOR, length.min(sectors - start) * SECTOR)
    }
}

/// Changes a device at random until it is told to stop.
async fn disturb(device: Arc<SnapshotLayer>, seed: u64, stop: Arc<AtomicBool>) -> u64 {
    let (mut random, mut changes) = (Random(seed), 0);
    while !stop.load(SeqCst) {
        let (offset, length) = random.range();
        let done = match random.below(8) {
            0 => device.unmap(offset, length).await,
            1 => device.write_zeroes(offset, length, Zeroing::MayUnmap).await,
            _ => device.write(offset, filled(changes as u8 | 1, length), Durability::Volatile).await,
        };
        done.unwrap();
        changes += 1;
        tokio::task::yield_now().await;
    }
    changes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_is_what_the_disk_was_whatever_is_written_meanwhile() {
    for delayed in [false, true] {
        let disk: Arc<dyn BlockDevice> = match delayed {
            false => ram(SIZE),
            true => Arc::new(Delay::new(ram(SIZE), Duration::from_micros(200))),
        };
        let layer = Arc::new(SnapshotLayer::new(disk));
        let stop = Arc::<AtomicBool>::default();
        let writers: Vec<_> = (1..5)
            .map(|seed| tokio::spawn(disturb(Arc::clone(&layer), seed * 77, Arc::clone(&stop))))
            .collect();
        let mut random = Random(9);
        // Three at a time, made one after another.
        let mut kept = Vec::new();
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(3)).await;
            kept.push(snapshot(&layer, ram(SIZE + GRAIN)).await);
            for (fleece, then) in &kept {
                let view = SnapshotDevice::new(Arc::clone(fleece));
                assert!(view.geometry().read_only);
                for _ in 0..20 {
                    let (offset, length) = random.range();
                    let read = view.read(offset, Buf::for_overwrite(length as usize)).await.unwrap();
                    assert!(read[..] == then[offset as usize..][..length as usize], "{length} at {offset}");
                }
                assert!(content(&view).await == *then);
                for extent in view.extents(0, SIZE, usize::MAX).await.unwrap() {
                    let bytes = &then[extent.offset as usize..extent.end() as usize];
                    assert!(extent.kind == ExtentKind::Data || bytes.iter().all(|byte| *byte == 0));
                }
            }
            if kept.len() == 3 {
                kept.remove(0).0.end("deleted");
            }
        }
        stop.store(true, SeqCst);
        for writer in writers {
            assert!(writer.await.unwrap() > 50);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_disks_that_are_held_together_have_one_instant() {
    let disks = [(); 2].map(|()| Arc::new(SnapshotLayer::new(ram(SIZE))));
    let stop = Arc::<AtomicBool>::default();
    // The same number to one disk, then to the other: at any instant they differ by one at most.
    let (both, until) = (disks.clone(), Arc::clone(&stop));
    let writer = tokio::spawn(async move {
        let mut number = 0_u64;
        while !until.load(SeqCst) {
            number += 1;
            for disk in &both {
                let data = Buf::copy_of(&number.to_le_bytes().repeat(64)).freeze();
                disk.write(0, data, Durability::Volatile).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..200 {
        let holds = disks.each_ref().map(|disk| disk.hold(LONG).unwrap());
        let mut views = Vec::new();
        for hold in &holds {
            hold.at_rest().await.unwrap();
        }
        for hold in &holds {
            let fleece = hold.fleece(ram(GRAIN * 4)).unwrap();
            hold.begin(&fleece).unwrap();
            views.push(fleece);
        }
        drop(holds);
        tokio::time::sleep(Duration::from_micros(300)).await;
        let mut numbers = Vec::new();
        for fleece in views {
            let read =
                SnapshotDevice::new(Arc::clone(&fleece)).read(0, Buf::for_overwrite(512)).await.unwrap();
            numbers.push(u64::from_le_bytes(read[..8].try_into().unwrap()));
            fleece.end("deleted");
        }
        assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
    }
    stop.store(true, SeqCst);
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_its_owner_forgets_ends_by_itself() {
    let layer = Arc::new(SnapshotLayer::new(ram(SIZE)));
    let hold = layer.hold(Duration::from_millis(100)).unwrap();
    hold.at_rest().await.unwrap();
    assert_eq!(layer.hold(LONG).err(), Some(HoldError::Busy));
    let began = Instant::now();
    // Reads and flushes are not held.
    layer.flush().await.unwrap();
    content(&*layer).await;
    layer.write(0, filled(1, 512), Durability::Volatile).await.unwrap();
    assert!(began.elapsed() > Duration::from_millis(50) && began.elapsed() < LONG / 2);
    let fleece = hold.fleece(ram(GRAIN)).unwrap();
    assert_eq!(hold.begin(&fleece), Err(HoldError::Late(Duration::from_millis(100))));
    assert_eq!(
        hold.during(std::future::pending::<()>()).await,
        Err(HoldError::Late(Duration::from_millis(100)))
    );
    drop(hold);
    layer.hold(LONG).unwrap().at_rest().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_does_not_end_makes_the_hold_late_and_later_changes_go_on() {
    let slow = Arc::new(Delay::new(ram(SIZE), Duration::from_millis(400)));
    let layer = Arc::new(SnapshotLayer::new(slow));
    let pending = layer.write(0, filled(1, 512), Durability::Volatile);
    let hold = layer.hold(Duration::from_millis(50)).unwrap();
    assert!(matches!(hold.at_rest().await, Err(HoldError::Late(_))));
    drop(hold);
    pending.await.unwrap();
    let hold = layer.hold(LONG).unwrap();
    hold.at_rest().await.unwrap();
}

/// Writes to a disk with this area until its snapshot has ended, and returns why, and the longest write.
async fn broken_by(area: Arc<dyn BlockDevice>) -> (String, Duration) {
    let layer = Arc::new(SnapshotLayer::new(ram(SIZE)));
    layer.write(0, filled(9, SIZE), Durability::Volatile).await.unwrap();
    let (fleece, _) = snapshot(&layer, area).await;
    let view = SnapshotDevice::new(Arc::clone(&fleece));
    let mut longest = Duration::ZERO;
    for grain in 0..SIZE / GRAIN {
        let began = Instant::now();
        layer.write(grain * GRAIN, filled(1, 4096), Durability::Volatile).await.unwrap();
        longest = longest.max(began.elapsed());
    }
    let why = fleece.usage().ended.unwrap();
    let refused = view.read(0, Buf::for_overwrite(512)).await;
    assert!(
        matches!(&refused, Err(BlockError::Gone { why: said, .. }) if said.contains(&why)),
        "{refused:?}"
    );
    assert!(view.extents(0, 512, usize::MAX).await.is_err());
    (why, longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_area_that_is_full_or_fails_breaks_the_snapshot_and_no_write() {
    let (why, _) = broken_by(ram(8 * GRAIN)).await;
    assert!(why.contains("is full"), "{why}");
    let (why, _) = broken_by(Arc::new(Fault::new(ram(SIZE), "write@64K-".parse().unwrap()))).await;
    assert!(why.contains("failed"), "{why}");
}

/// An area on a file system that is nearly full.
struct Nearly(Arc<RamDisk>);

impl lunway_block::Layer for Nearly {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn space(&self) -> Option<Space> {
        Some(Space { allocated: 0, used: 99 << 20, available: 1 << 20 })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_is_nearly_full_is_left_to_others() {
    let (why, _) = broken_by(Arc::new(Nearly(ram(SIZE)))).await;
    assert!(why.contains("has only 1 MiB left"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_area_that_hangs_delays_one_write_and_then_none() {
    let (why, longest) = broken_by(Arc::new(Delay::new(ram(SIZE), LONG))).await;
    assert!(why.contains("had to wait for a copy"), "{why}");
    assert!(longest >= COPY_TIME && longest < COPY_TIME + Duration::from_secs(2), "{longest:?}");
}

#[tokio::test]
async fn an_unmapped_disk_costs_its_data_and_no_more() {
    let layer = SnapshotLayer::new(ram(1 << 40));
    layer.write(5 * GRAIN, filled(3, GRAIN), Durability::Volatile).await.unwrap();
    let hold = layer.hold(LONG).unwrap();
    let fleece = hold.fleece(ram(GRAIN)).unwrap();
    hold.begin(&fleece).unwrap();
    drop(hold);
    layer.unmap(0, 1 << 40).await.unwrap();
    let usage = fleece.usage();
    assert_eq!((usage.used, usage.ended), (GRAIN, None));
    let view = SnapshotDevice::new(fleece);
    let read = view.read(5 * GRAIN, Buf::for_overwrite(512)).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 3));
}

#[tokio::test]
async fn a_disk_that_has_a_snapshot_is_not_made_smaller() {
    let layer = SnapshotLayer::new(ram(SIZE));
    let (fleece, _) = snapshot(&layer, ram(SIZE)).await;
    layer.resize(SIZE * 2, Permit::default()).await.unwrap();
    assert_eq!(fleece.usage().ended, None);
    assert_eq!(SnapshotDevice::new(Arc::clone(&fleece)).geometry().size, SIZE);
    let refused = layer.resize(GRAIN, Permit::default()).await.unwrap_err();
    assert!(matches!(&refused, BlockError::Size { why } if why.contains("has a snapshot")), "{refused}");
    assert_eq!((fleece.usage().ended, layer.geometry().size), (None, SIZE * 2));
    fleece.end("it was deleted");
    layer.resize(GRAIN, Permit::default()).await.unwrap();
    assert_eq!(layer.geometry().size, GRAIN);
}

/// A disk that others have taken away while it was read.
struct Lost(Arc<RamDisk>);

impl lunway_block::Layer for Lost {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::Medium { offset: 0 })
    }
}

#[tokio::test]
async fn what_was_read_of_a_snapshot_is_confirmed_by_the_disk_and_by_the_area() {
    let lost = Err(BlockError::Medium { offset: 0 });
    let disk =
        |is_lost| -> Arc<dyn BlockDevice> { if is_lost { Arc::new(Lost(ram(SIZE))) } else { ram(SIZE) } };
    for (is_lost, is_area_lost) in [(false, false), (true, false), (false, true)] {
        let expected = if is_lost || is_area_lost { lost.clone() } else { Ok(()) };
        let (fleece, _) = snapshot(&SnapshotLayer::new(disk(is_lost)), disk(is_area_lost)).await;
        let view = SnapshotDevice::new(Arc::clone(&fleece));
        assert_eq!(view.confirm().await, expected);
        fleece.end("it was deleted");
        assert!(matches!(view.confirm().await, Err(BlockError::Gone { .. })));
    }
}

/// A disk of which every other grain is a hole, and the pieces that it has told.
struct Fragmented(Arc<RamDisk>, AtomicUsize);

impl lunway_block::Layer for Fragmented {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let end = offset + len;
        let piece = |grain: u64| {
            let kind = if grain.is_multiple_of(2) { ExtentKind::Data } else { ExtentKind::Unallocated };
            let from = offset.max(grain * GRAIN);
            Extent { offset: from, len: end.min((grain + 1) * GRAIN) - from, kind }
        };
        let list: Vec<_> = (offset / GRAIN..end.div_ceil(GRAIN)).take(count).map(piece).collect();
        self.1.fetch_add(list.len(), SeqCst);
        Io::ok(list)
    }
}

/// Each block status of one piece took a walk over the whole map of a fragmented disk.
#[tokio::test]
async fn a_disk_is_asked_for_as_many_pieces_as_its_snapshot_is() {
    let disk = Arc::new(Fragmented(ram(SIZE), AtomicUsize::new(0)));
    let layer = SnapshotLayer::new(Arc::clone(&disk) as Arc<dyn BlockDevice>);
    let (fleece, _) = snapshot(&layer, ram(SIZE)).await;
    let view = SnapshotDevice::new(fleece);
    // Kept, so that three pieces become one there.
    for grain in [9, 30, 31] {
        layer.write(grain * GRAIN, filled(1, 4096), Durability::Volatile).await.unwrap();
    }
    let all = view.extents(0, SIZE, usize::MAX).await.unwrap();
    assert_eq!(all.len(), 65 - 4, "{all:?}");
    disk.1.store(0, SeqCst);
    let (mut at, mut pieces) = (0, Vec::new());
    while at < SIZE {
        let first = view.extents(at, SIZE - at, 1).await.unwrap();
        assert!(first.len() <= 3, "{first:?}");
        first[0].push_onto(&mut pieces);
        at = first[0].end();
    }
    assert_eq!(pieces, all);
    let told = disk.1.load(SeqCst);
    assert!(told <= 2 * 65, "{told} pieces were told for {}", all.len());
    for count in 1..=all.len() {
        let first = view.extents(0, SIZE, count).await.unwrap();
        assert!(first.len() >= count && first[..count - 1] == all[..count - 1], "{count}: {first:?}");
    }
}

/// A disk whose reads are made by the threads of a file, when they are not held.
struct OnThreads {
    disk: Arc<RamDisk>,
    workers: Workers,
    held: Arc<RwLock<()>>,
}

impl lunway_block::Layer for OnThreads {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.disk
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let (disk, held) = (Arc::clone(&self.disk), Arc::clone(&self.held));
        let runtime = tokio::runtime::Handle::current();
        self.workers.reads.io(move || {
            drop(held.read().unwrap());
            runtime.block_on(async { disk.read(offset, buf).await })
        })
    }
}

/// Lost was: a snapshot of a LUN ended for everybody when one host disconnected in the middle of a large write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_in_the_middle_of_a_write_takes_no_snapshot_with_it() {
    const LENGTH: u64 = 4 << 20;
    let held = Arc::<RwLock<()>>::default();
    let disk = OnThreads { disk: ram(LENGTH), workers: Workers::new(), held: Arc::clone(&held) };
    let layer = SnapshotLayer::new(Arc::new(disk));
    layer.write(0, filled(9, LENGTH), Durability::Volatile).await.unwrap();
    let (fleece, _) = snapshot(&layer, ram(LENGTH)).await;
    let session = Owner::new();
    let mut write = {
        let holding = held.write().unwrap();
        let mut write = Box::pin({
            let _entered = session.enter();
            layer.write(0, filled(1, LENGTH), Durability::Volatile).into_future()
        });
        {
            let _entered = session.enter();
            let polled = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "the first copy is held");
        }
        session.leave();
        drop(holding);
        write
    };
    poll_fn(|context| {
        let _entered = session.enter();
        write.as_mut().poll(context)
    })
    .await
    .unwrap();
    assert_eq!(fleece.usage().ended, None);
    assert!(content(&SnapshotDevice::new(fleece)).await.iter().all(|byte| *byte == 9));
    assert!(content(&layer).await.iter().all(|byte| *byte == 1));
}

/// A disk that is busy for so many reads and writes.
struct BusyDisk(Arc<RamDisk>, AtomicU32);

impl BusyDisk {
    fn is_busy(&self) -> bool {
        self.1.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl lunway_block::Layer for BusyDisk {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        if self.is_busy() { Io::err(BlockError::Busy) } else { self.0.read(offset, buf) }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        if self.is_busy() { Io::err(BlockError::Busy) } else { self.0.write(offset, data, durability) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_and_an_area_that_are_busy_for_a_moment_are_asked_again_and_for_ever_end_the_snapshot() {
    let disk = ram(SIZE);
    disk.write(0, filled(9, SIZE), Durability::Volatile).await.unwrap();
    let origin = Arc::new(BusyDisk(disk, AtomicU32::new(0)));
    let layer = SnapshotLayer::new(Arc::clone(&origin) as Arc<dyn BlockDevice>);
    let (fleece, _) = snapshot(&layer, Arc::new(BusyDisk(ram(SIZE), AtomicU32::new(3)))).await;
    origin.1.store(3, SeqCst);
    layer.write(0, filled(1, 4096), Durability::Volatile).await.unwrap();
    assert_eq!(fleece.usage().ended, None);
    let old = SnapshotDevice::new(fleece).read(0, Buf::for_overwrite(512)).await.unwrap();
    assert!(old.iter().all(|byte| *byte == 9));

    let (why, _) = broken_by(Arc::new(BusyDisk(ram(SIZE), AtomicU32::new(u32::MAX)))).await;
    assert!(why.contains("had to wait for a copy"), "{why}");
}
