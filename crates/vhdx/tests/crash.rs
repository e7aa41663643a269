//! Power cuts: after every prefix of writes and flushes, with what was not flushed lost, torn or out of order, the file
//! opens, is sound, and holds every byte that a flush has acknowledged. Commits that fill the log are in
//! `crash_log.rs`.

use crate::support::*;
use lunway_vhdx::crash::{Crash, MemoryStorage, Recorder};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{
    Chain, DiscardMode, Disk, DiskError, DiskKind, Item, MapSegment, SegmentSource, Storage, VhdxOpenOptions,
    create_unflushed,
};

/// The unit of the tests' writes, bytes: small enough for partial blocks, large enough to look at all of a disk often.
const UNIT: u64 = 4096;

/// A unit of each value, to compare with.
static FILLS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();

/// What happened to one unit: what it holds since which operation.
#[derive(Clone)]
struct History {
    /// Contents by their fill byte, with the number of operations before the change, in order. 0 is zero.
    values: Vec<(usize, u8)>,
    /// How many of them were complete at each acknowledged flush: operations at the acknowledgement, length of
    /// `values`.
    floors: Vec<(usize, usize)>,
}

/// A disk that is written, and what each unit of it may hold at any time.
struct Workload {
    recorder: Recorder,
    parents: Vec<MemoryStorage>,
    chain: Option<Chain<Recorder>>,
    units: Vec<History>,
    opened: u64,
    /// Operations before which a crash may leave anything.
    reached: usize,
}

impl Workload {
    /// A disk of `blocks` blocks of 1 MiB, with or without a parent full of ones.
    fn new(blocks: u64, differencing: bool, holes: bool) -> Self {
        let size = blocks * MIB;
        let base = memory(&options(DiskKind::Dynamic, size, 1 << 20, 512), 1);
        let (start, parents, value) = match differencing {
            false => (base, Vec::new(), 0),
            true => {
                let shared = std::sync::Arc::new(base);
                let chain = alone(open(shared.clone(), true, 2));
                chain.write_at(0, &vec![1; size as usize]).expect("a write");
                chain.close().expect("a close");
                let parent = (*shared).clone();
                let child = memory(&child_options(&open(shared, false, 3), size, 1 << 20), 4);
                (child, vec![parent], 1)
            }
        };
        let recorder = if holes { Recorder::new(start) } else { Recorder::without_holes(start) };
        let units = vec![History { values: vec![(0, value)], floors: vec![(0, 1)] }; (size / UNIT) as usize];
        let mut workload = Self { recorder, parents, chain: None, units, opened: 0, reached: 0 };
        workload.open();
        workload
    }

    /// A dynamic disk that is made without a flush, and nothing leads to before its first one.
    fn unflushed(blocks: u64, holes: bool) -> Self {
        let size = blocks * MIB;
        let start = MemoryStorage::default();
        let recorder = if holes { Recorder::new(start) } else { Recorder::without_holes(start) };
        let options = options(DiskKind::Dynamic, size, 1 << 20, 512);
        create_unflushed(&recorder, &options, guids(1).as_mut()).expect("a new file");
        let is_new = VhdxOpenOptions { is_new: true, ..VhdxOpenOptions::writable() };
        let disk = Disk::open(recorder.clone(), &is_new, guids(2)).unwrap_or_else(|error| panic!("{error}"));
        let units = vec![History { values: vec![(0, 0)], floors: vec![(0, 1)] }; (size / UNIT) as usize];
        let chain = Some(alone(disk));
        Self { recorder, parents: Vec::new(), chain, units, opened: 0, reached: usize::MAX }
    }

    fn open(&mut self) {
        self.opened += 1;
        let leaf = Disk::open(self.recorder.clone(), &VhdxOpenOptions::writable(), guids(100 + self.opened));
        let mut disks = vec![leaf.unwrap_or_else(|error| panic!("{error}"))];
        disks.extend(self.parents.iter().map(|parent| open(Recorder::new(parent.clone()), false, 0)));
        self.chain = Some(Chain::new(disks).unwrap_or_else(|error| panic!("{error}")));
    }

    fn chain(&self) -> &Chain<Recorder> {
        self.chain.as_ref().expect("open")
    }

    fn note(&mut self, first: u64, count: u64, began: usize, value: u8) {
        for unit in &mut self.units[first as usize..(first + count) as usize] {
            unit.values.push((began, value));
        }
    }

    fn write(&mut self, first: u64, count: u64, value: u8) {
        let began = self.recorder.count();
        self.chain().write_at(first * UNIT, &vec![value; (count * UNIT) as usize]).expect("a write");
        self.note(first, count, began, value);
    }

    fn zero(&mut self, first: u64, count: u64, mode: DiscardMode) {
        let began = self.recorder.count();
        self.chain().discard(first * UNIT, count * UNIT, mode).expect("a discard");
        // Whether an unmap did anything is seen by reading.
        for unit in first..first + count {
            let mut data = [0xEE; UNIT as usize];
            self.chain().read_at(unit * UNIT, &mut data).expect("a read");
            match data[0] {
                0 => self.note(unit, 1, began, 0),
                _ => assert!(mode == DiscardMode::Unmap, "zeroes are zeroes"),
            }
        }
    }

    fn flush(&mut self) {
        self.flush_by(Chain::flush);
    }

    fn flush_at_once(&mut self) {
        self.flush_by(Chain::flush_at_once);
    }

    fn flush_by(&mut self, flush: impl FnOnce(&Chain<Recorder>) -> Result<(), DiskError>) {
        let floors: Vec<usize> = self.units.iter().map(|unit| unit.values.len()).collect();
        flush(self.chain()).expect("a flush");
        let done = self.recorder.count();
        self.reached = self.reached.min(done);
        for (unit, floor) in self.units.iter_mut().zip(floors) {
            unit.floors.push((done, floor));
        }
    }

    fn close(&mut self) {
        self.flush();
        self.chain.take().expect("open").close().expect("a close");
    }

    /// Opens an image as a crash left it, and compares every unit.
    fn verify(&self, image: MemoryStorage, done: usize, context: &str) {
        assert_sound(&image, context);
        let image = std::sync::Arc::new(image);
        let fills = FILLS.get_or_init(|| (0..=255).map(|value| vec![value; UNIT as usize]).collect());
        for writable in [false, true] {
            let leaf = Disk::open(image.clone(), &open_options(writable), guids(9));
            let mut disks = vec![leaf.unwrap_or_else(|error| panic!("{context}: {error}"))];
            disks.extend(
                self.parents.iter().map(|parent| open(std::sync::Arc::new(parent.clone()), false, 0)),
            );
            let chain = Chain::new(disks).unwrap_or_else(|error| panic!("{context}: {error}"));
            let bytes = contents(&chain);
            for (number, (data, unit)) in bytes.chunks(UNIT as usize).zip(&self.units).enumerate() {
                let floor =
                    unit.floors.iter().rev().find(|(at, _)| *at <= done).map_or(1, |(_, floor)| *floor);
                let begun = unit.values.iter().filter(|(began, _)| *began <= done).count();
                let allowed: Vec<u8> =
                    unit.values[floor - 1..begun.max(floor)].iter().map(|(_, value)| *value).collect();
                if allowed.contains(&data[0]) && data == fills[usize::from(data[0])] {
                    continue;
                }
                // A write of several sectors may be there in part: each sector is judged by itself.
                for sector in data.chunks(512) {
                    let value = sector[0];
                    assert!(
                        sector.iter().all(|byte| *byte == value) && allowed.contains(&value),
                        "{context}, writable {writable}: unit {number} holds {value}, allowed are {allowed:?}"
                    );
                }
            }
            if writable {
                // It goes on from there.
                chain.write_at(0, &[77; 512]).unwrap_or_else(|error| panic!("{context}: {error}"));
                chain.close().unwrap_or_else(|error| panic!("{context}: {error}"));
            }
        }
        assert_sound(image.as_ref(), context);
    }

    /// Every prefix, with what is not flushed: all there, all lost, and `samples` times some of it.
    fn verify_all(&self, samples: u64, seed: u64) -> u64 {
        let mut rng = Random::new(seed);
        let mut images = 0;
        self.recorder.each_crash(|crash: &Crash<'_>| {
            let done = crash.done;
            if done < self.reached {
                return;
            }
            let units = crash.units(512);
            let mut try_one = |image, what: &str| {
                images += 1;
                self.verify(
                    image,
                    done,
                    &format!("seed {seed}, after {done} operations, {what} of {units} pieces"),
                );
            };
            try_one(crash.image(512, |_| true), "all");
            if units == 0 {
                return;
            }
            try_one(crash.image(512, |_| false), "none");
            for sample in 0..samples {
                let unit = if sample % 2 == 0 { 512 } else { 4096 };
                let share = [20, 50, 80, 95][rng.below(4) as usize];
                let mut decide = rng.clone();
                rng.next();
                try_one(crash.image(unit, |_| decide.below(100) < share), "some");
            }
            // Few pieces: each one lost, each one alone.
            if units <= 12 {
                for piece in 0..units {
                    try_one(crash.image(512, |number| number != piece), "all but one");
                    try_one(crash.image(512, |number| number == piece), "one");
                }
            }
        });
        images
    }
}

fn open_options(writable: bool) -> VhdxOpenOptions {
    if writable { VhdxOpenOptions::writable() } else { VhdxOpenOptions::read_only() }
}

/// Small workloads, each one thing that can go wrong.
fn small(differencing: bool, holes: bool) -> Workload {
    let mut disk = Workload::new(4, differencing, holes);
    disk.write(3, 2, 10);
    disk.flush();
    disk.write(300, 1, 11);
    disk.write(3, 1, 12);
    disk.flush();
    // A whole block goes, and its space serves another one.
    disk.zero(0, 256, DiscardMode::Unmap);
    disk.flush();
    disk.write(520, 1, 13);
    disk.write(10, 1, 14);
    disk.flush();
    disk.zero(520, 4, DiscardMode::Zero);
    disk.zero(768, 256, DiscardMode::Zero);
    disk.flush();
    disk.close();
    disk
}

#[test]
fn an_allocating_and_unmapping_disk_survives_every_power_cut() {
    for holes in [true, false] {
        let images = small(false, holes).verify_all(amount("LUNWAY_VHDX_CRASH_SAMPLES", 1), 1);
        println!("{images} images");
        assert!(images > 100, "{images} images");
    }
}

#[test]
fn a_differencing_disk_survives_every_power_cut() {
    for holes in [true, false] {
        let images = small(true, holes).verify_all(amount("LUNWAY_VHDX_CRASH_SAMPLES", 1), 2);
        println!("{images} images");
        assert!(images > 100, "{images} images");
    }
}

/// Blocks that are emptied part by part, whole ones and, of a differencing disk, one of which each part is the first to
/// come into the file.
#[test]
fn a_disk_of_blocks_that_unmaps_empty_part_by_part_survives_every_power_cut() {
    for (differencing, holes) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut disk = Workload::new(3, differencing, holes);
        let is_zero = |disk: &Workload, block: u64| {
            let mut zero = false;
            let mut look =
                |segment: MapSegment| zero = segment.source == SegmentSource::Zero && segment.len == MIB;
            disk.chain().map(block * MIB, MIB, &mut look).expect("a map");
            zero
        };
        // As a device does it: an unmap of a part of a differencing disk's block hides the parent's.
        let mode = if differencing { DiscardMode::Zero } else { DiscardMode::Unmap };
        disk.write(0, 256, 10);
        disk.flush();
        disk.zero(0, 100, mode);
        disk.zero(200, 56, DiscardMode::Zero);
        disk.flush();
        assert!(!is_zero(&disk, 0), "a part is left");
        disk.zero(100, 100, mode);
        assert!(is_zero(&disk, 0), "nothing is left of it");
        disk.write(5, 1, 11);
        disk.zero(5, 1, mode);
        assert!(is_zero(&disk, 0), "nor again");
        disk.flush();
        // Its space serves another one, and it comes back.
        disk.write(256, 256, 12);
        disk.write(7, 2, 13);
        disk.flush();
        for part in [128, 0] {
            disk.zero(512 + part, 128, DiscardMode::Zero);
            disk.flush();
        }
        assert!(is_zero(&disk, 2), "all of it is here, and hides the parent");
        disk.write(600, 1, 14);
        disk.zero(7, 2, mode);
        disk.close();
        let images = disk.verify_all(amount("LUNWAY_VHDX_CRASH_SAMPLES", 1), 3);
        println!("{images} images");
        assert!(images > 100, "{images} images");
    }
}

/// Of data that no flush has acknowledged the table may be there first. As nothing is written twice between two
/// flushes, and no space serves another block, what is there then is zeroes.
#[test]
fn a_new_disk_that_is_flushed_at_once_survives_every_power_cut_behind_its_first_flush() {
    for (holes, first_is_empty) in [(true, false), (false, false), (true, true)] {
        let mut disk = Workload::unflushed(8, holes);
        if first_is_empty {
            disk.flush_at_once();
        }
        let mut value = 0;
        for block in [0, 3, 1, 7, 4] {
            for unit in [0, 7] {
                value += 1;
                disk.write(block * 256 + unit, 2, value);
            }
            disk.flush_at_once();
            disk.flush_at_once();
        }
        disk.write(2 * 256, 256, 30);
        disk.flush();
        disk.write(5 * 256, 1, 31);
        disk.flush_at_once();
        disk.write(6 * 256, 1, 32);
        disk.close();
        let images = disk.verify_all(amount("LUNWAY_VHDX_CRASH_SAMPLES", 1), 4);
        println!("{images} images");
        assert!(images > 100, "{images} images");
    }
}

/// The log goes around its ring more than once, of which each entry is released by the flush behind the next one.
#[test]
fn the_log_of_a_disk_that_is_flushed_at_once_never_lacks_room() {
    let mut disk = Workload::unflushed(2, true);
    for round in 0..600u64 {
        disk.write(round % 512, 1, (round % 200) as u8 + 1);
        if round % 100 == 0 {
            disk.zero(0, 512, DiscardMode::Zero);
        }
        disk.write(round % 512, 1, (round % 200) as u8 + 1);
        let before = disk.recorder.count();
        disk.flush_at_once();
        let flushes = disk.recorder.count() - before;
        assert!(flushes <= 8, "{flushes} operations");
    }
    disk.close();
}

#[test]
fn random_workloads_survive_sampled_power_cuts() {
    let seeds = amount("LUNWAY_VHDX_CRASH_SEEDS", 4);
    let first = amount("LUNWAY_VHDX_CRASH_FIRST_SEED", 0);
    let mut images = 0;
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut rng = Random::new(seed);
        let mut disk = Workload::new(4, rng.below(2) == 0, rng.below(2) == 0);
        let units = 4 * MIB / UNIT;
        for step in 0..24 {
            let first = rng.below(units);
            let block = first / 256 * 256;
            match rng.below(11) {
                10 => {
                    // The rest of a block, in one to four parts.
                    let part = [256, 128, 64][rng.below(3) as usize];
                    for at in (0..256).step_by(part) {
                        disk.zero(block + at as u64, part as u64, DiscardMode::Zero);
                    }
                }
                0..5 => disk.write(first, 1 + rng.below(8.min(units - first)), 20 + step as u8),
                5 => disk.write(block, 256, 20 + step as u8),
                6 => disk.zero(block, 256, DiscardMode::Unmap),
                7 => disk.zero(first, 1 + rng.below(8.min(units - first)), DiscardMode::Zero),
                8 if rng.below(4) == 0 => {
                    disk.close();
                    disk.open();
                }
                _ => disk.flush(),
            }
        }
        disk.close();
        images += disk.verify_all(1, seed);
    }
    println!("{images} images");
}

#[test]
fn a_disk_that_is_being_made_is_none_or_whole() {
    let recorder = Recorder::default();
    make(&recorder, &options(DiskKind::Fixed, 8 * MIB, 1 << 20, 512), 1);
    recorder.each_crash(|crash| {
        for kept in [false, true] {
            let image = crash.image(512, |_| kept);
            match Disk::open(image.clone(), &VhdxOpenOptions::read_only(), guids(1)) {
                Ok(_) => assert_sound(&image, "a new disk"),
                Err(lunway_vhdx::VhdxOpenError::NotVhdx) => assert!(crash.done < recorder.count()),
                Err(error) => panic!("after {} operations: {error}", crash.done),
            }
        }
    });
    assert!(Storage::len(recorder.now()).expect("memory") >= 8 * MIB);
}

#[test]
fn a_child_that_is_being_made_is_none_or_whole() {
    let parent = std::sync::Arc::new(memory(&options(DiskKind::Dynamic, 4 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(parent.clone(), true, 2));
    chain.write_at(0, &vec![1; 4 * MIB as usize]).expect("a write");
    chain.close().expect("a close");
    let item = Item { id: Guid::from_digits(7), flags: 2, data: vec![7; 5000] };
    let recorder = Recorder::default();
    let mut child = child_options(&open(parent.clone(), false, 3), 6 * MIB, 1 << 20);
    child.items.push(item.clone());
    make(&recorder, &child, 4);
    let (mut rng, mut whole) = (Random::new(6), 0);
    recorder.each_crash(|crash| {
        for share in [0, 100, 10, 50, 90, 99] {
            let mut decide = rng.clone();
            rng.next();
            let image = std::sync::Arc::new(crash.image(512, |_| decide.below(100) < share));
            let context = format!("after {} operations, {share} % kept", crash.done);
            match Disk::open(image.clone(), &VhdxOpenOptions::read_only(), guids(1)) {
                Ok(disk) => {
                    whole += 1;
                    assert_sound(image.as_ref(), &context);
                    assert!(disk.items().expect("the items").contains(&item), "{context}");
                    let chain = Chain::new(vec![disk, open(parent.clone(), false, 5)]);
                    let bytes = contents(&chain.unwrap_or_else(|error| panic!("{context}: {error}")));
                    let (of_parent, behind) = bytes.split_at(4 << 20);
                    assert!(of_parent.iter().all(|byte| *byte == 1), "{context}");
                    assert!(behind.iter().all(|byte| *byte == 0), "{context}");
                }
                Err(lunway_vhdx::VhdxOpenError::NotVhdx) => {
                    assert!(crash.done < recorder.count(), "{context}");
                }
                Err(error) => panic!("{context}: {error}"),
            }
        }
    });
    assert!(whole >= 6, "it is there at the end");
}
