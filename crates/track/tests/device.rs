//! The layer around a device: operations on many threads while epochs are closed, and starts after each kind of end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use lunway_block::{BlockDevice, Buf, Durability, Io, Permit, SharedBuf, Zeroing};
use lunway_memory::RamDisk;
use lunway_track::{Backing, Changes, EpochId, GRAIN, Identify, Tracked, Tuning};

const SIZE: u64 = 1 << 30;
const REGION: u64 = 4 << 20;

fn ram() -> Arc<dyn BlockDevice> {
    Arc::new(RamDisk::new(SIZE, 512).unwrap())
}

fn tracked(inner: &Arc<dyn BlockDevice>, path: &Path, mtime: &Arc<AtomicU64>, tuning: Tuning) -> Tracked {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let mtime = Arc::clone(mtime);
    let identify: Identify =
        Arc::new(move |_| Backing { lasting: vec![1], exact: mtime.load(SeqCst).to_le_bytes().to_vec() });
    let backing = identify(None);
    Tracked::open(Arc::clone(inner), Box::new(file), &backing, identify, tuning).unwrap()
}

fn block(byte: u8) -> SharedBuf {
    Buf::copy_of(&[byte; 4096]).freeze()
}

fn grains(changes: &Changes) -> BTreeSet<u64> {
    let Changes::Known { ranges, .. } = changes else { panic!("{changes:?}") };
    ranges
        .iter()
        .flat_map(|range| range.offset / GRAIN..(range.offset + range.length).div_ceil(GRAIN))
        .collect()
}

/// A device whose flushes are counted, and fail from one on.
struct Flushes {
    disk: Arc<dyn BlockDevice>,
    done: AtomicU64,
    most: u64,
}

impl lunway_block::Layer for Flushes {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.disk
    }

    fn flush(&self) -> Io<Result<(), lunway_block::BlockError>> {
        if self.done.load(SeqCst) == self.most {
            return Io::err(lunway_block::BlockError::NoSpace);
        }
        self.done.fetch_add(1, SeqCst);
        self.disk.flush()
    }
}

/// Missing was: a block in the changes after an epoch. Its write was in the epoch before, and in the backup, and then a
/// kill took it back, as nothing had been flushed.
#[tokio::test]
async fn what_is_written_before_an_epoch_closes_is_flushed_before_its_name_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let flushes = Arc::new(Flushes { disk: ram(), done: AtomicU64::new(0), most: 1 });
    let inner: Arc<dyn BlockDevice> = flushes.clone();
    let device = tracked(&inner, &folder.path().join("track"), &Arc::default(), Tuning::default());
    device.write(0, block(1), Durability::Volatile).await.unwrap();
    let tracking = device.tracking();
    tracking.close_epoch(EpochId([1; 16])).await.unwrap();
    assert_eq!(flushes.done.load(SeqCst), 1);
    device.write(REGION, block(1), Durability::Volatile).await.unwrap();
    let refused = tracking.close_epoch(EpochId([2; 16])).await.unwrap_err().to_string();
    assert!(refused.contains("no epoch is closed"), "{refused}");
    assert_eq!(tracking.epochs().await.0.len(), 1, "what failed is not kept");
    let changes = tracking.changes(EpochId([1; 16]), None, 0..SIZE, usize::MAX).await;
    assert_eq!(grains(&changes), [REGION / GRAIN].into(), "and its changes belong to the next one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_write_of_many_threads_is_in_the_epochs_of_its_time() {
    let folder = tempfile::tempdir().unwrap();
    // So few that regions are made cold all the time.
    let tuning = Tuning { hot_max: 4, ahead: 2, log: 64 << 10 };
    let device = Arc::new(tracked(&ram(), &folder.path().join("track"), &Arc::default(), tuning));
    let tracking = device.tracking();
    tracking.close_epoch(EpochId([1; 16])).await.unwrap();
    let writers: Vec<_> = (0..8_u64)
        .map(|writer| {
            let device = Arc::clone(&device);
            tokio::spawn(async move {
                let mut mine = BTreeSet::new();
                for number in 0..300_u64 {
                    let grain = (writer * 7919 + number * number * 31) % (SIZE / GRAIN);
                    mine.insert(grain);
                    match number % 5 {
                        0 => device.write_zeroes(grain * GRAIN, GRAIN, Zeroing::MayUnmap).await.unwrap(),
                        1 => device.unmap(grain * GRAIN, GRAIN).await.unwrap(),
                        _ => device.write(grain * GRAIN, block(1), Durability::Volatile).await.unwrap(),
                    }
                }
                mine
            })
        })
        .collect();
    for number in 2..10 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        tracking.close_epoch(EpochId([number; 16])).await.unwrap();
    }
    let mut all = BTreeSet::new();
    for writer in writers {
        all.extend(writer.await.unwrap());
    }
    let since_one = tracking.changes(EpochId([1; 16]), None, 0..u64::MAX, usize::MAX).await;
    assert_eq!(grains(&since_one), all);
    let (epochs, _, lost) = tracking.epochs().await;
    assert_eq!((epochs.len(), lost), (9, None));

    // The epochs in between are the same when they are merged.
    for number in 2..10 {
        tracking.release_epoch(EpochId([number; 16])).await.unwrap();
    }
    assert_eq!(tracking.changes(EpochId([1; 16]), None, 0..u64::MAX, usize::MAX).await, since_one);
}

#[tokio::test]
async fn changes_are_listed_window_by_window_and_no_further_than_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    // Three windows and a bit.
    let size = (200 << 30) + 512;
    let inner: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(size, 512).unwrap());
    let device = tracked(&inner, &folder.path().join("track"), &Arc::default(), Tuning::default());
    let tracking = device.tracking();
    let epoch = EpochId([1; 16]);
    tracking.close_epoch(epoch).await.unwrap();
    let mut expected = BTreeSet::new();
    for window in 0..3_u64 {
        // Over each end of a window, and every second grain behind it.
        let edge = (window + 1) << 30 << 6;
        let range = edge - GRAIN..(edge + GRAIN).min(size);
        device.write_zeroes(range.start, range.end - range.start, Zeroing::MayUnmap).await.unwrap();
        expected.extend([edge / GRAIN - 1, edge / GRAIN]);
        for number in 1..20 {
            let grain = edge / GRAIN + 2 * number;
            device.write(grain * GRAIN, block(1), Durability::Volatile).await.unwrap();
            expected.insert(grain);
        }
    }
    let all = tracking.changes(epoch, None, 0..u64::MAX, usize::MAX).await;
    assert_eq!(grains(&all), expected);
    let Changes::Known { ranges: all, .. } = all else { panic!() };
    assert_eq!(all.len(), 3 * 20, "ranges over the end of a window are joined");
    for most in [0, 1, 19, 20, 21, 45] {
        let some = tracking.changes(epoch, None, 0..u64::MAX, most).await;
        let Changes::Known { ranges, .. } = some else { panic!() };
        assert!(ranges.len() > most && ranges.len() <= most + 21, "{} of {most}", ranges.len());
        assert_eq!(ranges[..most], all[..most], "most {most}");
        // The last one may end with its window.
        assert_eq!(ranges[most].offset, all[most].offset, "most {most}");
    }
    let later = tracking.changes(epoch, None, all[30].offset..u64::MAX, usize::MAX).await;
    assert!(matches!(&later, Changes::Known { ranges, .. } if ranges[..] == all[30..]), "{later:?}");
}

#[tokio::test]
async fn an_operation_on_a_hot_region_is_answered_at_once_and_what_is_dropped_stays_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mtime, inner) = (folder.path().join("track"), Arc::default(), ram());
    let device = tracked(&inner, &path, &mtime, Tuning::default());
    let one = EpochId([1; 16]);
    device.tracking().close_epoch(one).await.unwrap();
    let cold = device.write(0, block(1), Durability::Volatile);
    assert!(matches!(cold, Io::Pending(_)), "the log comes first");
    cold.await.unwrap();
    for offset in [0, GRAIN, REGION - 4096] {
        assert!(matches!(device.write(offset, block(1), Durability::Volatile), Io::Ready(Ok(()))));
    }
    let known = device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await;
    assert_eq!(grains(&known), [0, 1, 63].into());
    drop(device);
    // As after a kill: all of the hot region, and nothing else.
    let device = tracked(&inner, &path, &mtime, Tuning::default());
    let known = device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await;
    assert_eq!(grains(&known), (0..64).collect());
    // What the log has as written needs no region to be hot.
    assert!(matches!(device.write(GRAIN * 9, block(1), Durability::Volatile), Io::Ready(Ok(()))));
    // Left in order, it is exact; changed meanwhile, it says so.
    device.tracking().close_epoch(EpochId([2; 16])).await.unwrap();
    device.write(REGION * 5, block(1), Durability::Volatile).await.unwrap();
    device.close().await.unwrap();
    assert!(device.write(0, block(1), Durability::Volatile).await.is_err());
    let device = tracked(&inner, &path, &mtime, Tuning::default());
    let known = device.tracking().changes(EpochId([2; 16]), None, 0..u64::MAX, usize::MAX).await;
    assert_eq!(grains(&known), [320].into());
    device.close().await.unwrap();
    mtime.fetch_add(1, SeqCst);
    let device = tracked(&inner, &path, &mtime, Tuning::default());
    let unknown = device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await;
    assert!(
        matches!(unknown, Changes::Unknown { why, .. } if why.contains("changed while it was not served"))
    );
}

#[tokio::test]
async fn a_disk_that_grows_and_shrinks_reports_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let inner = ram();
    let device = tracked(&inner, &folder.path().join("track"), &Arc::default(), Tuning::default());
    let one = EpochId([1; 16]);
    device.tracking().close_epoch(one).await.unwrap();
    device.resize(SIZE + 10 * GRAIN, Permit::default()).await.unwrap();
    let end = SIZE / GRAIN;
    let known = device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await;
    assert_eq!(grains(&known), (end..end + 10).collect());
    device.resize(SIZE - GRAIN, Permit::default()).await.unwrap();
    assert_eq!(grains(&device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await), BTreeSet::new());
    // Without a call of ours.
    inner.resize(SIZE, Permit::default()).await.unwrap();
    assert_eq!(
        grains(&device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await),
        [end - 1].into()
    );
}

#[tokio::test]
async fn after_a_crash_a_disk_of_another_size_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let one = EpochId([1; 16]);
    for (name, size, is_known) in
        [("same", SIZE, true), ("less", SIZE - GRAIN, false), ("more", SIZE + 512, false)]
    {
        let path = folder.path().join(name);
        let device = tracked(&ram(), &path, &Arc::default(), Tuning::default());
        device.tracking().close_epoch(one).await.unwrap();
        drop(device);
        let inner: Arc<dyn BlockDevice> = Arc::new(RamDisk::new(size, 512).unwrap());
        let device = tracked(&inner, &path, &Arc::default(), Tuning::default());
        match device.tracking().changes(one, None, 0..u64::MAX, usize::MAX).await {
            Changes::Known { .. } => assert!(is_known, "{name}"),
            Changes::Unknown { why, .. } => {
                assert!(
                    !is_known && why.contains("another size than when it was served last"),
                    "{name}: {why}"
                );
            }
        }
    }
}
