//! Chains of many runs against a model of every point: random changes, known or not, resizes, merges, prunes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunway_backup::{
    Catalogue, Changed, Folder, HostFolder, Lease, Order, PointId, Retention, Target, Verification, prune,
    restore, verify,
};
use lunway_block::{BlockDevice, BlockError, Buf, Durability, Extent, Io, Layer, Zeroing};
use lunway_copy::Skipped;
use lunway_memory::RamDisk;
use support::{
    How, LEAF, MIB, Random, Source, amount, assert_same, back_up, block_on, contents, guids, holder,
    restore_onto, restored,
};

/// Two units and a half, and a sector: the last leaf is short.
const SIZE: u64 = 2 * MIB + (MIB >> 1) + 512;

fn check_all(folder: &Arc<dyn Folder>, model: &BTreeMap<PointId, Vec<u8>>, context: &str) {
    let catalogue = Catalogue::load(&**folder).unwrap();
    let points: Vec<PointId> = catalogue.points().iter().map(|point| point.manifest.point).collect();
    assert_eq!(points.len(), model.len(), "{context}");
    for point in points {
        let found = restored(folder, point).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_same(&found, &model[&point], &format!("{context}, point {point}"));
    }
}

#[test]
fn every_point_of_a_long_chain_is_what_the_source_was() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let seed = amount("LUNWAY_BACKUP_SEED", 1);
    println!("LUNWAY_BACKUP_SEED={seed}");
    let mut random = Random::new(seed);
    let mut source = Source::new(SIZE);
    let mut model: BTreeMap<PointId, Vec<u8>> = BTreeMap::new();
    let mut resized = false;
    for number in 0..amount("LUNWAY_BACKUP_RUNS", 40) {
        let changes = random.next() % 6;
        source.change(&mut random, changes);
        if random.next().is_multiple_of(9) {
            let size = (SIZE / 2 + random.next() % SIZE) / 512 * 512;
            source.resize(size);
            resized = true;
        }
        let changed = if random.next().is_multiple_of(3) { source.unknown() } else { source.known() };
        let mut how = How::new(changed, number + 1);
        how.full = random.next().is_multiple_of(23);
        let outcome = back_up(&folder, &source.disk, source.epoch, how).unwrap();
        assert!(!outcome.manifest.why.contains("sample"), "{:?}", outcome.notes);
        model.insert(outcome.manifest.point, source.model.clone());
        if random.next().is_multiple_of(10) {
            let retention = Retention {
                last: 1 + (random.next() % 8) as usize,
                hourly: (random.next() % 4) as usize,
                daily: 3,
                ..Retention::default()
            };
            let lease = Lease::take(&*folder, holder(number), &|| false).unwrap();
            prune(&*folder, &lease, &guids(number), &retention, &mut |_, _, _| true).unwrap();
            let catalogue = Catalogue::load(&*folder).unwrap();
            model.retain(|point, _| catalogue.get(*point).is_some());
            assert_eq!(catalogue.newest().map(|newest| newest.point), Some(outcome.manifest.point));
        }
        if number % 10 == 9 {
            check_all(&folder, &model, &format!("seed {seed}, run {number}"));
        }
    }
    check_all(&folder, &model, &format!("seed {seed}, end"));
    let catalogue = Catalogue::load(&*folder).unwrap();
    let report = verify(&*folder, &catalogue, Verification::default(), &|| false, &mut |_, _| ()).unwrap();
    assert_eq!((report.findings, report.remarks), (vec![], vec![]));
    assert_eq!(report.whole.len(), model.len());
    assert!(resized || amount("LUNWAY_BACKUP_RUNS", 40) < 40, "the seed resizes");
    let leftover = folder.names().unwrap().into_iter().find(|name| name.contains("incomplete"));
    assert_eq!(leftover, None);
}

#[test]
fn a_run_reads_what_changed_and_sends_what_differs() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut random = Random::new(3);
    let mut source = Source::new(64 * MIB);
    source.change(&mut random, 200);
    let first = source.back_up(&folder, false, 1).unwrap();
    assert_eq!(first.manifest.kind.name(), "full");
    source.write(10 * MIB, &[1; 4096]);
    // The same bytes once more: a change that is none.
    let same = source.model[(30 * MIB) as usize..(31 * MIB) as usize].to_vec();
    source.write(30 * MIB, &same);
    let second = source.back_up(&folder, true, 2).unwrap();
    let manifest = &second.manifest;
    assert_eq!(manifest.kind.name(), "increment");
    assert_eq!((manifest.sent_bytes, manifest.changed_bytes), (support::LEAF, support::LEAF), "{manifest:?}");
    assert!(manifest.read_bytes <= 2 * MIB, "{manifest:?}");
    let third = source.back_up(&folder, false, 3).unwrap();
    assert_eq!(third.manifest.sent_bytes, 0);
    assert!(third.manifest.why.contains("compared by hash"), "{}", third.manifest.why);
}

#[test]
fn a_tracker_that_forgets_a_change_is_caught_by_the_sample() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut source = Source::new(4 * MIB);
    source.change(&mut Random::new(5), 30);
    source.back_up(&folder, false, 1).unwrap();
    for unit in 0..4 {
        source.write(unit * MIB, &[7; 512]);
    }
    source.changed.clear();
    source.epoch = 1;
    let outcome = source.back_up(&folder, true, 2).unwrap();
    assert!(outcome.manifest.why.contains("not believed"), "{}", outcome.manifest.why);
    assert_same(&restored(&folder, outcome.manifest.point).unwrap(), &source.model, "the point");
}

#[test]
fn a_range_of_a_point_is_restored_from_the_beginning_of_a_device() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut random = Random::new(11);
    let mut source = Source::new(SIZE);
    source.change(&mut random, 30);
    source.back_up(&folder, false, 1).unwrap();
    source.change(&mut random, 5);
    let point = source.back_up(&folder, true, 2).unwrap().manifest.point;
    let catalogue = Catalogue::load(&*folder).unwrap();
    for number in 0..60 {
        let start = random.next() % (SIZE / 512) * 512;
        let end = (start + 512 + random.next() % (SIZE / 512) * 512).min(SIZE);
        let context = format!("{start}..{end}");
        let target = [Target::Blank, Target::Unknown, Target::Damaged][number % 3];
        let mut other = Source::new(end - start + 1024);
        if target != Target::Blank {
            other.change(&mut random, 10);
        }
        let before = contents(&other.disk);
        let order = Order { point, range: Some(start..end), target };
        support::block_on(restore(&folder, &catalogue, order, &other.disk, &|| false, &mut |_| ())).unwrap();
        let found = contents(&other.disk);
        let len = (end - start) as usize;
        assert_same(&found[..len], &source.model[start as usize..end as usize], &context);
        assert_same(&found[len..], &before[len..], &format!("{context}: behind it"));
    }
    let behind = Order { point, range: Some(SIZE - 512..SIZE + 512), target: Target::Blank };
    let disk = RamDisk::new(MIB, 512).unwrap();
    let refused = support::block_on(restore(&folder, &catalogue, behind, &disk, &|| false, &mut |_| ()));
    assert!(refused.unwrap_err().to_string().contains("not on the disk"));
}

#[test]
fn what_was_left_out_is_no_reason_to_distrust_the_tracker() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut source = Source::new(4 * MIB);
    // Each unit has data that is needed, and data that nobody needs: files that were removed.
    let mut skipped = Skipped::default();
    for unit in 0..4 {
        source.write(unit * MIB, &[5; 4096]);
        source.write(unit * MIB + 4 * support::LEAF, &[6; 8192]);
        skipped.insert(unit * MIB + 4 * support::LEAF..(unit + 1) * MIB);
    }
    let run = |source: &mut Source, skipped: &Skipped, seed| {
        let how =
            How { skipped, ..How::new(if seed == 1 { source.unknown() } else { source.known() }, seed) };
        back_up(&folder, &source.disk, source.epoch, how).unwrap().manifest
    };
    let first = run(&mut source, &skipped, 1);
    assert!(!first.skipped.is_empty());
    for seed in 2..5 {
        // What is written to free space is not backed up, and differs from then on.
        source.write(MIB + 5 * support::LEAF, &[seed as u8; 512]);
        let next = run(&mut source, &skipped, seed);
        assert!(!next.why.contains("not believed"), "{}", next.why);
        assert!(next.read_bytes <= support::LEAF, "{next:?}");
    }
    // Free space that is given to a file without being written: it is not known to be anything.
    let next = run(&mut source, &Skipped::default(), 5);
    assert!(!next.why.contains("unit") && next.read_bytes <= support::LEAF, "{next:?}");
    // What is needed is still compared.
    for unit in 0..4 {
        source.write(unit * MIB, &[8; 512]);
    }
    source.changed.clear();
    let next = run(&mut source, &skipped, 6);
    assert!(next.why.contains("not believed"), "{}", next.why);
}

#[test]
fn points_are_merged_when_there_are_enough_of_them() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut source = Source::new(MIB);
    let mut model = BTreeMap::new();
    let mut merges = Vec::new();
    for night in 1..13 {
        source.write(night * 4096, &[night as u8; 4096]);
        let point = source.back_up(&folder, true, night).unwrap().manifest.point;
        model.insert(point, source.model.clone());
        let retention = Retention { last: 2, merge_after: 4, ..Retention::default() };
        let lease = Lease::take(&*folder, holder(night), &|| false).unwrap();
        let steps = prune(&*folder, &lease, &guids(night), &retention, &mut |_, _, _| true).unwrap();
        merges.push(steps.len());
        let catalogue = Catalogue::load(&*folder).unwrap();
        model.retain(|point, _| catalogue.get(*point).is_some());
    }
    assert_eq!(merges, [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0], "each fourth night from the sixth on");
    check_all(&folder, &model, "at the end");
}

#[test]
fn a_generation_is_never_given_twice() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut source = Source::new(MIB);
    source.change(&mut Random::new(1), 3);
    source.back_up(&folder, false, 1).unwrap();
    let second = source.back_up(&folder, false, 2).unwrap().manifest;
    // Neither copy of the newest manifest can be read.
    for name in
        folder.names().unwrap().iter().filter(|name| name.starts_with("000002") && name.ends_with("json"))
    {
        folder.set_read_only(name, false).unwrap();
        folder.open(name, true).unwrap().write_at(100, b"????").unwrap();
    }
    let third = source.back_up(&folder, false, 3).unwrap().manifest;
    assert_eq!((second.generation, third.generation), (2, 3));
}

#[test]
fn a_damaged_disk_gets_what_differs_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let mut source = Source::new(SIZE);
    source.change(&mut Random::new(8), 20);
    let point = source.back_up(&folder, false, 1).unwrap().manifest.point;
    let before = source.model.clone();
    source.write(MIB, &[9; 512]);
    source.write(SIZE - 512, &[9; 512]);
    let delta = restore_onto(&folder, point, &source.disk, Target::Damaged).unwrap();
    assert!(delta.written + delta.zeroed <= 2 * support::LEAF, "{delta:?}");
    assert_same(&contents(&source.disk), &before, "delta");
    // Onto a larger disk full of other things.
    let mut other = Source::new(SIZE + MIB - 512);
    other.change(&mut Random::new(9), 40);
    restore_onto(&folder, point, &other.disk, Target::Unknown).unwrap();
    assert_same(&contents(&other.disk)[..SIZE as usize], &before, "over other data");
    let small = RamDisk::new(MIB, 512).unwrap();
    let refused = restore_onto(&folder, point, &small, Target::Blank);
    assert!(refused.unwrap_err().to_string().contains("take a larger one"));
}

/// A source that counts how often it is asked for its map.
struct Mapped {
    disk: RamDisk,
    maps: AtomicU64,
}

impl Layer for Mapped {
    fn inner(&self) -> &dyn BlockDevice {
        &self.disk
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        self.disk.extents(offset, len, count)
    }
}

#[test]
fn a_large_disk_of_holes_is_asked_for_its_map_in_large_steps() {
    const TIB: u64 = 1 << 40;
    let source = Mapped { disk: RamDisk::new(TIB, 512).unwrap(), maps: AtomicU64::new(0) };
    let write = |at: u64, byte: u8| {
        let data = Buf::copy_of(&[byte; LEAF as usize]).freeze();
        block_on(source.disk.write(at, data, Durability::Volatile).into_future()).unwrap();
    };
    let zero = |at: u64| {
        block_on(source.disk.write_zeroes(at, LEAF, Zeroing::MayUnmap).into_future()).unwrap();
    };
    let places = [0, TIB / 2 + 5 * MIB, TIB - LEAF];
    places.iter().for_each(|at| write(*at, 7));
    let place = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(HostFolder::open(place.path()).unwrap());
    let run = |seed: u64| {
        let changed = Changed::Unknown { why: "a test says nothing".into() };
        source.maps.store(0, Ordering::Relaxed);
        let outcome = back_up(&folder, &source, seed, How::new(changed, seed)).unwrap();
        // It has a thousand windows of a GiB.
        let maps = source.maps.load(Ordering::Relaxed);
        assert!(maps < 100, "{maps} maps");
        outcome.manifest
    };
    let full = run(1);
    assert_eq!((full.read_bytes, full.sent_bytes), (3 * LEAF, 3 * LEAF));
    // What the parent alone holds is looked at as well.
    zero(places[1]);
    write(TIB / 4, 8);
    let next = run(2);
    assert_eq!((next.read_bytes, next.changed_bytes, next.sent_bytes), (3 * LEAF, 2 * LEAF, LEAF));
    let out = RamDisk::new(TIB, 512).unwrap();
    restore_onto(&folder, next.point, &out, Target::Blank).unwrap();
    for (at, byte) in [(0, 7), (TIB / 4, 8), (places[1], 0), (places[2], 7)] {
        let read = block_on(out.read(at, Buf::for_overwrite(LEAF as usize)).into_future()).unwrap();
        assert!(read.iter().all(|found| *found == byte), "at {at}");
    }
}
